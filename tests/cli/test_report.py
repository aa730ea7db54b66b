"""report over real journals on disk: which run is meant, where the page goes, and the truth about what is missing."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest

from recover.cli.report import NAME
from recover.edge.store.folder import StateFolder
from tests.cli.conftest import Cli
from tests.cli.test_history import Machines, keep

ONE, TWO, OTHER = "20261130T122103Z-node-174-ea10", "20261130T132103Z-node-174-ea11", "20261130T112103Z-node-175-ea12"


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    return StateFolder(tmp_path / "state")


@pytest.fixture
def three(state: StateFolder) -> StateFolder:
    for target, name, scenario in (
        ("node-174", ONE, "incident"),
        ("node-174", TWO, "healthy"),
        ("node-175", OTHER, "mute"),
    ):
        keep(state, target, name, scenario)
    return state


def said(cli: Cli, *words: str) -> str:
    ran = cli("report", *words)
    assert ran.code == 0, ran.err
    return ran.out


def test_a_run_is_found_by_every_word_for_it(three: StateFolder, cli: Cli) -> None:
    for word, run in (
        ("latest", TWO), (ONE, ONE), ("node-174", TWO), ("node-175", OTHER), ("20261130T12", ONE), (ONE[:-3], ONE),
    ):  # fmt: skip
        target = run.split("Z-")[1].rpartition("-")[0]
        assert said(cli, word) == f"{three.run(target, run) / NAME}\n"


def test_what_is_no_run_ends_with_2_and_says_what_there_is(three: StateFolder, cli: Cli) -> None:
    for word, says in (
        ("20261130T1", "3 runs begin so"),
        ("node-17", "did you mean node-17"),
        ("latst", "did you mean latest"),
        ("nothing-like-it", TWO),
        ("", "no run"),
        ("x\x1b]0;owned\x07\u202e", "no run"),
    ):
        ran = cli("report", word)
        assert (ran.code, says in ran.err, ran.out) == (2, True, ""), ran.err
        assert all(c.isprintable() or c == "\n" for c in ran.err)
    assert cli("report", "latest", "--format", "pdf").code == 2


def test_before_the_first_run(cli: Cli) -> None:
    ran = cli("report", "latest")
    assert ran.code == 2 and "there has been no run yet" in ran.err


def test_where_it_goes(three: StateFolder, cli: Cli, tmp_path: Path) -> None:
    beside = Path(said(cli, ONE).strip())
    assert beside.read_text().startswith("<!doctype html>") and stat.S_IMODE(beside.stat().st_mode) & 0o600 == 0o600
    assert said(cli, ONE, "-o", "-").startswith("<!doctype html>")
    assert said(cli, ONE, "--format", "markdown").startswith("# node-174: RECOVERED")
    page, ticket = tmp_path / "a.html", tmp_path / "a.md"
    assert said(cli, ONE, "-o", str(page)) == f"{page}\n" and page.read_text().startswith("<!doctype html>")
    assert said(cli, ONE, "-o", str(ticket)) and ticket.read_text().startswith("# node-174: RECOVERED")
    assert said(cli, ONE, "-o", str(ticket), "--format", "html") and ticket.read_text().startswith("<!doctype")
    link = tmp_path / "link.html"
    link.symlink_to(page)
    page.write_text("old")
    said(cli, TWO, "-o", str(link))
    assert link.is_symlink() and "healthy" in page.read_text()
    for wrong in (tmp_path / "none" / "x.html", tmp_path, page / "x.html"):
        ran = cli("report", ONE, "-o", str(wrong))
        assert ran.code == 2 and "in a folder that is there" in ran.err
    assert not list(tmp_path.glob(".*")), "nothing half-written is left"


def test_a_pipe_is_written_to_and_stays_one(three: StateFolder, cli: Cli, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert said(cli, TWO, "-o", str(pipe), "--format", "markdown") == ""
        assert os.read(reader, 1 << 16).startswith(b"# node-174")
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_links_lead_from_the_page_to_the_evidence(cli: Cli, machines: Machines, tmp_path: Path) -> None:
    ran = cli("node-174", "--yes", app=machines(**{"node-174": "orphaned"}))
    assert ran.code == 0
    page = Path(said(cli, "latest").strip())
    elsewhere = tmp_path / "deep" / "er" / "page.html"
    elsewhere.parent.mkdir(parents=True)
    said(cli, "latest", "-o", str(elsewhere))
    for one in (page, elsewhere):
        links = re.findall(r'href="([^"]+)"', one.read_text())
        assert "journal.jsonl" in links[0] and any("evidence/snapshot.json" in link for link in links)
        assert all(link.startswith("./") and (one.parent / link).is_file() for link in links)


def test_a_run_without_an_end(three: StateFolder, cli: Cli) -> None:
    folder = keep(three, "node-176", "20261130T142103Z-node-176-ea13", "incident", 20)
    assert "CUT" in said(cli, "node-176", "--format", "markdown")
    note = '{"run": "%s", "who": "kim", "host": "elsewhere", "pid": 1, "since": 1.0}' % folder.name  # noqa: UP031
    (three.target("node-176") / "lock").write_text(note)
    going = said(cli, "node-176", "--format", "markdown")
    assert "STILL GOING ON" in going and "gpu-recover follow node-174" in going


def test_a_damaged_journal_is_told_as_far_as_it_goes(three: StateFolder, cli: Cli) -> None:
    path = three.run("node-174", ONE) / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    for data, says in (
        (b"".join(lines[:30]) + b'{"$":"Saw"}\n' + b"".join(lines[30:]), "journal.jsonl:31"),
        (b"".join(lines)[:-20], "cut while it was written"),
    ):
        path.write_bytes(data)
        ran = cli("report", ONE, "--format", "markdown")
        assert ran.code == 0 and says in ran.err and "can be read only in part" in ran.out and "stop-service" in ran.out
        assert "CUT" in ran.out
    for data in (b"", b"nonsense\n"):
        path.write_bytes(data)
        ran = cli("report", ONE)
        assert ran.code == 2 and "nothing can be told of this run" in ran.err


def test_evidence_that_is_gone_is_said_to_be(cli: Cli, machines: Machines, state: StateFolder) -> None:
    assert cli("node-174", "--yes", app=machines(**{"node-174": "orphaned"})).code == 0
    (folder,) = state.runs("node-174")
    (folder / "evidence").rename(folder / "moved")
    assert "is not there any more" in said(cli, "latest", "--format", "markdown")


def test_a_rehearsals_report_says_that_it_is_one(cli: Cli, tmp_path: Path) -> None:
    page, ticket = tmp_path / "r.html", tmp_path / "r.md"
    ran = cli("rehearse", "--fault", "incident", "-q", "--json", "--report", str(page))
    assert ran.code == 0 and ran.out.startswith("{") and str(page) in ran.err
    assert cli("rehearse", "--fault", "incident", "-q", "--report", str(ticket)).code == 0
    for text in (page.read_text(), ticket.read_text()):
        assert "nothing real was touched" in text and "RECOVERED" in text and "Nothing was kept" in text
