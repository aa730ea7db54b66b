"""The journal in words, one entry at a time: the same line for the plain view, for `follow` and for a report."""

from __future__ import annotations

from typing import assert_never

from recover.core.clean import clean
from recover.core.report.words import brief, gpu_sum, size, span
from recover.core.sentences import grouped, some
from recover.model import act, record
from recover.model.memory import LeftoverKind


def line(entry: record.Entry) -> str:
    """One line for a person, or an empty string where the entry says nothing that its neighbours don't."""
    return clean(_line(entry), 600)


def _line(entry: record.Entry) -> str:
    match entry:
        case record.Opened():
            goes_on = "goes on after a crash, consent is asked anew" if entry.resumed else "begins"
            return (
                f"run {entry.run} on {entry.target} {goes_on}: playbook {entry.playbook}, by {entry.who}@{entry.host}"
            )
        case record.Saw():
            return saw_line(entry)
        case record.Decided(decision=decision):
            return _decision(decision)
        case record.Consented(step=step, by=by):
            return f"consent to {step}: {by}"
        case record.Declined(by=by, why=why, step=step, skip=skip):
            return f"{by} {'skips' if skip else 'says no to'} {step or 'the next step'}" + (f": {why}" if why else "")
        case record.Interrupted(by=by):
            return f"asked to stop by {by}: finishing what is owed, then ending"
        case record.Kept(evidence=evidence, missing=missing):
            return (f"evidence kept in {evidence}" if evidence else "no evidence is kept of this run") + (
                f"; missing: {', '.join(missing)}" if missing else ""
            )
        case record.Began(step=step, attempt=attempt, scope=scope):
            return f"{step} begins (try {attempt}, scope {scope.word})"
        case record.Acting(action=action, restores=restores):
            return ("put back: " if restores else "act: ") + action_words(action)
        case record.Acted(outcome=outcome):
            end = "ok" if outcome.ok else "failed" if outcome.clear else "unclear whether it was done"
            detail = f": {brief(outcome.detail)}" if outcome.detail else ""
            return f"  {end}{detail}" + (f" ({span(outcome.seconds)})" if outcome.seconds >= 1 else "")
        case record.Ended(step=step, outcome=outcome):
            return f"{step} ended" + ("" if outcome.ok else f", failed: {brief(outcome.detail)}") + "; looking again"
        case record.Hooking(event=event, command=command):
            return f"hook {event}: running {command}"
        case record.Hooked(event=event, outcome=outcome):
            said = "done" if outcome.ok else "FAILED" if outcome.clear else "was cut"
            detail = f": {outcome.detail}" if outcome.detail else ""
            return f"hook {event} {said}{detail}" + (f" ({span(outcome.seconds)})" if outcome.seconds >= 1 else "")
        case record.Closed(end=end):
            return f"end: {end.kind}: {end.why}"
        case _:
            assert_never(entry)


def saw_line(saw: record.Saw) -> str:
    """What a look found: state, what is wrong, the figures."""
    says = [f.says for f in saw.diagnosis.findings]
    says = says or [
        f"{text} (may go away by itself)" for text in grouped(s.finding.says for s in saw.diagnosis.ripening)
    ]
    if not says:
        says = list(saw.diagnosis.gaps)
    shown = some(says)
    return f"looked: {saw.diagnosis.state}" + (f": {shown}" if shown else "") + f" [{figures(saw)}]"


def figures(saw: record.Saw) -> str:
    if not saw.vitals.reached:
        vm = f", VM {saw.vitals.vm_status}" if saw.vitals.vm_status else ""
        return f"guest not reached{vm}"
    return f"{gpu_sum(saw.vitals)}, RAM available {size(saw.vitals.ram_available_mib)}"


def _decision(decision: record.Try | record.Restore | record.Wait | record.Stop) -> str:
    match decision:
        case record.Try(step=step, scope=scope, why=why):
            return f"next: {step} (scope {scope.word}): {why}"
        case record.Restore(duty=duty):
            return f"next: put back {duty.key}"
        case record.Wait(seconds=seconds, why=why):
            return (why if why.startswith("waiting") else f"waiting: {why}") if seconds > 0 else ""
        case record.Stop():
            return ""
        case _:
            assert_never(decision)


