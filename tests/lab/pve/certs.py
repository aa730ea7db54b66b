# SPDX-License-Identifier: AGPL-3.0-or-later
"""Every server has its own CA, as every Proxmox cluster has, so that nothing verifies by accident."""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VARIANTS = ("good", "expired", "wrong-host")


@dataclass(frozen=True, slots=True)
class Pki:
    ca_file: Path
    cert_file: Path
    key_file: Path
    fingerprint: str  # SHA-256 of the server certificate, as Proxmox prints it: AB:CD:...


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=ca,
        encipher_only=False,
        decipher_only=False,
    )


def _write(path: Path, data: bytes, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as out:
        out.write(data)


def make_pki(directory: Path, host: str = "127.0.0.1", variant: str = "good") -> Pki:
    """Writes ca.pem, server.pem and server.key."""
    if variant not in VARIANTS:
        raise ValueError(f"certificate {variant!r} is none of {VARIANTS}")
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca_id = x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key())
    ca = (
        x509.CertificateBuilder()
        .subject_name(_name("Lab PVE Root CA"))
        .issuer_name(_name("Lab PVE Root CA"))
        .public_key(ca_key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 60 * day)
        .not_valid_after(now + 60 * day)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(ca=True), critical=True)
        .add_extension(ca_id, critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    until = now - day if variant == "expired" else now + 30 * day
    names: list[x509.GeneralName]
    if variant == "wrong-host":
        names = [x509.DNSName("other.example.org"), x509.IPAddress(ipaddress.ip_address("192.0.2.77"))]
    else:
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(host))]
    key = ec.generate_private_key(ec.SECP256R1())
    cert = (
        x509.CertificateBuilder()
        .subject_name(_name("pve1.lab"))
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 30 * day)
        .not_valid_after(until)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(ca=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(ca_id), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    pki = Pki(
        directory / "ca.pem",
        directory / "server.pem",
        directory / "server.key",
        hashlib.sha256(cert.public_bytes(serialization.Encoding.DER)).hexdigest().upper(),
    )
    pretty = ":".join(pki.fingerprint[i : i + 2] for i in range(0, len(pki.fingerprint), 2))
    _write(pki.ca_file, ca.public_bytes(serialization.Encoding.PEM), 0o644)
    _write(pki.cert_file, cert.public_bytes(serialization.Encoding.PEM), 0o644)
    _write(
        pki.key_file,
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
        0o600,
    )
    return Pki(pki.ca_file, pki.cert_file, pki.key_file, pretty)
