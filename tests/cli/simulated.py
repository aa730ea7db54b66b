"""The command line over a machine that isn't there: real locks, journals, signals and views, no network.

`python -m tests.cli.simulated FAULT STATE_DIR SPEED ARGS...` runs one by hand, SPEED times faster than the clock.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recover.core.config import Config, TargetConfig
from recover.core.guards import Context
from recover.edge.simulated import FAULTS, Fault, SimulatedMachine
from recover.edge.store.folder import StateFolder
from recover.model.ladder import Playbook
from recover.model.snapshot import Target
from recover.wiring import App, Flags, Wired


class FastClock:
    """The wall's clock, `speed` times faster; what the simulated machine takes also takes time.

    A stop of the whole process counts for a moment only: else a busy machine's second would be a quarter of an hour.
    """

    def __init__(self, speed: float) -> None:
        self._speed, self._now, self._real = speed, time.time(), time.monotonic()
        self._lock = threading.Lock()
        self._woken: Callable[[], bool] = lambda: False

    def now(self) -> float:
        with self._lock:
            real = time.monotonic()
            self._now += min(real - self._real, 0.1) * self._speed
            self._real = real
            return self._now

    def sleep(self, seconds: float) -> None:
        until = self.now() + seconds
        while self.now() < until and not self._woken():
            time.sleep(min(0.05, max(0.0, (until - self.now()) / self._speed)))

    def woken_by(self, woken: Callable[[], bool]) -> None:
        self._woken = woken


class _NoConnections:
    def causes(self, snapshot: object, seconds: float) -> tuple[str, ...]:
        return ()

    def collectors(self) -> tuple[Any, ...]:
        return ()

    def close(self) -> None:
        pass


class SimulatedApp(App):
    """`faults`: target name -> what is wrong with it."""

    def wire(self, target: Target, playbook: Playbook, flags: Flags, *, acts: bool = True) -> Wired:
        from dataclasses import replace

        clock = FastClock(self.speed)
        machine = SimulatedMachine(self.faults[target.name], clock)  # type: ignore[arg-type]
        self.machines[target.name] = machine
        limits = playbook.limits if flags.max_scope is None else replace(playbook.limits, max_scope=flags.max_scope)
        context = Context(evict=flags.evict, trust_vmid=flags.trust_vmid, approved=flags.approve)
        return Wired(
            target=target, playbook=replace(playbook, limits=limits), context=context, state=self.state,
            clock=clock, observer=machine, actuator=lambda: machine, connections=_NoConnections(),
            baseline=self.baseline(target),
        )  # type: ignore[arg-type]  # fmt: skip

    def __init__(self, state: Path, faults: dict[str, Fault], speed: float = 100.0) -> None:
        targets = {name: TargetConfig(name, address="192.0.2.1") for name in faults}
        super().__init__(Config(targets=targets), StateFolder(state), dict(os.environ))
        self.faults, self.speed = faults, speed
        self.machines: dict[str, SimulatedMachine] = {}

    __slots__ = ("faults", "machines", "speed")


def main() -> int:
    from recover.cli.main import run

    fault, state, speed, *args = sys.argv[1:]
    os.environ["GPU_RECOVER_STATE"] = state
    return run(args, SimulatedApp(Path(state), {"node-174": FAULTS[fault]}, float(speed)))


if __name__ == "__main__":
    sys.exit(main())
