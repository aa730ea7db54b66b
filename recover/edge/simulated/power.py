"""What is done to a simulated guest from its node: power by the API, resets by a root shell."""

from __future__ import annotations

from recover.edge.simulated.state import GAVE_UP, State
from recover.model.act import (
    Outcome,
    RescanPci,
    ResetPci,
    ResetVm,
    ShutdownVm,
    StartVm,
    StopVm,
)
from recover.model.gpu import Condition
from recover.model.verdict import Scope

_HOWS = ("flr", "bus", "rescan")


class NodeHands(State):
    def _power(self, action: ShutdownVm | StopVm | StartVm | ResetVm) -> Outcome:
        if self.fault.lock:
            return Outcome(False, f"VM is locked ({self.fault.lock})", False)
        if self._workers_now() in ("healthy", "loading") and self.ranks and not isinstance(action, StartVm):
            self.touched_healthy = True
        if isinstance(action, StartVm):
            return self._start()
        if isinstance(action, ResetVm):
            self._power_cut()
            self._clear(Scope.GUEST)
            self._boot()
            self._task("qmreset")
            return Outcome(True, "reset")
        if self.vm.status == "stopped":
            return Outcome(True, "already stopped", False)
        if isinstance(action, ShutdownVm) and self.mute is not None:
            self.clock.sleep(action.deadline_s)
            return Outcome(False, "the guest does not shut down", False)
        self.clock.sleep(20.0)
        self._task("qmshutdown" if isinstance(action, ShutdownVm) else "qmstop")
        if self.stop_lies:
            self.stop_lies -= 1
            return Outcome(False, "the task ended OK and the VM still runs", False)
        self._power_cut()
        self.vm.status = "stopped"
        if self.stop_unclear:
            self.stop_unclear -= 1
            return Outcome(False, "596 and no task seen", clear=False)
        return Outcome(True, "stopped")

    def _start(self) -> Outcome:
        if self.vm.status == "running":
            return Outcome(True, "already running", False)
        self.clock.sleep(30.0)
        if self.start_fails:
            self.start_fails -= 1
            self._task("qmstart", "start failed: got timeout")
            return Outcome(False, "start failed: got timeout", False)
        if self.pci_off:
            self._task("qmstart", f"no PCI device found for '{self._address(0)[:-2]}'")
            return Outcome(False, "no-such-device: the device is not on the bus", False)
        self._clear(Scope.VM)
        self._boot()
        self.vm.qemu_at = self.clock.now()
        self._task("qmstart")
        return Outcome(True, "started")

    def _rescan_pci(self, action: RescanPci) -> Outcome:
        if not self.pci_off:
            return Outcome(True, "all are on the bus", False)
        self.clock.sleep(2.0 if self.fault.pci_off == "found" else 30.0)
        if self.fault.pci_off == "gone":
            return Outcome(False, f"{self._address(0)} did not come back on the bus")
        self.pci_off = False
        return Outcome(True, f"{self._address(0)} is on the bus again")

    def _reset_pci(self, action: ResetPci) -> Outcome:
        if self.vm.status == "running" or self.fault.pci_holder:
            return Outcome(False, "/dev/vfio/20 is held", False)
        if self.pci_stuck:
            return Outcome(False, "an earlier write still hangs in the kernel", False)
        if self.pci_lost:
            return Outcome(False, f"{self._address(0)} is lost to this node: {GAVE_UP}", False)
        if self.pci_off and self._address(0) in action.addresses:
            return Outcome(False, f"{self._address(0)} is not on the bus", False)
        if action.how != "rescan":
            self.methods = [action.how] * self.gpus
        if self.fault.pci_gives_up:
            self.clock.sleep(66.0)
            self.pci_lost, self.sick_gpu = True, Condition.LOST
            return Outcome(False, f"the kernel: {GAVE_UP}")
        if self.fault.pci_hangs == action.how:
            self.clock.sleep(75.0)
            self.pci_stuck = True
            return Outcome(False, "the write did not come back within 75 s", clear=False)
        self.clock.sleep(2.0 * len(action.addresses))
        self.methods = ["default"] * self.gpus
        if _HOWS.index(action.how) >= _HOWS.index(self.fault.pci_cure):
            self._clear(Scope.HOST_DEVICE)
        return Outcome(True, f"{action.how} of {len(action.addresses)}")
