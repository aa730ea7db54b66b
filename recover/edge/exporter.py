"""What is known is served at /metrics, to whoever asks by GET; nothing that is asked here looks, acts or changes.

It holds finished figures only: no target, no connection and no actuator can be reached from it.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, make_wsgi_app
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from recover.core.report.check.prometheus import EXPORTER_METRICS, METRICS, Sample, families

_READ_S = 10.0  # between two bytes of a request
_WHOLE_S = 30.0  # from its first byte to the end of the answer
_AT_ONCE = 32  # requests; more are hung up on
_TEXT = ("Content-Type", "text/plain; charset=utf-8")
_LOOK_AT = "gpu_recover_look_timestamp_seconds"


class Board:
    """The newest samples of each target. Safe for many threads."""

    def __init__(self, own: Callable[[], Iterable[tuple[str, float]]]) -> None:
        self._own = own
        self._lock = threading.Lock()
        self._samples: dict[str, tuple[Sample, ...]] = {}
        self._lasting: dict[str, tuple[Sample, ...]] = {}
        self._looked: dict[str, Sample] = {}
        self._wanted: set[str] | None = None  # None: all

    def put(self, target: str, samples: Iterable[Sample]) -> None:
        """The time of the last look that came back stays when one did not: that it grows old is how it shows."""
        told = tuple(samples)
        with self._lock:
            if self._wanted is not None and target not in self._wanted:
                return
            at = next((sample for sample in told if sample[0] == _LOOK_AT), None)
            if at is not None:
                self._looked[target] = at
            elif target in self._looked:
                told = (*told, self._looked[target])
            self._samples[target] = told

    def stands(self, target: str, samples: Iterable[Sample]) -> None:
        """What many looks say of it, beside what the newest says; none: nothing is known of that any more."""
        told = tuple(samples)
        with self._lock:
            if self._wanted is None or target in self._wanted:
                self._lasting[target] = told

    def keep(self, targets: Iterable[str]) -> None:
        """Forget all others, also those that are told of later."""
        wanted = set(targets)
        with self._lock:
            self._wanted = wanted
            self._samples = {name: told for name, told in self._samples.items() if name in wanted}
            self._lasting = {name: told for name, told in self._lasting.items() if name in wanted}
            self._looked = {name: at for name, at in self._looked.items() if name in wanted}

    def metrics(self) -> Iterator[Metric]:
        with self._lock:
            told = [sample for name in sorted(self._samples) for sample in self._samples[name]]
            told += [sample for name in sorted(self._lasting) for sample in self._lasting[name]]
        for name, series in families(told).items():
            metric = Metric(name, METRICS[name], "gauge")
            for labels, value in series:
                metric.add_sample(name, dict(labels), value)
            yield metric
        for name, value in self._own():
            kind, about = EXPORTER_METRICS[name]
            metric = Metric(name.removesuffix("_total") if kind == "counter" else name, about, kind)
            metric.add_sample(name, {}, value)
            yield metric


class _Collector(Collector):
    def __init__(self, board: Board) -> None:
        self._board = board

    def collect(self) -> Iterator[Metric]:
        return self._board.metrics()

    def describe(self) -> Iterator[Metric]:
        """All names, so that a scraper may ask for some of them."""
        for name, about in METRICS.items():
            yield Metric(name, about, "gauge")
        for name, (kind, about) in EXPORTER_METRICS.items():
            yield Metric(name.removesuffix("_total"), about, kind)


class Server:
    """Listens from the moment it is made; `close` ends it and the requests that it serves. OSError: it can't listen."""

    def __init__(self, host: str, port: int, board: Board, trouble: Callable[[], str]) -> None:
        self._http = _Http(host, port)
        self._http.set_app(_application(board, trouble))
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.2,), daemon=True, name="http")
        self._thread.start()

    @property
    def url(self) -> str:
        host, port = self._http.server_address[:2]
        name = str(host)
        return f"http://{f'[{name}]' if ':' in name else name}:{port}"

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join(5.0)
        self._http.server_close()
        self._http.hang_up()


def _application(board: Board, trouble: Callable[[], str]) -> Callable[..., Iterable[bytes]]:
    registry = CollectorRegistry()
    registry.register(_Collector(board))
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    # Both text formats, gzip and name[] are its work: what a scraper says that it accepts.
    metrics = make_wsgi_app(registry)

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path, method = environ.get("PATH_INFO"), environ.get("REQUEST_METHOD")
        if path not in ("/metrics", "/healthz"):
            start("404 Not Found", [_TEXT])
            return [b"only /metrics and /healthz are here\n"]
        if method != "GET":
            start("405 Method Not Allowed", [_TEXT, ("Allow", "GET")])
            return [b"only GET is served\n"]
        if path == "/metrics":
            served: Iterable[bytes] = metrics(environ, start)
            return served
        wrong = trouble()
        start("503 Service Unavailable" if wrong else "200 OK", [_TEXT])
        return [f"{wrong or 'ok'}\n".encode()]

    return answer


class _Http(ThreadingMixIn, WSGIServer):
    """A thread for each request, only so many at once, each within a total time."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._places = threading.Semaphore(_AT_ONCE)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        # The library's own asks the resolver for this machine's name, for as long as that takes.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "localhost", int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        cutter = threading.Timer(_WHOLE_S, _hang_up, (request,))
        cutter.daemon = True
        cutter.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            cutter.cancel()
            with self._lock:
                self._open.discard(request)
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who hung up, or sent what is no request, is no news for our log."""

    def hang_up(self) -> None:
        with self._lock:
            still = list(self._open)
        for request in still:
            _hang_up(request)


def _hang_up(request: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has ended by itself
        request.shutdown(socket.SHUT_RDWR)


class _Handler(WSGIRequestHandler):
    timeout = _READ_S

    def log_message(self, format: str, *args: object) -> None:
        """A scrape is no news."""
