"""Who is told of what, and which programs are run before and after a recovery: [notify.NAME] and [hooks.EVENT]."""

from __future__ import annotations

from dataclasses import dataclass

from recover.core.config_table import FORMS, SecretFile, SecretSource, Table, nearest
from recover.model.notice import Event, HookEvent
from recover.model.verdict import Scope
from recover.model.watch import Status

LEVELS = {"warning": Status.WARNING, "unknown": Status.UNKNOWN, "critical": Status.CRITICAL}
HOOK_DEADLINE_S, HOOK_LONGEST_S = 60.0, 1800.0
REMIND_LEAST_S, REMIND_MOST_S = 300.0, 30 * 86400.0


@dataclass(frozen=True, slots=True)
class Destination:
    """One place where people hear of it. `url`: where its apprise URL is, which holds secrets and is never shown."""

    name: str
    url: SecretSource
    events: frozenset[Event] = frozenset(Event)
    at_least: Status = Status.WARNING
    remind_s: float | None = None  # say again while it lasts; None: never


@dataclass(frozen=True, slots=True)
class Hook:
    """One program that is run at an event: argv without a shell, JSON on its stdin, ended at its deadline.

    `required` and `at_least` are of before-disruption only: whether its failure declines the try, and from which scope
    on it is run.
    """

    event: HookEvent
    command: tuple[str, ...]
    deadline_s: float = HOOK_DEADLINE_S
    required: bool = True
    at_least: Scope = Scope.PROCESS


def notify_of(at: Table) -> dict[str, Destination]:
    """[notify.NAME]: where to, for which events and from which state on."""
    return at.tables("notify", _destination)


def hooks_of(at: Table) -> dict[HookEvent, Hook]:
    """[hooks]: one table per event."""
    return at.table("hooks", _hooks) or {}


def _destination(table: Table, name: str) -> Destination:
    if not table.has("url"):
        table.wrong("url", f"missing: where the apprise URL is: {FORMS}")
    url = table.secret("url")
    at_least = table.text("at_least", lambda value: _one_of(value, tuple(LEVELS)))
    events = table.texts("events", lambda value: _one_of(value, tuple(e.value for e in Event)))
    if table.has("events") and table.data["events"] == []:
        table.wrong("events", f"is empty: nothing would be told; choose from {', '.join(Event)}")
    return Destination(
        name,
        url or SecretFile(""),
        frozenset(Event(e) for e in events if e in set(Event)) or frozenset(Event),
        LEVELS.get(at_least, Status.WARNING),
        table.duration("remind", REMIND_LEAST_S, REMIND_MOST_S),
    )


def _hooks(table: Table) -> dict[HookEvent, Hook]:
    found = {event: table.table(event.value, lambda inner, event=event: _hook(inner, event)) for event in HookEvent}  # type: ignore[misc]
    return {event: hook for event, hook in found.items() if hook is not None}


def _hook(table: Table, event: HookEvent) -> Hook:
    command = table.texts("command")
    if not command and not (table.has("command") and table.data["command"]):
        table.wrong("command", 'missing: the program and its arguments, like ["/usr/local/bin/drain", "{target}"]')
    if command and not (command[0].startswith("/") or "/" not in command[0]):
        table.wrong("command", f"{command[0]!r} is relative: give the whole path, or a name that is found in $PATH")
    deadline = table.duration("deadline", 1.0, HOOK_LONGEST_S) or HOOK_DEADLINE_S
    if event is not HookEvent.BEFORE_DISRUPTION:
        return Hook(event, command, deadline)
    required, scope = table.flag("required") or not table.has("required"), table.text("at_least", _scope)
    return Hook(event, command, deadline, required, _scopes().get(scope, Scope.PROCESS))


def _scopes() -> dict[str, Scope]:
    return {scope.word: scope for scope in Scope}


def _scope(value: str) -> str:
    return _one_of(value, tuple(_scopes()))


def _one_of(value: str, choices: tuple[str, ...]) -> str:
    if value in choices:
        return ""
    close = nearest(value, choices)
    return f"{value!r} is none of {', '.join(choices)}" + (f": did you mean {close!r}?" if close else "")
