"""The state file of the fake driver is changed in place, here and by the two C libraries, never replaced while mapped.

Standard library only: it also runs inside the guest.  Path: argument, else $FAKENVML_STATE, else /run/fakenvml/state.

    state = State.create(path, [gpu(0), gpu(1), ...], driver_version="570.148.08")   # new file; gpu(): dict of fields
    state = State.open(path)            # an existing one; ValueError if layout, size or magic differ
    state.attach(pid, mib, gpu=0, kind="compute", name="")      state.detach(pid, gpu=None)   # None: on every GPU
    state.set_row(pid, mib, gpu)        # change the MiB of a row (slow release)
    state.pids(gpu=None) -> frozenset of pids
    state.used_mib(gpu)                 # idle_mib + leak_mib + sum of rows (what NVML v2 reports)
    state.set(gpu, leak_mib=80000, recovery_action=1, util_gpu=37, persistence=1, link_width=8, ...)   # any GPU field
    state.set_used(gpu, mib)            # sets the leak so that used becomes mib
    state.set_driver(driver_version=..., nvml_version=..., driver_loaded=0|1, init_error=18, init_hang=0|1, ...)
    state.set_error(gpu, "nvmlDeviceGetUtilizationRates", 999, times=0)   # gpu None: calls without a GPU; also "*",
    state.clear_error(gpu, call)        # "handle", "field:230"; code 0: answers in spite of all other troubles
    state.set_hang(gpu, deep=False)     # getters block; deep: handle lookups too.  state.release(gpu) ends it
    state.hang_init(True)               # nvmlInit, cuInit and nvidia-smi block
    state.set_lost(gpu)                 # handle and getters -> 15
    state.set_reset_required(gpu)       # getters -> 16, field 230 answers 1
    state.set_ghost(gpu, sticky=False)  # 100 % utilisation, nothing on it; a CUDA context clears it unless sticky
    state.event(gpu, 0x8, 79)           # one NVML event (Xid 79)
    state.cure(remedy, gpu=None)        # what a remedy clears, by the masks *_cleared_by: see REMEDIES
    state.reset(gpu, "gpu-reset")       # = cure on one GPU, counted in `resets`; rows and volatile counters always go
    state.guest_reboot()  state.vm_reset()  state.vm_restart(keep_leak=False)  state.driver_reload()   # whole guest
    state.snapshot() -> dict            # {"driver_version": ..., "gpus": [{"index": 0, "used_mib": ..., "rows": []}]}
    state.close()

`gpu` is the slot = NVML index while every slot before it is present; a slot with present=0 vanishes from the count.
Resets by the fake nvidia-smi follow reset_mode (RESET_MODES), take reset_ms, and show resetting_pid meanwhile.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

from .layout import (
    ANY_REMEDY,
    DRIVER_NAMES,
    ERRORS,
    EVENTS,
    GPU_FIELDS,
    GPU_NAMES,
    GPUS,
    KINDS,
    LAYOUT_VERSION,
    MAGIC,
    NO_INSTANCE,
    REMEDIES,
    RESET_MODES,
    ROWS,
    Layout,
    gpu,
    held_mib,
    mask,
)

__all__ = ["ANY_REMEDY", "DEFAULT_PATH", "KINDS", "REMEDIES", "RESET_MODES", "State", "gpu", "mask"]

DEFAULT_PATH = "/run/fakenvml/state"
MISMATCH = 18  # NVML_ERROR_LIB_RM_VERSION_MISMATCH


class State:
    """One mapped state file; every change is made under an exclusive flock and raises `generation`."""

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd
        self._map = mmap.mmap(fd, ctypes.sizeof(Layout))
        self.raw: Any = Layout.from_buffer(self._map)

    @classmethod
    def create(cls, path: str | os.PathLike[str], gpus: list[dict[str, Any]], **driver: Any) -> State:
        """A new state file, put in place in one rename so that no reader ever sees half of it."""
        if len(gpus) > GPUS:
            raise ValueError(f"at most {GPUS} GPUs")
        fresh = Layout(magic=MAGIC, layout=LAYOUT_VERSION, size=ctypes.sizeof(Layout), driver_loaded=1)
        version = driver.get("driver_version", "570.148.08")
        first = {"driver_version": version, "nvml_version": f"12.{version}", "cuda_version": 12080, **driver}
        _assign(fresh, first, DRIVER_NAMES)
        for slot, fields in zip(fresh.gpus, gpus, strict=False):
            _assign(slot, fields, GPU_NAMES)
        target = os.fspath(path)
        draft = f"{target}.{os.getpid()}.new"
        with open(draft, "wb") as out:
            out.write(bytes(fresh))
        os.chmod(draft, 0o666)
        os.replace(draft, target)
        return cls.open(target)

    @classmethod
    def open(cls, path: str | os.PathLike[str] | None = None) -> State:
        where = os.fspath(path or os.environ.get("FAKENVML_STATE") or DEFAULT_PATH)
        fd = os.open(where, os.O_RDWR | os.O_CLOEXEC)
        size = os.fstat(fd).st_size
        # The BAR of a device can only be mapped, not read, and is a power of two: there may be more room than needed.
        head = b""
        if size >= ctypes.sizeof(Layout):
            with mmap.mmap(fd, ctypes.sizeof(Layout), prot=mmap.PROT_READ) as seen:
                head = seen[:16]
        expected = MAGIC + LAYOUT_VERSION.to_bytes(4, "little") + ctypes.sizeof(Layout).to_bytes(4, "little")
        if head != expected:
            os.close(fd)
            raise ValueError(f"{where}: not a state file of layout {LAYOUT_VERSION} ({size} bytes, head {head!r})")
        return cls(where, fd)

    def close(self) -> None:
        if self._fd >= 0:
            self.raw = None
            # A caller may still hold a view of a field; the mapping then ends with that view.
            with suppress(BufferError):
                self._map.close()
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @contextmanager
    def locked(self) -> Iterator[Any]:
        # An own description per change: flock belongs to the open file, and one shared by threads would exclude nobody.
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield self.raw
            self.raw.generation += 1
        finally:
            os.close(fd)

    def set(self, gpu: int, **fields: Any) -> None:
        with self.locked() as raw:
            _assign(raw.gpus[gpu], fields, GPU_NAMES)

    def get(self, gpu: int, field: str) -> Any:
        value = getattr(self.raw.gpus[gpu], field)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

    def set_driver(self, **fields: Any) -> None:
        with self.locked() as raw:
            _assign(raw, fields, DRIVER_NAMES)

    # -- memory and processes -------------------------------------------------------------------------------------

    def attach(self, pid: int, mib: int, gpu: int, kind: str = "compute", name: str = "") -> None:
        """Add or replace the row of a process on one GPU."""
        with self.locked() as raw:
            rows = raw.gpus[gpu].rows
            row = next((r for r in rows if r.pid == pid and r.kind == KINDS[kind]), None) or next(
                (r for r in rows if not r.pid), None
            )
            if row is None:
                raise ValueError(f"GPU {gpu}: all {ROWS} process rows are taken")
            row.mib, row.kind, row.name = mib, KINDS[kind], name.encode()[:103]
            row.gi = row.ci = NO_INSTANCE
            row.pid = pid

    def detach(self, pid: int, gpu: int | None = None) -> None:
        with self.locked() as raw:
            for slot in _chosen(raw, gpu):
                for row in slot.rows:
                    if row.pid == pid:
                        ctypes.memset(ctypes.byref(row), 0, ctypes.sizeof(row))

    def set_row(self, pid: int, mib: int, gpu: int) -> None:
        with self.locked() as raw:
            for row in raw.gpus[gpu].rows:
                if row.pid == pid:
                    row.mib = mib

    def pids(self, gpu: int | None = None) -> frozenset[int]:
        return frozenset(row.pid for slot in _chosen(self.raw, gpu) for row in slot.rows if row.pid)

    def used_mib(self, gpu: int) -> int:
        return held_mib(self.raw.gpus[gpu])

    def set_used(self, gpu: int, mib: int) -> None:
        with self.locked() as raw:
            slot = raw.gpus[gpu]
            slot.leak_mib = max(0, mib - (held_mib(slot) - slot.leak_mib))

    # -- troubles -------------------------------------------------------------------------------------------------

    def set_error(self, gpu: int | None, call: str, code: int, times: int = 0) -> None:
        with self.locked() as raw:
            table = raw.errors if gpu is None else raw.gpus[gpu].errors
            key = call.encode()
            entry = next((e for e in table if e.call == key), None) or next((e for e in table if not e.call), None)
            if entry is None:
                raise ValueError(f"all {ERRORS} error entries are taken")
            entry.code, entry.left, entry.call = code, times, key

    def clear_error(self, gpu: int | None, call: str | None = None) -> None:
        with self.locked() as raw:
            for entry in raw.errors if gpu is None else raw.gpus[gpu].errors:
                if call is None or entry.call == call.encode():
                    ctypes.memset(ctypes.byref(entry), 0, ctypes.sizeof(entry))

    def set_hang(self, gpu: int, deep: bool = False) -> None:
        self.set(gpu, hang=2 if deep else 1)

    def release(self, gpu: int) -> None:
        self.set(gpu, hang=0)

    def hang_init(self, on: bool) -> None:
        self.set_driver(init_hang=int(on))

    def set_lost(self, gpu: int) -> None:
        self.set(gpu, lost=1)

    def set_reset_required(self, gpu: int, on: bool = True) -> None:
        self.set(gpu, reset_required=int(on), recovery_action=int(on))

    def set_ghost(self, gpu: int, sticky: bool = False) -> None:
        self.set(gpu, ghost=2 if sticky else 1)

    def event(self, gpu: int, kind: int, data: int) -> None:
        with self.locked() as raw:
            seq = raw.event_seq + 1
            entry = raw.events[seq % EVENTS]
            entry.type, entry.data, entry.gpu, entry.seq = kind, data, gpu, seq
            raw.event_seq = seq

    # -- remedies -------------------------------------------------------------------------------------------------

    def cure(self, remedy: str, gpu: int | None = None, keep_leak: bool = False) -> None:
        with self.locked() as raw:
            for slot in _chosen(raw, gpu):
                if slot.present:
                    _cure(slot, REMEDIES[remedy], keep_leak)

    def reset(self, gpu: int, how: str = "gpu-reset") -> None:
        with self.locked() as raw:
            slot = raw.gpus[gpu]
            _cure(slot, REMEDIES[how], False)
            slot.resets += 1
            slot.resetting_pid = 0

    def driver_reload(self) -> None:
        self.cure("driver-reload")
        with self.locked() as raw:
            _loaded(raw)

    def guest_reboot(self) -> None:
        self._boot("guest-reboot", False)

    def vm_reset(self) -> None:
        self._boot("vm-reset", False)

    def vm_restart(self, keep_leak: bool = False) -> None:
        """A stop and a start; keep_leak: the device did not let go of its memory, whatever the mask says."""
        self._boot("vm-restart", keep_leak)

    def _boot(self, remedy: str, keep_leak: bool) -> None:
        self.cure(remedy, keep_leak=keep_leak)
        with self.locked() as raw:
            _loaded(raw)
            raw.init_hang = 0
            for slot in raw.gpus:
                slot.persistence = slot.resetting_pid = 0
                if remedy == "vm-restart" and slot.wedges_on_restart:
                    slot.lost = 1

    def snapshot(self) -> dict[str, Any]:
        raw = self.raw
        head = {name: _plain(getattr(raw, name)) for name in sorted(DRIVER_NAMES)}
        gpus = [_gpu_dict(number, slot) for number, slot in enumerate(raw.gpus) if slot.uuid]
        return {**head, "generation": raw.generation, "gpus": gpus}


def _assign(struct: Any, fields: dict[str, Any], known: Any) -> None:
    for name, value in fields.items():
        if name not in known:
            raise ValueError(f"no such field: {name}")
        setattr(struct, name, value.encode() if isinstance(value, str) else value)


def _chosen(raw: Any, gpu: int | None) -> list[Any]:
    return list(raw.gpus) if gpu is None else [raw.gpus[gpu]]


def _loaded(raw: Any) -> None:
    """A fresh module is there and has the version of the library; other failures of init stay what they are."""
    raw.driver_loaded = 1
    raw.init_error = 0 if raw.init_error == MISMATCH else raw.init_error


def _cure(slot: Any, bit: int, keep_leak: bool) -> None:
    """Every remedy ends the contexts on the GPU (the driver and the device forget them); the rest goes by the masks."""
    if slot.leak_cleared_by & bit and not keep_leak:
        slot.leak_mib = 0
    if slot.lost_cleared_by & bit:
        slot.lost = 0
    if slot.hang_cleared_by & bit:
        slot.hang = 0
    if slot.needs_reset_cleared_by & bit:
        slot.reset_required = slot.recovery_action = slot.remap_pending = slot.retired_pending = 0
        slot.mig_current = slot.mig_pending
    if slot.link_cleared_by & bit:
        slot.link_width, slot.link_gen = slot.link_width_max, slot.link_gen_max
    if slot.ghost_cleared_by & bit:
        slot.ghost = 0
    slot.ecc_vol_corr = slot.ecc_vol_unc = slot.util_gpu = slot.util_mem = 0
    for row in slot.rows:
        ctypes.memset(ctypes.byref(row), 0, ctypes.sizeof(row))


def _plain(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _gpu_dict(number: int, slot: Any) -> dict[str, Any]:
    fields = {name: _plain(getattr(slot, name)) for name, _ in GPU_FIELDS}
    kinds = {code: name for name, code in KINDS.items()}
    rows = [
        {"pid": r.pid, "mib": r.mib, "kind": kinds.get(r.kind, str(r.kind)), "name": _plain(r.name)}
        for r in slot.rows
        if r.pid
    ]
    errors = [{"call": _plain(e.call), "code": e.code, "left": e.left} for e in slot.errors if e.call]
    return {"index": number, **fields, "used_mib": held_mib(slot), "rows": rows, "errors": errors}
