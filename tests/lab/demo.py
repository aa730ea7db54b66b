"""The main job before your eyes: a stuck 8-GPU guest, `gpu-recover node-174`, and what the lab itself says afterwards.

The tool's own report decides nothing here: before and after are read from the lab, and so is whether it ended right.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from . import judge, scenario
from .lab import Lab, LabError

SCENARIO = "incident"
TARGET = "node-174"
TOOL_S = 150.0  # the run itself takes about half a minute; the whole demo must stay under three
GRACE_S = 60.0  # what an interrupted run may need to put back what it changed
TOOL = Path(sys.executable).with_name("gpu-recover")

STORY = """\
A guest with 8 GPUs and 449 GiB of RAM was started with SGLang `--hicache-size 300`. That size is per rank, so 8 ranks
asked for 2.4 TB. The server took 439 GiB and hung, three ranks are defunct with a live thread inside, and what they
pinned stays gone after a kill. Only a stop and start of the VM brings all of it back.

Everything here runs on this machine: the guest is a set of namespaces with a real sshd and real processes, the GPUs
are a fake driver below the real NVML binding, and Proxmox is a real HTTPS API on loopback. Minutes are scaled to
seconds. Nothing outside this machine is touched, and nothing is left when it is over.
"""
WATCH = """\
What you will see: the ladder, and on it one rung after the other. `end-workers` ends the hung group. What it held does
not fall any more, so `reset-gpu` is tried, and then `power-cycle-vm`. After each rung the tool looks again; it stops
when the guest is healthy twice in a row. Consent is given by options here (`--yes --approve vm`); without them it asks.
`--evict` says that whoever else is in the guest, here a login shell and a tmux, may be ended by the power cycle too.
"""


class Ended(Exception):
    """A signal asked the demo to end; the lab is taken down on the way out."""


def main(argv: list[str] | None = None) -> int:
    words = _words(argv)
    if os.geteuid() != 0:
        print("the demo needs root: it builds a guest out of namespaces. Try: sudo make demo", file=sys.stderr)
        return 2
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="gpu-recover-demo-"))
    try:
        with _signals(), _lab(folder, keep=words.keep) as lab:
            code = _show(lab)
            print(f"\nThe whole demo took {time.monotonic() - began:.0f} s.")
            return code
    except (KeyboardInterrupt, Ended) as stopped:
        print(f"\nstopped by {str(stopped) or 'Ctrl-C'}; the lab is down", file=sys.stderr)
        return 130
    except (LabError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2


def _words(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.demo", description=__doc__.partition("\n")[0])
    parser.add_argument("--keep", action="store_true", help="leave the lab running, for a look around by hand")
    return parser.parse_args(argv)


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the demo as Ctrl-C does."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise Ended(signal.Signals(number).name)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _lab(folder: Path, *, keep: bool) -> Iterator[Lab]:
    """The lab, idle. Whatever happens it is taken down, and its folder goes with it, unless it is to be kept."""
    lab = Lab(folder)
    try:
        Lab.up(SCENARIO, folder, idle=True)
        yield lab
        if keep:
            _say_kept(folder)
    except BaseException:
        keep = False
        raise
    finally:
        if not keep:
            with _deaf():
                lab.down()
                shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """While the lab is taken down nothing may cut that short."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show(lab: Lab) -> int:
    _title("The incident")
    print(STORY)
    _title("While nothing runs: how the guest looks when it is well")
    if _tool(lab, "baseline", "save") != 0:
        return _verdict(["the baseline could not be saved"])
    _title("Now the server is started, and hangs")
    lab.activate()
    before = lab.state()
    print(_figures(before))
    _title("The recovery")
    print(WATCH)
    code = _tool(lab, *_options(lab))
    after = lab.state()
    _title("What is true in the lab now (the tool is not asked)")
    print(_beside(before, after))
    return _verdict(_wrong(code, before, after))


