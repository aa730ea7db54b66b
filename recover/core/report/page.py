"""A run as one page that needs nothing but itself: no script, no network, no font; what a machine said is only text."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence

from markupsafe import Markup

from recover.core.report.curves import Curves
from recover.core.report.headline import Record, stamp
from recover.core.report.html import Content, document, joined, link, sheet, tag
from recover.core.report.ledger import alike
from recover.core.report.page_style import CSS
from recover.core.report.page_time import chapters
from recover.core.report.plot import NARROW, WIDE, chart, elapsed
from recover.core.report.story import HookRow, Row, Story
from recover.core.report.words import UNKNOWN, count, size, span


def page(told: Story, record: Record) -> str:
    """The HTML of a report. Links are relative to where `record` says that the page will lie."""
    return document(_head(told), joined(_header(told), tag("main", *_sections(told, record)), _footer(record)))


def _head(told: Story) -> Markup:
    """Everything is forbidden but this very style sheet, by its hash: also a style that would slip in."""
    style = base64.b64encode(hashlib.sha256(CSS.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{style}'; base-uri 'none'; form-action 'none'"
    return joined(
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", f"{told.target}: {told.word.lower()} ({told.run})"),
        sheet(CSS),
    )


def _header(told: Story) -> Markup:
    exit_code = f"exit code {told.code}" if told.code is not None else "no exit code"
    after = "Next" if told.next else None
    return tag(
        "header",
        tag("p", "gpu-recover: report of a run", class_="kicker"),
        tag("h1", told.target),
        tag(
            "div",
            tag("p", told.word, " ", tag("span", exit_code, class_="code"), class_="word"),
            tag("p", _sentence(told.why)),
            tag("p", tag("strong", after), tag("code", told.next, class_="next")) if after else None,
            class_=f"verdict {told.tone}",
        ),
        _list(told.notices, "notices"),
        tag("dl", *(tag("div", tag("dt", k), tag("dd", v)) for k, v in told.facts), class_="facts"),
    )


def _sections(told: Story, record: Record) -> list[Markup]:
    owed = any(debt.settled_at is None for debt in told.duties)
    found = [
        _section("Memory over the run", _memory(told), bool(told.curves)),
        _section("Rungs", joined(_rungs(told), _passed_over(told)), True),
        _section("What was wrong", _findings(told), True),
        _section("Why it happened", _list(told.cause), bool(told.cause)),
        _section("Who was stopped or disturbed", _list(told.hits) or tag("p", "Nobody."), True),
        _section("Service", tag("p", told.service, class_=told.service_tone), True),
        _section("Hooks", _hooks(told), bool(told.hooks)),
        _section("Changed and put back" + (": NOT ALL" if owed else ""), _duties(told, record), True),
        _section("Not seen", _list(told.gaps), bool(told.gaps)),
        _section("Timeline", chapters(told.chapters, told.began, record.zone), True),
        _section("Evidence", _evidence(told), True),
    ]
    return [section for section in found if section is not None]


def _section(title: str, inner: Markup | None, shown: bool) -> Markup | None:
    return tag("section", tag("h2", title), inner) if shown else None


def _footer(record: Record) -> Markup:
    return tag("footer", tag("p", f"Made at {stamp(record.now, record.zone)} from the run's journal alone. "
                             "Times are those of the machine on which gpu-recover ran."))  # fmt: skip


def _list(lines: Iterable[str], class_: str | None = None) -> Markup | None:
    items = [tag("li", line) for line in lines]
    return tag("ul", *items, class_=class_) if items else None


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


# -- memory


def _memory(told: Story) -> Markup | None:
    if told.curves is None:
        return None
    words = in_words(told)
    return joined(
        tag("figure", chart(told.curves, WIDE, words), chart(told.curves, NARROW, words), _caption(told.curves)),
        _figures(told),
    )


def in_words(told: Story) -> str:
    """The chart for who can't see it: what the table below it says in full."""
    rows = "; ".join(f"{r.label}: {size(r.before)} before, {size(r.verdict)} after" for r in told.figures)
    bands = ", ".join(f"{r.number} {r.step}" for r in told.rungs)
    return f"{rows or 'no figures'}. Rungs: {bands or 'none'}. All figures are in the table that follows."


def _caption(curves: Curves) -> Markup:
    parts = ["Solid: look by look. Dotted: something was done in between, and nobody saw the way."]
    if any(p.mib is None for c in (*curves.gpus, *((curves.ram,) if curves.ram else ())) for p in c.points):
        parts.append("Hatched, with a question mark: not known.")
    if curves.bands:
        parts.append("Grey strips with numbers: the rungs, as numbered below.")
    if curves.ram is not None and curves.ram.baseline is not None:
        parts.append("Dashed: the baseline.")
    if curves.verdict_at is not None:
        parts.append("Upright line: the look that decided the end; the figures are from before the first try to there.")
    if curves.pauses:
        parts.append("Full strip with dots: nobody worked on the run, and the time is folded.")
    seen = f"{count(curves.looks, 'look')}" + (f", {curves.unseen} without the guest" if curves.unseen else "")
    return tag("figcaption", " ".join(parts), f" {seen}.")


