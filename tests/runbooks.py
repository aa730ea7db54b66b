"""The code of the runbooks, run for real: what a page says that a command prints is what it prints.

A `console` block holds calls after `$ ` and what they print. `<!-- machine: FAULT -->` above it says which simulated
machine node-174 is; In what is
printed `…` stands for any text within a line, and a line that is only `…` for any lines.
`python -m tests.runbooks` writes the lists of pages and alerts anew, `python -m tests.runbooks PAGE` prints what the
blocks of a page print now.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import yaml

from recover.cli.main import cli, run, with_default
from recover.core.guards import Context
from recover.edge.simulated import FAULTS, SimulatedClock, SimulatedMachine
from recover.model.ladder import Playbook
from recover.model.snapshot import Target
from recover.wiring import Flags, Wired
from tests.cli.simulated import SimulatedApp, _NoConnections

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "runbooks"
SCHEDULERS = ROOT / "docs" / "schedulers"
BLOCK = re.compile(r"^( *)(?:<!-- machine: ([\w-]+) -->\n *)?```(console|sh|toml|text)\n(.*?)^ *```", re.S | re.M)
ANY = "…"


@dataclass(frozen=True)
class Call:
    """One command of a page. `said` None: it is only named, and must be one that exists."""

    words: str
    stdin: str
    machine: str
    said: str | None
    line: int


def pages() -> tuple[Path, ...]:
    return tuple(sorted(FOLDER.glob("*.md")))


def calls(text: str) -> Iterator[Call]:
    """Every command of the code blocks of a page, ours and others'."""
    for match in BLOCK.finditer(text):
        machine, kind, body = match[2] or "", match[3], textwrap.dedent(match[4])
        line = text[: match.start(4)].count("\n") + 1
        if kind == "console":
            yield from _console(body, machine, line)
        elif kind == "sh":
            for number, words in enumerate(body.splitlines()):
                if words.strip() and not words.startswith("#"):
                    yield Call(words, "", machine, None, line + number)


def _console(body: str, machine: str, line: int) -> Iterator[Call]:
    for part in re.split(r"^\$ ", body, flags=re.M)[1:]:
        words, _, rest = part.partition("\n")
        stdin = ""
        if here := re.search(r" <<'(\w+)'$", words):
            stdin, _, rest = rest.partition(f"{here[1]}\n")
            words = words[: here.start()]
        yield Call(words, stdin, machine, rest, line + body[: body.index(part)].count("\n"))


class _Clock(SimulatedClock):
    def woken_by(self, woken: object) -> None:
        """Nobody presses Ctrl-C here."""


class Machines(SimulatedApp):
    """Machines whose time is simulated: what they print is the same each time, and nobody waits."""

    def wire(self, target: Target, playbook: Playbook, flags: Flags, *, acts: bool = True) -> Wired:
        clock = _Clock()
        machine = SimulatedMachine(self.faults[target.name], clock)
        self.machines[target.name] = machine
        limits = playbook.limits if flags.max_scope is None else replace(playbook.limits, max_scope=flags.max_scope)
        context = Context(evict=flags.evict, trust_vmid=flags.trust_vmid, approved=flags.approve)
        return Wired(
            target=target, playbook=replace(playbook, limits=limits), context=context, state=self.state,
            clock=clock, observer=machine, actuator=lambda: machine, connections=_NoConnections(),
            baseline=self.baseline(target),
        )  # type: ignore[arg-type]  # fmt: skip


def printed(call: Call, state: Path) -> str:
    """What our command prints on stdout, in this process; its own exit code as a last line where it isn't 0."""
    words = shlex.split(call.words, comments=True)[1:]
    app = Machines(state, {"node-174": FAULTS[call.machine]}) if call.machine else None
    out, err, kept = io.StringIO(), io.StringIO(), sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(call.stdin.encode()))
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(words, app)
    finally:
        sys.stdin = kept
    if not out.getvalue():
        return f"{err.getvalue()}(exit code {code})\n"
    return out.getvalue()


