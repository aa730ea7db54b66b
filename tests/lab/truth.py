"""What is true in the lab now, read from its own books and the kernel, never from the tool under test."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent / "guest" / "engine"))
from labproc import alive, stat_fields

from .guestproc import cgroup_pids

if TYPE_CHECKING:
    from .keeper import Keeper

__all__ = ["alive", "host_pids", "state", "title"]


def title(pid: int, root: str) -> str:
    try:
        raw = Path(f"{root}/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return raw.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")


def host_pids(cgroup: Path) -> dict[int, int]:
    """Guest pid -> the machine's pid, for all that runs in the guest."""
    out: dict[int, int] = {}
    for pid in cgroup_pids(cgroup):
        with contextlib.suppress(OSError, StopIteration):
            line = next(
                x
                for x in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
                if x.startswith("NSpid:")
            )
            out[int(line.split()[-1])] = pid
    return out


def processes(keeper: Keeper) -> list[dict[str, Any]]:
    root = keeper.process.proc
    owners = {owner.pid: owner for owner in keeper.ledger.alive()}
    prefix = "/" + "/".join(keeper.process.cgroup.parts[-2:])
    rows = []
    with contextlib.suppress(OSError):
        for name in sorted((n for n in os.listdir(root) if n.isdigit()), key=int):
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = stat_fields(name, root)
                owner = owners.get(int(name))
                group = (
                    Path(f"{root}/{name}/cgroup").read_text().splitlines()[-1].partition("::")[2].removeprefix(prefix)
                )
                rows.append(
                    {
                        "pid": int(name),
                        "ppid": int(fields[1]),
                        "state": fields[0],
                        "threads": int(fields[17]),
                        "title": title(int(name), root),
                        "comm": Path(f"{root}/{name}/comm").read_text(errors="replace").strip(),
                        "cgroup": group,
                        "alive": alive(name, root),
                        "kind": owner.kind if owner else None,
                        "group": owner.group if owner else None,
                        "rank": owner.rank if owner else None,
                    }
                )
    return rows


def bystanders(keeper: Keeper, table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    heard: dict[int, list[str]] = {}
    for note in keeper.notes:
        if note["event"] == "bystander-signal":
            heard.setdefault(note["pid"], []).append(note["signal"])
    return [{**row, "signals": heard.get(row["pid"], [])} for row in table]


def gpus(keeper: Keeper) -> list[dict[str, Any]]:
    kept = (
        "index",
        "uuid",
        "bus_id",
        "used_mib",
        "leak_mib",
        "rows",
        "persistence",
        "util_gpu",
        "recovery_action",
        "lost",
        "hang",
        "resets",
        "resetting_pid",
    )
    return [{key: gpu[key] for key in kept} for gpu in keeper.driver.snapshot()["gpus"] if gpu["present"]]


def api(keeper: Keeper) -> dict[str, Any]:
    try:
        whole = keeper.pve.call("state")
        requests = keeper.pve.call("requests")
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "requests": []}
    return {"vms": whole["vms"], "tasks": whole["tasks"], "requests": requests}


def shared_memory(keeper: Keeper) -> list[str]:
    """Names of the files in the guest's /dev/shm."""
    with contextlib.suppress(OSError):
        return sorted(os.listdir(f"/proc/{keeper.process.init}/root/dev/shm"))
    return []


def driver_modules(keeper: Keeper) -> dict[str, list[str]]:
    """The modules that are loaded, and what rmmod and modprobe did since the first boot."""
    world, told = keeper.process.world, []
    with contextlib.suppress(OSError):
        told = (world / "modules.log").read_text().splitlines()
    rows = (world / "proc/modules").read_text().splitlines()
    return {"loaded": [row.split()[0] for row in rows if row.startswith("nvidia")], "done": told}


def state(keeper: Keeper) -> dict[str, Any]:
    # Outside the lock: a start or stop that is going on asks the keeper back, and would wait for us.
    pve = api(keeper)
    inside: dict[str, Any] = {}
    running = keeper.vm == "running" and keeper.process.init != 0
    if running:
        with contextlib.suppress(OSError, ValueError):
            inside = keeper.process.ask("state")
    with keeper.lock:
        keeper.read_notes()  # what was written before the question is in the answer, whenever the next round is
        now = time.monotonic()
        ram = keeper.ledger.ram(now)
        launches = [
            {k: n[k] for k in ("group", "number", "mode", "boot")} for n in keeper.notes if n["event"] == "launch"
        ]
        signals = [{k: n[k] for k in ("pid", "signal", "boot")} for n in keeper.notes if n["event"] == "signal"]
        return {
            "scenario": keeper.lab["scenario"],
            "active": keeper.active,
            "vm": {"status": keeper.vm, "boots": keeper.boot, **keeper.counts},
            "boot_id": keeper.boot_ids[-1] if keeper.boot_ids else None,
            "boot_ids": keeper.boot_ids,
            "processes": processes(keeper) if running else [],
            "gpus": gpus(keeper),
            "ram": {
                "total_gib": keeper.ledger.total_gib,
                "available_gib": round(keeper.ledger.available_gib(now), 2),
                "leak_gib": keeper.ledger.ram_leak_gib,
                **{k + "_gib": round(v, 2) for k, v in ram.items()},
            },
            "shm": shared_memory(keeper) if running else [],
            "modules": driver_modules(keeper),
            "units": inside.get("units", {}),
            "bystanders": bystanders(keeper, inside.get("bystanders", [])),
            "launches": launches,
            "signals": signals,
            "requests": [n["model"] for n in keeper.notes if n["event"] == "request"],
            "health_asked": sum(n["event"] == "health-asked" for n in keeper.notes),
            "events": keeper.events.log,
            "trouble": [n for n in keeper.notes if n["event"] == "fork-failed"],
            "pve": pve,
        }


def as_text(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=1)
