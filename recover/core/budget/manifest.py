"""A Kubernetes manifest is read container by container: every pod may land on this machine, so each is one server.

Source: the Kubernetes API reference, Container (`command` is the entrypoint, `args` what follows it, `$(NAME)` its
variables), quantities (`Gi` is 2^30, `G` 10^9), emptyDir with `medium: Memory`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from recover.core.budget.commands import HEARD, Found
from recover.core.budget.compose import as_list, load_documents, scalar, within
from recover.core.budget.containers import CONTAINER_SHM, contained
from recover.core.budget.options import Word
from recover.core.clean import clean

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
_QUANTITY = re.compile(r"(\d{1,20}(?:\.\d{1,9})?)(m|[kMGTPE]|[KMGTPE]i)?")
_POWERS = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_DEEPEST = 40


@dataclass(slots=True)
class Pod:
    """One container that starts a server."""

    where: str
    found: Found
    assumed: list[str] = field(default_factory=list)


def is_manifest(text: str) -> bool:
    return re.search(r"^apiVersion\s*:", text, re.M) is not None and re.search(r"^kind\s*:", text, re.M) is not None


def read(text: str) -> list[Pod]:
    """Every container that starts a server that is known. Raises Problem."""
    documents = [d for d in load_documents(text, "manifest") if isinstance(d, dict)]
    maps = {_name(d): d.get("data") or {} for d in documents if d.get("kind") == "ConfigMap"}
    found = []
    for document in documents:
        kind = clean(str(document.get("kind", "")), 40)
        for spec, container in _containers(document, 0, set()):
            pod = _pod(f"{kind} {clean(_name(document), 60)}", spec, container, maps)
            if pod is not None:
                pod.assumed += _replicas(document)
                found.append(pod)
    return found


def _replicas(document: Mapping[Any, Any]) -> list[str]:
    number = within(document, "spec", "replicas")
    return [f"of {number} replicas one is judged"] if isinstance(number, int) and number > 1 else []


def _name(document: Mapping[Any, Any]) -> str:
    metadata = document.get("metadata")
    return str(metadata.get("name", "")) if isinstance(metadata, dict) else ""


def _containers(node: Any, depth: int, seen: set[int]) -> Iterator[tuple[Mapping[Any, Any], Mapping[Any, Any]]]:
    """Containers with the pod that they stand in, wherever a resource keeps them."""
    if depth > _DEEPEST or id(node) in seen:  # an alias may lead back, or to the same place many times
        return
    if isinstance(node, list | dict):
        seen.add(id(node))
    if isinstance(node, list):
        for inner in node:
            yield from _containers(inner, depth + 1, seen)
    elif isinstance(node, dict):
        for container in node["containers"] if isinstance(node.get("containers"), list) else ():
            if isinstance(container, dict):
                yield node, container
        if isinstance(node.get("mainContainer"), dict):  # Dynamo's extraPodSpec
            yield node, node["mainContainer"]
        for key, inner in node.items():
            if key != "containers":
                yield from _containers(inner, depth + 1, seen)


def _pod(where: str, spec: Mapping[Any, Any], container: Mapping[Any, Any], maps: Mapping[str, Any]) -> Pod | None:
    state = Found("", [], wrapper="kubernetes")
    env = _environment(container, maps, state)
    state.memory_limit = quantity(within(container, "resources", "limits", "memory"))
    state.shm_size = _shm(spec, container)
    entrypoint = [_filled(w, env) for w in as_list(container.get("command"))]
    command = [_filled(w, env) for w in as_list(container.get("args"))]
    found = contained(str(container.get("image", "")), entrypoint, command, state)
    if found is None:
        return None
    found.env = [*((n, v) for n, v in env.items()), *found.env]
    return Pod(f"{where}, container {clean(str(container.get('name', '')), 60)}", found)


def _environment(container: Mapping[Any, Any], maps: Mapping[str, Any], state: Found) -> dict[str, str]:
    env: dict[str, str] = {}
    for source in as_list(container.get("envFrom")):
        said = source.get("configMapRef") if isinstance(source, dict) else None
        if not isinstance(said, dict):
            continue  # secrets hold no sizes
        name = str(said.get("name", ""))
        if not isinstance(maps.get(name), dict):
            state.unclear.append((f"configMap {clean(name, 60)}", "it does not stand in this text"))
        else:
            env.update((str(k), str(v)) for k, v in maps[name].items())
    for entry in as_list(container.get("env")):
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            continue
        name, value = entry["name"], entry.get("value")
        if value is None:
            value = _from_map(within(entry, "valueFrom", "configMapKeyRef"), maps)
        if value is not None:
            env[name] = _REFERENCE.sub(lambda m: env.get(m[1] or "", m[0]), scalar(value))
        elif name.startswith(HEARD):
            state.unclear.append((name, "its value stands elsewhere"))
    return env


def _from_map(said: Any, maps: Mapping[str, Any]) -> Any:
    values = maps.get(str(said.get("name", ""))) if isinstance(said, dict) else None
    return values.get(said.get("key")) if isinstance(values, dict) else None


def _filled(value: Any, env: Mapping[str, str]) -> Word:
    """A word with its `$(NAME)`: one that isn't known stays, as for Kubernetes, and is marked."""
    text = scalar(value)
    missing = [m[1] for m in _REFERENCE.finditer(text) if m[1] and m[1] not in env]
    filled = _REFERENCE.sub(lambda m: "$" if m[1] is None else env.get(m[1], m[0]), text)
    if missing and " " not in text:
        return Word(filled, None, f"$({missing[0]}) is not set in this manifest", partial=filled)
    return Word(filled)


def _shm(spec: Mapping[Any, Any], container: Mapping[Any, Any]) -> int | None:
    """What /dev/shm holds; None: as much as the machine gives."""
    if spec.get("hostIPC") is True:
        return None
    mounts = [m for m in as_list(container.get("volumeMounts")) if isinstance(m, dict)]
    names = {m.get("name") for m in mounts if str(m.get("mountPath", "")).rstrip("/") == "/dev/shm"}
    if not names:
        return CONTAINER_SHM
    volumes = [v for v in as_list(spec.get("volumes")) if isinstance(v, dict) and v.get("name") in names]
    memory: Mapping[Any, Any] = next((v["emptyDir"] for v in volumes if isinstance(v.get("emptyDir"), dict)), {})
    return quantity(memory.get("sizeLimit"))


def quantity(said: Any) -> int | None:
    """Whole bytes of an amount of memory; None for what is no such thing."""
    found = _QUANTITY.fullmatch(str(said).strip()) if said is not None else None
    if found is None:
        return None
    unit = found[2] or ""
    if unit == "m":
        return int(Decimal(found[1]) / 1000)
    base = 1024 if unit.endswith("i") else 1000
    return int(Decimal(found[1]) * base ** _POWERS[unit.removesuffix("i")])
