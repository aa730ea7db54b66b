"""A run as Markdown for a ticket: no HTML in it, and what a machine said can neither format, link nor call anybody."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from recover.core.clean import clean
from recover.core.report.headline import Record, stamp
from recover.core.report.ledger import alike
from recover.core.report.plot import elapsed
from recover.core.report.story import Row, Story
from recover.core.report.timeline import Chapter
from recover.core.report.words import UNKNOWN, size, span

LIMIT = 600  # characters of one text: a ticket is read, not searched
# What a word may not hold to stand as it is. Beside what CommonMark and GitHub's tables give a meaning: @name and #12
# call people and other tickets (also behind a backslash), :word: becomes a picture, addresses become links.
_ACTIVE = re.compile(r"[\\`*_<>|#@!~$^&{}]|://|www\.|mailto:|\w\.\w+/|:(?:[a-z][\w+-]*|[+-]1|100|1234):", re.IGNORECASE)
_BRACKETS = re.compile(r"([\[\]])")  # they only make links, and a backslash ends that
_OPENS = re.compile(r"[-+=]+|\d+[.)]")  # at the beginning of a line these make a list, a heading or a rule


def markdown(told: Story, record: Record) -> str:
    """The whole report. Links are not made: a ticket does not lie where the evidence does, so paths are named."""
    code = f"exit code {told.code}" if told.code is not None else "no exit code"
    lines = [f"# {plain(told.target)}: {told.word}", "", f"{plain(told.why)} ({code})", ""]
    lines += [f"**Next:** {code_span(told.next)}", ""] if told.next else []
    lines += _list(f"**Note:** {plain(n)}" for n in told.notices)
    lines += _table(("", ""), [(plain(key), plain(value)) for key, value in told.facts])
    lines += _section("Memory", _memory(told))
    lines += _section("Rungs", _rungs(told))
    before = "Before the first try" if told.rungs else "At the first look"
    lines += _section(
        "What was wrong", [*_group(before, told.findings_before), *_group("At the last look", _after(told))]
    )
    lines += _section("Why it happened", _list(map(plain, told.cause)))
    lines += _section("Who was stopped or disturbed", _list(map(plain, told.hits)) or ["Nobody.", ""])
    lines += _section("Service", [plain(told.service), ""])
    lines += _section("Hooks", _hooks(told))
    lines += _section("Changed and put back", _duties(told))
    lines += _section("Not seen", _list(map(plain, told.gaps)))
    lines += _section("Timeline", _timeline(told))
    lines += _section("Evidence", _evidence(told))
    return "\n".join([*lines, f"Made at {stamp(record.now, record.zone)} from the run's journal alone."]) + "\n"


def plain(text: str) -> str:
    """A machine's words as words: each that Markdown would act on stands in a code span of its own."""
    words = clean(text, LIMIT).split()
    shown = [
        code_span(w) if _ACTIVE.search(w) or (i == 0 and _OPENS.fullmatch(w)) else _BRACKETS.sub(r"\\\1", w)
        for i, w in enumerate(words)
    ]
    return " ".join(shown)


def code_span(text: str) -> str:
    """Fenced by more backticks than stand in it in a row."""
    inner = clean(text, LIMIT)
    fence = "`" * (max((len(run) for run in re.findall("`+", inner)), default=0) + 1)
    gap = " " if inner[:1] == "`" or inner[-1:] == "`" else ""
    return f"{fence}{gap}{inner}{gap}{fence}"


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return [f"## {title}", "", *lines] if lines else []


def _list(lines: Iterable[str]) -> list[str]:
    found = [f"- {line}" for line in lines]
    return [*found, ""] if found else []


def _group(title: str, lines: Sequence[str]) -> list[str]:
    return [f"{title}:", "", *(_list(map(plain, lines)) or ["- nothing that could be proved", ""])]


def _after(told: Story) -> list[str]:
    return [*told.findings_after, *(f"may go away by itself: {text}" for text in told.ripening)] or (
        ["nothing: healthy"] if told.end in ("recovered", "healthy") else []
    )


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Cells are Markdown already; a pipe in one would be another column, also within code, so it is a broken bar."""
    lines = [f"| {' | '.join(heading)} |", "|" + "---|" * len(heading)]
    return [*lines, *(f"| {' | '.join(cell.replace('|', '¦') for cell in row)} |" for row in rows), ""] if rows else []


def _memory(told: Story) -> list[str]:
    later = any(r.now != r.verdict for r in told.figures)
    heading = ("", "address", "before", "peak (RAM: least)", "verdict", *(("now",) if later else ()), "baseline")
    return _table(heading, [_cells(row, later) for row in told.figures])


def _cells(row: Row, later: bool) -> tuple[str, ...]:
    now = (size(row.now),) if later else ()
    return (
        row.label,
        plain(row.where),
        size(row.before),
        size(row.extreme),
        size(row.verdict),
        *now,
        plain(row.baseline),
    )


def _rungs(told: Story) -> list[str]:
    rows = [
        (str(r.number), plain(r.step) + (f" (try {r.attempt})" if r.attempt > 1 else ""), r.scope, r.said,
         span(r.took_s) if r.took_s is not None else UNKNOWN, plain(r.detail))
        for r in told.rungs
    ]  # fmt: skip
    found = _table(("no.", "rung", "scope", "ended", "took", "what it said"), rows) or ["Nothing was tried.", ""]
    return [*found, *(["Why no other rung:", "", *_list(map(plain, told.passed_over))] if told.passed_over else [])]


def _hooks(told: Story) -> list[str]:
    rows = [
        (plain(h.name), plain(h.program), plain(h.step), f"+{elapsed(h.began - told.began)}", h.said,
         span(h.took_s) if h.took_s is not None else UNKNOWN, plain(h.detail))
        for h in told.hooks
    ]  # fmt: skip
    return _table(("hook", "program", "before rung", "when", "ended", "took", "what it said"), rows)


def _duties(told: Story) -> list[str]:
    rows = [
        (plain(d.what), f"+{elapsed(d.opened_at - told.began)}",
         f"+{elapsed(d.settled_at - told.began)}" if d.settled_at is not None else "**open**", plain(d.how))
        for d in alike(told.duties)
    ]  # fmt: skip
    return _table(("owed", "since", "settled", "how"), rows) or ["Nothing was changed that had to be put back.", ""]


def _timeline(told: Story) -> list[str]:
    return [line for chapter in told.chapters for line in _chapter(chapter, told.began)]


def _chapter(chapter: Chapter, began: float) -> list[str]:
    number = f"{chapter.number}: " if chapter.number else ""
    said = f" ({chapter.said})" if chapter.said else ""
    lines = []
    for item in chapter.items:
        often = f" ({item.times} times, until +{elapsed(item.until - began)})" if item.times > 1 else ""
        lines.append(f"+{elapsed(item.at - began)} {plain(item.text)}{often}")
    return [f"**{number}{plain(chapter.title)}**{said}", "", *_list(lines)]


def _evidence(told: Story) -> list[str]:
    journal = [f"journal: {code_span(told.journal.name)}"] if told.journal is not None else []
    where = [f"kept in {code_span(told.evidence)}"] if told.evidence else []
    files = [code_span(f.name) for f in told.files]
    missing = [f"missing: {plain(m)}" for m in told.missing]
    return _list([*journal, *where, *files, *missing]) or ["Nothing was kept.", ""]
