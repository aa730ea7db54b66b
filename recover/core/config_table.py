"""A table of a settings file is asked for its keys by type; what is wrong is collected with its path, never raised."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

from recover.core.duration import duration

T = TypeVar("T")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SECRET_KEY = re.compile(r"secret|passw|passphrase|token|credential|api_?key", re.IGNORECASE)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B)")
_SIZES = {
    "KiB": 1 / 1024, "MiB": 1.0, "GiB": 1024.0, "TiB": 1024.0**2,
    "KB": 1e3 / 2**20, "MB": 1e6 / 2**20, "GB": 1e9 / 2**20, "TB": 1e12 / 2**20,
}  # fmt: skip
FORMS = '{ file = "PATH" } or { env = "NAME" } or { command = ["pass", "show", "…"] }'


@dataclass(frozen=True, slots=True)
class SecretFile:
    path: str


@dataclass(frozen=True, slots=True)
class SecretEnv:
    name: str


@dataclass(frozen=True, slots=True)
class SecretCommand:
    argv: tuple[str, ...]


SecretSource = SecretFile | SecretEnv | SecretCommand  # where a secret is found, never the secret


def nearest(word: str, choices: Mapping[str, Any] | tuple[str, ...] | list[str]) -> str:
    """The choice that was probably meant, or an empty string."""
    lower = {str(c).lower(): str(c) for c in choices}
    found = get_close_matches(word.lower(), list(lower), n=1, cutoff=0.6)
    return lower[found[0]] if found else ""


class Table:
    """One TOML table: asked for its keys by type; remembers what was asked, and calls the rest unknown."""

    def __init__(self, data: Mapping[str, Any], path: str, problems: list[str]) -> None:
        self.data = data
        self.path = path
        self.asked: list[str] = []
        self.problems = problems

    def at(self, key: str) -> str:
        shown = key if _NAME.fullmatch(key) and "." not in key else _quoted(key)
        return f"{self.path}.{shown}" if self.path else shown

    def wrong(self, key: str, says: str) -> None:
        self.problems.append(f"{self.at(key)}: {says}")

    def _get(self, key: str) -> Any:
        self.asked.append(key)
        return self.data.get(key)

    def has(self, key: str) -> bool:
        return key in self.data

    def text(self, key: str, check: Callable[[str], str] | None = None, *, need: str = "") -> str:
        """A string; `check` gives what is wrong with it, `need` says what is missing without it."""
        value = self._get(key)
        if value is None:
            if need and not self.has(key):
                self.wrong(key, f"missing: {need}")
            return ""
        if not isinstance(value, str):
            self.wrong(key, f"expected a string, got {_shown(key, value)}")
            return ""
        says = "is empty" if not value.strip() else _control(value) or (check(value) if check else "")
        if says:
            self.wrong(key, says)
        return value

    def integer(self, key: str, least: int, most: int) -> int | None:
        value = self._get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            self.wrong(key, f"expected an integer, got {_shown(key, value)}")
        elif not least <= value <= most:
            self.wrong(key, f"expected {least} to {most}, got {value}")
        else:
            return value
        return None

    def get(self, key: str) -> Any:
        """The bare value, asked for: what has no method of its own here is checked by who asks."""
        return self._get(key)

    def flag(self, key: str) -> bool:
        value = self._get(key)
        if value is not None and not isinstance(value, bool):
            self.wrong(key, f"expected true or false, got {_shown(key, value)}")
        return value is True

    def duration(self, key: str, least: float, most: float) -> float | None:
        """Seconds, written as "30s", "2m" or "1h"."""
        value = self._get(key)
        if value is None:
            return None
        seconds = duration(value)
        if seconds is None:
            self.wrong(key, f'expected a duration like "30s", "2m" or "1h", got {_shown(key, value)}')
        elif not least <= seconds <= most:
            self.wrong(key, f"expected {least:g}s to {most:g}s, got {value}")
        else:
            return seconds
        return None

    def texts(self, key: str, check: Callable[[str], str] | None = None) -> tuple[str, ...]:
        value = self._get(key)
        if value is None:
            return ()
        if not isinstance(value, list):
            self.wrong(key, f"expected a list of strings, got {_shown(key, value)}")
            return ()
        for i, item in enumerate(value):
            if not isinstance(item, str):
                self.problems.append(f"{self.at(key)}[{i}]: expected a string, got {_shown(key, item)}")
            elif says := ("is empty" if not item.strip() else _control(item) or (check(item) if check else "")):
                self.problems.append(f"{self.at(key)}[{i}]: {says}")
        return tuple(item for item in value if isinstance(item, str))

    def size(self, key: str) -> int | None:
        value = self._get(key)
        if value is None:
            return None
        found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
        if found is None:
            self.wrong(key, f'expected a size like "440GiB", got {_shown(key, value)}')
            return None
        return int(float(found[1]) * _SIZES[found[2]])

    def table(self, key: str, parse: Callable[[Table], T]) -> T | None:
        value = self._get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.wrong(key, f"expected a table [{self.at(key)}], got {_shown(key, value)}")
            return None
        inner = Table(value, self.at(key), self.problems)
        parsed = parse(inner)
        inner.done()
        return parsed

    def rows(self, key: str, parse: Callable[[Table], T]) -> tuple[T, ...]:
        """A list of tables: [[maintenance]], counted from 0."""
        value = self._get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
            self.wrong(key, f"expected tables [[{self.at(key)}]], got {_shown(key, value)}")
            return ()
        found = []
        for i, item in enumerate(value):
            inner = Table(item, f"{self.at(key)}[{i}]", self.problems)
            found.append(parse(inner))
            inner.done()
        return tuple(found)

    def tables(self, key: str, parse: Callable[[Table, str], T]) -> dict[str, T]:
        """A table of named tables: [targets.NAME]."""
        value = self._get(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.wrong(key, f"expected tables [{key}.NAME], got {_shown(key, value)}")
            return {}
        outer = Table(value, self.at(key), self.problems)
        found: dict[str, T] = {}
        for name in value:
            if not _NAME.fullmatch(name):
                outer.wrong(name, "a name has letters, digits, '.', '_' and '-', and begins with a letter or digit")
            parsed = outer.table(name, lambda table, name=name: parse(table, name))  # type: ignore[misc]
            if parsed is not None:
                found[name] = parsed
        return found

    def secret(self, key: str) -> SecretSource | None:
        """Where a secret is found. A secret that stands here is refused, and not repeated in the refusal."""
        value = self._get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.wrong(key, f"a secret may not stand in the configuration: move it and write {key} = {FORMS}")
            return None
        return self.table(key, _secret)

    def done(self) -> None:
        for key in self.data:
            if key in self.asked:
                continue
            if _SECRET_KEY.search(key):
                self.wrong(key, "unknown key, and no secret may stand in the configuration" + self._meant(key))
            else:
                self.wrong(key, "unknown key" + self._meant(key))

    def _meant(self, key: str) -> str:
        close = nearest(key, list(dict.fromkeys(self.asked)))
        return f": did you mean {close!r}?" if close else f" (known: {', '.join(dict.fromkeys(self.asked))})"


def _secret(table: Table) -> SecretSource | None:
    file, env, argv = table.text("file"), table.text("env"), table.texts("command")
    given = [key for key in ("file", "env", "command") if table.has(key)]
    if len(given) != 1:
        table.problems.append(f"{table.path}: expected exactly one of {FORMS}")
        return None
    if file:
        return SecretFile(file)
    if env:
        return SecretEnv(env)
    if not argv:
        table.wrong(given[0], "is empty")
        return None
    return SecretCommand(argv)


def _quoted(text: str) -> str:
    """A key that is no plain name, as it may be shown."""
    return '"' + "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text[:80]) + '"'


def _shown(key: str, value: Any) -> str:
    """A value for a message; none for what may be a secret."""
    kind = {bool: "a boolean", int: "an integer", float: "a number", str: "a string", list: "a list"}
    if _SECRET_KEY.search(key) or isinstance(value, (list, Mapping)):
        return kind.get(type(value), "a table")
    return repr(value)[:80]


def _control(value: str) -> str:
    return "" if value.isprintable() else "holds control characters"
