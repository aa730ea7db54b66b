"""A guest's points come in the order in which it is reached: what stands behind the first failure was not asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recover.core.doctor import Point, Status
from recover.model.contact import Failure
from recover.model.snapshot import Baseline, IdentityProof

_STAGES = ("name", "connection", "host key", "login", "root")
_STAGE_OF = {
    Failure.DNS: 0, Failure.REFUSED: 1, Failure.NO_ROUTE: 1, Failure.CONNECT_TIMEOUT: 1, Failure.BANNER_SILENCE: 1,
    Failure.PROXY: 1, Failure.CONFIG: 1, Failure.UNKNOWN_KEY: 2, Failure.CHANGED_KEY: 2, Failure.REVOKED_KEY: 2,
    Failure.AUTH: 3, Failure.SUDO: 4, Failure.DIED: 3, Failure.TIMEOUT: 3,
}  # fmt: skip
_SSH_FIX = {
    Failure.DNS: "give the target an `address`, or its name a resolver's entry",
    Failure.REFUSED: "is sshd up there, and `port` right? Look at its console if not",
    Failure.NO_ROUTE: "is the network between here and there up? A ProxyJump in ~/.ssh/config is honoured",
    Failure.CONNECT_TIMEOUT: "is the address right, the guest up, and port 22 let through?",
    Failure.BANNER_SILENCE: "TCP answers and SSH does not: the guest may hang; gpu-recover plan TARGET looks closer",
    Failure.PROXY: "does `ssh JUMPHOST` work by hand? See ProxyJump and ProxyCommand in ~/.ssh/config",
    Failure.CONFIG: "correct the [ssh] settings or ~/.ssh/config",
    Failure.UNKNOWN_KEY: "compare the fingerprint on its console, then add the key to `known_hosts`",
    Failure.CHANGED_KEY: "find out why the key changed; if it was reinstalled: ssh-keygen -R ADDRESS, then add the new",
    Failure.REVOKED_KEY: "this key is revoked: give the machine a new one",
    Failure.AUTH: "put the public key into ~/.ssh/authorized_keys there (ssh-copy-id), or name another identity_file",
    Failure.SUDO: "visudo there: USER ALL=(root) NOPASSWD: /bin/sh    (or sudo = { password = { command = […] } })",
    Failure.DIED: "the connection breaks: look at sshd's journal there",
    Failure.TIMEOUT: "it answers too slowly: gpu-recover plan TARGET looks closer",
}
_NO_ROOT = "GPU reset, reboot, other users' processes and the kernel log are out of reach"


def ssh_points(about: str, where: str, failure: Failure | None, detail: str, *, sudo: bool) -> tuple[Point, ...]:
    """Name, connection, host key, login and root, up to the one that failed; what comes after it was not asked."""
    stages = [stage for stage in _STAGES if stage != "root" or sudo]
    at = _STAGE_OF[failure] if failure is not None else len(stages)
    points = []
    for number, stage in enumerate(stages[: at + 1]):
        if number < at:
            points.append(Point(about, stage, Status.OK, where if stage == "connection" else _FINE[stage]))
        elif failure is not None:
            says, _, own = detail.partition(" Fix: ")
            costs = _NO_ROOT if stage == "root" else "nothing inside the guest: it looks mute"
            points.append(Point(about, stage, Status.FAIL, says, own or _SSH_FIX[failure], costs))
    left = stages[at + 1 :]
    if left:
        points.append(Point(about, ", ".join(left), Status.SKIP, f"waits for the {stages[at]}"))
    return tuple(points)


_FINE = {"name": "resolved", "host key": "known", "login": "accepted", "root": "by sudo"}


def uid_point(about: str, uid: int | None) -> Point:
    if uid is None:
        return Point(about, "root", Status.SKIP, "who we are there could not be told")
    if uid == 0:
        return Point(about, "root", Status.OK, "we are root there")
    return Point(
        about, "root", Status.FAIL, f"we are user {uid} there", 'set `sudo = true`, or `user = "root"`', _NO_ROOT
    )


_NO_NODE = "no look at the node, no reset there, and of a container no look through it"


def node_points(name: str, hostname: str, python: str) -> list[Point]:
    """Whether a shell is on the node that it is configured for, and can do what is asked of it."""
    about, points = f"node {name}", []
    if not hostname:
        points.append(Point(about, "node", Status.SKIP, "which machine it is could not be told"))
    elif hostname.partition(".")[0].lower() == name.lower():
        points.append(Point(about, "node", Status.OK, f"it is {hostname}"))
    else:
        fix = f"set [hosts.{name}] address to where {name} is, or correct the name: it is the one that Proxmox shows"
        points.append(Point(about, "node", Status.FAIL, f"the shell is on {hostname}, not on {name}", fix, _NO_NODE))
    if python.startswith("Python 3"):
        points.append(Point(about, "python", Status.OK, python))
    elif hostname:
        says = "python3 does not start there" + (f": {python}" if python else "")
        points.append(Point(about, "python", Status.FAIL, says, f"install python3 on {name}", _NO_NODE))
    return points


@dataclass(frozen=True, slots=True)
class AgentSeen:
    """How the agent started in the guest. `python` empty: there is none that could run it."""

    python: str
    complete: bool
    gaps: tuple[str, ...] = ()
    gpus: int | None = None


def agent_points(about: str, seen: AgentSeen | str) -> tuple[Point, ...]:
    if isinstance(seen, str):
        return (
            Point(
                about,
                "agent",
                Status.FAIL,
                f"did not start: {seen}",
                "gpu-recover probe TARGET tells more",
                "nothing is seen or done inside the guest",
            ),
        )
    install = "install Python 3.6 or newer there (apt-get install python3-minimal)"
    if not seen.python:
        return (
            Point(
                about,
                "agent",
                Status.FAIL,
                "no Python that can run it",
                install,
                "only a look without processes' details; no rung inside the guest works",
            ),
        )
    if not seen.complete:
        return (
            Point(
                about,
                "agent",
                Status.WARN,
                f"on Python {seen.python} its report broke off",
                "gpu-recover probe TARGET shows where",
            ),
        )
    gpus = "" if seen.gpus is None else f", {seen.gpus} GPUs"
    points = [Point(about, "agent", Status.OK, f"runs on Python {seen.python}{gpus}")]
    points += [
        Point(about, "look", Status.WARN, f"not seen: {gap}", "gpu-recover probe TARGET shows all")
        for gap in seen.gaps[:5]
    ]
    return tuple(points)


def identity_point(about: str, proof: IdentityProof) -> Point:
    match proof:
        case IdentityProof.PROVED:
            return Point(about, "identity", Status.OK, "the guest that answers is the one behind the vmid")
        case IdentityProof.WRONG:
            return Point(
                about,
                "identity",
                Status.FAIL,
                "another guest answers than the one behind the vmid",
                "correct `address` or `vmid`",
                "every rung through Proxmox is refused",
            )
    return Point(
        about,
        "identity",
        Status.WARN,
        "nothing proves that the guest that answers is the one behind the vmid",
        "give the VM an SMBIOS UUID (qm set VMID --smbios1 uuid=…) or run as root there",
        "rungs through Proxmox need --trust-vmid",
    )


def baseline_point(about: str, found: Baseline | None, problem: str, reasons: Sequence[str], seen: bool) -> Point:
    save = f"gpu-recover baseline save {about}, once the guest is idle"
    if problem:
        return Point(about, "baseline", Status.FAIL, problem, save, "no run can begin")
    if found is None:
        return Point(
            about,
            "baseline",
            Status.WARN,
            "none is saved",
            save,
            "recovered is measured against defaults; a mute guest's agent is no second witness",
        )
    if reasons:
        return Point(about, "baseline", Status.WARN, "stale: " + "; ".join(reasons), save, "defaults are used instead")
    if not seen:
        return Point(
            about, "baseline", Status.OK, f"of {len(found.gpus)} GPUs is saved; whether it still fits was not seen"
        )
    return Point(about, "baseline", Status.OK, f"of {len(found.gpus)} GPUs is saved and fits")
