"""What tests do inside a machine: run a script, start a process that stays, write to a file that may never answer."""

from __future__ import annotations

from recover.edge.probe import GuestProbe
from recover.edge.shell.port import Shell
from recover.model.contact import Ran
from recover.model.guest import Guest
from tests.lab.files import interpreter

# A process of the guest that reads the disk past every cache, as a driver waits for its device: not to be interrupted.
READER = """
import mmap, os
held = open('/dev/nvidia0')
disk = os.open('/dev/nvme0n1', os.O_RDONLY | os.O_DIRECT)
page = mmap.mmap(-1, 4096)
print('ready', flush=True)
os.preadv(disk, [page], 0)
print('read', flush=True)
import time
time.sleep(600)
"""

_START = """
mkdir -p /run/out; out=$(mktemp /run/out/XXXXXX)
setsid "$@" </dev/null >"$out" 2>&1 & pid=$!
for i in $(seq 300); do
    grep -q ready "$out" && { echo $pid; exit 0; }
    kill -0 $pid 2>/dev/null || break
    sleep 0.1
done
cat "$out" >&2; exit 1
"""

# The writer is left behind when it does not come back: nobody who asked waits in the kernel with it.
_WRITE = """
out=$(mktemp /run/XXXXXX)
setsid /run/vm/busybox sh -c 'echo "$1" >"$2"; echo $? >"$3"' sh "$1" "$2" "$out" </dev/null >"$out.said" 2>&1 &
writer=$!
for i in $(seq $(($3 * 10))); do
    [ -s "$out" ] && { cat "$out" "$out.said"; exit 0; }
    sleep 0.1
done
echo "blocked $writer"
"""


def run(shell: Shell, script: str, *words: str, deadline: float = 60.0) -> str:
    """The output of a shell script that must succeed."""
    broken = shell.connect(120.0, patient=True)  # an emulated sshd on a busy machine may take its time
    assert broken is None, broken
    ran = shell.run(["sh", "-c", script, "sh", *words], deadline=deadline)
    assert isinstance(ran, Ran), ran
    assert ran.code == 0, (ran.code, ran.stdout, ran.stderr)
    return ran.stdout.decode().strip()


def look(shell: Shell) -> Guest:
    broken = shell.connect(120.0, patient=True)
    assert broken is None, broken
    guest = GuestProbe(shell).look(deadline=120.0)
    assert isinstance(guest, Guest), guest
    assert guest.complete
    return guest


def start(shell: Shell, code: str, *words: str) -> int:
    """Start Python code that says `ready`; it outlives the connection. Gives its pid."""
    python = [interpreter(), "-I", "-S", "-c", code, *words]
    return int(run(shell, _START, *python))


def write(shell: Shell, value: str, path: str, deadline: int = 30) -> str:
    """One write to sysfs, detached: `0`, `1 …: I/O error`, or `blocked PID` when it does not come back in time."""
    return run(shell, _WRITE, value, path, str(deadline), deadline=deadline + 30.0)
