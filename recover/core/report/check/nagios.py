"""A monitoring plugin's output: one line, its performance data, then details; no word of a machine can break its form.

The form is that of the Monitoring Plugins Development Guidelines: text, a bar, performance data; long text from the
second line on. A figure that is not known is `U`, never 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from recover.core.clean import clean
from recover.core.report.check.data import gpus, known
from recover.core.report.check.table import details, summary
from recover.core.report.check.verdict import Checked, worst
from recover.model.watch import Status

_SERVICE = "GPU"
_MIB = 1024 * 1024
_LINE = 400


def nagios(found: Sequence[Checked]) -> str:
    """What the plugin prints."""
    status = worst(one.status for one in found)
    head = f"{_SERVICE} {status.name} - {_safe(_sentence(found, status))}"
    figures = " ".join(f for one in found for f in _figures(one, several=len(found) > 1))
    lines = [f"{head} | {figures}" if figures else head]
    for one in found:
        if len(found) > 1:
            lines.append(_safe(f"{one.status.name} {one.target}: {one.why}"))
        lines += [_safe(f"  {text}" if len(found) > 1 else text) for text in details(one)]
    return "\n".join(lines)


def trouble(problems: Sequence[str]) -> str:
    """The one line where there was nothing to look at: the monitoring system shows stdout only."""
    return f"{_SERVICE} UNKNOWN - {_safe('; '.join(problems) or 'no target')}"


def _sentence(found: Sequence[Checked], status: Status) -> str:
    if len(found) == 1:
        return f"{found[0].target}: {found[0].why}"
    if status is Status.OK:
        return f"{len(found)} targets are healthy"
    first = next(one for one in found if one.status is status)
    counted = summary(found).partition(": ")[2]
    return f"{counted}; {first.target}: {first.why}"


def _safe(text: str) -> str:
    """A bar begins performance data and a line end a new part, so neither may come from what is told."""
    lead = text[: len(text) - len(text.lstrip(" "))]
    return lead + clean(text, _LINE).replace("|", "/")


def _figures(one: Checked, *, several: bool) -> Iterator[str]:
    """'label'=value[unit];warn;crit;min;max"""
    base = f"{one.target}/" if several else ""
    vitals = one.vitals
    yield _figure(f"{base}look", f"{one.seconds:.3f}s", "")
    if vitals is None:
        return
    yield _figure(f"{base}ram_available", _bytes(vitals.ram_available_mib), _bytes(vitals.ram_total_mib))
    yield _figure(f"{base}ram_unowned", _bytes(vitals.unowned_mib), _bytes(vitals.ram_total_mib))
    for gpu in gpus(one):
        used, total = known(gpu.used_mib), known(gpu.total_mib)
        yield _figure(f"{base}gpu{gpu.index}_used", _bytes(used), _bytes(total))
        busy = known(gpu.utilisation_pct)
        yield _figure(f"{base}gpu{gpu.index}_utilisation", "U" if busy is None else f"{busy}%", "")


def _bytes(mib: int | None) -> str:
    return "U" if mib is None else f"{mib * _MIB}B"


def _figure(label: str, value: str, top: str) -> str:
    name = re.sub(r"['=|\s]+", "_", clean(label, 100))
    most = "" if top in ("", "U") else top.rstrip("B")
    return f"'{name}'={value};;;0;{most}".rstrip(";") if value != "U" else f"'{name}'=U"
