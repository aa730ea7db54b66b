"""Leftovers of real processes: what somebody has, owns or has changed stays; the rest goes, and the bytes are told."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from recover.edge.actuator.guest import request_of
from recover.guest import leftovers, procs
from recover.model.act import MemoryObject, RemoveLeftovers
from tests.guest.conftest import PLAIN

MAPPER = """
import mmap, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR)
block = mmap.mmap(fd, 4096)
os.close(fd)
print('ready', flush=True)
time.sleep(600)
"""
OPENER = "import sys,time\nheld = open(sys.argv[1])\nprint('ready', flush=True)\ntime.sleep(600)"


@pytest.fixture
def shm():
    """Makes files of our own in /dev/shm, under a name that no engine gives to anybody else's."""
    made: list[Path] = []

    def make(name: str, mib: int = 1) -> Path:
        path = Path("/dev/shm") / f"{name}_gprtest{os.getpid()}"
        path.write_bytes(b"x" * (mib << 20))
        made.append(path)
        return path

    yield make
    for path in made:
        path.unlink(missing_ok=True)


def seen(path: Path, pid: int | None = None, **changes) -> MemoryObject:
    info = path.stat()
    given = {"inode": info.st_ino, "mtime_s": info.st_mtime, "owner_pid": pid, "size_mib": info.st_size >> 20}
    return MemoryObject("shm-file", path.name, str(path.parent), **{**given, **changes})


@pytest.fixture(autouse=True)
def readable(monkeypatch):
    """Where tests run in a container its pid 1 may not be read, not even by root."""
    shown = [pid for pid in procs.pids() if os.access(f"/proc/{pid}/maps", os.R_OK) and _read(pid)]
    before = frozenset(procs.pids()) - set(shown)
    every = procs.pids
    monkeypatch.setattr(procs, "pids", lambda: [pid for pid in every() if pid not in before])


def _read(pid: int) -> bool:
    try:
        Path(f"/proc/{pid}/maps").read_bytes()
    except OSError:
        return False
    return True


def remove(*objects: MemoryObject) -> SimpleNamespace:
    request, _ = request_of(RemoveLeftovers(objects, 60.0))
    return SimpleNamespace(**leftovers.remove(request))


def dead_pid(start) -> int:
    child = start(PLAIN)
    child.kill()
    child.wait(30)
    return child.pid


def test_what_a_dead_owner_left_goes_and_its_bytes_are_told(shm, start):
    path = shm("sgl_shm_mm", 3)
    done = remove(seen(path, dead_pid(start)))
    assert done.ok and done.changed and "1 removed, 3 MiB freed" in done.detail, done
    assert not path.exists()
    again = remove(MemoryObject("shm-file", path.name, "/dev/shm", 1, 3, None, 0.0))
    assert again.ok and not again.changed


@pytest.mark.parametrize("holder", [MAPPER, OPENER], ids=["mapped", "open"])
def test_what_somebody_has_stays(shm, start, holder):
    path, other = shm("psm_held"), shm("psm_free")
    child = start(holder, str(path))
    done = remove(seen(path), seen(other))
    assert not done.ok and done.changed and f"pid {child.pid} has it" in " ".join(done.log), done
    assert path.exists() and not other.exists()


def test_what_another_name_keeps_is_not_counted_as_freed(shm):
    path, other = shm("psm_linked", 2), Path("/dev/shm") / f"psm_name_gprtest{os.getpid()}"
    os.link(path, other)
    try:
        done = remove(seen(path))
        assert done.ok and "1 removed, 0 MiB freed" in done.detail and other.exists(), done
    finally:
        other.unlink()


def test_an_owner_that_lives_keeps_it(shm, start):
    child = start(PLAIN)
    path = shm("sgl_shm_mm")
    assert not remove(seen(path, child.pid)).ok and path.exists()


def test_another_object_of_the_same_name_stays(shm):
    path = shm("psm_again")
    for change in ({"inode": 1}, {"mtime_s": path.stat().st_mtime - 10}):
        done = remove(seen(path, **change))
        assert not done.ok and not done.changed and path.exists(), done


def test_only_places_of_shared_memory(tmp_path):
    victim = tmp_path / "psm_1a2b"
    victim.write_text("x")
    link = Path("/dev/shm") / f"gprtest_link{os.getpid()}"
    for folder, name in ((str(tmp_path), victim.name), ("/dev/shm", f"../..{victim}"), ("/dev/shm/..", victim.name)):
        item = MemoryObject("shm-file", name, folder, victim.stat().st_ino, 0, None, victim.stat().st_mtime)
        assert not remove(item).changed and victim.exists()
    link.symlink_to(victim)
    try:
        assert not remove(seen(link)).changed and victim.exists() and link.is_symlink()
    finally:
        link.unlink()


def test_a_process_that_began_after_the_last_write_is_not_its_owner(start):
    child = start(PLAIN)
    began = leftovers.living()[child.pid]
    assert not leftovers._owned(child.pid, began - 60, leftovers.living())
    assert leftovers._owned(child.pid, began + 60, leftovers.living())


def test_where_one_process_cannot_be_read_nothing_goes(shm, monkeypatch):
    path = shm("psm_blind")
    monkeypatch.setattr(leftovers, "in_use", lambda wanted, limit: ({}, ["pid 7 (timeout)"]))
    item = {"kind": "shm-file", "name": path.name, "folder": "/dev/shm", "inode": path.stat().st_ino}
    done = leftovers.remove({"objects": [item], "deadline": 5.0})
    assert not done["ok"] and "pid 7" in done["detail"] and path.exists()


def test_a_segment_that_somebody_else_made_stays():
    done = leftovers.remove({"objects": [{"kind": "sysv", "name": "2147480000", "pid": 1}], "deadline": 5.0})
    assert done["ok"] and not done["changed"]
