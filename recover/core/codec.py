"""Model data to plain JSON values and back, without loss: what was written yesterday is what decide sees today."""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Iterable
from typing import Any

from recover.model import (
    act,
    contact,
    gpu,
    guest,
    host,
    hypervisor,
    ladder,
    memory,
    notice,
    process,
    reading,
    record,
    snapshot,
    verdict,
    watch,
)

Json = None | bool | int | float | str | list[Any] | dict[str, Any]

_MODULES: tuple[types.ModuleType, ...] = (
    act, contact, gpu, guest, host, hypervisor, ladder, memory, notice, process, reading, record, snapshot,
    verdict, watch,
)  # fmt: skip
_TYPE = "$"  # tag of a record; values of the world never stand in a dict of their own, so it cannot clash


def _named(modules: Iterable[types.ModuleType], base: type | None) -> dict[str, type]:
    found: dict[str, type] = {}
    for module in modules:
        for name, value in vars(module).items():
            if not isinstance(value, type) or value.__module__ != module.__name__:
                continue
            if (base is None and dataclasses.is_dataclass(value)) or (base is not None and issubclass(value, base)):
                found[name] = value
    return found


_RECORDS = _named(_MODULES, None)
_ENUMS = _named(_MODULES, enum.Enum)
_SKIP = frozenset({("Guest", "raw")})  # kept in the evidence folder, not in the journal


class Garbled(ValueError):
    """A JSON value that no model type was written as; the text names the place."""


def encode(value: object) -> Json:
    """Plain JSON for model data. TypeError for what is not model data: a bug, never lost silently."""
    if isinstance(value, enum.Enum):
        return {_TYPE: type(value).__name__, "is": value.name}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        name = type(value).__name__
        if name not in _RECORDS:
            raise TypeError(f"{name} is not a record of the model")
        out: dict[str, Any] = {_TYPE: name}
        for field in dataclasses.fields(value):
            if (name, field.name) not in _SKIP:
                out[field.name] = encode(getattr(value, field.name))
        return out
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    if isinstance(value, (frozenset, set)):
        return {_TYPE: "set", "of": [encode(item) for item in sorted(value, key=repr)]}
    if isinstance(value, bytes):
        return {_TYPE: "bytes", "hex": value.hex()}
    raise TypeError(f"{type(value).__name__} cannot be written to the journal")


def decode(value: object, at: str = "entry") -> Any:
    """The model data that `encode` wrote. Fields that this version lacks are dropped, new ones take their default.

    Raises Garbled, naming the place.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return tuple(decode(item, f"{at}[{i}]") for i, item in enumerate(value))
    if not isinstance(value, dict) or not isinstance(value.get(_TYPE), str):
        raise Garbled(f"{at}: no type tag")
    name: str = value[_TYPE]
    if name == "set":
        return frozenset(decode(item, at) for item in value.get("of", ()))
    if name == "bytes":
        return bytes.fromhex(value.get("hex", ""))
    if name in _ENUMS:
        try:
            return _ENUMS[name][value["is"]]  # type: ignore[index]
        except KeyError as error:
            raise Garbled(f"{at}: {name} has no {error}") from None
    if name not in _RECORDS:
        raise Garbled(f"{at}: unknown type {name!r}")
    known = {field.name for field in dataclasses.fields(_RECORDS[name])}
    given = {key: decode(item, f"{at}.{key}") for key, item in value.items() if key in known}
    try:
        return _RECORDS[name](**given)
    except TypeError as error:
        raise Garbled(f"{at}: {name}: {error}") from None
