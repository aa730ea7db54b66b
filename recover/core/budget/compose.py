"""A compose file is YAML with `${NAME:-default}` in it; each service is one container.

Source: the Compose specification, "Interpolation", "command", "entrypoint", "environment", "shm_size", "mem_limit".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from recover.core.budget.commands import HEARD, Found
from recover.core.budget.containers import CONTAINER_SHM, PRIVATE_IPC, contained
from recover.core.budget.model import Problem
from recover.core.budget.options import Word
from recover.core.budget.shell_holes import as_written, hole, may_be_many, plain, why_unclear, words_of_quoted
from recover.core.budget.sizes import container_size, count
from recover.core.budget.systemd import environment_lines
from recover.core.clean import clean

_HOLE = re.compile(r"\$\$|\$\{([A-Za-z_]\w*)(?:(:?[-?])([^}]*))?\}|\$([A-Za-z_]\w*)")


@dataclass(slots=True)
class Service:
    name: str
    image: str
    entrypoint: list[Word]
    words: list[Word]
    env: dict[str, str]
    memory_limit: int | None
    shm_size: int | None
    missing: list[str]
    unclear: list[tuple[str, str]]
    assumed: list[str] = field(default_factory=list)
    copies: int = 1

    def found(self) -> Found | None:
        state = Found("", [], wrapper="compose", env=list(self.env.items()))
        state.memory_limit, state.shm_size = self.memory_limit, self.shm_size
        state.unclear, state.env_files = list(self.unclear), list(self.missing)
        return contained(self.image, self.entrypoint, self.words, state)


def is_compose(text: str) -> bool:
    return re.search(r"^services\s*:", text, re.MULTILINE) is not None


def load_documents(text: str, name: str) -> list[Any]:
    """All documents of a text. Raises Problem with the place of what is wrong."""
    found = load_yaml(text, name, many=True)
    return found if isinstance(found, list) else []


def load_yaml(text: str, name: str, *, many: bool = False) -> Any:
    """The document. Raises Problem with the place of what is wrong."""
    import yaml  # few launches come in YAML, and it takes longer to load than all else here

    try:
        return list(yaml.safe_load_all(text)) if many else yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        said = clean(str(getattr(error, "problem", None) or "not YAML"), 120)
        raise Problem(f"{name}{place}: {said}") from None
    except (ValueError, RecursionError) as error:  # a timestamp that is none, nesting without end
        raise Problem(f"{name}: not usable as YAML: {type(error).__name__}") from None


def read(text: str, files: Mapping[str, str], env: Mapping[str, str]) -> list[Service]:
    """All services. Raises Problem."""
    document = load_yaml(text, "compose file")
    services = document.get("services") if isinstance(document, dict) else None
    if not isinstance(services, dict):
        raise Problem("compose file: services is no table")
    around = {**dict(environment_lines(files.get(".env", ""))), **env}
    return [_service(str(name), said, around, files) for name, said in services.items() if isinstance(said, dict)]


def _service(name: str, said: Mapping[Any, Any], around: Mapping[str, str], files: Mapping[str, str]) -> Service:
    assumed: list[str] = []
    service = Service(
        name=clean(name, 60),
        image=_filled(str(said.get("image", "")), around, assumed).text,
        entrypoint=_words(said.get("entrypoint"), around, assumed, name),
        words=_words(said.get("command"), around, assumed, name),
        env={},
        memory_limit=_limit(said, around),
        shm_size=_shm(said, around),
        missing=[],
        unclear=[],
        assumed=assumed,
    )
    for path in _paths(said.get("env_file")):
        if path in files:
            service.env.update(environment_lines(files[path]))
        else:
            service.missing.append(path)
    _environment(said.get("environment"), around, service)
    _replicas(said, around, service)
    if "extends" in said:
        service.unclear.append(("extends", "what another service gives is not read"))
    return service


def _replicas(said: Mapping[Any, Any], around: Mapping[str, str], service: Service) -> None:
    number = said.get("scale", within(said, "deploy", "replicas"))
    if number is None:
        return
    word = _filled(str(number), around, service.assumed)
    if word.unclear:
        service.unclear.append((f"replicas {clean(word.text, 60)}", word.unclear))
    else:
        service.copies = max(1, count(word.text, f"service {service.name}: replicas", least=0, most=64))


def _shm(said: Mapping[Any, Any], around: Mapping[str, str]) -> int | None:
    """What /dev/shm holds; None: what the machine's does."""
    if "shm_size" in said:
        return container_size(_filled(str(said["shm_size"]), around, []).text)
    mounts = [str(v.get("target", "")) if isinstance(v, dict) else str(v) for v in as_list(said.get("volumes"))]
    mounts += [str(t) for t in as_list(said.get("tmpfs"))]
    own = str(said.get("ipc", "")) not in PRIVATE_IPC
    return None if own or any("/dev/shm" in mount for mount in mounts) else CONTAINER_SHM


