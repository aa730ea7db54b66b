"""The timeline on the page: chapter by chapter, each thing with its time, its kind in a word, and what it said."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import tzinfo

from markupsafe import Markup

from recover.core.report.headline import clock
from recover.core.report.html import joined, tag
from recover.core.report.plot import elapsed
from recover.core.report.timeline import Chapter, Item
from recover.core.report.words import count

WORDS = {
    "run": "run", "look": "look", "wait": "wait", "next": "decided", "yes": "consent", "no": "refused",
    "act": "act", "back": "put back", "kept": "evidence", "hook": "hook", "stop": "stop", "end": "end",
}  # fmt: skip


def chapters(told: Iterable[Chapter], began: float, zone: tzinfo) -> Markup:
    return joined(_chapter(chapter, began, zone) for chapter in told)


def _chapter(chapter: Chapter, began: float, zone: tzinfo) -> Markup:
    number = tag("span", str(chapter.number), class_="no") if chapter.number else None
    said = joined(" ", tag("span", chapter.said, class_=f"end {chapter.tone}")) if chapter.said else None
    title = tag("h3", number, " " if number else None, chapter.title, said)
    return tag(
        "div",
        title,
        tag("ol", *(_item(item, began, zone) for item in chapter.items), class_="items"),
        class_=f"chapter {chapter.tone}",
    )


def _item(item: Item, began: float, zone: tzinfo) -> Markup:
    when = tag("time", f"+{elapsed(item.at - began)}", title=clock(item.at, zone))
    often = f" ({item.times} times, until +{elapsed(item.until - began)})" if item.times > 1 else ""
    more = None
    if item.more:
        lines = tag("ul", *(tag("li", line) for line in item.more))
        more = tag("details", tag("summary", count(len(item.more), "line")), lines)
    return tag(
        "li",
        when,
        tag("span", WORDS[item.kind], class_="kind"),
        tag("div", shorn(item), tag("span", often, class_="times") if often else None, more, class_="what"),
        class_=item.tone if item.tone != "plain" else None,
    )


def shorn(item: Item) -> str:
    """The words without those that the kind says already."""
    for start in ("looked: ", "waiting: ", "next: ", "end: ", "hook "):
        if item.text.startswith(start):
            return item.text[len(start) :]
    return item.text
