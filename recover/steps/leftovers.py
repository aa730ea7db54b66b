"""`release-leftovers`: memory that dead servers left under known names goes; whoever else's file it may be, it stays.

Names as the engines, NCCL, CUDA and Python give them (sglang shm_broadcast and mem_cache, vllm v1/offloading,
multiprocessing.shared_memory). What carries its owner's pid goes once that is dead; what doesn't only while no server
lives that could come back to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from recover.model.act import Act, MemoryObject, Pass, Plan, RemoveLeftovers
from recover.model.guest import FuseMount, Guest
from recover.model.hypervisor import GuestKind
from recover.model.ladder import Param, Params, Step
from recover.model.memory import Leftover, LeftoverKind
from recover.model.process import Health
from recover.model.reading import Known
from recover.model.snapshot import Channel, Snapshot
from recover.model.verdict import Finding, Scope
from recover.steps.common import flag, line, number

_WITH_PID = re.compile(r"^(sgl_shm_[a-z]+_\d+_|multi_tokenizer_args_\d+|torch_\d+_)")
_WITHOUT = re.compile(
    r"^(psm_[0-9a-f]{4,}$|sem\.mp-|sem\.loky-|nccl-[A-Za-z0-9]{6}$|cuda\.shm\.|vllm_offload_.+\.mmap(\.\d+)?$|"
    r"VLLM_OBJECT_STORAGE_SHM_BUFFER_|vllm_engram_|sglang_host_pool_[0-9a-f]+\.mmap$|sglang_loads_.+\.shm$)"
)
_AT_MOST = 2000  # objects in one act
_ALIVE = frozenset({Health.HEALTHY, Health.STARTING, Health.LIVE})


def known_name(item: Leftover) -> bool:
    """Whether a serving engine or what it is built on gives such names. SysV segments have none."""
    return item.kind is not LeftoverKind.SYSV and bool(_WITH_PID.match(item.name) or _WITHOUT.match(item.name))


def abandoned(item: Leftover) -> bool:
    """Of a dead owner by all that was seen: nobody maps or opens it, and who is named by it doesn't live."""
    if item.mapped is not False or item.owner_alive is True:
        return False
    return item.owner_alive is False if _WITH_PID.match(item.name) else True


def fuse_words(mounts: Iterable[FuseMount]) -> tuple[str, ...]:
    """Mounts whose server doesn't answer, each with the command that a person may use; none is touched."""
    return tuple(
        f"{m.path} (FUSE) leaves {m.waiting} requests unanswered; if it is to go: "
        f"echo 1 > /sys/fs/fuse/connections/{m.connection}/abort"
        for m in mounts
    )


def _plan(snapshot: Snapshot, findings: tuple[Finding, ...], params: Params) -> Plan:
    guest = snapshot.guest
    if not isinstance(guest, Guest) or not isinstance(guest.leftovers, Known):
        return Pass("what is left in shared memory is not known")
    if not guest.root:
        return Pass("who has a file open is seen by root only")
    if not any(f.signal == "leftover-memory" for f in findings) and not flag(params, "drain"):
        return Pass("no memory of dead owners was found")
    serving = any(g.health in _ALIVE and not g.protected for g in snapshot.groups)
    found = [i for i in guest.leftovers.value if _chosen(i, serving, flag(params, "sysv"))][:_AT_MOST]
    if not found:
        why = "a server lives that may still use it" if serving else "its owner may live, or its name is not known"
        return Pass(f"nothing that may be removed: {why}")
    size = sum(i.size_mib for i in found)
    names = ", ".join(i.name for i in sorted(found, key=lambda i: -i.size_mib)[:3])
    words = [
        f"{len(found)} memory objects of dead owners are removed, {size} MiB: {names}",
        *fuse_words(guest.stuck_fuse),
    ]
    return line([Act(RemoveLeftovers(tuple(_object(i) for i in found), number(params, "deadline")))], words)


def _chosen(item: Leftover, serving: bool, sysv: bool) -> bool:
    if not abandoned(item):
        return False
    if item.kind is LeftoverKind.SYSV:
        return sysv and item.owner_alive is False
    return known_name(item) and (not serving or _WITH_PID.match(item.name) is not None)


def _object(item: Leftover) -> MemoryObject:
    return MemoryObject(str(item.kind), item.name, item.folder, item.inode, item.size_mib, item.owner_pid, item.mtime_s)


STEPS = (
    Step(
        name="release-leftovers",
        scope=Scope.PROCESS,
        reach=Scope.PROCESS,
        via=frozenset({Channel.GUEST}),
        kinds=frozenset({GuestKind.VM, GuestKind.CONTAINER}),
        plan=_plan,
        params=(
            Param("deadline", 60.0, "how long looking at them again and removing them may take", "s", 5, 600),
            Param("sysv", False, "also SysV segments that nobody is attached to and whose creator is dead"),
            Param("drain", False, "also what is too small to be a finding"),
        ),
        doc="Removes shared memory and hugepage files of dead servers: known names only, only what nobody has open.",
    ),
)
