"""Exactly one configuration file is read, and never one that somebody else could have written."""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path

from recover.core.config import Config, parse_config
from recover.edge.store.folder import home

SYSTEM = "/etc/gpu-recover/config.toml"


class ConfigProblem(Exception):
    """No configuration can be had: every problem, and how to get on."""

    def __init__(self, problems: tuple[str, ...], hint: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems
        self.hint = hint


def places(given: str | None, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Where a configuration is looked for, in order. A place that a person named is the only one."""
    if given:
        return (given,)
    if environ.get("GPU_RECOVER_CONFIG"):
        return (environ["GPU_RECOVER_CONFIG"],)
    base = environ.get("XDG_CONFIG_HOME") or str(home(environ) / ".config")
    return (str(Path(base) / "gpu-recover" / "config.toml"), SYSTEM)


def load_config(given: str | None, environ: Mapping[str, str]) -> Config:
    """Find, read and check it. Raises ConfigProblem."""
    searched = places(given, environ)
    for place in searched:
        path = Path(place).expanduser()
        try:
            data = _read(path)
        except FileNotFoundError:
            continue
        return _parsed(path, data)
    if len(searched) == 1:
        where = "--config" if given else "$GPU_RECOVER_CONFIG"
        raise ConfigProblem((f"{searched[0]}: no such file (named by {where})",), "name an existing file")
    raise ConfigProblem(
        ("no configuration found; looked for " + " and ".join(searched),),
        "write one (the README has an example), or name it with --config FILE or $GPU_RECOVER_CONFIG",
    )


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            info = os.fstat(file.fileno())
            _trusted(path, info)
            return file.read()
    except IsADirectoryError:
        raise ConfigProblem((f"{path}: is a folder",), "name the file in it") from None
    except PermissionError as error:
        raise ConfigProblem((f"{path}: {error.strerror}",), "run as a user who may read it") from None
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigProblem((f"{path}: {error.strerror or error}",), "name a readable file") from None


def _trusted(path: Path, info: os.stat_result) -> None:
    """It can name commands that we run, so whoever can write it is us."""
    if not stat.S_ISREG(info.st_mode):
        raise ConfigProblem((f"{path}: is not a regular file",), "name a regular file")
    if info.st_mode & stat.S_IWOTH:
        raise ConfigProblem((f"{path}: everybody may write it",), f"chmod o-w {path}")
    if info.st_uid not in (0, os.geteuid()):
        raise ConfigProblem((f"{path}: belongs to user {info.st_uid}, neither root nor you",), f"chown root {path}")


def _parsed(path: Path, data: bytes) -> Config:
    hint = f"correct {path}"
    try:
        found = tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigProblem((f"{path}: line {line}: not UTF-8 text",), hint) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigProblem((f"{path}: not valid TOML: {error}",), hint) from None
    except RecursionError:
        raise ConfigProblem((f"{path}: not valid TOML: nested too deeply",), hint) from None
    config, problems = parse_config(found, str(path))
    if config is None:
        raise ConfigProblem(problems, hint)
    return config
