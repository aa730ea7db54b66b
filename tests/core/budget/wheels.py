"""The real releases, once per machine: what a release says is read from its wheel, and a wheel that can't be had fails.

Only the source files that speak of host memory are kept (a few MB in all), nothing is installed. SGLang's wheels are
downloaded whole by pip, which checks their hash. vLLM's have hundreds of MB of binaries, so pip only says where the
wheel is, and the few files are taken out of it with range requests (zip checks each file's CRC).
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from recover.guest.budget import MENTIONS, WHERE

ROOT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpu-recover-tests" / "sources"
_FORMAT = 2
# One platform for every machine that runs the tests: the Python sources are the same on all of them.
_PLATFORM = ["--no-deps", "--only-binary=:all:", "--python-version", "3.11", "--implementation", "cp", "--abi", "cp311",
             "--abi", "abi3", "--abi", "none"]  # fmt: skip
_PLATFORM += [f"--platform=manylinux_2_{minor}_x86_64" for minor in range(39, 16, -1)]


def sources(engine: str, version: str) -> dict[str, str]:
    """Path within the package -> text, of every file that speaks of host memory."""
    folder = ROOT / f"{engine}-{version}-{_FORMAT}"
    if not folder.is_dir():
        with _alone(engine, version):
            if not folder.is_dir():
                _fetch(engine, version, folder)
    return {str(p.relative_to(folder)): p.read_text("utf-8") for p in sorted(folder.rglob("*.py"))}


@cache
def newest(engine: str) -> str:
    return str(_report(engine)["metadata"]["version"])


@contextmanager
def _alone(engine: str, version: str) -> Iterator[None]:
    """Test processes share the cache: one of them fetches."""
    ROOT.mkdir(parents=True, exist_ok=True)
    with (ROOT / f".{engine}-{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(engine: str, version: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=ROOT) as temporary:
        taken = Path(temporary) / "sources"
        if engine == "vllm":
            url = _report(f"{engine}=={version}")["download_info"]["url"]
            with zipfile.ZipFile(io.BufferedReader(_Ranges(url), 1 << 20)) as wheel:
                _take(wheel, engine, taken)
        else:
            _pip("download", "-d", temporary, *_PLATFORM, f"{engine}=={version}")
            (file,) = Path(temporary).glob("*.whl")
            with zipfile.ZipFile(file) as wheel:
                _take(wheel, engine, taken)
        assert any(taken.rglob("*.py")), f"{engine} {version}: no file of the wheel speaks of host memory"
        shutil.move(taken, folder)


def _take(wheel: zipfile.ZipFile, engine: str, folder: Path) -> None:
    """The files that the guest agent would send: its own choice of folders and words."""
    for name in wheel.namelist():
        if name.endswith(".py") and re.match(WHERE[engine], name):
            text = wheel.read(name)
            if re.search(MENTIONS[engine], text.decode("utf-8", "replace")):
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(text)


def _pip(*words: str) -> str:
    command = [sys.executable, "-m", "pip", *words, "--quiet", "--disable-pip-version-check", "--no-input"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"pip {words[0]} {words[-1]}: {done.stderr[-600:]}"
    return done.stdout


def _report(requirement: str) -> dict:
    """What pip would install: its metadata and where it lies, without downloading it."""
    target = ["--target", str(ROOT / "never-installed")]
    said = _pip("install", "--dry-run", "--ignore-installed", "--report", "-", *target, *_PLATFORM, requirement)
    (item,) = json.loads(said)["install"]
    return item


class _Ranges(io.RawIOBase):
    """A file on a web server, read in pieces."""

    def __init__(self, url: str) -> None:
        self._url, self._at = url, 0
        bundle = os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE")
        self._tls = ssl.create_default_context(cafile=bundle)
        with self._open({"Range": "bytes=0-0"}) as answer:
            assert answer.status == 206, f"{url}: no range requests"
            self._size = int(answer.headers["Content-Range"].rpartition("/")[2])

    def _open(self, headers: dict[str, str]):
        return urllib.request.urlopen(urllib.request.Request(self._url, headers=headers), timeout=60, context=self._tls)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer) -> int:
        count = min(len(buffer), self._size - self._at)
        if count <= 0:
            return 0
        with self._open({"Range": f"bytes={self._at}-{self._at + count - 1}"}) as answer:
            data = answer.read()
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
