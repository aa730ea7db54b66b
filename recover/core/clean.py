"""Nothing that came from a machine reaches a terminal, a log or a report before it went through here."""

from __future__ import annotations

import re

# ECMA-48: CSI, OSC/DCS/APC/PM/SOS strings (also unended ones), other two- and three-byte escapes.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x9b[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
# C0, DEL, C1, soft hyphen, zero-width and bidi controls, line separators, BOM, interlinear marks, lone surrogates.
_CONTROLS = re.compile(
    "[\\x00-\\x1f\\x7f-\\x9f\\xad\\u061c\\u115f\\u1160\\u180e\\u200b-\\u200f\\u2028-\\u202f\\u2060-\\u206f\\u3164\\ufeff"
    "\\ufff9-\\ufffb\\ud800-\\udfff\\U000e0000-\\U000e007f]+"
)


def clean(text: str, limit: int = 4000) -> str:
    """One line without anything that a terminal would act on; runs of controls become one blank."""
    harmless = text.isascii() and text.isprintable()  # most of what there is, and a look cleans some thousand words
    plain = text.strip() if harmless else _CONTROLS.sub(" ", _ESCAPES.sub("", text)).strip()
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"


def clean_text(text: str) -> str:
    """Text of several lines for a file that a person will print: each line cleaned, blanks in it kept."""
    lines = text.replace("\t", "    ").replace("\r", "").split("\n")
    return "\n".join(_CONTROLS.sub(" ", _ESCAPES.sub("", line)) for line in lines)


def clean_lines(text: str, limit: int = 4000) -> tuple[str, ...]:
    """The non-empty lines of a text, each cleaned."""
    lines = (clean(line, limit) for line in text.replace("\r", "\n").split("\n"))
    return tuple(line for line in lines if line)
