"""What DCGM's diagnostic and its health watches say of a GPU, in a table that breaks its sentences, or in one line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from recover.core.explain.kernel import judge
from recover.core.explain.lines import Line
from recover.core.explain.told import Told
from recover.core.signals.driver import ACTION_CURES, action_signal, action_words
from recover.core.xid_table import SXID_RESET_FABRIC, SXID_RESTART_VM
from recover.core.xids import is_fault
from recover.model.gpu import RecoveryAction
from recover.model.verdict import Scope

_ROW = re.compile(r"\|[^|]{1,80}\|([^|]{1,200})\|?$")
_BLANKS = re.compile(r"\s+")
# Without their blanks: a cell ends where it is full, in the middle of a word, too.
_SAID = re.compile(
    r"GPU(?P<pending>\d{1,4})ha[ds](?:uncorrectable)?memoryerrorsandrowremappingsarepending"
    r"|GPU(?P<failed>\d{1,4})ha[ds]uncorrectablememoryerrorsandrowremappingfailed"
    r"|PendingpageretirementstogetherwithaDBEweredetectedonGPU(?P<pages>\d{1,4})"
    r"|GPU(?P<faulty>\d{1,4})requires.{1,40}torecoverfromafault\.Recoveryaction:(?P<action>\d{1,2})"
    r"|double-bitECCerrorhasocc?ur+edonGPU(?P<dbe>\d{1,4})"
    r"|Detected\d{1,9}volatiledouble-bitECCerror\(s\)inGPU(?P<volatile>\d{1,4})"
    r"|DetectedXID(?P<xid>\d{1,4})forGPU(?P<of>\d{1,4})"
    r"|DetectedfatalNvSwitchSXID(?P<sxid>\d{1,6})"
)
_NEEDLES = ("row remap", "etected", "to recover from a fault", "double-bit ECC")
_FACT = "DCGM's messages of its diagnostic and health watches (dcgm_errors.h)"


def dcgm_told(lines: tuple[Line, ...]) -> Iterator[Told]:
    for block in _blocks(lines):
        squeezed = [_BLANKS.sub("", text) for _, text in block]
        at, before = 0, 0
        for match in _SAID.finditer("".join(squeezed)):
            while before + len(squeezed[at]) <= match.start():
                before += len(squeezed[at])
                at += 1
            yield from _told(match, block[at][0])


def _blocks(lines: Iterable[Line]) -> Iterator[list[tuple[Line, str]]]:
    """The cells of a table's second column that follow each other; a line outside of a table alone."""
    rows: list[tuple[Line, str]] = []
    for line in lines:
        row = _ROW.match(line.text) if line.text.startswith("|") and not line.typed else None
        if row is not None:
            rows.append((line, row[1]))
            continue
        if rows:
            yield rows
            rows = []
        if not line.typed and any(word in line.text for word in _NEEDLES):
            yield [(line, line.text)]
    if rows:
        yield rows


def _told(match: re.Match[str], line: Line) -> Iterator[Told]:
    found = {name: value for name, value in match.groupdict().items() if value is not None}
    number = next((value for name, value in found.items() if name not in ("action", "xid", "sxid")), "")
    gpu = f"GPU {number}"
    signal, cure, says = "", None, ""
    match match.lastgroup or "":
        case "pending" | "pages":
            signal, cure, says = "row-remap-pending", Scope.GPU, f"{gpu} has bad memory that its next reset takes out"
        case "failed":
            signal, says = "row-remap-failed", f"bad memory of {gpu} could not be remapped: take it out of service"
        case "dbe" | "volatile":
            signal, cure, says = "reset-required", Scope.GPU, f"{gpu} has an ECC error that only a reset clears"
        case "action" if (action := _action(found["action"])) is not RecoveryAction.NONE:
            signal, cure = action_signal(action), ACTION_CURES[action]
            says = f"{gpu} needs: {action_words(action)}, says the driver"
        case "of" if is_fault(int(found["xid"])) and (judged := judge(int(found["xid"]), "")) is not None:
            signal, cure, says = "xid", judged[0], f"{gpu} reported Xid {found['xid']}: {judged[1]}"
        case "sxid" if int(found["sxid"]) in SXID_RESET_FABRIC | SXID_RESTART_VM:
            signal, says = "sxid", f"an NVSwitch reports the fatal SXid {found['sxid']}"
            cure = Scope.VM if int(found["sxid"]) in SXID_RESTART_VM else None
    if signal:
        yield Told(signal, says, cure, _FACT, line.number, line.shown, gpu if number else match[0])


def _action(number: str) -> RecoveryAction:
    known = {int(action): action for action in RecoveryAction}
    return known.get(int(number), RecoveryAction.OTHER)
