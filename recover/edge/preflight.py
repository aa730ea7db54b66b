"""Asks a machine what a launch would meet, keeps and reads such answers as files, and follows a log: reads, never acts.

The same agent answers through SSH, as a local child (`--here`), or, asked earlier, from a file.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from recover.core.budget.launch import from_argv
from recover.core.budget.model import Problem
from recover.core.budget.preflight import Preflight, one
from recover.core.budget.preflight_report import gathered, records, wanted
from recover.core.clean import clean
from recover.core.read.agent import parse_lines
from recover.core.read.report import Report
from recover.edge.probe import NO_PYTHON, ask
from recover.edge.shell.port import Shell
from recover.edge.store.folder import write_atomically
from recover.model.contact import Broken

ASK_S = 120.0
_SLACK_S = 20.0
_LARGEST = 64 << 20
_SCHEMA = 1
_CHUNK = 1 << 20
_LONGEST_LINE = 1 << 16
# The size first, so that a log that was turned over is read from its beginning.
_TAIL = """s=$(stat -c %s -- "$1") || exit 1
echo "$s"
[ "$s" -gt "$2" ] && tail -c "+$(($2 + 1))" -- "$1" | head -c "$3"
exit 0"""


def question(shell: Shell, request: dict[str, object], seconds: float = ASK_S) -> Report:
    """The agent's answer, also one that broke off. Raises Problem when there is none at all."""
    said = ask(shell, {**request, "deadline": max(5.0, seconds - _SLACK_S)}, seconds)
    report = parse_lines(said.stdout)
    if report.kinds:
        return report
    if isinstance(said, Broken):
        raise Problem(f"{shell.where}: {said.failure}: {said.detail}")
    if said.code == NO_PYTHON:
        raise Problem(
            f"{shell.where}: there is no Python 3 that could look", hint="facts can be given with --facts FILE"
        )
    last = said.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or [""]
    raise Problem(f"{shell.where}: the agent said nothing (exit {said.code}) {clean(last[0], 200)}".rstrip())


def check(shell: Shell, argv: Sequence[str], seconds: float = ASK_S, container: str = "") -> Preflight | None:
    """A server's own command judged on its machine, as before it is started again; None for words that start none.
    `container`: whose files hold the engine. Raises Problem when the machine gives no answer."""
    launch = from_argv(argv)
    if launch is None:
        return None
    found = gathered(question(shell, wanted(launch, container=container), seconds))
    known = found.installed.version if found.installed is not None else None
    return one(from_argv(argv, files=dict(found.files), version=known) or launch, found)


# --- facts as files -----------------------------------------------------------------------------------------------


def save_facts(path: str, report: Report, asked: dict[str, object]) -> None:
    """What was read, so that it can be judged again elsewhere. Files of the launch, which may hold secrets, are left
    out. Raises OSError."""
    kept = [record for record in records(report) if record.get("k") != "budget-text"]
    value = {"schema": _SCHEMA, "asked": {k: asked.get(k) for k in ("engine", "model")}, "records": kept}
    write_atomically(Path(path), json.dumps(value, indent=1, ensure_ascii=True).encode("ascii"))


def load_facts(path: str) -> Report:
    """Raises Problem with the place of what is wrong."""
    shown = clean(path, 200)
    try:
        if os.path.getsize(path) > _LARGEST:
            raise Problem(f"{shown}: larger than {_LARGEST >> 20} MiB")
        value = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise Problem(f"{shown}: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise Problem(f"{shown}, line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from None
    except (ValueError, RecursionError):
        raise Problem(f"{shown}: not usable as JSON") from None
    found = value.get("records") if isinstance(value, dict) and value.get("schema") == _SCHEMA else None
    if not isinstance(found, list):
        raise Problem(f"{shown}: no facts file", hint="--save-facts FILE makes one")
    report = parse_lines(b"\n".join(json.dumps(record).encode() for record in found))
    if report.garbage or not any(kind.startswith("budget-") for kind in report.kinds):
        raise Problem(f"{shown}: {report.garbage} of its {len(found)} records are none")
    return report


# --- a log --------------------------------------------------------------------------------------------------------


def follow(
    shell: Shell,
    path: str,
    *,
    seconds: float,
    pause: Callable[[float], Any] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[str]:
    """The log's lines, those that are there first, then new ones as they come, until the time is over. A log that
    does not exist yet is waited for. Raises Problem when the machine can't be asked any more."""
    end = clock() + seconds
    at, rest = 0, b""
    while clock() < end:
        said = shell.run(["sh", "-c", _TAIL, "sh", path, str(at), str(_CHUNK)], deadline=30.0)
        if isinstance(said, Broken):
            raise Problem(f"{shell.where}: {said.failure}: {said.detail}")
        head, _, data = said.stdout.partition(b"\n")
        if said.code != 0 or not head.isdigit():
            pause(1.0)  # not there yet, or just being turned over
            continue
        if int(head) < at:
            at, rest = 0, b""
            continue
        at += len(data)
        *whole, rest = (rest + data).split(b"\n")
        rest = rest[-_LONGEST_LINE:]
        yield from (line.decode("utf-8", "replace") for line in whole)
        if not data:
            pause(1.0)


def lines_of(stream: Iterator[str] | Sequence[str]) -> Iterator[str]:
    """Standard input as a log: `journalctl -fu sglang | gpu-recover preflight --here --follow - -- CMD`."""
    for line in stream:
        yield line.rstrip("\n")[:_LONGEST_LINE]
