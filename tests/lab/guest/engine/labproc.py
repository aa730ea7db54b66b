"""What a process of the lab's guest shows of itself: title, comm, kernel start time. Standard library only."""

from __future__ import annotations

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)
SYS_EXIT = 60 if os.uname().machine == "x86_64" else 93


def stat_fields(pid: int | str, root: str = "/proc") -> list[str]:
    """The fields of /proc/PID/stat from `state` on; index 0 is the state, 1 the parent, 19 the start time."""
    with open(f"{root}/{pid}/stat", encoding="utf-8", errors="replace") as handle:
        text = handle.read()
    return text[text.rindex(")") + 2 :].split()


def set_title(title: str) -> None:
    """As setproctitle(3) does it: over the argument area, which ends in NULs, and comm cut at 15 bytes."""
    raw = title.encode("utf-8", "surrogateescape")
    fields = stat_fields("self")
    start, end = int(fields[45]), int(fields[46])
    room = end - start
    blob = raw[: room - 1].ljust(room, b"\0")
    ctypes.memmove(start, blob, room)
    set_comm(raw)


def set_comm(raw: bytes) -> None:
    with open("/proc/self/comm", "wb") as handle:
        handle.write(raw[:15])


def cover_status(path: str) -> None:
    """From here on `path` (a status file in /proc) shows the sizes that the lab's keeper writes for this process.

    Workers declare their memory, they don't take it: without this all of it would look like memory that nobody owns.
    The kernel drops the mount with the process.
    """
    source = f"/run/lab/status/{os.getpid()}"
    with open("/proc/self/status", encoding="utf-8") as real, open(source, "w", encoding="utf-8") as cover:
        cover.write(real.read())
    if _libc.mount(source.encode(), path.encode(), None, 4096, None):
        raise OSError(ctypes.get_errno(), f"mount over {path}")


def leader_exits() -> None:
    """Only the calling thread ends: a main thread that calls this leaves a defunct leader over its living threads."""
    _libc.syscall(SYS_EXIT, 0)


def alive(pid: int | str, root: str = "/proc") -> bool:
    """A zombie whose threads are all gone holds nothing; one with a living thread still holds everything."""
    try:
        if stat_fields(pid, root)[0] not in "ZX":
            return True
        tasks = os.listdir(f"{root}/{pid}/task")
    except (OSError, ValueError, IndexError):
        return False
    for tid in tasks:
        try:
            if tid != str(pid) and stat_fields(f"{pid}/task/{tid}", root)[0] not in "ZX":
                return True
        except (OSError, ValueError, IndexError):
            continue
    return False


def start_time(pid: int | str, root: str = "/proc") -> str:
    try:
        return stat_fields(pid, root)[19]
    except (OSError, ValueError, IndexError):
        return ""
