"""More public reports as looks: installations, start-ups and pauses that look like a hang, and what nobody may touch.

Each was decided from its report before our word was read. Beside test_public_cases.py, which holds the first list.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from recover.core.explain import explain
from recover.core.fold import fold
from recover.core.look import BOOT_S
from recover.core.past import Past
from recover.edge.simulated import FAULTS
from recover.model.contact import Failure
from recover.model.gpu import Condition, Driver, Gpu, GpuProcess, RecoveryAction
from recover.model.guest import BootFacts, Mark, Mute
from recover.model.hypervisor import AgentState, Task
from recover.model.ladder import Ready
from recover.model.process import Process
from recover.model.reading import Known, Unknown, Why
from recover.model.record import Opened, Saw
from recover.model.snapshot import Snapshot
from recover.model.verdict import State
from tests.core import builders as b
from tests.core.looks import follow, once, stuck
from tests.core.test_public_cases import Found, driver, no_word, one_gpu, rank_lost, shm, told
from tests.core.test_public_cases_node import SILENT, contained, first, on_node, within
from tests.core.world import play
from tests.steps.looks import node, pci, vm

NOTHING: Found = []
PERSON: Found = [("driver-not-loaded", None)]
TIMED_OUT = (b.answer(None, outcome="timeout", tokens=None, running=None, waiting=None),)
LOADING = (b.answer(503, tokens=None, running=None, waiting=None),)


def unloaded(*lines: str, **changes: Any) -> Snapshot:
    """NVML says that no driver is loaded; the lines are of the boot, long before anybody looked."""
    seen = driver(nvml_code=9, detail="Driver Not Loaded")
    return within(seen, kernel=b.kernel(*lines, uptime_s=15.0), **changes)


def other_kernel(snapshot: Snapshot) -> Snapshot:
    guest: Any = snapshot.guest
    return within(snapshot, identity=replace(guest.identity, kernel="6.8.0-71-generic"))


def ranks(**changes: Any) -> tuple[Process, ...]:
    return tuple(replace(p, **changes) for p in b.sglang_group())


def asleep(status: str, *tasks: Task) -> Snapshot:
    """QEMU does not run the guest; its agent, which answered once, is silent of course."""
    seen = b.hypervisor(qmpstatus=Known(status), agent=Known(AgentState.SILENT), tasks=Known(tasks))
    return b.mute_snapshot(SILENT, hypervisor=seen)


def two_lost(*answers: bool) -> Snapshot:
    """Two GPUs are lost to the guest; whether the node finds their devices is given."""
    cards = tuple(b.gpu(i, condition=Condition.LOST) if i < 2 else b.gpu(i) for i in range(b.GPUS))
    functions = tuple(replace(f, answers=Known(a)) for f, a in zip(node().functions, answers, strict=False))
    return on_node((*functions, *node().functions[len(answers) :]), gpus=cards)


def held(**of_guest: Any) -> Snapshot:
    """70 GiB on a GPU, by a pid that we are not shown."""
    return within(one_gpu(used_mib=Known(70_000), processes=[31_794]), **of_guest)


def given(count: int, expect: int) -> Snapshot:
    """The VM is given so many GPUs, and all of them are there; the baseline is of eight."""
    seen = vm({"hostpci": tuple(pci(i, gpus=Known(1)) for i in range(count))})
    there = {"gpus": b.gpus(count), "pci_gpus": Known(tuple(b.bus(i) for i in range(count)))}
    target = b.target(expect=(("gpus", expect),) if expect else ())
    return b.healthy_snapshot(hypervisor=seen, target=target, **there)


WITHOUT_INIT = Known(tuple(p for p in b.system_processes() if p.pid == 600))
CLOSED = (
    "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:2bb5)",
    "NVRM: installed in this system requires use of the NVIDIA open kernel modules.",
    "nvidia: probe of 0000:01:00.0 failed with error -1",
    "NVRM: None of the NVIDIA devices were initialized.",
)
MPS = b.process(800, "nvidia-cuda-mps-server", comm="nvidia-cuda-mps", holds=b.holding(0))

CASES: dict[str, tuple[Snapshot, Found]] = {
    # ---- what an installation lacks, no restart brings
    "open-gpu-kernel-modules 872: a Blackwell card and the closed modules": (unloaded(*CLOSED), PERSON),
    "nvtrust 67: the release does not know the card": (
        unloaded("NVRM: installed in this system is not supported by the", "NVRM: NVIDIA 550.90.07 driver release."),
        PERSON,
    ),
    "kernel/module/signing.c: Secure Boot refuses a module of one's own": (
        unloaded("Loading of module with unavailable key is rejected"), PERSON,
    ),
    "open-gpu-kernel-modules nv.c: nouveau has the card": (
        unloaded("NVRM: The NVIDIA probe routine was not called for 1 device(s)."), PERSON,
    ),
    "nvidia-docker 365: the module was built for the kernel before the update": (other_kernel(unloaded()), PERSON),
    "the same, but the driver was loaded under this kernel and somebody took it out": (
        other_kernel(unloaded("NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  595.45.04")),
        [("driver-not-loaded", "driver")],
    ),
    "a module that only taints the kernel is loaded all the same": (
        unloaded("nvidia: module verification failed: signature and/or required key missing - tainting kernel"),
        [("driver-not-loaded", "driver")],
    ),
    "one card of eight that the closed modules do not take": (
        b.healthy_snapshot(gpus=b.gpus()[1:], kernel=b.kernel(*CLOSED, uptime_s=15.0)), [("gpu-missing", None)],
    ),
    "one card of eight that the driver did not take, and no word why": (
        b.healthy_snapshot(gpus=b.gpus()[1:]), [("gpu-missing", "driver")],
    ),
    "RTX PRO behind Proxmox: it works until the guest's first restart, and then the driver cannot take it": (
        unloaded("NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x24:0x72:1568)",
                 "nvidia: probe of 0000:01:00.0 failed with error -1",
                 "NVRM: None of the NVIDIA devices were initialized."),
        [("driver-not-loaded", "vm")],
    ),
    "Proxmox forum 179366, with a single card: its I/O region is invalid, so the driver does not stay": (
        unloaded("NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:",
                 "nvidia: probe of 0000:01:00.0 failed with error -1"),
        PERSON,
    ),
    "a card was taken from the VM, which has all that it is given": (given(7, expect=0), NOTHING),
    "the same, and the configuration still expects it": (given(7, expect=8), [("gpu-missing", None)]),
    # ---- a hang that is none
    "docker pause: the freezer holds the server": (
        b.serving_snapshot(processes=ranks(wchan="do_freezer_trap"), servers=TIMED_OUT), NOTHING,
    ),
    "docker pause on control groups v1": (
        b.serving_snapshot(processes=ranks(state="D", wchan="__refrigerator"), servers=TIMED_OUT), NOTHING,
    ),
    "somebody sent SIGSTOP": (b.serving_snapshot(processes=ranks(state="T"), servers=TIMED_OUT), NOTHING),
    "a debugger holds one rank, and requests wait": (
        b.serving_snapshot(
            processes=tuple(replace(p, state="t") if p.title.endswith("TP3") else p for p in b.sglang_group()),
            servers=(b.answer(running=4),),
        ),
        NOTHING,
    ),
    "TensorRT-LLM 17286: the first request with sampling builds its kernels inside the executor": (
        b.serving_snapshot(
            processes=(*b.sglang_group(), b.process(5500, "cicc --arch compute_90a k.cu", comm="cicc", state="R",
                                                    ppid=5004, pgid=5000, sid=5000)),
            servers=(b.answer(running=4),),
        ),
        NOTHING,
    ),
    "the same, where the compiler waits for a lock since an hour": (
        b.serving_snapshot(
            processes=(*b.sglang_group(), b.process(5500, "cicc --arch compute_90a k.cu", comm="cicc",
                                                    ppid=5004, pgid=5000, sid=5000)),
            servers=(b.answer(running=4),),
        ),
        [("hung-group", "process")],
    ),
    # ---- a VM that does not run answers nobody
    "a full storage pool: QEMU paused it at the write": (asleep("io-error"), [("vm-io-error", None)]),
    "a colleague paused it": (
        asleep("paused", Task("U", "pve1", "qmpause", 174, "alice@pam", 1, running=False, status="OK")),
        [("vm-paused", None)],
    ),
    "the guest's kernel panicked": (asleep("guest-panicked"), [("vm-halted", "vm"), ("guest-mute", "vm")]),
    "it accepts connections and says nothing, while its guest agent answers": (
        b.mute_snapshot(Mute(Failure.BANNER_SILENCE, "x"), hypervisor=b.hypervisor(agent=Known(AgentState.ANSWERS))),
        NOTHING,
    ),
    "it accepts connections and says nothing, and has no agent": (
        b.mute_snapshot(Mute(Failure.BANNER_SILENCE, "x"), hypervisor=b.hypervisor(agent=Known(AgentState.OFF))),
        [("guest-mute", "vm")],
    ),
    # ---- lost in the guest, and what the node knows of it
    "two GPUs are lost, and both read ones on the node": (
        two_lost(False, False), [("pci-device-gone", "host-device")] + [("gpu-lost", "host-device")] * 2,
    ),
    "two GPUs are lost, and the node explains one of them": (
        two_lost(False, True), [("pci-device-gone", "host-device")] + [("gpu-lost", "vm")] * 2,
    ),
    # ---- nobody's, or nobody's that we may see
    "hidepid: without root the pid that the driver lists may be alive": (held(root=False), NOTHING),
    "hidepid, and RAM of processes that are not shown": (
        within(b.healthy_snapshot(ram=b.ram(available_mib=200 * 1024, unowned_mib=250 * 1024)),
               root=False, processes=WITHOUT_INIT),
        NOTHING,
    ),
    "with root the pid that the driver lists is nobody": (held(), [("gpu-memory-held", "gpu")]),
    # ---- healthy, busy or slow, and never touched
    "an idle MPS server keeps a context": (
        b.healthy_snapshot(processes=(MPS,), gpus=(b.gpu(0, used_mib=Known(480), processes=[800]), *b.gpus()[1:])),
        NOTHING,
    ),
    "pop-os 3363: corrected PCIe errors in thousands": (
        b.serving_snapshot(kernel=b.kernel(
            *["pcieport 0000:00:03.1: AER: Correctable error message received from 0000:01:00.0"] * 200)),
        NOTHING,
    ),
    "NVSentinel 1748: Xid 45 in thousands are a job's own end": (
        no_word(kernel=b.kernel(*["NVRM: Xid (PCI:0000:01:00): 45, pid=7, name=python3, Ch 0000001b"] * 200)), NOTHING,
    ),
    "gpu-operator 1065: a contained ECC error ended one program": (
        no_word(kernel=b.kernel("NVRM: Xid (PCI:0000:01:00): 94, pid=7, name=python3, Contained ECC error")), NOTHING,
    ),
    "gpu-operator 610: the fabric manager fails where there is no fabric": (
        b.healthy_snapshot(gpus=b.gpus(fabric=Known("none"))), NOTHING,
    ),
    "kernel_gsp.c: so many time-outs that one in thirty is printed, and the GPU is named": (
        no_word(kernel=b.kernel("NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:01:00 (printing 1 of "
                                "every 30).  The GPU likely needs to be reset.")),
        [("xid", "gpu")],
    ),
    "a desktop at 100 %": (
        one_gpu(utilisation_pct=Known(100), used_mib=Known(8), processes=[GpuProcess(900, 5, "graphics")]), NOTHING,
    ),
    "an IMEX domain is not one machine's": (
        one_gpu(recovery_action=Known(RecoveryAction.RECOVER_IMEX_DOMAIN)), [("recovery-action", None)],
    ),
    # ---- containers: kernel and driver are the node's
    "a GPU hangs: nothing that a container could restart": (
        contained(one_gpu(condition=Condition.HANGS)), [("nvml-hang", None)],
    ),
    "the driver asks for a reboot": (
        contained(one_gpu(recovery_action=Known(RecoveryAction.NODE_REBOOT))), [("recovery-action", None)],
    ),
    "the driver asks for a reset, which the node can do": (
        contained(one_gpu(recovery_action=Known(RecoveryAction.GPU_RESET))), [("reset-required", "gpu")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_public_case(name: str) -> None:
    snapshot, wanted = CASES[name]
    assert told(stuck(snapshot, 40)) == wanted


@pytest.mark.parametrize(
    "name", [n for n in CASES if n.startswith(("docker pause", "somebody", "a debugger", "hidepid"))]
)
def test_what_is_spared_for_want_of_knowledge_is_not_called_healthy(name: str) -> None:
    assert stuck(CASES[name][0], 40).state is State.UNCERTAIN


@pytest.mark.parametrize("name", [n for n in CASES if n.startswith(("open-gpu-kernel-modules", "nvtrust"))])
def test_a_pasted_log_is_explained_as_the_look_is(name: str) -> None:
    guest: Any = CASES[name][0].guest
    said = explain("\n".join(line.text for line in guest.kernel.value))
    assert ("driver-not-loaded", None) in [(t.signal, t.cure) for t in said]


# ------------------------------------------------------------------------------------------ time


def dying(at: float, each_s: float = 45.0) -> Snapshot:
    """Eight killed ranks give their pinned memory back one after the other; who waits for the lock burns nothing."""
    now = int(at // each_s)
    burnt = int(90 * (at - now * each_s))
    killed = tuple(
        b.process(5002 + i, comm="sglang::schedul", title="", state="D", sigkill_pending=True, holds=b.holding(i),
                  wchan="os_acquire_rwlock_write" if i > now else "", rss_mib=50_000, pgid=5000, sid=5000,
                  cpu_ticks=1000 + (burnt if i == now else 0))
        for i in range(now, b.GPUS)
    )  # fmt: skip
    cards = tuple(b.gpu(i, used_mib=Known(60_000), processes=[5002 + i]) if i >= now else b.gpu(i) for i in range(8))
    return b.healthy_snapshot(processes=killed, gpus=cards, ram=b.ram(available_mib=50 * 1024 * (1 + now)))


def test_ranks_that_unpin_one_after_the_other_are_not_unkillable() -> None:
    """sglang pull request 31746, with eight ranks. Fails where each must make progress of its own within a minute."""
    seen = follow([dying(10.0 * i) for i in range(35)], 10.0)
    assert {f.signal for d in seen for f in d.findings} <= {"dead-group"}
    assert "unkillable-process" in {f.signal for f in follow([dying(100.0)] * 12, 10.0)[-1].findings}


def pinning(at: float) -> Snapshot:
    """Ranks of a server that starts register their pools under one lock: who waits for it burns nothing."""
    now = int(at // 90)
    group = tuple(
        replace(p, state="D", wchan="os_acquire_rwlock_write", rss_mib=2000) if "TP" in p.title else p
        for p in b.sglang_group()
    )
    grown = tuple(
        replace(p, rss_mib=50_000 if i < now else 2000 + int(at - 90 * now) * 500, state="R" if i == now else "S")
        if "TP" in p.title and (i := int(p.title[-1])) <= now
        else p
        for p in group
    )
    return b.serving_snapshot(processes=grown, servers=LOADING)


def test_ranks_that_pin_one_after_the_other_are_not_stuck() -> None:
    """Fails where a rank in D is judged by its own CPU time alone."""
    assert [f for d in follow([pinning(10.0 * i) for i in range(60)], 10.0) for f in d.findings] == []


def test_a_silent_server_that_burns_cpu_time_has_as_long_as_engines_give_themselves() -> None:
    """llama.cpp on one long prompt, or ranks that spin: without counters nobody can tell. Fails at 120 s for both."""

    def at(step: int, burns: bool) -> Snapshot:
        return b.serving_snapshot(processes=ranks(cpu_ticks=1000 + (3000 * step if burns else 0)), servers=TIMED_OUT)

    for burns, sick_after in ((False, 120), (True, 300)):
        looks = follow([at(i, burns) for i in range(14)], 30.0)
        first_sick = next(i for i, d in enumerate(looks) if d.findings)
        assert 30 * first_sick == sick_after


@pytest.mark.parametrize("looked_at_s", [30.0, 150.0, 400.0, 590.0])
@pytest.mark.parametrize(
    "sick",
    [
        {"gpus": b.gpus(5)},
        {"gpus": (b.gpu(0, condition=Condition.HANGS), *b.gpus()[1:])},
        {"driver": Known(Driver(Condition.HANGS)), "gpus": ()},
        {"gpus": (b.gpu(0, condition=Condition.FAILS, detail="Unknown Error"), *b.gpus()[1:])},
        {"gpus": b.gpus(fabric=Known("not started"))},
    ],
)
def test_a_young_guest_is_not_judged_before_its_boot_is_over(sick: dict[str, Any], looked_at_s: float) -> None:
    """nvrc issue 159: 120 s were too short, 600 s were enough; whenever the first look was.

    Fails where what is left of the boot is compared with the time since the first look: half of it is enough then.
    """
    every_s = 10.0
    looks = [
        b.healthy_snapshot(**sick, mark=Mark(b.BOOT, looked_at_s + every_s * i))
        for i in range(int((BOOT_S + 90 - looked_at_s) / every_s))
    ]
    for snapshot, diagnosis in zip(looks, follow(looks, every_s, past=Past()), strict=True):
        mark: Any = snapshot.guest
        assert (diagnosis.findings == ()) or mark.mark.uptime_s >= BOOT_S
    assert diagnosis.findings


def test_a_gpu_whose_log_says_why_it_hangs_is_not_waited_for() -> None:
    line = "NVRM: Xid (PCI:0000:01:00): 119, pid=7, name=x, Timeout after 6s of waiting for RPC"
    hung = (b.gpu(0, condition=Condition.HANGS), *b.gpus()[1:])
    young = b.healthy_snapshot(gpus=hung, kernel=b.kernel(line, uptime_s=90.0), mark=Mark(b.BOOT, 100.0))
    assert told(once(young)) == [("nvml-hang", "vm")]


def test_what_had_to_be_waited_for_is_not_taken_from_the_ladder_s_time() -> None:
    """A rung that fits at its first offer fits whenever that is. Fails where the deadline counts from the start."""
    entries = play(FAULTS["nvml-hang"]).entries
    opened = next(e for e in entries if isinstance(e, Opened))
    saw = next(e for e in entries if isinstance(e, Saw))
    late = replace(saw, at=opened.at + 5000.0)
    history = fold([opened, late])
    ready = [o.offer for o in late.options if isinstance(o.offer, Ready)]
    assert ready and late.at + sum(r.line.worst_case_s for r in ready) <= history.deadline_at
    again = fold([replace(late, at=late.at + 60.0 * i) for i in range(1, 9)], history)
    assert again.deadline_at == history.deadline_at, "each look would put the end off"


def test_whoever_else_restarts_the_guest_is_waited_for_and_not_for_ever() -> None:
    """open-gpu-kernel-modules 1027: a restart that somebody asked for hangs in the driver's shutdown."""
    down = within(b.serving_snapshot(processes=rank_lost(2)), boot=Known(BootFacts("systemd", state="stopping")))
    looks = follow([down] * 12, 60.0)
    assert all(d.ripening for d in looks[:10])
    assert sorted(told(looks[-1])) == [("dead-group", "process"), ("reboot-hangs", "vm")]


