"""The Prometheus text format 0.0.4 with names that do not change; a figure that is not known has no sample, never 0.

`METRICS` and `EXPORTER_METRICS` are the lists of all names: a name or label once there keeps its meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from recover.core.clean import clean
from recover.core.report.check.data import gpus, known
from recover.core.report.check.verdict import Checked
from recover.model.gpu import Condition, Gpu
from recover.model.reading import Known
from recover.model.verdict import Finding
from recover.model.watch import Standing

_MIB = 1024 * 1024
Labels = tuple[tuple[str, str], ...]
Sample = tuple[str, Labels, float]

METRICS: dict[str, str] = {  # all are gauges
    "gpu_recover_up": "Whether the guest was reached by the last look (1) or not (0).",
    "gpu_recover_state": "0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN: what check would exit with.",
    "gpu_recover_hard_state": "The state that lasts, as gpu_recover_state: what messages and hooks go by.",
    "gpu_recover_hard_state_since_timestamp_seconds": "Since when the state lasts, seconds since the epoch.",
    "gpu_recover_flapping": "Whether the target turns between CRITICAL and not again and again (1) or not (0).",
    "gpu_recover_look_seconds": "How long the looks of this check took.",
    "gpu_recover_look_timestamp_seconds": "When the last look was made, seconds since the epoch.",
    "gpu_recover_finding": "1 for each thing found wrong; cure is the smallest scope that cures it, or none.",
    "gpu_recover_ripening": "1 for each thing that will be found wrong unless it moves.",
    "gpu_recover_gaps": "How many things could not be seen.",
    "gpu_recover_baseline": "1 for the state of the baseline: saved, stale or none.",
    "gpu_recover_group": "1 for each group of processes on GPUs, with the verdict about it.",
    "gpu_recover_ram_total_bytes": "RAM of the guest.",
    "gpu_recover_ram_available_bytes": "MemAvailable of the guest.",
    "gpu_recover_ram_unowned_bytes": "RAM that no process, file, slab or kernel pool accounts for.",
    "gpu_recover_ram_expected_bytes": "RAM that the idle guest should have available.",
    "gpu_recover_gpu_up": "Whether the GPU answers (1) or not (0); one that was not asked has no sample.",
    "gpu_recover_gpu_memory_used_bytes": "Memory in use on the GPU, without what the driver reserves.",
    "gpu_recover_gpu_memory_total_bytes": "Memory of the GPU.",
    "gpu_recover_gpu_utilisation_ratio": "Utilisation of the GPU, 0 to 1.",
}

EXPORTER_METRICS: dict[str, tuple[str, str]] = {  # of the exporter itself: kind, help
    "gpu_recover_exporter_targets": ("gauge", "How many targets are looked at."),
    "gpu_recover_exporter_period_seconds": ("gauge", "How often each target is to be looked at."),
    "gpu_recover_exporter_last_period_seconds": (
        "gauge",
        "The longest time between the two newest looks at any one target.",
    ),
    "gpu_recover_exporter_looks_in_flight": ("gauge", "Looks that go on now, those that hang too."),
    "gpu_recover_exporter_looks_hanging": ("gauge", "Looks that are past their deadline and have not come back."),
    "gpu_recover_exporter_looks_total": ("counter", "Looks that were begun."),
    "gpu_recover_exporter_periods_missed_total": (
        "counter",
        "Looks that were due and not begun, as the look before was still going on or too many others were.",
    ),
    "gpu_recover_exporter_configuration_ok": (
        "gauge",
        "1, or 0 where a changed configuration could not be used and the one before goes on.",
    ),
    "gpu_recover_breaker_open": ("gauge", "1 where nothing is recovered unattended until a person closes the breaker."),
}


def prometheus(found: Sequence[Checked], standings: Mapping[str, Standing] | None = None) -> str:
    """The exposition, one family after the other, with its end of line. `standings`: of targets that are watched."""
    lasting = (sample for standing in (standings or {}).values() for sample in lasts(standing))
    by_name = families((*(sample for one in found for sample in samples(one)), *lasting))
    lines = []
    for name, told in by_name.items():
        lines += [f"# HELP {name} {_help(METRICS[name])}", f"# TYPE {name} gauge"]
        lines += [f"{name}{_labels(labels)} {_number(value)}" for labels, value in told]
    return "\n".join([*lines, ""])


def families(found: Iterable[Sample]) -> dict[str, list[tuple[Labels, float]]]:
    """By name, in the order of METRICS; each series once, for a scrape with one twice is refused whole."""
    by_name: dict[str, dict[Labels, float]] = {}
    for name, labels, value in found:
        by_name.setdefault(name, {}).setdefault(labels, value)
    return {name: list(by_name[name].items()) for name in METRICS if name in by_name}


def samples(one: Checked) -> Iterator[Sample]:
    """What there is to say of one target. Labels are cleaned; escaping them is the exposition's."""
    for name, labels, value in _samples(one):
        yield name, tuple((key, clean(text, 200)) for key, text in labels), value


