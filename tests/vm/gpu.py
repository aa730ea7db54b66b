"""The GPU of a guest is 256 KiB of shared memory behind a PCI port: what is in it outlives every boot of the guest."""

from __future__ import annotations

import os
from pathlib import Path

from tests.lab import files
from tests.lab.driver.build import Built, build
from tests.lab.driver.state import State, gpu

SIZE = 256 * 1024  # a BAR is a power of two


def create(folder: Path) -> Built:
    """The device's memory, the driver's files, and the libraries that the guest sees at the same paths as we do."""
    rows = [gpu(0)]
    State.create(folder / "gpu", rows).close()
    os.truncate(folder / "gpu", SIZE)
    files.procfs(folder / "world", rows)
    return build(folder / "driver", python=files.interpreter())


def state(folder: Path) -> State:
    """The device seen from outside, whatever the guest is doing."""
    return State.open(folder / "gpu")


def was_reset(folder: Path) -> None:
    """A new QEMU gets its devices reset (qemu-server, PCI.pm; kernel, vfio_pci_core_enable)."""
    with state(folder) as device:
        device.vm_restart()
