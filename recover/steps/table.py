"""Every remedy there is, by name, in the order of the ladder. A playbook can name no other."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from recover.model.ladder import Step
from recover.steps import boot, gpu, leftovers, power, services, wake, workers

ALL_STEPS: Mapping[str, Step] = MappingProxyType(
    {step.name: step for module in (services, workers, leftovers, wake, gpu, boot, power) for step in module.STEPS}
)
