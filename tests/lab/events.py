"""What happens in a scenario by itself: after a trigger and a delay, one act on the guest, the driver or the API.

Triggers: activate, boot-N, first-signal (a worker caught one), first-death (a holder died), first-launch.
Each fires once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Any

from . import truth

if TYPE_CHECKING:
    from .keeper import Keeper


class Events:
    def __init__(self, keeper: Keeper, wanted: list[dict[str, Any]]) -> None:
        self.keeper = keeper
        self.wanted = wanted
        self.fired: set[str] = set()
        self.due: list[tuple[float, dict[str, Any]]] = []
        self.log: list[dict[str, Any]] = []

    def fire(self, trigger: str) -> None:
        if trigger in self.fired:
            return
        self.fired.add(trigger)
        now = time.monotonic()
        self.due += [(now + float(event.get("after_s", 0)), event) for event in self.wanted if event["when"] == trigger]

    def due_soon(self) -> bool:
        return any(moment < time.monotonic() + 1.5 for moment, _ in self.due)

    def tick(self, now: float) -> None:
        ready = [event for moment, event in self.due if moment <= now]
        self.due = [(moment, event) for moment, event in self.due if moment > now]
        for event in ready:
            try:
                self.act(event)
                self.log.append({"t": time.time(), "do": event["do"]})
            except Exception as error:
                self.log.append({"t": time.time(), "do": event["do"], "error": f"{type(error).__name__}: {error}"})

    def act(self, event: dict[str, Any]) -> None:
        keeper, vmid = self.keeper, self.keeper.guest_data["vmid"]
        match event["do"]:
            case "ssh-freeze" | "ssh-thaw" | "ssh-kill" | "ssh-start":
                keeper.process.ask("sshd", do=event["do"].removeprefix("ssh-"))
            case "mute":
                keeper.process.ask("sshd", do="freeze")
                keeper.pve.call("vm", vmid=vmid, set={"agent": "hangs"})
            case "gpu":
                keeper.apply_gpu(event["gpu"], dict(event["set"]))
            case "kmsg":
                keeper.kmsg(event["text"])
            case "leak":
                keeper.ledger.ram_leak_gib += float(event.get("ram_gib", 0))
                for gpu in event.get("gpus", []):
                    keeper.driver.set(gpu, leak_mib=keeper.driver.get(gpu, "leak_mib") + int(event["vram_mib"]))
            case "signal-group":
                self.signal_group(event["group"], int(event.get("signal", 9)))
            case "qemu-dies":
                keeper.end_guest()
                keeper.pve.call("died", vmid=vmid)
            case "vm-stop":
                keeper.end_guest()
                keeper.pve.call("vm", vmid=vmid, set={"status": "stopped"})
                keeper.pve.call(
                    "task",
                    **{
                        "type": "qmstop",
                        "vmid": vmid,
                        "user": "bob@pve",
                        "age_s": 60,
                        "status": "OK",
                        **event.get("task", {}),
                    },
                )
            case "pve-vm":
                keeper.pve.call("vm", vmid=vmid, set=event["vm"])
            case "pve-task":
                keeper.pve.call("task", **event["task"])
            case "pve-fault":
                keeper.pve.call("inject", fault=event["fault"])
            case other:
                raise ValueError(f"unknown act {other!r}")
        keeper.changed = time.monotonic()

    def signal_group(self, group: str, number: int) -> None:
        """As a person in another terminal would: every process of the group, none asked first."""
        pids = truth.host_pids(self.keeper.process.cgroup)
        for owner in self.keeper.ledger.alive():
            if owner.group == group and owner.pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pids[owner.pid], signal.Signals(number))
