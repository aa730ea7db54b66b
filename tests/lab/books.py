"""The lab's books: who holds what, written ten times a second where the guest's tools look for it.

Rows come from the workers' own declarations (DIR/world/reg); what happens to them is `ledger`'s arithmetic; figures go
to the fake driver's state, /proc/meminfo and /proc/PID/status.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from . import files, scenario, truth
from .driver.state import State
from .events import Events
from .guestproc import GuestProcess
from .ledger import Ledger, Owner, status


class Books:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.world = folder / "world"
        self.lab = json.loads((folder / "lab.json").read_text())
        self.scenario = scenario.load(self.lab["scenario"])
        self.guest_data = self.scenario["guest"]
        self.driver = State.open(self.world / "nvml/state")
        self.ledger = Ledger(self.guest_data["total_gib"], self.guest_data["base_gib"])
        self.process = GuestProcess(folder, Path(self.lab["cgroup"]) / "guest")
        self.events = Events(self, self.scenario.get("event", []))  # type: ignore[arg-type]
        self.boot = 0
        self.boot_ids: list[str] = []
        self.boot_at = 0.0
        self.vm = "stopped"
        self.notes: list[dict[str, Any]] = []
        self.notes_at = 0
        self.last_release: dict[int, int] = {}
        self.kmsg_seq = 0
        self.changed = time.monotonic()
        self.declared: set[tuple[int, str, int]] = set()  # (boot, group, rank) of every rank that ever came up

    # -- memory -----------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        now = time.monotonic()
        if self.vm == "running" and self.process.init:
            self.take_rows(now)
            self.find_dead(now)
        self.read_notes()
        self.write_gpus(now)
        self.write_meminfo()
        self.write_status(now)
        self.ledger.forget_spent(now)
        self.events.tick(now)

    def take_rows(self, now: float) -> None:
        known = {(owner.pid, owner.start) for owner in self.ledger.owners}
        for path in (self.world / "reg").glob("*.json"):
            with contextlib.suppress(OSError, ValueError):
                row = json.loads(path.read_text())
                if (row["pid"], row["start"]) not in known:
                    self.ledger.owners.append(Owner.from_row(row, now))
                    self.changed = now
                    if row["kind"] == "rank":
                        self.declared.add((self.boot, row["group"], row["rank"]))

    def find_dead(self, now: float) -> None:
        root = self.process.proc
        for owner in self.ledger.alive():
            if not truth.alive(owner.pid, root):
                owner.die(now)
                self.changed = now
                (self.world / "reg" / f"{owner.pid}.json").unlink(missing_ok=True)
                self.ledger.ram_leak_gib += owner.leak_ram_gib
                for gpu in owner.gpus if owner.leak_vram_mib else ():
                    self.driver.set(gpu, leak_mib=self.driver.get(gpu, "leak_mib") + owner.leak_vram_mib)
                self.events.fire("first-death")

    def write_gpus(self, now: float) -> None:
        wanted = self.ledger.rows(now)
        there = {(g, row["pid"]): row["mib"] for g, row in self.driver_rows()}
        for (gpu, pid), mib in wanted.items():
            if there.get((gpu, pid)) is None:
                self.driver.attach(pid, mib, gpu, name=truth.title(pid, self.process.proc))
                owner = next(o for o in self.ledger.owners if o.pid == pid)
                self.driver.set(gpu, util_gpu=owner.util if owner.util is not None else 0)
            elif there[gpu, pid] != mib:
                self.driver.set_row(pid, mib, gpu)
        for gpu, pid in set(there) - set(wanted):
            self.driver.detach(pid, gpu)
            if not self.driver.pids(gpu):
                self.driver.set(gpu, util_gpu=0)
        self.write_releasing(self.ledger.releasing(now))

    def write_releasing(self, wanted: dict[int, int]) -> None:
        for gpu in set(wanted) | set(self.last_release):
            before, after = self.last_release.get(gpu, 0), wanted.get(gpu, 0)
            leak = self.driver.get(gpu, "leak_mib")
            if leak < before:
                # Something cleared the GPU meanwhile: what its dead owners still held there is gone with it.
                for owner in self.ledger.owners:
                    if owner.died is not None:
                        owner.void_gpus.add(gpu)
                before = after = 0
            if before != after:
                self.driver.set(gpu, leak_mib=max(0, leak - before + after))
            self.last_release[gpu] = after

    def driver_rows(self) -> list[tuple[int, dict[str, Any]]]:
        return [(gpu["index"], row) for gpu in self.driver.snapshot()["gpus"] for row in gpu["rows"]]

    def write_meminfo(self) -> None:
        raw = self.ledger.meminfo(time.monotonic()).encode()
        fd = os.open(self.world / "proc/meminfo", os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(fd, raw, 0)
        finally:
            os.close(fd)

    def write_status(self, now: float) -> None:
        """What each owner's /proc/PID/status shows (labproc.cover_status); in place, since it is bound."""
        for owner in self.ledger.owners:
            path = self.world / f"status/{owner.pid}"
            if owner.shown == (shown := (owner.died is not None, owner.share(now) if owner.died is None else 0.0)):
                continue
            with contextlib.suppress(OSError):
                with open(path, "r+", encoding="utf-8", errors="replace") as handle:
                    text = handle.read()
                    if "VmRSS" not in text and owner.died is None:
                        continue  # not written whole yet
                    new = status(text, owner, now)
                    handle.seek(0)
                    handle.write(new)
                    handle.truncate()
                owner.shown = shown

    # -- words: the kernel log, what the guest's processes wrote down ------------------------------------------------

    def uptime(self) -> float:
        return time.monotonic() - self.boot_at

    def kmsg_boot(self, uptime: float) -> None:
        self.kmsg_seq = 0
        (self.world / "dev/kmsg").write_text("")
        for at, text in (
            (0.0, "Linux version 6.8.12-guest (lab)"),
            (1.2, "nvidia: loading out-of-tree module taints kernel."),
            (1.9, f"NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  {files.DRIVER}  Release Build"),
            (2.4, "nvidia-uvm: Loaded the UVM driver, major device number 511."),
        ):
            self.kmsg(text, at_s=at)

    def kmsg(self, text: str, ago_s: float = 0.0, at_s: float | None = None) -> None:
        moment = at_s if at_s is not None else max(0.0, self.uptime() - ago_s)
        with open(self.world / "dev/kmsg", "a", encoding="utf-8") as handle:
            handle.write(f"{4 if 'Xid' in text else 6},{self.kmsg_seq},{int(moment * 1e6)},-;{text}\n")
        self.kmsg_seq += 1

    def read_notes(self) -> None:
        with contextlib.suppress(OSError), open(self.world / "notes.jsonl", encoding="utf-8") as handle:
            handle.seek(self.notes_at)
            for line in handle:
                if not line.endswith("\n"):
                    break
                self.notes_at += len(line.encode())
                note = {**json.loads(line), "boot": self.boot}
                self.notes.append(note)
                if note["event"] in ("signal", "launch"):
                    self.events.fire("first-" + note["event"])