def _processes(number: int) -> str:
    return "1 process" if number == 1 else f"{number} processes"


def action_words(action: act.Action) -> str:
    """An act in words."""
    match action:
        case act.StopService(manager=manager, name=name):
            return f"stop {name} ({manager})"
        case act.StartService(manager=manager, name=name):
            return f"start {name} ({manager})"
        case act.Signal(members=members, signal=signal, group=group):
            return f"SIG{signal} to {_processes(len(members))} of group {group}"
        case act.AwaitGone(members=members, deadline_s=seconds):
            verb = "is" if len(members) == 1 else "are"
            return f"wait up to {span(seconds)} until {_processes(len(members))} {verb} gone"
        case act.SetPersistence(bus_id=bus_id, on=on):
            return f"persistence {'on' if on else 'off'} for {bus_id}"
        case act.ResetGpu(gpus=gpus):
            return f"reset {', '.join(bus_id for _, bus_id in gpus)}"
        case act.PlaceMarker():
            return "place our marker in the guest"
        case act.ClearMarker():
            return "clear our marker in the guest"
        case act.SyncDisks():
            return "sync the guest's disks"
        case act.ShutdownVm(vm=vm, deadline_s=seconds):
            return f"ask VM {vm.vmid} to shut down, up to {span(seconds)}"
        case act.StopVm(vm=vm):
            return f"stop VM {vm.vmid}"
        case act.StartVm(vm=vm, timeout_s=timeout):
            return f"start VM {vm.vmid}, up to {span(timeout)}"
        case act.ResetVm(vm=vm):
            return f"reset VM {vm.vmid}"
        case act.AwaitBoot(gpus=gpus, deadline_s=seconds):
            return f"wait up to {span(seconds)} for a new boot with {gpus} GPUs"
        case act.ResetPci(node=node, addresses=addresses, how=how):
            kind = {"flr": "reset", "bus": "reset the bus of", "rescan": "remove and find again"}[how]
            return f"{kind} {', '.join(addresses)} on {node}"
        case act.RescanPci(node=node, addresses=addresses):
            return f"look for {', '.join(addresses)} on the bus of {node}"
        case act.RestoreResetMethod(node=node, addresses=addresses):
            return f"put back the reset methods of {', '.join(addresses)} on {node}"
        case act.OnHost(node=node, do=inner):
            return f"on {node}: {action_words(inner)}"
        case _:
            return _guest_words(action)


def _guest_words(
    action: act.RebootGuest
    | act.RemoveLeftovers
    | act.WakeGpu
    | act.EndMpsClient
    | act.EndZombieParent
    | act.AskServer
    | act.SuspendAutostart
    | act.RestoreAutostart
    | act.UnloadDriver
    | act.LoadDriver,
) -> str:
    match action:
        case act.RebootGuest():
            return "ask the guest's own init to reboot"
        case act.RemoveLeftovers(objects=objects):
            sockets = sum(o.kind == LeftoverKind.SOCKET for o in objects)
            more = f" and {sockets} sockets" if sockets else ""
            return f"remove {len(objects) - sockets} memory objects{more} of dead owners"
        case act.WakeGpu(bus_id=bus_id):
            return f"open and close a CUDA context on {bus_id}"
        case act.EndMpsClient(client=client, server=server):
            return f"ask MPS server {server.pid} to end its client {client.pid}"
        case act.EndZombieParent(parent=parent, children=children):
            dead = "its dead child" if len(children) == 1 else f"its {len(children)} dead children"
            return f"end pid {parent.pid} if it does not reap {dead}"
        case act.AskServer(urls=urls):
            return f"send one real request to {', '.join(urls)}"
        case act.SuspendAutostart(name=name, manager=manager):
            return f"keep {name} ({manager}) from starting at boot"
        case act.RestoreAutostart(name=name, manager=manager, was=was):
            return f"let {name} ({manager}) start at boot again: {was}"
        case act.UnloadDriver(modules=modules):
            return f"unload {', '.join(modules)}"
        case act.LoadDriver(modules=modules):
            return f"load {', '.join(modules)}"
        case _:
            assert_never(action)
