"""Which engine the command's interpreter would start, from where, and what its source says.

The interpreter is asked in a child with a deadline, and nothing of the engine is imported: import system and metadata
tell where it lies (wheel, editable install, source checkout in the working folder or on PYTHONPATH).
"""

import json
import os
import re

from recover.guest import budget_image, child
from recover.guest.child import Child, collect
from recover.guest.layers import View
from recover.guest.wire import Limit, emit, gap, read_or

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterator, Optional

FILE_CAP = 3 << 20
TOTAL_CAP = 10 << 20

# Runs in the command's interpreter, 3.6 to 3.14. The working folder and PYTHONPATH come last of all, so that nothing
# that lies there is taken for a module of the standard library.
ASK = r"""
import sys
sys.path[:] = [p for p in sys.path if p]
import json, os
try:
    import importlib.metadata as metadata
except ImportError:
    metadata = None
from importlib import util
import importlib.machinery
given = json.loads(sys.argv[1])
name = given["name"]
said = {"python": sys.executable, "python_version": "%d.%d.%d" % sys.version_info[:3]}
sys.path[:0] = [p for p in given["paths"] if p and os.path.isdir(p)]
try:
    spec = util.find_spec(name)
    if spec is not None:
        places = list(spec.submodule_search_locations or [])
        file = spec.origin if spec.origin != "namespace" else None
        said["origin"] = os.path.dirname(file) if file else places[0] if places else ""
except Exception as error:
    said["trouble"] = "%s: %s" % (type(error).__name__, error)
try:
    if metadata is not None:
        dist = metadata.distribution(name)
        said["version"] = dist.version
        text = dist.read_text("direct_url.json")
        said["direct"] = json.loads(text) if text else None
    else:
        import pkg_resources
        said["version"] = pkg_resources.get_distribution(name).version
except Exception as error:
    said["unversioned"] = type(error).__name__
print("\n" + json.dumps(said))
"""


# --- the interpreter ----------------------------------------------------------------------------------------------


def find_engine(request: "dict[str, Any]", where: "Optional[str]", mentions: "Optional[str]", limit: Limit) -> None:
    engine = str(request.get("engine") or "")
    if not engine or where is None or mentions is None:
        return
    word = str(request.get("interpreter") or "python3")
    found = _looked(request, engine, word, limit)
    if found is None or "gap" in found:
        gap("budget-engine", "absent" if found else "timeout", found["gap"] if found else "no answer in time")
        return
    if "origin" in found:
        _inside(found, engine, where, mentions, limit)
        return
    python, how = interpreter(found["word"], engine)
    if python is None:
        gap("budget-engine", "absent", how)
        return
    paths = [str(path) for path in request.get("paths") or ()] + found["paths"]
    asked = json.dumps({"name": engine, "paths": paths})
    ended = child.run([python, "-E", "-c", ASK, asked], limit.within(25.0), "python")
    said = _last_json(ended.out)
    if said is None:
        why = "timeout" if ended.code is None else "garbled"
        gap("budget-engine", why, "%s says nothing about %s: %s" % (python, engine, ended.err.strip()[-300:]))
        return
    origin = str(said.get("origin") or "")
    if not origin:
        trouble = " (%s)" % said["trouble"] if said.get("trouble") else ""
        hint = "name the interpreter by its whole path"
        gap("budget-engine", "absent", "%s is not installed for %s%s: %s" % (engine, python, trouble, hint))
        return
    said["version"] = said.get("version") or _own_version(origin)
    said.update(engine=engine, how=how, install=_kind(said, origin), commit=_commit(origin), asked=python)
    emit("budget-engine", **said)
    send_sources(origin, where, mentions, limit)


def _looked(request: "dict[str, Any]", engine: str, word: str, limit: Limit) -> "Optional[dict[str, Any]]":
    """`budget_image.find` in a child: a stuck process or a dead file system of a container blocks who reads there."""
    finder = Child("engine", lambda say: say(budget_image.find(request, engine, word, limit)))
    collect([finder], limit)
    crash = [value["crash"] for value in finder.values if "crash" in value]
    return {"gap": crash[0]} if crash else finder.values[0] if finder.values else None


def _inside(found: "dict[str, Any]", engine: str, where: str, mentions: str, limit: Limit) -> None:
    view, origin = View(found["roots"]), found["origin"]
    emit("budget-engine", engine=engine, version=found["version"], origin=origin, install=found["install"], commit="",
         asked=found["name"], how=found["name"])  # fmt: skip
    send_sources(origin, where, mentions, limit, view)


