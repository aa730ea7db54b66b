from __future__ import annotations

import hashlib
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest
from fakepve.certs import make_cert

from recover.edge.proxmox.client import Client, ClusterSettings, bounded, path
from recover.edge.proxmox.errors import ApiError, Kind
from recover.edge.proxmox.secret import NoSecret, Secret, from_command
from recover.edge.proxmox.tls import adapter
from tests.edge.proxmox.conftest import SECRET, TOKEN, settings

CURRENT = "/nodes/pve1/qemu/174/status/current"
STOP = "/nodes/pve1/qemu/174/status/stop"


def failed(answer: Any, kind: Kind) -> ApiError:
    assert isinstance(answer, ApiError), answer
    assert answer.kind is kind, answer
    assert SECRET not in repr(answer) + str(answer)
    return answer


def dead_url() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"https://127.0.0.1:{probe.getsockname()[1]}"


def posts(pve: Any) -> int:
    return sum(method == "POST" for method, *_ in pve.requests)


def test_a_question_and_an_act(make):
    client = make()
    assert client.get(CURRENT)["status"] == "running"
    assert client.post(STOP).startswith("UPID:pve1:")


def test_a_wrong_token_is_told_apart(make):
    failed(make(secret=lambda: "7f0f0c9e-wrong").get(CURRENT), Kind.AUTH)


def test_the_missing_privilege_is_named(make, pve):
    pve.acl = None
    pve.grant(TOKEN, "/vms/174", "VM.Audit")
    error = failed(make().post(STOP), Kind.DENIED)
    assert error.privilege == "VM.PowerMgmt on /vms/174"
    assert error.unknown().detail == "needs VM.PowerMgmt on /vms/174"


def test_parameters_that_are_refused_are_named(make):
    error = failed(make().get("/nodes/pve1/tasks", limit="many"), Kind.BAD_REQUEST)
    assert "limit" in dict(error.fields)


def test_what_is_not_there(make):
    failed(make().get("/nodes/pve1/qemu/999/status/current"), Kind.NOT_THERE)
    failed(make().post("/nodes/pve1/qemu/174/status/explode"), Kind.NOT_THERE)


def test_pves_own_message_is_kept(make, pve):
    pve.fail("GET", CURRENT, status=500, message="first line\nand the second, which the reason phrase cannot carry")
    assert "and the second" in failed(make().get(CURRENT), Kind.FAILED).message


def test_a_question_is_asked_again_after_596(make, pve):
    pve.fail("GET", CURRENT, status=596, message="Connection timed out", times=2)
    assert make().get(CURRENT)["status"] == "running"


def test_an_act_is_sent_once_whatever_comes_back(make, pve):
    pve.fail("POST", STOP, status=596, message="Connection timed out")
    error = failed(make().post(STOP), Kind.UNCLEAR)
    assert not error.retryable
    assert posts(pve) == 1


def test_an_act_with_an_unclear_end_is_not_sent_to_the_next_url(make, pve):
    pve.fail("POST", STOP, status=596, message="Broken pipe")
    failed(make(urls=(pve.url, pve.url.replace("127.0.0.1", "localhost"))).post(STOP), Kind.UNCLEAR)
    assert posts(pve) == 1


def test_a_page_that_is_no_api(make, pve):
    pve.fail("GET", CURRENT, status=200, message="<html>welcome</html>", html=True)
    failed(make().get(CURRENT), Kind.GARBLED)
    pve.fail("POST", STOP, status=200, message="<html>welcome</html>", html=True)
    failed(make().post(STOP), Kind.UNCLEAR)


def test_a_connection_cut_under_an_act_is_unclear(make, pve):
    client = make()
    client.get(CURRENT)
    pve.flaky_network(drop_rate=1.0)
    failed(client.post(STOP), Kind.UNCLEAR)


def test_the_first_url_is_dead_and_the_good_one_is_remembered(make, pve):
    client = make(urls=(dead_url(), pve.url))
    assert client.get(CURRENT)["status"] == "running"
    assert pve.url in repr(client)
    assert client.post(STOP).startswith("UPID:")


def test_all_urls_dead(make):
    assert failed(make(urls=(dead_url(), dead_url())).get(CURRENT), Kind.UNREACHABLE).retryable
    failed(make(urls=(dead_url(),)).post(STOP), Kind.UNREACHABLE)


def fingerprint(pem: str) -> str:
    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(Path(pem).read_text())).hexdigest()
    return ":".join(digest[i : i + 2] for i in range(0, 64, 2)).upper()


def test_the_pinned_fingerprint(make, fakepve_cafile):
    assert make(fingerprint=fingerprint(fakepve_cafile)).get(CURRENT)["status"] == "running"


