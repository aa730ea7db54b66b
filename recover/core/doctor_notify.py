"""Whether people would hear of it and hooks could be run: one point per destination and per program."""

from __future__ import annotations

from collections.abc import Sequence

from recover.core.doctor import Point, Status, secret_points


def told_points(name: str, why: str, warnings: Sequence[str]) -> tuple[Point, ...]:
    """`why` "": its URL was had and apprise understands it. Nothing was sent."""
    about = f"notify {name}"
    if not why:
        says = "its URL is there and apprise understands it (not sent)"
        return (Point(about, "message", Status.OK, says), *secret_points(about, warnings))
    command = why.partition("pip install ")[2]
    fix = f"pip install {command}" if command else f"mend what `url` of [notify.{name}] names, an apprise URL"
    return (Point(about, "message", Status.FAIL, why, fix, "nobody is told there"), *secret_points(about, warnings))


def hook_point(event: str, program: str, problem: str, *, required: bool) -> Point:
    """`problem` "": the program is there and may be run. `required`: without it no step is taken."""
    about = f"hook {event}"
    if not problem:
        return Point(about, "program", Status.OK, f"{program} can be run (it was not)")
    costs = "every step is declined" if required else "it is not run"
    return Point(about, "program", Status.FAIL, f"{program}: {problem}", f"correct `command` of [hooks.{event}]", costs)
