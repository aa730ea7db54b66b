"""The agent on real processes, with every Python that is here: what it tells apart is what a recovery depends on."""

from __future__ import annotations

import os
import sys

import pytest

from recover.core.read.agent import read_guest
from recover.edge.probe import ask
from recover.edge.shell.local import LocalShell
from recover.guest import handles, mapped
from recover.model.guest import Guest
from recover.model.process import Process
from recover.model.reading import Known
from tests.guest.conftest import BOOT, DEAD_LEADER, PLAIN, ZOMBIE, pythons, start_of


def look(python: str = sys.executable, **fields: object) -> Guest:
    ran = ask(LocalShell(), {"do": "look", **fields}, 120.0, (python,))
    guest = read_guest(ran.stdout)
    assert guest is not None, ran.stderr[-2000:]
    return guest


def processes(guest: Guest) -> dict[int, Process]:
    assert isinstance(guest.processes, Known)
    return {p.pid: p for p in guest.processes.value}


@pytest.mark.parametrize("python", pythons())
def test_a_look_is_complete_with_every_python(python, start):
    child = start(PLAIN, "--api-key", "hush-hush", "--tp", "8")
    guest = look(python)
    assert guest.complete
    assert guest.identity.boot_id == BOOT == guest.mark.boot_id
    assert isinstance(guest.ram, Known)
    assert guest.ram.value.total_mib > guest.ram.value.available_mib > 0
    seen = processes(guest)[child.pid]
    assert seen.id.start == start_of(child.pid)
    assert "hush-hush" not in seen.title and seen.title.endswith("--api-key *** --tp 8")
    assert not seen.ours
    assert "hush-hush" not in "".join(guest.raw)


def test_the_probe_and_what_is_above_it_are_ours():
    seen = processes(look())
    assert seen[os.getpid()].ours
    assert seen[1].ours


def test_a_plain_zombie_holds_nothing(start):
    parent = start(ZOMBIE)
    child = next(p for p in processes(look()).values() if p.ppid == parent.pid)
    assert child.plain_zombie and not child.dead_leader
    assert child.holds_known and child.rss_mib == 0


def test_a_dead_leader_with_a_live_thread_holds_everything(start):
    seen = processes(look())
    child = start(DEAD_LEADER)
    for _ in range(100):
        seen = processes(look())
        if seen[child.pid].state == "Z":
            break
    leader = seen[child.pid]
    assert leader.dead_leader and not leader.plain_zombie
    assert leader.live_threads == 1
    assert leader.rss_mib >= 32
    assert leader.title  # read through the live thread: the leader's own cmdline is empty
    assert leader.holds_known


def test_hostile_titles_are_text(start):
    hostile = '\x1b]0;owned\x07\x1b[31m evil\u202eexe) 1 2 3 \n{"k":"hello","boot_id":"x"}'
    child = start(PLAIN, hostile)
    guest = look()
    seen = processes(guest)[child.pid]
    assert guest.identity.boot_id == BOOT
    assert "\x1b" not in seen.title and "\u202e" not in seen.title and "\n" not in seen.title
    assert all(ch.isprintable() for ch in "".join(guest.raw))


def test_hostile_comm_does_not_shift_the_fields(start):
    code = "import ctypes\nctypes.CDLL(None).prctl(15, b'a) R 1 1 (b', 0, 0, 0)\n" + PLAIN
    child = start(code)
    seen = processes(look())[child.pid]
    assert seen.ppid == os.getpid() and seen.comm == "a) R 1 1 (b"


@pytest.mark.parametrize("ends", [("AF_INET", "127.0.0.1"), ("AF_INET6", "::1")])
def test_ports_are_known(start, ends):
    """Planted: a table of IPv6 that is taken for empty."""
    code = f"import socket\ns=socket.socket(socket.{ends[0]})\ns.bind(('{ends[1]}',0))\ns.listen()\n" + PLAIN
    child = start(code)
    assert len(processes(look())[child.pid].listens) == 1


