"""What stands around a command in a script: how often it runs, what does not belong to it, what it leaves behind.

A server that is started in the background of a loop is as many servers as the loop runs; one that is started in the
foreground is one at a time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from recover.core.budget.commands import MENTION, base, detached
from recover.core.budget.model import Launch, Unresolved
from recover.core.budget.shell import Command
from recover.core.clean import clean

_MOST = 64  # servers of one command: more is a slip


def marked(launches: list[Launch], commands: Sequence[Command], at: int) -> list[Launch]:
    """The launches of one command, with how many there are and with the options that were cut off from it."""
    if not launches:
        return launches
    command = commands[at]
    number, why = _copies(command, commands)
    more = _cut_off(commands, at)
    if why:
        more.append(Unresolved(f"line {command.line}", why, matters=True))
    stays = command.background or detached(command.words) or _called_apart(command, commands)
    return [
        replace(
            one,
            copies=one.copies * number,
            unresolved=(*one.unresolved, *more),
            text="" if more else one.text,
            stays=one.stays or stays,
            arms=(*command.arms, *one.arms),
        )
        for one in launches
    ]


def _called_apart(command: Command, commands: Sequence[Command]) -> bool:
    names = {block.function for block in command.blocks if block.function}
    return any(c.background for c in commands if c.words[0].text in names)


def _copies(command: Command, commands: Sequence[Command]) -> tuple[int, str]:
    """How many servers the command starts beside each other, or why it is not known."""
    apart = command.background or detached(command.words)
    number = _times(command) if apart else 1
    function = next((block.function for block in reversed(command.blocks) if block.function), "")
    if function:
        calls = [c for c in commands if c.words[0].text == function]
        rounds = [_times(c) for c in calls if apart or c.background]
        if None in rounds:
            number = None
        elif number is not None and rounds:
            number *= max(1, sum(r for r in rounds if r is not None))
    if number is None or number > _MOST:
        return 1, "it is started in the background of a loop: how many servers run is not known"
    return max(1, number), ""


def _times(command: Command) -> int | None:
    times = [block.times for block in command.blocks if block.loop]
    return None if None in times else prod(t for t in times if t is not None)


def _cut_off(commands: Sequence[Command], at: int) -> list[Unresolved]:
    """Lines of options that follow and that nothing joins to it: a blank after the backslash, a comment between."""
    found = []
    for command in commands[at + 1 :]:
        first = command.words[0]
        if not re.match(r"--?[A-Za-z]", first.text) or command.line == commands[at].line:
            break
        why = f"line {command.line} is a command of its own: the line before it does not go on"
        found.append(Unresolved(clean(first.text, 80), why, matters=True))
    return found


def unfollowed(command: Command) -> list[str]:
    """Why nothing was found in a command that may start a server."""
    first = command.words[0]
    texts = [word.text for word in command.words]
    if first.unclear and not re.match(r"[\w./-]*/", first.text):
        return [f"line {command.line}: {clean(first.text, 60)}: {first.unclear}"]
    if {base(t) for t in texts[:2]} & {"docker-compose", "compose"} and "up" in texts:
        return [f"line {command.line}: {clean(' '.join(texts), 60)}: give the compose file itself"]
    if any(word.unclear and MENTION.search(word.text) for word in command.words):
        return [f"line {command.line}: it can't be read: {next(w.unclear for w in command.words if w.unclear)}"]
    return []


def written(command: Command) -> tuple[str, str | None] | None:
    """The file that a command makes and its text, None where that is not known."""
    texts = [word.text for word in command.words]
    program = next((base(t) for t in texts if base(t) != "sudo"), "")
    names = [t for t in texts[texts.index(program) + 1 :] if not t.startswith("-")] if program in texts else []
    name = command.io.writes
    if program == "tee" and names:
        name = names[0]
    elif program not in {"cat", "echo", "printf", "tee"} or not name:
        return None
    if name.startswith("/dev/"):
        return None
    known = command.io.reads and program in {"cat", "tee"} and not command.blocks and (program == "tee" or not names)
    return name, command.io.reads if known else None
