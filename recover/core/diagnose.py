"""`assess` reads one look and what earlier looks left, and says what is wrong: it never acts, remembers or guesses.

Unknown is never health and never by itself a fault: HEALTHY needs each reading that could show a fault, a curable
finding needs something that was seen.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from recover.core.baseline import stale
from recover.core.groups import fingerprint, form_with_parts, in_container
from recover.core.health import judge_all
from recover.core.look import ONLY_NODE, Gap, Look, Sign, Watch
from recover.core.news import news
from recover.core.past import Past
from recover.core.ram import ram_expected, unowned
from recover.core.serving import serving, with_answer
from recover.core.signals import SIGNALS
from recover.core.signals.server import came_back
from recover.model.gpu import Gpu, uuid_of
from recover.model.guest import Guest
from recover.model.hypervisor import Hypervisor, NoHypervisor
from recover.model.ladder import Limits
from recover.model.process import Group, Health
from recover.model.reading import Known
from recover.model.record import GpuVital, Vitals
from recover.model.snapshot import Channel, Snapshot
from recover.model.verdict import Diagnosis, Finding, Scope, State, Symptom
from recover.steps.power import start_timeout_s
from recover.steps.services import key_of, only_by_hand


def assess(raw: Snapshot, past: Past, limits: Limits) -> tuple[Snapshot, Diagnosis]:
    """The look with its groups, and what it means."""
    look = judge_all(_look(raw, past, limits))
    judged = (with_answer(look, g) for g in look.groups)
    look = replace(look, groups=tuple(replace(g, supervised_again=came_back(look, g)) for g in judged))
    signs = [_within_reach(sign, look) for signal in SIGNALS for sign in signal(look)]
    watches = _unique(sign for sign in signs if isinstance(sign, Watch))
    ripe = tuple(w for w in watches if look.ripe(w.symptom))
    findings = _ranked([s for s in signs if isinstance(s, Finding)] + [w.symptom.finding for w in ripe])
    ripening = tuple(w.symptom for w in watches if w.worrying and w not in ripe)
    gaps = [sign for sign in signs if isinstance(sign, Gap)]
    diagnosis = Diagnosis(
        state=_state(findings, ripening, gaps, look),
        findings=findings,
        symptoms=tuple(w.symptom for w in watches),
        ripening=ripening,
        gaps=tuple(dict.fromkeys(g.says for g in sorted(gaps, key=lambda g: not g.matters))),
        channels=channels(raw),
        blind=len({g.says for g in gaps if g.matters}),
    )
    return replace(raw, groups=look.groups), diagnosis


def _within_reach(sign: Sign, look: Look) -> Sign:
    """A container's driver and kernel are its node's: what needs more than the reset of a GPU is for a person there."""
    if not in_container(look.snapshot) or isinstance(sign, Gap):
        return sign
    if isinstance(sign, Watch):
        return replace(sign, symptom=replace(sign.symptom, finding=_of_node(sign.symptom.finding)))
    return _of_node(sign)


def _of_node(found: Finding) -> Finding:
    if found.cure is None or found.cure <= Scope.GPU:
        return found
    return replace(found, cure=None, at_least=None, evidence=(*found.evidence, ONLY_NODE))


def _look(raw: Snapshot, past: Past, limits: Limits) -> Look:
    formed = form_with_parts(raw)
    usable = raw.baseline is not None and not stale(raw.baseline, raw)
    lines, found = news(raw.guest, past) if isinstance(raw.guest, Guest) else ((), ())
    return Look(
        snapshot=raw,
        past=past,
        limits=limits,
        groups=tuple(group for group, _ in formed),
        parts={group.key: parts for group, parts in formed},
        baseline=raw.baseline if usable else None,
        news=lines,
        events=found,
    )


def _unique(watches: Iterable[Watch]) -> tuple[Watch, ...]:
    """One watch a key: the anchors know no more."""
    found: dict[str, Watch] = {}
    for seen in watches:
        found.setdefault(seen.symptom.key, seen)
    return tuple(found.values())


def _ranked(findings: list[Finding]) -> tuple[Finding, ...]:
    """Each fault of each thing once, in the order of the signals."""
    found: dict[tuple[str, str | None], Finding] = {}
    for finding in findings:
        found.setdefault((finding.signal, finding.where), finding)
    return tuple(found.values())


def _state(findings: tuple[Finding, ...], ripening: tuple[Symptom, ...], gaps: list[Gap], look: Look) -> State:
    if any(f.cure is not None for f in findings):
        return State.FAULTY
    if any(f.where is None for f in findings):
        return State.HOPELESS
    if findings:
        return State.FAULTY  # a part of the machine is broken, and no step cures it
    if ripening or any(gap.matters for gap in gaps) or look.guest is None:
        return State.UNCERTAIN
    return State.HEALTHY


def channels(snapshot: Snapshot) -> frozenset[str]:
    """The ways to change something that work now."""
    found = set()
    if isinstance(snapshot.guest, Guest):
        found.add(Channel.GUEST.value)
    if isinstance(snapshot.hypervisor, Hypervisor):
        found.add(Channel.HYPERVISOR.value)
    if snapshot.host_shell:
        found.add(Channel.HOST.value)
    return frozenset(found)


def vitals(snapshot: Snapshot, diagnosis: Diagnosis) -> Vitals:
    """The figures of an assessed look that reports and curves need."""
    guest = snapshot.guest
    seen = snapshot.hypervisor
    usable = snapshot.baseline if snapshot.baseline is not None and not stale(snapshot.baseline, snapshot) else None
    common = Vitals(
        ram_baseline_mib=ram_expected(snapshot, usable),
        baseline_is_default=usable is None,
        baseline_stale="; ".join(stale(snapshot.baseline, snapshot)) if snapshot.baseline is not None else "",
        vm_status=seen.status if isinstance(seen, Hypervisor) else "",
        host_free_mib=seen.host_memory.value.free_mib
        if isinstance(seen, Hypervisor) and isinstance(seen.host_memory, Known)
        else None,
        reached=isinstance(guest, Guest),
        host_booted_at=_host_booted_at(seen),
    )
    if isinstance(seen, Hypervisor):
        common = replace(common, **_passed_through(seen))
    if not isinstance(guest, Guest):
        return common
    ram = guest.ram.value if isinstance(guest.ram, Known) else None
    gpus = guest.gpus.value if isinstance(guest.gpus, Known) else ()
    services = guest.services.value if isinstance(guest.services, Known) else ()
    return replace(
        common,
        gpus=tuple(_vital(gpu) for gpu in gpus),
        ram_total_mib=ram.total_mib if ram else None,
        ram_available_mib=ram.available_mib if ram else None,
        unowned_mib=unowned(ram) if ram else None,
        groups=tuple((g.key, str(g.health), g.title) for g in snapshot.groups if not g.protected),
        launches=tuple((g.key, fingerprint(g)) for g in snapshot.groups if fingerprint(g)),
        by_hand=tuple((g.key, shlex.join(g.launch)) for g in snapshot.groups if _by_hand(snapshot, g)),
        server=_server(snapshot.groups),
        serving=serving(snapshot),
        services=tuple((s.manager, s.name, s.state) for s in services),
    )


def _by_hand(snapshot: Snapshot, group: Group) -> bool:
    """A server whose launch is known and that no manager would start: only its command brings it back."""
    nobody = key_of(snapshot, group) is None and not only_by_hand(snapshot, group)
    return bool(fingerprint(group)) and nobody and not group.protected


def _passed_through(seen: Hypervisor) -> dict[str, Any]:
    """What advice for a person at the node needs."""
    if not isinstance(seen.config, Known):
        return {"node": seen.node, "vmid": seen.vmid}
    config = seen.config.value
    nvidia = (d for d in config.hostpci if any(ids.startswith("10de:") for ids in d.device_ids) and d.choices == 1)
    timeout = start_timeout_s(config.memory_mib, len(config.hostpci), config.nics, config.hugepages)
    devices = tuple(dict.fromkeys(a for d in nvidia for a in d.addresses))
    return {"node": seen.node, "vmid": seen.vmid, "devices": devices, "start_timeout_s": timeout}


def _host_booted_at(seen: Hypervisor | NoHypervisor) -> int | None:
    if not isinstance(seen, Hypervisor) or not isinstance(seen.host_uptime_s, Known) or not seen.clock_s:
        return None
    return seen.clock_s - seen.host_uptime_s.value


def _vital(gpu: Gpu) -> GpuVital:
    return GpuVital(
        index=gpu.index,
        uuid=uuid_of(gpu),
        bus_id=gpu.bus_id,
        used_mib=gpu.used_mib.value if isinstance(gpu.used_mib, Known) else None,
        total_mib=gpu.total_mib.value if isinstance(gpu.total_mib, Known) else None,
        condition=str(gpu.condition),
    )


_WORST_FIRST = (Health.DEAD, Health.HUNG, Health.LIVE, Health.STARTING, Health.HEALTHY)


def _server(groups: tuple[Group, ...]) -> str:
    """The state of what serves here, worst first; empty if nothing does."""
    serving = [g for g in groups if not g.protected and g.engine != "other"]
    worst = min(serving, key=lambda g: _WORST_FIRST.index(g.health), default=None)
    return f"{worst.health}: {worst.why}" if worst is not None else ""
