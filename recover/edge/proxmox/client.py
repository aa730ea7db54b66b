"""One call to the Proxmox API is one bounded question with a value for an answer; a POST is sent at most once.

A thin layer over proxmoxer (https, token only). What it adds: several URLs, a total deadline for every call, errors as
values with PVE's own message (proxmoxer drops it), retries of questions, and no retry of anything that acts.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

from recover.edge.proxmox import tls
from recover.edge.proxmox.errors import ApiError, Kind, causes, clean, from_answer, scrub
from recover.edge.proxmox.secret import NoSecret, Secret, checked

if TYPE_CHECKING:
    from requests import Response

CONNECT_SECONDS = 10.0
GET_ATTEMPTS = 4
NO_SECRET_SECONDS = 60.0  # a vault that was down is asked again after this
MOST_BYTES = 32 << 20  # of one answer: the configuration of thousands of guests is a few
DEFAULT_PORT = 8006
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Where a cluster's API is and how we prove who we are. `secret` is called once, when it is first needed.

    `timeout` is above the 30 s after which a node stops waiting for the node that it forwards a call to.
    """

    urls: tuple[str, ...]
    token_id: str  # user@realm!name
    secret: Callable[[], str | Secret | NoSecret] = field(repr=False)
    ca_file: str | None = None
    fingerprint: str | None = None
    timeout: float = 40.0

    def __post_init__(self) -> None:
        if not self.urls:
            raise ValueError("urls: at least one is needed")
        for url in self.urls:
            parts = urlsplit(url)
            if parts.scheme != "https" or not parts.hostname or parts.username is not None:
                raise ValueError(f"urls: {clean(parts.hostname or url, 100)}: expected https://host:8006")
        user, mark, name = self.token_id.rpartition("!")  # a user's name may hold one, a token's may not
        if not (mark and name and "@" in user) or "=" in self.token_id:
            raise ValueError("token_id: expected user@realm!name")
        if self.ca_file and self.fingerprint:
            raise ValueError("ca_file and fingerprint: only one of them")
        if self.fingerprint:
            object.__setattr__(self, "fingerprint", tls.normal_fingerprint(self.fingerprint))


def path(*parts: object) -> str:
    """A path for `get` and `post`, with every part quoted: names come from machines."""
    return "/" + "/".join(quote(str(part), safe="!@:") for part in parts)


class _Answered(Exception):
    """Carries a non-success out of requests' response hook, past proxmoxer, which would drop its message."""

    def __init__(self, status: int, message: str, errors: object) -> None:
        super().__init__(status)
        self.status, self.message, self.errors = status, message, errors


def _read_answer(response: Response, *_: Any, **__: Any) -> None:
    """Response hook: let only a JSON success with `data` pass on to proxmoxer.

    proxmoxer takes a page that is not JSON for data, fails with KeyError without `data`, and makes None of a redirect.
    """
    status = response.status_code
    _bound(response)
    try:
        body = response.json()
    except (ValueError, RecursionError):
        body = None
    if status == 200 and isinstance(body, Mapping) and "data" in body:
        return
    fields = body if isinstance(body, Mapping) else {}
    message = str(fields.get("message") or response.reason or "")
    if 200 <= status < 400:
        to = response.headers.get("location")
        message = f"redirected to {to}" if to else "the body is not the JSON of a Proxmox API"
    raise _Answered(status, message, fields.get("errors"))


def _bound(response: Response) -> None:
    """Read the body now, and no more of it than an API could mean: whatever answers there may go on for ever."""
    body = bytearray()
    for piece in response.iter_content(1 << 16):
        body += piece
        if len(body) > MOST_BYTES:
            response.close()
            raise _Answered(response.status_code, f"the answer is longer than {MOST_BYTES >> 20} MiB", None)
    response._content = bytes(body)


def bounded(seconds: float, work: Callable[[], T]) -> T:
    """Do `work`, but wait for it no longer than `seconds` in total; then it is left behind and TimeoutError raised.

    requests' time-outs are per read, and name resolution has none: a server that trickles would hold us for ever.
    """
    box: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            box.put((work(), None))
        except BaseException as error:  # raised again in the caller's thread
            box.put((None, error))

    threading.Thread(target=run, daemon=True, name="proxmox-call").start()
    try:
        value, error = box.get(timeout=max(seconds, 0.001))
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:.0f} s") from None
    if error is not None:
        raise error
    return value  # type: ignore[return-value]


