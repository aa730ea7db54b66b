"""Secrets in argument lists never leave the guest: an option that is named like a secret loses its value here."""

import re

from recover.guest.wire import Pattern

_WORD = r"(?:api[-_]?key|apikey|token|passw(?:or)?d|passphrase|secret|bearer|credentials?|authorization)"
_OPTION = Pattern(r"^-{1,2}[\w.-]*" + _WORD + r"$", re.I)
_JOINED = Pattern(r"((?:^|[\s'\"{,;&?])-{0,2}[\w.-]*" + _WORD + r"['\"]?\s*[=:]\s*['\"]?)([^\s'\"&,;}]+)", re.I)
_SPACED = Pattern(r"((?:^|\s)--?[\w.-]*" + _WORD + r"\s+)(?!-)(\S+)", re.I)
_URL = Pattern(r"(\b[a-zA-Z][\w+.-]{0,20}://[^/\s:@]{0,200}:)[^@\s/]{1,500}@")
_KNOWN = Pattern(r"\b(hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|AKIA[A-Z0-9]{16})")
# Most lists hold none of these, and to find that out by words costs a fifth of a search for a pattern.
_PERHAPS = ("key", "token", "passw", "passphrase", "secret", "bearer", "credential", "authorization", "://", "hf_", "sk-",
            "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "akia")  # fmt: skip
GONE = "***"


def redact_text(text: str) -> str:
    text = _JOINED.sub(r"\1" + GONE, text)
    text = _SPACED.sub(r"\1" + GONE, text)
    text = _URL.sub(r"\1" + GONE + "@", text)
    return _KNOWN.sub(GONE, text)


def perhaps(argv: "list[str]") -> bool:
    text = "\0".join(argv).casefold()  # as the patterns ignore case: U+017F is an s
    for word in _PERHAPS:
        if word in text:
            return True
    return False


def redact(argv: "list[str]") -> "list[str]":
    """The same list with secret values replaced."""
    if not perhaps(argv):
        return argv
    clean = []
    hide = False
    for word in argv:
        clean.append(GONE if hide and not word.startswith("--") else redact_text(word))
        hide = bool(_OPTION.match(word))
    return clean
