"""The API on a fast clock with hands that act through it, as most tests want it; the matrices have their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.edge.actuator.vm_bench import Bench, bench


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    with ExitStack() as stack:
        yield lambda *vms, **config: stack.enter_context(bench(tmp_path, *vms, **config))
