"""A host key is believed only if known_hosts or a certificate by a known authority vouches for it; else refused."""

from __future__ import annotations

import base64
import shlex
import time
from dataclasses import dataclass

from recover.edge.shell.failures import ShellError
from recover.edge.shell.known_hosts import KnownHosts, Line, Mark, fingerprint, key_type_of, matches, names_of
from recover.model.contact import Failure

CERT = "-cert-v01@openssh.com"
_KEY_FIELDS = {
    "ssh-ed25519": 1,
    "ssh-rsa": 2,
    "ecdsa-sha2-nistp256": 2,
    "ecdsa-sha2-nistp384": 2,
    "ecdsa-sha2-nistp521": 2,
}
_ALGORITHMS = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}


@dataclass(frozen=True, slots=True)
class Asked:
    """The host whose key is judged, as known_hosts knows it."""

    name: str
    port: int | None  # None: `name` is a HostKeyAlias
    address: str
    real_port: int
    via: str = ""  # the jump host, if the address can't be reached from here


def wanted(known: KnownHosts, asked: Asked, able: tuple[str, ...]) -> tuple[str, ...]:
    """Key algorithms to offer, those that can be believed first, so that a host with several keys shows a known one."""
    lines = known.of(Mark.HOST, asked.name, asked.port)
    plain = [name for line in lines for name in _ALGORITHMS.get(line.key_type, (line.key_type,)) if name in able]
    ours = list(dict.fromkeys([*plain, *able]))
    certified = [name + CERT for name in ours] if known.of(Mark.AUTHORITY, asked.name, asked.port) else []
    return (*certified, *ours)


def judge(known: KnownHosts, asked: Asked, shown: bytes) -> None:
    """Raise unless the key (or certificate) blob that the host showed may be believed."""
    plain, cert = shown, None
    if key_type_of(shown).endswith(CERT):
        cert = _Certificate(shown)
        plain = cert.plain
    _refuse_revoked(known, asked, plain, cert)
    authorities = known.of(Mark.AUTHORITY, asked.name, asked.port)
    if cert is not None and (line := _same(authorities, cert.authority)):
        fault = cert.fault(asked.name)
        if fault is None:
            return
        raise ShellError(
            Failure.UNKNOWN_KEY,
            f"{asked.name}: its host certificate {cert.key_id!r}, by the authority of {line.source}, "
            f"can't be accepted: {fault}. Renew it on the machine.",
        )
    _judge_plain(known, asked, plain, cert)


def _refuse_revoked(known: KnownHosts, asked: Asked, plain: bytes, cert: _Certificate | None) -> None:
    lines = known.revoked(asked.name, asked.port)
    for blob, what in ((plain, "key"), (cert.authority if cert else b"", "certificate authority")):
        if line := _same(lines, blob):
            raise ShellError(
                Failure.REVOKED_KEY,
                f"{asked.name}: its host {what} {fingerprint(blob)} is revoked by {line.source}; give the machine "
                "a new key, or find out who answers in its place.",
            )


def _judge_plain(known: KnownHosts, asked: Asked, plain: bytes, cert: _Certificate | None) -> None:
    lines = known.of(Mark.HOST, asked.name, asked.port)
    if _same(lines, plain):
        return
    seen = f"{key_type_of(plain)} {fingerprint(plain)}"
    listed_as = names_of(asked.name, asked.port)[0]
    files = known.files[0] if known.files else "~/.ssh/known_hosts"
    if not lines:
        by = f" (certified by {fingerprint(cert.authority)}, which no @cert-authority line knows)" if cert else ""
        raise ShellError(
            Failure.UNKNOWN_KEY,
            f"{listed_as}: unknown host key {seen}{by}; not in {', '.join(known.files) or 'any known_hosts'}. "
            f"Fix: {_scan(asked, plain, files)}",
        )
    differs = next((line for line in lines if line.key_type == key_type_of(plain)), lines[0])
    raise ShellError(
        Failure.CHANGED_KEY,
        f"{listed_as}: the host key is now {seen}, but {differs.source} says {differs.key_type} "
        f"{fingerprint(differs.blob)}. Either the machine got new keys, or another machine answers. If you know that "
        f"it got new keys: ssh-keygen -R {shlex.quote(listed_as)} -f {shlex.quote(differs.source.rsplit(':', 1)[0])}; "
        f"then {_scan(asked, plain, files)}",
    )