@pytest.mark.parametrize("method", ["get", "post"])
def test_another_fingerprint_sends_nothing(make, pve, fakepve_cafile, method):
    client = make(fingerprint="AB:" * 31 + "CD")
    error = failed(getattr(client, method)(STOP), Kind.TLS)
    assert fingerprint(fakepve_cafile) in error.message and "`fingerprint`" in error.message
    assert pve.requests == []


def test_a_ca_that_did_not_sign_it(make, pve, tmp_path):
    other = make_cert(str(tmp_path))[0]
    assert "`ca_file`" in failed(make(ca_file=other).get(CURRENT), Kind.TLS).message
    assert "`ca_file`" in failed(make(ca_file=None).post(STOP), Kind.TLS).message
    failed(make(ca_file=str(tmp_path / "absent.pem")).get(CURRENT), Kind.TLS)
    assert pve.requests == []


def test_the_pin_also_holds_through_a_proxy():
    manager = adapter(None, "ab" * 32).proxy_manager_for("http://127.0.0.1:1")
    assert manager.connection_pool_kw["assert_fingerprint"] == "ab" * 32


def test_a_server_that_trickles_is_left_at_the_deadline():
    with pytest.raises(TimeoutError):
        bounded(0.05, threading.Event().wait)


def test_a_server_that_says_nothing(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as mute:
        client = Client(settings(f"https://127.0.0.1:{mute.getsockname()[1]}", timeout=0.2))
        failed(client.get(CURRENT, deadline=0.5), Kind.UNCLEAR)
        failed(client.post(STOP), Kind.UNCLEAR)


def test_a_question_goes_on_to_the_node_that_answers(make, pve):
    with socket.create_server(("127.0.0.1", 0)) as mute:
        client = make(urls=(f"https://127.0.0.1:{mute.getsockname()[1]}", pve.url), timeout=3.0)
        assert client.get(CURRENT)["status"] == "running"
        assert pve.url in repr(client)


def test_a_secret_whose_command_hangs(make, pve):
    error = failed(make(secret=lambda: from_command(["sleep", "600"], seconds=0.2)).get(CURRENT), Kind.NO_SECRET)
    assert "`sleep` did not answer within 0.2 s" in error.message
    assert pve.requests == []


@pytest.mark.parametrize("secret", [lambda: NoSecret("the vault is down"), lambda: "", lambda: 1 / 0, lambda: "ö"])
def test_no_secret_is_a_value_and_asks_nobody(make, pve, secret):
    failed(make(secret=secret).get(CURRENT), Kind.NO_SECRET)
    assert pve.requests == []


def test_the_secret_shows_nowhere(make, pve, capfd, caplog):
    caplog.set_level("DEBUG")
    client = make(secret=lambda: Secret(SECRET, ("the file is open to everybody",)))
    pve.fail("GET", CURRENT, status=500, message=f"PVEAPIToken={TOKEN}={SECRET}")
    answers = [client.get(CURRENT), make(secret=lambda: SECRET + "\nx").get(CURRENT)]
    assert client.warnings == ("the file is open to everybody",)
    out = capfd.readouterr()
    shown = f"{answers} {[str(a) for a in answers]} {client!r} {client.settings!r} {out.out}{out.err}{caplog.text}"
    assert SECRET not in shown and "***" in shown


def test_many_threads_share_a_client(make):
    client = make()
    answers: list[Any] = []
    threads = [threading.Thread(target=lambda: answers.append(client.get(CURRENT))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [a["status"] for a in answers] == ["running"] * 8


@pytest.mark.parametrize(
    "change",
    [{"urls": ()}, {"urls": ("http://a:8006",)}, {"urls": ("https://u:p@a",)}, {"token_id": "rec@pve"},
     {"token_id": f"{TOKEN}=x"}, {"fingerprint": "AB:CD"}, {"fingerprint": "ab" * 32, "ca_file": "/x"}],
)  # fmt: skip
def test_settings_that_make_no_sense(change):
    with pytest.raises(ValueError):
        settings("https://a:8006", **change)


def test_a_path_quotes_what_machines_said():
    assert path("nodes", "a/../b", "tasks", "UPID:a:1:u@pve!t:") == "/nodes/a%2F..%2Fb/tasks/UPID:a:1:u@pve!t:"


def test_an_ipv6_address_and_the_default_port():
    assert ClusterSettings(("https://[::1]",), TOKEN, lambda: SECRET).urls == ("https://[::1]",)
    failed(Client(settings("https://[::1]"), sleep=lambda _: None).get("/version"), Kind.UNREACHABLE)
