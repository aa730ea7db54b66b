"""One look from inside the guest: one exec, one total deadline, and a `Guest` or the reason why there is none."""

from __future__ import annotations

import base64
import importlib.util
import json
import re
import threading
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from recover.core.clean import clean, clean_text
from recover.core.read.agent import parse_lines, read_guest
from recover.core.read.bare import SCRIPT, read_bare
from recover.core.read.stream import unpack
from recover.edge.excerpt import Excerpt
from recover.edge.shell.port import Shell
from recover.model.contact import Broken, Failure, Ran
from recover.model.guest import Guest, Mute
from recover.model.process import ProcessId

# Isolated mode and no `site`: nothing that is installed in the guest's Python is imported, and it starts faster.
# The first line is the length of what follows: base64 would cost a third more on the wire.
_LOADER = "import sys,zlib,gc;gc.disable();b=sys.stdin.buffer;exec(zlib.decompress(b.read(int(b.readline()))).decode())"
_OTHER_JOBS = ("acts", "budget")  # modules that `main` imports for them alone
_ON_NODES = ("host", "nodewords", "pci")  # modules that `acts` imports only on a Proxmox node
_WHOLE = ("wire", "child", "procs")  # they remember things, so acts must find the very same that the look has
NO_PYTHON = 86
_NAMES = ("/usr/bin/python3", "python3", "/usr/libexec/platform-python", "/usr/local/bin/python3",
          *(f"python3.{minor}" for minor in range(14, 5, -1)))  # fmt: skip
_PICK = (
    f'for p in "$@"; do command -v "$p" >/dev/null 2>&1 && exec "$p" -I -S -c \'{_LOADER}\'; done; '
    f"echo no-python >&2; exit {NO_PYTHON}"
)
_HEADER = "Copyright (c) 2011-"
_packing = threading.Lock()  # a fleet's threads would all do it at the same time
LOOK_S = 240.0  # the worst case: a driver that takes its whole RPC time-out twice
_SLACK_S = 10.0  # what connecting and sending may take beyond the agent's own deadline


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """What a look asks for; None lets the agent decide. Seconds."""

    services: tuple[str, ...] = ()
    health: tuple[str, ...] = ()
    health_ports: bool = True
    health_timeout_s: float = 25.0
    gpu_deadline_s: float | None = None
    pythons: tuple[str, ...] = _NAMES
    root: str = ""  # prefix for /proc/driver, /sys, /run in the guest: for tests


@dataclass(frozen=True, slots=True)
class Pieces:
    """Evidence from inside the guest: (file name, text), secrets redacted, and what is missing with its reason."""

    files: tuple[tuple[str, str], ...]
    missing: tuple[str, ...]


def _pynvml() -> str:
    """NVIDIA's file as it is installed here, with its licence header; another package may have its name."""
    spec = importlib.util.find_spec("pynvml")
    if spec is None or spec.origin is None:
        return ""
    text = Path(spec.origin).read_text(encoding="utf-8")
    return text if _HEADER in text[:200] and "NVIDIA" in text[:200] else ""


def payload(job: str = "look") -> bytes:
    """A line with a length, then the agent: what the job needs of its modules and of pynvml, and their loader."""
    with _packing:
        return _payload(job)


@cache
def _payload(job: str) -> bytes:
    loader = files("recover.guest").joinpath("loader.py").read_text(encoding="utf-8")
    program = f"SOURCES = {sources(job)!r}\n{loader}\nstart()\n"
    packed = zlib.compress(program.encode(), 6)
    return b"%d\n%b" % (len(packed), packed)


@cache
def sources(job: str) -> dict[str, str]:
    """Module -> source. A look gets only what it can reach: a quarter of it all, and each guest compiles it anew."""
    packages = {"recover": "", "recover.guest": ""}
    if job == "look":
        return packages | _excerpt(("main",), _OTHER_JOBS)
    return packages | {f"recover.guest.{name}": text for name, text in _modules().items()} | {"pynvml": _pynvml()}


