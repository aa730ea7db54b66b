"""The hands: what holds one can change the world, and does it as ensure verbs."""

from __future__ import annotations

from typing import Protocol

from recover.model.act import Action, AwaitBoot, Outcome, ResetVm, ShutdownVm, StartVm, StopVm

HYPERVISOR_ACTIONS = (ShutdownVm, StopVm, StartVm, ResetVm, AwaitBoot)


class Hand(Protocol):
    def perform(self, action: Action) -> Outcome: ...


class CombinedActuator:
    """Gives each action to the hand of its channel. A hand that is missing is an outcome, not an error."""

    def __init__(self, guest: Hand | None, hypervisor: Hand | None) -> None:
        self._guest, self._hypervisor = guest, hypervisor

    def perform(self, action: Action) -> Outcome:
        power = isinstance(action, HYPERVISOR_ACTIONS)
        hand = self._hypervisor if power else self._guest
        if hand is None:
            channel = "Proxmox API" if power else "guest"
            return Outcome(False, f"no way to the {channel} is configured", changed=False)
        return hand.perform(action)