def agrees(said: str, printed: str) -> bool:
    """Whether what a page says is what is printed, with `…` for any text."""
    pattern = ""
    for text in said.rstrip("\n").splitlines():
        if text.strip() == ANY:
            pattern += r"(?:[^\n]*\n)*"
        else:
            pattern += (
                ".*".join(re.escape(piece.rstrip() if piece == text else piece) for piece in text.split(ANY)) + r"\s*\n"
            )
    return re.fullmatch(pattern, printed.rstrip("\n") + "\n") is not None


def accepted(words: str) -> str:
    """Empty if the real parser takes the call, else what it says. Nothing is run."""
    args = with_default(shlex.split(words.replace("…", "X"), comments=True)[1:])
    command: click.Command = cli
    context: click.Context | None = None
    try:
        while True:
            name = args[0] if args and context is not None else "gpu-recover"
            context = command.make_context(name, list(args), parent=context)
            if not isinstance(command, click.Group) or "--help" in args:
                return ""
            rest = [*context._protected_args, *context.args]  # of a group: the words that are its command
            if not rest:
                return ""
            _, inner, args = command.resolve_command(context, rest)
            if inner is None:
                return f"no command {rest[0]}"
            command = inner
    except click.exceptions.Exit:
        return ""
    except click.ClickException as error:
        return error.format_message()


def title(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ")


def signals(text: str) -> list[str]:
    """The names that a page says it is for."""
    line = re.search(r"^Signals: (.*)$", text, re.M)
    return re.findall(r"`([\w-]+)`", line[1]) if line else []


ORDER = (
    "server", "process", "storage", "gpu-memory-held", "ram", "leftover", "ghost", "driver", "gpu", "link", "nvswitch",
    "container", "guest", "reboot", "vm", "device", "proxmox",
)  # fmt: skip  # from the server down to the node: beginnings of the pages' names


def symptom_list() -> str:
    """One row per page that is for signals."""
    found = [page for page in pages() if signals(page.read_text())]
    found.sort(key=lambda page: (next(n for n, word in enumerate(ORDER) if page.name.startswith(word)), page.name))
    return "".join(
        f"| [{title(text)}]({page.name}) | {', '.join(f'`{s}`' for s in signals(text))} |\n"
        for page in found
        if (text := page.read_text())
    )


def rules() -> list[dict[str, Any]]:
    """The alert rules as they are shipped."""
    groups = yaml.safe_load((SCHEDULERS / "prometheus" / "gpu-recover.rules.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alert_list() -> str:
    rows = []
    for rule in rules():
        severity, page = rule["labels"]["severity"], rule["annotations"]["runbook_url"].rpartition("/")[2]
        shown = "by what it is" if "{{" in severity else severity
        about = re.sub(
            r"\{\{ \$labels\.(?:target|instance) \}\}: |\{\{ \$value \}\} ", "", rule["annotations"]["summary"]
        )
        rows.append(f"| {rule['alert']} | {shown} | {about} | [{page[:-3]}](../runbooks/{page}) |\n")
    return "".join(rows)


MADE = {FOLDER / "README.md": symptom_list, SCHEDULERS / "README.md": alert_list}
PART = re.compile(r"(<!-- [\w-]+: kept by python -m tests\.runbooks -->\n)(.*?)(<!-- end -->)", re.S)


def renewed(page: Path) -> str:
    """The page with its list as pages and rules are now. The head of the table belongs to the list."""
    heads = {
        symptom_list: "| page | signals |\n|---|---|\n",
        alert_list: "| alert | severity | when | runbook |\n|---|---|---|---|\n",
    }
    make = MADE[page]
    return PART.sub(lambda m: m[1] + heads[make] + make() + m[3], page.read_text())


def main() -> int:
    import tempfile

    if not sys.argv[1:]:
        for page in MADE:
            page.write_text(renewed(page))

    for name in sys.argv[1:]:
        for call in calls((FOLDER / f"{name}.md").read_text()):
            print(f"$ {call.words}   [{call.machine}]")
            if call.said is not None and call.words.startswith("gpu-recover"):
                with tempfile.TemporaryDirectory() as state:
                    os.environ["GPU_RECOVER_STATE"] = state
                    print(printed(call, Path(state)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
