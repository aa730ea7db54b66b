"""`restart-container` and `reset-host-gpu`: a container's GPU and driver are its node's, and so are its neighbours'.

A restart ends the container's processes and brings its devices back; it resets no GPU. A GPU is reset by the node's own
driver, which refuses while anybody has it open; whoever else is on it is named first, and then nothing is done.
"""

from __future__ import annotations

import re

from recover.model.act import (
    Act,
    AwaitBoot,
    GpuAction,
    OnHost,
    Pass,
    Plan,
    Refuse,
    ResetGpu,
    SetPersistence,
    ShutdownVm,
    StartService,
    StartVm,
    StopService,
    StopVm,
    VmRef,
)
from recover.model.gpu import Condition, Gpu, uuid_of
from recover.model.guest import Guest
from recover.model.host import Holder, Host
from recover.model.hypervisor import GuestKind, Hypervisor
from recover.model.ladder import Param, Params, Step
from recover.model.reading import Known
from recover.model.snapshot import Channel, Snapshot
from recover.model.verdict import Finding, Scope
from recover.steps.common import FRAGILE, MAY_DIE, SICK, called, indices, line, number, processes
from recover.steps.power import BOOT, gpus_expected, running
from recover.steps.startable import startable

_START_S = 120
_GPU_FILE = re.compile(r"/dev/nvidia[^/]*")
_MONITORS = frozenset({
    "nvidia-persistenced", "nvidia-dcgm", "dcgm", "dcgm-exporter", "nvidia-dcgm-exporter", "nvidia_gpu_exporter",
})  # fmt: skip


def _restart(snapshot: Snapshot, findings: tuple[Finding, ...], params: Params) -> Plan:
    if not findings:
        return Pass("no finding asks for it")
    hypervisor = running(snapshot)
    if not isinstance(hypervisor, Hypervisor):
        return hypervisor
    refusal = startable(hypervisor, apply_pending=params.get("apply_pending") is True)
    refusal = refusal or _without_files(snapshot, hypervisor)
    if refusal is not None:
        return refusal
    stuck = [p for p in processes(snapshot).values() if p.state == "D" and p.sigkill_pending]
    if stuck:
        # pve-container, PVE/LXC.pm: `lxc-stop --kill` is waited for without a limit, with the lock file held.
        return Pass(f"{stuck[0].comm} (pid {stuck[0].pid}) ignores SIGKILL in the kernel: LXC's stop would hang on it")
    ct = VmRef(hypervisor.cluster, hypervisor.vmid, "", hypervisor.name, container=True)
    guest = snapshot.guest if isinstance(snapshot.guest, Guest) else None
    down = number(params, "shutdown_first")
    acts = []
    if down > 0 and guest is not None:
        acts.append(Act(ShutdownVm(ct, down, _START_S), must=False))
    acts += [Act(StopVm(ct, number(params, "stop_deadline"), _START_S)), Act(StartVm(ct, _START_S))]
    old = guest.identity.init_start if guest is not None else 0
    acts.append(Act(AwaitBoot("", gpus_expected(snapshot), number(params, "boot_deadline"), not_init_start=old)))
    name = f"container {hypervisor.vmid} ({hypervisor.name}) on {hypervisor.node}"
    return line(acts, [f"{name} is stopped and started again", "its GPUs are not reset by that: they are its node's"])


def _without_files(snapshot: Snapshot, seen: Hypervisor) -> Refuse | None:
    """pve-container, PVE/LXC.pm: `Device /dev/nvidia0 does not exist` ends a start, as after a reload of the driver.

    Only the node's own shell can tell; inside, the files of a running container outlive the node's.
    """
    host = snapshot.host.value if isinstance(snapshot.host, Known) else None
    if host is None or host.device_files is None or not isinstance(seen.config, Known):
        return None
    wanted = [f for f in seen.config.value.device_files if _GPU_FILE.fullmatch(f)]
    gone = [f for f in wanted if f not in host.device_files]
    if not gone:
        return None
    why = f"{', '.join(gone)} isn't there on {host.node}: the container would not start again"
    return Refuse("device", why, f"as root on {host.node}: nvidia-smi -L; nvidia-modprobe -u    # they make the files")


def _reset(snapshot: Snapshot, findings: tuple[Finding, ...], params: Params) -> Plan:
    guest, reading, seen = snapshot.guest, snapshot.host, snapshot.hypervisor
    if not isinstance(guest, Guest) or not isinstance(guest.gpus, Known):
        return Pass("the driver doesn't list the GPUs")
    if not isinstance(reading, Known) or not isinstance(seen, Hypervisor):
        return Pass("the node's root shell can't be used")
    host = reading.value
    chosen = _chosen(guest.gpus.value, findings)
    if not chosen:
        return Pass("no finding asks for the reset of a GPU")
    silent = [g for g in guest.gpus.value if g.condition is not Condition.ANSWERS]
    if silent:
        return Pass(f"GPU {indices(silent)} doesn't answer the driver, which would hang or refuse")
    files = {g.bus_id: _file(g, host) for g in chosen}
    if not all(files.values()):
        return Pass(f"{host.node} knows no device file of GPU {indices(g for g in chosen if not files[g.bus_id])}")
    holders = [h for h in host.holders if h.file in files.values()]
    monitors = sorted({h.unit for h in holders if is_monitor(h)})
    obstacle = _in_use(snapshot, seen, host, chosen, set(files.values()), holders)
    if obstacle is not None:
        return obstacle
    return _line(host, chosen, monitors, number(params, "deadline"))


