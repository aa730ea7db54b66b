"""The simulated machine whole: an observer and an actuator over one fault."""

from __future__ import annotations

from dataclasses import replace

from recover.edge.simulated.hands import GuestHands
from recover.edge.simulated.node import Node
from recover.edge.simulated.power import NodeHands
from recover.model.act import (
    Action,
    AskServer,
    AwaitBoot,
    AwaitGone,
    ClearMarker,
    EndMpsClient,
    EndZombieParent,
    LoadDriver,
    OnHost,
    Outcome,
    PlaceMarker,
    RebootGuest,
    RemoveLeftovers,
    RescanPci,
    ResetGpu,
    ResetPci,
    ResetVm,
    RestoreAutostart,
    RestoreResetMethod,
    SetPersistence,
    ShutdownVm,
    Signal,
    StartService,
    StartVm,
    StopService,
    StopVm,
    SuspendAutostart,
    SyncDisks,
    UnloadDriver,
    WakeGpu,
)
from recover.model.gpu import NOT_ASKED
from recover.model.guest import (
    Marker,
    Mute,
)
from recover.model.reading import Known
from recover.model.snapshot import Snapshot, Target
from recover.model.verdict import Scope

_GUEST_ACTIONS = (
    RebootGuest,
    RemoveLeftovers,
    WakeGpu,
    EndMpsClient,
    EndZombieParent,
    AskServer,
    SuspendAutostart,
    RestoreAutostart,
    UnloadDriver,
    LoadDriver,
    Signal,
    AwaitGone,
    StopService,
    StartService,
    SetPersistence,
    ResetGpu,
    PlaceMarker,
    ClearMarker,
    SyncDisks,
)


class SimulatedMachine(GuestHands, Node, NodeHands):
    """Observer and Actuator over one fault. `acts` is what was really done, in order."""

    def acted(self, action: Action) -> None:
        """Nothing to remember: the simulated GPUs may be asked again at no cost."""

    def look(self) -> Snapshot:
        self._tick()
        self.clock.sleep(0.5)
        return Snapshot(
            target=Target(
                name="node-174", address="10.1.230.174", cluster="pve", vmid=174, services=("sglang.service",)
            ),
            at=self.clock.now(),
            wall=self.clock.now(),
            guest=self._guest(),
            hypervisor=self._hypervisor(),
            baseline=self._baseline() if self.with_baseline else None,
            host_shell=self.fault.host,
            host=Known(self._host()) if self.fault.host else NOT_ASKED,
        )

    def perform(self, action: Action) -> Outcome:
        self._tick()
        self.acts.append(action)
        if isinstance(action, _GUEST_ACTIONS) and isinstance(self._guest(), Mute):
            return Outcome(False, "the guest cannot be reached", changed=False)
        before = self.clock.now()
        outcome = self._perform(action)
        return replace(outcome, seconds=self.clock.now() - before)

    def _perform(self, action: Action) -> Outcome:
        match action:
            case Signal():
                return self._signal(action)
            case AwaitGone():
                return self._await_gone(action)
            case StopService() | StartService():
                return self._service(action)
            case SetPersistence():
                i = next(i for i in range(self.gpus) if self._bus(i) == action.bus_id)
                changed = self.persistence[i] != action.on
                self.persistence[i] = action.on
                return Outcome(True, f"persistence {'on' if action.on else 'off'}", changed)
            case ResetGpu():
                return self._reset_gpu(action)
            case PlaceMarker():
                self.marker = Marker(action.run, action.who, action.host, action.rung, 1e12)
                return Outcome(True, "")
            case ClearMarker():
                self.marker = None
                return Outcome(True, "")
            case SyncDisks():
                return Outcome(True, "synced")
            case AwaitBoot():
                return self._await_boot(action)
            case ShutdownVm() | StopVm() | StartVm() | ResetVm():
                return self._power(action)
            case RebootGuest():
                return self._reboot(action)
            case RemoveLeftovers():
                return self._remove(action)
            case WakeGpu():
                self.clock.sleep(1.0)
                if self.fault.ghost_cure is Scope.GPU:
                    self.ghost = False
                return Outcome(True, "a context was opened and closed")
            case EndMpsClient():
                return self._end_client(action)
            case EndZombieParent():
                return self._end_zombie_parent(action)
            case AskServer():
                well = self._workers_now() == "healthy" and bool(self.ranks)
                return Outcome(well, "a token came back in 0.4 s" if well else "no answer to a real request")
            case SuspendAutostart():
                changed, self.autostart = self.autostart != "disabled", "disabled"
                return Outcome(True, "disabled", changed)
            case RestoreAutostart():
                changed, self.autostart = self.autostart != action.was, action.was
                return Outcome(True, action.was, changed)
            case UnloadDriver() | LoadDriver():
                return self._reload(action)
            case ResetPci():
                return self._reset_pci(action)
            case RescanPci():
                return self._rescan_pci(action)
            case RestoreResetMethod():
                changed = any(method != "default" for method in self.methods)
                self.methods = ["default"] * self.gpus
                return Outcome(True, "reset methods are the kernel's own again", changed)
            case OnHost():
                return self._perform(action.do)
