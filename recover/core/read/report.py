"""The agent's lines by kind, and why a kind that is missing is missing."""

from __future__ import annotations

from recover.core.read.rows import Row
from recover.model.reading import Unknown, Why


class Report:
    """Filled while the lines are read. Unknown kinds are kept and ignored: agent and reader may differ in age."""

    def __init__(self) -> None:
        self.kinds: dict[str, list[Row]] = {}
        self.raw: list[str] = []
        self.garbage = 0
        self.last = ""

    def add(self, kind: str, row: Row) -> None:
        self.kinds.setdefault(kind, []).append(row)
        self.last = kind if kind.isprintable() and len(kind) < 40 else "?"

    def one(self, kind: str) -> Row | None:
        """The first of its kind: a later line can't take back what was said (a process title can't forge a hello)."""
        rows = self.kinds.get(kind)
        return rows[0] if rows else None

    def all(self, kind: str) -> list[Row]:
        return self.kinds.get(kind, [])

    def table(self, kind: str) -> list[Row]:
        """The rows of all batches of one kind."""
        return [row for batch in self.all(kind) for row in batch.rows("list")]

    def gaps(self) -> list[str]:
        rows = self.all("gap")
        return [": ".join(p for p in (r.text("what"), r.text("why"), r.text("detail", limit=500)) if p) for r in rows]

    def missing(self, what: str) -> Unknown:
        """Why a part is not there: by its own gap, or because the report broke off before it."""
        for row in self.all("gap"):
            if row.text("what") == what:
                return unknown(row, 500)
        if self.one("end") is None:
            return Unknown(Why.TIMEOUT, "the agent's report broke off before it")
        return Unknown(Why.ABSENT, "the agent did not tell")


def unknown(row: Row, limit: int = 200) -> Unknown:
    """What the agent says of a value that it could not give; a reason that we do not know makes no sense to us."""
    try:
        why = Why(row.text("why"))
    except ValueError:
        why = Why.GARBLED
    return Unknown(why, row.text("detail", limit=limit))
