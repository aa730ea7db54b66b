"""The lab by hand: every command but `list` names the folder that holds one lab.

python -m tests.lab up SCENARIO --dir DIR [--idle] | list
python -m tests.lab activate | down | cut | state | do JSON | ssh CMD | power ACTION [VMID]   (each with --dir DIR)
"""

from __future__ import annotations

import argparse
import json
import sys

from .lab import Lab, LabError


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m tests.lab", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sub = top.add_subparsers(dest="command", required=True)
    sub.add_parser("list", help="the scenarios")
    for name, words in (
        ("up", ["scenario"]),
        ("activate", []),
        ("down", []),
        ("cut", []),
        ("state", []),
        ("do", ["event"]),
        ("ssh", ["line"]),
        ("power", []),
    ):
        one = sub.add_parser(name)
        one.add_argument("--dir", required=True)
        for word in words:
            one.add_argument(word)
        if name == "up":
            one.add_argument("--idle", action="store_true", help="boot it without its trouble; `activate` begins it")
        if name == "power":
            one.add_argument("action", choices=["start", "stop", "reset", "shutdown"])
            one.add_argument("vmid", nargs="?")
    return top


def main() -> int:
    words = parser().parse_args()
    if words.command == "list":
        from . import scenario

        for name in scenario.names():
            print(f"{name:28} {scenario.load(name)['title']}")
        return 0
    lab = Lab(words.dir)
    match words.command:
        case "up":
            print(Lab.up(words.scenario, words.dir, idle=words.idle).config)
        case "activate":
            lab.activate()
        case "cut":
            lab.do(do="qemu-dies")
        case "down":
            lab.down()
        case "state":
            print(json.dumps(lab.state(), indent=1))
        case "do":
            lab.do(**json.loads(words.event))
        case "ssh":
            done = lab.ssh(words.line)
            sys.stdout.write(done.stdout)
            sys.stderr.write(done.stderr)
            return done.returncode
        case "power":
            # Exit 1 is the guest that did not obey a shutdown (tests/lab/pve/hooks.py).
            return 0 if lab.power(words.action).get("obeyed", True) else 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (LabError, OSError) as error:
        print(f"lab: {error}", file=sys.stderr)
        sys.exit(2)
