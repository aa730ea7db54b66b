"""Building writes only into the folder it is given, and a folder built from the same sources is not built again.

    built = build(out)                          # or build(out, variant="r470" | "r535")
    built.lib        folder with libnvidia-ml.so.1 and libcuda.so.1    (LD_LIBRARY_PATH)
    built.bin        folder with the executable `nvidia-smi`           (PATH)
    built.env(state, dev="/dev") -> dict    # FAKENVML_STATE, FAKENVML_DEV, LD_LIBRARY_PATH, PATH (bin first)

The wrapper `nvidia-smi` runs this interpreter, isolated, on a copy of the sources inside `out` (package fakedriver,
also for workers: put `built.root` on sys.path and import fakedriver.state), so that neither the environment of a guest
nor its working folder changes what it does.  `python` names another interpreter (3.11 or later).
Raises BuildError (a sentence for a person) if there is no C compiler or it fails.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
C_SOURCES = ("fakestate.h", "fakemap.h", "fakenvml.c", "fakecuda.c", "build.py")
PY_SOURCES = ("layout.py", "state.py", "nvidia_smi.py", "smi_report.py", "smi_query.py")
VARIANTS = {"modern": [], "r470": ["-DFAKE_R470"], "r535": ["-DSTRIDE=32"]}
FLAGS = ["-shared", "-fPIC", "-O1", "-std=gnu11", "-Wall", "-Wextra", "-Wno-unused-function", "-fvisibility=hidden"]

WRAPPER = """#!/bin/sh
exec {python} -I -S -c 'import sys; sys.path.insert(0, "{folder}"); from fakedriver.nvidia_smi import main; main()' "$@"
"""


class BuildError(RuntimeError):
    """The fake driver cannot be built here; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Built:
    root: Path

    @property
    def lib(self) -> Path:
        return self.root / "lib"

    @property
    def bin(self) -> Path:
        return self.root / "bin"

    def env(self, state: str | os.PathLike[str], dev: str | os.PathLike[str] = "/dev") -> dict[str, str]:
        path = os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        return {
            "FAKENVML_STATE": os.fspath(state),
            "FAKENVML_DEV": os.fspath(dev),
            "LD_LIBRARY_PATH": str(self.lib),
            "PATH": f"{self.bin}:{path}",
        }


def build(out: str | os.PathLike[str], variant: str = "modern", python: str | None = None) -> Built:
    root = Path(out).resolve()
    interpreter = python or sys.executable
    stamp = root / "stamp"
    digest = _digest(variant, interpreter, root)
    if stamp.is_file() and stamp.read_text() == digest:
        return Built(root)
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise BuildError("the fake NVIDIA driver needs a C compiler: none of cc, gcc, clang is on PATH")
    if set(str(root)) & set("'\"\\ "):
        raise BuildError(f"the build folder's name must not need quoting in a shell: {root}")
    for folder in ("lib", "bin", "fakedriver"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    _compile(compiler, "fakenvml.c", root / "lib" / "libnvidia-ml.so.1", VARIANTS[variant])
    _compile(compiler, "fakecuda.c", root / "lib" / "libcuda.so.1", [])
    (root / "fakedriver" / "__init__.py").write_text("")
    for name in PY_SOURCES:
        shutil.copyfile(HERE / name, root / "fakedriver" / name)
    wrapper = root / "bin" / "nvidia-smi"
    wrapper.write_text(WRAPPER.format(python=interpreter, folder=root))
    wrapper.chmod(0o755)
    stamp.write_text(digest)
    return Built(root)


def _digest(variant: str, interpreter: str, root: Path) -> str:
    seen = hashlib.sha256(f"{variant}\0{interpreter}\0{root}\0".encode())
    for name in (*C_SOURCES, *PY_SOURCES):
        seen.update((HERE / name).read_bytes())
    return seen.hexdigest()


def _compile(compiler: str, source: str, target: Path, defines: list[str]) -> None:
    # Compiled aside and renamed: a process that has the old library mapped keeps it, and none ever loads half of one.
    draft = target.with_suffix(f".{os.getpid()}.new")
    command = [compiler, *FLAGS, f"-Wl,-soname,{target.name}", *defines, "-o", str(draft), str(HERE / source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise BuildError(f"{source} does not compile:\n{done.stderr}")
    os.replace(draft, target)
