"""The only place where markup is made: every text is cleaned and escaped, and no element that could act exists.

Markup is a type (MarkupSafe, of the same makers as click): what is a plain `str` cannot get onto the page unescaped,
and mypy sees where one is taken for the other. A template language would add a loader and filters, and find less.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote

from markupsafe import Markup, escape

from recover.core.clean import clean

LIMIT = 1200  # characters of one text; what is longer than this tells nobody more
_DRAWING = 1 << 22  # of one attribute: half a path is no path, and no machine's words stand in attributes
_VOID = frozenset({"meta", "br"})
_KNOWN = _VOID | {
    "html", "head", "title", "style", "body", "header", "main", "footer", "section", "h1", "h2", "h3", "p", "ul",
    "ol", "li", "dl", "dt", "dd", "div", "span", "strong", "em", "code", "table", "caption", "thead", "tbody", "tr",
    "th", "td", "details", "summary", "a", "time", "figure", "figcaption", "svg", "desc", "g", "defs", "pattern",
    "rect", "path", "line", "circle", "text",
}  # fmt: skip

Content = str | Markup | None


def tag(name: str, /, *children: Content | Iterable[Content], **attributes: str | float | None) -> Markup:
    """One element. `class_` and `stroke_width` are written class and stroke-width; an attribute None is left out.

    Raises ValueError for an element that has no place on a page which only shows.
    """
    if name not in _KNOWN:
        raise ValueError(f"{name!r} is no element of a report")
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(clean(_figure(value), _DRAWING))}"'
        for key, value in attributes.items()
        if value is not None
    )
    opened = f"<{name}{given}>"
    return Markup(opened if name in _VOID else f"{opened}{joined(*children)}</{name}>")


def joined(*children: Content | Iterable[Content]) -> Markup:
    """Several pieces, one after the other."""
    found: list[str] = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Markup):
            found.append(child)
        elif isinstance(child, str):
            found.append(_text(child))
        else:
            found.append(joined(*child))
    return Markup("".join(found))


def _text(text: str) -> str:
    """Cleaned and escaped; one blank at either end, which separates it from its neighbours, is kept."""
    if not text.strip():
        return " " if text else ""
    inner = str(escape(clean(text, LIMIT)))
    return (" " if text[0] == " " else "") + inner + (" " if text[-1] == " " else "")


def _figure(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")


def link(path: str, text: str) -> Markup:
    """A link to a file beside the page. Every character that could make it anything else is quoted."""
    return tag("a", text, href="./" + quote(path.encode("utf-8", "replace"), safe="/."))


def sheet(css: str) -> Markup:
    """Our own style, as it is written here: never a word that came from a machine."""
    return Markup(f"<style>{css}</style>")


def document(head: Markup, body: Markup) -> str:
    return str(Markup("<!doctype html>\n") + tag("html", tag("head", head), tag("body", body), lang="en")) + "\n"
