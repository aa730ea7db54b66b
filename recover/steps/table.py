"""Every remedy there is, by name, in the order of the ladder. A playbook can name no other."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from recover.model.ladder import Step
from recover.steps import boot, container, gpu, leftovers, pci, power, reload, services, wake, workers

_FILES = (services, workers, leftovers, wake, gpu, reload, boot, power, container, pci)

ALL_STEPS: Mapping[str, Step] = MappingProxyType({step.name: step for file in _FILES for step in file.STEPS})