# ------------------------------------------------------------------------------------------ after a try


def cards(*without: int) -> tuple[Gpu, ...]:
    return tuple(g for g in b.gpus() if g.index not in without)


def test_a_gpu_that_our_own_try_cost_is_missed() -> None:
    """No baseline, no count in the configuration, no word of Proxmox: what the run itself saw first is the measure."""
    seven = b.healthy_snapshot(
        gpus=cards(0), pci_gpus=Known(tuple(g.bus_id for g in cards(0))), baseline=None, hypervisor=vm()
    )
    before = Past(tries=1, gpus=tuple((b.uuid(i), b.bus(i)) for i in range(b.GPUS)))
    assert told(stuck(seven, 40, past=before)) == [("gpu-missing", "vm")]
    assert told(stuck(seven, 40, past=replace(before, tries=0))) == []


def test_another_machine_at_its_address_is_no_recovery() -> None:
    other = b.hypervisor(config=Known(replace(b.hypervisor().config.value, smbios_uuid=b.SMBIOS.replace("a", "d"))))  # type: ignore[union-attr]
    assert once(b.healthy_snapshot(hypervisor=other)).state is State.UNCERTAIN


def test_after_a_try_memory_of_the_dead_that_may_be_mapped_is_no_recovery() -> None:
    unread = b.healthy_snapshot(leftovers=Known((shm("sgl_shm_mm_4242_0", 300_000, alive=False, mapped=None),)))
    assert once(unread, Past(tries=1)).state is State.UNCERTAIN
    assert once(unread).state is State.HEALTHY


