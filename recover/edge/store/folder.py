"""Where state lives, and that it can be written: found out before anything is done, not in the middle."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, unquote

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class StateProblem(Exception):
    """The state folder cannot be used; the text names it and the fix."""


def state_folder(given: str | None, environ: Mapping[str, str], *, root: bool) -> Path:
    """`--state-dir`, `$GPU_RECOVER_STATE`, /var/lib as root, else the XDG place; not created here."""
    if given:
        return Path(given).expanduser()
    if environ.get("GPU_RECOVER_STATE"):
        return Path(environ["GPU_RECOVER_STATE"]).expanduser()
    if root:
        return Path("/var/lib/gpu-recover")
    base = environ.get("XDG_STATE_HOME") or str(home(environ) / ".local" / "state")
    return Path(base) / "gpu-recover"


def home(environ: Mapping[str, str]) -> Path:
    """The home folder; `/` for a user that has none, as systemd's DynamicUser= and `docker run --user` make them."""
    found = os.path.expanduser(environ.get("HOME") or "~")
    return Path("/" if found.startswith("~") else found)


def safe_name(name: str) -> str:
    """A file name for any target name; two names never share one."""
    return name if _SAFE.fullmatch(name) else "%" + quote(name, safe="")


def plain_name(file_name: str) -> str:
    """The name that `safe_name` made this file name of."""
    return unquote(file_name[1:]) if file_name.startswith("%") else file_name


class StateFolder:
    """Paths below the state folder. Created private: journals tell what runs on a node."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def ready(self) -> None:
        """Create the folder and prove that it can be written. Raises StateProblem."""
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.NamedTemporaryFile(dir=self.root, prefix=".probe-") as probe:
                probe.write(b"\0" * 65536)
                probe.flush()
                os.fsync(probe.fileno())
        except OSError as error:
            raise StateProblem(
                f"state folder {self.root}: cannot be written: {error.strerror or error}. "
                "Free some space or name another folder with --state-dir or $GPU_RECOVER_STATE"
            ) from error

    def target(self, name: str) -> Path:
        return self.root / "targets" / safe_name(name)

    def runs(self, name: str) -> list[Path]:
        """The run folders of a target, oldest first (their names begin with the time)."""
        folder = self.target(name) / "runs"
        return sorted(p for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []

    def run(self, name: str, run: str) -> Path:
        return self.target(name) / "runs" / safe_name(run)

    def all_runs(self) -> list[Path]:
        """The run folders of all targets."""
        return sorted(p for p in (self.root / "targets").glob("*/runs/*") if p.is_dir())

    def find_run(self, run: str) -> Path | None:
        """The folder of a run of any target, by its id."""
        for folder in sorted((self.root / "targets").glob("*/runs/*")):
            if folder.name == safe_name(run):
                return folder
        return None

    def target_names(self) -> list[str]:
        folder = self.root / "targets"
        return sorted(plain_name(p.name) for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []


def write_atomically(path: Path, data: bytes, *, lasts: bool = True) -> None:
    """The file is there whole or not at all. `lasts` False: after a power cut it may be an older one, or empty.

    Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            if lasts:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    if lasts:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a new name in `folder` survive a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
