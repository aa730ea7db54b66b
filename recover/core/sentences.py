"""Sentences that differ only in the GPU that they speak of are said once: eight of a kind hide the ninth."""

from __future__ import annotations

import re
from collections.abc import Iterable

START_AS = "start it as: "  # how preflight's note begins that gives a command which fits
_GPU = re.compile(r"GPU (\d+) \([0-9a-f:.]+\) (.*)", re.DOTALL)


def grouped(sentences: Iterable[str]) -> tuple[str, ...]:
    """The sentences in their order, those of several GPUs as one: "GPUs 0-3 and 6: each holds 80 GiB"."""
    order: list[tuple[str, str]] = []
    gpus: dict[str, list[int]] = {}
    for sentence in sentences:
        found = _GPU.fullmatch(sentence)
        if found is None:
            order.append(("", sentence))
        elif found[2] in gpus:
            gpus[found[2]].append(int(found[1]))
        else:
            gpus[found[2]] = [int(found[1])]
            order.append((found[2], sentence))
    return tuple(
        f"GPUs {spans(gpus[rest])}: each {rest}" if rest and len(gpus[rest]) > 1 else sentence
        for rest, sentence in order
    )


def spans(numbers: Iterable[int]) -> str:
    """0, 1, 2, 5 as "0-2 and 5"."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words = [str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs]
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def some(sentences: Iterable[str], most: int = 3) -> str:
    """The first sentences in one line, and how many more there are."""
    all_of_them = grouped(sentences)
    more = len(all_of_them) - most
    return "; ".join(all_of_them[:most]) + (f"; and {more} more" if more > 0 else "")
