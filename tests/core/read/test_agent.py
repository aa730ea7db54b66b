"""The reader of the agent's lines: no machine can make it raise, and what is missing is never zero."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from recover.core.read.agent import read_guest
from recover.model.gpu import Condition
from recover.model.guest import Guest, Marker
from recover.model.memory import LeftoverKind
from recover.model.reading import Known, Unknown, Why

BOOT = "0b5e6f7a-1111-2222-3333-444455556666"
HELLO = {"k": "hello", "hostname": "node-174", "boot_id": BOOT, "uptime": 1234.5, "root": True,
         "dmi_uuid": {"v": "ABCD"}, "macs": ["AA:BB:CC:00:11:22"], "kernel": "6.8", "init_start": 3}  # fmt: skip
END = {"k": "end", "abandoned": []}


def report(*lines: object, end: bool = True) -> Guest:
    every = [HELLO, *lines, *([END] if end else [])]
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in every)
    guest = read_guest(text.encode())
    assert guest is not None
    return guest


def row(pid: int, **more: object) -> dict[str, object]:
    return {"pid": pid, "start": 100 + pid, "ppid": 1, "state": "S", "comm": "python3", "threads": 4, "rss": 4096,
            "anon": 2048, "ours": False, "kernel": False, "ns_pids": [pid], "cgroup": "/", **more}  # fmt: skip


def procs(*rows: object) -> dict[str, object]:
    return {"k": "procs", "list": list(rows), "last": True}


def test_who_answers():
    guest = report()
    assert guest.identity.hostname == "node-174" and guest.mark.uptime_s == 1234.5
    assert guest.identity.dmi_uuid == Known("abcd") and guest.identity.macs == {"aa:bb:cc:00:11:22"}
    assert guest.complete and guest.root


def test_without_a_hello_there_is_no_guest():
    assert read_guest(b"") is None
    assert read_guest(b'bash: python3: not found\n{"k":"end"}\n') is None


def test_the_first_hello_counts():
    guest = report({**HELLO, "boot_id": "other", "hostname": "forged"})
    assert guest.mark.boot_id == BOOT and guest.identity.hostname == "node-174"


def test_a_report_that_broke_off_is_a_guest_with_gaps():
    guest = report({"k": "ram", "text": "MemTotal: 2048 kB\nMemAvailable: 1024 kB\n"}, '{"k":"procs","li', end=False)
    assert not guest.complete
    assert isinstance(guest.ram, Known)
    for part in (guest.processes, guest.gpus, guest.driver, guest.kernel, guest.services):
        assert isinstance(part, Unknown) and part.why is Why.TIMEOUT
    assert any("broke off" in gap for gap in guest.gaps)


def test_half_a_process_table_is_not_a_process_table():
    guest = report({"k": "procs", "list": [row(7)]}, end=False)
    assert isinstance(guest.processes, Unknown)


def test_garbage_is_counted_and_harmless():
    guest = report("Welcome to node-174!", "[1,2", "42", '{"k":7}', "\x1b[2J")
    assert guest.complete and any("5 lines" in gap for gap in guest.gaps)


def test_what_could_not_be_ended_is_named():
    left = {"k": "end", "abandoned": [{"pid": 77, "what": "NVML: GPU 3 0000:04:00.0"}]}
    guest = report(left, end=False)
    assert guest.complete and any("77" in gap and "GPU 3" in gap for gap in guest.gaps)


def test_not_root_is_a_gap():
    text = json.dumps({**HELLO, "root": False}) + "\n" + json.dumps(END)
    guest = read_guest(text.encode())
    assert guest is not None and not guest.root and any("not root" in gap for gap in guest.gaps)


def test_a_gap_gives_its_reason_to_its_part():
    guest = report({"k": "gap", "what": "kernel-log", "why": "denied", "detail": "dmesg_restrict"})
    assert guest.kernel == Unknown(Why.DENIED, "dmesg_restrict")


def test_ram_without_its_totals_is_unknown():
    assert isinstance(report({"k": "ram", "text": "MemTotal: 2048 kB\n"}).ram, Unknown)


def test_anonymous_memory_is_summed_over_processes():
    ram = {"k": "ram", "text": "MemTotal: 9000000 kB\nMemAvailable: 1000000 kB\nAnonPages: 5000000 kB\n"}
    guest = report(ram, procs(row(7, anon=1024 * 1024), row(8, anon=2048 * 1024)))
    assert isinstance(guest.ram, Known) and guest.ram.value.process_anon_mib == 3072


def test_deep_rows_join_by_pid_and_start_time():
    mine = {"pid": 7, "start": 107, "argv": ["a", "b"], "holds": ["nvidia0"], "listens": [[80, "x"]]}
    deep = {"k": "deep", "list": [mine,
                                  {"pid": 8, "start": 1, "argv": ["not", "mine"], "holds": ["nvidia1"]},
                                  {"pid": 9, "why": "timeout", "detail": "stuck"}]}  # fmt: skip
    guest = report(procs(row(7), row(8), row(9, state="D")), deep)
    assert isinstance(guest.processes, Known)
    one, three = guest.processes.value
    assert one.title == "a b" and one.holds == {"nvidia0"} and one.listens == {80} and one.holds_known
    assert three.argv == Unknown(Why.TIMEOUT, "stuck") and not three.holds_known


def test_who_ended_during_the_look_is_not_in_it():
    deep = {"k": "deep", "list": [{"pid": 8, "start": 999, "holds": []}, {"pid": 9, "why": "absent"}]}
    guest = report(procs(row(7), row(8), row(9)), deep)
    assert isinstance(guest.processes, Known) and [p.pid for p in guest.processes.value] == [7]


def test_zombies_and_dead_leaders():
    guest = report(procs(row(7, state="Z", live=0, threads=1), row(8, state="Z", live=2, threads=3, rss=80 << 20)))
    assert isinstance(guest.processes, Known)
    plain, leader = guest.processes.value
    assert plain.plain_zombie and plain.holds_known
    assert leader.dead_leader and leader.rss_mib == 80 << 10 and not leader.holds_known


DRIVER = {
    "k": "driver",
    "init": {"v": None},
    "driver": {"v": "570.1.2"},
    "nvml": {"v": "12.570.1.2"},
    "count": {"v": 2},
}
ONE = {"k": "gpu", "index": 0, "bus": "0000:01:00.0", "handle": {"v": None}, "nvml_bus": {"v": "00000000:01:00.0"},
       "uuid": {"v": "GPU-1"}, "memory": {"v": {"total": 8 << 30, "used": 0, "api": 2}}, "compute": {"v": []},
       "graphics": {"e": 13}, "mps": {"e": 13}, "complete": True}  # fmt: skip


def test_a_gpu_and_a_report_that_ends_before_the_next():
    guest = report(DRIVER, ONE, end=False)
    assert isinstance(guest.gpus, Known)
    first, second = guest.gpus.value
    assert first.condition is Condition.ANSWERS and first.used_mib == Known(0) and first.processes == Known(())
    assert isinstance(first.reserved_mib, Unknown)
    assert second.condition is Condition.NOT_ASKED and isinstance(second.used_mib, Unknown)


def test_an_error_of_the_process_list_is_not_an_empty_list():
    for key, code in (("compute", 13), ("compute", 999), ("graphics", 999)):
        guest = report({**DRIVER, "count": {"v": 1}}, {**ONE, key: {"e": code}})
        assert isinstance(guest.gpus, Known) and isinstance(guest.gpus.value[0].processes, Unknown), key


def test_blocked_behind_another_gpu_is_not_a_hang_of_its_own():
    hung = {"k": "gpu", "index": 0, "bus": "", "hangs": True, "at": "handle", "seconds": 20}
    behind = {"k": "gpu", "index": 1, "bus": "", "hangs": True, "at": "init", "seconds": 20}
    guest = report(DRIVER, hung, behind)
    assert isinstance(guest.gpus, Known)
    assert [g.condition for g in guest.gpus.value] == [Condition.HANGS, Condition.NOT_ASKED]
    assert isinstance(guest.driver, Known) and guest.driver.value.condition is Condition.ANSWERS


def test_when_init_hangs_for_all_it_is_the_driver():
    rows = [{"k": "gpu", "index": i, "bus": "", "hangs": True, "at": "init", "seconds": 20} for i in range(2)]
    guest = report(DRIVER, *rows)
    assert isinstance(guest.driver, Known) and guest.driver.value.condition is Condition.HANGS


def test_leftovers_know_their_owner_by_name():
    items = [{"kind": "shm-file", "name": "sgl_shm_mm_7_ab", "kib": 2048, "inode": 5, "mtime": 1.0},
             {"kind": "shm-file", "name": "sgl_shm_mq_99_ab", "kib": 2048, "inode": 6, "mtime": 1.0},
             {"kind": "shm-file", "name": "psm_1a2b", "kib": 0, "inode": 7, "mtime": 1.0},
             {"kind": "sysv", "name": "3", "kib": 1024, "pid": 99, "attached": 0}]  # fmt: skip
    deep = {"k": "deep", "list": [{"pid": 7, "start": 107, "holds": [], "shm": ["/dev/shm/psm_1a2b (deleted)"]}]}
    guest = report(procs(row(7)), {"k": "leftovers", "list": items}, deep, {"k": "deep-end", "failed": []})
    assert isinstance(guest.leftovers, Known)
    mine, dead, mapped, sysv = guest.leftovers.value
    assert (mine.owner_pid, mine.owner_alive, mine.mapped) == (7, True, False)
    assert (dead.owner_pid, dead.owner_alive, dead.mapped) == (99, False, False)
    assert (mapped.owner_pid, mapped.mapped) == (None, True)
    assert (sysv.kind, sysv.owner_alive, sysv.mapped) == (LeftoverKind.SYSV, False, False)


def test_with_a_process_unread_nothing_is_surely_unmapped():
    items = [{"kind": "shm-file", "name": "psm_1", "kib": 1, "inode": 5}]
    guest = report(procs(row(7)), {"k": "leftovers", "list": items}, {"k": "deep-end", "failed": [7]})
    assert isinstance(guest.leftovers, Known) and guest.leftovers.value[0].mapped is None


def test_marker():
    held = {"run": "r1", "who": "kim", "host": "ops", "rung": "end-workers", "expires": 99.0}
    assert report({"k": "marker", "value": held}).marker == Known(Marker("r1", "kim", "ops", "end-workers", 99.0))
    assert report({"k": "marker", "value": None}).marker == Known(None)
    assert isinstance(report().marker, Unknown)


KINDS = [
    "hello",
    "kernel",
    "ram",
    "procs",
    "deep",
    "deep-end",
    "driver",
    "driver-files",
    "gpu",
    "smi",
    "pci",
    "leftovers",
    "services",
    "server",
    "marker",
    "gap",
    "end",
]
KEYS = [
    "list",
    "pid",
    "start",
    "state",
    "argv",
    "holds",
    "v",
    "e",
    "init",
    "count",
    "uuid",
    "memory",
    "compute",
    "bus",
    "index",
    "text",
    "out",
    "lines",
    "value",
    "run",
    "hangs",
    "at",
    "live",
    "name",
    "kind",
    "inode",
    "failed",
    "why",
    "uptime",
    "boot_id",
    "dmi_uuid",
    "mig",
    "remap",
    "nvml_bus",
    "listens",
    "mtime",
    "expires",
    "width",
]
LEAF = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["Z", "1", BOOT])
JSON = st.recursive(
    LEAF,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)
LINE = st.builds(
    lambda kind, rest: {**rest, "k": kind},
    st.sampled_from(KINDS),
    st.dictionaries(st.sampled_from(KEYS), JSON, max_size=6),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(LINE, max_size=12), st.binary(max_size=20))
def test_no_report_makes_the_reader_raise(lines, noise):
    text = "\n".join(json.dumps(line) for line in [HELLO, *lines])
    guest = read_guest(text.encode() + b"\n" + noise)
    assert guest is not None and guest.mark.boot_id == BOOT


@settings(max_examples=200, deadline=None)
@given(st.lists(LINE, max_size=6))
def test_without_hello_first_nothing_raises_either(lines):
    read_guest("\n".join(json.dumps(line) for line in lines).encode())


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2000))
def test_cut_anywhere_the_rest_is_a_gap(at):
    text = "\n".join(json.dumps(line) for line in [HELLO, procs(row(7)), DRIVER, ONE, END])
    guest = read_guest(text.encode()[:at])
    if guest is not None and at < len(text):
        assert not guest.complete and guest.gaps
