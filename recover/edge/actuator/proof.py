"""What a power act did is told by the guest's state, its task's log and the host's memory, never by a task's OK."""

from __future__ import annotations

from dataclasses import dataclass

from recover.core.read.task_log import FINAL, TaskClass, TaskNote, classify, gravest
from recover.edge.actuator.sight import Vm
from recover.edge.proxmox.errors import ApiError
from recover.edge.proxmox.tasks import StillRunning, TaskEnd, Unresolved
from recover.model.act import Outcome
from recover.model.reading import Known, Reading, Unknown

LOG_LINES = 40
ENOUGH = 0.8  # of the guest's memory: other guests and caches of the host move meanwhile
_UNTOLD = frozenset({
    TaskClass.DMA_MAP_NOISE, TaskClass.FLOCK_WAIT, TaskClass.HA_QUEUED, TaskClass.ALREADY_RUNNING,
    TaskClass.NOT_RUNNING,
})  # fmt: skip
# The worker was ended in the middle: QEMU may have been told already.
_HALF_DONE = frozenset({TaskClass.WORKER_DIED, TaskClass.INTERRUPTED})


@dataclass(frozen=True, slots=True)
class Verb:
    """One power call. `ensure`: done at once where the goal already holds."""

    word: str
    types: frozenset[str]
    goal: str
    ensure: bool = True


STOP = Verb("stop", frozenset({"qmstop", "vzstop", "hastop"}), "stopped")
SHUTDOWN = Verb("shutdown", frozenset({"qmshutdown", "vzshutdown", "hastop"}), "stopped")
START = Verb("start", frozenset({"qmstart", "vzstart", "hastart"}), "running")
RESET = Verb("reset", frozenset({"qmreset"}), "running", ensure=False)


# pve-container, PVE/LXC.pm: `lxc-stop --kill` is waited for without any limit, with the guest's lock file held
_VZSTOP = "; LXC's stop has no time-out of its own: a process of the container hangs in the kernel"


@dataclass(frozen=True, slots=True)
class Ran:
    """A call that was sent once, how its task ended, and the guest afterwards."""

    verb: Verb
    before: Vm
    after: Vm | ApiError
    end: TaskEnd | StillRunning | ApiError | Unresolved
    upid: str = ""
    log: tuple[str, ...] = ()

    @property
    def reached(self) -> bool:
        """The goal holds and no task of ours is about to change it or still has the guest's lock."""
        return isinstance(self.after, Vm) and self.after.has(self.verb.goal) and not isinstance(self.end, StillRunning)

    @property
    def notes(self) -> tuple[TaskNote, ...]:
        exit_line = (self.end.exitstatus,) if isinstance(self.end, TaskEnd) else ()
        return classify((*self.log, *exit_line))

    @property
    def worst(self) -> TaskNote | None:
        return gravest(self.notes)

    def says(self, kind: TaskClass) -> bool:
        return any(note.kind is kind for note in self.notes)


def told(notes: tuple[TaskNote, ...]) -> str:
    """What is worth telling beside the act's end: "; the node could not reset ... (0000:41:00.0)"."""
    words: dict[str, list[str]] = {}
    for note in notes:
        if note.kind not in _UNTOLD:
            words.setdefault(note.says, []).extend([note.device] if note.device else [])
    return "".join(f"; {says}" + (f" ({', '.join(dict.fromkeys(at))})" if at else "") for says, at in words.items())


def brief(text: str) -> str:
    """A failed start quotes QEMU's whole command line; its beginning and its end say enough."""
    return text if len(text) <= 300 else f"{text[:120]} ... {text[-160:]}"


def tail(ran: Ran, *more: str) -> tuple[str, ...]:
    return (*ran.log[-LOG_LINES:], *more)


def done(ran: Ran) -> Outcome:
    """The goal was reached; how the task ended is said where that was not simply OK."""
    word, end = ran.verb.word, ran.end
    detail = str(ran.after)
    match end:
        case TaskEnd(ok=False):
            detail += f", although the {word} task ended: {brief(end.exitstatus)}"
        case Unresolved():
            detail += f", seen by its state: the answer to the {word} was lost"
        case ApiError():
            detail += f", seen by its state: the {word} task could not be followed ({end.message})"
    return Outcome(True, detail + told(ran.notes), log=tail(ran))


def undone(ran: Ran) -> Outcome:
    """The goal was not reached, or that can't be told."""
    word, end = ran.verb.word, ran.end
    now = str(ran.after) if isinstance(ran.after, Vm) else f"its state can't be seen ({ran.after.message})"
    match end:
        case StillRunning():
            detail = f"the {word} task still runs after {end.seconds:.0f} s; {now}{told(ran.notes)}"
            if ran.before.container and ran.verb is STOP:
                detail += _VZSTOP
            return Outcome(False, detail, clear=False, log=tail(ran), busy=end.upid)
        case Unresolved():
            detail = f"the answer to the {word} was lost ({end.error.message}); {end.looked}; {now}"
            return Outcome(False, detail, clear=False)
        case ApiError():
            detail = f"the {word} task was begun and could not be followed ({end.message}); {now}"
            return Outcome(False, detail, clear=False, log=tail(ran), busy=ran.upid)
        case TaskEnd(ok=True):
            return _ok_and_not_done(ran, now)
    return _failed(ran, end, now)


def _ok_and_not_done(ran: Ran, now: str) -> Outcome:
    word = ran.verb.word
    if ran.before.ha:
        # HA keeps the wish for good, and may still fulfil it (pve-ha-manager: the resource's requested state)
        detail = f"HA took the {word} and has not done it in time; {now}{told(ran.notes)}"
        return Outcome(False, detail, clear=False, log=tail(ran))
    if isinstance(ran.after, ApiError):
        return Outcome(False, f"the {word} task ended OK; {now}", clear=False, log=tail(ran))
    still = "still runs" if ran.verb.goal == "stopped" else "does not run"
    what = "container" if ran.before.container else "VM"
    detail = f"the {word} task ended OK and the {what} {still}: {now}{told(ran.notes)}"
    return Outcome(False, detail, changed=False, log=tail(ran))


def _failed(ran: Ran, end: TaskEnd, now: str) -> Outcome:
    note = ran.worst if ran.worst is not None and ran.worst.kind not in _UNTOLD else None
    meant = f"{note.kind}: {note.says}" + (f" ({note.device})" if note.device else "") if note else "not known"
    detail = f"the {ran.verb.word} failed: {meant}. PVE: {brief(end.exitstatus)}; {now}"
    unclear = any(ran.says(kind) for kind in _HALF_DONE) or isinstance(ran.after, ApiError)
    final = ran.verb is START and note is not None and note.kind in FINAL and not unclear
    return Outcome(False, detail, changed=unclear, clear=not unclear, log=tail(ran), final=final)


@dataclass(frozen=True, slots=True)
class Returned:
    """Whether the host got the guest's memory back; None where that can't be proved. `says` goes into the log."""

    back: bool | None
    says: str


def returned(before: Reading[int], after: Reading[int], vm: Vm, memory_mib: int) -> Returned:
    for reading in (before, after):
        if isinstance(reading, Unknown):
            return Returned(None, f"host memory: not provable ({reading.detail or reading.why})")
    if not memory_mib:
        return Returned(None, "host memory: not judged, the guest's size is not known")
    assert isinstance(before, Known) and isinstance(after, Known)
    want = min(memory_mib, vm.memhost_mib) if vm.memhost_mib else memory_mib
    grew = after.value - before.value
    return Returned(grew >= ENOUGH * want, f"host memory: {grew} MiB came free on {vm.node}, the guest had {want} MiB")
