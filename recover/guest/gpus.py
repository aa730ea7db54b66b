"""GPUs are asked last, in children, all under one deadline: one that hangs costs one and hides no other.

A hung child is a client of its GPU and adds one more stuck thread to the driver, so nothing is asked twice, and a GPU
that hung before is not asked at all (`skip_gpus`).
"""

import json
import os
import re

from recover.guest import nvml
from recover.guest.child import Child, collect, hear, run, which
from recover.guest.wire import Limit, at, emit, gap, listdir, read_or

try:
    import mmap
except ImportError:  # a minimal Python: each GPU is asked by a child of its own
    mmap = None  # type: ignore[assignment]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional

    Say = Callable[[Any], None]
    Row = dict[str, Any]

QUERY_S, RPC_QUERY_S = 20.0, 90.0  # one GSP call times out after 6 s or 45 s in the driver: the log says which
_TURN_S = 0.1  # so long one child goes from GPU to GPU; a fork costs more than all the answers of one that is well
_LIBRARY_MISSING = 12
_ELSEWHERE = tuple(
    "/run/nvidia/driver/usr/lib/%s/libnvidia-ml.so.1" % arch for arch in ("x86_64-linux-gnu", "aarch64-linux-gnu")
) + ("/run/nvidia/driver/usr/lib64/libnvidia-ml.so.1", "/usr/local/nvidia/lib64/libnvidia-ml.so.1")


def patience(lines: "list[list[Any]]", since_usec: int = 0) -> float:
    """Seconds for one GPU. While Xid 119 or 120 is news, a call may take a whole RPC time-out before it fails.

    Not news is what is older than `since_usec` or than the loading of the driver that runs now.
    """
    wait = QUERY_S
    for usec, line in lines:
        if "NVRM: loading NVIDIA UNIX" in line:
            wait = QUERY_S
        elif usec >= since_usec and "Xid" in line and re.search(r"NVRM: Xid [^)]*\): (119|120),", line):
            told = re.search(r"Timeout after (\d{1,4})s of waiting", line)
            wait = max(wait, 2.0 * float(told.group(1)) if told else RPC_QUERY_S)
    return min(wait, RPC_QUERY_S)


def _given(wanted: float, limit: Limit) -> "Optional[float]":
    """Seconds for a stage; None if so few are left that a late answer would prove nothing."""
    given = min(wanted, limit.left - 1.0)
    if given < min(wanted, QUERY_S):
        gap("gpus", "timeout", "no time was left to ask the driver")
        return None
    return given


def look(request: "dict[str, Any]", pci: "list[Row]", seconds: float, limit: Limit) -> None:
    """Driver first, then the GPUs."""
    wanted = float(request.get("gpu_deadline") or seconds)
    given = _given(wanted, limit)
    if given is None:
        return
    there = _library() or pci or listdir(at("/proc/driver/nvidia/gpus")) or which("nvidia-smi")
    if not there:
        emit("driver", init={"e": _LIBRARY_MISSING, "t": "no NVIDIA device, library or tool"})
        return
    try:
        import pynvml as nv  # compiled once here, before the children are forked; asks no driver yet
    except ImportError as error:  # a minimal Python without ctypes
        emit("driver", init={"e": _LIBRARY_MISSING, "t": str(error)})
        _smi(limit.within(given))
        return
    skip = _skipped(request)
    turn = Turn(nv, lambda index, major, inited: _gpu_job(nv, index, major, skip, inited))
    late = turn.starts(given)
    values = {key: value for said in turn.child.values for key, value in said.items()}
    if late:
        emit("driver", hangs=True, at="nvmlInit", seconds=given, pid=turn.child.pid, **values)
        gap("gpus", "timeout", "nvmlInit did not come back in %g s" % given)
        return
    values.setdefault("init", {"e": -1, "t": str(values.get("crash", "the child ended early"))})
    emit("driver", **values)
    if "v" not in values["init"]:
        turn.ends()
        _smi(limit.within(given))
        return
    given = _given(wanted, limit)
    if given is None:
        turn.ends()
    else:
        _ask_all(turn, values, skip, pci, limit.within(given), given)


def _skipped(request: "dict[str, Any]") -> "set[str]":
    skip = {word.lower() for word in request.get("skip_gpus") or ()}
    skip |= {full_bus(word) for word in skip if word.count(":") == 2}
    return skip | {word.upper() for word in list(skip)}


