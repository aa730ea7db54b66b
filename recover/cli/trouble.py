"""What went wrong, for a person: every problem and the fix; a bug of ours leaves a report and no traceback."""

from __future__ import annotations

import errno
import os
import platform
import sys
import tempfile
import time
import traceback
from pathlib import Path

from recover.cli.common import note
from recover.core.clean import clean
from recover.core.redact import redact, redact_text

_WORLD = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}


def say_problems(problems: tuple[str, ...], hint: str) -> None:
    """On stderr, one line each."""
    for problem in problems:
        note(f"gpu-recover: {clean(problem)}")
    if hint:
        note(f"  {clean(hint)}")


def expected(error: Exception) -> tuple[str, ...] | None:
    """Say an error that is not our fault, and give its problems; None: it is a bug."""
    from recover.edge.config_file import ConfigProblem
    from recover.edge.playbooks import PlaybookProblem
    from recover.edge.store.folder import StateProblem
    from recover.edge.store.journal import JournalDamaged
    from recover.wiring import UsageProblem

    match error:
        case UsageProblem() | ConfigProblem() | PlaybookProblem():
            problems, hint = error.problems, error.hint
        case StateProblem():
            problems, hint = (str(error),), ""
        case JournalDamaged():
            problems, hint = (str(error),), "keep that run's folder for a look, and move it away"
        case OSError() if error.errno in _WORLD:
            where = f"{error.filename}: " if error.filename else ""
            problems = (f"{where}{error.strerror}",)
            hint = "free some space, mend the permission, or name another state folder with --state-dir"
        case _:
            return None
    say_problems(problems, hint)
    return problems


def bug(error: Exception, state_dir: str | None) -> None:
    """Write the report and say where it lies. The exception's own text may hold anything: no terminal sees it."""
    where = _write(_report(error), state_dir)
    note(
        f"gpu-recover: this is a bug in gpu-recover ({type(error).__name__}), not something that you did.\n"
        f"  A report for its makers lies in {where}.\n"
        "  If a run was going on, `gpu-recover TARGET` first puts back what it owes.",
    )


def _report(error: Exception) -> str:
    from recover import __version__

    head = (
        f"gpu-recover {__version__}, Python {platform.python_version()}, {platform.platform()}\n"
        f"at {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}\n"
        f"called as {' '.join(redact(tuple(sys.argv)))}\n\n"
    )
    return head + redact_text("".join(traceback.format_exception(error)))


def _write(report: str, state_dir: str | None) -> str:
    from recover.edge.store.folder import state_folder, write_atomically

    name = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()) + f"-{os.getpid()}.txt"
    for folder in (state_folder(state_dir, os.environ, root=os.geteuid() == 0), Path(tempfile.gettempdir())):
        try:
            path = folder / "bugs" / name
            write_atomically(path, report.encode("utf-8", "backslashreplace"))
        except OSError:
            continue
        return str(path)
    return "no place at all: no folder could be written"
