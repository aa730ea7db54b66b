"""How targets stand between two checks, on disk: one file per target, whole or damaged and named, never guessed.

`watch/TARGET.json` is the standing with what nobody was told yet, `watch/TARGET.jsonl` its changes, one a line. A
change is on disk before anybody is told, and is told again if whoever was to tell it died: twice rather than never.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from recover.core.codec import Garbled, decode, encode
from recover.edge.store.folder import StateFolder, safe_name, write_atomically
from recover.model.watch import Judged, Standing, Status, Transition
from recover.ports import Kept, StandingStep

LOCK_S = 10.0  # a step takes milliseconds; who holds the lock for longer hangs, and is named
TELL_AGAIN_S = 300.0  # whoever was to tell it had more than enough time for that
JOURNAL_BYTES = 1 << 20  # then the older half goes
_POLL_S = 0.02


class Damaged(Exception):
    """A file of the watch can't be read; the text names it."""


class FileStandings:
    """Below STATE/watch. Safe among threads and processes: a lock per target, never deleted."""

    def __init__(self, state: StateFolder) -> None:
        self._folder = state.root / "watch"

    def step(self, target: str, step: StandingStep, at: float) -> Kept:
        """Load, step, journal, save. Never raises: what failed is in `trouble`, and then nothing was saved."""
        try:
            with locked(self._path(target, ".lock"), LOCK_S):
                return self._step(target, step, at)
        except (OSError, TimeoutError) as error:
            standing, change = step(Standing(target))
            why = f"how {target} stands can't be kept in {self._folder}: {_said(error)}"
            return Kept(standing, change, (), (why,))

    def told(self, target: str, changes: tuple[Transition, ...]) -> tuple[str, ...]:
        """These were told: not again. Gives what went wrong."""
        try:
            with locked(self._path(target, ".lock"), LOCK_S):
                standing, untold = self._load(target)
                self._save(standing, tuple(c for c in untold if c not in changes))
        except (OSError, TimeoutError, Damaged) as error:
            return (f"{target}: what was told may be told again: {_said(error)}",)
        return ()

    def read(self, target: str) -> Standing | str:
        """The standing as it is on disk, a new one where there is none, or why it can't be read."""
        try:
            return self._load(target)[0]
        except (OSError, Damaged) as error:
            return _said(error)

    def changes(self, target: str) -> tuple[Transition, ...]:
        """All that are journaled, the oldest first. Lines that can't be read are left out."""
        return tuple(read_changes(self._path(target, ".jsonl")))

    def _step(self, target: str, step: StandingStep, at: float) -> Kept:
        trouble: tuple[str, ...] = ()
        try:
            before, untold = self._load(target)
        except Damaged as error:
            before, untold = Standing(target), ()
            trouble = (f"{error}: {self._put_aside(target)}; what was known of {target} begins anew",)
        after, change = step(before)
        if change is not None:
            _append(self._path(target, ".jsonl"), change)
            untold = (*untold, change)
        if after != before or change is not None or trouble:
            # Waiting for the disk costs hundreds of targets seconds at each check: only for what was told or is owed.
            self._save(after, untold, lasts=bool(untold) or _is(after) != _is(before))
        due = tuple(c for c in untold if c is change or not 0 <= at - c.at < TELL_AGAIN_S)
        return Kept(after, change, due, trouble)

    def _load(self, target: str) -> tuple[Standing, tuple[Transition, ...]]:
        path = self._path(target, ".json")
        try:
            data = json.loads(path.read_bytes())
            standing, untold = decode(data["standing"], str(path)), decode(data["untold"], str(path))
        except FileNotFoundError:
            return Standing(target), ()
        except (ValueError, KeyError, TypeError, RecursionError, Garbled) as error:
            raise Damaged(f"{path} can't be read: {type(error).__name__}") from None
        if not _whole(standing, untold) or standing.target != target:
            raise Damaged(f"{path} holds no standing of {target}")
        return standing, untold

    def _save(self, standing: Standing, untold: tuple[Transition, ...], *, lasts: bool = True) -> None:
        data = json.dumps({"standing": encode(standing), "untold": encode(untold)}, ensure_ascii=True)
        write_atomically(self._path(standing.target, ".json"), data.encode() + b"\n", lasts=lasts)

    def _put_aside(self, target: str) -> str:
        path = self._path(target, ".json")
        aside = path.with_name(f"{path.name}.damaged")
        os.replace(path, aside)
        return f"it is kept as {aside.name}"

    def _path(self, target: str, end: str) -> Path:
        return self._folder / f"{safe_name(target)}{end}"


@contextlib.contextmanager
def locked(path: Path, within_s: float) -> Iterator[None]:
    """Hold the lock file `path`. Raises TimeoutError, OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        until = time.monotonic() + within_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise TimeoutError(f"{path} is held by another process for over {within_s:g} s") from None
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(fd)


def read_changes(path: Path) -> Iterator[Transition]:
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return
    for line in lines:
        with contextlib.suppress(ValueError, Garbled, TypeError):
            found = decode(json.loads(line), str(path))
            if isinstance(found, Transition):
                yield found


def _append(path: Path, change: Transition) -> None:
    """On disk when it returns. A line that a crash tore is ended first, so that it spoils no other."""
    line = json.dumps(encode(change), ensure_ascii=True, separators=(",", ":")).encode() + b"\n"
    if path.exists() and path.stat().st_size > JOURNAL_BYTES:
        lines = path.read_bytes().splitlines(keepends=True)
        write_atomically(path, b"".join(lines[len(lines) // 2 :]))
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(fd).st_size
        torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
        done, data = 0, (b"\n" if torn else b"") + line
        while done < len(data):
            done += os.write(fd, data[done:])
        os.fsync(fd)
    finally:
        os.close(fd)


def _whole(standing: object, untold: object) -> bool:
    """Types as they must be, also deep inside: a file that somebody edited must not fail later, in the middle."""

    def judged(value: object) -> bool:
        return (
            isinstance(value, Judged)
            and isinstance(value.at, (int, float))
            and isinstance(value.status, Status)
            and isinstance(value.signals, tuple)
            and all(isinstance(s, str) for s in value.signals)
            and isinstance(value.says, str)
        )

    return (
        isinstance(standing, Standing)
        and isinstance(standing.target, str)
        and (standing.state is None or judged(standing.state))
        and isinstance(standing.since, (int, float))
        and isinstance(standing.recent, tuple)
        and all(judged(r) for r in standing.recent)
        and isinstance(standing.changed, tuple)
        and all(isinstance(at, (int, float)) for at in standing.changed)
        and isinstance(standing.flapping, bool)
        and isinstance(standing.symptoms, tuple)
        and all(isinstance(s, tuple) and list(map(type, s)) == [str, int, float] for s in standing.symptoms)
        and isinstance(untold, tuple)
        and all(isinstance(c, Transition) and isinstance(c.at, (int, float)) and judged(c.after) for c in untold)
    )


def _is(standing: Standing) -> tuple[Status | None, bool]:
    return standing.state.status if standing.state is not None else None, standing.flapping


def _said(error: BaseException) -> str:
    return str(getattr(error, "strerror", None) or error)
