"""A pretend serving engine: real processes with an engine's shape, which only declare what they would hold.

It reads its behaviour from the JSON file named by LAB_SPEC; the lab's keeper turns the declared rows into GPU memory
and RAM. Standard library only: it runs under whatever `python` the guest has.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from labproc import cover_status, leader_exits, set_comm, set_title, start_time

REG = "/run/lab/reg"
UTIL = {"healthy": 37, "hung": 100, "loading": 2}  # a rank that waits in a collective spins
SPEC: dict[str, Any] = {}
_keep: list[Any] = []


def note(event: str, **more: object) -> None:
    line = json.dumps({"event": event, "pid": os.getpid(), "t": time.time(), **more}) + "\n"
    fd = os.open("/run/lab/notes.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(fd, line.encode())
    os.close(fd)


def declare(kind: str, rank: int | None, cover: bool = True, **more: object) -> None:
    row = {"pid": os.getpid(), "start": start_time("self"), "kind": kind, "group": SPEC["group"], "rank": rank, **more}
    path = f"{REG}/{os.getpid()}.json"
    with open(path + ".new", "w", encoding="utf-8") as handle:
        json.dump(row, handle)
    os.rename(path + ".new", path)
    if cover:
        cover_status(f"/proc/{os.getpid()}/status")


def hold_devices(gpus: list[int]) -> None:
    for name in ["nvidiactl", "nvidia-uvm", *(f"nvidia{index}" for index in gpus)]:
        try:
            _keep.append(os.open(f"/dev/{name}", os.O_RDWR))
        except OSError:
            continue


def on_signals(policy: str) -> None:
    """`exit`: at once; `ignore`: SIGTERM, SIGINT and SIGHUP change nothing; each is written down."""

    def handler(number: int, _frame: object) -> None:
        note("signal", signal=signal.Signals(number).name)
        if policy != "ignore" or number == signal.SIGQUIT:
            os._exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, handler)


def sleep_for_ever(grow_s: float = 0.0) -> None:
    end = time.monotonic() + grow_s
    while time.monotonic() < end:
        _keep.append(bytearray(os.urandom(1)) * (256 << 10))
        time.sleep(0.5)
    while True:
        time.sleep(3600)


# ------------------------------------------------------------------------------------------------ ranks


def rank_main(rank: int, fate: str) -> None:
    spec = {**SPEC, **SPEC.get("rank_overrides", {}).get(str(rank), {})}
    os.setpgid(0, 0) if spec.get("own_pgid") else None
    set_title(spec.get("rank_title", "sglang::scheduler_TP{rank}").format(rank=rank))
    if fate == "zombie":
        os._exit(1)
    on_signals(spec.get("term", "exit"))
    gpu = spec.get("gpus", list(range(SPEC["tp"])))[rank % SPEC["tp"]]
    hold_devices([gpu])
    load_s = float(spec.get("load_s", 0))
    declare(
        "rank",
        rank,
        cover=fate != "defunct-leader",
        gpus={str(gpu): spec.get("vram_mib", 80000)},
        ram_gib=spec.get("ram_gib", 4),
        load_s=load_s,
        shmem=spec.get("shmem", False),
        release_s=spec.get("release_s", 0),
        leak_vram_mib=spec.get("leak_vram_mib", 0),
        leak_ram_gib=spec.get("leak_ram_gib", 0),
        util=spec.get("util", UTIL.get(SPEC.get("mode", ""), 0)),
    )
    if fate == "defunct-leader":
        threading.Thread(target=_stuck_thread, args=(load_s,), daemon=True).start()
        time.sleep(0.1)
        leader_exits()
    sleep_for_ever(load_s)


def _stuck_thread(load_s: float) -> None:
    cover_status(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/status")
    sleep_for_ever(load_s)


def spawn(target: Any, *args: Any) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            target(*args)
        finally:
            os._exit(1)
    return pid


def detokenizer() -> None:
    set_title("sglang::detokenizer")
    on_signals(SPEC.get("term", "exit"))
    declare("detokenizer", None, gpus={}, ram_gib=0.5, load_s=0, release_s=0)
    sleep_for_ever()


# ------------------------------------------------------------------------------------------------ the HTTP side


class Engine:
    """What /health and /metrics say: tokens move only while the engine is healthy."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.born = time.monotonic()

    def tokens(self) -> int:
        return 918273 + (int((time.monotonic() - self.born) * 800) if self.mode == "healthy" else 0)

    def metrics(self) -> str:
        running = SPEC.get("running_reqs", 0 if self.mode == "idle" else 12)
        labels = '{model_name="lab/model",tp_rank="0"}'
        rows = [
            ("generation_tokens_total", "counter", self.tokens()),
            ("prompt_tokens_total", "counter", self.tokens() * 3),
            ("num_running_reqs", "gauge", running),
            ("num_queue_reqs", "gauge", 4 if self.mode == "hung" else 0),
            ("gen_throughput", "gauge", 800 if self.mode == "healthy" else 0),
            ("token_usage", "gauge", 0.41),
        ]
        return "".join(f"# TYPE sglang:{n} {k}\nsglang:{n}{labels} {float(v)}\n" for n, k, v in rows)


