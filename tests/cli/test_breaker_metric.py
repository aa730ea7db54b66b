"""The exporter's word about the breaker: open, closed, or nothing where the ledger can't be read."""

from __future__ import annotations

from pathlib import Path

from recover.cli.breaker import is_open
from recover.edge.store.folder import StateFolder
from recover.edge.store.ledger import FileLedger
from recover.model.watch import Breaker, Ledger


def test_the_breaker_is_told_as_the_ledger_has_it(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    assert is_open(folder) is False
    book = FileLedger(folder)
    book.path.parent.mkdir(parents=True)
    for breaker, told in ((Breaker(1.0, "a", "x"), True), (Breaker(1.0, "a", "x", closed_at=2.0), False)):
        book.change(lambda _, breaker=breaker: (Ledger(breakers=(breaker,)), None))  # type: ignore[misc]
        assert is_open(folder) is told
    book.path.write_text("{")
    assert is_open(folder) is None
