"""Printed `nvidia-smi` as findings: the driver's own word and plain contradictions; figures alone are no sickness.

Not known stays not known: [N/A], deprecated fields, ERR! in fan or power, a process that cannot be named here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from recover.core.explain.lines import Line
from recover.core.explain.told import Told
from recover.core.read.smi_text import Cell, GpuRow, Print, SmiText, read
from recover.core.read.smi_xml import ACTIONS
from recover.core.signals.driver import ACTION_CURES, action_signal
from recover.model.gpu import RecoveryAction
from recover.model.verdict import Scope

# Idle cards show 0 to 14 MiB, leftovers of UVM below 100 MiB after a kill (nvshare issue 23); a held context more.
HELD_MIB = 512
_IDLE_MIB = 16
_LOST = re.compile(r"GPU is lost", re.I)
_RESET = re.compile(r"GPU requires reset|^\[?reset required\]?$", re.I)
_GARBLED = re.compile(r"Unknown Error|ERR!", re.I)
_NO_FIGURES = re.compile(r"^\|\s*\S+\s+ERR!\s+ERR!\s")
_DISPLAY = re.compile(r"\.[0-7]\s+On\s*\|")
_MEMORY_KEYS = frozenset({"memory.used", "used"})
_MANUAL = "nvidia-smi manual"
_UNHEALTHY = frozenset({("summary", "unhealthy"), ("route unhealthy", "true")})
_FABRIC = frozenset({"fabric.state", "fabric.status"})


def smi_told(lines: tuple[Line, ...], claimed: frozenset[int]) -> tuple[list[Told], frozenset[int]]:
    """Findings, and the lines that belong to such a print and were read here."""
    seen = read((line.number, line.text) for line in lines if not line.typed and line.number not in claimed)
    table = _Lines(lines, seen)
    found = [*table.cells(), *table.tables(), *table.ghosts(), *_gpustat(lines), *_timed_out(lines)]
    return found, seen.lines


class _Lines:
    """The print with the lines on which its findings stand."""

    def __init__(self, lines: tuple[Line, ...], seen: SmiText) -> None:
        self._lines = lines
        self._seen = seen
        self._made: dict[str, bool] = {}  # GPU -> whether its fabric is complete

    def _told(self, signal: str, gpu: str, says: str, cure: Scope | None, fact: str, number: int) -> Told:
        who = f"the GPU at {gpu}" if ":" in gpu else f"GPU {gpu}" if gpu else "a GPU"
        return Told(signal, f"{who} {says}", cure, fact, number, self._lines[number - 1].shown, gpu)

    def cells(self) -> Iterator[Told]:
        current: dict[str, str] = {}
        for cell in self._seen.cells:
            yield from self._any_field(cell.gpu, cell.value, cell.line, memory=_is_memory(cell))
            yield from self._by_key(cell)
            if cell.section == "mig mode" and cell.key.startswith(("current", "pending")):
                word = cell.key.split(" ")[0]
                current[word] = cell.value
                if word == "pending" and {current.get("current"), cell.value} == {"Enabled", "Disabled"}:
                    yield self._mig(cell.gpu, cell.line)

    def _any_field(self, gpu: str, value: str, number: int, *, memory: bool = False) -> Iterator[Told]:
        if _LOST.search(value):
            says, fact = (
                "is lost, says the driver",
                "NVML error 15: only the host's reset of the device, at VM stop and start",
            )
            yield self._told("gpu-lost", gpu, says, Scope.VM, fact, number)
        elif _RESET.search(value):
            says, fact = "needs a reset, says the driver", "NVML error 16 (open-gpu-kernel-modules issue 847)"
            yield self._told("reset-required", gpu, says, Scope.GPU, fact, number)
        elif memory and _GARBLED.search(value):
            says, fact = (
                f"can't tell its used memory ({value[:40]})",
                "an error in the memory field is no figure, and no 0",
            )
            yield self._told("gpu-fails", gpu, says, Scope.GPU, fact, number)

    def _by_key(self, cell: Cell) -> Iterator[Told]:
        yes = cell.value.lower() == "yes"
        if cell.key == "gpu recovery action":
            yield from self._action(cell)
        elif cell.key == "reset required" and yes:
            yield self._told(
                "reset-required", cell.gpu, "needs a reset, says the driver", Scope.GPU, _MANUAL, cell.line
            )
        elif cell.key == "drain and reset recommended" and yes:
            says = "should be drained and reset, says the driver"
            yield self._told("recovery-action", cell.gpu, says, Scope.GPU, _MANUAL, cell.line)
        elif cell.key in _FABRIC or (cell.section == "fabric" and cell.key in ("state", "status")):
            yield from self._fabric(cell)
        elif cell.section == "health" and (cell.key, cell.value.lower()) in _UNHEALTHY:
            says, fact = "has an NVLink fabric that is not healthy", "reset all GPUs of the fabric together"
            yield self._told("fabric-broken", cell.gpu, says, Scope.GPU, fact, cell.line)
        elif yes and _is_remap_failure(cell):
            says = "could not remap bad memory: take it out of service"
            fact = "a reset hides it for a while only (awsome-distributed-ai pull request 1190)"
            yield self._told("row-remap-failed", cell.gpu, says, None, fact, cell.line)
        elif yes and _is_remap_pending(cell):
            says = "has a row remap or page retirement pending, which its next reset applies"
            yield self._told("row-remap-pending", cell.gpu, says, Scope.GPU, _MANUAL, cell.line)

    def _action(self, cell: Cell) -> Iterator[Told]:
        word = cell.value.strip().lower()
        action = ACTIONS.get(word)
        if action is None and (not word or re.search(r"n/a|not supported|unknown|deprecated|lost|requires|err!", word)):
            return
        action = RecoveryAction.OTHER if action is None else action
        if action is not RecoveryAction.NONE:
            says = f"needs: {cell.value[:40].lower()}, says the driver"
            fact = "the driver's own recovery action outranks any table of Xids"
            yield self._told(action_signal(action), cell.gpu, says, ACTION_CURES[action], fact, cell.line)

    def _fabric(self, cell: Cell) -> Iterator[Told]:
        """What state it is in, and, once it is made, whether that went well."""
        word = cell.value.strip("[]").lower()
        if cell.key in ("state", "fabric.state"):
            self._made[cell.gpu] = word == "completed"
            if word in ("in progress", "not started"):
                says = f"is not ready for CUDA: its NVLink fabric is {word}; wait, up to 10 minutes after a start"
                fact = "then look at the fabric manager (nvrc issue 159)"
                yield self._told("fabric-not-ready", cell.gpu, says, None, fact, cell.line)
        elif self._made.get(cell.gpu) and word not in ("success", "n/a", "not supported", ""):
            says = f"is not part of its NVLink fabric: {cell.value[:40]}"
            fact = "reset all GPUs between the fabric manager's stop and start (nccl issue 1488)"
            yield self._told("fabric-broken", cell.gpu, says, Scope.GPU, fact, cell.line)

    def _mig(self, gpu: str, number: int) -> Told:
        says = "has a change of its MIG mode pending, which its next reset applies"
        return self._told("mig-pending", gpu, says, Scope.GPU, "MIG user guide: the star marks a pending mode", number)

    # ---------------------------------------------------------------------------------------- plain tables

    def tables(self) -> Iterator[Told]:
        for table in self._seen.prints:
            for row in table.gpus:
                for number in (row.line, row.memory_line, row.mig_line):
                    text = self._lines[number - 1].text if number else ""
                    yield from self._any_field(row.bus_id, text, number)
                if (
                    row.memory
                    and not re.search(r"lost|reset", row.memory, re.I)
                    and "/" not in row.memory.replace("N/A", "")
                ):
                    yield from self._any_field(row.bus_id, row.memory, row.memory_line, memory=True)
                if self._nothing_answers(row):
                    says = "answers nothing but errors"
                    fact = "an error in fan or power alone is none (azhpc-diagnostics 77); here the rest fails as well"
                    yield self._told("gpu-fails", row.bus_id, says, Scope.GPU, fact, row.line)
                if row.mig.endswith("*"):
                    yield self._mig(row.bus_id, row.mig_line)
                yield from self._held(table, row)

    def _nothing_answers(self, row: GpuRow) -> bool:
        """Its name and its load, or its load, temperature and state."""
        if not row.memory_line or row.utilisation != "ERR!":
            return False
        return row.name == "ERR!" or _NO_FIGURES.match(self._lines[row.memory_line - 1].text) is not None

    def ghosts(self) -> Iterator[Told]:
        """A listed holder that, as the same text says, does not exist."""
        gone = {
            int(m[1])
            for line in self._lines
            if "No such process" in line.after and (m := _NO_PROCESS.search(line.after))
        }
        rows = [(row.pid, row.line) for table in self._seen.prints if table.panel for row in table.panel.rows]
        rows += [
            (int(c.value), c.line)
            for c in self._seen.cells
            if c.key == "pid" and c.value.isdecimal() and len(c.value) < 11
        ]
        for pid, number in rows:
            if pid in gone:
                says = f"the driver lists pid {pid} as a holder of GPU memory, and no such process exists here"
                fact = (
                    "look on the host first, it may be its pid; else a reset, then the VM's restart (nvidia-docker 572)"
                )
                yield Told(
                    "gpu-memory-held", says, Scope.GPU, fact, number, self._lines[number - 1].shown, f"pid {pid}"
                )

    def _held(self, table: Print, row: GpuRow) -> Iterator[Told]:
        """Memory or load with no process at all; a panel that is only blank says nothing of processes."""
        panel, used = table.panel, row.used_mib
        if panel is None or not panel.says_none or used is None or "Enabled" in row.mig:
            return
        if re.search(r"\bG[HB](?:10|200|300)\b", row.name):
            return  # the system shares its memory there and keeps freed pages
        if _DISPLAY.search(self._lines[row.line - 1].text):
            return  # a desktop's share, which old drivers do not list
        if used >= HELD_MIB:
            says = f"holds {used} MiB, and no process runs on it"
            fact = "nvidia-smi names none, so look on the host and for defunct processes first; then a reset frees it"
            yield self._told("gpu-memory-held", row.bus_id, says, Scope.GPU, fact, row.memory_line)
        elif used <= _IDLE_MIB and (row.busy_pct or 0) >= 99 and row.persistence:
            # Without persistence nvidia-smi's own initialisation of the GPU shows as load.
            says = f"says {row.busy_pct} % busy, and nothing runs on it"
            fact = "seen after killed CUDA programs; a new context on it clears that"
            yield self._told("ghost-utilisation", row.bus_id, says, Scope.GPU, fact, row.memory_line)


def _is_memory(cell: Cell) -> bool:
    return cell.key in _MEMORY_KEYS and (cell.section in ("fb memory usage", "memory usage") or cell.section == "csv")


def _is_remap_failure(cell: Cell) -> bool:
    return cell.key in (
        "remapping failure occurred", "remapped row failure", "remapped rows.failure", "unrepairable memory"
    )  # fmt: skip


def _is_remap_pending(cell: Cell) -> bool:
    if cell.key in ("remapped row pending", "remapped rows.pending", "retired pages.pending", "pending page blacklist"):
        return True
    if cell.key in ("channel repair pending", "tpc repair pending"):
        return True
    return cell.key in ("pending blacklist", "pending retirement") or (cell.section, cell.key) == (
        "remapped rows",
        "pending",
    )


_NO_PROCESS = re.compile(r"\(?\b(\d{1,10})\)?:? -? ?No such process")
_LIMITED = re.compile(r"\btimeout\b.*\bnvidia-smi\b")


def _timed_out(lines: tuple[Line, ...]) -> Iterator[Told]:
    """`timeout 20 nvidia-smi; echo $?` and what timeout answers when it had to end it."""
    for at, line in enumerate(lines):
        if not (line.typed and "timeout" in line.whole and _LIMITED.search(line.whole)):
            continue
        code = next((said for said in lines[at + 1 : at + 4] if said.text in ("124", "137")), None)
        if code is not None:
            says = "nvidia-smi did not come back in the time that it was given: the driver does not answer"
            fact = "exit code of timeout(1); nothing from inside the guest helps a driver that hangs"
            yield Told("nvml-hang", says, Scope.VM, fact, code.number, code.shown)


_GPUSTAT = re.compile(r"^\[(\d{1,3})\] .{1,60}\| *\d+.?C, +\d+ % \| +(\d{1,9}) / +\d{1,9} MB \| \(null\)")


def _gpustat(lines: tuple[Line, ...]) -> Iterator[Told]:
    """gpustat names a holder that does not exist any more "(null)"."""
    for line in lines:
        match = _GPUSTAT.match(line.text) if "(null)" in line.text else None
        if match is not None and int(match[2]) >= HELD_MIB:
            says = f"GPU {match[1]} holds {match[2]} MiB for a process that does not exist any more"
            fact = "look on the host first; else a reset of the GPU, then the VM's restart (nvidia-docker issue 572)"
            yield Told("gpu-memory-held", says, Scope.GPU, fact, line.number, line.shown, match[1])
