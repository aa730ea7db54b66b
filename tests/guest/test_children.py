"""What hangs is given up, named, and never makes anything else late."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from recover.guest import child, deep, gpus, redact
from recover.guest.wire import Limit


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(deep, "_QUIET", 1.5)


def row(state="S"):
    return {"state": state, "kernel": False, "ours": False}


def lines(capfd):
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


def stuck_on(*pids):
    def inspect(pid, nodes, known):
        if pid in pids:
            time.sleep(600)
        return {"pid": pid, "start": 1, "holds": []}

    return inspect


def test_a_process_that_blocks_is_named_and_the_rest_is_read(monkeypatch, capfd):
    monkeypatch.setattr(deep, "inspect", stuck_on(3))
    found = deep.scan({n: row() for n in range(1, 7)}, deep.Nodes([]), Limit(60.0))
    assert [pid for pid, seen in found.items() if seen.get("why") == "timeout"] == [3]
    assert len(found) == 6
    said = lines(capfd)
    assert any(line["k"] == "gap" and "3" in line["detail"] for line in said)
    assert next(line for line in said if line["k"] == "deep-end")["failed"] == [3]


def test_processes_in_d_state_are_read_all_at_once(monkeypatch, capfd):
    monkeypatch.setattr(deep, "inspect", stuck_on(1, 2, 3, 4, 5, 6, 7, 8))
    began = time.monotonic()
    found = deep.scan({n: row("D") for n in range(1, 9)} | {9: row()}, deep.Nodes([]), Limit(60.0))
    assert sum(seen.get("why") == "timeout" for seen in found.values()) == 8
    assert "start" in found[9]
    assert time.monotonic() - began < 8 * 1.5  # what one after the other would cost
    lines(capfd)


def test_what_was_begun_early_is_told_once_and_a_process_that_blocks_is_named(monkeypatch, capfd):
    monkeypatch.setattr(deep, "inspect", stuck_on(3))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    rows, early = {n: row() for n in range(1, 9)}, deep.Early()
    early.begin({n: rows[n] for n in range(1, 5)})
    rows[2]["ours"] = True  # that is known only when the table is whole
    found = deep.scan(rows, deep.Nodes([]), Limit(60.0), early.shares)
    assert sorted(found) == [1, 3, 4, 5, 6, 7, 8]
    assert [pid for pid, seen in found.items() if seen.get("why") == "timeout"] == [3]
    told = [item["pid"] for line in lines(capfd) if line["k"] == "deep" for item in line["list"]]
    assert sorted(told) == sorted(found)


@pytest.mark.parametrize("processors", [1, 2, 8])
def test_parts_that_had_to_wait_are_begun_with_the_last_one(processors, monkeypatch, capfd):
    """Planted: what waited for a free reader is forgotten, or read twice."""
    monkeypatch.setattr(deep, "inspect", stuck_on())
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(processors)))
    rows, early = {n: row() for n in range(1, 41)}, deep.Early()
    rows[7]["state"], rows[8]["kernel"] = "D", True
    for part in range(1, 41, 5):
        early.begin({n: rows[n] for n in range(part, part + 5)}, part == 36)
    begun = sorted(pid for share in early.shares for pid in share.pids)
    assert begun == ([n for n in range(1, 41) if n not in (7, 8)] if processors > 1 else [])
    assert sorted(deep.scan(rows, deep.Nodes([]), Limit(60.0), early.shares)) == [n for n in rows if n != 8]
    lines(capfd)


def test_a_table_that_broke_off_leaves_no_child(capfd):
    early = deep.Early()
    early.begin({os.getpid(): {"state": "S", "kernel": False, "start": 1}})
    assert deep.scan({}, deep.Nodes([]), Limit(60.0), early.shares)[os.getpid()]
    assert all(share.child.done for share in early.shares)
    lines(capfd)


def test_a_child_that_hangs_keeps_what_it_said():
    def job(say):
        say({"a": 1})
        time.sleep(600)

    one, two = child.Child("hang", job), child.Child("fine", lambda say: say("done"))
    late = child.collect([one, two], Limit(2.0))
    assert late == [one] and one.values == [{"a": 1}] and two.values == ["done"]
    assert one.killed and not child.ABANDONED


def test_a_crash_is_a_value():
    one = child.Child("crash", lambda say: 1 / 0)
    assert not child.collect([one], Limit(30.0))
    assert "ZeroDivisionError" in one.values[0]["crash"]


def test_a_command_ends_with_its_deadline_and_a_grandchild_is_not_waited_for():
    ended = child.run(["sh", "-c", "echo out; echo err >&2; exit 7"], Limit(30.0))
    assert (ended.code, ended.out, ended.err) == (7, "out\n", "err\n")
    late = child.run(["sh", "-c", "echo begun; sleep 600"], Limit(1.0))
    assert late.code is None and late.out == "begun\n" and not late.left
    assert child.run(["no-such-command"], Limit(1.0)).code == 127
    began = time.monotonic()
    stays = child.run(["sh", "-c", "sleep 40 & echo $!"], Limit(30.0))
    took = time.monotonic() - began
    os.kill(int(stays.out), signal.SIGKILL)
    assert stays.code == 0 and took < 40


def test_no_descriptor_of_ours_is_inherited(tmp_path):
    held = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(held, True)

    def job(say):
        names = [name for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")]
        say({name: os.readlink(f"/proc/self/fd/{name}") for name in names})

    one = child.Child("fds", job)
    child.collect([one], Limit(30.0))
    os.close(held)
    links = one.values[0]
    assert str(tmp_path) not in links.values()
    assert [links[name] for name in "012"] == ["/dev/null"] * 3


def test_xid_119_gives_the_driver_more_time():
    line = "NVRM: Xid (PCI:0000:9b:00): 119, pid=1, name=x, Timeout after 45s of waiting for RPC"
    older = line.replace("Timeout after 45s of waiting for RPC", "Timeout waiting for RPC from GSP!")
    loaded = [6, "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.148.08"]
    assert gpus.patience([[5, line]]) == gpus.patience([[5, older]]) == 90.0
    assert gpus.patience([[5, line.replace("45s", "6s")]]) == 20.0
    assert gpus.patience([[5, line]], 6) == gpus.patience([[5, line], loaded]) == 20.0
    assert gpus.patience([[5, line.replace("119", "79")]]) == gpus.patience([]) == 20.0


@pytest.mark.parametrize(
    ("words", "clean"),
    [
        (["--api-key", "hush", "--tp", "8"], ["--api-key", "***", "--tp", "8"]),
        (["--api-key=hush"], ["--api-key=***"]),
        (["--hf-token", "hush"], ["--hf-token", "***"]),
        (
            ["--max-total-tokens", "5000", "--tokenizer-path", "x"],
            ["--max-total-tokens", "5000", "--tokenizer-path", "x"],
        ),
        (["python x.py --admin-api-key hush --tp 8"], ["python x.py --admin-api-key *** --tp 8"]),
        (["http://u:hush@h/p"], ["http://u:***@h/p"]),
        (["MY_SECRET=hush"], ["MY_SECRET=***"]),
        (['{"api_key": "hush"}'], ['{"api_key": "***"}']),
        (["x", "hf_abcdefghijklmnopqrst"], ["x", "***"]),
    ],
)
def test_secrets_stay_on_the_guest(words, clean):
    assert redact.redact(words) == clean


def test_redacting_a_long_line_takes_no_time():
    redact.redact_text("a" * 500_000)
    redact.redact_text("A1-" * 100_000)