def _environment(said: Any, around: Mapping[str, str], service: Service) -> None:
    pairs = said.items() if isinstance(said, dict) else [scalar(s).partition("=")[::2] for s in as_list(said)]
    for name, value in pairs:
        text = around.get(str(name)) if value is None else scalar(value)
        if text is None:
            continue
        word = _filled(text, around, service.assumed)
        if word.unclear and str(name).startswith(HEARD):
            service.unclear.append((f"{clean(str(name), 60)}={clean(word.text, 60)}", word.unclear))
        elif not word.unclear:
            service.env[str(name)] = word.text


def _limit(said: Mapping[Any, Any], around: Mapping[str, str]) -> int | None:
    found = said.get("mem_limit") or within(said, "deploy", "resources", "limits", "memory")
    return container_size(_filled(str(found), around, []).text) if found else None


def _paths(said: Any) -> list[str]:
    return [str(p.get("path", "")) if isinstance(p, dict) else str(p) for p in as_list(said)]


def within(said: Any, *names: str) -> Any:
    """What stands under these names, each inside the one before it; None where one is missing or is no table."""
    for name in names:
        said = said.get(name) if isinstance(said, dict) else None
    return said


def as_list(said: Any) -> list[Any]:
    if said is None:
        return []
    return list(said) if isinstance(said, list | tuple) else [said]


def _words(said: Any, around: Mapping[str, str], assumed: list[str], service: str) -> list[Word]:
    """A string is split as a shell does, without its expansions: those are made by compose, or inside the container."""
    if not isinstance(said, str):
        return [_filled(scalar(s), around, assumed) for s in as_list(said)]
    filled = _filled(said, around, assumed, keep=True)
    try:
        words = words_of_quoted(filled.partial or filled.text)
    except ValueError as error:
        why = "a quote that opens is not closed" if "quotation" in str(error) else str(error).lower()
        raise Problem(f"service {clean(service, 60)}: {why}") from None
    return [_word(word) for word in words]


def _word(text: str) -> Word:
    why = why_unclear(text)
    return Word(as_written(text), None, why, may_be_many(text), as_written(text)) if why else Word(text)


def scalar(value: Any) -> str:
    """A value as text. Raises Problem for a list or a table, which no word of a command and no variable is."""
    if isinstance(value, list | dict):
        raise Problem("a list or a table stands where a text belongs")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _filled(text: str, around: Mapping[str, str], assumed: list[str], *, keep: bool = False) -> Word:
    """The text with its variables. `keep`: those that aren't set are holes in `partial`, for the words that follow."""
    unclear: list[str] = []

    def fill(found: re.Match[str]) -> str:
        name = found[1] or found[4]
        if name is None:
            return "$"
        if name in around and (around[name] or not (found[2] or "").startswith(":")):
            return around[name]
        if found[2] in {":-", "-"}:
            assumed.append(f"${name} is not set: its default {found[3]!r} is taken")
            return found[3]
        unclear.append(name)
        return hole(found[0], f"${name} is not set here", many=True) if keep else found[0]

    filled = _HOLE.sub(fill, plain(text))
    why = f"${unclear[0]} is not set here" if unclear else ""
    return Word(as_written(filled), None, why, partial=filled if keep or unclear else "")
