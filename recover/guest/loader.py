"""Runs the agent from one mapping of module names to sources; this text is what the guest's Python executes first.

`SOURCES` stands in the same payload. pynvml is compiled only when something asks for it.
"""

import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from typing import Any, Optional

    SOURCES = {}  # type: dict[str, str]


class FromPayload:
    """A finder and loader over the payload; it comes first, so that nothing installed on the guest can shadow it."""

    @staticmethod
    def find_spec(name: str, path: "Any" = None, target: "Any" = None) -> "Optional[ModuleSpec]":
        if name not in SOURCES:
            return None
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, FromPayload, is_package=name in ("recover", "recover.guest"))  # type: ignore[arg-type]

    @staticmethod
    def learn(sources: "dict[str, str]") -> None:
        """More modules, and whole ones in place of excerpts: who imports them from now on gets these."""
        SOURCES.update(sources)
        for name in sources:
            sys.modules.pop(name, None)
            package = sys.modules.get(name.rpartition(".")[0])
            if package is not None:
                package.__dict__.pop(name.rpartition(".")[2], None)

    @staticmethod
    def create_module(spec: "Any") -> "Optional[types.ModuleType]":
        return None

    @staticmethod
    def exec_module(module: "Any") -> None:
        exec(compile(SOURCES[module.__name__], "<%s>" % module.__name__, "exec"), module.__dict__)


def start() -> None:
    sys.meta_path.insert(0, FromPayload)
    from recover.guest.main import main

    main(sys.stdin.readline())
