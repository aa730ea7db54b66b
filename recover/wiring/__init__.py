"""The composition root: the one place that names adapters; an actuator goes only to what may change things."""

from recover.wiring.app import App, open_config, open_state
from recover.wiring.words import DEFAULT_PLAYBOOK, Eyes, Flags, Held, Result, UsageProblem, Wired, held_end

__all__ = [
    "DEFAULT_PLAYBOOK",
    "App",
    "Eyes",
    "Flags",
    "Held",
    "Result",
    "UsageProblem",
    "Wired",
    "held_end",
    "open_config",
    "open_state",
]
