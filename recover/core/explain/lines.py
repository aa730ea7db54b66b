"""A pasted text as lines that keep their number; what a log, a terminal or a mail wrote before a line is taken off.

Commands that somebody typed are told from what they printed: `grep "GPU is lost" log` is no lost GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from recover.core.clean import clean
from recover.core.redact import redact_text

LIMIT = 2000
SHOWN = 300
_WRAPPED = 3  # a line of a kernel log on a terminal of 80 columns


@dataclass(frozen=True, slots=True)
class Line:
    """`whole` as pasted, `text` without what stands before it, `after` the prompt only. All cleaned.

    `fresh`: it begins a record of its own, so it cannot continue the line before. `typed`: somebody's command.
    """

    number: int
    whole: str
    after: str
    text: str
    usec: int = 0
    fresh: bool = False
    typed: bool = False

    @property
    def shown(self) -> str:
        return clean(redact_text(self.whole), SHOWN)


_PROMPT = re.compile(
    r"^(?:\([\w.-]{1,40}\) ?)?(?:\[[\w.-]+@[\w.-]+ [^\]\s]*\]|[\w.-]+@[\w.-]+:[^\s#$]*|bash-[\d.]+|sh-[\d.]+)[#$] ?"
)
_BARE_PROMPT = re.compile(r"^[#$](?: |$)")
_WORDS = (
    "apt awk bash cat cd chmod clear cp crictl ctr curl cut date dd df dmesg docker du echo egrep env exit export "
    "fgrep find for free fuser gpustat grep ha-manager head history htop if ip journalctl kill killall kubectl "
    "less ls lsmod lsof lspci lxc-stop make modprobe more mount mv nano nvidia-smi nvitop pct pgrep ping pip "
    "pkill podman ps pvecm pvesh pveum py-spy python python3 qm ray reboot rm rmmod screen scontrol sed  "
    "sglang sh shutdown sinfo sleep sort squeue ssh strace su sudo systemctl tail tee test time timeout tmux top "
    "touch uname uniq uptime vi vim vllm watch wc wget while who xargs zcat zgrep"
)
_COMMANDS = frozenset(_WORDS.split())
_QUOTED = re.compile(r"^\s*(?:> ?)+\s*(?=\S)")
# What stands before a line and says nothing of it, taken off one after the other until nothing more fits.
_BEFORE = tuple(
    re.compile(pattern)
    for pattern in (
        r"<\d{1,3}>|\d{1,3},\d{1,12},\d{1,16},[^;\s]{1,40};",  # syslog's priority, /dev/kmsg
        r"(?:kern|user|daemon|syslog|auth|cron|mail|local\d) *: *(?:emerg|alert|crit|err|warn|notice|info|debug) *: *",
        r"\[? ?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})? ?(?:Z|UTC|[+-]\d\d:?\d\d)?\]?:? +",
        r"(?:[A-Z][a-z]{2} )?[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,9})? (?:\d{4} )?",
        r"\[ *(?P<s>\d{1,10})\.(?P<us>\d{6})\] ?",
        r"\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}\] ?",
        r"\[ *[TC]\d{1,9}\] ?|\[ *\+\d{1,9}\.\d{1,9}\] ?",
        r"kernel: ",
        r"[a-z0-9][\w.-]{0,60}-\d{1,3} +\| ",  # docker compose
        r"(?:/?[\w./-]{1,200}\.(?:log|txt)(?:\.\d{1,3})?:)?\d{1,7}:(?![0-9a-fA-F]{2}[:.])\s*",  # grep -n
        r"/?[\w./-]{1,200}/(?:[\w.-]+\.log|syslog|messages)(?:\.\d{1,3})?:",
    )
)
_TAG = re.compile(r"[\w.-]{1,64} [A-Za-z][\w./@()-]{0,60}(?:\[\d{1,10}\])?: ")
_DATES = (2, 3, 4)
_HEAD = re.compile(
    r"^(?:[|+=]|NVRM:|Xid|TASK |INFO: |<|\{|\[|GPU [0-9A-Fa-f]{4,8}:|nvidia|vfio|pcieport |kvm:|HTTP/|UPID:)"
)


def read_lines(text: str) -> tuple[Line, ...]:
    return tuple(_line(number, raw) for number, raw in enumerate(text.split("\n"), 1))


def _line(number: int, raw: str) -> Line:
    whole = clean(raw, LIMIT)
    after, typed, prompted = _without_prompt(_QUOTED.sub("", whole))
    text, usec, dated = _without_date(after)
    fresh = prompted or dated or not text or _HEAD.match(text) is not None
    return Line(number, whole, after, text, usec, fresh, typed)


def _without_prompt(text: str) -> tuple[str, bool, bool]:
    """The rest, whether it is a command, whether there was a prompt. A comment counts as typed."""
    match = _PROMPT.match(text)
    if match is None:
        bare = _BARE_PROMPT.match(text) is not None
        return text, bare, bare
    rest = text[match.end() :].strip()
    first = rest.split(" ", 1)[0].rsplit("/", 1)[-1]
    typed = not rest or first in _COMMANDS or rest[0] in "./~\"'(#" or "=" in first
    return (text if typed else rest), typed, True


def _without_date(text: str) -> tuple[str, int, bool]:
    at = usec = 0
    found = dated = True
    while found and at < 200:
        found = False
        for index, pattern in enumerate(_BEFORE):
            match = pattern.match(text, at)
            if match is None:
                continue
            at, found = match.end(), True
            if index == 4:
                usec = int(match["s"]) * 1_000_000 + int(match["us"])
            if index in _DATES:
                tag = _TAG.match(text, at)
                at = tag.end() if tag else at
    dated = at > 0
    return text[at:].strip(), usec, dated


def continued(lines: tuple[Line, ...], at: int) -> Iterator[str]:
    """The texts that line `at` may have been before a terminal or a mail wrapped it: glued, then with a blank."""
    rest = []
    for line in lines[at + 1 : at + 1 + _WRAPPED]:
        if line.fresh or line.typed:
            break
        rest.append(line.text)
        yield lines[at].after + "".join(rest)
        yield " ".join([lines[at].after, *rest])
