"""No secret of a command line gets further than here: an option named like a secret loses its value.

The agent does this in the guest already; a look that came another way (`ps`, a pasted log) passes here first.
"""

from __future__ import annotations

import re

GONE = "***"
_NAME = r"(?:api[-_]?key|apikey|token|passw(?:or)?d|passphrase|secret|bearer|credentials?|authorization)"
_OPTION = re.compile(rf"^-{{1,2}}[\w.-]*{_NAME}$", re.IGNORECASE)
_JOINED = re.compile(
    rf"((?:^|[\s'\"{{,;&?])-{{0,2}}[\w.-]*{_NAME}['\"]?\s*[=:]\s*['\"]?)([^\s'\"&,;}}]+)", re.IGNORECASE
)
_SPACED = re.compile(rf"((?:^|\s)--?[\w.-]*{_NAME}\s+)(?!-)(\S+)", re.IGNORECASE)
_URL = re.compile(r"(\w+://[^/\s:@]*:)[^@\s/]+@")
_KNOWN = re.compile(r"\b(hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|AKIA[A-Z0-9]{16})")


def redact(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The same words with secret values replaced."""
    clean: list[str] = []
    hide = False
    for word in argv:
        clean.append(GONE if hide and not word.startswith("--") else redact_text(word))
        hide = _OPTION.match(word) is not None
    return tuple(clean)


def redact_text(text: str) -> str:
    text = _JOINED.sub(rf"\g<1>{GONE}", text)
    text = _SPACED.sub(rf"\g<1>{GONE}", text)
    text = _URL.sub(rf"\g<1>{GONE}@", text)
    return _KNOWN.sub(GONE, text)
