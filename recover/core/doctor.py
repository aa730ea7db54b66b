"""Each thing that was checked becomes one point, and a point that failed always says how it is mended.

What was asked of machines comes in as plain values; nothing here asks anything. Unknown is no failure and no success:
it is "not asked", and says for what it waits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from recover.core.clean import clean
from recover.core.privileges import Held, Need, amend, grant, missing, too_much
from recover.model.hypervisor import GuestKind
from recover.model.ladder import Playbook, Step
from recover.model.reading import Known, Reading
from recover.model.snapshot import Channel

DAY_S = 86400.0
EXPIRES_SOON_S = 14 * DAY_S  # PVE renews its own certificate two weeks before (pveupdate): later nobody did
SKEW_NOTED_S, SKEW_WRONG_S = 5.0, 120.0


class Status(StrEnum):
    OK = "ok"
    WARN = "warning"
    FAIL = "failed"
    SKIP = "not asked"


@dataclass(frozen=True, slots=True)
class Point:
    """One thing that was checked. `costs`: what does not work as it is; `fix`: what to do about it."""

    about: str
    check: str
    status: Status
    says: str
    fix: str = ""
    costs: str = ""


def exit_code(points: Iterable[Point]) -> int:
    return int(any(point.status is Status.FAIL for point in points))


def late(about: str, check: str, seconds: float, began: bool) -> Point:
    says = f"no answer within {seconds:.0f} s" if began else "not begun: the total deadline was over"
    return Point(about, check, Status.FAIL, says, "ask for this target alone, or give a longer --deadline")


# --- here


def state_point(root: str, problem: str) -> Point:
    if problem:
        where, _, fix = problem.partition(". ")
        return Point(
            "here",
            "state folder",
            Status.FAIL,
            where,
            fix or "name another with --state-dir",
            "nothing is done without a journal",
        )
    return Point("here", "state folder", Status.OK, f"{root} can be written")


def playbook_points(
    about: str, playbook: Playbook | tuple[str, ...], hint: str, steps: Mapping[str, Step], open_to: Iterable[Channel]
) -> tuple[Point, ...]:
    """`open_to`: the channels that are configured."""
    if not isinstance(playbook, Playbook):
        return tuple(Point(about, "playbook", Status.FAIL, problem, hint) for problem in playbook)
    have = set(open_to)
    shut = [(rung.step, ", ".join(sorted(c for c in steps[rung.step].via if c not in have))) for rung in playbook.rungs
            if not steps[rung.step].via <= have and steps[rung.step].scope <= playbook.limits.max_scope
            and GuestKind.VM in steps[rung.step].kinds]  # fmt: skip
    if not shut:
        says = f"{playbook.name}: {len(playbook.rungs)} rungs up to scope {playbook.limits.max_scope.word}"
        return (Point(about, "playbook", Status.OK, says),)
    return tuple(
        Point(
            about,
            "playbook",
            Status.FAIL,
            f"{playbook.name}: {step} needs the channel {channel}, which is not configured",
            _CHANNEL_FIX.get(channel, "configure it"),
            f"{step} is passed over",
        )
        for step, channel in shut
    )


_CHANNEL_FIX = {
    "hypervisor": "give the target `cluster` and `vmid`, and the cluster a [clusters.NAME] table",
    "host": "opt in with [hosts.NODE], or take the rung out of the playbook",
}


def via_api(
    playbook: Playbook | tuple[str, ...], steps: Mapping[str, Step], kind: GuestKind = GuestKind.VM
) -> tuple[str, ...]:
    """The rungs that act through the Proxmox API. A container's need the same privileges as a VM's."""
    if not isinstance(playbook, Playbook):
        return ()
    scope = playbook.limits.max_scope
    return tuple(
        dict.fromkeys(
            rung.step
            for rung in playbook.rungs
            if Channel.HYPERVISOR in steps[rung.step].via
            and steps[rung.step].scope <= scope
            and kind in steps[rung.step].kinds
        )
    )


# --- names, certificates, clocks


def name_point(about: str, host: str, addresses: Sequence[str], problem: str) -> Point:
    if problem:
        return Point(
            about,
            "name",
            Status.FAIL,
            f"{host}: {problem}",
            "correct the name in the configuration, or the resolver's entry",
        )
    return Point(about, "name", Status.OK, f"{host} is {', '.join(addresses[:3])}")


@dataclass(frozen=True, slots=True)
class Certificate:
    """As the server showed it, whether or not it is trusted. Seconds since the epoch."""

    begins: float
    ends: float
    fingerprint: str


def expiry_point(about: str, host: str, shown: Certificate | str, now: float, *, pinned: bool) -> Point:
    """Whether it is trusted is told by a real call; this is about its dates. A pinned one is trusted beyond them."""
    if isinstance(shown, str):
        return Point(about, "certificate", Status.SKIP, f"{host}: its dates were not seen: {shown}")
    left = shown.ends - now
    fix = "renew it: `pvenode cert info`, then `pvecm updatecerts --force` on the node and restart pveproxy"
    if pinned:
        fix += "; then set the new `fingerprint`"
    if shown.begins > now:
        return Point(
            about,
            "certificate",
            Status.WARN if pinned else Status.FAIL,
            f"{host}: not valid for another {_days(shown.begins - now)}",
            "correct the clock here or there",
        )
    if left <= 0:
        says = f"{host}: expired {_days(-left)} ago" + (", still trusted by its fingerprint" if pinned else "")
        return Point(about, "certificate", Status.WARN if pinned else Status.FAIL, says, fix)
    if left < EXPIRES_SOON_S:
        return Point(
            about,
            "certificate",
            Status.WARN,
            f"{host}: expires in {_days(left)}",
            fix,
            "after that nothing is asked of this address",
        )
    return Point(about, "certificate", Status.OK, f"{host}: valid for {_days(left)}")


def _days(seconds: float) -> str:
    return f"{seconds / 3600:.0f} h" if seconds < 2 * DAY_S else f"{math.floor(seconds / DAY_S)} days"


def clock_point(about: str, what: str, ahead_s: float, margin_s: float) -> Point:
    """`margin_s`: how far the answer's own time makes the figure uncertain."""
    off = max(0.0, abs(ahead_s) - margin_s)
    word = "ahead of" if ahead_s > 0 else "behind"
    if off < SKEW_NOTED_S:
        return Point(about, "clock", Status.OK, f"{what} agrees with ours within {max(margin_s, 1.0):.0f} s")
    says = f"{what} is {abs(ahead_s):.0f} s {word} ours"
    status = Status.FAIL if off >= SKEW_WRONG_S else Status.WARN
    return Point(
        about,
        "clock",
        status,
        says,
        "set both by NTP: `timedatectl`, `chronyc tracking` there and here",
        "times of logs, tasks and backups do not fit together",
    )