def test_a_module_that_is_still_not_there_after_our_restart_is_a_person_s() -> None:
    other_boot = Past(first=Mark("another-boot", 5000.0), tries=1)
    assert told(stuck(unloaded(), 40, past=other_boot)) == PERSON
    assert told(stuck(unloaded(), 40)) == [("driver-not-loaded", "driver")]


def test_a_dead_group_that_only_waits_for_a_file_server_has_no_cure() -> None:
    waits = {"state": "D", "wchan": "nfs_wait_bit_killable", "sigkill_pending": True}
    left = tuple(replace(p, **waits) for p in rank_lost(2) if "TP" in p.title)  # type: ignore[arg-type]
    seen = stuck(b.healthy_snapshot(processes=left, gpus=b.serving_gpus()), 40)
    assert {f.cure for f in seen.findings} == {None}


def test_a_device_of_the_node_without_any_sign_in_the_guest_is_left_to_the_node() -> None:
    assert told(stuck(on_node(first(node(), answers=Known(False))), 4)) == [("pci-device-gone", "host-device")]


def test_a_reading_that_is_not_known_explains_no_loss() -> None:
    unknown: Any = Unknown(Why.UNREACHABLE, "refused")
    lost = b.healthy_snapshot(
        gpus=(b.gpu(0, condition=Condition.LOST), *b.gpus()[1:]), hypervisor=vm(), host=unknown, host_shell=True
    )
    assert told(stuck(lost, 4)) == [("gpu-lost", "vm")]
