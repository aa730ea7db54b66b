"""The simulated machine whole: an observer and an actuator over one fault."""

from __future__ import annotations

from dataclasses import replace

from recover.edge.simulated.hands import GuestHands
from recover.edge.simulated.node import Node
from recover.edge.simulated.power import NodeHands
from recover.model import act
from recover.model.gpu import NOT_ASKED
from recover.model.guest import (
    Marker,
    Mute,
)
from recover.model.reading import Known
from recover.model.snapshot import Snapshot, Target
from recover.model.verdict import Scope

_GUEST_ACTIONS = (
    act.RebootGuest,
    act.RemoveLeftovers,
    act.WakeGpu,
    act.EndMpsClient,
    act.EndZombieParent,
    act.AskServer,
    act.SuspendAutostart,
    act.RestoreAutostart,
    act.UnloadDriver,
    act.LoadDriver,
    act.Signal,
    act.AwaitGone,
    act.StopService,
    act.StartService,
    act.SetPersistence,
    act.ResetGpu,
    act.PlaceMarker,
    act.ClearMarker,
    act.SyncDisks,
)


class SimulatedMachine(GuestHands, Node, NodeHands):
    """Observer and Actuator over one fault. `acts` is what was really done, in order."""

    def acted(self, action: act.Action) -> None:
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

    def perform(self, action: act.Action) -> act.Outcome:
        self._tick()
        self.acts.append(action)
        if isinstance(action, _GUEST_ACTIONS) and isinstance(self._guest(), Mute):
            return act.Outcome(False, "the guest cannot be reached", changed=False)
        before = self.clock.now()
        outcome = self._perform(action)
        return replace(outcome, seconds=self.clock.now() - before)

    def _perform(self, action: act.Action) -> act.Outcome:
        match action:
            case act.Signal():
                return self._signal(action)
            case act.AwaitGone():
                return self._await_gone(action)
            case act.StopService() | act.StartService():
                return self._service(action)
            case act.SetPersistence():
                i = next(i for i in range(self.gpus) if self._bus(i) == action.bus_id)
                changed = self.persistence[i] != action.on
                self.persistence[i] = action.on
                return act.Outcome(True, f"persistence {'on' if action.on else 'off'}", changed)
            case act.ResetGpu():
                return self._reset_gpu(action)
            case act.PlaceMarker():
                self.marker = Marker(action.run, action.who, action.host, action.rung, 1e12)
                return act.Outcome(True, "")
            case act.ClearMarker():
                self.marker = None
                return act.Outcome(True, "")
            case act.SyncDisks():
                return act.Outcome(True, "synced")
            case act.AwaitBoot():
                return self._await_boot(action)
            case act.ShutdownVm() | act.StopVm() | act.StartVm() | act.ResetVm():
                return self._power(action)
            case act.RebootGuest():
                return self._reboot(action)
            case act.RemoveLeftovers():
                return self._remove(action)
            case act.WakeGpu():
                self.clock.sleep(1.0)
                if self.fault.ghost_cure is Scope.GPU:
                    self.ghost = False
                return act.Outcome(True, "a context was opened and closed")
            case act.EndMpsClient():
                return self._end_client(action)
            case act.EndZombieParent():
                return self._end_zombie_parent(action)
            case act.AskServer():
                well = self._workers_now() == "healthy" and bool(self.ranks)
                return act.Outcome(well, "a token came back in 0.4 s" if well else "no answer to a real request")
            case act.SuspendAutostart():
                changed, self.autostart = self.autostart != "disabled", "disabled"
                return act.Outcome(True, "disabled", changed)
            case act.RestoreAutostart():
                changed, self.autostart = self.autostart != action.was, action.was
                return act.Outcome(True, action.was, changed)
            case act.UnloadDriver() | act.LoadDriver():
                return self._reload(action)
            case act.ResetPci():
                return self._reset_pci(action)
            case act.RescanPci():
                return self._rescan_pci(action)
            case act.RestoreResetMethod():
                changed = any(method != "default" for method in self.methods)
                self.methods = ["default"] * self.gpus
                return act.Outcome(True, "reset methods are the kernel's own again", changed)
            case act.OnHost():
                return self._perform(action.do)
