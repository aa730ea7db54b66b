"""What the agent reads of a machine before it says anything: any text in, no exception."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recover.core.read.kernel_log import events, lines_of
from recover.guest import handles, health, pack, redact, restart, system, wire

_WELL = (
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode",
    "   0: 0100007F:7530 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12345 1 0 100 0 0 10 0",
    "   1: 0000000000000000FFFF00000100007F:7530 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 7 1",
    "6,12,2500000,-;NVRM: Xid (PCI:0000:01:00): 79", " SUBSYSTEM=pci", "sglang:num_running_reqs 3.0", "²", "9" * 5000,
    'vllm:generation_tokens_total{a="}"} 1e9', "sglang:generation_tokens_total e", "trtllm_num_requests_running 1e999",
    'a(ssssuu) 1 "shutdown" "who" "why" "block" 0 7', "--api-key", "hush", "=", "::", ";;;", "\\",
)  # fmt: skip
_TEXT = st.lists(st.one_of(st.sampled_from(_WELL), st.text(max_size=40)), max_size=20).map("\n".join)


@given(_TEXT)
@settings(max_examples=80, deadline=None)
def test_any_text(text: str) -> None:
    handles.addresses(text), restart.parse(text), redact.redact_text(text)
    assert all(isinstance(usec, int) for usec, _ in system.parse_kmsg(text))
    assert all(isinstance(value, int) for value in health.counters(text).values())
    data = text.encode("ascii", "backslashreplace")
    head, pieces, by, tail = pack.cut(data)
    assert head + by.join(pieces) + tail == data
    pack.kind_of(data)


@given(st.lists(st.text(max_size=30), max_size=6))
@settings(max_examples=80, deadline=None)
def test_the_short_way_of_redacting_is_the_long_way(argv: list[str]) -> None:
    """Where one search says that there is nothing to hide, the whole of it would have hidden nothing."""
    for more in (
        [],
        ["--api-key", "hush"],
        ["Bearer=x"],
        ["http://u:p@h"],
        ["PASSPHRASE=x"],
        ["--hf-token"],
        ["--pa\u017f\u017fword", "x"],
    ):
        words = argv + more
        if not redact.perhaps(words):
            assert [redact.redact_text(word) for word in words] == words
            assert not any(redact._OPTION.match(word) for word in words)


def test_no_line_of_meaning_is_dropped() -> None:
    """In no line that the agent keeps to itself does the reader find anything. Planted: a word less."""
    data = Path(__file__).parents[1] / "data"
    read = 0
    for path in filter(Path.is_file, sorted(data.rglob("*"))):
        for line in path.read_text("utf-8", "replace").splitlines():
            found = events(lines_of(line))
            read += len(found)
            assert not found or system.of_interest(line), f"{path}: {line}"
    assert read > 50


def test_pods_by_their_log_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    uid, other = "0a1b2c3d-0000-1111-2222-333344445555", "ffffffff-0000-1111-2222-333344445555"
    for name in (f"team-a_vllm-0_{uid}", f"kube-system_proxy_{other}", "lost+found", f"a_b_c_{uid}"):
        (tmp_path / "var/log/pods" / name).mkdir(parents=True)
    monkeypatch.setattr(wire, "ROOT", str(tmp_path))
    system.pods([f"/kubepods.slice/kubepods-pod{uid.replace('-', '_')}.slice/cri-containerd-1.scope", "/"])
    assert json.loads(capfd.readouterr().out)["list"] == [[uid, "team-a", "vllm-0"]]
    system.pods(["/system.slice/x.service"])
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("version", [1, 2])
def test_the_tightest_memory_limit_over_a_group(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "sys/fs/cgroup" / ("memory" if version == 1 else "")
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control") if version == 1 else (
        "memory.max", "memory.current", "memory.events")  # fmt: skip
    for path, limit, kills in (("pod", 64 << 30, 3), ("pod/box", None, 3), ("free", None, 0)):
        (root / path).mkdir(parents=True)
        none = str(0x7FFFFFFFFFFFF000) if version == 1 else "max"
        for name, text in zip(
            names, (str(limit) if limit else none, str(60 << 30), f"oom 9\noom_kill {kills}\n"), strict=True
        ):
            (root / path / name).write_text(text + "\n")
    monkeypatch.setattr(wire, "ROOT", str(tmp_path))
    system.memory_limits(["/pod/box", "/free", "/"])
    (line,) = capfd.readouterr().out.splitlines()
    assert json.loads(line)["list"] == [
        {"path": "/pod", "limit": 65536, "used": 61440, "oom_kills": 3, "of": "/pod/box"},
    ]
