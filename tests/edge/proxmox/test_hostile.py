"""What stands at the other end may be another release, a portal, a broken proxy or somebody's joke: each has its value.

All of it goes through the real HTTPS API of the lab. Beside the value: the secret goes nowhere else, nothing that came
steers a terminal, and a POST is sent once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recover.core.guards import others
from recover.core.guards.case import Case, Context
from recover.edge.proxmox import client as client_module
from recover.edge.proxmox.client import MOST_BYTES
from recover.edge.proxmox.errors import ApiError, Kind
from recover.edge.proxmox.reads import look
from recover.edge.proxmox.tasks import LOG_LIMIT, NotStarted, Started, Tasks, Unresolved
from recover.model.hypervisor import GuestKind, Hypervisor
from recover.model.reading import Known
from recover.steps.table import ALL_STEPS
from tests.core import builders as b
from tests.edge.proxmox.conftest import VM, Lab


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One API for the tests that change nothing in it."""
    config = {"vms": [VM], "time_scale": 0.01}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1")
        with Lab(config, tmp_path_factory.mktemp("hostile") / "pve") as one:
            yield one


CURRENT = "/nodes/pve1/qemu/174/status/current"
STOP = "/nodes/pve1/qemu/174/status/stop"
LOGIN = "<html><head><title>Sign in</title></head><body>\x1b]0;owned\x07</body></html>"
# (what answers, the fault, how a question takes it, how an act does)
ANSWERS: list[tuple[str, dict[str, Any], Kind, Kind]] = [
    ("a login page", {"body": LOGIN, "content_type": "text/html", "status": 200}, Kind.GARBLED, Kind.UNCLEAR),
    ("301 to a login page", {"status": 301, "headers": {"Location": "https://sso.example/login?u=1"}},
     Kind.GARBLED, Kind.GARBLED),
    ("302 to itself", {"status": 302, "headers": {"Location": "/api2/json" + CURRENT}}, Kind.GARBLED, Kind.GARBLED),
    ("307, which would repeat a POST", {"status": 307, "headers": {"Location": "https://192.0.2.1:8006/"}},
     Kind.GARBLED, Kind.GARBLED),
    ("a proxy's 404", {"status": 404, "body": "<h1>404</h1>", "content_type": "text/html"}, Kind.GARBLED, Kind.GARBLED),
    ("a proxy's 407", {"status": 407, "body": "", "content_type": "text/plain"}, Kind.GARBLED, Kind.GARBLED),
    ("a firewall's 403", {"status": 403, "body": LOGIN, "content_type": "text/html"}, Kind.DENIED, Kind.DENIED),
    ("502 of nginx", {"status": 502, "body": "<h1>Bad Gateway</h1>", "content_type": "text/html"},
     Kind.UNCLEAR, Kind.UNCLEAR),
    ("504 of nginx", {"status": 504, "body": "", "content_type": "text/html"}, Kind.UNCLEAR, Kind.UNCLEAR),
    ("401 without a word", {"status": 401, "body": "", "content_type": "text/plain"}, Kind.AUTH, Kind.AUTH),
    ("401 with JSON", {"status": 401, "body": '{"data":null}'}, Kind.AUTH, Kind.AUTH),
    ("nothing at all", {"status": 200, "body": ""}, Kind.GARBLED, Kind.UNCLEAR),
    ("JSON that is no object", {"status": 200, "body": "[]"}, Kind.GARBLED, Kind.UNCLEAR),
    ("JSON without data", {"status": 200, "body": '{"success":1}'}, Kind.GARBLED, Kind.UNCLEAR),
    ("JSON that is cut", {"status": 200, "body": '{"data":{"status":"run'}, Kind.GARBLED, Kind.UNCLEAR),
    ("brackets without end", {"status": 200, "body": "[" * 200_000}, Kind.GARBLED, Kind.UNCLEAR),
    ("bytes that are no text", {"status": 200, "body": "\udcff\udcfe\udcc0"}, Kind.GARBLED, Kind.UNCLEAR),
    ("204", {"status": 204, "body": "", "content_type": "text/plain"}, Kind.GARBLED, Kind.UNCLEAR),
    ("400 with a dictionary", {"status": 400, "body": '{"data":null,"errors":{"li\x1b[2Jmit":["a",1]}}'},
     Kind.BAD_REQUEST, Kind.BAD_REQUEST),
    ("400 with a text", {"status": 400, "body": '{"errors":"limit: not a number"}'},
     Kind.BAD_REQUEST, Kind.BAD_REQUEST),
    ("400 with a list", {"status": 400, "body": '{"errors":["x"],"message":{"a":1}}'},
     Kind.BAD_REQUEST, Kind.BAD_REQUEST),
    ("500 with colours", {"status": 500, "body": json.dumps({"message": "\x1b[31mred\x1b]8;;http://x\x07\u202e\n"})},
     Kind.FAILED, Kind.FAILED),
    ("a date from another world", {"status": 500, "body": "{}", "headers": {"Date": "Mon, 01 Jan 0001 00:00:00 -0000"}},
     Kind.FAILED, Kind.FAILED),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "asked", "acted"), [row[1:] for row in ANSWERS], ids=[row[0] for row in ANSWERS])
