"""An engine's version is compared by what was released before and after it; a source build lies between releases."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FORM = re.compile(
    r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:\.\d+)*(?P<pre>[-._]?(?:a|b|c|rc|alpha|beta|pre)[-._]?\d*)?"
    r"(?P<post>[-._]?post[-._]?\d*)?(?P<dev>[-._]?dev[-._]?\d*)?(?P<local>\+[\w.]+)?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Version:
    """`between`: a pre-release or a source build, so that it is somewhere before `release`."""

    release: tuple[int, int, int]
    text: str
    between: bool = False

    def __str__(self) -> str:
        return self.text


def version(text: str) -> Version | None:
    """None for what has no release number, as "0.0.0.dev0+unknown" of a checkout without tags or a commit hash."""
    found = _FORM.fullmatch(text.strip())
    if found is None or len(text) > 80:
        return None
    release = (int(found[1]), int(found[2]), int(found[3] or 0))
    if release == (0, 0, 0):
        return None
    return Version(release, text.strip().lstrip("vV"), between=bool(found["pre"] or found["dev"]))


def numbers(text: str) -> tuple[int, int, int]:
    """A release as written in the tables."""
    first, second, third = (int(n) for n in text.split("."))
    return first, second, third
