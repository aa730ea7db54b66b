"""Messages through the real apprise to a real HTTP server: told once, resolved, tried again, never with a secret."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recover.core.config_notify import Destination, Hook
from recover.core.config_table import SecretFile
from recover.core.report.message import Message, trial
from recover.edge import notify
from recover.edge.herald import FileHerald
from recover.edge.notify import Sent, send
from recover.edge.store.folder import StateFolder
from recover.edge.store.journal import FileJournal
from recover.edge.store.notebook import NotebookFile
from recover.edge.store.standings import FileStandings
from recover.model.act import Outcome
from recover.model.notice import Event, HookEvent, Notice
from recover.model.record import Began, Closed, End, Ended, EndKind, Opened
from recover.model.snapshot import Target
from recover.model.verdict import Scope
from recover.model.watch import Judged, Status, Transition
from tests.edge.pager import PASSWORD, Pager, pager
from tests.edge.test_child import until

AT = 1_795_922_263.0


@pytest.fixture
def desk() -> Iterator[Pager]:
    with pager() as found:
        yield found


class Box:
    """Where messages arrive without a way there: what a herald decides is seen here, as from a `Pager`."""

    def __init__(self) -> None:
        self.answers: dict[str, int] = {}
        self.got: dict[str, list[dict[str, str]]] = {}
        self.meanwhile: Callable[[], object] = lambda: None

    def post(self, to: Destination, text: Message, seconds: float) -> Sent:
        if to.name in self.answers:
            return Sent(f"refused with HTTP {self.answers[to.name]}")
        self.got.setdefault(to.name, []).append({"title": text.title, "message": text.body, "type": text.kind})
        now, self.meanwhile = self.meanwhile, lambda: None
        now()
        return Sent()

    def titles(self, name: str) -> list[str]:
        return [m["title"] for m in self.got.get(name, [])]


@pytest.fixture
def box() -> Box:
    return Box()


@pytest.fixture
def to(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Destination]:
    desk: Pager | None = request.getfixturevalue("desk") if "desk" in request.fixturenames else None

    def made(name: str, url: str = "", **more: Any) -> Destination:
        secret = tmp_path / f"{name}.url"
        secret.write_text(url or (desk.url(name) if desk is not None else "json://127.0.0.1:1"))
        secret.chmod(0o600)
        return Destination(name, SecretFile(str(secret)), **more)

    return made


@pytest.fixture
def herald(real: Callable[..., FileHerald], box: Box) -> Callable[..., FileHerald]:
    """As `real`, but what it sends arrives in the box."""
    return lambda *destinations, **more: real(*destinations, **{"post": box.post, **more})


@pytest.fixture
def real(tmp_path: Path) -> Callable[..., FileHerald]:
    """A herald as one process has it: a new one is a restart."""

    def made(*destinations: Destination, hook: Hook | None = None, now: float = AT, **more: Any) -> FileHerald:
        known = {d.name: d for d in destinations}
        return FileHerald(known, hook, StateFolder(tmp_path / "state"), lambda n: Target(n, ""), lambda: now,
                          gather_s=0.0, idle_s=0.0, **more)  # fmt: skip

    return made


def change(target: str, status: Status, *signals: str, at: float = AT, before: Status | None = Status.OK) -> Transition:
    was = Judged(at - 60, before) if before is not None else None
    return Transition(at, target, was, Judged(at, status, signals, f"{target} is {status.name}"), at - 3600)


def everything_written(folder: Path) -> str:
    return "".join(p.read_text(errors="replace") for p in folder.rglob("*") if p.is_file())


# --- the postman


def test_a_message_arrives_as_it_is(to: Callable[..., Destination], desk: Pager) -> None:
    sent = send(to("oncall"), trial("oncall", "ops1", AT), 30.0)
    assert sent.why == "" and sent.warnings == ()
    (got,) = desk.got["oncall"]
    assert got["title"] == trial("oncall", "ops1", AT).title and got["message"] == trial("oncall", "ops1", AT).body
    assert got["type"] == "info"


@pytest.mark.parametrize(
    ("url", "answer", "why"),
    [
        ("", 403, "refused with HTTP 403"),
        (f"json://ops:{PASSWORD}@127.0.0.1:1/x", 200, "nobody was reached"),
        (f"nosuchthing://{PASSWORD}", 200, "apprise does not understand its URL"),
        (f"{PASSWORD} two words", 200, "does not hold one line of plain characters"),
    ],
)
def test_why_it_did_not_arrive_is_said_without_the_url(
    to: Callable[..., Destination], desk: Pager, capfd: pytest.CaptureFixture[str], url: str, answer: int, why: str
) -> None:
    desk.answers["oncall"] = answer
    sent = send(to("oncall", url), trial("oncall", "ops1", AT), 30.0)
    assert why in sent.why and PASSWORD not in sent.why
    shown = capfd.readouterr()
    assert shown.out == shown.err == ""


def test_a_service_that_never_answers_is_left_at_the_deadline(
    to: Callable[..., Destination], desk: Pager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "LEAST_S", 0.0)
    desk.answers["oncall"] = None
    sent = send(to("oncall"), trial("oncall", "ops1", AT), 1.0)
    assert sent.why.startswith("the service did not end within")


def test_a_secret_that_cannot_be_had_and_one_that_others_may_read_are_said(
    to: Callable[..., Destination], tmp_path: Path
) -> None:
    missing = Destination("x", SecretFile(str(tmp_path / "none")))
    assert "its URL cannot be had: " in send(missing, trial("x", "ops1", AT), 30.0).why
    open_to_all = to("oncall")
    (tmp_path / "oncall.url").chmod(0o644)
    assert "chmod 600" in send(open_to_all, trial("x", "ops1", AT), 30.0).warnings[0]


def test_without_apprise_the_command_that_installs_it_is_said(
    to: Callable[..., Destination], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify.importlib.util, "find_spec", lambda name: None)
    assert send(to("oncall"), trial("x", "ops1", AT), 30.0).why == (
        "apprise is not installed: pip install 'gpu-recover[notify]'"
    )


def test_a_url_is_checked_without_sending_and_without_loading_apprise_here(
    to: Callable[..., Destination], desk: Pager
) -> None:
    assert send(to("oncall"), trial("oncall", "ops1", AT), 30.0, only_check=True).why == "" and desk.got == {}
    assert "apprise" not in sys.modules


# --- the herald


def test_what_is_told_is_told_once_also_after_a_restart_and_resolved(
    real: Callable[..., FileHerald], to: Callable[..., Destination], desk: Pager
) -> None:
    team = to("team")
    assert real(team).tell(change("a", Status.CRITICAL, "dead-group")) == ()
    for _ in range(2):
        assert real(team, now=AT + 60).tell() == ()
    assert real(team, now=AT + 90).tell(change("a", Status.CRITICAL, "dead-group", at=AT + 90)) == ()
    assert real(team, now=AT + 120).tell(change("a", Status.OK, at=AT + 120)) == ()
    assert desk.titles("team") == ["CRITICAL a: dead-group", "OK a: well again"]
    assert [m["type"] for m in desk.got["team"]] == ["failure", "success"]


def test_each_destination_hears_what_it_wants(
    herald: Callable[..., FileHerald], to: Callable[..., Destination], box: Box
) -> None:
    pager_, team = to("pager", at_least=Status.CRITICAL, events=frozenset({Event.STATE})), to("team")
    ends = to("ends", events=frozenset({Event.GAVE_UP}))
    one = herald(pager_, team, ends)
    assert one.tell(change("a", Status.WARNING, "ram-unowned")) == ()
    assert one.announce(Notice(AT, Event.GAVE_UP, "a", "it is broken"), Notice(AT, Event.RECOVERED, "b", "fine")) == ()
    assert box.titles("pager") == [] and box.titles("ends") == ["NOT RECOVERED a"]
    assert box.titles("team") == ["WARNING a: ram-unowned", "GPU targets: 1 GAVE UP, 1 RECOVERED"]


def test_a_fleet_that_falls_at_once_is_one_message(
    herald: Callable[..., FileHerald], to: Callable[..., Destination], box: Box
) -> None:
    team = to("team")
    assert herald(team).tell(*(change(f"n{i}", Status.CRITICAL, "gpu-lost") for i in range(40))) == ()
    assert box.titles("team") == ["GPU targets: 40 CRITICAL"]
    assert herald(team, now=AT + 60).tell() == () and len(box.got["team"]) == 1


def test_what_changes_while_one_gathers_or_sends_is_told_by_the_same_call(
    herald: Callable[..., FileHerald], to: Callable[..., Destination], box: Box
) -> None:
    """Others leave their word in the notebook and go on at once: a fleet that falls in a second is one message."""
    team = to("team")
    other = herald(team)

    def meanwhile(_: float) -> None:
        assert [other.tell(change(f"n{i}", Status.CRITICAL, "gpu-lost")) for i in range(2, 30)] == [()] * 28

    one = herald(team, pause=meanwhile)
    one.gather_s = 1.0
    box.meanwhile = lambda: other.tell(change("late", Status.CRITICAL, "gpu-lost"))
    assert one.tell(change("n1", Status.CRITICAL, "gpu-lost")) == ()
    assert box.titles("team") == ["GPU targets: 29 CRITICAL", "CRITICAL late: gpu-lost"]


def test_changes_told_from_many_threads_are_all_told(
    herald: Callable[..., FileHerald], to: Callable[..., Destination], box: Box
) -> None:
    one = herald(to("team"))
    threads = [threading.Thread(target=one.tell, args=(change(f"n{i:02}", Status.CRITICAL),)) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert one.tell() == ()  # the next check
    book = NotebookFile(one.state.root / "notify").read()
    assert len(book.told) == len(book.present) == 20
    named = [name for m in box.got["team"] for name in m["title"].split() if name.startswith("n")]
    assert len(named) == len(set(named))


def test_what_could_not_be_delivered_is_said_and_tried_at_the_next_check(
    herald: Callable[..., FileHerald], to: Callable[..., Destination], box: Box
) -> None:
    team, other = to("team"), to("other")
    box.answers["team"] = 500
    (said,) = herald(team, other).tell(change("a", Status.CRITICAL, "dead-group"))
    assert said == "notify.team: could not be told (refused with HTTP 500); tried again at the next check"
    assert box.titles("other") == ["CRITICAL a: dead-group"]
    (again,) = herald(team, other, now=AT + 60).tell()
    assert "HTTP 500" in again
    del box.answers["team"]
    assert herald(team, other, now=AT + 120).tell() == ()
    assert box.titles("team") == ["CRITICAL a: dead-group"] and len(box.titles("other")) == 1
    assert NotebookFile(herald().state.root / "notify").read().silent == ()


def test_a_state_that_is_over_before_it_could_be_told_is_not_told(
    herald: Callable[..., FileHerald], to: Callable[..., Destination], box: Box
) -> None:
    team = to("team")
    box.answers["team"] = 500
    assert len(herald(team).tell(change("a", Status.CRITICAL))) == 1
    del box.answers["team"]
    assert herald(team, now=AT + 60).tell(change("a", Status.OK, at=AT + 60)) == () and box.titles("team") == []


def test_one_that_hangs_does_not_keep_the_others_from_being_told(
    real: Callable[..., FileHerald], to: Callable[..., Destination], desk: Pager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "LEAST_S", 0.0)
    desk.answers["stuck"] = None
    stuck, team = to("stuck"), to("team")
    said = real(stuck, team, tell_s=1.5).tell(change("a", Status.CRITICAL))
    for tell_s in (4.0, 16.0):  # a machine on which a message takes longer
        said = said if "team" in desk.got else real(stuck, team, tell_s=tell_s).tell()
    assert said == (said[0],) and said[0].startswith("notify.stuck: could not be told (the service did not end within")
    assert len(desk.got["team"]) == 1


def test_a_reminder_comes_when_it_is_due_and_only_of_what_is_still_looked_at(
    herald: Callable[..., FileHerald], to: Callable[..., Destination], box: Box, tmp_path: Path
) -> None:
    """Seen to fail with a target that had left the configuration: it was said to be sick STILL, for ever."""
    team, standings = to("team", remind_s=3600.0), FileStandings(StateFolder(tmp_path / "state"))

    def looked(at: float, target: str) -> None:
        standings.step(target, lambda s: (replace(s, recent=(Judged(at, Status.CRITICAL),)), None), at)

    for target in ("a", "gone"):
        looked(AT, target)
    herald(team).tell(change("a", Status.CRITICAL, "dead-group"), change("gone", Status.CRITICAL, "dead-group"))
    looked(AT + 3590, "a")
    herald(team, now=AT + 3599).tell()
    assert len(box.got["team"]) == 1
    herald(team, now=AT + 3600).tell()
    assert box.titles("team")[1:] == ["STILL CRITICAL a: dead-group"]


def test_what_was_tried_stands_in_the_message(
    herald: Callable[..., FileHerald], to: Callable[..., Destination], box: Box
) -> None:
    one = herald(to("team"))
    journal = FileJournal(one.state.run("a", "20261129T031700Z-a-0001"))
    for entry in (
        Opened(AT - 60, "20261129T031700Z-a-0001", "a", "p", "d", "kim", "ops1", 1, 0.0),
        Began(AT - 50, 0, "end-workers", 1, Scope.PROCESS),
        Ended(AT - 40, 0, "end-workers", 1, Outcome(True)),
        Closed(AT - 30, End(EndKind.EXHAUSTED, "nothing is left", "gpu-recover a --approve vm")),
    ):
        journal.append(entry)
    journal.close()
    assert one.tell(change("a", Status.CRITICAL, "dead-group")) == ()
    (got,) = box.got["team"]
    assert got["message"].endswith("Tried: end-workers; exhausted. Next: gpu-recover a --approve vm")


def test_no_secret_is_on_disk_or_said(
    real: Callable[..., FileHerald], to: Callable[..., Destination], desk: Pager, capfd: pytest.CaptureFixture[str]
) -> None:
    desk.answers["team"] = 500
    one = real(to("team"), to("broken", f"tgram://{PASSWORD}"))
    said = one.tell(change("a", Status.CRITICAL))
    shown = capfd.readouterr()
    assert len(said) == 2 and PASSWORD not in "".join(said) + shown.out + shown.err
    written = everything_written(one.state.root)
    assert "HTTP 500" in written and PASSWORD not in written and "json://" not in written


def test_what_was_told_is_logged_for_who_reads_it_later(
    herald: Callable[..., FileHerald], to: Callable[..., Destination]
) -> None:
    one = herald(to("team"))
    one.tell(change("a", Status.CRITICAL, "dead-group"))
    (line,) = [json.loads(x) for x in (one.state.root / "notify" / "told.jsonl").read_text().splitlines()]
    assert {k: line[k] for k in ("to", "ok", "title", "targets")} == {
        "to": "team", "ok": True, "title": "CRITICAL a: dead-group", "targets": ["a"],
    }  # fmt: skip
    assert (one.state.root / "notify" / "told.jsonl").stat().st_mode & 0o077 == 0


def test_with_nothing_configured_nothing_is_written(herald: Callable[..., FileHerald]) -> None:
    one = herald()
    assert one.tell(change("a", Status.CRITICAL)) == () == one.announce(Notice(AT, Event.GAVE_UP, "a", "x"))
    assert not one.state.root.exists()


def test_a_notebook_that_is_damaged_is_put_away_and_said(
    herald: Callable[..., FileHerald], to: Callable[..., Destination], box: Box
) -> None:
    one = herald(to("team"))
    path = one.state.root / "notify" / "notebook.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    (said,) = one.tell(change("a", Status.CRITICAL))
    assert "put away as notebook.json.damaged" in said and len(box.got["team"]) == 1


def test_a_folder_that_cannot_be_written_keeps_nobody_from_being_told(
    herald: Callable[..., FileHerald], to: Callable[..., Destination], box: Box
) -> None:
    one = herald(to("team"))
    one.state.root.write_text("not a folder")
    said = one.tell(change("a", Status.CRITICAL))
    assert said and all(str(one.state.root) in s for s in said)
    assert one.tell() and len(box.got["team"]) == 1  # this process, at least, tells it once


def test_old_news_is_given_up_and_that_is_said(
    herald: Callable[..., FileHerald], to: Callable[..., Destination], box: Box
) -> None:
    team = to("team")
    box.answers["team"] = 500
    herald(team).announce(Notice(AT, Event.GAVE_UP, "a", "it is broken"))
    (said,) = herald(team, now=AT + 90000).tell()
    assert said == "notify.team: gave-up of a was never delivered, and is given up"


def test_who_comes_second_leaves_it_to_who_sends_already(
    herald: Callable[..., FileHerald], to: Callable[..., Destination], box: Box
) -> None:
    one = herald(to("team"))
    with NotebookFile(one.state.root / "notify").turn("sending") as ours:
        assert ours and one.tell(change("a", Status.CRITICAL)) == () and box.got == {}
    assert one.tell() == () and len(box.got["team"]) == 1


# --- the state-change hook


def test_the_hook_is_run_once_per_change_also_when_it_failed_at_first(
    herald: Callable[..., FileHerald], tmp_path: Path
) -> None:
    program = tmp_path / "hook"
    program.write_text(f"#!/bin/sh\ncat >> {tmp_path}/log\n[ ! -e {tmp_path}/fail ] || {{ echo no >&2; exit 1; }}\n")
    program.chmod(0o755)
    hook = Hook(HookEvent.STATE_CHANGE, (str(program),), 30.0)
    (tmp_path / "fail").touch()
    (said,) = herald(hook=hook).tell(change("a", Status.CRITICAL, "dead-group"), change("b", Status.OK, before=None))
    assert said == "hook state-change for a: ended with 1: no; tried again at the next check"
    os.unlink(tmp_path / "fail")
    assert herald(hook=hook).tell() == () == herald(hook=hook).tell()
    assert herald(hook=hook, now=AT + 60).tell(change("a", Status.OK, at=AT + 60, before=Status.CRITICAL)) == ()
    told = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [(t["target"], t["before"]["state"], t["after"]["state"]) for t in told] == [
        ("a", "OK", "CRITICAL"), ("a", "OK", "CRITICAL"), ("a", "CRITICAL", "OK"),
    ]  # fmt: skip


def test_a_hook_that_takes_its_time_keeps_no_message_and_no_other_targets_hook_waiting(
    herald: Callable[..., FileHerald], to: Callable[..., Destination], box: Box, tmp_path: Path
) -> None:
    """The hook of target a waits for a file. Seen to fail: b was told, and its hook run, only after that of a."""
    program = tmp_path / "hook"
    slow = f"[ $1 != a ] || {{ : > {tmp_path}/waits; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; }}"
    program.write_text(f"#!/bin/sh\n{slow}\necho $1 >> {tmp_path}/log\n")
    program.chmod(0o755)
    hook, team = Hook(HookEvent.STATE_CHANGE, (str(program), "{target}"), 60.0), to("team")
    one = herald(team, hook=hook)
    first = threading.Thread(target=one.tell, args=(change("a", Status.CRITICAL, "dead-group"),))
    first.start()
    try:
        until(lambda: (tmp_path / "waits").exists(), 60.0)
        for who in (one, herald(team, hook=hook)):  # another thread of the exporter; another process
            name = "b" if who is one else "c"
            assert who.tell(change(name, Status.CRITICAL, "gpu-lost")) == ()
            assert f"CRITICAL {name}: gpu-lost" in box.titles("team")
        assert (tmp_path / "log").read_text().split() == ["b", "c"] and first.is_alive()
    finally:
        (tmp_path / "go").touch()
        first.join(60)
    assert herald(team, hook=hook).tell() == ()
    assert (tmp_path / "log").read_text().split() == ["b", "c", "a"], "each once"
    assert len(box.titles("team")) == 3