def prepare() -> None:
    """Compile what is needed later, while children read: it loads no library and asks no driver."""
    if os.path.exists(at("/proc/driver/nvidia/version")):
        try:
            import pynvml  # noqa: F401
        except ImportError:
            pass


def _library() -> bool:
    """Whether the library can be loaded. A driver in a container's root is found by path; its name then is known."""
    try:
        import ctypes
    except ImportError:
        return False
    for path in ("libnvidia-ml.so.1",) + _ELSEWHERE:
        try:
            ctypes.CDLL(path)
            return True
        except OSError:
            continue
    return False


def _major(values: "Row") -> "Optional[int]":
    match = re.match(r"(\d+)\.", str(values.get("driver", {}).get("v", "")))
    return int(match.group(1)) if match else None


def _gpu_job(
    nv: "Any", index: int, major: "Optional[int]", skip: "set[str]", inited: bool
) -> "Callable[[Say], None]":
    """Tells what it is about to ask and then the answer: after a hang the last word names the call."""

    def job(say: "Say") -> None:
        say({"ask": "init"})
        init = {"v": None} if inited else nvml.start(nv)
        if "v" not in init:
            say({"init": init})
            return
        say({"ask": "handle"})
        got = []  # type: list[Any]
        handle = nvml.ask(lambda: got.append(nv.nvmlDeviceGetHandleByIndex(index)))
        told = {"handle": handle}  # type: Row  # each answer leaves with the next question
        if not got:
            say(told)
            return
        for name, question in nvml.questions(nv, got[0], major):
            told["ask"] = name
            say(told)
            answer = nvml.ask(question)
            told = {name: answer}
            if name in ("bus", "uuid") and str(answer.get("v", "")).lower() in skip:
                told["skipped"] = True
                say(told)
                return
        told["complete"] = True
        say(told)

    return job


class Turn:
    """The child that starts NVML, and then asks one GPU after the other for a short while; the rest is left to others.

    Between two it lets go of all (nvmlShutdown): were it stuck on the second, it would still be a client of the first.
    """

    def __init__(self, nv: "Any", job_of: "Callable[[int, Optional[int], bool], Callable[[Say], None]]") -> None:
        self._nv, self.job_of = nv, job_of
        self._shared = mmap.mmap(-1, 5) if mmap else None  # no more is to be begun · how many were
        self._asked, self._ask = os.pipe()
        self.child = Child("NVML: initialise", self._job, self._asked)
        os.close(self._asked)

    def _job(self, say: "Say") -> None:
        init = nvml.start(self._nv)
        say({"init": init})
        if "v" in init:
            for key, value in nvml.system(self._nv).items():
                say({key: value})
            self._each(say, json.loads(os.read(self._asked, 1 << 16).decode("ascii") or "[[], 0]"))

    def _each(self, say: "Say", asked: "list[Any]") -> None:
        for place, index in enumerate(asked[0]):
            if place:
                nvml.ask(self._nv.nvmlShutdown)
            self._shared[1:] = (place + 1).to_bytes(4, "little")  # type: ignore[index]
            if self._shared[0]:  # type: ignore[index]
                return
            say({"turn": index})
            self.job_of(index, asked[1], place == 0)(say)

    def starts(self, seconds: float) -> bool:
        """Whether it did not come back from the start within its time; it is given up then."""
        hear(self.child, seconds, "count")
        late = not self.child.done and not any("count" in said for said in self.child.values)
        if late:
            self.child.finish()
        return late

    def ends(self) -> None:
        """It asks no GPU."""
        os.close(self._ask)
        hear(self.child, 1.0)
        self.child.finish()

    def begun(self, names: "list[tuple[int, str]]", major: "Optional[int]") -> int:
        """How many of these it has begun when its time is over; it begins no other."""
        if self._shared is None:
            return 0
        try:
            os.write(self._ask, json.dumps([[index for index, _ in names], major]).encode("ascii"))
        except OSError:
            return 0  # it is no more
        hear(self.child, _TURN_S)
        self._shared[:1] = b"\1"
        count = int.from_bytes(self._shared[1:], "little")
        if count:
            self.child.what = names[count - 1][1]
        return count

    def told(self, late: bool) -> "dict[int, tuple[list[Any], int]]":
        """GPU -> what was said of it, and our pid where it hung, for each that it asked."""
        found = {}  # type: dict[int, tuple[list[Any], int]]
        index, said = -1, []  # type: int, list[Any]
        for value in self.child.values:
            if "turn" in value:
                index, said = value["turn"], []
                found[index] = said, 0
            else:
                said.append(value)
        if found and late:
            found[index] = said, self.child.pid
        return found


