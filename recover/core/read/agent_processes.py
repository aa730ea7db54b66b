"""Process rows of the agent: the cheap table and what the deep look added, joined by pid and start time."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from dataclasses import replace

from recover.core.clean import clean
from recover.core.read.report import Report, unknown
from recover.core.read.rows import Row, whole_number
from recover.model.memory import Leftover, LeftoverKind
from recover.model.process import Process, ProcessId
from recover.model.reading import Known, Reading, Unknown, Why

_DEAD = "ZX"
_NO_MORE = Row(None)
# Names that carry their owner's pid (serving engines and torch; see the table of leftovers in the documentation).
_PID_IN_NAME = re.compile(r"^(?:sgl_shm_[a-z]+_|multi_tokenizer_args_|torch_|sglang_trace_)(\d+)(?:_|$|\.)")


def processes(report: Report, boot: str) -> Reading[tuple[Process, ...]]:
    if report.one("procs") is None:
        return report.missing("processes")
    if not any(batch.flag("last") for batch in report.all("procs")):
        return Unknown(Why.TIMEOUT, "the list of processes broke off")
    deep = {(row.number("pid"), row.number("start")): row for row in report.table("deep") if "start" in row}
    failed = {row.number("pid"): row for row in report.table("deep") if "start" not in row}
    gone = {pid for pid, row in failed.items() if row.text("why") == "absent"}
    again = {pid for pid, _ in deep}
    rows = (
        _process(row, boot, deep, failed)
        for row in report.table("procs")
        if not _ended((row.number("pid"), row.number("start")), deep.keys(), gone, again)
    )
    return Known(tuple(sorted((p for p in rows if p is not None), key=lambda p: p.id)))


def _ended(who: tuple[int, int], seen: Container[tuple[int, int]], gone: set[int], again: set[int]) -> bool:
    """Gone between the two passes, perhaps with another process behind its pid by now."""
    return who[0] in gone or (who not in seen and who[0] in again)


def anon_kib(row: Row) -> int:
    """Anonymous pages of one row; kernels before 4.5 do not split RSS."""
    if "anon" in row:
        return row.number("anon")
    return max(0, row.number("rss") - row.number("shmem"))


def _process(row: Row, boot: str, deep: dict[tuple[int, int], Row], failed: dict[int, Row]) -> Process | None:
    pid, start = row.maybe("pid"), row.maybe("start")
    state = row.text("state")[:1]
    if pid is None or start is None or not state:
        return None
    more = deep.get((pid, start), _NO_MORE)
    argv = _argv(more, failed.get(pid))
    threads = row.number("threads", 1)
    live = more.number("live", row.number("live", 0 if state in _DEAD else threads))
    wchans = tuple(dict.fromkeys([*row.texts("wchans"), *more.texts("wchans")]))
    plain_zombie = state in _DEAD and row.number("live") == 0
    ns_pids = row.numbers("ns_pids")
    return Process(
        id=ProcessId(boot, pid, start),
        ppid=row.number("ppid"),
        pgid=row.number("pgid"),
        sid=row.number("sid"),
        state=state,
        comm=row.text("comm", limit=64),
        title=clean(" ".join(argv.value)) if isinstance(argv, Known) else "",
        argv=argv,
        uid=row.number("uid"),
        threads=threads,
        live_threads=live,
        rss_mib=row.number("rss") // 1024,
        shmem_mib=row.number("shmem") // 1024,
        cgroup=row.text("cgroup"),
        wchan=row.text("wchan", limit=64),
        thread_wchans=wchans,
        sigkill_pending=row.flag("kill_pending"),
        cpu_ticks=row.number("ticks"),
        io_bytes=more.number("io"),
        holds=frozenset(more.texts("holds")),
        holds_known=plain_zombie or row.flag("kernel") or row.flag("ours") or "start" in more,
        listens=frozenset(_ports(more)),
        peers=frozenset(more.texts("peers")),
        in_our_pid_namespace=len(ns_pids) <= 1,
        ns_pids=ns_pids,
        tty=row.number("tty"),
        criu_restored=more.flag("restored"),
        ours=row.flag("ours"),
    )


def with_restored(found: Reading[tuple[Process, ...]], report: Report) -> Reading[tuple[Process, ...]]:
    """Marks what CRIU brought back: below a living `criu`, or in a container that its engine says was restored.

    What holds a GPU is marked already where the agent saw that it lives in a time name space of its own.
    """
    if not isinstance(found, Known):
        return found
    row = report.one("services")
    boxes = [i.text("id", limit=80) for i in (row.rows("list") if row is not None else ()) if i.flag("restored")]
    if not any(boxes) and not any(p.comm == "criu" for p in found.value):
        return found
    parents = {p.pid: p for p in found.value}

    def restored(process: Process) -> bool:
        if any(box and box in process.cgroup for box in boxes):
            return True
        above, seen = parents.get(process.ppid), {process.pid}
        while above is not None and above.pid not in seen:
            if above.comm == "criu":
                return True
            seen.add(above.pid)
            above = parents.get(above.ppid)
        return False

    return Known(tuple(replace(p, criu_restored=True) if restored(p) else p for p in found.value))


def _argv(more: Row, failed: Row | None) -> Reading[tuple[str, ...]]:
    if "argv" in more:
        return Known(more.texts("argv"))
    return Unknown(Why.ABSENT, "not read") if failed is None else unknown(failed)


def _ports(more: Row) -> Iterable[int]:
    for item in more.items("listens"):
        port = whole_number(item[0]) if isinstance(item, list) and item else None
        if port is not None:
            yield port


def leftovers(report: Report, found: Reading[tuple[Process, ...]]) -> Reading[tuple[Leftover, ...]]:
    row = report.one("leftovers")
    if row is None:
        return report.missing("leftovers")
    alive = None
    if isinstance(found, Known):
        living = [p for p in found.value if not p.plain_zombie]
        # A name that was given in a container carries the pid that its owner has there.
        alive = {p.pid for p in living} | {pid for p in living for pid in p.ns_pids}
    inodes: set[int] = set()
    names: set[str] = set()
    for item in report.table("deep"):
        inodes.update(item.numbers("inodes"))
        names.update(name.removesuffix(" (deleted)") for name in item.texts("shm"))
    end = report.one("deep-end")
    hello = report.one("hello")
    sure = end is not None and not end.items("failed") and hello is not None and hello.flag("root")
    rows = [*row.rows("list"), *report.table("sockets")]
    return Known(tuple(_leftover(item, alive, inodes, names, sure) for item in rows))


def _leftover(item: Row, alive: set[int] | None, inodes: set[int], names: set[str], sure: bool) -> Leftover:
    kind = {k.value: k for k in LeftoverKind}.get(item.text("kind"), LeftoverKind.SHM_FILE)
    name = item.text("name")
    match = _PID_IN_NAME.match(name)
    owner = int(match.group(1)) if match and len(match.group(1)) < 10 else None
    if kind is LeftoverKind.SYSV:
        owner = item.maybe("pid")
    path = item.text("folder", "/dev/shm") + "/" + name
    mapped: bool | None = path in names or (item.number("inode") in inodes and item.number("inode") > 0)
    if kind is LeftoverKind.SYSV:
        mapped = item.number("attached") > 0
    elif kind is LeftoverKind.SOCKET:
        bound = item.raw.get("bound")
        mapped = bound if isinstance(bound, bool) else None
    elif not mapped and not sure:
        mapped = None
    owner_alive = None if owner is None or alive is None else bool(alive & {owner, item.number("last")})
    return Leftover(
        kind=kind,
        name=name,
        size_mib=item.number("kib") // 1024,
        owner_pid=owner,
        owner_alive=owner_alive,
        mapped=mapped,
        inode=item.number("inode"),
        mtime_s=item.real("mtime"),
        folder=item.text("folder", "/dev/shm", 500),
        uid=item.maybe("uid"),
    )