def _excerpt(first: tuple[str, ...], shut: tuple[str, ...]) -> dict[str, str]:
    """What these modules can reach of ours and of pynvml."""
    whole = _pynvml()
    excerpt = Excerpt(_slimmed() | {"pynvml": whole}, {"nv": "pynvml"}, [f"recover.guest.{name}" for name in shut])
    for name in (*_WHOLE, *first):
        excerpt.reach(f"recover.guest.{name}", lambda _: True)
    excerpt.reach("pynvml", lambda name: name.startswith("NVML_ERROR_"))  # it makes a class of each by its name
    texts = excerpt.texts()
    return texts | {"pynvml": _with_header(whole, texts.get("pynvml", ""))}


def _with_header(whole: str, part: str) -> str:
    """The part under the whole's licence; the whole where it can't be cut, as a version not known here may be."""
    try:
        compile(part, "pynvml", "exec")  # not ast.parse: two at once in two threads are an error in Python 3.11
    except SyntaxError:
        return whole
    header = "".join(re.findall(r"^#.*\n", whole.partition("\nfrom ")[0] + "\n", re.M))
    return f"{header}# An excerpt: the definitions below are NVIDIA's, unchanged; all others are left out.\n{part}"


_FOR_PEOPLE = re.compile(
    r'^[ ]*"""(?:[^"\\]|\\.|"(?!""))*"""[ ]*\n'  # docstrings
    r"|^if TYPE_CHECKING:\n(?:(?:    .*)?\n)*"
    r"|^[ ]*#.*\n"
    r"|  # [^\"'\n]*$",
    re.M,
)
_DEFINITION = re.compile(r"^ *def .*:$", re.M)
_ANNOTATION = re.compile(r'(?<=\w): (?:"[^"]*"|\w[\w.]*)(?=[,)=]| = )|(?<=\)) -> (?:"[^"]*"|[\w.]+)(?=:$)')


def slim(source: str) -> str:
    """A module of ours without what only people and type checkers read: a sixth of what each guest has to compile."""
    text = re.sub(r"\n{2,}", "\n", _FOR_PEOPLE.sub("", source))
    return _DEFINITION.sub(lambda line: _ANNOTATION.sub("", line[0]), text)


@cache
def _modules() -> dict[str, str]:
    entries = files("recover.guest").iterdir()
    names = {entry.name: entry for entry in entries if entry.name.endswith(".py")}
    return {
        name.removesuffix(".py"): entry.read_text(encoding="utf-8")
        for name, entry in names.items()
        if name not in ("__init__.py", "loader.py")
    }


@cache
def _slimmed() -> dict[str, str]:
    return {f"recover.guest.{name}": slim(text) for name, text in _modules().items()}


@cache
def for_acts() -> dict[str, str]:
    """The sources of acts that an agent sent for looks does not have, or has only in part."""
    known, wanted = sources("look"), _excerpt(("main", "acts"), (*_ON_NODES, "budget"))
    return {name: text for name, text in wanted.items() if known.get(name) != text}


def packed_for_acts() -> str:
    """The same as a word of a request."""
    with _packing:
        return _packed_for_acts()


@cache
def _packed_for_acts() -> str:
    return base64.b64encode(zlib.compress(json.dumps(for_acts()).encode(), 6)).decode("ascii")


def command(pythons: Iterable[str] = _NAMES) -> list[str]:
    """The argument list of the exec: a shell that becomes the first Python it finds."""
    return ["sh", "-c", _PICK, "sh", *pythons]


def ask(
    shell: Shell,
    request: dict[str, Any],
    deadline: float,
    pythons: Iterable[str] = _NAMES,
) -> Ran | Broken:
    """Send one request to the agent."""
    job = "look" if request["do"] == "look" else "all"
    return shell.run(command(pythons), stdin=payload(job) + line_of(request), deadline=deadline)