def _scan(asked: Asked, plain: bytes, file: str) -> str:
    kind = key_type_of(plain).removeprefix("ssh-").split("-")[0]
    scan = f"ssh-keyscan -t {kind} -p {asked.real_port} {shlex.quote(asked.address)}"
    there = f" (run on {asked.via}, from where the machine is reached)" if asked.via else ""
    target = file if file.startswith("~") else shlex.quote(file)
    return (
        f"{scan} >> {target}{there} — the scan itself proves nothing: compare the fingerprint with "
        f"`ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub` on the machine's own console first."
    )


def _same(lines: tuple[Line, ...], blob: bytes) -> Line | None:
    return next((line for line in lines if line.blob == blob), None) if blob else None


class _Certificate:
    """A host certificate, taken apart once. The signature is checked by the `cryptography` package."""

    def __init__(self, blob: bytes) -> None:
        from cryptography.hazmat.primitives.serialization import ssh

        self._type = key_type_of(blob)
        try:
            cert = ssh.load_ssh_public_identity(f"{self._type} {base64.b64encode(blob).decode()}".encode())
            if not isinstance(cert, ssh.SSHCertificate):
                raise ValueError("no certificate")
            self._cert = cert
            self.plain, self.authority, self.signed_with = _parts(blob)
        except Exception as error:  # a stranger's bytes; whatever is wrong with them, they are refused
            detail = f"the host showed a certificate that can't be read: {error}"
            raise ShellError(Failure.UNKNOWN_KEY, detail) from None
        self.key_id = cert.key_id.decode("utf-8", "replace")

    def fault(self, name: str) -> str | None:
        """Why it doesn't prove that the host is `name`; None if it does."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.serialization import SSHCertificateType

        if self._cert.type is not SSHCertificateType.HOST:
            return "it is not a host certificate"
        if self.signed_with == "ssh-rsa":
            return "it is signed with SHA-1"
        try:
            self._cert.verify_cert_signature()
        except (InvalidSignature, ValueError, AssertionError):
            return "its signature is wrong"
        now = time.time()
        if now < self._cert.valid_after:
            return f"it is not valid before {_day(self._cert.valid_after)}"
        if now >= self._cert.valid_before:
            return f"it expired on {_day(self._cert.valid_before)}"
        if self._cert.critical_options:
            return "it has critical options, and none is defined for hosts"
        # A certificate that names no principal is good for every host: so ssh-keygen documents it.
        names = [principal.decode("utf-8", "replace").lower() for principal in self._cert.valid_principals]
        if names and not any(matches(name.lower(), [one]) for one in names):
            return f"it is for {', '.join(names)}, not for {name}"
        return None


def _day(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def certified_key(blob: bytes) -> bytes:
    """The plain key inside any certificate, a host's or a user's."""
    return _parts(blob)[0]


def _parts(blob: bytes) -> tuple[bytes, bytes, str]:
    """Plain key, authority's key and signature algorithm (layout: OpenSSH's PROTOCOL.certkeys)."""
    reader = _Reader(blob)
    plain_type = reader.string().decode("ascii").removesuffix(CERT)
    reader.string()  # nonce
    numbers = [reader.string() for _ in range(_KEY_FIELDS[plain_type])]
    plain = b"".join(len(part).to_bytes(4, "big") + part for part in (plain_type.encode(), *numbers))
    reader.skip(8 + 4)  # serial, type
    reader.string()  # key id
    reader.string()  # principals
    reader.skip(8 + 8)  # validity
    for _ in range(3):  # critical options, extensions, reserved
        reader.string()
    authority = reader.string()
    return plain, authority, _Reader(reader.string()).string().decode("ascii")


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def skip(self, size: int) -> None:
        self._at += size

    def string(self) -> bytes:
        size = int.from_bytes(self._data[self._at : self._at + 4], "big")
        self._at += 4 + size
        if self._at > len(self._data):
            raise ValueError("it is cut short")
        return self._data[self._at - size : self._at]
