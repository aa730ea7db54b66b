"""A look without Python on the guest: one sh script and its sections, read-only and with its gaps named."""

from __future__ import annotations

import re

from recover.core.clean import clean
from recover.core.read import procfs, smi_xml
from recover.core.redact import redact_text
from recover.model.gpu import Condition, Driver, Gpu
from recover.model.guest import Guest, GuestIdentity, Mark
from recover.model.memory import KernelLine
from recover.model.process import Process, ProcessId
from recover.model.reading import Known, Reading, Unknown, Why, map_known

# `timeout` is in coreutils and busybox; where it is missing, nvidia-smi is not asked: it could hang for ever.
SCRIPT = r"""
s() { echo "=== $1"; }
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
s boot; cat /proc/sys/kernel/random/boot_id
s uptime; cat /proc/uptime
s hostname; cat /proc/sys/kernel/hostname
s kernel; cat /proc/sys/kernel/osrelease
s dmi; cat /sys/class/dmi/id/product_uuid 2>/dev/null
s machine; cat /etc/machine-id 2>/dev/null
s uid; id -u
s macs; cat /sys/class/net/e*/address 2>/dev/null
s meminfo; cat /proc/meminfo
s stat; cat /proc/[0-9]*/stat 2>/dev/null
s cmdline; ps -eo pid=,args= 2>/dev/null || ps -o pid,args 2>/dev/null
s version; cat /proc/driver/nvidia/version 2>/dev/null
s pci; for d in /sys/bus/pci/devices/*; do read v < $d/vendor; read c < $d/class
case $v$c in 0x10de0x03*) echo ${d##*/};; esac; done 2>/dev/null
s dmesg; if command -v timeout >/dev/null; then timeout 5 dmesg 2>/dev/null | tail -n 2000; fi
s smi; if command -v nvidia-smi >/dev/null && command -v timeout >/dev/null
then timeout -k 2 25 nvidia-smi -q -x </dev/null 2>&1; echo "=== smi-exit"; echo $?; else echo "=== no-smi"; fi
s end
"""
_STAT = re.compile(r"^(\d{1,9}) \((.*)\) (\w) (-?\d{1,20}(?: -?\d{1,20}){20,})(?![\d])", re.M)
_KERNEL = re.compile(r"^(?:<\d+>)?\[\s*(\d+)\.(\d{6})\]\s?(.*)$", re.M)
_PAGE_KIB = 4


def sections(text: str) -> dict[str, str]:
    parts = re.split(r"^=== ([a-z-]+)\n", text, flags=re.M)
    found: dict[str, str] = {}
    for name, body in zip(parts[1::2], parts[2::2], strict=False):
        found.setdefault(name, body)
    return found


def read_bare(stdout: bytes, first: str) -> Guest | None:
    """`first` says why the agent itself was not there."""
    part = sections(stdout.decode("utf-8", "replace") + "\n")
    boot = clean(part.get("boot", ""), 64)
    if not re.fullmatch(r"[0-9a-f-]{36}", boot):
        return None
    gpus, driver = _gpus(part)
    absent = Unknown(Why.ABSENT, first)
    dmi = clean(part.get("dmi", ""), 64).lower()
    found = tuple(_processes(part, boot))
    gaps = [f"agent: absent: {first}", "process-files: absent: holders of GPUs are not known", "services: absent"]
    if "end" not in part:
        gaps.append("report: timeout: the read-only view broke off")
    return Guest(
        identity=GuestIdentity(
            hostname=clean(part.get("hostname", ""), 255),
            boot_id=boot,
            dmi_uuid=Known(dmi) if dmi else absent,
            macs=frozenset(m.lower() for m in part.get("macs", "").split() if m.strip("0:")),
            kernel=clean(part.get("kernel", "")),
            machine_id=clean(part.get("machine", ""), 64),
            init_start=next((p.id.start for p in found if p.pid == 1), 0),
        ),
        mark=Mark(boot, _uptime(part.get("uptime", ""))),
        ram=procfs.ram(part.get("meminfo", ""), sum(p.rss_mib - p.shmem_mib for p in found) * 1024),
        driver=driver,
        gpus=gpus,
        processes=Known(found) if found else absent,
        kernel=_kernel(part),
        leftovers=absent,
        services=absent,
        pci_gpus=Known(tuple(sorted(procfs.bus_id(b) for b in part["pci"].split()))) if "pci" in part else absent,
        marker=absent,
        root=clean(part.get("uid", "")) == "0",
        complete="end" in part,
        gaps=tuple(gaps),
        raw=tuple(clean(line) for line in stdout.decode("utf-8", "replace").splitlines()),
    )


def _uptime(text: str) -> float:
    match = re.match(r"(\d{1,12}(?:\.\d+)?)", text)
    return float(match.group(1)) if match else 0.0


def _kernel(part: dict[str, str]) -> Reading[tuple[KernelLine, ...]]:
    found = _KERNEL.findall(part.get("dmesg", ""))
    if not found:
        return Unknown(Why.ABSENT, "dmesg said nothing")
    return Known(tuple(KernelLine(int(s[:12]) * 1_000_000 + int(us), clean(text)) for s, us, text in found))


def _processes(part: dict[str, str], boot: str) -> list[Process]:
    titles = {}
    for line in part.get("cmdline", "").splitlines():
        pid, _, args = line.strip().partition(" ")
        if pid.isdecimal() and len(pid) < 10:
            titles[int(pid)] = clean(redact_text(args.strip()))
    found = []
    for pid, comm, state, rest in _STAT.findall(part.get("stat", "")):
        f = [int(n) for n in rest.split()]
        if len(pid) > 9 or f[5] & 0x00200000:  # PF_KTHREAD
            continue
        title = titles.get(int(pid), "")
        found.append(
            Process(
                id=ProcessId(boot, int(pid), f[18]),
                ppid=f[0],
                pgid=f[1],
                sid=f[2],
                state=state,
                comm=clean(comm, 64),
                title="" if title.startswith("[") else title,
                threads=f[16],
                live_threads=f[16] - 1 if state in "ZX" else f[16],
                rss_mib=max(0, f[20]) * _PAGE_KIB // 1024 if len(f) > 20 else 0,
                cpu_ticks=f[10] + f[11],
                tty=f[3],
                holds_known=False,
            )
        )
    return sorted(found, key=lambda p: p.id)


def _gpus(part: dict[str, str]) -> tuple[Reading[tuple[Gpu, ...]], Reading[Driver]]:
    version = procfs.module_version(part.get("version", ""))
    loaded: Reading[str] = Known(version) if version else Unknown(Why.ABSENT, "no driver is loaded")
    if "smi-exit" not in part:
        gone = Unknown(Why.ABSENT if "no-smi" in part else Why.TIMEOUT, "nvidia-smi can't be asked here")
        return gone, gone
    code = clean(part["smi-exit"], 8)
    if code in ("124", "137"):
        hung = Driver(Condition.HANGS, "nvidia-smi did not come back in 25 s", version=loaded, source="nvidia-smi")
        return Unknown(Why.TIMEOUT, hung.detail), Known(hung)
    parsed = smi_xml.parse(part.get("smi", ""))
    if isinstance(parsed, Unknown):
        number = int(code) if code.isdecimal() and len(code) < 4 else None
        failed = Driver(Condition.FAILS, parsed.detail, nvml_code=number, version=loaded, source="nvidia-smi")
        return parsed, Known(failed)
    driver = Driver(Condition.ANSWERS, version=loaded, source="nvidia-smi")
    return map_known(parsed, lambda report: report.gpus), Known(driver)