def _figures(told: Story) -> Markup | None:
    if not told.figures:
        return None
    later = any(r.now != r.verdict for r in told.figures)
    heading = ("", "before", "peak", "verdict", *(("now",) if later else ()))
    rows = [_cells(row)[: len(heading)] for row in told.figures]
    caption = (
        "Before: at the last look before the first try. Peak: over the whole run; of RAM the least available. "
        "Verdict: at the look that decided the end." + (" Now: at the last look." if later else "")
    )
    return table(heading, rows, caption, frozenset({1, 2, 3, 4}), "figures")


def _cells(row: Row) -> list[Content]:
    base = f"baseline {row.baseline}" if row.baseline.endswith("B") else row.baseline
    beneath = ", ".join(word for word in (row.where.removeprefix("00000000:"), base) if word)
    name = joined(row.label, tag("span", beneath, class_="sub") if beneath else None)
    return [name, size(row.before), size(row.extreme), size(row.verdict), size(row.now)]


def table(
    heading: Sequence[str],
    rows: Sequence[Sequence[Content]],
    caption: str = "",
    numbers: frozenset[int] = frozenset(),
    class_: str = "cards",
    tight: frozenset[int] = frozenset(),
) -> Markup:
    """As `cards` each row becomes a card on a phone, whose cells carry their column's name.

    `tight`: columns of our own short words, which are never broken within a word.
    """
    kinds = {i: "num" if i in numbers else "tight" if i in tight else None for i in range(len(heading))}

    def cell(i: int, content: Content) -> Markup:
        inner = tag("div", content)
        if i == 0:
            return tag("th", inner, scope="row", data_label=heading[0] or None)
        return tag("td", inner, data_label=heading[i], class_=kinds[i])

    def head(i: int, name: str) -> Markup:
        return tag("th", name, scope="col", class_=kinds[i])

    body = (tag("tr", *(cell(i, content) for i, content in enumerate(row))) for row in rows)
    return tag(
        "table",
        tag("caption", caption) if caption else None,
        tag("thead", tag("tr", *(head(i, name) for i, name in enumerate(heading)))),
        tag("tbody", *body),
        class_=class_,
    )


# -- rungs, findings, duties, evidence


def _rungs(told: Story) -> Markup:
    if not told.rungs:
        return tag("p", "Nothing was tried.")
    rows: list[list[Content]] = [
        [
            joined(
                tag("span", str(r.number), class_="no"), " ", r.step, f" (try {r.attempt})" if r.attempt > 1 else ""
            ),
            r.scope,
            tag("span", r.said, class_=r.tone),
            span(r.took_s) if r.took_s is not None else UNKNOWN,
            r.detail or "no word",
        ]
        for r in told.rungs
    ]
    return table(("rung", "scope", "ended", "took", "what it said"), rows, tight=frozenset({1, 2, 3}))


def _passed_over(told: Story) -> Markup | None:
    lines = _list(told.passed_over)
    return joined(tag("h3", "Why no other rung"), lines) if lines is not None else None


def _findings(told: Story) -> Markup:
    healthy = told.end in ("recovered", "healthy")
    nothing = "Nothing: healthy." if healthy else "Nothing that could be proved."
    slow = [f"May go away by itself: {text}" for text in told.ripening]
    after = _list([*told.findings_after, *slow]) or tag("p", nothing)
    before = _list(told.findings_before) or tag("p", "Nothing that could be proved.")
    return tag(
        "div",
        tag("div", tag("h3", "Before the first try" if told.rungs else "At the first look"), before),
        tag("div", tag("h3", "At the last look"), after),
        class_="pair",
    )


def _hooks(told: Story) -> Markup:
    rows: list[list[Content]] = [
        [
            joined(h.name, tag("span", hook_words(h), class_="sub") if hook_words(h) else None),
            f"+{_since(h.began, told.began)}",
            tag("span", h.said, class_=h.tone),
            span(h.took_s) if h.took_s is not None else UNKNOWN,
            h.detail or "no word",
        ]
        for h in told.hooks
    ]
    return table(("hook", "when", "ended", "took", "what it said"), rows, tight=frozenset({1, 2, 3}))


def hook_words(hook: HookRow) -> str:
    """Which program it was, and before which rung."""
    return ", ".join(word for word in (hook.program, f"before {hook.step}" if hook.step else "") if word)


def _duties(told: Story, record: Record) -> Markup:
    if not told.duties:
        return tag("p", "Nothing was changed that had to be put back.")
    rows: list[list[Content]] = [
        [
            debt.what,
            f"+{_since(debt.opened_at, told.began)}",
            f"+{_since(debt.settled_at, told.began)}"
            if debt.settled_at is not None
            else tag("strong", "open", class_="bad"),
            debt.how if debt.settled_at is not None else tag("span", debt.how, class_="bad"),
        ]
        for debt in alike(told.duties)
    ]
    return table(("owed", "since", "settled", "how"), rows, tight=frozenset({1, 2}))


def _since(at: float, began: float) -> str:
    return elapsed(at - began)


def _evidence(told: Story) -> Markup:
    files = [
        tag("li", link(f.path, f.name) if f.path else f.name, f" ({_bytes(f.size)})" if f.size is not None else "")
        for f in (*((told.journal,) if told.journal is not None else ()), *told.files)
    ]
    where = tag("p", "Kept in ", tag("code", told.evidence)) if told.evidence else None
    missing = _list([f"Missing: {m}" for m in told.missing])
    return joined(where, tag("ul", *files) if files else tag("p", "Nothing was kept."), missing)


def _bytes(amount: int) -> str:
    return f"{amount} bytes" if amount < 1024 else f"{amount / 1024:.0f} KiB"