# --- the API


@dataclass(frozen=True, slots=True)
class Refusal:
    """A call that failed: the adapter's word for how, and PVE's own text."""

    kind: str
    message: str


def api_point(about: str, url: str, said: str | Refusal, *, only: bool) -> Point:
    """`said`: the version that answered. `only`: no other address of the cluster works."""
    if isinstance(said, str):
        return Point(about, "API", Status.OK, f"{url}: Proxmox VE {said}")
    fix, costs = _API_FIX.get(said.kind, "see the message"), "nothing through Proxmox" if only else ""
    away = said.kind in ("unreachable", "unclear")
    status = Status.FAIL if only or not away else Status.WARN
    says = f"{url}: {said.message}"
    if said.kind == "tls":  # the message ends with its own fix
        says, _, own = says.partition("; ")
        return Point(about, "API", status, says, own or fix, costs)
    return Point(about, "API", status, says, fix, costs)


_API_FIX = {
    "unreachable": "is the node up, and pveproxy on it (`systemctl status pveproxy`)? Does a firewall drop port 8006?",
    "unclear": "is the node busy or cut off (`systemctl status pveproxy pvedaemon`)?",
    "tls": "set `ca_file` to a copy of the cluster's /etc/pve/pve-root-ca.pem, or `fingerprint`",
    "auth": "does the token exist, is it enabled and not expired (`pveum user token list USER`)? "
            "A new secret is had only by `pveum user token remove` and `add`",
    "no-secret": "put the secret where `token_secret` says, readable for this user alone",
    "garbled": "is this the address of a Proxmox node, with port 8006, and no portal in between?",
    "denied": "see the privileges below",
    "failed": "see the node's journal: `journalctl -u pvedaemon -u pveproxy`",
}  # fmt: skip