def test_an_answer_that_is_not_pves(server: Lab, fault: dict[str, Any], asked: Kind, acted: Kind) -> None:
    """Caught, planted: a redirect that is followed; the parser's RecursionError; 404 taken for a guest that is gone."""
    for method, kind in (("GET", asked), ("POST", acted)):
        server.call("clear")
        server.inject(**{"kind": "raw", "method": method, "path": "*", "times": None, **fault})
        before = len(server.requests())
        said = getattr(server.client(), method.lower())(CURRENT if method == "GET" else STOP)
        sent = [r for r in server.requests()[before:] if r["method"] == method]
        assert isinstance(said, ApiError) and said.kind is kind, said
        assert str(said).isprintable() and server.secret not in repr(said)
        assert method == "GET" or (len(sent) == 1 and not said.retryable)
        assert all(r["path"] in (CURRENT, STOP) for r in sent), "nobody is followed elsewhere"


def test_an_answer_without_end_is_left(server: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_BYTES >= 8 << 20
    monkeypatch.setattr(client_module, "MOST_BYTES", 1 << 20)
    server.call("clear")
    server.inject("raw", path=CURRENT, status=200, body=json.dumps({"data": {"status": "x" * (2 << 20)}}))
    said = server.client().get(CURRENT)
    assert isinstance(said, ApiError) and said.kind is Kind.GARBLED and "longer than 1 MiB" in said.message
    assert server.client().get(CURRENT)["status"] == "running"


def test_a_url_that_is_an_ipv6_address(lab: Callable[..., Lab]) -> None:
    server = lab(host="::1")
    url = f"https://[::1]:{server.url.rsplit(':', 1)[1]}"
    said = server.client(urls=(url,), ca_file=None, fingerprint=server.fingerprint).get(CURRENT)
    assert said["status"] == "running"


@pytest.mark.parametrize("token", ["kim@example.org@ldap!on-call", "we!rd@pve!t1", "a.b-c@pam!x_y.z"])
def test_names_that_a_directory_gives(lab: Callable[..., Lab], token: str) -> None:
    """The token's name stands behind the last mark (pve-access-control, AccessControl.pm)."""
    server = lab(token={"id": token})
    tasks = Tasks(server.client(token_id=token), sleep=lambda s: time.sleep(min(s, 0.02)))
    started = tasks.power(GuestKind.VM, "pve1", 174, "stop")
    assert isinstance(started, Started) and f":{token}:" in started.upid
    tasks.wait("pve1", started.upid, 20.0)
    found = look(server.client(token_id=token), "lab", 174)
    assert isinstance(found, Hypervisor) and isinstance(found.tasks, Known) and found.tasks.value[0].ours


def test_a_log_of_thousands_of_lines_keeps_its_beginning_and_its_end(lab: Callable[..., Lab]) -> None:
    """Caught, planted: only the first page, which is all noise here."""
    noise = [f"\x1b[33mkvm: VFIO_MAP_DMA failed: Invalid argument {n}" for n in range(3 * LOG_LIMIT)]
    lines = ["first", *noise, "vfio-pci 0000:41:00.0: not ready 65535ms after FLR; giving up"]
    server = lab()
    upid = server.call("task", type="qmstart", vmid=174, user="kim@pam", status="x", log=lines)
    log = Tasks(server.client()).log("pve1", upid)
    assert log[0] == "first" and "giving up" in log[-2] and log[-1] == "TASK ERROR: x"
    assert len(log) <= 2 * LOG_LIMIT and all(line.isprintable() for line in log)
    exact = server.call("task", type="qmstart", vmid=174, user="kim@pam", status="OK", log=noise[: LOG_LIMIT - 1])
    assert len(Tasks(server.client()).log("pve1", exact)) == LOG_LIMIT


# --- other releases: the same cluster, spelt otherwise

SPELLINGS: dict[str, list[tuple[str, list[tuple[list[str], Any]]]]] = {
    "numbers as text": [
        ("/cluster/resources", [(["*", "vmid"], "174"), (["*", "template"], "0")]),
        (CURRENT, [(["vmid"], "174"), (["pid"], "41000"), (["uptime"], "4711"), (["agent"], "1")]),
        ("/nodes/*/status", [(["uptime"], "8640000")]), ("/cluster/status", [(["*", "quorate"], "1")]),
        ("/nodes/*/storage", [(["*", "active"], "1")]), ("/nodes/*/hardware/pci", [(["*", "iommugroup"], "14")]),
        ("/nodes/*/qemu/174/config", [(["agent"], 1), (["memory"], 65536)]),
    ],
    "true and false": [
        (CURRENT, [(["ha"], {"managed": False}), (["agent"], True), (["template"], False)]),
        ("/cluster/status", [(["*", "quorate"], True)]), ("/nodes/*/storage", [(["*", "active"], True)]),
        ("/access/permissions", [(["/vms", "VM.Audit"], True), (["/nodes/pve1", "Sys.Audit"], True)]),
    ],
    "what is not set is null": [
        (CURRENT, [(["lock"], None), (["tags"], None), (["template"], None), (["memhost"], None)]),
        ("/cluster/resources", [(["*", "pool"], None), (["*", "tags"], None), (["*", "lock"], None)]),
        ("/nodes/*/qemu/174/config", [(["protection"], None), (["lock"], None), (["description"], None)]),
    ],
    "tags with spaces and a name with colours": [
        (CURRENT, [(["tags"], " gpu, prod;a b;"), (["name"], "node\x1b[31m-174")]),
    ],
}  # fmt: skip


@pytest.mark.parametrize("how", SPELLINGS)
def test_another_release_says_the_same(server: Lab, how: str) -> None:
    server.call("clear")
    plain = look(server.client(), "lab", 174)
    for path, rewrites in SPELLINGS[how]:
        server.inject("rewrite", path=path, times=None, rewrites=rewrites)
    found = look(server.client(), "lab", 174)
    assert isinstance(plain, Hypervisor) and isinstance(found, Hypervisor)
    for name in ("status", "qmpstatus", "lock", "ha_state", "quorate", "pending", "storages", "neighbours", "agent",
                 "invisible_guests", "config", "host_memory", "gaps"):  # fmt: skip
        assert getattr(found, name) == getattr(plain, name), name


def test_a_guest_on_a_node_that_is_offline_and_its_namesake(lab: Callable[..., Lab]) -> None:
    """The list still has the guests of a node that is away, as "unknown"; ours is looked at all the same."""
    twin = {"vmid": 200, "name": "node-174", "node": "pve2"}
    server = lab(nodes=[{"name": "pve1"}, {"name": "pve2"}], vms=[VM, twin])
    server.call("node", name="pve2", set={"online": False})
    found = look(server.client(), "lab", 174)
    assert isinstance(found, Hypervisor) and found.node == "pve1" and isinstance(found.neighbours, Known)
    away = look(server.client(timeout=1.0), "lab", 200, 3.0)
    assert not isinstance(away, Hypervisor) and away.why == "unreachable"


@pytest.mark.parametrize("ahead", [0, -7200, 7200])
@pytest.mark.parametrize(("age", "guard"), [(300, "foreign-task"), (3600, "")])
def test_what_somebody_did_is_as_old_as_the_clock_of_that_node_says(
    lab: Callable[..., Lab], ahead: int, age: int, guard: str
) -> None:
    """A node's clock may be hours off: its tasks' times are by its own. Caught, planted: the answer's Date."""
    told = {"type": "qmstop", "vmid": 174, "user": "kim@pam", "age_s": age, "status": "OK"}
    server = lab(nodes=[{"name": "pve1", "ahead_s": ahead}], tasks=[told])
    found = look(server.client(), "lab", 174)
    assert isinstance(found, Hypervisor)
    snapshot = b.healthy_snapshot(hypervisor=found)
    refused = others.tasks(Case(snapshot, ALL_STEPS["power-cycle-vm"], Context(), evict=False))
    assert (refused.guard if refused is not None else "") == guard, refused


@pytest.mark.parametrize("rows", ["null", "[null]", '[{"upid":null}]', '[{"upid":"UPID:x"}]', "{}", '"x"'])
def test_an_act_is_not_begun_while_it_cannot_be_told_who_works_there(server: Lab, rows: str) -> None:
    server.call("clear")
    before = len(server.requests())
    server.inject("raw", method="GET", path="/nodes/*/tasks", times=None, status=200, body=f'{{"data":{rows}}}')
    said = Tasks(server.client()).power(GuestKind.VM, "pve1", 174, "stop")
    assert isinstance(said, NotStarted) and said.error.kind is Kind.GARBLED
    assert not [r for r in server.requests()[before:] if r["method"] == "POST"]


TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
JUNK = st.recursive(st.none() | st.booleans() | st.integers() | TEXT, lambda one: st.lists(one, max_size=3)
                    | st.dictionaries(TEXT, one, max_size=3), max_leaves=6)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(st.sampled_from((200, 400, 401, 403, 500, 501, 596)), JUNK, JUNK, JUNK)
def test_whatever_an_error_holds_it_is_one_printable_line(
    server: Lab, status: int, data: Any, message: Any, errors: Any
) -> None:
    """Caught, planted: `errors` shown as it came."""
    server.call("clear")
    body = {"data": data, "message": message, "errors": errors}
    server.inject("raw", method="POST", path="*", status=status, body=json.dumps(body))
    said = server.client().post(STOP)
    if isinstance(said, ApiError):
        assert str(said).isprintable() and len(said.message) <= 3000
    else:
        assert status == 200 and said == data
    server.inject("raw", method="POST", path="*", status=status, body=json.dumps(body))
    posted = Tasks(server.client(), sleep=lambda _: None, look_s=0.0).power(GuestKind.VM, "pve1", 174, "stop")
    assert isinstance(posted, NotStarted | Unresolved), posted