def lasts(standing: Standing) -> Iterator[Sample]:
    """What many looks say of one target; nothing of a state before there is one."""
    target: Labels = (("target", clean(standing.target, 200)),)
    if standing.state is not None:
        yield "gpu_recover_hard_state", target, float(standing.state.status)
        yield "gpu_recover_hard_state_since_timestamp_seconds", target, standing.since
    yield "gpu_recover_flapping", target, float(standing.flapping)


def _samples(one: Checked) -> Iterator[Sample]:
    target: Labels = (("target", one.target),)
    yield "gpu_recover_up", target, float(one.reached)
    yield "gpu_recover_state", target, float(one.status)
    yield "gpu_recover_look_seconds", target, one.seconds
    if one.snapshot is not None:
        yield "gpu_recover_look_timestamp_seconds", target, one.snapshot.wall
    yield from _findings("gpu_recover_finding", target, one.findings)
    yield from _findings("gpu_recover_ripening", target, one.ripening)
    if one.diagnosis is not None:
        yield "gpu_recover_gaps", target, float(len(one.gaps))
        yield "gpu_recover_baseline", (*target, ("state", one.baseline)), 1.0
    for group in one.groups:
        labels = (("group", group.key), ("engine", group.engine), ("health", group.health.value))
        yield "gpu_recover_group", target + labels, 1.0
    yield from _ram(one, target)
    for gpu in gpus(one):
        yield from _gpu(gpu, target)


def _findings(name: str, target: Labels, found: Iterable[Finding]) -> Iterator[Sample]:
    for finding in found:
        cure = finding.cure.word if finding.cure is not None else "none"
        yield name, (*target, ("signal", finding.signal), ("cure", cure), ("where", finding.where or "")), 1.0


def _ram(one: Checked, target: Labels) -> Iterator[Sample]:
    if one.vitals is None:
        return
    for name, mib in (
        ("total", one.vitals.ram_total_mib),
        ("available", one.vitals.ram_available_mib),
        ("unowned", one.vitals.unowned_mib),
        ("expected", one.vitals.ram_baseline_mib),
    ):
        if mib is not None:
            yield f"gpu_recover_ram_{name}_bytes", target, float(mib * _MIB)


def _gpu(gpu: Gpu, target: Labels) -> Iterator[Sample]:
    uuid = gpu.uuid.value if isinstance(gpu.uuid, Known) else ""
    labels = (*target, ("gpu", str(gpu.index)), ("uuid", uuid), ("bus_id", gpu.bus_id))
    if gpu.condition is not Condition.NOT_ASKED:
        yield "gpu_recover_gpu_up", labels, float(gpu.condition is Condition.ANSWERS)
    for name, value, unit in (
        ("memory_used_bytes", known(gpu.used_mib), _MIB),
        ("memory_total_bytes", known(gpu.total_mib), _MIB),
        ("utilisation_ratio", known(gpu.utilisation_pct), 0.01),
    ):
        if value is not None:
            yield f"gpu_recover_gpu_{name}", labels, value * unit


def _labels(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{_value(text)}"' for name, text in labels) + "}"


def _value(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.6g}" if abs(value) < 1e6 else f"{value:.3f}"
