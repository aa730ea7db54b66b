"""What no test may touch: the caller's home, configuration and state; and how far Hypothesis goes where."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# In CI the same examples are drawn each time, so that a red run can be had again; at a desk new ones are looked for.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("desk", deadline=None, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "desk")

# Who starts the suite in the background of a shell has SIGINT ignored, and so would all that is started here: tests of
# Ctrl-C need it as a terminal gives it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _nobody_is_at_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A test that forgets to name its folders finds empty ones, never those of the person who runs it."""
    for name in ("GPU_RECOVER_CONFIG", "XDG_CONFIG_HOME", "SSH_AUTH_SOCK", "SUDO_USER", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    nowhere: Path = tmp_path_factory.getbasetemp() / "nobodys-state"
    monkeypatch.setenv("GPU_RECOVER_STATE", str(nowhere))
    yield
