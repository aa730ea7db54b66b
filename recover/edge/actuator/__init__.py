"""The hands: what holds one can change the world, and does it as ensure verbs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from recover.model.act import Action, AwaitBoot, Outcome, ResetVm, ShutdownVm, StartVm, StopVm

HYPERVISOR_ACTIONS = (ShutdownVm, StopVm, StartVm, ResetVm, AwaitBoot)


class Hand(Protocol):
    def perform(self, action: Action) -> Outcome: ...


class CombinedActuator:
    """Gives each action to the hand of its channel. A hand that is missing is an outcome, not an error."""

    def __init__(
        self, guest: Hand | None, hypervisor: Hand | None, await_boot: Callable[[AwaitBoot], Outcome] | None = None
    ) -> None:
        self._guest, self._hypervisor, self._await_boot = guest, hypervisor, await_boot

    def perform(self, action: Action) -> Outcome:
        if isinstance(action, AwaitBoot) and self._hypervisor is None and self._await_boot is not None:
            return self._await_boot(action)  # a reboot from inside needs no Proxmox API
        power = isinstance(action, HYPERVISOR_ACTIONS)
        hand = self._hypervisor if power else self._guest
        if hand is None:
            channel = "Proxmox API" if power else "guest"
            return Outcome(False, f"no way to the {channel} is configured", changed=False)
        return hand.perform(action)
