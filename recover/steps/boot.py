"""`reboot-guest`: the guest's own init restarts it, where that can still be asked and nobody objects.

A shutdown that hangs in the driver is no failure of this rung but the next finding: see core/signals/reboot.
"""

from __future__ import annotations

from recover.model.act import Act, AwaitBoot, Pass, Plan, RebootGuest, Refuse, SyncDisks
from recover.model.guest import BootFacts, Guest, Inhibitor
from recover.model.hypervisor import GuestKind
from recover.model.ladder import Param, Params, Step
from recover.model.reading import Known, known_or
from recover.model.snapshot import Channel, Snapshot
from recover.model.verdict import Finding, Scope
from recover.steps.autostart import PARAM, held_back
from recover.steps.common import flag, line, number
from recover.steps.power import gpus_expected


def blocking(facts: BootFacts) -> tuple[Inhibitor, ...]:
    """Who forbids a shutdown. `delay` only asks for a moment, which systemd gives by itself."""
    return tuple(i for i in facts.inhibitors if i.mode.startswith("block"))


def objection(guest: Guest) -> Refuse | None:
    """The refusal that a shutdown inhibitor makes."""
    found = blocking(guest.boot.value) if isinstance(guest.boot, Known) else ()
    if not found:
        return None
    why = "; ".join(f"{i.who} forbids a shutdown now: {i.why}" for i in found)
    return Refuse("inhibitor", why, "wait until it has ended (systemd-inhibit --list), or allow it with --evict")


def _plan(snapshot: Snapshot, findings: tuple[Finding, ...], params: Params) -> Plan:
    guest = snapshot.guest
    if not findings or not isinstance(guest, Guest):
        return Pass("no finding asks for it" if not findings else "the guest does not answer")
    if not guest.root:
        return Pass("a reboot needs root on the guest")
    if not isinstance(guest.boot, Known):
        return Pass(f"its init is not known: {guest.boot.detail or guest.boot.why}")
    facts = guest.boot.value
    if facts.init != "systemd":
        return Pass(f"its init is {facts.init}, and only systemd is asked")
    moving = [m.name for m in known_or(guest.modules, ()) if m.state == "Unloading"]
    if moving:
        return Pass(f"the unload of {moving[0]} hangs, and a reboot from inside would wait for it")
    if not flag(params, "evict") and (refused := objection(guest)) is not None:
        return refused
    deadline = number(params, "boot_deadline")
    acts, words = held_back(snapshot) if flag(params, "suspend_autostart") else ([], [])
    acts.append(Act(SyncDisks(), must=False))
    acts.append(Act(RebootGuest(guest.identity.boot_id, deadline)))
    acts.append(Act(AwaitBoot(guest.identity.boot_id, gpus_expected(snapshot), deadline)))
    words.append(f"{guest.identity.hostname} is asked to reboot by itself; its devices are not reset by Proxmox")
    if facts.kexec_loaded:
        words.append("a kexec kernel is loaded: it is not used, the guest restarts through its firmware")
    return line(acts, words)


STEPS = (
    Step(
        name="reboot-guest",
        scope=Scope.GUEST,
        reach=Scope.GUEST,
        via=frozenset({Channel.GUEST}),
        kinds=frozenset({GuestKind.VM}),
        plan=_plan,
        params=(
            Param("boot_deadline", 900.0, "how long shutdown, boot and GPUs may take", unit="s", least=30, most=7200),
            PARAM,
            Param("evict", False, "also against a shutdown inhibitor"),
        ),
        doc="Asks the guest's own systemd for a clean reboot, never by kexec; one that hangs is a finding for the VM.",
    ),
)