def _options(lab: Lab) -> list[str]:
    """What the scenario gives, and that the bystanders in the guest may be ended."""
    return list(dict.fromkeys([*lab.args, "--evict"])) if "--evict" not in lab.args else lab.args


def _tool(lab: Lab, *words: str) -> int:
    """The real command, with our terminal; a Ctrl-C reaches it too, and it is waited for while it puts things back."""
    argv = [str(TOOL), *lab.tool(*words, target=TARGET)]
    shown = ["gpu-recover", "--config", "…", *words, TARGET]
    print(f"$ {' '.join(shown)}", flush=True)
    tool = subprocess.Popen(argv)
    try:
        return tool.wait(TOOL_S)
    except subprocess.TimeoutExpired:
        print(f"demo: it did not end within {TOOL_S:.0f} s and is asked to stop", file=sys.stderr)
        tool.send_signal(signal.SIGTERM)
        return tool.wait(GRACE_S)
    except BaseException:
        _end(tool)
        raise


def _end(tool: subprocess.Popen[bytes]) -> None:
    with _deaf():
        if tool.poll() is None:
            tool.send_signal(signal.SIGTERM)
        try:
            tool.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            tool.kill()
            tool.wait()


def _wrong(code: int, before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    expected = scenario.expected(SCENARIO)
    wrong = judge.problems(expected, before, after)
    if code != expected["exit_code"]:
        wrong.insert(0, f"gpu-recover ended with {code}, not {expected['exit_code']}")
    return wrong


def _verdict(wrong: list[str]) -> int:
    if not wrong:
        print("\nThe lab says: it ended right.")
        return 0
    print("\nThe lab says: it did NOT end right:")
    for line in wrong:
        print(f"  {line}")
    return 1


def _figures(state: dict[str, Any]) -> str:
    held = sum(gpu["used_mib"] for gpu in state["gpus"])
    workers = [p for p in state["processes"] if p["group"]]
    stuck = sum(p["state"] == "Z" and p["alive"] for p in workers)
    return (
        f"  GPU memory used    {_gib(held)} on {len(state['gpus'])} GPUs\n"
        f"  RAM available      {state['ram']['available_gib']:.1f} of {state['ram']['total_gib']:.0f} GiB\n"
        f"  server processes   {len(workers)}, of which {stuck} are defunct with a live thread"
    )


def _beside(before: dict[str, Any], after: dict[str, Any]) -> str:
    rows = [("", "before", "after")]
    for was, now in zip(before["gpus"], after["gpus"], strict=True):
        rows.append((f"GPU {now['index']} used", _gib(was["used_mib"]), _gib(now["used_mib"])))
    rows += [
        ("RAM available", *(f"{s['ram']['available_gib']:.1f} GiB" for s in (before, after))),
        ("server processes", *(str(sum(bool(p["group"]) for p in s["processes"])) for s in (before, after))),
        ("boot id", *(str(s["boot_id"])[:8] for s in (before, after))),
        ("VM stops, starts", *(f"{s['vm']['stops']}, {s['vm']['starts']}" for s in (before, after))),
    ]
    return "\n".join(f"  {name:18} {was:>12} {now:>12}" for name, was, now in rows)


def _gib(mib: int) -> str:
    return f"{mib / 1024:.1f} GiB"


def _title(text: str) -> None:
    bold, plain = ("\x1b[1m", "\x1b[0m") if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else ("", "")
    print(f"\n{bold}== {text}{plain}\n", flush=True)


def _say_kept(folder: Path) -> None:
    print(
        f"\nThe lab still runs. Look around:\n"
        f"  .venv/bin/gpu-recover --config {folder}/config.toml --state-dir {folder}/state plan {TARGET}\n"
        f"  .venv/bin/python -m tests.lab state --dir {folder}\n"
        f"and end it with:\n"
        f"  .venv/bin/python -m tests.lab down --dir {folder} && rm -r {folder}"
    )


if __name__ == "__main__":
    sys.exit(main())
