"""The lab's own daemon: boots and cuts the guest, keeps its figures true, and knows what really happened.

`python -m tests.lab.keeper DIR`; answers JSON lines on DIR/lab.sock: state, activate, power, do, settled, stop.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socketserver
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from . import files, truth
from .books import Books
from .driver.state import mask
from .pve.control import Control, ControlError

TICK_S = 0.1
MONITOR = {"name": "nvidia-dcgm.service", "exec": ["/run/lab/bin/nv-hostengine"], "restart": "always", "at_boot": True}
PYTHON_ENV = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "PYTHONPATH": str(files.SOURCE), "LANG": "C.UTF-8"}


class Keeper(Books):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.pve = Control(folder / "pve", timeout_s=10)
        self.pve_process: subprocess.Popen[bytes] | None = None
        self.lock = threading.RLock()
        self.done = threading.Event()
        self.active = not self.lab["idle"]
        self.counts = {"power_cycles": 0, "stops": 0, "starts": 0, "resets": 0, "guest_reboots": 0, "shutdowns": 0}

    # -- the guest --------------------------------------------------------------------------------------------------

    def start_guest(self) -> None:
        self.boot += 1
        first = self.boot == 1
        uptime = float(self.guest_data["uptime_s"]) if first else 3.0
        self.boot_ids.append(str(uuid.uuid4()))
        files.write(self.world / "proc/sys_kernel_random_boot_id", self.boot_ids[-1] + "\n")
        files.write(self.world / "proc/cmdline", "BOOT_IMAGE=/vmlinuz root=/dev/vda1 ro quiet\n")
        for path in (*(self.world / "reg").iterdir(), *(self.world / "status").iterdir()):
            path.unlink()
        self.write_meminfo()
        self.boot_at = time.monotonic() - uptime
        self.kmsg_boot(uptime)
        port = self.lab["ssh_port"]
        hangs = bool(self.guest_data["shutdown_hangs"] or self.guest_data["mute"]) and first
        setup = {
            "hostname": self.guest_data["hostname"],
            "boot": self.boot,
            "active": self.active and not first,
            "port": port,
            "sshd": ["/usr/sbin/sshd", "-D", "-e", "-f", "/run/lab/ssh/sshd_config"],
            "shutdown_s": self.guest_data["shutdown_s"],
            "shutdown_hangs": hangs,
            "units": self.units(),
            "bystanders": self.bystanders(first),
        }
        files.dump_json(self.world / "setup.json", setup)
        for gpu in range(self.scenario["gpus"]):
            self.driver.set(gpu, persistence=self.guest_data["persistence"])
        self.process.start(uptime)
        self.process.wait_ready()
        if self.guest_data["mute"] and not first:
            self.pve.call("vm", vmid=self.guest_data["vmid"], set={"agent": "answers"})
        self.vm = "running"
        self.events.fire(f"boot-{self.boot}")

    def units(self) -> list[dict[str, Any]]:
        place = {"host": self.lab["address"], "port": 30000}
        out = [MONITOR] if self.guest_data["monitor"] else []
        for unit in self.scenario.get("unit", []):
            if "engine" in unit:
                unit = {**unit, "engine": {**place, **unit["engine"]}}
                words = f"--model-path lab/model --tp {unit['engine']['tp']} --host {place['host']}"
                port = str(unit["engine"]["port"])
                default = ["python", "-m", "sglang.launch_server", *words.split(), "--port", port]
                default += unit.get("flags", [])
                unit.setdefault("exec", default)
            out.append(unit)
        return out

    def bystanders(self, first: bool) -> list[dict[str, Any]]:
        return [one for one in self.scenario.get("bystander", []) if first or one.get("every_boot")]

    def activate(self) -> None:
        """The scenario's trouble begins: services start, leaks appear, GPUs break, the clock of the events runs."""
        with self.lock:
            self.active = True
            leak = self.scenario["leak"]
            self.ledger.ram_leak_gib = float(leak["ram_gib"])
            for gpu in leak["gpus"]:
                self.driver.set(gpu, leak_mib=leak["vram_mib"])
            for gpu in range(self.scenario["gpus"]):
                self.driver.set(gpu, leak_cleared_by=mask(*leak["vram_cleared_by"]))
            for change in self.scenario.get("gpu", []):
                self.apply_gpu(change["index"], {k: v for k, v in change.items() if k != "index"})
            for line in self.scenario.get("kmsg", []):
                self.kmsg(line["text"], ago_s=float(line.get("ago_s", 0)))
            self.process.ask("activate")
            self.changed = time.monotonic()
            self.events.fire("activate")

    def apply_gpu(self, gpu: int, fields: dict[str, Any]) -> None:
        errors = fields.pop("errors", {})
        for name in [name for name in fields if name.endswith("_cleared_by")]:
            fields[name] = mask(*fields[name])
        if fields:
            self.driver.set(gpu, **fields)
        for call, code in errors.items():
            self.driver.set_error(gpu, call, code)

    def end_guest(self) -> None:
        self.process.power_cut()
        self.vm = "stopped"

    def rebooted(self, how: str) -> None:
        """What the kernel and the devices forget with this kind of restart."""
        leak = self.scenario["leak"]
        self.ledger.reboot(keeps_leak=how not in leak["ram_cleared_by"])
        freed = dict(self.last_release)
        self.last_release = {}
        for gpu, mib in freed.items():
            self.driver.set(gpu, leak_mib=max(0, self.driver.get(gpu, "leak_mib") - mib))
        {
            "guest-reboot": self.driver.guest_reboot,
            "vm-reset": self.driver.vm_reset,
            "vm-restart": self.driver.vm_restart,
        }[how]()

    # -- power: what the hypervisor does to it ----------------------------------------------------------------------

    def power(self, action: str) -> dict[str, Any]:
        if action == "shutdown":
            return self.shutdown()
        with self.lock:
            if action == "stop" and self.vm == "running":
                self.counts["stops"] += 1
                self.end_guest()
            elif action == "start" and self.vm != "running":
                self.counts["starts"] += 1
                self.counts["power_cycles"] += 1
                time.sleep(float(self.guest_data["boot_s"]))
                self.rebooted("vm-restart")
                self.start_guest()
            elif action == "reset" and self.vm == "running":
                self.counts["resets"] += 1
                self.end_guest()
                self.rebooted("vm-reset")
                self.start_guest()
        return {"ok": True}

    def shutdown(self) -> dict[str, Any]:
        self.counts["shutdowns"] += 1
        if self.vm != "running":
            return {"ok": True, "obeyed": True}
        with contextlib.suppress(OSError, ConnectionError, ValueError):
            self.process.ask("poweroff")
        end = time.monotonic() + float(self.guest_data["shutdown_s"]) + 2
        while time.monotonic() < end:
            if not self.process.running:
                with self.lock:
                    self.counts["stops"] += 1
                    self.end_guest()
                return {"ok": True, "obeyed": True}
            time.sleep(0.05)
        return {"ok": True, "obeyed": False}

    def guest_ended(self, status: int) -> None:
        """The guest ended by itself: a reboot from inside, or a power-off that Proxmox sees as a QEMU that is gone."""
        with self.lock:
            if self.vm != "running" or self.process.running:
                return
            self.end_guest()
            if status == 3:
                self.counts["guest_reboots"] += 1
                self.rebooted("guest-reboot")
                self.start_guest()
                return
        with contextlib.suppress(ControlError):
            self.pve.call("died", vmid=self.guest_data["vmid"])

    # -- the API ----------------------------------------------------------------------------------------------------

    def start_pve(self) -> None:
        with (self.folder / "pve.log").open("ab") as log:
            self.pve_process = subprocess.Popen(
                [sys.executable, "-B", "-m", "tests.lab.pve.server", "--config", str(self.folder / "pve.json")],
                cwd=files.SOURCE,
                env=PYTHON_ENV,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_pve(self, limit_s: float = 120) -> None:
        end = time.monotonic() + limit_s
        while not (self.folder / "pve/server.json").exists():
            assert self.pve_process is not None
            if self.pve_process.poll() is not None or time.monotonic() > end:
                raise RuntimeError("the Proxmox API did not start:\n" + (self.folder / "pve.log").read_text()[-3000:])
            time.sleep(0.05)

    # -- requests ---------------------------------------------------------------------------------------------------

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        op = request.pop("op", "")
        match op:
            case "state":
                return {"ok": True, "state": truth.state(self)}
            case "activate":
                self.activate()
            case "power":
                return self.power(request["action"])
            case "do":
                self.events.act(request)
            case "settled":
                return {"ok": True, "settled": self.settled()}
            case "stop":
                self.done.set()
            case _:
                return {"ok": False, "error": f"unknown operation {op!r}"}
        return {"ok": True}

    def settled(self) -> bool:
        """Every rank has come up, and nothing started, ended or is due at once any more.

        A rank that takes longer than a quarter of a minute is one that this scenario does not start.
        """
        engines = [unit["engine"] for unit in self.units() if "engine" in unit]
        firsts = [{**engine, **(engine.get("launches") or [{}])[0]} for engine in engines]
        dead = sum(fate == "zombie" for engine in firsts for fate in engine.get("fates", {}).values())
        wanted = sum(engine["tp"] for engine in engines) - dead
        there = sum(1 for boot, _, _ in self.declared if boot == self.boot)
        quiet = time.monotonic() - self.changed
        return quiet > (0.7 if there >= wanted else 15.0) and not self.events.due_soon()

    def run(self) -> None:
        self.start_pve()
        self.start_guest()
        if self.active:
            self.activate()
        self.wait_pve()
        files.dump_json(self.folder / "ready.json", {"boot_id": self.boot_ids[-1]})
        while not self.done.wait(TICK_S):
            status = self.process.ended()
            if status is not None:
                self.guest_ended(status)
            if self.lock.acquire(blocking=False):
                try:
                    self.tick()
                finally:
                    self.lock.release()

    def close(self) -> None:
        with self.lock:
            self.process.power_cut()
        if self.pve_process is not None:
            self.pve_process.terminate()
            try:
                self.pve_process.wait(5)
            except subprocess.TimeoutExpired:
                self.pve_process.kill()
                self.pve_process.wait()


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        keeper: Keeper = self.server.keeper  # type: ignore[attr-defined]
        try:
            answer = keeper.answer(json.loads(self.rfile.readline()))
        except Exception as error:  # the asker gets the reason, the daemon lives on
            answer = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        with contextlib.suppress(OSError):
            self.wfile.write(json.dumps(answer).encode() + b"\n")


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    keeper = Keeper(folder)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: keeper.done.set())
    os.chdir(folder)
    server = _Server("lab.sock", _Handler)
    server.keeper = keeper  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        keeper.run()
    except Exception as error:
        files.write(folder / "error", f"{type(error).__name__}: {error}\n")
        raise
    finally:
        keeper.close()
        server.server_close()


if __name__ == "__main__":
    main()