def line_of(request: dict[str, Any]) -> bytes:
    return json.dumps(request, ensure_ascii=True).encode() + b"\n"


class GuestProbe:
    """Looks through one shell. Remembers nothing between looks."""

    def __init__(self, shell: Shell, settings: ProbeSettings | None = None) -> None:
        self._shell = shell
        self._settings = settings or ProbeSettings()

    def look(
        self,
        skip_gpus: Iterable[str] = (),
        health: bool = True,
        deadline: float = LOOK_S,
        news_after_uptime_s: float = 0.0,
    ) -> Guest | Mute:
        """`skip_gpus`: UUIDs or bus ids that hung before. A report that broke off is a guest with gaps."""
        ours = self._settings
        request = {
            "do": "look",
            "skip_gpus": sorted(skip_gpus),
            "services": ours.services,
            "health": ours.health if health else (),
            "health_ports": health and ours.health_ports,
            "health_timeout": ours.health_timeout_s,
            "gpu_deadline": ours.gpu_deadline_s,
            "news_after": news_after_uptime_s,
            "deadline": max(5.0, deadline - _SLACK_S),
            "root": ours.root,
        }
        said = self._say(request, deadline)
        guest = read_guest(said.stdout)
        if guest is not None:
            return guest
        if isinstance(said, Broken):
            return Mute(said.failure, said.detail, 0.0)
        return self._bare(said, deadline)

    def _say(self, request: dict[str, Any], deadline: float) -> Ran | Broken:
        said = ask(self._shell, {**request, "pack": True}, deadline, self._settings.pythons)
        return replace(said, stdout=unpack(said.stdout))

    def act(self, request: dict[str, Any], deadline: float) -> Ran | Broken:
        """One act, asked once."""
        return ask(self._shell, request, deadline, self._settings.pythons)

    def _bare(self, said: Ran, deadline: float) -> Guest | Mute:
        """Without a Python that can run the agent there is still a read-only view."""
        first = "no Python on the guest" if said.code == NO_PYTHON else f"the agent said nothing: {_last(said)}"
        again = self._shell.run(["sh", "-c", SCRIPT], deadline=min(deadline, 60.0))
        if isinstance(again, Broken) and not again.stdout:
            return Mute(again.failure, again.detail)
        guest = read_bare(again.stdout, first)
        if guest is not None:
            return guest
        return Mute(Failure.DIED, clean(f"{first}; nor did the shell: {_last(again)}", 500))

    def evidence(
        self,
        members: Iterable[ProcessId] = (),
        units: Iterable[str] = (),
        containers: Iterable[str] = (),
        nvml_hangs: bool = False,
        deadline: float = 60.0,
    ) -> Pieces:
        """What an act may destroy: stacks, kernel log, owner's last words. Missing pieces are named, never raised."""
        request = {
            "do": "dump",
            "members": [(m.boot_id, m.pid, m.start) for m in members],
            "units": list(units),
            "containers": list(containers),
            "nvml_hangs": nvml_hangs,
            "deadline": max(5.0, deadline - _SLACK_S),
        }
        return pieces_of(self.act(request, deadline))


def pieces_of(said: Ran | Broken) -> Pieces:
    report = parse_lines(said.stdout)
    pieces = [(row.text("name", "?", 120), row.whole("text")) for row in report.all("piece")]
    missing = [*report.gaps()]
    if report.one("done") is None:
        missing.append(f"the agent's answer broke off: {_last(said)}")
    return Pieces(tuple((name, clean_text(text)) for name, text in pieces), tuple(missing))


def _last(said: Ran | Broken) -> str:
    lines = [line for line in said.stderr.decode("utf-8", "replace").splitlines() if line.strip()]
    code = f"exit {said.code}" if isinstance(said, Ran) else said.failure.value
    return clean(f"{code}, {lines[-1]}" if lines else code, 300)
