"""What is done inside a simulated guest."""

from __future__ import annotations

from recover.edge.simulated.inside import FABRIC, Inside
from recover.model.act import (
    AwaitBoot,
    AwaitGone,
    EndMpsClient,
    EndZombieParent,
    LoadDriver,
    Outcome,
    RebootGuest,
    RemoveLeftovers,
    ResetGpu,
    Signal,
    StartService,
    StopService,
    UnloadDriver,
)
from recover.model.contact import Failure
from recover.model.gpu import Condition
from recover.model.guest import (
    Guest,
    Mute,
)
from recover.model.verdict import Scope


class GuestHands(Inside):
    def _signal(self, action: Signal) -> Outcome:
        hit = [r for r in self.ranks if any(m.pid == r.pid and m.start == r.start for m in action.members)]
        if self._workers_now() in ("healthy", "loading") and hit:
            self.touched_healthy = True
        deadly = action.signal == "KILL" or not self.fault.ignores_term
        for rank in hit:
            if deadly and not (self.fault.unkillable and rank.gpu == 0):
                rank.dies_at = self.clock.now() + (0.2 if action.signal == "KILL" else 2.0)
        return Outcome(True, f"{action.signal} to {len(hit)}", bool(hit))

    def _await_gone(self, action: AwaitGone) -> Outcome:
        end = self.clock.now() + action.deadline_s
        while self.clock.now() < end:
            self._tick()
            left = [r for r in self.ranks if any(m.pid == r.pid and m.start == r.start for m in action.members)]
            if not left:
                return Outcome(True, "gone", False)
            self.clock.sleep(1.0)
        return Outcome(False, f"{len(left)} still there", False)

    def _end_zombie_parent(self, action: EndZombieParent) -> Outcome:
        if not self.zombies or not self.script:
            return Outcome(True, "nobody keeps a dead child", False)
        self.script = False
        self.zombies.clear()
        return Outcome(True, f"pid {action.parent.pid} ended")

    def _service(self, action: StopService | StartService) -> Outcome:
        if action.name == FABRIC:
            wanted = "active" if isinstance(action, StartService) else "inactive"
            self.fabric_on_failed |= wanted == "active" and self.gpus_failed
            changed, self.fabric = self.fabric != wanted, wanted
            return Outcome(True, f"{action.name} is {wanted}", changed)
        if isinstance(action, StopService):
            changed = self.service == "active"
            self.service = "inactive"
            for rank in self.ranks:
                rank.dies_at = self.clock.now()
            self._tick()
            return Outcome(True, f"{action.name} is inactive", changed)
        changed = self.service != "active"
        self.service = "active"
        if not self.ranks:
            self._launch("dead" if self.fault.comes_back_sick else "healthy")
        return Outcome(True, f"{action.name} is active", changed)

    def _end_client(self, action: EndMpsClient) -> Outcome:
        hit = [r for r in self.ranks if r.pid == action.client.pid and r.start == action.client.start]
        for rank in hit:
            if not self.fault.unkillable:
                rank.dies_at = self.clock.now() + 1.0
        return Outcome(True, f"MPS client {action.client.pid} ended", bool(hit))

    def _remove(self, action: RemoveLeftovers) -> Outcome:
        if self.fault.leftovers_open or not self.leftovers:
            return Outcome(not self.leftovers, "nothing removed: all are in use", False)
        freed, self.leftovers = self.leftovers, 0
        return Outcome(True, f"{len(action.objects)} removed, {freed} MiB freed")

    def _reset_gpu(self, action: ResetGpu) -> Outcome:
        self.clock.sleep(5.0)
        buses = {bus for _, bus in action.gpus}
        if any(r.gpu is not None and r.live_threads and self._bus(r.gpu) in buses for r in self.ranks):
            return Outcome(False, "In use by another client", False)
        if any(self.persistence[i] for i in range(self.gpus) if self._bus(i) in buses):
            return Outcome(False, "In use by another client", False)
        if self._bus(0) in buses and self.sick_gpu in (Condition.LOST, Condition.HANGS):
            return Outcome(False, "Unable to determine the device handle", False)
        if self.resets_to_fail:
            self.resets_to_fail -= 1
            self.gpus_failed = True
            return Outcome(False, "failed: GPU 00000000:01:00.0 could not be reset: Unknown Error")
        self.gpus_failed = False
        self._clear(Scope.GPU)
        return Outcome(True, "reset")

    def _reload(self, action: UnloadDriver | LoadDriver) -> Outcome:
        if isinstance(action, LoadDriver):
            if self.unloading:
                return Outcome(False, "an unload is stuck", False)
            changed, self.loaded = not self.loaded, True
            return Outcome(True, "the driver is loaded", changed)
        if any(r.live_threads and r.gpu is not None for r in self.ranks):
            return Outcome(False, "nvidia is in use", False)
        if self.fault.unload_stuck:
            self.clock.sleep(action.deadline_s)
            self.unloading = True
            return Outcome(False, "the unload did not come back: nvidia is Unloading", clear=False)
        self._clear(Scope.DRIVER)
        self.loaded = False
        return Outcome(True, "unloaded")

    def _reboot(self, action: RebootGuest) -> Outcome:
        if action.boot_id != self.boot_id:
            return Outcome(True, "it has booted anew already", False)
        if self._workers_now() in ("healthy", "loading") and self.ranks:
            self.touched_healthy = True
        if self.fault.reboot_hangs:
            self.shutdown_hung, self.mute = True, Failure.REFUSED
            return Outcome(True, "systemd was asked to reboot")
        self._power_cut()
        self._clear(Scope.GUEST)
        self._boot()
        if self.fault.new_host_key:
            self.mute = Failure.CHANGED_KEY
        return Outcome(True, "systemd was asked to reboot")

    def _await_boot(self, action: AwaitBoot) -> Outcome:
        end = self.clock.now() + action.deadline_s
        while self.clock.now() < end:
            guest = self._guest()
            if isinstance(guest, Mute) and guest.failure is Failure.CHANGED_KEY:
                return Outcome(False, guest.detail, False)
            if isinstance(guest, Guest) and guest.mark.boot_id != action.not_boot_id:
                return Outcome(True, f"boot id {guest.mark.boot_id}", False)
            self.clock.sleep(5.0)
        return Outcome(False, "no new boot seen", False)