def secret_points(about: str, warnings: Sequence[str]) -> tuple[Point, ...]:
    return tuple(Point(about, "secret", Status.WARN, text, "chmod 600, and its owner you or root") for text in warnings)


def guest_point(about: str, vmid: int, found: str | Refusal, *, answers: bool = True) -> Point:
    """`found`: the node on which it is. `answers`: the API is there, so what is wrong is wrong with this guest."""
    if isinstance(found, str):
        return Point(about, "Proxmox guest", Status.OK, f"{vmid} is on {found}")
    if not answers:
        return Point(about, "Proxmox guest, privilege", Status.SKIP, "waits for the API")
    fix = _GUEST_FIX.get(found.kind, "correct `vmid` or `cluster`, or give the token VM.Audit on it")
    return Point(about, "Proxmox guest", Status.FAIL, f"{vmid}: {found.message}", fix, "nothing through Proxmox")


_GUEST_FIX = {
    "unreachable": "is the node on which it is up (`pvecm status`), and not overloaded (`systemctl status pvedaemon`)?",
    "garbled": "see what the API says: `pvesh get /cluster/resources --type vm` on a node of the cluster",
}


def privilege_points(
    about: str, wanted: Sequence[Need], held: Mapping[str, Reading[Held]], token_id: str
) -> tuple[Point, ...]:
    """One point for all that is held, and one for each that is not."""
    points, there = [], []
    unasked: dict[str, list[str]] = {}
    for need in wanted:
        reading = held.get(need.path)
        if not isinstance(reading, Known):
            why = reading.detail if reading is not None else "not asked"
            unasked.setdefault(why, []).append(f"{need.privilege} on {need.path}")
        elif missing(need, reading.value):
            status = Status.FAIL if need.must else Status.WARN
            says = f"{need.privilege} on {need.path} is missing ({need.asked})"
            beside = (n for n in wanted if (n.role, n.path) == (need.role, need.path))
            partly = any(not missing(n, reading.value) for n in beside)  # the role may be there and lack it
            fix = grant(need, token_id) + (f"    # if it has that role: {amend(need)}" if partly else "")
            points.append(Point(about, "privilege", status, says, fix, need.costs))
        else:
            there.append(need)
    points += [Point(about, "privilege", Status.SKIP, f"could not be asked: {why}: {', '.join(names)}")
               for why, names in unasked.items()]  # fmt: skip
    extra = sorted({name for one in held.values() if isinstance(one, Known) for name in too_much(one.value)})
    if extra:
        points.append(
            Point(
                about,
                "privilege",
                Status.WARN,
                f"the token holds more than is ever used: {', '.join(extra)}",
                "give it the roles of the recipe instead",
                "who steals the token can do more harm",
            )
        )
    if there:
        says = f"{len(there)} of {len(wanted)} that the rungs and looks need are held"
        points.insert(0, Point(about, "privilege", Status.OK, says))
    return tuple(points)


def ordered(points: Iterable[Point]) -> tuple[Point, ...]:
    """By what they are about, in the order in which that came first; everything cleaned for a terminal."""
    found = list(points)
    first = {about: n for n, about in reversed(list(enumerate(p.about for p in found)))}
    found.sort(key=lambda p: first[p.about])
    return tuple(
        Point(clean(p.about, 200), p.check, p.status, clean(p.says, 600), clean(p.fix, 600), clean(p.costs, 300))
        for p in found
    )
