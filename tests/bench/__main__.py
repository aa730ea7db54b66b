"""`make bench`: all measures with their goals, on this machine, in one run; exit 1 when a goal is missed.

Most are ratios of medians: the sides take turns, so that a busy machine slows both. What a recovery adds is the time
that is the tool's own, read from the run's journal; what looking costs stands in `eyes`. Needs root, as the lab does.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable

from tests.bench import eyes, fleet, measures
from tests.lab.lab import LabError


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="runs of each side (default: 5)")
    repeats = max(1, parser.parse_args(argv).repeats)
    if os.geteuid() != 0:
        print("the bench needs root: it builds guests out of namespaces", file=sys.stderr)
        return 2
    print(measures.load(), flush=True)
    todo: list[Callable[[], list[measures.Measure]]] = [
        lambda: [measures.help_beside_click(3 * repeats)],
        lambda: [measures.probe_beside_ssh("incident", "a stuck guest", 1.3, repeats)],
        lambda: [measures.added_to_a_recovery(repeats)],
        *(measure for part in eyes.parts_of(repeats).values() for measure in part),
        *(measure for part in fleet.parts_of(repeats).values() for measure in part),
    ]
    missed = asked = 0
    for measure in todo:
        try:
            found = measure()
        except (measures.Broke, LabError, OSError, subprocess.SubprocessError) as error:
            print(f"bench: {error}", file=sys.stderr)
            return 2
        for one in found:
            missed, asked = missed + (not one.met), asked + 1
            eyes.say(one)
    _say_extra(measures.probe_beside_ssh("healthy-serving", "a guest that answers at once", float("inf"), repeats))
    print("\nall goals are met" if not missed else f"\n{missed} of {asked} goals are missed")
    return 1 if missed else 0


def _say_extra(found: measures.Measure) -> None:
    """The agent needs a third of a second there, so this shows what Python's start and the imports cost."""
    print(f"\n{found.name}: {found.value:.2f} {found.unit} (no goal: what starting Python costs)")
    print("\n".join(f"  {part}" for part in found.parts), flush=True)


if __name__ == "__main__":
    sys.exit(main())