class Handler(BaseHTTPRequestHandler):
    engine: Engine
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path in ("/health", "/health_generate"):
            return self.health()
        if path == "/metrics":
            return self.answer(200, self.engine.metrics(), "text/plain; version=0.0.4")
        if path in ("/model_info", "/get_model_info"):
            return self.answer(200, json.dumps({"model_path": "lab/model", "is_generation": True}))
        if path == "/v1/models":
            return self.answer(200, json.dumps({"data": [{"id": "lab/model"}]}))
        if path in ("/server_info", "/get_server_info") and self.engine.mode != "hung":
            return self.answer(200, json.dumps({"version": "0.5.9", "tp_size": SPEC["tp"]}))
        if path in ("/server_info", "/get_server_info"):
            time.sleep(600)
        return self.answer(404, "{}")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/completions":
            return self.answer(404, "{}")
        if self.engine.mode == "hung":
            time.sleep(600)
        note("request", model=body["model"], tokens=body["max_tokens"])
        return self.answer(200, json.dumps({"choices": [{"text": " there", "finish_reason": "length"}]}))

    def health(self) -> None:
        note("health-asked")
        if self.engine.mode == "hung":
            time.sleep(float(SPEC.get("health_timeout_s", 20)))
            return self.answer(503, "")
        time.sleep(0.05)
        return self.answer(200, "")

    def answer(self, status: int, body: str, kind: str = "application/json") -> None:
        raw = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_args: object) -> None:
        return


def serve(mode: str) -> None:
    Handler.engine = Engine(mode)
    ThreadingHTTPServer.daemon_threads = True
    ThreadingHTTPServer.allow_reuse_address = True
    for _ in range(100):
        try:
            server = ThreadingHTTPServer((SPEC.get("host", "127.0.0.1"), int(SPEC.get("port", 30000))), Handler)
            break
        except OSError:
            time.sleep(0.1)
    else:
        sleep_for_ever()
    threading.Thread(target=server.serve_forever, daemon=True).start()


# ------------------------------------------------------------------------------------------------ the launch


def launch_number() -> int:
    """Counts over restarts and boots, so that a scenario can say how the second launch differs from the first."""
    path = f"/run/lab/launches/{SPEC['group']}"
    try:
        with open(path, encoding="utf-8") as handle:
            number = int(handle.read())
    except (OSError, ValueError):
        number = 0
    with open(path, "w", encoding="utf-8") as handle:
        handle.write(str(number + 1))
    return number


def leave_shm() -> None:
    for name in SPEC.get("shm", []):
        with open("/dev/shm/" + name.format(pid=os.getpid()), "wb") as handle:
            handle.write(os.urandom(1 << 16))
            if name in SPEC.get("shm_mib", {}):
                os.posix_fallocate(handle.fileno(), 0, SPEC["shm_mib"][name] << 20)


def main() -> None:
    with open(os.environ["LAB_SPEC"], encoding="utf-8") as handle:
        SPEC.update(json.load(handle))
    launches = SPEC.pop("launches", None) or [{}]
    number = launch_number()
    SPEC.update(launches[min(number, len(launches) - 1)])
    mode = SPEC.get("mode", "healthy")
    note("launch", group=SPEC["group"], number=number, mode=mode)
    set_comm(b"python")
    on_signals(SPEC.get("main_term", SPEC.get("term", "exit")))
    declare("main", None, gpus={}, ram_gib=SPEC.get("main_ram_gib", 2), load_s=0, release_s=0)
    leave_shm()
    fates = SPEC.get("fates", {})
    for rank in range(SPEC["tp"]):
        spawn(rank_main, rank, fates.get(str(rank), "alive"))
    if SPEC.get("detokenizer", True):
        spawn(detokenizer)
    if mode == "loading":
        time.sleep(float(SPEC.get("load_s", 60)))
        mode = SPEC.get("after_loading", "healthy")
    if SPEC.get("main_exits"):
        time.sleep(0.3)
        os._exit(1)
    if mode != "dead":
        serve(mode)
    parent_waits()


def parent_waits() -> None:
    """`reap`: a rank's death ends the server, as with a child watchdog; otherwise the dead stay defunct."""
    if not SPEC.get("reap"):
        sleep_for_ever()
    while True:
        try:
            os.wait()
        except ChildProcessError:
            sys.exit(1)
        except InterruptedError:
            continue


if __name__ == "__main__":
    main()
