"""What a process waits for, by the kernel functions in which its tasks sleep; who is held on purpose is told apart."""

from __future__ import annotations

from recover.core.kinship import PAGE_WAIT, STORAGE
from recover.model.process import Process

_FREEZER = ("do_freezer_trap", "__refrigerator")  # kernel/cgroup/freezer.c, and the freezer of control groups v1


def storage_wait(process: Process) -> str:
    """The function in which a task waits for data from storage, or nothing."""
    if process.state != "D" and not process.dead_leader:
        return ""
    return next((w for w in process.waits if STORAGE.search(w) or PAGE_WAIT.search(w)), "")


def network_wait(process: Process) -> bool:
    """Whether a task of it waits for a file server: no restart of the guest brings that back."""
    return any(STORAGE.search(w) for w in process.waits)


def frozen(process: Process) -> bool:
    """Whether somebody holds it: SIGSTOP, a debugger, or the freezer, as `docker pause` does."""
    return process.state in "Tt" or any(w in _FREEZER for w in process.waits)
