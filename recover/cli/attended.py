"""What `check` does beside looking where it was asked to: remember how targets stand, and act within the limits."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recover.cli.common import note
from recover.core.clean import clean
from recover.core.report.words import span

if TYPE_CHECKING:
    from recover.attendant import Attended
    from recover.core.past import Past
    from recover.core.report.check.verdict import Checked
    from recover.model.snapshot import Target
    from recover.model.watch import Standing
    from recover.watcher import Watched, Watcher
    from recover.wiring import App, Wired

Json = dict[str, Any]
Again = Callable[[list["Target"]], list["Checked"]]


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for. Without `recover` nothing is done to anybody; without `watch` nothing is written at all."""

    watch: bool = False
    recover: bool = False
    dry_run: bool = False

    @property
    def writes(self) -> bool:
        return self.watch or (self.recover and not self.dry_run)


@dataclass(slots=True)
class Attention:
    """One check with a memory. `watched` and `attended` are by target; `attended` is empty where nothing was asked."""

    opened: App
    wish: Wish
    watcher: Watcher
    quiet: bool
    watched: dict[str, Watched]
    attended: dict[str, Attended]

    def __call__(self, targets: Sequence[Target], seen: list[Checked], again: Again) -> list[Checked]:
        self.remember(seen)
        return self.act(targets, seen, again)

    def before(self, target: str) -> Past | None:
        return self.watcher.before(target)

    def remember(self, seen: Sequence[Checked]) -> None:
        if not self.wish.writes:
            self.watched |= {w.standing.target: w for w in self.watcher.would(seen)}
            return
        found, failed = self.watcher.checked(*seen)
        self.watched |= {w.standing.target: w for w in found}
        for said in (*(t for w in found for t in w.trouble), *failed):
            note(f"gpu-recover check: {clean(said, 600)}")

    def act(self, targets: Sequence[Target], seen: list[Checked], again: Again) -> list[Checked]:
        """Act, or say what would be done; what was acted on is looked at again and remembered."""
        from recover.core.unattended import Candidate
        from recover.wiring.watch import attendant, picture

        if not self.wish.recover:
            return seen
        fleet = picture(self.opened.config, self.opened.state, seen)
        by_name = {t.name: t for t in targets}
        who = attendant(self.opened, by_name, self._view, self._bug, self._told, dry=self.wish.dry_run)
        now = who.clock.now()
        found = [
            Candidate(one, self.watched[one.target].standing, now, self.watched[one.target].trouble) for one in seen
        ]
        answers = who.would(found, fleet) if self.wish.dry_run else who.attend(found, fleet)
        self.attended |= {answer.target: answer for answer in answers}
        for said in (t for answer in answers for t in answer.trouble):
            note(f"gpu-recover check: {clean(said, 600)}")
        acted = [t for t in targets if (a := self.attended[t.name]).rule == "acted" and a.ended is not None]
        if not acted:
            return seen
        anew = {one.target: one for one in again(acted)}
        self.remember(list(anew.values()))
        return [anew.get(one.target, one) for one in seen]

    def _view(self, wired: Wired) -> Any:
        from recover.cli.views import view_for

        quiet, name = self.quiet or self.wish.dry_run, clean(wired.target.name)
        return view_for(wired.playbook, quiet=quiet, verbose=True, now=wired.clock.now, about=name)

    def _told(self, who: str) -> None:
        """Called from a signal handler, while several runs go on."""
        if not self.quiet:
            from recover.cli.plain import PlainView

            PlainView().told(who)

    def _bug(self, error: Exception) -> None:
        from recover.cli.trouble import bug

        bug(error, str(self.opened.state.root))

    def more(self, target: str) -> Json:
        """Keys that stand with a target's data, only where they were asked for."""
        found: Json = {}
        if target in self.watched:
            found["standing"] = standing_data(self.watched[target])
        if target in self.attended:
            found["acted"] = acted_data(self.attended[target], dry=self.wish.dry_run)
        return found

    def lines(self) -> list[str]:
        """For people: what is not simply as the look says, then what was done and why not."""
        said = {a.target for a in self.attended.values() if a.rule in ("soft", "flapping")}
        stands = [stands_line(w.standing) for target, w in self.watched.items() if target not in said]
        return [*filter(None, stands), *(attended_line(a) for a in self.attended.values() if a.rule != "not-critical")]

    def standings(self) -> dict[str, Standing]:
        """How each target stands after this check."""
        return {target: watched.standing for target, watched in self.watched.items()}

    def metrics(self) -> str:
        """The breaker for the textfile collector, as the exporter gives it; nothing where it can't be told."""
        from recover.cli.breaker import is_open
        from recover.core.report.check.prometheus import EXPORTER_METRICS

        name, found = "gpu_recover_breaker_open", is_open(self.opened.state)
        kind, says = EXPORTER_METRICS[name]
        return "" if found is None else f"# HELP {name} {says}\n# TYPE {name} {kind}\n{name} {int(found)}\n"


def attention(opened: App, wish: Wish, *, quiet: bool) -> Attention:
    """All that must be right is asked now, before anything is looked at. Raises UsageProblem.

    Not the state folder: a disk that is full must blind nobody, and without its ledger nothing is done anyway.
    """
    from recover.wiring.watch import playbook_of

    if wish.recover:
        playbook_of(opened)
    return Attention(opened, wish, opened.watcher(opened.herald()), quiet, {}, {})


def standing_data(watched: Watched) -> Json:
    standing, state = watched.standing, watched.standing.state
    return {
        "state": state.status.name if state is not None else None,
        "since": round(standing.since, 3) if state is not None else None,
        "signals": [clean(s) for s in state.signals] if state is not None else [],
        "soft": _is_soft(standing),
        "flapping": standing.flapping,
        "changed": watched.change is not None,
        "trouble": [clean(t) for t in watched.trouble],
    }


def acted_data(one: Attended, *, dry: bool) -> Json:
    """`acted` says whether anything was begun; `rule` is acted, would-act, or what forbade it."""
    ended = one.ended
    return {
        "acted": one.rule == "acted",
        "rule": one.rule,
        "why": clean(one.why),
        "run": (ended.run or None) if ended is not None else None,
        "end": ended.end if ended is not None and not dry else None,
        "exit_code": ended.code if ended is not None else None,
        "dry_run": dry,
    }


def stands_line(standing: Standing) -> str:
    """One line where the look and the state differ, or where it is flapping."""
    from recover.core.watch import soft

    state, newest = standing.state, soft(standing)
    was = f"{state.status.name} for {span(time.time() - standing.since)}" if state is not None else "no state yet"
    if standing.flapping:
        return f"{clean(standing.target)}: FLAPPING, {len(standing.changed)} turns lately; {was}"
    if newest is None:
        return ""
    same = sum(r.status is newest.status for r in standing.recent)
    looks = len(standing.recent)
    seen = f"in {same} of the last {looks} looks" if looks > 1 else "in the only look that counts"
    return f"{clean(standing.target)}: soft {newest.status.name}, {seen}; {was}"


def attended_line(one: Attended) -> str:
    name, why = clean(one.target), clean(one.why, 600)
    match one.rule:
        case "acted" if one.ended is not None:
            run = f" (run {clean(one.ended.run)})" if one.ended.run else ""
            return f"{name}: acted on, {one.ended.end}{run}: {why}"
        case "would-act":
            return f"{name}: {why}"
        case _:
            return f"{name}: not acted on ({one.rule}): {why}"


def _is_soft(standing: Standing) -> bool:
    from recover.core.watch import soft

    return soft(standing) is not None
