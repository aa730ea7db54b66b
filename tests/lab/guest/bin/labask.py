"""One question to pid 1 of the lab's guest. Standard library, Python 3.6+."""

import json
import socket


def ask(op, **more):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(10)
        sock.connect("/run/lab/init.sock")
        sock.sendall(json.dumps(dict(more, op=op)).encode() + b"\n")
        return json.loads(sock.makefile("rb").readline() or b'{"ok": false, "error": "pid 1 said nothing"}')
