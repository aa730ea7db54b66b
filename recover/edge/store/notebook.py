"""What was told to whom, in one file that several processes share; and a log of every message and hook beside it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from recover.core.codec import Garbled, decode, encode
from recover.edge.store.folder import write_atomically
from recover.model.notice import Notebook

WAIT_S = 5.0  # for another process that changes the notebook: it takes milliseconds
LOG_BYTES = 1 << 20


class NotebookFile:
    """`folder`/notebook.json. What can't be read or written is said by `trouble`, and never raised."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._book = Notebook()  # where no file can be written, at least this process tells nothing twice
        self._bad: list[str] = []

    def trouble(self) -> tuple[str, ...]:
        """What went wrong since the last question, each once."""
        said, self._bad = tuple(dict.fromkeys(self._bad)), []
        return said

    def read(self) -> Notebook:
        path = self._folder / "notebook.json"
        try:
            found = decode(json.loads(path.read_bytes()), str(path))
        except FileNotFoundError:
            return self._book
        except OSError as error:
            self._bad.append(f"{path}: {error.strerror or error}")
            return self._book
        except (ValueError, Garbled) as error:
            return self._put_away(path, str(error))
        return found if isinstance(found, Notebook) else self._put_away(path, "not a notebook")

    def _put_away(self, path: Path, why: str) -> Notebook:
        """Damaged: what was told is forgotten, so something may be told again; better than never."""
        self._bad.append(f"{path}: {why}; put away as {path.name}.damaged, and begun anew")
        with contextlib.suppress(OSError):
            os.replace(path, path.with_name(f"{path.name}.damaged"))
        return self._book

    def change(self, how: Callable[[Notebook], Notebook]) -> Notebook:
        """Read, change and write it, one process at a time."""
        with self._locked("lock", WAIT_S):
            before = self.read()
            self._book = how(before)
            if self._book != before:
                try:
                    write_atomically(self._folder / "notebook.json", json.dumps(encode(self._book)).encode() + b"\n")
                except OSError as error:
                    self._bad.append(f"{self._folder}: {error.strerror or error}")
        return self._book

    @contextlib.contextmanager
    def turn(self, name: str) -> Iterator[bool]:
        """Whether it is ours to do now: who holds this does what the others have written down."""
        with self._locked(name, 0.0) as mine:
            yield mine

    @contextlib.contextmanager
    def _locked(self, name: str, wait_s: float) -> Iterator[bool]:
        """A lock that a crash releases. Without it (a folder that can't be written) one goes on alone."""
        fd = -1
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            fd = os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            mine = _take(fd, wait_s)
        except OSError as error:
            self._bad.append(f"{self._folder}: {error.strerror or error}")
            mine = True
        try:
            yield mine
        finally:
            if fd >= 0:
                os.close(fd)

    def log(self, **said: Any) -> None:
        """One line more in told.jsonl; two files of 1 MiB at most."""
        path = self._folder / "told.jsonl"
        try:
            if path.exists() and path.stat().st_size > LOG_BYTES:
                os.replace(path, path.with_name("told.1.jsonl"))
            with open(path, "a", encoding="utf-8", opener=_private) as file:
                file.write(json.dumps({"at": round(time.time(), 3), **said}) + "\n")
        except OSError as error:
            self._bad.append(f"{path}: {error.strerror or error}")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _take(fd: int, wait_s: float) -> bool:
    until = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(0.02)
        else:
            return True
