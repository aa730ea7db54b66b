"""Login is by key only: what is configured, certificates first, an agent's copy for a locked file; never a prompt."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recover.edge.shell.clock import Limit, bounded, out_of_time
from recover.edge.shell.failures import ShellError, Stage, translate
from recover.edge.shell.host_key import CERT, certified_key
from recover.edge.shell.library import AgentKey, PublicBlob, paramiko
from recover.edge.shell.route import Hop
from recover.edge.shell.settings import SshSettings
from recover.edge.shell.transport import Transport
from recover.model.contact import Failure


class _CertifiedAgentKey(AgentKey):
    """A certificate that lives in the agent, alone or beside its key: asked for and shown whole."""

    def __init__(self, key: AgentKey) -> None:
        super().__init__(key.agent, key.blob, key.comment)
        self.public_blob: Any = PublicBlob(type_=key.get_name(), blob=key.blob)

    def asbytes(self) -> bytes:
        return self.blob


@dataclass(slots=True)
class _Notes:
    """Why keys could not be used and which were refused: for the one line that the person gets."""

    unusable: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        tried = f"refused: {', '.join(self.refused)}" if self.refused else "no usable key was found"
        return "; ".join([tried, *self.unusable])


def log_in(transport: Transport, hop: Hop, settings: SshSettings, limit: Limit) -> None:
    """Try each key once. Raises ShellError(AUTH) with what was tried."""
    notes = _Notes()
    near = limit.within(settings.auth_timeout)
    agent = _agent(hop, near)
    try:
        for name, key in _candidates(hop, agent, notes):
            if _accepted(transport, hop, near, limit, key):
                return
            notes.refused.append(name)
    finally:
        if agent is not None:
            agent.close()
    raise ShellError(Failure.AUTH, f"{hop.where}: the machine let us in with no key ({notes})")


def _accepted(transport: Transport, hop: Hop, near: Limit, limit: Limit, key: Any) -> bool:
    transport.auth_timeout = near.left
    try:
        further = transport.auth_publickey(hop.user, key)
    except paramiko.BadAuthenticationType as error:
        raise ShellError(Failure.AUTH, f"{hop.where}: takes no keys, only {', '.join(error.allowed_types)}") from None
    except Exception as error:
        if limit.over:
            raise out_of_time(hop.where, Stage.AUTH.value) from None
        if near.over:
            raise ShellError(Failure.TIMEOUT, f"{hop.where}: gave no answer to the login") from None
        if not transport.is_active():
            raise _hung_up(transport, hop) from None
        if isinstance(error, paramiko.AuthenticationException):
            return False
        raise translate(error, Stage.AUTH, hop.where) from None
    if further:
        raise ShellError(Failure.AUTH, f"{hop.where}: the key is right, but it also wants {', '.join(further)}")
    return True


def _hung_up(transport: Transport, hop: Hop) -> ShellError:
    """The library calls every end of a connection a failed login; only a goodbye makes it one."""
    if not transport.farewell:
        return translate(EOFError(), Stage.AUTH, hop.where)
    many = "too many authentication failures" in transport.farewell.lower()
    fix = "; name the right key by identity_file, or set IdentitiesOnly" if many else ""
    return ShellError(Failure.AUTH, f"{hop.where}: closed the login: {transport.farewell}{fix}")


def _candidates(hop: Hop, agent: _Agent | None, notes: _Notes) -> Iterator[tuple[str, Any]]:
    held = {key.asbytes(): key for key in (agent.keys if agent else ()) if not key.get_name().endswith(CERT)}
    certified = [key for key in (agent.keys if agent else ()) if key.get_name().endswith(CERT)]
    used: set[bytes] = set()
    for path in hop.identities:
        key = _from_file(path, held, notes)
        if key is None or key.asbytes() in used:
            continue
        used.add(key.asbytes())
        for certificate in _certificates(path, hop, key, notes):
            key.public_blob = certificate
            yield f"{path} with its certificate", key
        key.public_blob = None
        yield path, key
    if hop.only_these:
        return
    for proxy in certified:
        yield f"agent certificate {proxy.comment}", _CertifiedAgentKey(proxy)
    for blob, proxy in held.items():
        if blob not in used:
            yield f"agent key {proxy.comment}", proxy


def _from_file(path: str, held: dict[bytes, Any], notes: _Notes) -> Any | None:
    """The private key, or the agent's copy of it: so locked files work as they do for ssh."""
    public = _public_of(path)
    if public is not None and public in held:
        return held[public]
    try:
        return paramiko.PKey.from_path(path)
    except FileNotFoundError:
        if public is not None:
            notes.unusable.append(f"{path}: only its public half is here, and the agent does not hold it")
        return None
    except (paramiko.PasswordRequiredException, TypeError):  # TypeError: cryptography's word for "encrypted"
        notes.unusable.append(f"{path} has a passphrase and is not in the ssh-agent (ssh-add {path})")
    except Exception as error:  # a key file can be anything; it is named and passed over
        notes.unusable.append(f"{path} can't be read: {error}")
    return None


def _public_of(path: str) -> bytes | None:
    for name in (path if path.endswith(".pub") else f"{path}.pub", path):
        try:
            return PublicBlob.from_file(name).key_blob
        except (OSError, ValueError, IndexError):
            continue
    return None


def _certificates(path: str, hop: Hop, key: Any, notes: _Notes) -> Iterator[Any]:
    for name in (*hop.certificates, f"{path.removesuffix('.pub')}-cert.pub"):
        if not os.path.isfile(name):
            continue
        try:
            blob = PublicBlob.from_file(name)
            if certified_key(blob.key_blob) == key.asbytes():
                yield blob
        except Exception as error:  # as for key files
            notes.unusable.append(f"{name} can't be read: {error}")


class _Agent:
    """The ssh-agent behind one socket, which the library would only take from the environment."""

    def __init__(self, path: str) -> None:
        self._client = _AgentAt(path)
        self.keys = self._client.get_keys()

    def close(self) -> None:
        self._client.close()


class _AgentAt(paramiko.agent.AgentSSH):
    def __init__(self, path: str) -> None:
        import socket

        super().__init__()
        conn = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        conn.settimeout(20)
        try:
            conn.connect(path)
            self._connect(conn)  # type: ignore[attr-defined]
        except BaseException:
            conn.close()
            raise

    def close(self) -> None:
        self._close()  # type: ignore[attr-defined]


def _agent(hop: Hop, near: Limit) -> _Agent | None:
    """No agent is not an error; one that doesn't answer is passed over, for a file may do."""
    path = hop.agent
    if path is None or not Path(path).exists():
        return None
    try:
        return bounded(lambda: _Agent(path), Limit(time.monotonic() + near.left / 2), lambda: _SILENT)
    except Exception:  # whatever an agent does, it only means that its keys can't be had
        return None


_SILENT = ShellError(Failure.AUTH, "the ssh-agent does not answer")
