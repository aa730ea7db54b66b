"""What may block for ever runs in a child that can be abandoned: own session, no inherited stdio, one result pipe.

A child in uninterruptible sleep ignores SIGKILL. Whoever waits for it, or shares a pipe with it, hangs as well: an
inherited stdout alone keeps an SSH channel open.
"""

import json
import os
import select
import signal
import sys
import time

from recover.guest.wire import Limit, read_or

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterable, Optional

NAME = b"gpu-recover-ask"  # comm of our children: how a later look knows an abandoned one as ours
ABANDONED: "list[dict[str, Any]]" = []  # children that could not be killed: they are clients of what they hang on
STARTED: "list[int]" = []
_GATHER_S = 0.003  # what a child says in quick succession is taken at once: waking up for each line costs more
_F_SETPIPE_SZ = 1031
_FAR = []  # type: list[str]
_FAR_TYPES = ("nfs", "cifs", "smb", "lustre", "ceph", "fuse", "gpfs", "beegfs", "glusterfs", "afs", "autofs", "wekafs")

PATHS = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/run/nvidia/driver/usr/bin"]


class Child:
    """One forked child. `job(say)` runs in it; each `say(value)` becomes one value here. `keeps`: what stays open in it."""

    def __init__(self, what: str, job: "Callable[[Callable[[Any], None]], None]", *keeps: int) -> None:
        self.what = what
        self.done = False
        self.killed = False
        self.values: "list[Any]" = []
        self.heard = time.monotonic()
        self._buffer = b""
        self.fd, write_end = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _become(write_end, job, keeps)
        os.close(write_end)
        STARTED.append(self.pid)

    def widen(self) -> None:
        """Room for what it says while nobody listens yet; where that is refused, it waits."""
        try:
            import fcntl

            fcntl.fcntl(self.fd, _F_SETPIPE_SZ, 1 << 20)
        except (ImportError, OSError):
            pass

    def pump(self) -> None:
        """Take what has arrived. Call when select says that there is something."""
        data = os.read(self.fd, 1 << 16)
        self.heard = time.monotonic()
        if not data:
            self.finish()
            return
        lines = (self._buffer + data).split(b"\n")
        self._buffer = lines.pop()
        self.values.extend(json.loads(line.decode("ascii")) for line in lines if line)

    def finish(self) -> None:
        """End it if it still runs; if it can't be ended, it is abandoned and named."""
        if self.done:
            return
        self.done = True
        os.close(self.fd)
        if not reaped(self.pid, 0.05):
            self.killed = True
            kill_session(self.pid)
            if not reaped(self.pid, 0.5):
                ABANDONED.append({"pid": self.pid, "what": self.what})


def kill_session(pid: int) -> None:
    """Our own child, not yet reaped: neither its pid nor its process group can belong to another by now."""
    for send in (os.killpg, os.kill):
        try:
            send(pid, signal.SIGKILL)
        except OSError:
            pass


