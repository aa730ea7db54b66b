"""A pasted text as lines that keep their number; what a log, a terminal or a mail wrote before a line is taken off.

Commands that somebody typed are told from what they printed: `grep "GPU is lost" log` is no lost GPU. Source is, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from recover.core.clean import clean
from recover.core.explain.before import without_date
from recover.core.explain.source import Source
from recover.core.redact import redact_text

LIMIT = 2000
SHOWN = 300
WRAPPED = 3  # a line of a kernel log on a terminal of 80 columns


@dataclass(frozen=True, slots=True)
class Line:
    """`whole` as pasted, `text` without what stands before it, `after` the prompt only. All cleaned.

    `fresh`: it begins a record of its own, so it cannot continue the line before. `typed`: somebody's command or code.
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
_BARE_PROMPT = re.compile(r"^(?:\$|#{1,6})(?: |$)")  # also a comment, and a heading of a page
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
_HEAD = re.compile(
    r"^(?:[|+=]|NVRM:|Xid|TASK |INFO: |<|\{|\[|GPU [0-9A-Fa-f]{4,8}:|nvidia|vfio|pcieport |kvm:|HTTP/|UPID:"
    r"|[A-Za-z_:]{3,80}\{|# (?:HELP|TYPE) |[-*•] )"  # Prometheus, a list of a page
)


def read_lines(text: str) -> tuple[Line, ...]:
    source = Source()
    return tuple(_line(number, raw, source) for number, raw in enumerate(text.split("\n"), 1))


def _line(number: int, raw: str, source: Source) -> Line:
    whole = clean(raw, LIMIT)
    inner = _unwrapped(raw) if raw.startswith('{"') else None
    said = whole if inner is None else clean(inner, LIMIT)
    after, typed, prompted = _without_prompt(_QUOTED.sub("", said) if said[:1] == ">" else said)
    text, usec, dated = without_date(after)
    if source.is_code(raw, text):
        typed = True
    fresh = prompted or dated or inner is not None or not text or _HEAD.match(text) is not None
    return Line(number, whole, after, text, usec, fresh, typed)


def _unwrapped(raw: str) -> str | None:
    """The line that docker's json-file driver or `journalctl -o json` put into an object; None for any other object."""
    if len(raw) > 64_000 or not ('"log":' in raw or '"MESSAGE"' in raw):
        return None
    try:
        record = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    said = record.get("MESSAGE") or (record.get("log") if "stream" in record or "time" in record else None)
    return said if isinstance(said, str) else None


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


def continued(lines: tuple[Line, ...], at: int) -> Iterator[str]:
    """The texts that line `at` may have been before a terminal or a mail wrapped it: glued, then with a blank."""
    rest = []
    for line in lines[at + 1 : at + 1 + WRAPPED]:
        if line.fresh or line.typed:
            break
        rest.append(line.text)
        yield lines[at].after + "".join(rest)
        yield " ".join([lines[at].after, *rest])
