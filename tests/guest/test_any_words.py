# ruff: noqa: E501
"""Every reader of the agent that takes a file's or a tool's words: any bytes in, no exception, nothing that nobody said.

A new reader gets a line in `READERS`. All files and commands say the same words then; what a reader returns or tells
must be JSON, and each number and name of it that the last column picks must stand in the words. Planted, each seen to
fail: `isdigit()` before `int()` ("²"), a broken table of segments, a mount without its dash, a stat file of letters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recover.guest import (
    budget,
    budget_engine,
    budget_servers,
    child,
    deep,
    gpus,
    handles,
    health,
    host,
    ipc,
    leftovers,
    mps,
    numa,
    procs,
    redact,
    reload,
    restart,
    services,
    system,
)
from recover.guest.wire import Limit

_MODULES = (budget, budget_engine, budget_servers, child, deep, gpus, handles, health, host, ipc, leftovers,
            mps, numa, procs, reload, restart, services, system)  # fmt: skip
_STAT = "42 (py) thon) R 1 42 42 0 -1 4194304 1 0 0 0 5 6 0 0 20 0 3 0 999 1000 77 1"
_WELL = (
    _STAT, _STAT.replace("42 0 -1", "x 0 -1"), "42 (x) R", "Name:\tpy", "Uid:\t0\t0\t0\t0", "NSpid:\t42\t1", "VmSize:\t    4000 kB",
    "VmRSS:\t     100 kB", "RssShmem:\t       0 kB", "SigPnd:\tfff", "ShdPnd:\tzz", "0::/system.slice/a.service",
    "12:memory:/docker/" + "a" * 64, "Id=a.service\nLoadState=loaded\nActiveState=active\nMainPID=42\nNRestarts=²",
    "MainPID=" + "9" * 5000, '[{"Id": "a", "Name": "/a", "State": {"Pid": 42, "Status": "running"}, "RestartCount": "²"}]',
    '[{"State": 1}]', "[1]", "{}", "[]", "null", "vllm  RUNNING  pid 42, uptime 0:00:01", "vllm  FATAL  Exited", "42\n43", "²", "٣",
    "9" * 5000, "1" * 19, "-5", "nvidia 1000 3 nvidia_uvm,nvidia_drm, Live 0x0", "nvidia 1 ² - Live 0x0", "nvidia 1 -- - Live 0",
    "195 nvidia-frontend", "² nvidia-uvm", 'a(ssssuu) 1 "shutdown" "who" "why" "block" 0 7', "a(ssssuu) ² x",
    "0 42 1600 100 7 8 2 0 0 0 0 0 0 0 0 0", "0 ² 1600 x 7 8 2 0 0 0 0 0 0 0 0 0", "0 42 1600 x 7 8 2 0 0 0 0 0 0 0 0 0",
    "36 35 0:45 / /mnt rw shared:1 - fuse.x x rw", "36 35 0:45 / /mnt rw shared:1 x y z", "36 35 0:45 / /mnt rw a b c -",
    "nodev /dev/hugepages hugetlbfs rw 0 0", "a /net\\040x nfs4 rw", "btime 1700000000", "btime ²", "MemTotal: 1 kB", "size 4 ²",
    "GPU UUID: \t GPU-1", "Device Minor: \t²", "NVRM: Xid (PCI:0000:01:00): 119, pid=1, Timeout after 6s of waiting",
    "NVRM: Xid (PCI:0000:01:00): 120, Timeout after ²s of waiting", "6,12,²,-;x", "6,12,2500000,-;NVRM: x", "[    1.000001] x",
    "0000:41:00.0 174 x", "0000:41:00.0 ² x", "0: 0100007F:7530 00000000:0000 0A 0:0 0:0 0 0 0 12345 1", "0: zz:7530 : 0A 0 0 0 0 0 7",
    "0: 0100007F:² 00000000:0000 0A 0:0 0:0 0 0 0 9 1", "7f00-7fff rw-s 00000000 00:01 7 /dev/shm/x",
    "7f00-7fff rw-s 00000000 00:01 " + "9" * 5000 + " /dev/shm/x", "rchar: 7", "read_bytes: " + "9" * 5000,
    "CUDA_MPS_PIPE_DIRECTORY=/tmp/x", "/usr/bin/supervisord\0-c\0x.conf", "nvidia-cuda-mps-control", "docker-proxy",
    "sglang:num_running_reqs 3.0", 'vllm:generation_tokens_total{a="}"} 1e9', "0, 97887, 97887, GPU-1, 00000000:01:00.0",
    "²,1,1,a,b", "ffff: 00000002 00000000 00010000 0001 01 12345 /tmp/x", "x:x:4242:4242::/:", "active_file ²", "container=lxc",
)  # fmt: skip
WORDS = st.lists(
    st.one_of(st.sampled_from(_WELL), st.text(max_size=30), st.binary(max_size=30).map(lambda b: b.decode("latin-1"))),
    max_size=12,
).flatmap(lambda parts: st.sampled_from(("\n", "\n\n", " ", "\0", "")).map(lambda glue: glue.join(parts)))
NUMBER, LIMIT = re.compile(r"\d+"), 30.0


def _limit() -> Limit:
    return Limit(LIMIT)


def _mps_row() -> dict[int, dict[str, Any]]:
    return {7: {"comm": mps._COMM, "state": "S", "ns_pids": [7]}}


def _of(*keys: str) -> Callable[[Any], Iterable[object]]:
    """The values of these keys in a list of rows."""
    return lambda found: [row[key] for row in found or () for key in keys]


def _stat_numbers(found: Any) -> Iterable[object]:
    return (
        [found["ppid"], found["pgid"], found["sid"], found["threads"], found["start"], found["comm"]] if found else []
    )


# What is asked, and what of its answer must stand in the words: one line each.
READERS: dict[str, tuple[Callable[[str], Any], Callable[[Any], Iterable[object]]]] = {
    "procs.stat": (lambda _: procs.stat("/proc/42"), _stat_numbers),
    "procs.status": (lambda _: procs.status("/proc/42"), lambda found: [*found, *found.values()]),
    "procs.describe": (lambda _: procs.describe(42), lambda found: found["ns_pids"] if found else []),
    "procs.cgroup": (lambda _: procs._cgroup("/proc/42"), lambda found: [found]),
    "services.units": (lambda _: services.units_state(["a.service"], _limit()), _of("name", "pid", "restarts")),
    "services.docker": (lambda _: services.containers_state("docker", ["a"], _limit()), _of("pid", "restarts")),
    "services.podman": (lambda _: services.containers_state("podman", ["a"], _limit(), 4242), _of("pid")),
    "services.programs": (lambda _: services.programs(42, _limit()), _of("name", "pid", "state")),
    "services.supervisorctl": (lambda _: services.supervisorctl(42), lambda _: ()),
    "services.cgroups": (lambda words: [services.unit_of(words), services.container_of(words)], lambda found: filter(None, found)),
    "services.user": (lambda words: [services.user_unit_of(words), services.user_container_of(words)], lambda _: ()),
    "services.as_user": (lambda _: services.as_user(4242, ["true"]), lambda _: ()),
    "mps.ask": (lambda _: mps.ask(42, "get_server_list", _limit()), lambda found: found or ()),
    "mps.controls": (lambda _: mps.controls(_mps_row()), lambda _: ()),
    "mps.look": (lambda _: mps.look(_mps_row(), _limit()), lambda _: ()),
    "restart.inhibitors": (lambda _: restart.inhibitors(_limit()), lambda _: ()),
    "restart.parse": (restart.parse, lambda _: ()),
    "restart.init": (lambda _: restart.init(), lambda _: ()),
    "reload.modules": (lambda _: reload.modules(), lambda found: [*found, *(abs(row["refs"]) for row in found.values())]),
    "leftovers.folders": (lambda _: leftovers.folders(), lambda _: ()),
    "leftovers.living": (lambda _: list(leftovers.living()), lambda found: found),
    "leftovers.segments": (lambda _: leftovers.segments(), lambda found: [found[name]["size"] for name in found]),
    "leftovers.fuse": (lambda _: leftovers.stuck_fuse(), lambda _: ()),
    "ipc.local": (lambda _: ipc._local("/tmp/x"), lambda _: ()),
    "ipc.named": (lambda _: [sorted(ipc.named()[0])], lambda found: found[0]),
    "system.hello": (lambda _: system.hello(), lambda _: ()),
    "system.btime": (lambda _: system._btime(), lambda found: [found]),
    "system.dmesg": (lambda _: system._dmesg(), lambda _: ()),
    "system.kmsg": (system.parse_kmsg, lambda found: [text for _, text in found]),
    "system.ram": (lambda _: system.ram(), lambda _: ()),
    "system.driver_files": (lambda _: system.driver_files(), lambda _: ()),
    "system.leftovers": (lambda _: system.leftovers(), lambda _: ()),
    "system.limits": (lambda _: system.memory_limits(["/a/b"]), lambda _: ()),
    "handles.nodes": (lambda _: {str(major): kind for major, kind in handles.Nodes([]).majors.items()}, lambda _: ()),
    "handles.tcp": (lambda _: sorted(handles.tcp(42, {7, 12345})[0]), lambda found: found),
    "gpus.patience": (lambda words: gpus.patience([[1, words]]), lambda _: ()),
    "gpus.uuid": (lambda _: gpus.uuid_of("0000:01:00.0"), lambda found: [found]),
    "deep.io": (lambda _: deep._io("/proc/42"), lambda found: [] if found is None else [found]),
    "deep.argv": (lambda _: deep._argv("/proc/42"), lambda found: found),
    "health.counters": (health.counters, lambda _: ()),
    "health.whole": (lambda words: health._whole(words.encode("utf-8", "replace")), lambda _: ()),
    "health.port": (lambda words: [health._port(words), health._serving(words, {1: "::"})], lambda _: ()),
    "host.reservations": (lambda _: host.reservations(), _of("address", "vmid")),
    "host.qemu": (lambda _: host.qemu_pids(174), lambda found: found),
    "host.gpus": (lambda _: host._gpus(), lambda _: ()),
    "host.guest": (host.guest_of, lambda _: ()),
    "numa.tell": (lambda _: numa.tell(), lambda _: ()),
    "child.far": (lambda _: child.network_mounts(), lambda _: ()),
    "budget.memory": (lambda _: budget.memory(), lambda _: ()),
    "budget.numa": (lambda _: budget.numa(), lambda _: ()),
    "budget.hugepages": (lambda _: budget.hugepages(), lambda _: ()),
    "budget.cgroup": (lambda _: budget.cgroup(), lambda _: ()),
    "budget.gpus": (lambda _: budget.gpus(_limit()), lambda _: ()),
    "budget.servers": (lambda _: budget_servers._servers(lambda row: None), lambda _: ()),
    "budget.last": (budget_engine._last_json, lambda _: ()),
    "redact.list": (lambda words: redact.redact(words.split("\0")), lambda _: ()),
}  # fmt: skip


@contextmanager
def world(words: str) -> Iterator[list[Any]]:
    """All files and commands say these words, all folders hold one entry; what is told is kept."""
    told: list[Any] = []
    doubles = {
        "read": lambda *_: words,
        "read_or": lambda *_: words,
        "small": lambda *_: words.encode("utf-8", "surrogateescape"),
        "run": lambda *_: child.Ended(0, words, words, False),
        "which": lambda name: "/bin/" + name,
        "listdir": lambda *_: ["node0", "hugepages-2048kB", "zram0", "1"],
        "emit": lambda kind, **fields: told.append([kind, fields]),
        "gap": lambda *fields: told.append(fields),
    }
    with pytest.MonkeyPatch.context() as patch:
        for module in _MODULES:
            for name, double in doubles.items():
                if hasattr(module, name):
                    patch.setattr(module, name, double)
        patch.setattr(procs, "pids", lambda: [42])
        patch.setattr(procs, "live_threads", lambda _: [])
        patch.setattr(child, "_FAR", [])
        yield told


@pytest.mark.parametrize("reader", READERS)
@given(WORDS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_words(reader: str, words: str) -> None:
    ask, said = READERS[reader]
    with world(words) as told:
        found = ask(words)
        json.dumps([found, told])
    numbers = {int(number) for number in NUMBER.findall(words) if len(number) < 100}
    for item in said(found):
        assert item in ("", 0, None) or (item in numbers if isinstance(item, int) else str(item) in words), item


def test_no_reader_is_forgotten() -> None:
    """What takes the words of a file or a tool is asked here, by itself or by its caller."""
    assert {reader.split(".")[0] for reader in READERS} >= {
        "procs",
        "services",
        "mps",
        "leftovers",
        "handles",
        "system",
    }
