"""What the steps share: which groups the findings mean, what may never be ended, and how long a line may take."""

from __future__ import annotations

from collections.abc import Iterable

from recover.model.act import Act, Line
from recover.model.gpu import Gpu
from recover.model.guest import Guest
from recover.model.ladder import Params
from recover.model.process import Group, Health, Owner, OwnerKind, Process, ProcessId
from recover.model.reading import Known
from recover.model.snapshot import Snapshot
from recover.model.verdict import Finding
from recover.steps.bounds import worst_case_s

SICK = frozenset({Health.DEAD, Health.HUNG})

# Cards that a reset has left dead until the host rebooted (CloudRift's report on FLR under KVM): vendor:device.
FRAGILE = {
    "10de:2b85": "RTX 5090",
    "10de:2bb1": "RTX PRO 6000 Blackwell",
    "10de:2bb4": "RTX PRO 6000 Blackwell Max-Q",
    "10de:2bb5": "RTX PRO 6000 Blackwell Server Edition",
}
MAY_DIE = "a reset can leave such a card dead until the host reboots"

# Whoever owns these would start again what we end, or must be asked by other means than ours.
_COMMANDS = {
    OwnerKind.KUBERNETES: "kubectl delete pod {name}",
    OwnerKind.SLURM: "scancel {name}",
    OwnerKind.SUPERVISORD: "supervisorctl stop {name}",
}
_FORMS = {OwnerKind.KUBERNETES: "<its pod>", OwnerKind.SLURM: "<its job>"}


def indices(gpus: Iterable[Gpu]) -> str:
    return ", ".join(str(g.index) for g in gpus)


def number(params: Params, name: str) -> float:
    value = params[name]
    assert isinstance(value, (int, float)), name
    return float(value)


def flag(params: Params, name: str) -> bool:
    return params.get(name) is True


def processes(snapshot: Snapshot) -> dict[ProcessId, Process]:
    """The processes that were seen; empty where they could not be."""
    if not isinstance(snapshot.guest, Guest) or not isinstance(snapshot.guest.processes, Known):
        return {}
    return {p.id: p for p in snapshot.guest.processes.value}


def meant(snapshot: Snapshot, findings: Iterable[Finding]) -> tuple[Group, ...]:
    """The groups that findings name and that are found dead or hung. Nothing else is ever ended unasked."""
    named = {f.where for f in findings}
    return tuple(g for g in snapshot.groups if g.key in named and g.health in SICK and not g.protected)


def evictable(snapshot: Snapshot, findings: Iterable[Finding], params: Params) -> tuple[Group, ...]:
    """The groups that findings mean, with `evict` also those without evidence of health, with `drain` all."""
    sick = {g.key for g in meant(snapshot, findings)}
    return tuple(
        g
        for g in snapshot.groups
        if not g.protected
        and (g.key in sick or flag(params, "drain") or (flag(params, "evict") and g.health is Health.LIVE))
    )


def runs_script(process: Process) -> bool:
    """Whether a shell runs a script; an interactive or a login shell is somebody's."""
    argv = process.argv.value if isinstance(process.argv, Known) else ()
    return len(argv) > 1 and not argv[0].startswith("-") and not any(a in ("-i", "-l", "--login") for a in argv[1:])


def spared(snapshot: Snapshot, ending: Iterable[Group]) -> frozenset[ProcessId]:
    """Processes that no signal may reach: ours, pid 1, sshd, protected groups, and groups that are not being ended."""
    keys = {g.key for g in ending}
    others = {m for g in snapshot.groups if g.protected or g.key not in keys for m in g.members}
    system = {p.id for p in processes(snapshot).values() if p.ours or p.pid == 1 or p.comm.startswith("sshd")}
    return frozenset(others | system)


def elsewhere(owner: Owner) -> str:
    """The command with which a person asks `owner` to stop the group; empty where we can ask it ourselves."""
    namespace, slash, pod = owner.name.partition("/")
    if owner.kind is OwnerKind.KUBERNETES and owner.name:
        return (
            f"kubectl delete pod --namespace {namespace} {pod}"
            if slash
            else f"kubectl delete pod <its pod, uid {namespace}>"
        )
    form = _COMMANDS.get(owner.kind, "")
    return form.format(name=owner.name or _FORMS.get(owner.kind, "<its name>"))


def called(group: Group) -> str:
    """A name for a person: what runs there and under whom."""
    title = group.title or group.engine
    owner = f" ({owner_word(group.owner)})" if group.owner.kind is not OwnerKind.NONE else ""
    return f"{title[:60]} [{group.key}]{owner}"


def owner_word(owner: Owner) -> str:
    return f"{owner.kind} {owner.name}".strip()


def line(acts: Iterable[Act], words: Iterable[str]) -> Line:
    acts = tuple(acts)
    return Line(acts, sum(worst_case_s(a.do) for a in acts), tuple(words))
