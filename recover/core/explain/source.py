# ruff: noqa: E501
"""Source code and rules that quote a machine's message are nobody's trouble: such a line is told by its own syntax.

What a program printed is never taken for code by its words alone: the form of a statement, of a string in a list or of
a shell's pipeline is asked for. Prose is another thing: `is_advice` knows the words of a condition before a message.
"""

from __future__ import annotations

import re

_STRING = r"""(?:"[^"]*"|'[^']*'|`[^`]*`)"""
_STATEMENT = re.compile(
    r"""(?:if|elif|while|switch|for|foreach|except|catch|match|with|until)\b.*(?:[:{;)\]]|\bthen|\bdo)$"""
    r"""|\} ?(?:else|catch)\b|(?:return|raise|throw|assert|yield|case|def|class|import|const|let|var|func|fn|echo|printf|print) ?[("'\w]"""
    r"""|(?:e|z|f)?grep |rg -|\#(?:include|define|!/)|//|/\*"""
    r"""|[\w.:>-]+!?(?<!Error)(?<!Exception)(?<!Warning)\((?:[\w.&*\[\]]+(?:\(|, *))*[rbfuL]{0,2}["'`]"""  # NV_PRINTF(LEVEL_ERROR, "…
    r"""|[\w.:>-]+!?\(.*["'`]\)*;$"""  # log_warning(UNIT(n), "…");
    r"""|[\w.\[\]]+ (?::|\+)?= [\[({"'\w]|[\w ]*\b[A-Za-z_]\w* = ?$"""
    rf"""|(?:(?:readonly|export|local|declare|const|let|var) )?[A-Za-z_]\w*={_STRING}(?: *[;#].*)?$"""
    rf"""|[rbf]{{0,2}}{_STRING} ?[,;)\]]+$|[rbf]{_STRING}$|\{{ ?{_STRING}, """
    r"""|\{ ?\w+: ?["'`]|(?:\w[\w-]*|'[^']*'): ?\[?["'`].*[,\]]$|"[^"]*\\$"""
)
# Of a value in a log as well: what nothing stands before is code.
_AT_THE_START = re.compile(
    r"""\#(?!PF: )[A-Za-z]|\(?[\w.]+\([rbf]?["'`].*["'`]\)*[,;]?$|\([\w.]+\([rbf]?["'`]"""
    rf"""|\*?\(+(?:[\w.]+\()?[rbf]?{_STRING}.*[,)\]]$|[rbf]?{_STRING}(?:, .*)?,$|[A-Za-z_]\w*=\S.*["'\])],$|(?=.*\),$)\(?\{{.*\}},? """
    r"""|(?=.*["'`]\)+[,;]$)[\w.]+\(.*[=(, ][\w.]*\(["'`]"""
)
_ALONE = re.compile(rf"[rbf]?{_STRING}$")
_STARTS = frozenset("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_\"'`{}#/(")
_PIPE = re.compile(
    r"(?:sudo )?(?:(?:dmesg|journalctl|cat|tail|head|zcat|awk|sed|kubectl|docker|python3?|bash|sh|node) .*?(?:\|| -\w|[\"'/])|nvidia-smi (?:-\w|\|))"
)
_COMMAND = frozenset(
    ("sudo", "dmesg", "journalctl", "cat", "tail", "head", "zcat", "awk", "sed", "kubectl", "docker", "nvidia-smi", "python", "python3", "bash", "sh", "node")
)  # fmt: skip
# A rule of a monitor: what follows its pattern in the same block is its own text.
_RULE = re.compile(r"( *)(- )?(?:pattern|regex|expr|alert) ?: ?\S?")
_KEY = re.compile(r"( *)[\w.-]+ ?: ")


_FENCE = "```"
_SHOWS = re.compile(
    r"\b(?:[Ll]ook|[Ww]atch|[Ss]earch|[Gg]rep) for\b[^:.]{0,60}:$|\b(?:may|might|should|could) (?:see|look|contain|find)\b[^.:]{0,80}:$"
)


class Source:
    """Lines in their order; a block of a rule is remembered, and what a line of code left open."""

    def __init__(self) -> None:
        self._rule = -1  # the indent of the keys of the rule that the last line belonged to
        self._open = False
        self._shown: tuple[str, ...] = ()  # how the sample ends that a page has announced; none where none has

    def is_code(self, raw: str, text: str) -> bool:
        """`raw` with its indent, `text` without what a log wrote before it."""
        code = self._in_rule(raw) or self._is_statement(raw, text) or self._is_shown(raw.strip())
        self._open = raw.rstrip()[-1:] in ("(", "=", "[", "{", "+", "\\") or (code and raw.rstrip()[-1:] in ("'", '"'))
        return code

    def _is_statement(self, raw: str, text: str) -> bool:
        if not text or text[0] not in _STARTS:
            return False
        if _STATEMENT.match(text) is not None:
            return True
        if text.split(" ", 1)[0] in _COMMAND and _PIPE.match(text) is not None:
            return True
        if not raw.lstrip().startswith(text[:12]):
            return False
        return _AT_THE_START.match(text) is not None or (self._open and _ALONE.match(text) is not None)

    def _is_shown(self, text: str) -> bool:
        """What a page tells its reader to look for stands below, between fences or up to an empty line."""
        if not self._shown:
            if text.endswith(":") and _SHOWS.search(text) is not None:
                self._shown = ("", _FENCE)
            return False
        fence = text.startswith(_FENCE)
        if len(self._shown) > 1:  # not begun yet
            if text:
                self._shown = (_FENCE,) if fence else ("",)
            return text != "" and not fence
        if text == self._shown[0] or (fence and self._shown[0] == _FENCE):
            self._shown = ()
            return False
        return True

    def _in_rule(self, raw: str) -> bool:
        head = _RULE.match(raw) if ":" in raw else None
        if head is not None:
            self._rule = len(head[1]) + (2 if head[2] else 0)
            return True
        key = _KEY.match(raw) if self._rule >= 0 else None
        if key is not None and len(key[1]) == self._rule:
            return True
        self._rule = -1
        return False


_CONDITION = re.compile(
    r"\b(?:[Ii]f|[Ww]hether|[Ww]henever|[Ii]n case|[Ss]uch as|[Ll]ook for|[Cc]heck (?:for|that)|[Ss]earch for|[Gg]rep for|[Ww]hat to do|[Hh]ow to"
    r"|for example|means?|e\.g\.|i\.e\."
    r"|(?:will|would|may|might|could|can|should) (?:fail|see|show|report|print|return|say|contain))\s"
)


_HEADS = re.compile(r""".*[`"'\]] or [`"'\[]+$|\d{1,3},["']?(?:GPU )?$|.*\b\d{1,3} = ["'`]?$""")
_ITEM = re.compile(r"""(?:[-*•]|\d{1,2}\.) ?(\*\*|`|")""")


def is_advice(text: str, at: int) -> bool:
    """Whether the message at `at` stands in a sentence that does not say that it happened, or heads one."""
    if at <= 1:
        return False
    return _CONDITION.search(text, 0, at) is not None or _HEADS.match(text[:at]) is not None or _heads_item(text, at)


def _heads_item(text: str, at: int) -> bool:
    """An item of a list that goes on behind the message; one that is nothing else is what somebody saw."""
    item = _ITEM.match(text)
    if item is None or item.end() != at:
        return False
    _, mark, rest = text[at:].partition(item[1])
    return mark == "**" or rest.strip() != ""
