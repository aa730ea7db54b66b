"""Printed `nvidia-smi`, whole or cut: tables, `-q`, `-q -x` line by line and CSV with its header, as cells with lines.

A cell keeps its words: what is no figure is never read as one, and what does not belong to such a print is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from recover.core.read.procfs import bus_id


@dataclass(frozen=True, slots=True)
class Cell:
    """One named value. `gpu`: bus id, UUID or index as text, "" if none was named. Keys as "gpu recovery action"."""

    line: int
    gpu: str
    section: str
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class GpuRow:
    """One GPU of the plain table; cells that were not printed (yet) are empty."""

    line: int
    index: int
    name: str
    bus_id: str
    persistence: bool | None = None
    memory: str = ""
    memory_line: int = 0
    utilisation: str = ""
    mig: str = ""
    mig_line: int = 0

    @property
    def used_mib(self) -> int | None:
        match = re.match(r"(\d{1,9})\s*Mi?B\s*/", self.memory)
        return int(match.group(1)) if match else None

    @property
    def busy_pct(self) -> int | None:
        match = re.match(r"(\d{1,3})\s*%", self.utilisation)
        return int(match.group(1)) if match else None


@dataclass(frozen=True, slots=True)
class ProcessRow:
    line: int
    gpu: int
    pid: int
    kind: str
    name: str
    used_mib: int | None


@dataclass(frozen=True, slots=True)
class Panel:
    """The processes of one table. `says_none`: "No running processes found", which a blank panel does not say."""

    line: int
    rows: tuple[ProcessRow, ...] = ()
    says_none: bool = False


@dataclass(frozen=True, slots=True)
class Print:
    """One table: its GPUs and, where it was printed, its process panel."""

    gpus: tuple[GpuRow, ...] = ()
    panel: Panel | None = None


@dataclass(frozen=True, slots=True)
class SmiText:
    prints: tuple[Print, ...] = ()
    cells: tuple[Cell, ...] = ()
    lines: frozenset[int] = frozenset()  # the numbers of the lines that belong to a print


_BUS = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]"
_FIRST = re.compile(r"^\|\s*(\d{1,3})\s+(\S.*?)\s*\|\s*(" + _BUS + r")\s+\S+\s*\|[^|]*\|$")
_PROCESS = re.compile(
    r"^\|\s*(\d{1,3})\s+(?:(?:N/A|\d{1,3})\s+(?:N/A|\d{1,3})\s+)?(\d{1,10})\s+([CGM](?:\+[CG])?)\s+(\S.*?)\s+"
    r"(\d{1,9}MiB|N/A)\s*\|$"
)
_BORDER = re.compile(r"^[+|][-=+|]+[+|]$")
_PAIR = re.compile(r"^([A-Za-z][\w ./()#-]{0,60}?)\s+: (\S.*)$|^([A-Za-z][\w ./()#-]{0,60}?)\s+:\s*$")
_SECTION = re.compile(r"^[A-Z][\w ./()-]{1,60}$")
_GPU = re.compile(r"^GPU (" + _BUS + r")$")
_XML_GPU = re.compile(r'^<gpu id="([^"]{1,40})">')
_LEAF = re.compile(r"^<([a-z_0-9]{1,60})>([^<>]*)</\1>$")
_OPEN = re.compile(r"^<([a-z_0-9]{1,60})>$")
_COLUMN = re.compile(r"^[a-z_][a-z_0-9.]{1,60}(?: \[[^\]]{1,10}\])?$")
_COLUMNS = re.compile(
    r"^(?:memory|utilization|remapped_rows|retired_pages|ecc|pci|clocks|mig|power|temperature|fabric)\."
    r"|^gpu_|^uuid$|^pid$|^used_"
)
_DCGM = re.compile(r"^\|\s+(?:Health Monitor Report|Diagnostic)\s+\|")
_INSIDE = re.compile(r"^(?:=+NVSMI LOG=+|Timestamp\s+: |Driver Version\s+: |KMD Version\s+: |Attached GPUs\s+: )")


def read(lines: Iterable[tuple[int, str]]) -> SmiText:
    """Numbered lines of any text, each without what a log or terminal put before it."""
    reader = _Reader()
    for number, text in lines:
        reader.line(number, text.strip())
    reader.end_print()
    return SmiText(tuple(reader.prints), tuple(reader.cells), frozenset(reader.mine))


@dataclass(slots=True)
class _Reader:
    prints: list[Print] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    mine: set[int] = field(default_factory=set)
    rows: list[GpuRow] = field(default_factory=list)
    panel: Panel | None = None
    inside: str = ""  # "q", "xml" or ""
    gpu: str = ""
    section: str = ""
    columns: tuple[str, ...] = ()
    foreign: bool = False  # a table of dcgmi: its words are sentences, and not nvidia-smi's

    def line(self, number: int, text: str) -> None:
        if text.startswith(("|", "+")) and text.endswith(("|", "+")) and len(text) > 3:
            self.foreign = self.foreign or _DCGM.match(text) is not None
            if not self.foreign:
                self._table(number, text)
            return
        self.foreign = False
        if text.startswith("<"):
            self._xml(number, text)
        elif self.columns or "," in text:
            self._csv(number, text)
        if number not in self.mine:
            self._query(number, text)

    def end_print(self) -> None:
        if self.rows or self.panel is not None:
            self.prints.append(Print(tuple(self.rows), self.panel))
        self.rows, self.panel = [], None

    # ---------------------------------------------------------------------------------------- plain tables

    def _table(self, number: int, text: str) -> None:
        self.mine.add(number)
        first = _FIRST.match(text)
        if text.startswith("| NVIDIA-SMI "):
            self.end_print()
        elif first is not None:
            if self.panel is not None or any(row.bus_id == bus_id(first[3]) for row in self.rows):
                self.end_print()
            self.rows.append(_first_row(number, first))
        elif re.match(r"^\|\s*(?:Compute p|P)rocesses:", text):
            if self.panel is not None:
                self.end_print()
            self.panel = Panel(number)
        elif re.search(r"No running (?:compute )?processes found", text):
            self.panel = Panel(self.panel.line if self.panel else number, (), True)
        elif self.panel is not None:
            row = _PROCESS.match(text)
            if row is not None:
                self.panel = replace(self.panel, rows=(*self.panel.rows, _process(number, row)))
        elif self.rows and not _BORDER.match(text):
            self.rows[-1] = _more(self.rows[-1], number, text)

    # ---------------------------------------------------------------------------------------- -q and -q -x

    def _query(self, number: int, text: str) -> None:
        gpu = _GPU.match(text)
        if gpu is not None or _INSIDE.match(text):
            self.inside, self.section = "q", ""
            self.gpu = bus_id(gpu[1]) if gpu else ""
            self.mine.add(number)
            return
        pair = _PAIR.match(text)
        if pair is not None and pair[1]:
            key = pair[1].strip().lower()
            known = key in _ALONE
            if self.inside == "q" or known:
                self.cells.append(Cell(number, self.gpu, self.section, key, pair[2].strip()))
                self.mine.add(number)
        elif _SECTION.match(text) and (self.inside == "q" or text.lower() in _SECTIONS):
            # Not claimed: what looks like a head of a section may be another tool's word.
            self.section, self.inside = text.lower(), "q"
        elif text and self.inside == "q" and pair is None:
            self.inside = ""

    def _xml(self, number: int, text: str) -> None:
        gpu, leaf, opened = _XML_GPU.match(text), _LEAF.match(text), _OPEN.match(text)
        if gpu is not None:
            self.gpu, self.inside, self.section = bus_id(gpu[1]), "xml", ""
        elif leaf is not None and (self.inside == "xml" or leaf[1].replace("_", " ") in _ALONE):
            self.cells.append(Cell(number, self.gpu, self.section, leaf[1].replace("_", " "), leaf[2].strip()))
        elif opened is not None and (self.inside == "xml" or opened[1].replace("_", " ") in _SECTIONS):
            self.section, self.inside = opened[1].replace("_", " "), "xml"
        elif text.startswith(("<nvidia_smi_log", "<!DOCTYPE nvidia_smi_log")):
            self.inside = "xml"
        elif self.inside != "xml":
            return
        elif text.startswith("</nvidia_smi_log>"):
            self.inside = ""
        self.mine.add(number)

    # ---------------------------------------------------------------------------------------- CSV

    def _csv(self, number: int, text: str) -> None:
        cells = tuple(cell.strip() for cell in text.split(","))
        if all(_COLUMN.match(cell) for cell in cells) and any(_COLUMNS.match(cell) for cell in cells):
            self.columns = cells
            self.mine.add(number)
        elif self.columns and len(cells) == len(self.columns):
            row = {name.split(" ")[0]: value for name, value in zip(self.columns, cells, strict=True)}
            gpu = row.get("pci.bus_id") or row.get("gpu_bus_id") or row.get("uuid") or row.get("gpu_uuid")
            name = bus_id(gpu) if gpu else row.get("index", "")
            for key, value in row.items():
                self.cells.append(Cell(number, name, "csv", key.replace("_", " "), value))
            self.mine.add(number)
        else:
            self.columns = ()


# Keys that mean something where no head of the print was pasted: they are nvidia-smi's alone.
_ALONE = frozenset(
    {
        "gpu recovery action",
        "reset required",
        "drain and reset recommended",
        "remapping failure occurred",
        "remapped row failure",
        "remapped row pending",
        "channel repair pending",
        "tpc repair pending",
        "unrepairable memory",
    }
)
_SECTIONS = frozenset(
    {"gpu reset status", "remapped rows", "fb memory usage", "retired pages", "mig mode", "ecc errors", "fabric"}
)


def _first_row(number: int, match: re.Match[str]) -> GpuRow:
    words = match[2].rsplit(None, 1)
    said = words[-1] if len(words) == 2 else ""
    persistence = {"On": True, "Off": False}.get(said)
    name = words[0] if persistence is not None else match[2]
    return GpuRow(number, int(match[1]), name.strip(), bus_id(match[3]), persistence)


def _more(row: GpuRow, number: int, text: str) -> GpuRow:
    cells = [cell.strip() for cell in text.strip("|").split("|")]
    if len(cells) != 3:
        return row
    if not row.memory_line:
        busy = cells[2].split("  ")[0].strip()
        return replace(row, memory=cells[1], memory_line=number, utilisation=busy)
    return row if row.mig_line else replace(row, mig=cells[2], mig_line=number)


def _process(number: int, match: re.Match[str]) -> ProcessRow:
    used = match[5].removesuffix("MiB")
    return ProcessRow(number, int(match[1]), int(match[2]), match[3], match[4], int(used) if used.isdecimal() else None)
