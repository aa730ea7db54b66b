"""`release-leftovers`: memory that dead servers left under known names goes; whoever else's file it may be, it stays.

Names as the engines, NCCL, CUDA and Python give them (sglang shm_broadcast and mem_cache, vllm v1/offloading,
multiprocessing.shared_memory). What carries its owner's pid goes once that is dead; what doesn't only while no server
lives that could come back to it. Their sockets hold no memory, so they are no finding: they go along, and one whose
name any program may give only if it is of the user whose dead server left memory.
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
# Of sglang (load snapshots, tracing, weight_cache), LMCache (v1/rpc_utils.py) and TensorRT-LLM (executor/rpc).
_SOCKET_WITH_PID = re.compile(r"^sglang_trace_\d+\.sock$")
_SOCKET = re.compile(
    r"^(sglang_(load_collector|weight_cache)_.+\.sock$|lmcache_rpc_|engine_.+_lmcache_rpc_port_|rpc_test_[0-9a-f-]{36}$)"
)
# vllm's `get_open_zmq_ipc_path` is a bare UUID, sglang's `PortArgs` takes tempfile's names: others do that as well.
_SOCKET_OF_ANYBODY = re.compile(r"^([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|tmp[a-z0-9_]{8})$")
_AT_MOST = 2000  # objects in one act
_ALIVE = frozenset({Health.HEALTHY, Health.STARTING, Health.LIVE})


def known_name(item: Leftover) -> bool:
    """Whether a serving engine or what it is built on gives such names to memory. SysV segments have none."""
    holds = item.kind not in (LeftoverKind.SYSV, LeftoverKind.SOCKET)
    return holds and bool(_WITH_PID.match(item.name) or _WITHOUT.match(item.name))


def abandoned(item: Leftover) -> bool:
    """Of a dead owner by all that was seen: nobody maps or opens it, and who is named by it doesn't live."""
    if item.mapped is not False or item.owner_alive is True:
        return False
    names_owner = _SOCKET_WITH_PID if item.kind is LeftoverKind.SOCKET else _WITH_PID
    return item.owner_alive is False if names_owner.match(item.name) else True


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
    memory = [i for i in guest.leftovers.value if _chosen(i, serving, flag(params, "sysv"))][:_AT_MOST]
    users = frozenset(i.uid for i in memory if i.uid is not None)
    sockets = [i for i in guest.leftovers.value if _chosen_socket(i, serving, users)][:_AT_MOST]
    if not memory and not sockets:
        why = "a server lives that may still use it" if serving else "its owner may live, or its name is not known"
        return Pass(f"nothing that may be removed: {why}")
    words = [*_words(memory, sockets), *fuse_words(guest.stuck_fuse)]
    objects = tuple(_object(i) for i in (*memory, *sockets))
    return line([Act(RemoveLeftovers(objects, number(params, "deadline")))], words)


def _words(memory: list[Leftover], sockets: list[Leftover]) -> list[str]:
    words = []
    if memory:
        names = ", ".join(i.name for i in sorted(memory, key=lambda i: -i.size_mib)[:3])
        size = sum(i.size_mib for i in memory)
        words.append(f"{len(memory)} memory objects of dead owners are removed, {size} MiB: {names}")
    if sockets:
        names = ", ".join(f"{i.folder}/{i.name}" for i in sockets[:3])
        words.append(f"{len(sockets)} sockets that nobody listens on are removed: {names}")
    return words


def _chosen(item: Leftover, serving: bool, sysv: bool) -> bool:
    if item.kind is LeftoverKind.SOCKET or not abandoned(item):
        return False
    if item.kind is LeftoverKind.SYSV:
        return sysv and item.owner_alive is False
    return known_name(item) and (not serving or _WITH_PID.match(item.name) is not None)


def _chosen_socket(item: Leftover, serving: bool, users: frozenset[int]) -> bool:
    """`users`: whose dead servers left memory that goes in the same act."""
    if item.kind is not LeftoverKind.SOCKET or not abandoned(item):
        return False
    if _SOCKET_WITH_PID.match(item.name):
        return True
    known = bool(_SOCKET.match(item.name)) or (bool(_SOCKET_OF_ANYBODY.match(item.name)) and item.uid in users)
    return known and not serving


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
        doc="Removes shared memory, hugepage files and sockets of dead servers: known names, only what nobody has.",
    ),
)
