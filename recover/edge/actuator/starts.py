"""A server that the recovery stopped is not started again with a launch that does not fit its machine."""

from __future__ import annotations

from collections.abc import Callable

from recover.core.aftercare import REFUSED
from recover.edge.actuator import Hand
from recover.edge.shell.port import Shell
from recover.model.act import Action, Outcome, StartService
from recover.steps.bounds import CHECK_S


class CheckedStarts:
    """Judges a service's own command, by the engine that is installed, before the hand starts it.

    `shell`: the one to ask at that moment. `total_bytes` is the guest's RAM, None where it is not known. The machine is
    asked only where even the worst reading of the engine says that the launch may not fit; where it gives no answer,
    the start is not hindered.
    """

    def __init__(self, hand: Hand, shell: Callable[[], Shell], total_bytes: Callable[[], int | None]) -> None:
        self._hand, self._shell, self._total_bytes = hand, shell, total_bytes

    def perform(self, action: Action) -> Outcome:
        refusal = self._refusal(action) if isinstance(action, StartService) and not action.monitor else None
        return refusal or self._hand.perform(action)

    def _refusal(self, action: StartService) -> Outcome | None:
        # Here, since most runs never start a server and all would wait for the budget's tables to load.
        from recover.core.budget.model import Fit, Problem
        from recover.core.budget.preflight import explain_exhaustion, headline
        from recover.edge.preflight import check

        total = self._total_bytes()
        if not action.launch or total is None or explain_exhaustion(action.launch, total, None) is None:
            return None
        try:
            found = check(self._shell(), action.launch, CHECK_S)
        except Problem:
            return None
        if found is None or found.verdict.fit is not Fit.NOT:
            return None
        why = f"{REFUSED}{action.name} is not started again, its launch does not fit: {headline(found)}"
        log = (f"start it as: {found.verdict.corrected}",) if found.verdict.corrected else ()
        return Outcome(False, why, changed=False, log=log)
