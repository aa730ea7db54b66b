"""A report on disk: whole or not at all; a device or pipe that is named is written to, never replaced."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from recover.edge.store.folder import write_atomically


def write_report(path: Path, text: str) -> None:
    """Raises OSError. A new file is readable for whom the umask lets: whoever names a place means to share it."""
    data = text.encode("utf-8", "backslashreplace")
    place = path.resolve()  # a link's own place stays a link
    found = place.stat().st_mode if place.exists() else None
    if found is not None and not stat.S_ISREG(found):
        with open(place, "wb") as file:  # /dev/stdout, a FIFO; a folder says so itself
            file.write(data)
        return
    if not place.parent.is_dir():
        raise FileNotFoundError(2, os.strerror(2), str(place.parent))
    write_atomically(place, data)
    os.chmod(place, stat.S_IMODE(found) if found is not None else 0o666 & ~_umask())


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def way(page: Path, to: Path) -> str:
    """From the folder of a page to a file, for a link."""
    return os.path.relpath(to.resolve(), page.resolve().parent)
