"""What a look means: findings with their cure, symptoms that may yet become findings, and the state they add up to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum


class Scope(IntEnum):
    """Blast radius, and the order of the ladder. There is no word for the Proxmox host: it is never restarted."""

    PROCESS = 1
    GPU = 2
    DRIVER = 3
    GUEST = 4
    VM = 5
    HOST_DEVICE = 6

    @property
    def word(self) -> str:
        """The word for command lines, playbooks and JSON: "process" … "host-device"."""
        return self.name.lower().replace("_", "-")

    @classmethod
    def of(cls, word: str) -> Scope:
        """The scope called `word`; ValueError names the choices."""
        for scope in cls:
            if scope.word == word:
                return scope
        raise ValueError(f"{word!r} is no scope: choose from {', '.join(s.word for s in cls)}")


@dataclass(frozen=True, slots=True)
class Finding:
    """Something is wrong. `cure` is the smallest scope known to cure it, None where no step can.

    `where` is a GPU's UUID, a group's key, or None for the whole target.
    """

    signal: str  # stable word, kebab-case: see SIGNALS
    says: str  # one sentence for a person
    cure: Scope | None
    where: str | None = None
    evidence: tuple[str, ...] = ()
    at_least: Scope | None = None  # a smaller rung must not be tried although it reaches this high


@dataclass(frozen=True, slots=True)
class Symptom:
    """Becomes `finding` once `level` has not fallen by `quantum` for `ripens_s`: how slow is told from stuck."""

    key: str  # stable across looks: "vram:GPU-…", "ram:unowned", "tokens:…"
    level: int
    quantum: int
    ripens_s: float
    finding: Finding


class State(StrEnum):
    HEALTHY = "healthy"
    FAULTY = "faulty"
    UNCERTAIN = "uncertain"
    HOPELESS = "hopeless"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`findings` include ripe symptoms; `ripening` are the symptoms that are not ripe yet.

    `channels` are the names of the channels that work now.
    HOPELESS: a finding for the whole target that no step can cure.
    """

    state: State
    findings: tuple[Finding, ...] = ()
    symptoms: tuple[Symptom, ...] = ()
    ripening: tuple[Symptom, ...] = ()
    gaps: tuple[str, ...] = ()
    channels: frozenset[str] = frozenset()
    blind: int = 0  # so many of `gaps`, the first ones, keep anybody from calling the machine healthy

    @property
    def curable(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.cure is not None)

    @property
    def incurable(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.cure is None)
