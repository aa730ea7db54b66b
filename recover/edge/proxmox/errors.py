"""Every way a call to the Proxmox API can fail is one value, and its text never holds the token's secret."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from recover.model.reading import Unknown, Why

TEXT_LIMIT = 600
_DENIED = re.compile(r"[Pp]ermission check failed \((?P<path>[^,()]*), (?P<privs>[^()]+)\)")
_NOT_THERE = re.compile(r"does not exist|no such |not found in|unable to find configuration file", re.IGNORECASE)


class Kind(StrEnum):
    """What went wrong, by what one can do about it."""

    AUTH = "auth"  # 401: the token is wrong, revoked or expired
    DENIED = "denied"  # 403: the token is right and lacks a privilege
    BAD_REQUEST = "bad-request"  # 400: we asked with wrong parameters, or this version does not know them
    NOT_THERE = "not-there"  # the guest, the node, the task or the method does not exist
    FAILED = "failed"  # 500: understood, tried, and refused or failed
    UNCLEAR = "unclear"  # no answer, or one from a proxy in between: the action may have run
    GARBLED = "garbled"  # answered, but not by a Proxmox API
    TLS = "tls"  # the certificate was not accepted: nothing was sent
    UNREACHABLE = "unreachable"  # no connection: nothing was sent
    NO_SECRET = "no-secret"  # the token's secret could not be had: nothing was sent


_WHY = {
    Kind.AUTH: Why.DENIED, Kind.DENIED: Why.DENIED, Kind.NO_SECRET: Why.DENIED, Kind.BAD_REQUEST: Why.ABSENT,
    Kind.NOT_THERE: Why.ABSENT, Kind.FAILED: Why.GARBLED, Kind.UNCLEAR: Why.TIMEOUT, Kind.GARBLED: Why.GARBLED,
    Kind.TLS: Why.UNREACHABLE, Kind.UNREACHABLE: Why.UNREACHABLE,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ApiError:
    """One failed call. `retryable`: the same *question* may be asked again; never true of an unclear POST."""

    kind: Kind
    status: int | None
    message: str
    retryable: bool
    path: str
    privilege: str = ""  # DENIED: "VM.PowerMgmt on /vms/174"
    fields: tuple[tuple[str, str], ...] = ()  # BAD_REQUEST: parameter -> complaint

    def __str__(self) -> str:
        code = f" {self.status}" if self.status else ""
        return f"{self.kind}{code}: {self.message} ({self.path})"

    def unknown(self) -> Unknown:
        """This failure as the reason why a reading is not known."""
        return Unknown(_WHY[self.kind], f"needs {self.privilege}" if self.privilege else self.message)


def clean(text: object, limit: int = TEXT_LIMIT) -> str:
    """One printable line: what a machine said must not steer a terminal or a log."""
    joined = " ".join(str(text).split())
    return "".join(c for c in joined if c.isprintable())[:limit]


def scrub(text: str, secret: str) -> str:
    return text.replace(secret, "***") if secret else text


def _fields(errors: object) -> tuple[tuple[str, str], ...]:
    if isinstance(errors, str) and errors:
        return (("errors", clean(errors, 200)),)
    if not isinstance(errors, Mapping):
        return ()
    return tuple((clean(k, 80), clean(v, 200)) for k, v in errors.items())


def from_answer(status: int, message: str, errors: object, path: str, *, posting: bool) -> ApiError:
    """The error for an answer that is not a success. Status codes as pve-http-server and AnyEvent::HTTP use them."""
    text = clean(message) or f"HTTP {status} without a message"
    if status == 401:
        return ApiError(Kind.AUTH, status, f"the API token was not accepted: {text}", False, path)
    if status == 403:
        found = _DENIED.search(text)
        privilege = f"{found['privs'].replace('|', ' or ')} on {found['path']}" if found else ""
        return ApiError(Kind.DENIED, status, text, False, path, privilege)
    if status == 501:
        return ApiError(Kind.NOT_THERE, status, text, False, path)
    if status in (404, 405, 407, 410):  # PVE has none of these: 500 is its "not there" (pve-http-server, AnyEvent.pm)
        return ApiError(Kind.GARBLED, status, f"not an answer of the Proxmox API: {text}", False, path)
    if status >= 502 or status in (408, 429):
        return ApiError(Kind.UNCLEAR, status, text, not posting, path)
    if status == 500:
        kind = Kind.NOT_THERE if _NOT_THERE.search(text) else Kind.FAILED
        return ApiError(kind, status, text, False, path)
    if status >= 400:
        fields = _fields(errors)
        said = "; ".join(f"{name}: {why}" for name, why in fields)
        return ApiError(Kind.BAD_REQUEST, status, f"{text} {said}".strip(), False, path, fields=fields)
    return ApiError(Kind.GARBLED, status, f"not an answer of the Proxmox API: {text}", False, path)


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error and all that it wraps, as requests and urllib3 nest them: in args, reason and cause.

    Not its context: an earlier attempt's refused connection must not make a later one look as if nothing was sent.
    """
    todo: list[object] = [error]
    seen: set[int] = set()
    while todo:
        one = todo.pop(0)
        if not isinstance(one, BaseException) or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        todo += [*one.args, getattr(one, "reason", None), one.__cause__]
