"""A restart is proved by another boot id seen from inside the guest, and by its GPUs being there again."""

from __future__ import annotations

import time
from collections.abc import Callable

from recover.model.act import AwaitBoot, Outcome
from recover.model.contact import Failure
from recover.model.gpu import Condition
from recover.model.guest import Guest, Mute
from recover.model.reading import Known

LOOK_EVERY_S = 5.0
_ANOTHER = frozenset({Failure.CHANGED_KEY, Failure.REVOKED_KEY})  # waiting does not change a key back


class BootWatch:
    """Looks at the guest until it is up anew. `forget` drops a connection into the machine that was."""

    def __init__(
        self,
        look: Callable[[float], Guest | Mute],
        forget: Callable[[], None],
        *,
        every_s: float = LOOK_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._look, self._forget, self._every_s = look, forget, every_s
        self._clock, self._sleep = clock, sleep

    def __call__(self, action: AwaitBoot) -> Outcome:
        began = self._clock()
        said = "not looked yet"
        while (left := action.deadline_s - (self._clock() - began)) > 0:
            self._forget()
            guest = self._look(min(left, 90.0))
            if isinstance(guest, Mute) and guest.failure in _ANOTHER:
                return Outcome(False, f"who answers after the boot can't be told: {guest.detail}", False)
            verdict = _verdict(guest, action)
            if verdict is None and isinstance(guest, Guest):
                seconds = self._clock() - began
                return Outcome(True, f"up again with boot id {guest.identity.boot_id}", False, seconds=seconds)
            said = verdict or said
            self._sleep(min(self._every_s, max(0.0, left)))
        return Outcome(False, f"no new boot within {action.deadline_s:.0f} s: {said}", False)


def _verdict(guest: Guest | Mute, action: AwaitBoot) -> str | None:
    """What is still missing, or None. GPUs may take up to 10 min after a start (NVIDIA/nvtrust#128)."""
    if isinstance(guest, Mute):
        return f"{guest.failure}: {guest.detail}"
    if guest.identity.container and action.not_init_start:
        if guest.identity.init_start == action.not_init_start:
            return "still the old init"
    elif guest.identity.boot_id == action.not_boot_id:
        return "still the old boot"
    if not action.gpus:  # none were ever seen there: none are waited for
        return None
    if not isinstance(guest.gpus, Known):
        return "no GPU reading yet"
    answering = sum(1 for gpu in guest.gpus.value if gpu.condition is Condition.ANSWERS)
    if answering < action.gpus:
        return f"{answering} of {action.gpus} GPUs answer"
    return None