def _last_json(text: str) -> "Optional[dict[str, Any]]":
    for line in reversed(text.splitlines()):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        return value if isinstance(value, dict) else None
    return None


def interpreter(word: str, engine: str) -> "tuple[Optional[str], str]":
    """The Python behind the command's first word: itself, or what a console script's first lines name."""
    path = word if "/" in word else child.which(word)
    if path is None:
        return None, "%s: not found on the PATH of this login" % word
    if not os.path.exists(path):
        return None, "%s does not exist" % path
    if re.match(r"(?:python|pypy)[\d.]*$", os.path.basename(path)):
        return path, path
    head = read_or(path, "")[:2000]
    match = re.match(r"#!\s*(\S+)(?:\s+(\S+))?", head)
    if not match:
        return None, "%s is neither a Python nor a script" % path
    first, second = match.group(1), match.group(2)
    if os.path.basename(first) == "env" and second:
        return child.which(second), "%s, by env" % path
    if os.path.basename(first) in ("sh", "bash", "dash"):
        # Long or blank-holding paths: pip and distlib write a shell line that executes the real one.
        inner = re.search(r"exec'?\s+['\"]?(/[^'\"\n]*?/python[\d.]*)['\"\s]", head)
        return (inner.group(1), path) if inner else (None, "%s is a shell script" % path)
    return first, path


def _kind(said: "dict[str, Any]", origin: str) -> str:
    direct = said.get("direct") or {}
    if (direct.get("dir_info") or {}).get("editable"):
        return "editable"
    if re.search(r"/(?:site|dist)-packages(?:/|$)", origin):
        return "installed"
    return "checkout"


def _own_version(origin: str) -> str:
    """Of a checkout without metadata: its own word."""
    return budget_image.version_in(read_or(os.path.join(origin, name)) for name in budget_image.VERSIONS)


def _commit(origin: str) -> str:
    """The checkout's commit, read from the files of git."""
    folder = origin
    for _ in range(4):
        head = read_or(os.path.join(folder, ".git", "HEAD")).strip()
        if head:
            match = re.match(r"ref: (\S+)$", head)
            return (read_or(os.path.join(folder, ".git", match.group(1))).strip() if match else head)[:40]
        folder = os.path.dirname(folder)
    return ""


# --- the source ---------------------------------------------------------------------------------------------------


def send_sources(
    origin: str, where: str, mentions: str, limit: Limit, view: "Optional[View]" = None
) -> None:
    """Every file of the package that speaks of host memory, whole; what does not fit is named instead."""

    def job(say: "Callable[[Any], None]") -> None:
        _walk(_files(origin) if view is None else view.files(origin), where, mentions, say)

    reader = Child("source", job)
    late = collect([reader], limit)
    whole = False
    for value in reader.values:
        if "path" in value:
            emit("budget-source", **value)
        whole = whole or bool(value.get("whole"))
    if late or not whole:
        crash = [value["crash"] for value in reader.values if "crash" in value]
        detail = crash[0] if crash else "not all of %s could be read in time" % origin
        emit("budget-source", path=origin, missing=detail)


def _files(origin: str) -> "Iterator[tuple[str, str]]":
    base = os.path.dirname(origin.rstrip("/"))
    for folder, folders, names in os.walk(origin):
        folders[:] = sorted(name for name in folders if name != "__pycache__" and not name.startswith("."))
        for name in sorted(names):
            path = os.path.join(folder, name)
            yield os.path.relpath(path, base), path


def _walk(
    files: "Iterator[tuple[str, str]]", where: str, mentions: str, say: "Callable[[Any], None]"
) -> None:
    """`files`: (path within the package's parent, where it lies)."""
    wanted, speaks = re.compile(where), re.compile(mentions)
    total = 0
    for inner, path in files:
        if not inner.endswith(".py") or not wanted.match(inner):
            continue
        text = read_or(path, "") if os.path.getsize(path) <= FILE_CAP else None
        if text is None or len(text) >= 1 << 20:
            text = _large(path)
        if text is None:
            say({"path": inner, "missing": "larger than %d bytes" % FILE_CAP})
        elif speaks.search(text):
            total += len(text)
            fits = total <= TOTAL_CAP
            say({"path": inner, "text": text} if fits else {"path": inner, "missing": "too much source"})
    say({"whole": True})


def _large(path: str) -> "Optional[str]":
    if os.path.getsize(path) > FILE_CAP:
        return None
    with open(path, "rb") as file:
        return file.read(FILE_CAP).decode("utf-8", "surrogateescape")