def reaped(pid: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while True:
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return True
        except OSError:
            return True
        if time.monotonic() > end:
            return False
        time.sleep(0.002)


def detach(keep: "Iterable[int]" = ()) -> None:
    """Own session, stdio on /dev/null, no other descriptor of the parent."""
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        if fd not in keep:
            os.dup2(null, fd)
    kept = sorted(set(keep))
    for fd in _open_fds():
        if fd > 2 and fd not in kept:
            try:
                os.close(fd)
            except OSError:
                pass


def _open_fds() -> "list[int]":
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return list(range(3, 256))


def _become(write_end: int, job: "Callable[[Callable[[Any], None]], None]", keeps: "tuple[int, ...]" = ()) -> None:
    """The child's whole life. Never returns."""
    code = 1
    try:
        parent = os.getppid()
        detach((write_end,) + keeps)
        _rename()
        _die_with(parent)

        def say(value: "Any") -> None:
            view = memoryview((json.dumps(value, separators=(",", ":")) + "\n").encode("ascii"))
            while view:
                view = view[os.write(write_end, view) :]

        job(say)
        code = 0
    except BaseException as error:
        try:
            text = json.dumps({"crash": "%s: %s" % (type(error).__name__, error)}) + "\n"
            os.write(write_end, text.encode("ascii"))
        except BaseException:
            pass
    finally:
        os._exit(code)


def _rename() -> None:
    try:
        fd = os.open("/proc/self/comm", os.O_WRONLY)
        os.write(fd, NAME)
        os.close(fd)
    except OSError:
        pass


def _die_with(parent: int) -> None:
    """Whoever ends the agent ends its questions: PR_SET_PDEATHSIG, where ctypes is there anyway (for NVML it is)."""
    ctypes = sys.modules.get("ctypes")
    if ctypes is not None:
        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


def hear(child: Child, seconds: float, last: str = "") -> None:
    """Take what one says, until it ends, has said `last`, or for so long; it is not given up."""
    limit = Limit(seconds)
    while not child.done and limit.left > 0 and not (last and any(last in said for said in child.values)):
        if _ready([child], limit.left):
            child.pump()


def collect(children: "list[Child]", limit: Limit, quiet: "Optional[float]" = None) -> "list[Child]":
    """Drain all until they end, all under one deadline; gives those that did not come back (ended or abandoned now).

    `quiet`: a child that says nothing for so long is given up although the deadline is not reached.
    """
    late = []  # type: list[Child]
    while True:
        open_ones = [child for child in children if not child.done]
        if not open_ones:
            return late
        wait = min(limit.left, 0.5) if quiet is None else min(limit.left, quiet / 4.0)
        ready = _ready(open_ones, wait)
        for child in ready:
            child.pump()
        now = time.monotonic()
        for child in open_ones:
            if child.done or child in ready:
                continue
            if limit.left <= 0 or (quiet is not None and now - child.heard > quiet):
                late.append(child)
                child.finish()


def _ready(children: "list[Child]", wait: float) -> "list[Child]":
    """Those that have said something; while one of them may say more at once, that is waited for."""
    poll = select.poll()  # select() refuses descriptors above 1023
    by_fd = {child.fd: child for child in children}
    for fd in by_fd:
        poll.register(fd, select.POLLIN | select.POLLHUP)
    found = poll.poll(int(wait * 1000) + 1)
    if found and not any(what & select.POLLHUP for _, what in found):
        time.sleep(_GATHER_S)
    return [by_fd[fd] for fd, _ in found]


class Ended:
    """How a command ended. `code` None: it did not within its deadline (`left` True: nor can it be killed)."""

    def __init__(self, code: "Optional[int]", out: str, err: str, left: bool) -> None:
        self.code, self.out, self.err, self.left = code, out, err, left


def which(name: str) -> "Optional[str]":
    """Never looks on a network file system: one that is gone would block us for ever."""
    far = network_mounts()
    for folder in os.environ.get("PATH", "").split(":") + PATHS:
        path = os.path.join(folder, name)
        if folder.startswith("/") and not any((folder + "/").startswith(mount + "/") for mount in far):
            if os.access(path, os.X_OK) and not os.path.isdir(path):
                return path
    return None


def network_mounts() -> "list[str]":
    if not _FAR:
        _FAR.append("/net")
        for line in read_or("/proc/mounts").splitlines():
            field = line.split(" ")
            if len(field) > 2 and field[1] != "/" and field[2].startswith(_FAR_TYPES):
                _FAR.append(field[1].replace("\\040", " "))
    return _FAR


def run(argv: "list[str]", limit: Limit, what: str = "", cap: int = 4 << 20) -> Ended:
    """One command as an argument list, in an abandonable child; total deadline."""
    program = which(argv[0])
    if program is None:
        return Ended(127, "", argv[0] + ": not found", False)
    out_r, out_w = os.pipe()
    err_r, err_w = os.pipe()
    pid = os.fork()
    if pid == 0:
        _exec(program, argv, out_w, err_w)
    STARTED.append(pid)
    os.close(out_w)
    os.close(err_w)
    kept = {out_r: [], err_r: []}  # type: dict[int, list[bytes]]
    code = _drain(pid, kept, limit, cap)
    left = False
    if code is None:
        kill_session(pid)
        left = not reaped(pid, 0.5)
        if left:
            ABANDONED.append({"pid": pid, "what": what or argv[0]})
    for fd in kept:
        os.close(fd)
    texts = [b"".join(kept[fd]).decode("utf-8", "surrogateescape") for fd in (out_r, err_r)]
    return Ended(code, texts[0], texts[1], left)


def _exec(program: str, argv: "list[str]", out: int, err: int) -> None:
    try:
        os.setsid()
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        env = dict(os.environ, LC_ALL="C", LANG="C", SYSTEMD_PAGER="", SYSTEMD_COLORS="0")
        env["PATH"] = ":".join([p for p in env.get("PATH", "").split(":") if p] + PATHS)
        os.execve(program, argv, env)
    except BaseException:
        pass
    finally:
        os._exit(127)


def _drain(pid: int, kept: "dict[int, list[bytes]]", limit: Limit, cap: int) -> "Optional[int]":
    """Read both streams until the command has ended; a grandchild that holds them open is not waited for."""
    poll = select.poll()
    for fd in kept:
        poll.register(fd, select.POLLIN | select.POLLHUP)
    sizes = dict.fromkeys(kept, 0)
    open_fds = set(kept)
    code = None
    while True:
        ready = poll.poll(0 if code is not None else 20 if open_fds else 2)  # without a stream only waitpid can tell
        for fd, _ in ready:
            data = os.read(fd, 1 << 16)
            if not data:
                poll.unregister(fd)
                open_fds.discard(fd)
            elif sizes[fd] < cap:
                kept[fd].append(data)
                sizes[fd] += len(data)
        if code is not None and (not ready or not open_fds):
            return code
        if code is None:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
            elif limit.left <= 0:
                return None
