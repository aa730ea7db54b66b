"""`wake-gpu`: a GPU that says 100 % busy with nothing on it gets a CUDA context for a moment, and nothing else does."""

from __future__ import annotations

from recover.model.act import Act, Pass, Plan, WakeGpu
from recover.model.gpu import Condition, Gpu
from recover.model.guest import Guest
from recover.model.hypervisor import GuestKind
from recover.model.ladder import Param, Params, Step
from recover.model.reading import Known
from recover.model.snapshot import Channel, Snapshot
from recover.model.verdict import Finding, Scope
from recover.steps.common import line, number

SIGNAL = "ghost-utilisation"


def _plan(snapshot: Snapshot, findings: tuple[Finding, ...], params: Params) -> Plan:
    guest = snapshot.guest
    if not isinstance(guest, Guest) or not isinstance(guest.gpus, Known):
        return Pass("the driver doesn't list the GPUs")
    named = {f.where for f in findings if f.signal == SIGNAL}
    chosen = [g for g in guest.gpus.value if isinstance(g.uuid, Known) and g.uuid.value in named]
    if not chosen:
        return Pass("no GPU says that it is busy with nothing on it")
    held = {uuid for group in snapshot.groups for uuid in group.gpus if not group.protected}
    free = [g for g in chosen if _free(g, held)]
    if not free:
        return Pass("somebody is on it by now, or it is split by MIG")
    deadline = number(params, "deadline")
    acts = [Act(WakeGpu(g.uuid.value, g.bus_id, deadline), must=False) for g in free if isinstance(g.uuid, Known)]
    return line(acts, [f"a CUDA context is opened and closed on GPU {g.index} ({g.bus_id})" for g in free])


def _free(gpu: Gpu, held: set[str]) -> bool:
    name = gpu.uuid.value if isinstance(gpu.uuid, Known) else gpu.bus_id
    quiet = gpu.condition is Condition.ANSWERS and gpu.processes == Known(())
    return quiet and gpu.mig != Known(True) and not held & {name, gpu.bus_id}


STEPS = (
    Step(
        name="wake-gpu",
        scope=Scope.GPU,
        reach=Scope.GPU,
        via=frozenset({Channel.GUEST}),
        kinds=frozenset({GuestKind.VM}),
        plan=_plan,
        params=(Param("deadline", 60.0, "how long CUDA may take on one GPU", unit="s", least=5, most=600),),
        doc="Opens and closes a CUDA context on a GPU that says 100 % busy while nothing is on it.",
    ),
)
