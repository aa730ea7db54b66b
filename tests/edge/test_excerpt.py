"""What a look leaves behind is never missed: every name that an excerpt uses stands in it, and nothing is changed."""

from __future__ import annotations

import ast
import builtins
import ctypes
from pathlib import Path

import pynvml
import pytest

from recover.edge.excerpt import Excerpt, pieces
from recover.edge.probe import _ON_NODES, _modules, _with_header, for_acts, slim, sources

OURS = "recover.guest."
SENT = {"look": sources("look"), "acts": sources("look") | for_acts()}
WHOLE = {OURS + name: slim(text) for name, text in _modules().items()} | {"pynvml": Path(pynvml.__file__).read_text()}
# Doors that a look never goes through.
SHUT = {"look": {OURS + "acts", OURS + "budget"}, "acts": {OURS + name for name in ("budget", *_ON_NODES)}}


def bound(tree: ast.AST) -> set[str]:
    """Every name that is given a value anywhere in it."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            found.add(node.name)
    return found


def top(source: str) -> set[str]:
    return {name for piece in pieces(source) for name in piece.names}


def missing(job: str) -> list[str]:
    sent, found = SENT[job], []
    for module, source in sent.items():
        tree = ast.parse(source)
        known = bound(tree) | set(dir(builtins)) | {"__name__", "SOURCES"}
        known |= set(dir(ctypes)) if "from ctypes import *" in source else set()
        found += [f"{module}: {n.id}" for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id not in known]
        found += [f"{module}: {what}" for what in _elsewhere(tree, sent, SHUT[job])]
    return found


def _elsewhere(tree: ast.AST, sent: dict[str, str], shut: set[str]) -> list[str]:
    """Uses of another module's names that are not there, or of a module that is not."""
    found, modules = [], {"nv": "pynvml"}
    for node in ast.walk(tree):
        for alias in node.names if isinstance(node, ast.ImportFrom) else ():
            if node.module == "recover.guest":
                modules[alias.asname or alias.name] = OURS + alias.name
            elif str(node.module) in sent and alias.name not in top(sent[str(node.module)]):
                found.append(f"{node.module}.{alias.name}")
    for name, module in modules.items():
        if module not in sent and module not in shut:
            found.append(module)
        for node in ast.walk(tree):
            used = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name
            if used and module in sent and node.attr not in top(sent[module]):
                found.append(f"{module}.{node.attr}")
    return found


@pytest.mark.parametrize("job", sorted(SENT))
def test_nothing_that_is_used_is_missing(job: str) -> None:
    assert missing(job) == []


def test_a_hole_would_be_seen() -> None:
    """The check above finds a definition that was left out."""
    text = SENT["look"]["recover.guest.procs"]
    SENT["broken"] = SENT["look"] | {"recover.guest.procs": text.replace("def describe(", "def other(")}
    SHUT["broken"] = SHUT["look"]
    try:
        assert "recover.guest.procs: describe" in missing("broken")
    finally:
        del SENT["broken"], SHUT["broken"]


@pytest.mark.parametrize("job", sorted(SENT))
def test_what_is_kept_is_unchanged(job: str) -> None:
    for module, source in SENT[job].items():
        if module in WHOLE:
            whole = {piece.text for piece in pieces(WHOLE[module])}
            changed = [p.text for p in pieces(source) if not p.imports and p.text not in whole]
            assert changed == [], module


def test_the_licence_of_what_is_not_ours_travels_with_it() -> None:
    sent = SENT["look"]["pynvml"]
    assert sent.startswith("#####\n# Copyright (c)") and "THE POSSIBILITY OF SUCH DAMAGE" in sent
    assert "An excerpt" in sent and len(sent) < 40_000
    assert "def nvmlDeviceGetMemoryInfo(" in sent and "def nvmlDeviceSetPersistenceMode(" not in sent
    assert "def nvmlDeviceSetPersistenceMode(" in SENT["acts"]["pynvml"]


def test_what_can_not_be_cut_goes_whole() -> None:
    assert _with_header("# theirs\nx = 1\n", "def f(:\n") == "# theirs\nx = 1\n"


def test_every_error_of_nvml_has_its_class() -> None:
    module: dict[str, object] = {"__name__": "pynvml"}
    exec(compile(SENT["look"]["pynvml"], "pynvml", "exec"), module)
    error = module["NVMLError"]
    assert isinstance(error, type) and type(error(15)).__name__ == "NVMLError_GpuIsLost"


def test_names_are_followed_through_modules_and_decorators() -> None:
    sources = {
        "p.a": "import os\nfrom p import b\nfrom p.c import (one,\n    two as second)\n\ndef go():\n"
               "    return b.used(), second()\n\ndef stays():\n    return os\n",
        "p.b": "def dec(f):\n    return f\n\n@dec\ndef used():\n    return X\nX = 1\nY = 2\n",
        "p.c": "print('effect')\ndef one(): pass\ndef two(): pass\n",
    }  # fmt: skip
    excerpt = Excerpt(sources, {})
    excerpt.reach("p.a", lambda name: name == "go")
    texts = excerpt.texts()
    assert "import os" not in texts["p.a"] and "stays" not in texts["p.a"]
    assert "from p.c import two as second" in texts["p.a"]
    assert "@dec" in texts["p.b"] and "def dec" in texts["p.b"] and "X = 1" in texts["p.b"] and "Y" not in texts["p.b"]
    assert texts["p.c"] == "print('effect')\ndef two(): pass\n"


def test_what_a_module_passes_on_comes_from_where_it_is() -> None:
    sources = {
        "p.a": "from p import b\ndef go():\n    return b.X\n",
        "p.b": "from p.c import X, Y\n",
        "p.c": "X = 1\nY = 2\n",
    }
    excerpt = Excerpt(sources, {})
    excerpt.reach("p.a", lambda _: True)
    assert excerpt.texts()["p.c"] == "X = 1\n" and excerpt.texts().get("p.b") == "from p.c import X\n"


def test_a_closed_module_stays_behind() -> None:
    excerpt = Excerpt({"p.a": "def go():\n    from p import b\n    b.x()\n", "p.b": "def x(): pass\n"}, {}, ["p.b"])
    excerpt.reach("p.a", lambda _: True)
    assert set(excerpt.texts()) == {"p.a"}