@pytest.mark.parametrize("numbers", [(), (3, 4, 5), (7,), tuple(range(3, 40)), (3, 4, 900)])
def test_every_open_file_is_seen_whatever_its_number(start, numbers):
    """Planted: the lowest numbers taken for all of them, where the kernel tells only their count."""
    child = start(f"import os\nfor n in {numbers}: os.dup2(0, n)\n" + PLAIN)
    folder = f"/proc/{child.pid}/fd"
    there = {name: os.readlink(f"{folder}/{name}") for name in os.listdir(folder)}
    assert dict(handles.targets(folder)) == there
    assert len(there) == 3 + len(numbers)


@pytest.mark.parametrize("files", [(), ("/proc/self/exe",), ("/dev/shm",), ("/dev/shm", *["/proc/self/exe"] * 20)])
def test_a_mapping_of_note_is_never_missed(start, files):
    """The kernel gives a new mapping a lower address. Planted: the first taken for all of them, too many for none."""
    code = f"""
import ctypes, os, tempfile
n = ctypes.c_long
for place in {files!r}:
    f = open(place, "rb") if os.path.isfile(place) else tempfile.TemporaryFile(dir=place)
    if f.writable(): f.truncate(4096)
    ctypes.CDLL(None).mmap(None, n(4096), 1, 1, f.fileno(), n(0))
    f.close()
"""
    child = start(code + PLAIN)
    with open(f"/proc/{child.pid}/maps") as file:
        there = any(sign in line for line in file for sign in mapped.SIGNS)
    assert there is ("/dev/shm" in files)
    assert mapped.perhaps(f"/proc/{child.pid}") or not there
    if not files and mapped._KNOWN[0]:
        assert not mapped.perhaps(f"/proc/{child.pid}")


@pytest.mark.lab
def test_a_holder_is_known_by_path_through_descriptor_mapping_and_dead_leader(start, tmp_path):
    """Character devices of major 195 can't be opened without a driver: files in a mount name space of their own."""
    hold = "f=open('/dev/nvidia3')\ng=open('/dev/nvidia-uvm')\n"
    # Python's own mmap keeps a descriptor of the file.
    only_mapped = "import ctypes\nf=open('/dev/nvidia3')\nn=ctypes.c_long\n"
    only_mapped += "ctypes.CDLL(None).mmap(None,n(4096),1,1,f.fileno(),n(0))\nf.close()\n"
    script = """mount -t tmpfs none /dev && : >/dev/nvidia-uvm && : >/dev/null &&
        head -c 4096 /proc/self/exe >/dev/nvidia3 && exec "$0" -I -S -c "$1" """
    argv = ["unshare", "-m", "sh", "-c", script, sys.executable]
    live = start("", argv=[*argv, hold + PLAIN])
    mapped = start("", argv=[*argv, only_mapped + PLAIN])
    dead = start("", argv=[*argv, hold + DEAD_LEADER])
    for _ in range(100):
        seen = processes(look())
        if seen[dead.pid].state == "Z":
            break
    assert seen[live.pid].holds == {"nvidia3", "nvidia-uvm"}
    assert seen[mapped.pid].holds == {"nvidia3"}
    assert seen[dead.pid].dead_leader and seen[dead.pid].holds == {"nvidia3", "nvidia-uvm"}


@pytest.mark.lab
def test_a_holder_with_a_clock_of_its_own_was_restored(start):
    """CRIU restores into a new time name space; what is only next to it is not marked."""
    script = """mount -t tmpfs none /dev && : >/dev/nvidia3 && : >/dev/null && exec "$0" -I -S -c "$1" """
    hold = ["sh", "-c", script, sys.executable, "f=open('/dev/nvidia3')\n" + PLAIN]
    restored = start("", argv=["unshare", "-m", "-T", "--boottime", "1000", "--fork", *hold])
    plain = start("", argv=["unshare", "-m", *hold])
    seen = processes(look())
    (inner,) = [p for p in seen.values() if p.ppid == restored.pid]
    assert inner.holds == {"nvidia3"} and inner.criu_restored
    assert seen[plain.pid].holds == {"nvidia3"} and not seen[plain.pid].criu_restored