def _line(host: Host, chosen: tuple[Gpu, ...], monitors: list[str], deadline_s: float) -> Plan:
    def on_host(do: GpuAction) -> Act:
        return Act(OnHost(host.node, host.boot_id, do))

    kept = [(uuid_of(g), g.bus_id) for g in chosen if g.persistence == Known(True)]
    acts = [on_host(StopService("systemd", unit, monitor=True)) for unit in monitors]
    acts += [on_host(SetPersistence(uuid, bus, on=False)) for uuid, bus in kept]
    acts.append(on_host(ResetGpu(tuple((uuid_of(g), g.bus_id) for g in chosen), deadline_s)))
    acts += [on_host(SetPersistence(uuid, bus, on=True)) for uuid, bus in kept]
    acts += [on_host(StartService("systemd", unit, monitor=True)) for unit in reversed(monitors)]
    words = [f"GPU {g.index} ({g.bus_id}) is reset by the driver of {host.node}" for g in chosen]
    models = sorted({FRAGILE[g.pci_ids.lower()] for g in chosen if g.pci_ids.lower() in FRAGILE})
    words += [f"{model}: {MAY_DIE}" for model in models]
    words += [f"{unit} on {host.node} is stopped for it and started again" for unit in monitors]
    return line(acts, words)


def _in_use(
    snapshot: Snapshot, seen: Hypervisor, host: Host, chosen: tuple[Gpu, ...], files: set[str], holders: list[Holder]
) -> Pass | Refuse | None:
    """Everybody else who has, or is given, one of these GPUs: containers that run, and processes of the node."""
    if not host.complete:
        return Refuse("host", f"{host.node} did not tell all: {'; '.join(host.gaps[:3])}", "look at the node first")
    if not isinstance(seen.neighbours, Known):
        why = f"which other containers are given them is not known: {seen.neighbours.detail or seen.neighbours.why}"
        return Refuse("shared-device", why, f"give the token VM.Audit on the guests of {seen.node}")
    ours = f"ct {seen.vmid}"
    others = [
        f"{n.name} ({n.vmid})"
        for n in seen.neighbours.value
        if n.status == "running" and (files | {"/dev/nvidia*"}) & set(n.shares)
    ]
    others += [
        f"{h.comm} (pid {h.pid}, {h.guest or h.unit or host.node})"
        for h in holders
        if h.guest != ours and not is_monitor(h)
    ]
    if others:
        why = f"GPU {indices(chosen)} is also used by {', '.join(dict.fromkeys(others))}"
        return Refuse("shared-device", why, "end what they do there, or stop them; then run again")
    names = {uuid_of(g) for g in chosen} | {g.bus_id for g in chosen}
    on_it = [g for g in snapshot.groups if g.gpus & names]
    well = [called(g) for g in on_it if g.protected or g.health not in SICK]
    if well:
        return Refuse("bystanders", f"GPU {indices(chosen)} is used by {', '.join(well)}", "ask them to stop it first")
    left = [f"{h.comm} (pid {h.pid})" for h in holders if h.guest == ours]
    if left:
        return Pass(f"GPU {indices(chosen)} is still held by {', '.join(left)}: the driver would refuse")
    return None


def is_monitor(holder: Holder) -> bool:
    """A service of the node that keeps GPUs open without working on them."""
    return not holder.guest and holder.unit.removesuffix(".service") in _MONITORS


def _chosen(gpus: tuple[Gpu, ...], findings: tuple[Finding, ...]) -> tuple[Gpu, ...]:
    named = {f.where for f in findings if f.cure is Scope.GPU}
    return gpus if None in named else tuple(g for g in gpus if uuid_of(g) in named or g.bus_id in named)


def _file(gpu: Gpu, host: Host) -> str:
    """The GPU's device file on the node: minors are the driver's, and so the same everywhere."""
    uuid = uuid_of(gpu)
    minor = next((h.minor for h in host.gpus if h.minor is not None and h.uuid == uuid), None)
    return f"/dev/nvidia{minor}" if minor is not None else ""


_CONTAINER = frozenset({GuestKind.CONTAINER})

RESTART = Step(
    name="restart-container",
    scope=Scope.VM,
    reach=Scope.PROCESS,
    via=frozenset({Channel.HYPERVISOR}),
    kinds=_CONTAINER,
    plan=_restart,
    params=(
        Param("shutdown_first", 60.0, "how long the container may take to shut down; 0: it isn't asked", "s", 0, 3600),
        Param("stop_deadline", 180.0, "how long the stop is waited for; LXC's own has no limit", "s", 180, 3600),
        BOOT,
        Param("apply_pending", False, "go on although the stop applies pending changes"),
    ),
    doc="Stops and starts the container through the API; its processes end, its GPUs are not reset.",
)

RESET = Step(
    name="reset-host-gpu",
    scope=Scope.HOST_DEVICE,
    reach=Scope.GPU,
    via=frozenset({Channel.HYPERVISOR, Channel.HOST}),
    kinds=_CONTAINER,
    plan=_reset,
    params=(Param("deadline", 120.0, "how long nvidia-smi may take", unit="s", least=10, most=900),),
    doc="Resets a container's GPUs by the driver of its node, where nobody else at all is on them.",
)

STEPS = (RESTART, RESET)
