"""A file tree out of layers, as overlayfs would show it: read-only, and links in it never lead out of it.

The upper layer comes first, a character device 0:0 hides what lies below it, and an opaque folder all of it (the kernel's
Documentation/filesystems/overlayfs.rst).
"""

import fnmatch
import os
import posixpath
import re
import stat

from recover.guest.wire import read_or

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterator, List, Optional, Tuple

_LINKS = 40
_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")


class View:
    """One file tree out of layers, the upper one first. Paths inside begin with a slash; links never lead outside."""

    def __init__(self, roots: "List[str]") -> None:
        self._layers = {"": [root.rstrip("/") for root in roots]}  # type: Dict[str, List[str]]

    def layers(self, path: str) -> "List[str]":
        """The folders that make up one folder."""
        if path not in self._layers:
            found = []
            for layer in self.layers(posixpath.dirname(path).rstrip("/")):
                place = layer + "/" + posixpath.basename(path)
                mode = _mode(place)
                if mode is None:
                    continue
                if not stat.S_ISDIR(mode):
                    break
                found.append(place)
                if _opaque(place):
                    break
            self._layers[path] = found
        return self._layers[path]

    def place(self, path: str) -> "Optional[str]":
        """Where a file or folder lies on this machine; a link is not followed."""
        for layer in self.layers(posixpath.dirname(path).rstrip("/")):
            place = layer + "/" + posixpath.basename(path)
            mode = _mode(place)
            if mode is not None:
                return None if _hides(place, mode) else place
        return None

    def real(self, path: str) -> "Optional[str]":
        """The same path without links; None where there is nothing."""
        done, todo = "", path.split("/")
        links = 0
        while todo:
            part = todo.pop(0)
            if part in ("", "."):
                continue
            if part == "..":
                done = posixpath.dirname(done).rstrip("/")
                continue
            place = self.place(done + "/" + part)
            if place is None:
                return None
            if os.path.islink(place):
                links += 1
                target = os.readlink(place)
                if links > _LINKS:
                    return None
                done = "" if target.startswith("/") else done
                todo[:0] = target.split("/")
            else:
                done += "/" + part
        return done

    def names(self, path: str) -> "List[str]":
        found = {}  # type: Dict[str, bool]
        for layer in self.layers(path):
            try:
                names = os.listdir(layer)
            except OSError:
                continue
            for name in names:
                if name not in found:
                    mode = _mode(layer + "/" + name)
                    found[name] = mode is not None and not _hides(layer + "/" + name, mode)
        return sorted(name for name, seen in found.items() if seen)

    def is_folder(self, path: str) -> bool:
        return bool(self.layers(path))

    def text(self, path: str) -> str:
        place = self.place(path)
        return read_or(place) if place is not None and not os.path.islink(place) else ""

    def glob(self, pattern: str) -> "List[str]":
        found = [""]
        for part in pattern.strip("/").split("/"):
            plain = not re.search(r"[*?[]", part)
            found = [
                known + "/" + name
                for known in found
                for name in ([part] if plain else fnmatch.filter(self.names(known), part))
                if self.is_folder(known + "/" + name)
            ]
        return found

    def files(self, path: str, base: str = "") -> "Iterator[Tuple[str, str]]":
        """(path below the folder's parent, place) of every file. Links are left out."""
        base = base or posixpath.dirname(path)
        for name in self.names(path):
            inner = path + "/" + name
            if self.is_folder(inner):
                if name != "__pycache__" and not name.startswith("."):
                    for pair in self.files(inner, base):
                        yield pair
                continue
            place = self.place(inner)
            if place is not None and not os.path.islink(place):
                yield posixpath.relpath(inner, base), place


def _mode(place: str) -> "Optional[int]":
    try:
        return os.lstat(place).st_mode
    except OSError:
        return None


def _hides(place: str, mode: int) -> bool:
    return stat.S_ISCHR(mode) and os.lstat(place).st_rdev == 0


def _opaque(place: str) -> bool:
    for name in _OPAQUE:
        try:
            if os.getxattr(place, name, follow_symlinks=False) == b"y":
                return True
        except OSError:
            continue
    return False
