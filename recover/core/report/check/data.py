"""The same as data, schema 1: what was not seen is null, never 0 and never an empty word."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from recover.core.clean import clean
from recover.core.report.check.verdict import Checked, worst
from recover.model.gpu import Gpu
from recover.model.guest import Guest
from recover.model.process import Group
from recover.model.reading import Known, Reading
from recover.model.verdict import Finding

SCHEMA = 1
Json = dict[str, Any]


def data(found: Sequence[Checked], seconds: float, more: Callable[[str], Json] | None = None) -> Json:
    """`more`: further keys of a target, by its name."""
    status = worst(one.status for one in found)
    return {
        "schema": SCHEMA,
        "status": status.name,
        "exit_code": int(status),
        "seconds": round(seconds, 3),
        "targets": [{**_target(one), **(more(one.target) if more is not None else {})} for one in found],
    }


def _target(one: Checked) -> Json:
    vitals = one.vitals
    return {
        "target": clean(one.target),
        "status": one.status.name,
        "exit_code": int(one.status),
        "why": clean(one.why),
        "state": one.diagnosis.state.value if one.diagnosis is not None else None,
        "reached": one.reached,
        "seconds": round(one.seconds, 3),
        "looks": one.looks,
        "findings": [_finding(f) for f in one.findings],
        "ripening": [_finding(f) for f in one.ripening],
        "gaps": [clean(gap) for gap in one.gaps],
        "gpus": [_gpu(gpu) for gpu in gpus(one)],
        "ram": {
            "total_mib": vitals.ram_total_mib if vitals else None,
            "available_mib": vitals.ram_available_mib if vitals else None,
            "unowned_mib": vitals.unowned_mib if vitals else None,
            "expected_mib": vitals.ram_baseline_mib if vitals else None,
        },
        "groups": [_group(group) for group in one.groups],
        "vm_status": (vitals.vm_status or None) if vitals else None,
        "baseline": one.baseline,
        "proposes_baseline": one.proposes,
    }


def gpus(one: Checked) -> tuple[Gpu, ...]:
    guest = one.snapshot.guest if one.snapshot is not None else None
    return guest.gpus.value if isinstance(guest, Guest) and isinstance(guest.gpus, Known) else ()


def known(reading: Reading[Any]) -> Any:
    """The value, or None where it is not known."""
    return reading.value if isinstance(reading, Known) else None


def _text(reading: Reading[str]) -> str | None:
    return clean(reading.value) if isinstance(reading, Known) else None


def _gpu(gpu: Gpu) -> Json:
    return {
        "index": gpu.index,
        "uuid": _text(gpu.uuid),
        "bus_id": clean(gpu.bus_id) or None,
        "name": _text(gpu.name),
        "condition": gpu.condition.value,
        "used_mib": known(gpu.used_mib),
        "total_mib": known(gpu.total_mib),
        "utilisation_pct": known(gpu.utilisation_pct),
    }


def _group(group: Group) -> Json:
    return {
        "key": clean(group.key),
        "engine": clean(group.engine),
        "health": group.health.value,
        "why": clean(group.why),
        "title": clean(group.title),
        "owner": clean(f"{group.owner.kind} {group.owner.name}".rstrip()),
        "gpus": sorted(clean(uuid) for uuid in group.gpus),
        "protected": clean(group.protected) or None,
    }


def _finding(finding: Finding) -> Json:
    return {
        "signal": finding.signal,
        "says": clean(finding.says),
        "cure": finding.cure.word if finding.cure is not None else None,
        "where": clean(finding.where) if finding.where is not None else None,
        "evidence": [clean(line) for line in finding.evidence],
    }
