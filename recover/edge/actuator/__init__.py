"""The hands: what holds one can change the world, and does it as ensure verbs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from recover.model.act import (
    Action,
    AwaitBoot,
    OnHost,
    Outcome,
    RescanPci,
    ResetPci,
    ResetVm,
    RestoreResetMethod,
    ShutdownVm,
    StartVm,
    StopVm,
)

HYPERVISOR_ACTIONS = (ShutdownVm, StopVm, StartVm, ResetVm, AwaitBoot)
HOST_ACTIONS = (ResetPci, RescanPci, RestoreResetMethod, OnHost)


class Hand(Protocol):
    def perform(self, action: Action) -> Outcome: ...


class CombinedActuator:
    """Gives each action to the hand of its channel. A hand that is missing is an outcome, not an error."""

    def __init__(
        self,
        guest: Hand | None,
        hypervisor: Hand | None,
        await_boot: Callable[[AwaitBoot], Outcome] | None = None,
        host: Hand | None = None,
    ) -> None:
        self._guest, self._hypervisor, self._await_boot, self._host = guest, hypervisor, await_boot, host

    def perform(self, action: Action) -> Outcome:
        if isinstance(action, AwaitBoot) and self._hypervisor is None and self._await_boot is not None:
            return self._await_boot(action)  # a reboot from inside needs no Proxmox API
        channel, hand = "guest", self._guest
        if isinstance(action, HYPERVISOR_ACTIONS):
            channel, hand = "Proxmox API", self._hypervisor
        elif isinstance(action, HOST_ACTIONS):
            channel, hand = "Proxmox node's shell", self._host
        if hand is None:
            return Outcome(False, f"no way to the {channel} is configured", changed=False)
        return hand.perform(action)
