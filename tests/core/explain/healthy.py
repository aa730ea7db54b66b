# ruff: noqa: E501
"""Text of machines that are well, by the thousand lines: what every log is full of, and none of it a sickness."""

from __future__ import annotations

import random

KERNEL = (
    "Command line: BOOT_IMAGE=/boot/vmlinuz root=/dev/sda1 ro quiet nmi_watchdog=0 nosoftlockup intel_iommu=on",
    "watchdog: Delayed init of the lockup detector failed: -19",
    "NMI watchdog: Enabled. Permanently consumes one hw-PMU counter.",
    "rcu: Hierarchical RCU implementation.",
    "rcu: \tRCU calculated value of scheduler-enlistment delay is 25 jiffies.",
    "rcu: INFO: stall warnings are configured for {n} s",
    "Memory: 461884416K/470286336K available (20480K kernel code, 4251K rwdata, 13384K rodata)",
    "pci 0000:{b:02x}:00.0: [10de:2bb5] type 00 class 0x030200 PCIe Endpoint",
    "pci 0000:{b:02x}:00.0: PME# supported from D0 D3hot",
    "pcieport 0000:00:{b:02x}.0: AER: enabled with IRQ {n}",
    "pcieport 0000:00:01.0: AER: Correctable error message received from 0000:{b:02x}:00.0",
    "nvidia 0000:{b:02x}:00.0: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)",
    "vfio-pci 0000:{b:02x}:00.0: enabling device (0000 -> 0003)",
    "vfio-pci 0000:{b:02x}:00.0: vgaarb: deactivate vga console",
    "vfio_pci: add [10de:2bb5[ffffffff:ffffffff]] class 0x000000/00000000",
    "usb 1-{k}: new high-speed USB device number {k} using xhci_hcd",
    "usb 1-{k}: New USB device found, idVendor=0627, idProduct=0001, bcdDevice= 0.00",
    "usb 1-{k}: USB disconnect, device number {k}",
    "usb 1-{k}: reset high-speed USB device number {k} using xhci_hcd",
    "EXT4-fs (sda1): mounted filesystem 6f0f-{n} r/w with ordered data mode. Quota mode: none.",
    "EXT4-fs (sda{k}): re-mounted. Opts: (null). Quota mode: none.",
    "XFS (nvme0n1p{k}): Mounting V5 Filesystem",
    "XFS (nvme0n1p{k}): Ending clean mount",
    "XFS (nvme0n1p{k}): Starting recovery (logdev: internal)",
    "nvme nvme0: {k}/0/0 default/read/poll queues",
    "docker0: port 1(veth{n:x}) entered blocking state",
    "docker0: port 1(veth{n:x}) entered disabled state",
    "veth{n:x}: left promiscuous mode",
    "eth0: renamed from veth{n:x}",
    "IPv6: ADDRCONF(NETDEV_CHANGE): eth{k}: link becomes ready",
    "mlx5_core 0000:{b:02x}:00.0 ens{k}np0: Link up",
    "nvidia: loading out-of-tree module taints kernel.",
    "nvidia: module verification failed: signature and/or required key missing - tainting kernel",
    "nvidia-nvlink: Nvlink Core is being initialized, major device number {n}",
    "nvidia 0000:{b:02x}:00.0: enabling device (0140 -> 0142)",
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.105.08  Release Build  (root@host)  Tue Mar  3",
    "NVRM: GPU at PCI:0000:{b:02x}:00: GPU-{n:08x}-1111-2222-3333-444444444444",
    "nvidia-modeset: Loading NVIDIA UNIX Open Kernel Mode Setting Driver for x86_64  580.105.08  Release Build",
    "[drm] [nvidia-drm] [GPU ID 0x{b:08x}] Loading driver",
    "[drm] Initialized nvidia-drm 0.0.0 20160202 for 0000:{b:02x}:00.0 on minor {k}",
    "nvidia_uvm: module uses symbols nvUvmInterfaceDisableAccessCntr from proprietary module nvidia, inheriting taint.",
    "nvidia-uvm: Loaded the UVM driver, major device number {n}.",
    "NVRM: Persistence mode is deprecated and will be removed in a future release. Please use nvidia-persistenced",
    'audit: type=1400 audit({n}.{k}:42): apparmor="DENIED" operation="open" profile="snap.x" name="/proc/{n}/stat" pid={n}',
    "audit: type=1131 audit({n}.{k}:9): pid=1 uid=0 auid=4294967295 msg='unit=fstrim comm=\"systemd\" res=success'",
    "TCP: request_sock_TCP: Possible SYN flooding on port 0.0.0.0:30000. Sending cookies.",
    "perf: interrupt took too long ({n} > 2500), lowering kernel.perf_event_max_sample_rate to 79750",
    "clocksource: timekeeping watchdog on CPU{k}: Marking clocksource 'tsc' as stable",
    "hrtimer: interrupt took {n} ns",
    "nfs: server nas{k} OK",
    "process 'python3' launched '/bin/sh' with NULL argv: empty string added",
    "python3[{n}]: segfault at 0 ip 00007f{n:x} sp 00007ffc error 4 in libc.so.6[7f0000000000+195000]",
    "kvm: SMP vm created on host with unstable TSC; guest TSC will not be reliable",
    "vmbr0: port {k}(tap{n}i0) entered forwarding state",
    "fwbr{n}i0: port 1(fwln{n}i0) entered disabled state",
    "mce: CPU{k}: Core temperature/speed normal",
    "EDAC MC{k}: Giving out device to module skx_edac controller",
)
USER = (
    "systemd[1]: Started docker.service - Docker Application Container Engine.",
    "systemd[1]: session-{n}.scope: Deactivated successfully.",
    "systemd[1]: apt-daily.service: Consumed {k}.{n}s CPU time, 3.1M memory peak.",
    "systemd[1]: sglang.service: Scheduled restart job, restart counter is at {k}.",
    "systemd[1]: sglang.service: State 'stop-sigterm' timed out. Killing.",
    "systemd[1]: sglang.service: Killing process {n} (python3) with signal SIGKILL.",
    "systemd[1]: sglang.service: Main process exited, code=killed, status=9/KILL",
    "systemd[1]: nvidia-persistenced.service: Succeeded.",
    "nvidia-persistenced[{n}]: device 0000:{b:02x}:00.0 - persistence mode enabled.",
    "nvidia-persistenced[{n}]: Started ({n})",
    'dockerd[{n}]: time="2026-03-01T10:00:00Z" level=info msg="ignoring event" container=0a1b{n:x} topic=/tasks/delete',
    'dockerd[{n}]: time="2026-03-01T10:00:00Z" level=warning msg="cleaning up after shim disconnected" id=0a1b{n:x}',
    'dockerd[{n}]: level=info msg="Container failed to exit within 10s of signal 15 - using the force" container=0a{n:x}',
    'containerd[{n}]: level=info msg="shim disconnected" id=0a1b{n:x} namespace=moby',
    "CRON[{n}]: (root) CMD (command -v debian-sa1 > /dev/null && debian-sa1 1 1)",
    "CRON[{n}]: pam_unix(cron:session): session opened for user root(uid=0) by (uid=0)",
    "sshd[{n}]: Accepted publickey for root from 10.1.230.{k} port {n} ssh2: ED25519 SHA256:abc",
    "sshd[{n}]: Received disconnect from 10.1.230.{k} port {n}:11: disconnected by user",
    "sshd[{n}]: pam_unix(sshd:auth): authentication failure; logname= uid=0 euid=0 tty=ssh ruser= rhost=10.0.0.{k}",
    "pvedaemon[{n}]: <root@pam> successful auth for user 'root@pam'",
    "pvedaemon[{n}]: <root@pam> end task UPID:pve1:0000{n:04x}:0000{n:04x}:66{n:06x}:qmstart:{n}:root@pam: OK",
    "pvestatd[{n}]: status update time ({k}.{n} seconds)",
    "pveproxy[{n}]: worker {n} finished",
    "pmxcfs[{n}]: [status] notice: received log",
    "corosync[{n}]:   [KNET  ] link: host: {k} link: 0 is up",
    "QEMU[{n}]: kvm: warning: TSC frequency mismatch between VM (2000000 kHz) and host (2000001 kHz)",
    "qm[{n}]: VM {n} is starting",
    'uvicorn[{n}]: INFO:     10.0.0.{k}:{n} - "GET /health HTTP/1.1" 200 OK',
    'nginx[{n}]: 10.0.0.{k} - - [01/Mar/2026:10:00:00 +0000] "GET /api HTTP/1.1" 401 {n} "-" "curl/8"',
    'nginx[{n}]: 10.0.0.{k} - - [01/Mar/2026:10:00:00 +0000] "POST /v1 HTTP/1.1" 499 595 "-" "python/3"',
    'uvicorn[{n}]: INFO:     10.0.0.{k}:{n} - "GET /v1/models HTTP/1.1" 401 Unauthorized',
    'uvicorn[{n}]: INFO:     10.0.0.{k}:{n} - "POST /v1/chat HTTP/1.1" 599 Unknown',
    "vllm[{n}]: INFO 03-01 10:00:00 [loggers.py:118] Engine 000: Avg prompt throughput: {n}.0 tokens/s, Running: {k} reqs",
    "sglang[{n}]: [2026-03-01 10:00:00 TP0] Decode batch. #running-req: {k}, #token: {n}, token usage: 0.{k}",
    'rsync[{n}]: rsync: [receiver] write failed on "/mnt/a": No space left on device (28)',
    "kubelet[{n}]: I0301 10:00:00 pod_startup_latency_tracker.go:104 observed pod startup duration",
    "app[{n}]: unexpected status code 503 from upstream, will retry in {k} s",
    "app[{n}]: worker {n} is not running, starting it; fork: retry: Resource temporarily unavailable",
    "app[{n}]: job already running, skipped; lock file /tmp/app.lock",
    "NetworkManager[{n}]: <info>  [1709287200.{n}] device (ens18): state change: config -> ip-config",
    "smartd[{n}]: Device: /dev/sda [SAT], SMART Usage Attribute: 194 Temperature_Celsius changed from 6{k} to 65",
    'dcgm-exporter[{n}]: level=info msg="Collecting DCP Metrics"',
    "nv-hostengine[{n}]: DCGM initialized",
)
COMMANDS = (
    "[kthreadd]", "[kworker/{k}:1-events]", "[kworker/u256:{k}-nvme-wq]", "[ksoftirqd/{k}]", "[jbd2/sda1-8]", "[xfsaild/dm-{k}]",
    "[nvidia-modeset/kthread_q]", "[UVM global queue]", "[irq/{n}-nvidia]", "[nv_queue]", "/usr/sbin/sshd -D [listener] 0 of 10-100 startups",
    "/usr/lib/systemd/systemd-journald", "/usr/bin/dockerd -H fd://", "/usr/bin/containerd-shim-runc-v2 -namespace moby -id {n:x}",
    "/usr/bin/nvidia-persistenced --user nvidia-persistenced", "/usr/bin/nv-hostengine -n", "nvidia-smi dmon -s pucvmet", "sshd: root@pts/{k}",
    "-bash", "vim /etc/hosts", 'grep -i "GPU has fallen off the bus" /var/log/kern.log', "journalctl -kf -g Xid", "python3 train.py --epochs {k}",
    "tail -f /var/log/syslog", "/usr/bin/python3 /usr/bin/unattended-upgrade-shutdown", "postgres: writer process", "[python] <defunct>", "[sh] <defunct>",
    "ray::IDLE", "bash -c python -m sglang.launch_server --tp 8", "less vllm-serve.log",
)  # fmt: skip


