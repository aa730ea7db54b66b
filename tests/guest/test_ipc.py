"""Socket files of real processes: what anybody is bound to, in whatever network, stays; dead ones of known names go."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from recover.core.read.agent import read_guest
from recover.edge.actuator.guest import GuestActuator, request_of
from recover.edge.probe import GuestProbe, ask
from recover.edge.shell.local import LocalShell
from recover.guest import ipc, kill, leftovers, procs
from recover.model.act import MemoryObject, RemoveLeftovers
from recover.model.memory import Leftover, LeftoverKind
from recover.model.reading import Known
from recover.steps.leftovers import _chosen_socket
from tests.guest.conftest import PLAIN, pythons
from tests.guest.test_leftovers import dead_pid, readable  # noqa: F401  (the fixture is used by every test)

KINDS = {"stream": socket.SOCK_STREAM, "datagram": socket.SOCK_DGRAM, "packets": socket.SOCK_SEQPACKET}
BIND = """
import socket, sys, time
held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
held.bind(sys.argv[1])
if sys.argv[2] == 'listen': held.listen(4)
print('ready', flush=True)
time.sleep(600)
"""
CONNECTED = """
import os, socket, sys, time
held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
held.bind(sys.argv[1]); held.listen(4)
one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM); one.connect(sys.argv[1])
other, _ = held.accept()
held.close()
print('ready', flush=True)
time.sleep(600)
"""


def bind(path: Path, kind: int = socket.SOCK_STREAM) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, kind)
    made.bind(str(path))
    if kind != socket.SOCK_DGRAM:
        made.listen(4)
    return made


def dead(path: Path, kind: int = socket.SOCK_STREAM) -> Path:
    bind(path, kind).close()
    return path


def name() -> str:
    return str(uuid.uuid4())


def seen(path: Path, pid: int | None = None, **changes) -> MemoryObject:
    info = path.lstat()
    given = {"inode": info.st_ino, "mtime_s": info.st_mtime, "owner_pid": pid}
    return MemoryObject(ipc.KIND, path.name, str(path.parent), **{**given, **changes})


def remove(*objects: MemoryObject) -> dict:
    return leftovers.remove(request_of(RemoveLeftovers(objects, 60.0))[0])


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a short path: a socket's address has room for 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="gpr") as made:
        yield Path(os.path.realpath(made))


@pytest.mark.parametrize("kind", KINDS)
def test_a_dead_socket_goes_and_is_named_and_a_living_one_hears_nothing(folder, kind):
    gone, alive = dead(folder / name(), KINDS[kind]), folder / name()
    held = bind(alive, KINDS[kind])
    done = remove(seen(gone), seen(alive))
    assert done["changed"] and not done["ok"], done
    assert f"1 socket too: {gone.name}" in done["detail"] and f"{alive.name}: left, somebody listens" in done["log"][0]
    assert not gone.exists() and alive.exists()
    held.setblocking(False)
    with pytest.raises(BlockingIOError):
        held.accept() if KINDS[kind] != socket.SOCK_DGRAM else held.recv(1)
    held.close()
    assert remove(seen(alive))["ok"] and not alive.exists()


@pytest.mark.parametrize("how", ["listen", "bound only"])
def test_one_of_another_process_stays_and_goes_when_that_is_dead(start, folder, how):
    path = folder / name()
    child = start(BIND, str(path), how)
    assert not remove(seen(path))["changed"] and path.exists()
    child.kill()
    child.wait(30)
    assert remove(seen(path))["ok"] and not path.exists()


@pytest.mark.lab
def test_one_in_another_network_name_space_stays(start, folder):
    path = folder / name()
    argv = ["unshare", "-n", sys.executable, "-I", "-S", "-c", BIND, str(path), "listen"]
    start("", argv=argv)
    assert path.name not in Path("/proc/net/unix").read_text(), "our own table does not show it"
    done = remove(seen(path))
    assert not done["changed"] and "somebody listens on it" in done["detail"] and path.exists()


def test_one_whose_listener_is_closed_stays_while_a_connection_lives(start, folder):
    path = folder / name()
    child = start(CONNECTED, str(path))
    info = path.lstat()
    assert ipc._bound(str(folder), path.name, (info.st_dev, info.st_ino)) is False
    assert not remove(seen(path))["changed"] and path.exists()
    child.kill()
    child.wait(30)
    assert remove(seen(path))["ok"] and not path.exists()


def test_one_that_was_renamed_since_it_was_bound_stays(folder):
    """No table has its name any more: only the kernel knows the inode."""
    path = folder / name()
    held = bind(folder / "first")
    os.rename(folder / "first", path)
    assert path.name not in ipc.named()[0]
    assert not remove(seen(path))["changed"] and path.exists()
    held.close()
    assert remove(seen(path))["ok"] and not path.exists()


def test_whatever_else_has_such_a_name_stays(folder):
    victim = dead(folder / name())
    plain, link, deep = folder / name(), folder / name(), folder / name()
    plain.write_text("mine")
    link.symlink_to(victim)
    deep.mkdir()
    for path in (plain, link, deep):
        done = remove(seen(path))
        assert not done["changed"] and "another object" in done["detail"], done
    assert plain.read_text() == "mine" and link.is_symlink() and deep.is_dir() and victim.exists()
    followed = seen(victim)
    done = remove(MemoryObject(ipc.KIND, link.name, str(folder), followed.inode, 0, None, followed.mtime_s))
    assert not done["changed"] and victim.exists(), "not through a link, whatever inode is meant"


def test_a_name_that_was_used_again_stays(folder):
    path = dead(folder / name())
    os.utime(path, (0, path.lstat().st_mtime - 60))  # the inode's number may be given again, in the same tick
    meant = seen(path)
    spare = dead(folder / name())
    path.unlink()
    held = bind(path)
    held.close()
    assert not remove(meant)["changed"] and path.exists()
    again = seen(path, mtime_s=path.lstat().st_mtime - 5)
    assert "made anew" in remove(again)["detail"] and path.exists()
    assert spare.exists()


def test_exchanged_at_the_last_moment_it_stays(folder, monkeypatch):
    """Forced: while the kernel is asked, the name gets another dead socket."""
    path, other = dead(folder / name()), dead(folder / name())
    meant, asked = seen(path), ipc._bound

    def exchanged(*about):
        said = asked(*about)
        os.rename(other, path)
        return said

    monkeypatch.setattr(ipc, "_bound", exchanged)
    assert not remove(meant)["changed"] and path.exists()


def test_what_is_gone_is_no_failure(folder):
    path = dead(folder / name())
    meant = seen(path)
    path.unlink()
    done = remove(meant)
    assert done["ok"] and not done["changed"] and "1 were gone" in done["detail"]


@pytest.mark.parametrize("word", ["mine.sock", "x", "..", "../x", "docker.sock", "tmpABCDEFGH", "control"])
def test_a_name_that_no_server_gives_stays(folder, word):
    path = folder / word.rsplit("/", 1)[-1] if word != ".." else folder / "dots"
    item = seen(dead(path))
    done = remove(MemoryObject(ipc.KIND, word, str(folder), item.inode, 0, None, item.mtime_s))
    assert not done["changed"] and path.exists()


def test_not_through_a_link_to_a_folder_and_not_on_another_machines_file_system(folder, monkeypatch):
    real = folder / "real/in"
    real.mkdir(parents=True)
    path, link = dead(real / name()), folder / "link"
    link.symlink_to(folder / "real")
    (folder / "last").symlink_to(real)
    item = seen(path)
    for where in (link / "in", folder / "last", real / "../in"):
        done = remove(MemoryObject(ipc.KIND, path.name, str(where), item.inode, 0, None, item.mtime_s))
        assert not done["changed"] and path.exists(), where
    mounts = f"none / tmpfs rw 0 0\nhost {folder} virtiofs rw 0 0\n"
    monkeypatch.setattr(ipc, "read_or", lambda *_: mounts)
    assert not remove(item)["changed"] and path.exists()
    assert not ipc._local(str(folder)) and ipc._local("/elsewhere")


def test_an_owner_that_lives_keeps_it_and_a_dead_one_does_not(start, folder):
    child = start(PLAIN)
    path = dead(folder / f"sglang_trace_{child.pid}.sock")
    assert "its owner" in remove(seen(path, child.pid))["detail"] and path.exists()
    assert remove(seen(path, dead_pid(start)))["ok"] and not path.exists()


def test_what_the_kernel_does_not_say_is_not_known_and_stays(folder, monkeypatch):
    path = dead(folder / name())
    monkeypatch.setattr(ipc, "_bound", lambda *_: None)
    assert "does not say" in remove(seen(path))["detail"] and path.exists()


def test_where_one_process_cannot_be_read_no_socket_goes(folder, monkeypatch):
    path = dead(folder / name())
    monkeypatch.setattr(ipc, "named", lambda: (set(), ["pid 7 (denied)"]))
    done = remove(seen(path))
    assert not done["changed"] and "pid 7" in done["detail"] and path.exists()


@pytest.mark.parametrize("python", pythons())
def test_a_look_tells_which_are_dead_with_every_python(folder, python):
    where = folder / "tmp"
    where.mkdir()
    gone, alive = dead(where / "sglang_load_collector_a_1.sock"), where / name()
    held = bind(alive)
    (where / "tmpabcd1234").write_text("")
    ran = ask(LocalShell(), {"do": "look", "root": str(folder), "deadline": 60}, 90.0, (python,))
    held.close()
    guest = read_guest(ran.stdout)
    assert guest is not None and isinstance(guest.leftovers, Known)
    found = {i.name: i for i in guest.leftovers.value if i.folder == str(where)}
    assert {n: i.mapped for n, i in found.items()} == {gone.name: False, alive.name: True}
    one = found[gone.name]
    assert (one.kind, one.uid, one.size_mib) == (LeftoverKind.SOCKET, os.getuid(), 0)
    assert one.inode == gone.lstat().st_ino and one.mtime_s == gone.lstat().st_mtime


SHOW = """#!/bin/sh
echo "Id=sglang.service"; echo "LoadState=loaded"; echo "ActiveState=inactive"
echo "Environment=HF_TOKEN=hush-hush VLLM_RPC_BASE_PATH={folder}"
"""


def test_a_units_own_folder_is_looked_into_and_nothing_else_of_its_environment_leaves(folder, monkeypatch):
    own, tools = folder / "rpc", folder / "bin"
    own.mkdir()
    tools.mkdir()
    path = dead(own / name())
    (tools / "systemctl").write_text(SHOW.format(folder=own))
    (tools / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    request = {"do": "look", "root": str(folder), "services": ["sglang.service"], "deadline": 60}
    said = ask(LocalShell(), request, 90.0, (sys.executable,))
    guest = read_guest(said.stdout)
    assert guest is not None and isinstance(guest.leftovers, Known)
    assert [i.name for i in guest.leftovers.value if i.folder == str(own)] == [path.name]
    assert b"hush-hush" not in said.stdout + said.stderr


def test_by_way_of_the_actuator(folder, monkeypatch):
    """The whole way, in the agent's own process: where it can't read pid 1, as in a container, nothing goes."""
    path = dead(folder / name())
    done = GuestActuator(GuestProbe(LocalShell())).perform(RemoveLeftovers((seen(path),), 30.0))
    assert done.ok is not path.exists(), done


def test_of_a_units_environment_only_folders_are_taken():
    text = 'HF_TOKEN=/hush "TMPDIR=/run/a b" VLLM_RPC_BASE_PATH=/run/vllm XTMP=/no TMP=relative "TEMP=/run/c"'
    assert ipc.temp_folders(text) == ["/run/a", "/run/c", "/run/vllm"]


def test_every_name_that_a_step_chooses_is_one_that_the_agent_looks_for():
    names = [name(), "tmpa_b1c2d3", "sglang_trace_77.sock", "sglang_load_collector_i_0a.sock", f"rpc_test_{name()}",
             "sglang_weight_cache_GPU-1.sock", "lmcache_rpc_port_0", "lmcache_rpc_0123456789abcdef",
             "engine_abc-1_service_lookup_lmcache_rpc_port_0"]  # fmt: skip
    for word in names:
        owner = False if "trace" in word else None
        pid = 77 if "trace" in word else None
        item = Leftover(LeftoverKind.SOCKET, word, 0, pid, owner, False, 5, 1.0, "/tmp", 1000)
        assert _chosen_socket(item, False, frozenset({1000})), word
        assert ipc.SHAPE.match(word), word


def test_kernel_threads_and_zombies_are_no_blind_spot():
    names, blind = ipc.named()
    assert blind == [] and isinstance(names, set)
    assert kill.boot_id() and procs.pids()
