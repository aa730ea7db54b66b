"""What is owed and how often its payment was tried; a fabric manager's start waits until its GPUs are well again."""

from __future__ import annotations

from dataclasses import dataclass, replace

from recover.model.act import Action, Duty, OnHost, Outcome, ResetGpu
from recover.model.guest import Mark
from recover.steps.undo import waits_for_reset


@dataclass(frozen=True, slots=True)
class Held:
    """Why a duty is not paid yet: until the boot is another, a reset succeeds, or the machine is found well."""

    why: str
    boot_id: str


@dataclass(frozen=True, slots=True)
class OpenDuty:
    duty: Duty
    opened_at: float
    n: int = -1  # the act that opened it
    tries: int = 0
    tried_at: float | None = None
    last: str = ""
    held: Held | None = None
    final: bool = False  # its last try said that the next one would end the same way


def freed_by_boot(duties: tuple[OpenDuty, ...], mark: Mark | None) -> tuple[OpenDuty, ...]:
    """Another boot starts its fabric manager by itself, or may have it started."""
    return tuple(
        replace(d, held=None) if d.held is not None and mark is not None and mark.boot_id != d.held.boot_id else d
        for d in duties
    )


def after_reset(duties: tuple[OpenDuty, ...], outcome: Outcome, boot_id: str) -> tuple[OpenDuty, ...]:
    """What a fabric manager waits for. A reset that was refused has changed nothing: then it starts again at once."""
    if outcome.clear and not outcome.ok and not outcome.changed:
        return duties
    held = None if outcome.ok else Held(f"the reset of its GPUs failed: {outcome.detail}", boot_id)
    return tuple(replace(d, held=held) if waits_for_reset(d.duty) else d for d in duties)


def resets(action: Action) -> bool:
    return isinstance(action.do if isinstance(action, OnHost) else action, ResetGpu)
