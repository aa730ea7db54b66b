"""Playbooks come from the package by name or from a file by path, and a broken one is refused with all its problems."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from recover.core.playbook import parse
from recover.model.ladder import Playbook


class PlaybookProblem(Exception):
    """A playbook that can't be used: every problem with its path, and one hint."""

    def __init__(self, problems: tuple[str, ...], hint: str = "") -> None:
        super().__init__("; ".join(problems))
        self.problems = problems
        self.hint = hint


def _folder() -> Traversable:
    """In the wheel they lie inside the package, in a checkout beside it."""
    inside = files("recover").joinpath("playbooks")
    return inside if inside.is_dir() else Path(str(files("recover"))).parent / "playbooks"


def shipped_names() -> tuple[str, ...]:
    folder = _folder()
    return tuple(sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml")))


def shipped_playbooks() -> tuple[Playbook, ...]:
    return tuple(read_playbook(name) for name in shipped_names())


def read_playbook(name_or_file: str) -> Playbook:
    """A word without a slash or ".toml" is a shipped playbook's name. Raises PlaybookProblem."""
    names = shipped_names()
    if name_or_file in names:
        return _parsed(_folder().joinpath(f"{name_or_file}.toml").read_bytes(), name_or_file)
    if "/" not in name_or_file and not name_or_file.endswith(".toml"):
        raise PlaybookProblem((f"playbook {name_or_file}: there is none",), f"shipped are {', '.join(names)}")
    path = Path(name_or_file).expanduser()
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PlaybookProblem((f"{path}: {error.strerror or error}",), "name an existing playbook file") from None
    return _parsed(data, str(path))


def _parsed(data: bytes, source: str) -> Playbook:
    hint = f"correct {source}; gpu-recover playbooks show hung-server is an example"
    try:
        found = parse(tomllib.loads(data.decode("utf-8")), source)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PlaybookProblem((f"{source}: not valid TOML: {error}",), hint) from None
    if isinstance(found, Playbook):
        return found
    raise PlaybookProblem(tuple(f"{source}: {problem}" for problem in found), hint)
