"""A unit file is read by systemd's rules, which are not a shell's: no substitution, specifiers, prefixes of ExecStart.

Source: systemd.service(5) "Command lines", systemd.exec(5) "Environment", systemd.resource-control(5);
podman-systemd.unit(5) for a container's unit (`[Container]`), which is read as the `podman run` that it becomes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from recover.core.budget.model import Problem
from recover.core.budget.options import Word
from recover.core.budget.sizes import container_size

_SECTION = re.compile(r"^\s*\[(Unit|Service|Install|Container)\]\s*$", re.MULTILINE)
_SETTING = re.compile(r"^[ \t]*([A-Za-z]+)[ \t]*=[ \t]*", re.MULTILINE)
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*)|\$)")


@dataclass(slots=True)
class Unit:
    starts: list[tuple[int, list[Word]]] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    memory_limit: int | None = None
    setting: str = "ExecStart"


# Settings of a container's unit that podman gets as options.
_AS_OPTIONS = {"ShmSize": "--shm-size", "EnvironmentFile": "--env-file", "Entrypoint": "--entrypoint", "Volume": "-v"}


def is_unit(text: str) -> bool:
    return _SECTION.search(text) is not None or re.search(r"^\s*ExecStart\s*=", text, re.MULTILINE) is not None


def read(text: str, files: Mapping[str, str]) -> Unit:
    """Raises Problem for broken quoting, with its place."""
    if re.search(r"^\s*\[Container\]\s*$", text, re.MULTILINE) is not None:
        return _container(text)
    unit = Unit()
    lines: list[tuple[int, int]] = []
    listed: list[str] = []
    for name, start in _settings(text):
        raw, _ = _logical(text, start)
        if name == "Environment":
            words = _words(text, start, {})
            for word in words:
                key, equals, value = word.text.partition("=")
                if equals:
                    unit.env[key] = value
            if not words:
                unit.env.clear()
        elif name == "EnvironmentFile":
            if raw.strip():
                listed.append(raw.strip())
            else:
                listed = []  # an empty one takes back those before it
        elif name == "ExecStart":
            lines = [*lines, (text.count("\n", 0, start) + 1, start)] if raw.strip() else []
        elif name in {"MemoryMax", "MemoryHigh", "MemoryLimit"}:
            limit = container_size(raw.strip())
            if limit is not None:
                unit.memory_limit = min(limit, unit.memory_limit or limit)
    for file in listed:  # their values win over those of Environment=
        _environment_file(file, files, unit)
    for line, start in lines:
        unit.starts.append((line, _words(text, _after_prefix(text, start), unit.env)))
    return unit


def _container(text: str) -> Unit:
    """A Quadlet as the `podman run` that it becomes."""
    unit = Unit(setting="Exec")
    options: list[Word] = []
    image: list[Word] = []
    command: list[Word] = []
    line = 1
    for name, start in _settings(text):
        words = _words(text, start, {}) if name in {"Image", "Exec", "Environment", "PodmanArgs", *_AS_OPTIONS} else []
        if name == "Image":
            image, line = words[:1], text.count("\n", 0, start) + 1
        elif name == "Exec":
            command, line = words, text.count("\n", 0, start) + 1
        elif name == "Environment":
            options += [part for word in words for part in (Word("-e"), word)]
        elif name == "PodmanArgs":
            options += words
        elif name in _AS_OPTIONS and words:
            options += [Word(_AS_OPTIONS[name]), words[0]]
    if image:
        unit.starts.append((line, [Word("podman"), Word("run"), *options, *image, *command]))
    return unit


def environment_lines(text: str) -> list[tuple[str, str]]:
    """The assignments of an environment file, as systemd and docker read it."""
    found = []
    for line in text.splitlines():
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if equals and re.fullmatch(r"[A-Za-z_]\w*", name):
            quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
            found.append((name, value[1:-1] if quoted else value))
    return found


def _settings(text: str) -> Iterator[tuple[str, int]]:
    at = 0
    while (found := _SETTING.search(text, at)) is not None:
        yield found[1], found.end()
        at = _logical(text, found.end())[1]


def _logical(text: str, start: int) -> tuple[str, int]:
    """The value from `start` over its continuations, and where it ends."""
    at = start
    while True:
        end = text.find("\n", at)
        if end < 0:
            return text[start:], len(text)
        if not text[at:end].rstrip("\r").endswith("\\"):
            return text[start:end], end
        at = _over_comments(text, end + 1, len(text))


def _environment_file(name: str, files: Mapping[str, str], unit: Unit) -> None:
    path = name.removeprefix("-")
    if path in files:
        unit.env.update(environment_lines(files[path]))
    elif path:
        unit.missing.append(path)


def _after_prefix(text: str, start: int) -> int:
    while text[start : start + 1] in {"@", "-", ":", "+", "!", "|"}:
        start += 1
    return start


def _words(text: str, start: int, env: Mapping[str, str]) -> list[Word]:
    """The words of one setting."""
    words: list[Word] = []
    at, end = start, _logical(text, start)[1]
    while at < end:
        char = text[at]
        if char in " \t\r\n":
            at += 1
            if char == "\n":
                at = _over_comments(text, at, end)
        elif char == "\\" and text[at + 1 : at + 3].lstrip("\r")[:1] in {"\n", ""}:
            at += 1
        else:
            at = _word(text, at, end, env, words)
    return words


def _over_comments(text: str, at: int, end: int) -> int:
    while at < end and text[at:end].lstrip(" \t")[:1] in {"#", ";"}:
        following = text.find("\n", at, end)
        at = end if following < 0 else following + 1
    return at


def _word(text: str, at: int, end: int, env: Mapping[str, str], words: list[Word]) -> int:
    start, value, quote, opening = at, "", "", at
    while at < end:
        char = text[at]
        if quote:
            if char == quote:
                quote = ""
            else:
                value += char
        elif char in " \t\r\n":
            break
        elif char in "'\"":
            quote, opening = char, at
        elif char == "\\" and at + 1 < end:
            if text[at + 1] in "\r\n":
                break
            at += 1
            value += text[at]
        else:
            value += char
        at += 1
    if quote:
        line = text.count("\n", 0, opening) + 1
        column = opening - (text.rfind("\n", 0, opening) + 1) + 1
        raise Problem(f"line {line}, column {column}: the quote that opens here is not closed")
    words += _expanded(value, (start, at) if text[start:at] == value else None, env)
    return at


def _expanded(value: str, span: tuple[int, int] | None, env: Mapping[str, str]) -> list[Word]:
    if re.search(r"%[a-zA-Z]", value.replace("%%", "")) and not value.startswith("{"):
        return [Word(value, None, "a specifier of systemd's stands in it", partial=value)]
    names = [m[1] or m[2] for m in _VARIABLE.finditer(value) if m[1] or m[2]]
    if not names and "$$" not in value and "%%" not in value:
        return [Word(value, span)]
    unset = next((n for n in names if n not in env), None)
    alone = re.fullmatch(r"\$[A-Za-z_]\w*", value) is not None  # only then does systemd split it into words
    if unset is not None:
        return [Word(value, None, f"${unset} is not set in this unit", many=alone, partial=value)]
    text = _VARIABLE.sub(lambda m: env[m[1] or m[2]] if m[1] or m[2] else "$", value).replace("%%", "%")
    return [Word(part) for part in text.split()] if alone else [Word(text)]
