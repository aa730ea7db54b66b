# ruff: noqa: E501
"""What logs write before a line and what says nothing of it: dates, hosts, levels, the names of containers and files."""

from __future__ import annotations

import re

_UPPER, _LOWER, _DIGIT = "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz", "0123456789"
# What stands before a line and says nothing of it, taken off one after the other until nothing more fits: with what it
# can begin, its form, and whether a host and a tag may follow it.
_BEFORE = tuple(
    (starts, re.compile(pattern), tagged)
    for starts, pattern, tagged in (
        ("<", r"<\d{1,3}>", False),  # syslog's priority
        ("1", r"1 \d{4}-\d\d-\d\dT\S{8,40} [\w.-]{1,64} [\w./-]{1,48} \S{1,128} \S{1,32} (?:-|\[[^\]]*\]) ", False),  # RFC 5424
        (_DIGIT, r"\d{1,3},\d{1,12},\d{1,16},[^;\s]{1,40};", False),  # /dev/kmsg
        (_LOWER, r"(?:kern|user|daemon|syslog|auth|cron|mail|local\d) *: *(?:emerg|alert|crit|err|warn|notice|info|debug) *: *", False),
        (_DIGIT + "[", r"\[? ?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})? ?(?:Z|UTC|[+-]\d\d:?\d\d)?\]?:? +", True),
        (_UPPER, r"(?:[A-Z][a-z]{2} )?[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,9})? (?:\d{4} )?", True),
        (_UPPER, r"[A-Z][a-z]{2} \d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,9})? (?:[A-Z]{2,5}|[+-]\d{2,4}) ", True),  # short-full
        ("[", r"\[ *(?P<s>\d{1,10})\.(?P<us>\d{6})\] ?", True),
        ("[", r"\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}\] ?", False),
        ("[", r"\[[A-Z][a-z]{2} [ \d]\d \d{4} \d\d:\d\d:\d\d\] ", False),  # the fabric manager
        ("[", r"\[ *[TC]\d{1,9}\] ?|\[ *\+\d{1,9}\.\d{1,9}\] ?|\[rank\d{1,5}\]: ?", False),
        ("k", r"kernel: ", False),
        ("s", r"std(?:out|err) [FP] ", False),  # containerd's own log files
        ("(", r"\([A-Za-z_][\w.:-]{0,60} pid=\d{1,10}(?:, ip=[\d.]{7,15})?\) ", False),  # vllm, ray
        (_UPPER, r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[\w.:/-]{1,80}\] ", False),  # vllm
        (_LOWER + _DIGIT, r"[a-z0-9][\w.-]{0,60}(?:-\d{1,3} +| {2,40}|@[\w.-]{1,60} +)\| ", False),  # docker compose, swarm
        (_LOWER + _UPPER + _DIGIT + "./", r"(?:/?[\w./-]{1,200}\.(?:log|txt)(?:\.\d{1,3})?:)?\d{1,7}:(?![0-9a-fA-F]{2}[:.])\s*", False),  # grep -n
        (_LOWER + _UPPER + _DIGIT + "./", r"/?[\w./-]{1,200}/(?:[\w.-]+\.log|syslog|messages)(?:\.\d{1,3})?:", False),
    )
)  # fmt: skip
_STARTS = {
    char: tuple((pattern, tagged) for starts, pattern, tagged in _BEFORE if char in starts)
    for char in "<([./" + _UPPER + _LOWER + _DIGIT
}
_TAG = re.compile(r"[\w.-]{1,64} [A-Za-z][\w./@()-]{0,60}(?:\[\d{1,10}\])?: ")


def without_date(text: str) -> tuple[str, int, bool]:
    """The rest, the microseconds since the boot (0: not told), whether something was taken off."""
    at = usec = 0
    found = True
    while found and at < min(200, len(text)):
        found = False
        for pattern, tagged in _STARTS.get(text[at], ()):
            match = pattern.match(text, at)
            if match is None:
                continue
            at, found = match.end(), True
            if match.lastgroup == "us":
                usec = int(match["s"]) * 1_000_000 + int(match["us"])
            if tagged:
                tag = _TAG.match(text, at)
                at = tag.end() if tag else at
            break
    return text[at:].strip(), usec, at > 0
