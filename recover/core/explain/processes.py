"""What a printed process table, /proc/PID/stack or /proc/PID/status shows: only what one look can prove.

A row in D may be unpinning, one in R may be at work: neither alone is a finding. Ranks without their server, dead ranks
of a living one, NVIDIA's own short-lived tools in D, and what outlived a `kill -9` in the same text are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from recover.core import engines
from recover.core.explain.lines import Line
from recover.core.explain.process_table import Row, rows, status_fields, statuses
from recover.core.explain.told import Told
from recover.core.kinship import STORAGE
from recover.model.process import Rank
from recover.model.verdict import Scope

_TOOLS = re.compile(
    r"^(?:\S*/)?(?:nvidia-(?:smi|persistenced|docker-plugin|modprobe|debugdump|bug-report\S*|container-cli)|dcgm\S*"
    r"|nv-hostengine)\b"
)
_DRIVER = re.compile(r"^(?:nvidia_|uvm_|rm_|_nv\d|nv_|os_acquire_|os_wait)")
_KILL = re.compile(r"\bkill (?:-s ?)?-?(?:9|KILL|SIGKILL)((?: +\d{1,10})+)\s*$")


def processes_told(lines: tuple[Line, ...]) -> tuple[list[Told], frozenset[int]]:
    """Findings, and the lines that are rows of process tables or parts of stacks."""
    table = list(rows(lines))
    stacks = list(_stacks(lines))
    mine = {row.line.number for row in table} | {line.number for stack in stacks for line in stack}
    found = [*_survivors(lines, table), *_tables(table), *_in_stacks(stacks), *_status(lines)]
    for row in statuses(lines):
        found += _groups([row])
    return found, frozenset(mine)


def _tables(table: list[Row]) -> Iterator[Told]:
    by_table: dict[int, list[Row]] = {}
    for row in table:
        by_table.setdefault(row.table, []).append(row)
    for one in by_table.values():
        yield from _groups(one)
        yield from _stuck(one)


# ------------------------------------------------------------------------------------------------ servers


def _groups(table: list[Row]) -> Iterator[Told]:
    by_pid = {row.process.pid: row for row in table}
    mains = {part[0].name for row in table if (part := _part(row)) is not None and part[1] is Rank.MAIN}
    dead: dict[str, list[Row]] = {}
    orphans: dict[str, list[Row]] = {}
    for row in table:
        part = _part(row)
        if part is None or part[1] is not Rank.WORKER:
            continue
        name = part[0].name
        parent = by_pid.get(row.ppid) if row.ppid is not None else None
        if row.zombie:
            if row.threads_live or (row.ppid != 1 and not (parent and engines.is_reaper(parent.process))):
                dead.setdefault(name, []).append(row)
        elif part[0].orphans_die and name not in mains and _orphan(row, part[0], by_pid):
            orphans.setdefault(name, []).append(row)
    for name, members in dead.items():
        yield _group(name, members, "of its ranks are defunct: what is left only holds memory, and its parent must end")
    for name, members in orphans.items():
        yield _group(name, members, "of its ranks have lost their server: they only hold memory")


def _part(row: Row) -> tuple[engines.Engine, Rank] | None:
    if row.state == "K":
        return None
    return engines.classify(row.process)


def _orphan(row: Row, engine: engines.Engine, by_pid: dict[int, Row]) -> bool:
    """Above it and its fellow ranks is an init or a shell. As pid 1 of a container, a program may be the server."""
    first, parent = by_pid.get(1), by_pid.get(row.ppid or 0)
    for _ in range(8):
        above = _part(parent) if parent is not None else None
        if parent is None or above is None or above[0] is not engine or parent.zombie:
            break
        row, parent = parent, by_pid.get(parent.ppid or 0)
    if row.ppid == 1:
        return first is None or first.process.comm in engines.REAPERS
    return parent is not None and parent.process.comm in engines.REAPERS


def _group(name: str, members: list[Row], says: str) -> Told:
    first = members[0].line
    pids = ", ".join(str(row.process.pid) for row in members[:8]) + (", …" if len(members) > 8 else "")
    fact = (
        "all processes of a server end together, with signals to its whole group (vllm issue 55510, sglang issue 23627)"
    )
    text = f"{name} server: {len(members)} {says} (pid {pids})"
    return Told("dead-group", text, Scope.PROCESS, fact, first.number, first.shown, f"{name} {members[0].process.pid}")


# ------------------------------------------------------------------------------------------------ single ones


def _stuck(table: list[Row]) -> Iterator[Told]:
    tools = [row for row in table if row.state.startswith("D") and _TOOLS.match(row.process.title)]
    if any("nvidia-smi" in row.process.title for row in tools) or len(tools) > 1:
        row = tools[0]
        names = ", ".join(dict.fromkeys(t.process.title.split(" ")[0].rsplit("/", 1)[-1] for t in tools))
        says = f"{names} wait in the kernel for a driver that does not answer: no signal reaches them"
        fact = "tools of the driver in state D (nvidia-docker issue 377); nothing from inside the guest helps then"
        yield Told("nvml-hang", says, Scope.VM, fact, row.line.number, row.line.shown)
    for row in table:
        waits = row.state.startswith("D") and row.wchan
        if waits and STORAGE.search(row.wchan) and _part(row) is not None:
            says = f"{_who(row)} waits for storage that does not answer (in {row.wchan}): no step here cures that"
            yield _one(row, "storage-hang", says, None, "its wait channel is of a network or user-space file system")
        elif waits and _DRIVER.search(row.wchan) and not _TOOLS.match(row.process.title):
            says = f"{_who(row)} waits inside the NVIDIA driver (in {row.wchan}): no signal reaches it"
            yield _one(
                row, "stuck-process", says, Scope.GUEST, "a task in state D ends only when what it waits for answers"
            )


def _survivors(lines: Iterable[Line], table: list[Row]) -> Iterator[Told]:
    """Rows of processes that a SIGKILL higher up in the same text was sent to."""
    killed: dict[int, int] = {}
    for line in lines:
        match = _KILL.search(line.whole) if "kill" in line.whole else None
        if match is not None and not line.typed and not line.text.startswith(("kill ", "sudo kill ")):
            match = None  # a sentence about it
        for word in match[1].split() if match else ():
            killed.setdefault(int(word), line.number)
    for row in table:
        sent = killed.get(row.process.pid)
        if sent is not None and sent < row.line.number and (not row.zombie or row.threads_live):
            says = f"{_who(row)} is still there after kill -9: the kernel keeps it"
            fact = "seen in R inside nvidia_uvm; only a new kernel ended it (vllm issue 25127)"
            yield _one(row, "unkillable-process", says, Scope.GUEST, fact)


def _one(row: Row, signal: str, says: str, cure: Scope | None, fact: str) -> Told:
    return Told(signal, says, cure, fact, row.line.number, row.line.shown, f"pid {row.process.pid}")


def _who(row: Row) -> str:
    return f"pid {row.process.pid} ({row.process.comm})"


# ------------------------------------------------------------------------------------------------ /proc/PID/*

_FRAME = re.compile(r"^\[<(?:0|[0-9a-f]{8,16})>\] (\S{1,80})\+0x[0-9a-f]+/0x[0-9a-f]+(?: \[(\w+)\])?$")
_SPINS = frozenset({"uvm_spin_loop", "uvm_tracker_wait", "uvm_tracker_wait_deinit"})
# Kernel threads of the driver that wait for work, and what any poll of it passes.
_IDLE = frozenset({"_main_loop", "nvidia_poll", "nvkms_kthread_q_callback"})


def _stacks(lines: Iterable[Line]) -> Iterator[list[Line]]:
    stack: list[Line] = []
    logged = False  # the trace of a kernel log is judged with its head, there
    for line in lines:
        logged = "Call Trace" in line.text or (logged and line.text != "" and not line.typed)
        if not logged and line.text.startswith("[<") and _FRAME.match(line.text):
            stack.append(line)
        elif stack:
            yield stack
            stack = []
    if stack:
        yield stack


def _in_stacks(stacks: list[list[Line]]) -> Iterator[Told]:
    for stack in stacks:
        frames = [m for line in stack if (m := _FRAME.match(line.text))]
        names = {m[1] for m in frames}
        inside = [m for m in frames if (m[2] or "").startswith("nvidia")]
        top = stack[0]
        if names & _SPINS:
            says = "a task spins inside nvidia_uvm for an answer of the GPU: no signal ends it"
            fact = "state R, SIGKILL ignored; only the machine's restart ended it (vllm issue 25127)"
            yield Told("unkillable-process", says, Scope.GUEST, fact, top.number, top.shown, f"line {top.number}")
        elif inside and not names & _IDLE:
            says = f"a task waits inside the NVIDIA driver (in {inside[0][1]})"
            fact = "a task that the driver keeps ends only when the GPU answers, or with the kernel (gpud 117)"
            yield Told("stuck-process", says, Scope.GUEST, fact, top.number, top.shown, f"line {top.number}")
        elif any(STORAGE.search(name) for name in names):
            says = "a task waits for storage: if it stays so, no step here cures that"
            fact = "its stack is of a network or user-space file system"
            yield Told("storage-hang", says, None, fact, top.number, top.shown, f"line {top.number}")


_SIGKILL = 1 << 8


def _status(lines: Iterable[Line]) -> Iterator[Told]:
    """/proc/PID/status: a SIGKILL that is pending on a task that runs or waits."""
    seen: dict[str, str] = {}
    head: Line | None = None
    for line, name, value in status_fields(lines):
        if name == "Name":
            seen, head = {}, line
        seen[name] = value
        mask = value if name in ("SigPnd", "ShdPnd") else ""
        if head is None or not re.fullmatch(r"[0-9a-f]{16}", mask) or not int(mask, 16) & _SIGKILL:
            continue
        if seen.get("State", "")[:1] in ("D", "R"):
            who, state = seen["Name"][:64], seen["State"][:1]
            says = f"{who} ignores a SIGKILL in state {state}; if that stays, the kernel keeps it"
            fact = "bit 8 of its pending signals; a big pinned pool may need a minute, then only a new kernel ends it"
            subject = f"pid {seen.get('Pid', head.number)}"
            yield Told("unkillable-process", says, Scope.GUEST, fact, line.number, line.shown, subject)
            head = None
