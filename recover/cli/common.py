"""What the commands share: the options that every command takes, the way to the state, and how results are written."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from recover.edge.store.folder import StateFolder
    from recover.model.ladder import Playbook
    from recover.model.snapshot import Target
    from recover.wiring import App

F = TypeVar("F", bound=Callable[..., Any])


def _remember(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None and param.name is not None:
        ctx.find_root().ensure_object(dict)[param.name] = value


def places(command: F) -> F:
    """--config and --state-dir, here as well as before the command."""
    for name, meta, says in (
        ("--state-dir", "DIR", "State folder; else $GPU_RECOVER_STATE."),
        ("--config", "FILE", "Configuration file; else $GPU_RECOVER_CONFIG."),
    ):
        command = click.option(name, metavar=meta, help=says, expose_value=False, callback=_remember)(command)
    return command


def _given(name: str) -> str | None:
    value = (click.get_current_context().find_root().obj or {}).get(name)
    return value if isinstance(value, str) else None


def app() -> App:
    """The configuration and the state folder. Raises UsageProblem."""
    from recover.wiring import open_config

    given = (click.get_current_context().find_root().obj or {}).get("app")
    return given if given is not None else open_config(_given("config"), os.environ, _given("state_dir"))


def state() -> StateFolder:
    """The state folder alone: for commands that need no configuration."""
    from recover.wiring import open_state

    return open_state(os.environ, _given("state_dir"))


def resolve(opened: App, names: tuple[str, ...]) -> tuple[Target, ...]:
    """All targets, before anything is looked at. A word that was meant as a command is told so."""
    from recover.wiring import UsageProblem

    try:
        return opened.resolve(names)
    except UsageProblem as error:
        raise UsageProblem(error.problems, command_hint(names) or error.hint) from None


def chosen(command: str, opened: App, names: tuple[str, ...], every_target: bool) -> tuple[Target, ...]:
    """The named targets, or with --all those of the configuration; each once. Raises UsageProblem."""
    from recover.wiring import UsageProblem

    if every_target == bool(names):
        raise UsageProblem((f"{command}: name targets, or give --all for those of the configuration",))
    if every_target and not opened.config.targets:
        raise UsageProblem((f"{opened.config.source or 'the configuration'}: it names no target",))
    found = resolve(opened, tuple(opened.config.targets) if every_target else names)
    return tuple({target.name: target for target in found}.values())


def command_hint(names: tuple[str, ...]) -> str:
    """What a word that is no target may have been meant as."""
    from recover.cli.main import COMMANDS
    from recover.core.config_table import nearest

    for name in names:
        close = name if name in COMMANDS else nearest(name, tuple(COMMANDS))
        if close:
            rest = " ".join(n for n in names if n != name)
            return f"{name!r} is no target. Did you mean the command: gpu-recover {close} {rest}".rstrip() + " ?"
    return ""


def playbook_of(opened: App, target: Target, given: str | None) -> Playbook:
    from recover.wiring import DEFAULT_PLAYBOOK

    return opened.playbook(given or target.playbook or DEFAULT_PLAYBOOK)


def emit(text: str) -> None:
    """The result, on stdout. That nobody reads it any more changes nothing about how the run ended."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def note(text: str) -> None:
    """A word beside the result, on stderr."""
    with contextlib.suppress(OSError):
        click.echo(text, err=True)


def local_time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def emit_json(value: Any) -> None:
    emit(json.dumps(value, ensure_ascii=True))


def emit_verdict(text: str, code: int) -> None:
    """A report whose first line is coloured by the exit code where stdout is a terminal that wants colour."""
    first, rest = (text + "\n").split("\n", 1)
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb":
        colour = "green" if code == 0 else "yellow" if code in (1, 14, 15, 20, 130) else "red"
        first = click.style(first, fg=colour, bold=True)
    emit(first + "\n" + rest.rstrip("\n") if rest.strip() else first)


def target_name(word: str) -> str:
    """The name under which a target's runs are kept. Works without a configuration for a name that has runs."""
    from recover.core.config_table import nearest
    from recover.wiring import UsageProblem

    store = state()
    if store.runs(word):
        return word
    try:
        (found,) = app().resolve((word,))
    except UsageProblem as error:
        known = store.target_names()
        close = nearest(word, known)
        meant = f"did you mean {close}?" if close else f"runs are kept of {', '.join(known) or 'no target'}"
        raise UsageProblem((f"{word}: no runs of such a target in {store.root}; {meant}", *error.problems)) from None
    return found.name
