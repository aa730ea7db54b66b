from __future__ import annotations

from recover.edge.proxmox.errors import ApiError, Kind


def refused(answer: object) -> str:
    assert isinstance(answer, ApiError) and answer.kind is Kind.TLS, answer
    return answer.message


def test_an_expired_certificate_is_said_with_its_fix(lab):
    server = lab(certificate="expired")
    said = refused(server.client().get("/version"))
    assert "has expired" in said and "pvecm updatecerts" in said
    refused(server.client().post("/nodes/pve1/qemu/174/status/stop"))
    assert server.requests() == []


def test_a_certificate_for_another_host_can_be_pinned(lab):
    server = lab(certificate="wrong-host")
    assert "another" in refused(server.client().get("/version"))
    pinned = server.client(ca_file=None, fingerprint=server.fingerprint)
    assert pinned.get("/version")["release"] == "9.2"


def test_the_good_one(lab):
    assert lab().client().get("/version")["version"] == "9.2.6"


def test_a_replaced_and_a_revoked_token(lab):
    server = lab()
    client = server.client()
    assert client.get("/version")
    server.call("token", revoke=True)
    answer = client.get("/version")
    assert isinstance(answer, ApiError) and answer.kind is Kind.AUTH
    assert server.secret not in repr(answer)
