"""What a pasted text says: each finding stands on one of its lines; notes are worth telling and no findings."""

from __future__ import annotations

from dataclasses import dataclass

from recover.model.verdict import Scope


@dataclass(frozen=True, slots=True)
class Told:
    """`signal`: the word of `core.signals` or of `read.task_log` where the same is meant. `cure` None: for a person.

    `subject`: the PCI address, process or guest that is meant, in one spelling, "" where the text names none.
    `fact`: why this is known to cure it, with the public source. `note`: nothing is wrong by this line alone.
    """

    signal: str
    says: str
    cure: Scope | None
    fact: str
    line: int
    text: str
    subject: str = ""
    part: str = ""  # what tells several findings of one signal and subject apart: the code of an Xid
    note: bool = False

    @property
    def rung(self) -> str:
        return self.cure.word if self.cure is not None else "a person"


def weight(told: Told) -> int:
    """What only a person can mend weighs most, then the scope that stops the most."""
    return 99 if told.cure is None else int(told.cure)
