"""A real HTTPS API on loopback for the adapter's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from recover.edge.proxmox.client import Client, ClusterSettings
from tests.lab.pve.server import PveServer

TOKEN = "rec@pve!oncall"
SECRET = "6f0f0c9e-1111-4222-8333-5ec4e75ec4e7"
GPU = {"bdf": "0000:41:00.0", "vendor": "10de", "device": "2bb5", "class": "0302", "iommugroup": 14}
VM = {"vmid": 174, "name": "node-174", "memory_mib": 65536, "agent": "answers", "hostpci": [GPU]}


def settings(url: str, **change: Any) -> ClusterSettings:
    given: dict[str, Any] = {"urls": (url,), "token_id": TOKEN, "secret": lambda: SECRET, "timeout": 5.0} | change
    return ClusterSettings(**given)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy set in the environment is the user's wish in production and in the way on loopback."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,::1")


@pytest.fixture
def pve(fakepve: Any) -> Iterator[Any]:
    fakepve.apitokens[TOKEN] = SECRET
    fakepve.add_vm(174, "node-174", node="pve1", status="running")
    fakepve.grant(TOKEN, "/", "VM.Audit", "Sys.Audit", "VM.PowerMgmt")
    yield fakepve


@pytest.fixture
def make(pve: Any, fakepve_cafile: str) -> Iterator[Callable[..., Client]]:
    with ExitStack() as stack:

        def build(**change: Any) -> Client:
            trust = {} if "fingerprint" in change else {"ca_file": fakepve_cafile}
            client = Client(settings(pve.url, **(trust | change)), sleep=lambda _: None)
            stack.callback(client.close)
            return client

        yield build


class Lab(PveServer):
    """The lab's API, which knows devices, faults, privileges and what PVE does late."""

    def settings(self, **change: Any) -> ClusterSettings:
        given = {"ca_file": self.ca_file, "token_id": self.token_id, "secret": lambda: self.secret}
        return settings(self.url, **(given | change))

    def client(self, kind: type[Client] = Client, **change: Any) -> Client:
        client = kind(self.settings(**change), sleep=lambda _: None)
        self.clients.callback(client.close)
        return client

    def __enter__(self) -> Lab:
        super().__enter__()
        self.clients = ExitStack()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.clients.close()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Callable[..., Lab]]:
    with ExitStack() as stack:

        def start(**config: Any) -> Lab:
            return stack.enter_context(Lab({"vms": [VM], "time_scale": 0.01} | config, tmp_path / "pve"))

        yield start