def _fill(template: str, rng: random.Random) -> str:
    return template.format(n=rng.randrange(100, 65000), k=rng.randrange(1, 9), b=rng.randrange(1, 255))


def log(lines: int, seed: int) -> list[str]:
    """A journal as journalctl prints it, the kernel's lines among the others."""
    rng = random.Random(seed)
    out = []
    for i in range(lines):
        when = f"Mar {1 + i // 86400 % 28:2d} {i // 3600 % 24:02d}:{i // 60 % 60:02d}:{i % 60:02d} node-174"
        out.append(
            f"{when} kernel: {_fill(rng.choice(KERNEL), rng)}" if i % 2 else f"{when} {_fill(rng.choice(USER), rng)}"
        )
    return out


def dmesg(lines: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [f"[{i * 3:5d}.{rng.randrange(10**6):06d}] {_fill(rng.choice(KERNEL), rng)}" for i in range(lines)]


def ps_aux(rows: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    out = ["USER         PID %CPU %MEM    VSZ   RSS TTY      STAT START   TIME COMMAND"]
    for i in range(rows):
        command = _fill(rng.choice(COMMANDS), rng)
        state = "Z" if "<defunct>" in command else rng.choice(("S", "Ss", "Sl", "R", "I<", "S+", "Ssl", "SN"))
        if command.startswith("[jbd2") and rng.random() < 0.3:
            state = "D"
        out.append(
            f"root     {i + 1:7d}  {rng.random() * 9:.1f}  0.{i % 9} {i * 7:6d} {i * 3:5d} ?        {state:<4} 10:{i % 60:02d}   0:0{i % 9} {command}"
        )
    return out


def ps_ef(seed: int) -> list[str]:
    """Two servers that live, with all of their ranks, among the rest."""
    rng = random.Random(seed)
    rows = [
        "UID          PID    PPID  C STIME TTY          TIME CMD",
        "root           1       0  0 May12 ?        00:00:09 /sbin/init",
    ]
    main = rng.randrange(5000, 9000)
    rows.append(
        f"root     {main:7d}       1  3 10:00 ?        00:03:00 python3 -m sglang.launch_server --tp 8 --port 30000"
    )
    rows += [
        f"root     {main + 10 + i:7d} {main:7d} 90 10:01 ?        01:03:00 sglang::scheduler_TP{i}" for i in range(8)
    ]
    rows.append(f"root     {main + 20:7d} {main:7d}  1 10:01 ?        00:03:00 sglang::detokenizer")
    rows.append(
        f"root     {main + 100:7d}     812  3 10:00 pts/1    00:03:00 /usr/bin/python3 /usr/local/bin/vllm serve /models/m -tp 2"
    )
    rows.append(f"root     {main + 110:7d} {main + 100:7d} 90 10:01 pts/1    01:03:00 VLLM::EngineCore")
    rows += [
        f"root     {main + 111 + i:7d} {main + 110:7d} 90 10:01 pts/1    01:03:00 VLLM::Worker_TP{i}" for i in range(2)
    ]
    return rows


SMI_HEAD = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI {v:<22} Driver Version: {v:<14} CUDA Version: 12.8     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|"""
SMI_GPU = """\
| {i:>3}  NVIDIA RTX PRO 6000 Blac...  {p:>4}  |   00000000:{b:02X}:00.0 Off |                  {e:>3} |
| {fan:>3}   41C    P0             {w:>4} /  600W |  {used:>6}MiB /  97887MiB |    {util:>3}%      Default |
|                                         |                        |             {mig:>8} |
+-----------------------------------------+------------------------+----------------------+"""
SMI_PROCESSES = """
+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|"""
SMI_END = "+-----------------------------------------------------------------------------------------+"


def smi_table(seed: int, *, serving: bool = False) -> list[str]:
    """Idle with a few MiB, fans in error and all; or serving, with a process on each GPU."""
    rng = random.Random(seed)
    out = SMI_HEAD.format(v=rng.choice(("550.163.01", "570.86.15", "580.105.08", "595.71.05"))).splitlines()
    for i in range(8):
        out += SMI_GPU.format(
            i=i,
            p=rng.choice(("On", "Off")),
            b=i * 16 + 1,
            e=rng.choice(("Off", "0", "N/A")),
            fan=rng.choice(("30%", "N/A", "ERR!")),
            w=rng.choice(("14W", "ERR!", "N/A")),
            used=90000 + i if serving else rng.choice((0, 1, 2, 4, 8, 13, 14)),
            util=rng.choice((0, 97, 100)) if serving else rng.choice((0, 0, 1, 3)),
            mig="Disabled",
        ).splitlines()
    out += SMI_PROCESSES.splitlines()
    if serving:
        out += [
            f"|    {i}   N/A  N/A         {41000 + i}      C   sglang::scheduler_TP{i}                   89990MiB |"
            for i in range(8)
        ]
    else:
        out.append("|  No running processes found                                                             |")
    return [*out, SMI_END]


def smi_query(seed: int) -> list[str]:
    rng = random.Random(seed)
    out = ["==============NVSMI LOG==============", "", "Timestamp                                 : Tue Mar  3 10:00:00 2026",
           "Driver Version                            : 580.105.08", "Attached GPUs                             : 8"]  # fmt: skip
    for i in range(8):
        out += [
            f"GPU 00000000:{i * 16 + 1:02X}:00.0",
            "    Product Name                          : NVIDIA RTX PRO 6000 Blackwell Server Edition",
            "    Persistence Mode                      : Enabled",
            "    MIG Mode", "        Current                           : Disabled", "        Pending                           : Disabled",
            f"    GPU UUID                              : GPU-{rng.randrange(16**8):08x}-0000-0000-0000-000000000000",
            "    GPU Reset Status",
            "        Reset Required                    : Requested functionality has been deprecated",
            "        Drain and Reset Recommended       : Requested functionality has been deprecated",
            "    GPU Recovery Action                   : None",
            "    Fan Speed                             : ERR!",
            "    FB Memory Usage", "        Total                             : 97887 MiB", f"        Used                              : {i} MiB",
            "    ECC Errors", "        Aggregate", "            DRAM Uncorrectable Parity     : 1",
            "    Retired Pages", "        Single Bit ECC                    : N/A", "        Pending Page Blacklist            : N/A",
            "    Remapped Rows", "        Correctable Error                 : 2", "        Uncorrectable Error               : 1",
            "        Pending                           : No", "        Remapping Failure Occurred        : No",
            "    Fabric", "        State                             : Completed", "        Status                            : Success",
            "    Processes                             : None",
        ]  # fmt: skip
    return out
