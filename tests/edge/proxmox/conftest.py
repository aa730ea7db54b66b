"""A real HTTPS API on loopback for the adapter's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from recover.edge.proxmox.client import Client, ClusterSettings

TOKEN = "rec@pve!oncall"
SECRET = "6f0f0c9e-1111-4222-8333-5ec4e75ec4e7"


def settings(url: str, **change: Any) -> ClusterSettings:
    given: dict[str, Any] = {"urls": (url,), "token_id": TOKEN, "secret": lambda: SECRET, "timeout": 5.0} | change
    return ClusterSettings(**given)


@pytest.fixture
def pve(fakepve: Any) -> Iterator[Any]:
    fakepve.apitokens[TOKEN] = SECRET
    fakepve.add_vm(174, "node-174", node="pve1", status="running")
    fakepve.grant(TOKEN, "/", "VM.Audit", "Sys.Audit", "VM.PowerMgmt")
    yield fakepve


@pytest.fixture
def make(pve: Any, fakepve_cafile: str) -> Callable[..., Client]:
    def build(**change: Any) -> Client:
        trust = {} if "fingerprint" in change else {"ca_file": fakepve_cafile}
        return Client(settings(pve.url, **(trust | change)), sleep=lambda _: None)

    return build
