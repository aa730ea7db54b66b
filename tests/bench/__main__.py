"""`make bench`: three measures with their goals, on this machine, in one run; exit 1 when a goal is missed.

Two are ratios of medians: the sides take turns, so that a busy machine slows both. The third is the time that is the
tool's own within a recovery, read from the run's journal. Needs root, as the lab does.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable

from tests.bench import measures
from tests.lab.lab import LabError


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="runs of each side (default: 5)")
    repeats = max(1, parser.parse_args(argv).repeats)
    if os.geteuid() != 0:
        print("the bench needs root: it builds guests out of namespaces", file=sys.stderr)
        return 2
    print(measures.load(), flush=True)
    todo: tuple[Callable[[], measures.Measure], ...] = (
        lambda: measures.help_beside_click(3 * repeats),
        lambda: measures.probe_beside_ssh("incident", "a stuck guest", 1.3, repeats),
        lambda: measures.added_to_a_recovery(repeats),
    )
    missed = 0
    for measure in todo:
        try:
            found = measure()
        except (measures.Broke, LabError, OSError, subprocess.TimeoutExpired) as error:
            print(f"bench: {error}", file=sys.stderr)
            return 2
        missed += not found.met
        _say(found)
    _say_extra(measures.probe_beside_ssh("healthy-serving", "a guest that answers at once", float("inf"), repeats))
    print("\nall goals are met" if not missed else f"\n{missed} of {len(todo)} goals are missed")
    return 1 if missed else 0


def _say(found: measures.Measure) -> None:
    word = "ok" if found.met else "MISSED"
    print(f"\n{found.name}: {found.value:.2f} {found.unit} (goal: at most {found.goal:g} {found.unit})  {word}")
    print("\n".join(f"  {part}" for part in found.parts), flush=True)


def _say_extra(found: measures.Measure) -> None:
    """The agent needs a third of a second there, so this shows what Python's start and the imports cost."""
    print(f"\n{found.name}: {found.value:.2f} {found.unit} (no goal: what starting Python costs)")
    print("\n".join(f"  {part}" for part in found.parts), flush=True)


if __name__ == "__main__":
    sys.exit(main())