class Client:
    """The API of one cluster. Safe to use from several threads: a connection serves one call at a time."""

    def __init__(self, settings: ClusterSettings, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self.settings = settings
        self.warnings: tuple[str, ...] = ()  # what is unsafe about the secret's place; filled once it was read
        self._sleep = sleep
        self._lock = threading.Lock()
        self._secret: str | NoSecret | None = None
        self.server_time = 0  # the clock of the node that answered last, seconds since the epoch
        self._asked_at = 0.0
        self._good = 0
        self._idle: dict[str, list[Any]] = {}

    def __repr__(self) -> str:
        return f"Client({self.settings.urls[self._good]}, {self.settings.token_id})"

    def close(self) -> None:
        """End the idle connections. The client can still be used; it will connect anew."""
        with self._lock:
            idle, self._idle = [api for apis in self._idle.values() for api in apis], {}
        for api in idle:
            api._store["session"].close()

    def get(self, where: str, *, deadline: float | None = None, **params: Any) -> Any | ApiError:
        """Ask. Asked again while no answer comes, at most `deadline` seconds in total."""
        from tenacity import Retrying, retry_if_result, stop_after_attempt, stop_before_delay, wait_exponential

        total = deadline if deadline is not None else 2 * self.settings.timeout + CONNECT_SECONDS
        ends = time.monotonic() + total

        def attempt() -> Any | ApiError:
            return self._anywhere("get", where, params, max(ends - time.monotonic(), 0.1))

        asking = Retrying(
            stop=stop_before_delay(total) | stop_after_attempt(GET_ATTEMPTS),
            wait=wait_exponential(multiplier=0.25, max=5),
            retry=retry_if_result(lambda answer: isinstance(answer, ApiError) and answer.retryable),
            retry_error_callback=lambda state: state.outcome.result() if state.outcome else None,
            sleep=self._sleep,
        )
        return asking(attempt)

    def post(self, where: str, *, deadline: float | None = None, **params: Any) -> Any | ApiError:
        """Act. Sent at most once; UNCLEAR means that it may have run, and the caller must find out."""
        total = deadline if deadline is not None else self.settings.timeout + CONNECT_SECONDS
        return self._anywhere("post", where, params, total)

    def _anywhere(self, method: str, where: str, params: Mapping[str, Any], seconds: float) -> Any | ApiError:
        """Try the URLs from the last good one on, and go to the next only where nothing was sent."""
        ends = time.monotonic() + seconds
        urls = self.settings.urls
        first: ApiError | None = None
        start = self._good
        for turn in range(len(urls)):
            number = (start + turn) % len(urls)
            answer = self._once(urls[number], method, where, params, max(ends - time.monotonic(), 0.1))
            if not (isinstance(answer, ApiError) and answer.kind in (Kind.TLS, Kind.UNREACHABLE)):
                # A node that does not answer may be the sick one: the next question goes to its neighbour.
                unclear = isinstance(answer, ApiError) and answer.kind is Kind.UNCLEAR
                self._good = (number + 1) % len(urls) if unclear else number
                return answer
            # a certificate that was refused says more than a node that is down
            if first is None or (answer.kind is Kind.TLS and first.kind is not Kind.TLS):
                first = answer
            if time.monotonic() >= ends:
                break
        assert first is not None
        return first

    def _once(self, url: str, method: str, where: str, params: Mapping[str, Any], seconds: float) -> Any | ApiError:
        secret = self._token_secret()
        if isinstance(secret, NoSecret):
            return ApiError(Kind.NO_SECRET, None, secret.reason, False, where)
        posting = method == "post"
        given = {k: int(v) if isinstance(v, bool) else v for k, v in params.items() if v is not None}
        try:
            api = self._take(url, secret, seconds)
            if posting:
                # A kept-alive connection that the node closes meanwhile would make this POST's end unclear.
                api._store["session"].close()
            answer = bounded(seconds, lambda: getattr(api(where.strip("/")), method)(**given))
        except _Answered as said:
            self._give(url, api)
            return self._refused(said, where, scrub(said.message, secret), posting)
        except Exception as error:
            failed = _broken(error, url, where, secret, posting)
            if failed is not None:
                return failed
            if secret in str(error):
                raise RuntimeError(clean(scrub(str(error), secret))) from None
            raise
        self._give(url, api)
        return answer

    @staticmethod
    def _refused(said: _Answered, where: str, message: str, posting: bool) -> ApiError:
        if posting and said.status < 300:  # something took our POST and answered nonsense
            return ApiError(Kind.UNCLEAR, said.status, clean(message), False, where)
        return from_answer(said.status, message, said.errors, where, posting=posting)

    def _token_secret(self) -> str | NoSecret:
        with self._lock:
            stale = isinstance(self._secret, NoSecret) and time.monotonic() - self._asked_at > NO_SECRET_SECONDS
            if self._secret is None or stale:
                self._asked_at = time.monotonic()
                try:
                    had = self.settings.secret()
                except Exception as error:  # its text may hold the secret
                    had = NoSecret(f"the secret could not be had ({type(error).__name__})")
                had = checked(had, "the secret") if isinstance(had, str) else had
                self._secret = had.value if isinstance(had, Secret) else had
                self.warnings = had.warnings if isinstance(had, Secret) else ()
            return self._secret

    def _take(self, url: str, secret: str, seconds: float) -> Any:
        """A connection that no other call uses: proxmoxer's session must not be shared between threads."""
        with self._lock:
            idle = self._idle.setdefault(url, [])
            api = idle.pop() if idle else None
        api = api if api is not None else _connect(self.settings, url, secret, self._note_time)
        # The session is not public, and the time-out of a single call can only be set there.
        limit = min(self.settings.timeout, seconds)
        api._store["session"].auth.timeout = (min(CONNECT_SECONDS, limit), limit)
        return api

    def _note_time(self, response: Response, *_: Any, **__: Any) -> None:
        with suppress(ValueError, TypeError, OverflowError):  # without a Date the time is not known
            self.server_time = int(parsedate_to_datetime(response.headers.get("date", "")).timestamp())

    def _give(self, url: str, api: Any) -> None:
        with self._lock:
            self._idle.setdefault(url, []).append(api)


def _connect(settings: ClusterSettings, url: str, secret: str, note: Callable[..., None]) -> Any:
    from proxmoxer import ProxmoxAPI

    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    user, _, name = settings.token_id.rpartition("!")
    api: Any = ProxmoxAPI(
        f"{host}:{parts.port or DEFAULT_PORT}", backend="https", user=user, token_name=name, token_value=secret,
        verify_ssl=settings.ca_file or True, timeout=settings.timeout, path_prefix=parts.path.strip("/") or None,
    )  # fmt: skip
    session = api._store["session"]
    session.mount("https://", tls.adapter(settings.ca_file, settings.fingerprint))
    session.hooks["response"] += [note, _read_answer]
    return api


def _broken(error: Exception, url: str, where: str, secret: str, posting: bool) -> ApiError | None:
    """The value for an exception of the network; None if it is ours."""
    import requests
    from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError

    host = urlsplit(url).netloc
    certificate = tls.explain(error)
    if certificate is not None:
        return ApiError(Kind.TLS, None, f"{host}: {scrub(certificate, secret)}", False, where)
    if not isinstance(error, (requests.RequestException, HTTPError, OSError)):
        return None
    chain = list(causes(error))
    text = f"{host}: {clean(scrub(str(_innermost(chain)), secret), 200)}"
    if any(isinstance(one, (NewConnectionError, ConnectTimeoutError)) for one in chain):
        return ApiError(Kind.UNREACHABLE, None, text, True, where)
    if isinstance(error, requests.exceptions.SSLError) and not posting:
        return ApiError(Kind.TLS, None, text, False, where)
    return ApiError(Kind.UNCLEAR, None, text, not posting, where)


def _innermost(chain: list[BaseException]) -> BaseException:
    """The most telling of nested exceptions: the system's own word if there is one."""
    for one in reversed(chain):
        if isinstance(one, OSError) and one.strerror:
            return one
    return chain[0]