def known_buses(pci: "list[Row]", count: int) -> "list[str]":
    """Bus id by NVML index: NVML counts in bus order. Empty strings where the bus shows another number of GPUs."""
    bound = [gpu["bus"] for gpu in pci if gpu.get("driver") in ("nvidia", "")]
    for names in (bound, [gpu["bus"] for gpu in pci], listdir(at("/proc/driver/nvidia/gpus"))):
        if len(names) == count:
            return sorted(names)
    return [""] * count


def uuid_of(bus: str) -> str:
    """As the driver's own file says; the file takes no driver lock."""
    match = re.search(r"^GPU UUID:\s*(\S+)", read_or(at("/proc/driver/nvidia/gpus/%s/information" % bus)), re.M)
    return match.group(1) if match and "?" not in match.group(1) else ""


def full_bus(bus: str) -> str:
    """`0000:01:00.0` or `00000000:01:00.0` in the form with eight digits, lower case."""
    domain, _, rest = bus.lower().partition(":")
    return domain.zfill(8) + ":" + rest if rest else bus.lower()


def _ask_all(
    turn: Turn, values: "Row", skip: "set[str]", pci: "list[Row]", limit: Limit, seconds: float
) -> None:
    count = int(values.get("count", {}).get("v") or 0)
    if "v" not in values.get("count", {}):
        gap("gpus", "garbled", "the driver does not tell how many GPUs there are: %s" % values.get("count"))
    buses = known_buses(pci, count)
    wanted = []
    for index, bus in enumerate(buses):
        names = {full_bus(bus), uuid_of(bus).lower(), "index:%d" % index} if bus else {"index:%d" % index}
        if names & skip:
            emit("gpu", index=index, bus=bus, uuid_hint=uuid_of(bus), skipped=True)
        else:
            wanted.append((index, "NVML: GPU %d %s" % (index, bus)))
    for index, (said, late) in sorted(_answers(turn, wanted, _major(values), limit).items()):
        _tell(index, buses[index], said, late, seconds)


def _answers(
    turn: Turn, wanted: "list[tuple[int, str]]", major: "Optional[int]", limit: Limit
) -> "dict[int, tuple[list[Any], int]]":
    """GPU -> what was said of it, and the pid of the child that did not come back from it, or 0.

    All those that were not begun in a first turn are asked at once.
    """
    begun = turn.begun(wanted, major)
    os.close(turn._ask)
    children = {index: Child(what, turn.job_of(index, major, False)) for index, what in wanted[begun:]}
    late = collect(list(children.values()) + [turn.child], limit)
    found = turn.told(turn.child in late)
    for index, what in wanted[:begun]:
        if index not in found:  # it was told to stop just before it asked
            children[index] = Child(what, turn.job_of(index, major, False))
            late += collect([children[index]], limit)
    found.update((index, (child.values, child.pid if child in late else 0)) for index, child in children.items())
    return found


def _tell(index: int, bus: str, said: "list[Any]", late: int, seconds: float) -> None:
    values = {key: value for one in said for key, value in one.items()}
    last = values.pop("ask", "init")
    if late:
        values.update(hangs=True, at=last, seconds=seconds, pid=late)
    values["nvml_bus"] = values.pop("bus", None)
    emit("gpu", index=index, bus=bus, uuid_hint=uuid_of(bus) if bus else "", **values)


def _smi(limit: Limit) -> None:
    """The tool may have its own library, or say more clearly what is wrong. Never after a hang: it would hang too."""
    if which("nvidia-smi") is None:
        return
    ended = run(["nvidia-smi", "-q", "-x"], limit, "nvidia-smi -q -x", 8 << 20)
    emit("smi", code=ended.code, out=ended.out, err=ended.err[:4000], hangs=ended.code is None)
