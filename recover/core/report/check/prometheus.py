"""The Prometheus text format 0.0.4 with names that do not change; a figure that is not known has no sample, never 0.

`METRICS` is the list of all names: a name or label once there keeps its meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from recover.core.clean import clean
from recover.core.report.check.data import gpus, known
from recover.core.report.check.verdict import Checked
from recover.model.gpu import Condition, Gpu
from recover.model.reading import Known
from recover.model.verdict import Finding

_MIB = 1024 * 1024
Labels = tuple[tuple[str, str], ...]
Sample = tuple[str, Labels, float]

METRICS: dict[str, str] = {  # all are gauges
    "gpu_recover_up": "Whether the guest was reached by the last look (1) or not (0).",
    "gpu_recover_state": "0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN: what check would exit with.",
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


def prometheus(found: Sequence[Checked]) -> str:
    """The exposition, one family after the other, with its end of line."""
    samples: dict[str, list[str]] = {}
    for one in found:
        for name, labels, value in _samples(one):
            samples.setdefault(name, []).append(f"{name}{_labels(labels)} {_number(value)}")
    lines = []
    for name, about in METRICS.items():
        if name in samples:
            lines += [f"# HELP {name} {_help(about)}", f"# TYPE {name} gauge", *dict.fromkeys(samples[name])]
    return "\n".join([*lines, ""])


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
    return clean(text, 200).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.6g}" if abs(value) < 1e6 else f"{value:.3f}"
