# SPDX-License-Identifier: AGPL-3.0-or-later
"""Serves one FakePveGpu over TLS with its own CA, in a thread or as a process, and takes its control from one socket.

    python -m tests.lab.pve.server --config FILE

The configuration and the control protocol are in the package's docstring (`tests/lab/pve/__init__.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import signal
import socket
import sys
import threading
import tomllib
import uuid
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TextIO

from .certs import Pki, make_pki
from .control import SOCKET, short_path
from .fake import FakePveGpu
from .hooks import CommandHooks, PowerHooks
from .ops import Ops

START_S = 30.0
KEYS = {
    "directory",
    "host",
    "port",
    "listeners",
    "certificate",
    "release",
    "version",
    "time_scale",
    "quorate",
    "error_message",
    "cluster_name",
    "token",
    "grants",
    "hooks",
    "nodes",
    "vms",
    "cts",
    "mappings",
    "tasks",
    "faults",
}


class _Service:
    """What thread and process have in common: folder, keys, API, control socket."""

    def __init__(self, config: dict[str, Any], directory: Path, hooks: PowerHooks | None) -> None:
        unknown = set(config) - KEYS
        if unknown:
            raise ValueError(f"configuration: unknown keys {sorted(unknown)}")
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.secret = str(config.get("token", {}).get("secret") or uuid.UUID(bytes=secrets.token_bytes(16), version=4))
        self.pki: Pki = make_pki(directory, config.get("host", "127.0.0.1"), config.get("certificate", "good"))
        self.stopped = asyncio.Event()
        command = config.get("hooks", {}).get("command")
        if hooks is None and command:
            hooks = CommandHooks(command, float(config["hooks"].get("timeout_s", 300)))
        self._config, self._hooks = config, hooks
        self._control: asyncio.Server | None = None
        self._log: TextIO | None = None

    async def start(self) -> None:
        self.pve = FakePveGpu(self._config, self.secret, self._hooks)
        self._log = (self.directory / "requests.jsonl").open("a", encoding="utf-8", buffering=1)
        self.pve.on_request = self._keep
        self.ops = Ops(self.pve, self.stopped.set)
        await self.pve.start(str(self.pki.cert_file), str(self.pki.key_file))
        self._control = await asyncio.start_unix_server(self._serve, sock=_listen(self.directory))
        self._announce()

    async def stop(self) -> None:
        if self._control is not None:
            self._control.close()
        if isinstance(self._hooks, CommandHooks):
            self._hooks.close()
        await self.pve.stop()
        await asyncio.sleep(0.01)  # the transports' own close callbacks
        if self._log is not None:
            self._log.close()
        for name in ("server.json", SOCKET):
            (self.directory / name).unlink(missing_ok=True)

    def urls(self) -> list[str]:
        return [f"https://{self.pve.host}:{port}" for port in self.pve.ports]

    def _keep(self, note: dict[str, Any]) -> None:
        if self._log is not None and not self._log.closed:
            self._log.write(json.dumps(note) + "\n")

    def _announce(self) -> None:
        _private(self.directory / "secret", self.secret)
        described = {
            "pid": os.getpid(),
            "host": self.pve.host,
            "port": self.pve.port,
            "url": self.pve.url,
            "urls": self.urls(),
            "ca_file": str(self.pki.ca_file),
            "fingerprint": self.pki.fingerprint,
            "token_id": self.pve.token_id,
            "secret_file": str(self.directory / "secret"),
            "control": str(self.directory / SOCKET),
        }
        fresh = self.directory / "server.json.new"
        fresh.write_text(json.dumps(described, indent=1) + "\n")
        fresh.replace(self.directory / "server.json")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(json.dumps(await self._one(line)).encode() + b"\n")
                await writer.drain()
        except (ConnectionError, ValueError):
            pass
        finally:
            writer.close()

    async def _one(self, line: bytes) -> dict[str, Any]:
        try:
            arguments = json.loads(line)
            return {"ok": True, "result": await self.ops.run(str(arguments.pop("op", "")), arguments)}
        except Exception as error:  # a wrong request is answered, the server goes on
            return {"ok": False, "error": f"{type(error).__name__}: {error}"}


def _private(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
        out.write(text + "\n")


def _listen(directory: Path) -> socket.socket:
    (directory / SOCKET).unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with short_path(directory) as path:
        sock.bind(path)
    os.chmod(directory / SOCKET, 0o600)
    return sock


class PveServer:
    """The API on a private loop in a daemon thread, for the length of a `with`."""

    def __init__(self, config: dict[str, Any], directory: str | Path, hooks: PowerHooks | None = None) -> None:
        self._service = _Service(config, Path(directory), hooks)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lab-pve", daemon=True)

    def __enter__(self) -> PveServer:
        self._thread.start()
        try:
            self._wait(self._service.start())
        except BaseException:
            self._halt()
            raise
        pve = self._service.pve
        self.url: str = pve.url
        self.urls: list[str] = self._service.urls()
        self.host: str = pve.host
        self.port: int = pve.port
        self.ca_file: str = str(self._service.pki.ca_file)
        self.fingerprint: str = self._service.pki.fingerprint
        self.token_id: str = pve.token_id
        self.secret: str = self._service.secret
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._wait(self._service.stop())
        finally:
            self._halt()

    def call(self, op: str, **arguments: Any) -> Any:
        """The control operations, without the socket."""
        return self._wait(self._service.ops.run(op, arguments))

    def inject(self, kind: str, **fault: Any) -> str:
        return str(self.call("inject", fault={"kind": kind, **fault}))

    def set_vm(self, vmid: int, **values: Any) -> Any:
        return self.call("vm", vmid=vmid, set=values)

    def requests(self, since: int = 0) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.call("requests", since=since)
        return found

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self.call("state")
        return found

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_S)

    def _halt(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_S)
        if not self._thread.is_alive():
            self._loop.close()


def load_config(path: Path) -> dict[str, Any]:
    """JSON, or TOML by its suffix."""
    text = path.read_text()
    return tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)


async def _serve_forever(config: dict[str, Any]) -> None:
    service = _Service(config, Path(config["directory"]), None)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, service.stopped.set)
    await service.start()
    try:
        await service.stopped.wait()
        await asyncio.sleep(0.1)  # the op `stop` still gets its answer
    finally:
        await service.stop()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.pve.server", description="A Proxmox API for the lab.")
    parser.add_argument("--config", required=True, type=Path, help="JSON or TOML; format in tests/lab/pve/__init__.py")
    asyncio.run(_serve_forever(load_config(parser.parse_args(argv).config)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
