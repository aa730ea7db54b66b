"""The real pynvml meets the fake driver: each call answers from the state file, fails by number, blocks and resumes."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lab.driver import layout
from tests.lab.driver.build import BuildError, Built, build
from tests.lab.driver.state import KINDS, REMEDIES, RESET_MODES, State, gpu, mask

MIB = 1 << 20
LONG = 60  # seconds that a step may take on a busy machine; nothing here waits for it when all is well

# Evaluates each argument, h(i) being the handle of GPU i; one JSON line per answer: the value or {"error": number}.
ASKER = """
import ctypes, json, sys
import pynvml as n
def plain(v):
    if isinstance(v, (list, tuple, ctypes.Array)): return [plain(x) for x in v]
    if hasattr(v, "_fields_"): return {f[0]: plain(getattr(v, f[0])) for f in v._fields_ if f[0] != "device"}
    if isinstance(v, dict): return {k: plain(x) for k, x in v.items()}
    if isinstance(v, bytes): return v.decode()
    if hasattr(v, "__dict__"): return {k: plain(x) for k, x in vars(v).items()}
    return v
def filled(struct, call, *args):
    call(*args, n.byref(struct))
    return struct
h = n.nvmlDeviceGetHandleByIndex
for text in sys.argv[1:]:
    try:
        print(json.dumps(plain(eval(text))), flush=True)
    except n.NVMLError as error:
        print(json.dumps({"error": error.value}), flush=True)
"""


@dataclass
class Machine:
    """A folder with device nodes, a state file and the built driver."""

    built: Built
    state: State
    dev: Path

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, **self.built.env(self.state.path, self.dev)}

    def popen(self, *command: str, **more: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more
        )

    def ask(self, *texts: str, init: bool = True) -> list[Any]:
        """The answers of the real pynvml; after nvmlInit unless a test makes that call itself."""
        first = ["n.nvmlInit()"] if init else []
        with self.popen(sys.executable, "-c", ASKER, *first, *texts) as child:
            out, err = child.communicate(timeout=LONG)
        assert child.returncode == 0, err
        return [json.loads(line) for line in out.splitlines()][len(first) :]

    def smi(self, *arguments: str) -> tuple[int, str]:
        with self.popen("nvidia-smi", *arguments) as child:
            out, err = child.communicate(timeout=LONG)
        assert err == ""
        return child.returncode, out


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Built]:
    return {name: build(tmp_path_factory.mktemp(name), name) for name in ("modern", "r470", "r535")}


def machine_of(built: Built, folder: Path, driver: str = "570.148.08") -> Machine:
    dev = folder / "dev"
    dev.mkdir()
    for name in ("nvidiactl", "nvidia0", "nvidia1", "nvidia2"):
        (dev / name).touch()
    return Machine(built, State.create(folder / "state", [gpu(n) for n in range(3)], driver_version=driver), dev)


@pytest.fixture
def machine(built: dict[str, Built], tmp_path: Path) -> Iterator[Machine]:
    made = machine_of(built["modern"], tmp_path)
    yield made
    made.state.close()


def until(holds: Any) -> None:
    due = time.monotonic() + LONG
    while not holds():
        assert time.monotonic() < due, "never came true"
        time.sleep(0.02)


def holds_node(pid: int, node: Path) -> bool:
    try:
        return any(os.readlink(entry) == str(node) for entry in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


# -- the layout ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["modern", "r470", "r535"])
def test_c_and_python_agree_on_every_byte(built: dict[str, Built], variant: str) -> None:
    library = ctypes.CDLL(str(built[variant].lib / "libnvidia-ml.so.1"))
    library.fakenvml_layout.restype = ctypes.c_char_p
    assert library.fakenvml_layout().decode().splitlines() == layout.layout_lines()


def test_a_file_of_another_layout_is_refused_on_both_sides(machine: Machine) -> None:
    with open(machine.state.path, "r+b") as file:
        file.seek(8)
        file.write((99).to_bytes(4, "little"))
    with pytest.raises(ValueError, match="layout"):
        State.open(machine.state.path)
    assert machine.ask("n.nvmlInit()", init=False) == [{"error": 9}]
    assert machine.smi()[0] == 9


def test_an_unknown_field_is_refused(machine: Machine) -> None:
    with pytest.raises(ValueError, match="no such GPU field: colour"):
        gpu(0, colour=1)
    with pytest.raises(ValueError, match="no such field: colour"):
        machine.state.set(0, colour=1)


def test_a_built_folder_is_not_built_again(built: dict[str, Built]) -> None:
    library = built["modern"].lib / "libnvidia-ml.so.1"
    before = library.stat().st_ino
    build(built["modern"].root)
    assert library.stat().st_ino == before


def test_no_compiler_is_said_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match="needs a C compiler"):
        build(tmp_path / "out")


# -- NVML: values --------------------------------------------------------------------------------------------------


def test_library_and_identity(machine: Machine) -> None:
    first = gpu(0)
    answers = machine.ask(
        "n.nvmlSystemGetDriverVersion()",
        "n.nvmlSystemGetNVMLVersion()",
        "n.nvmlSystemGetCudaDriverVersion()",
        "n.nvmlDeviceGetCount()",
        "n.nvmlErrorString(16)",
        *(
            f"n.nvmlDeviceGet{what}(h(0))"
            for what in ("Name", "UUID", "Serial", "VbiosVersion", "MinorNumber", "Index")
        ),
        f"n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID('{gpu(2)['uuid']}'))",
        "n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId('0000:02:00.0'))",
        "n.nvmlDeviceGetHandleByPciBusId('0000:77:00.0')",
        "h(3)",
    )
    assert answers[:5] == ["570.148.08", "12.570.148.08", 12080, 3, "GPU requires reset"]
    assert answers[5:11] == [first["name"], first["uuid"], first["serial"], first["vbios"], 0, 0]
    assert answers[11:] == [2, 1, {"error": 6}, {"error": 2}]


def test_pci_info(machine: Machine) -> None:
    [pci] = machine.ask("n.nvmlDeviceGetPciInfo(h(1))")
    assert (pci["busId"], pci["busIdLegacy"], pci["bus"]) == ("00000000:02:00.0", "0000:02:00.0", 2)
    assert pci["pciDeviceId"] == 0x2BB510DE


def test_v1_memory_includes_what_the_driver_reserves_and_v2_does_not(machine: Machine) -> None:
    machine.state.set_used(0, 1000)
    v1, v2, bar1 = machine.ask(
        "n.nvmlDeviceGetMemoryInfo(h(0))",
        "n.nvmlDeviceGetMemoryInfo(h(0), n.nvmlMemory_v2)",
        "n.nvmlDeviceGetBAR1MemoryInfo(h(0))",
    )
    assert v1["used"] == (1000 + 636) * MIB and v1["total"] == 97887 * MIB
    assert v2["used"] == 1000 * MIB and v2["reserved"] == 636 * MIB
    assert v2["free"] == (97887 - 636 - 1000) * MIB
    assert bar1["bar1Used"] == MIB


def test_processes_of_each_kind_and_their_memory(machine: Machine) -> None:
    for number, kind in enumerate(KINDS):
        machine.state.attach(100 + number, 10 * (number + 1), 0, kind=kind, name=f"worker-{kind}")
    machine.state.attach(os.getpid(), 7, 1)
    compute, graphics, mps, older, details, used, own, given, nobody = machine.ask(
        "n.nvmlDeviceGetComputeRunningProcesses(h(0))",
        "n.nvmlDeviceGetGraphicsRunningProcesses(h(0))",
        "n.nvmlDeviceGetMPSComputeRunningProcesses(h(0))",
        "n.nvmlDeviceGetComputeRunningProcesses_v2(h(0))",
        "n.nvmlDeviceGetRunningProcessDetailList(h(0), n.nvmlProcessDetailList_v1, 3)",
        "n.nvmlDeviceGetMemoryInfo(h(0), n.nvmlMemory_v2).used",
        f"n.nvmlSystemGetProcessName({os.getpid()})",
        "n.nvmlSystemGetProcessName(4194399)",
        "n.nvmlDeviceGetComputeRunningProcesses(h(2))",
    )
    assert [(p["pid"], p["usedGpuMemory"]) for p in compute] == [(100, 10 * MIB)]
    assert [p["pid"] for p in graphics] == [101] and [p["pid"] for p in mps] == [102]
    assert older == compute and [p["pid"] for p in details] == [100, 101, 102]
    assert used == 60 * MIB
    title = Path("/proc/self/cmdline").read_bytes().split(b"\0")[0].decode()
    assert own == title and given == {"error": 6} and nobody == []


def test_many_processes_come_whole(machine: Machine) -> None:
    for pid in range(1000, 1040):
        machine.state.attach(pid, pid, 0)
    [found] = machine.ask("n.nvmlDeviceGetComputeRunningProcesses(h(0))")
    assert [(p["pid"], p["usedGpuMemory"]) for p in found] == [(pid, pid * MIB) for pid in range(1000, 1040)]


def test_utilisation_modes_and_link(machine: Machine) -> None:
    machine.state.set(0, util_gpu=37, util_mem=5, persistence=1, link_width=8, link_gen=3, mig_pending=1, virt_mode=2)
    machine.state.set_ghost(1)
    assert machine.ask(
        "n.nvmlDeviceGetUtilizationRates(h(0))",
        "n.nvmlDeviceGetUtilizationRates(h(1)).gpu",
        "n.nvmlDeviceGetPersistenceMode(h(0))",
        "n.nvmlDeviceGetMigMode(h(0))",
        "n.nvmlDeviceGetMaxMigDeviceCount(h(0))",
        "n.nvmlDeviceGetVirtualizationMode(h(0))",
        "(n.nvmlDeviceGetCurrPcieLinkWidth(h(0)), n.nvmlDeviceGetMaxPcieLinkWidth(h(0)))",
        "(n.nvmlDeviceGetCurrPcieLinkGeneration(h(0)), n.nvmlDeviceGetMaxPcieLinkGeneration(h(0)))",
    ) == [{"gpu": 37, "memory": 5}, 100, 1, [0, 1], 7, 2, [8, 16], [3, 5]]


def test_with_mig_there_is_no_utilisation(machine: Machine) -> None:
    machine.state.set(0, mig_current=1, mig_pending=1)
    assert machine.ask("n.nvmlDeviceGetUtilizationRates(h(0))") == [{"error": 3}]


def test_persistence_is_set_through_the_library(machine: Machine) -> None:
    assert machine.ask("n.nvmlDeviceSetPersistenceMode(h(1), 1)") == [None]
    assert machine.state.get(1, "persistence") == 1


def test_errors_of_the_memory(machine: Machine) -> None:
    counts = {"ecc_vol_corr": 1, "ecc_vol_unc": 2, "ecc_agg_corr": 3, "ecc_agg_unc": 4}
    machine.state.set(0, remap_corr=5, remap_unc=6, remap_pending=1, remap_failed=0, **counts)
    machine.state.set(1, retired_supported=1, retired_sbe=2, retired_dbe=0, retired_pending=1, remap_supported=0)
    answers = machine.ask(
        "n.nvmlDeviceGetEccMode(h(0))",
        "[n.nvmlDeviceGetTotalEccErrors(h(0), k, c) for c in (0, 1) for k in (0, 1)]",
        "[n.nvmlDeviceGetMemoryErrorCounter(h(0), 1, 1, where) for where in (2, 0)]",
        "n.nvmlDeviceGetRemappedRows(h(0))",
        "n.nvmlDeviceGetRowRemapperHistogram(h(0)).max",
        "filled(n.c_nvmlEccSramErrorStatus_v1_t(), n.nvmlDeviceGetSramEccErrorStatus, h(0)).aggregateCor",
        "n.nvmlDeviceGetRetiredPages_v2(h(0), 0)",
        "[len(n.nvmlDeviceGetRetiredPages_v2(h(1), cause)) for cause in (0, 1)]",
        "n.nvmlDeviceGetRetiredPagesPendingStatus(h(1))",
        "n.nvmlDeviceGetRemappedRows(h(1))",
    )
    assert answers == [[1, 1], [1, 2, 3, 4], [4, 0], [5, 6, 1, 0], 192, 0, {"error": 3}, [2, 0], 1, {"error": 3}]


def test_field_values_carry_their_own_return_codes(machine: Machine) -> None:
    machine.state.set(0, recovery_action=4, remap_pending=1)
    [fields] = machine.ask("n.nvmlDeviceGetFieldValues(h(0), [230, 144, 226, 12345])")
    assert [(f["nvmlReturn"], f["value"]["uiVal"]) for f in fields] == [(0, 4), (0, 1), (26, 0), (3, 0)]


def test_an_old_driver_has_no_recovery_action(machine: Machine) -> None:
    machine.state.set_driver(driver_version="550.163.01")
    [fields] = machine.ask("n.nvmlDeviceGetFieldValues(h(0), [230, 226])")
    assert [f["nvmlReturn"] for f in fields] == [3, 0]


def test_nvlink_and_fabric(machine: Machine) -> None:
    machine.state.set(0, nvlinks=4, nvlink_down=0b0010, fabric_state=2)
    fabric = "filled(n.c_nvmlGpuFabricInfo_{}_t(), n.nvmlDeviceGetGpuFabricInfoV, h(0)).state"
    assert machine.ask(
        "[n.nvmlDeviceGetNvLinkState(h(0), link) for link in range(4)]",
        "n.nvmlDeviceGetNvLinkState(h(0), 4)",
        "n.nvmlDeviceGetNvLinkState(h(1), 0)",
        fabric.format("v2"),
        fabric.format("v3"),
    ) == [[1, 0, 1, 1], {"error": 2}, {"error": 3}, 2, 2]


def test_an_event_reaches_who_waits_for_it(machine: Machine) -> None:
    script = (
        "import pynvml as n; n.nvmlInit(); s = n.nvmlEventSetCreate();"
        "n.nvmlDeviceRegisterEvents(n.nvmlDeviceGetHandleByIndex(1), 8, s); print('ready', flush=True);"
        f"e = n.nvmlEventSetWait_v2(s, {LONG * 1000}); print(e.eventType, e.eventData)"
    )
    with machine.popen(sys.executable, "-c", script) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        machine.state.event(0, 8, 31)
        machine.state.event(1, 8, 79)
        out, _ = child.communicate(timeout=LONG)
    assert out == "8 79\n"


def test_no_event_is_a_timeout(machine: Machine) -> None:
    assert machine.ask("n.nvmlEventSetWait_v2(n.nvmlEventSetCreate(), 50)") == [{"error": 10}]


# -- NVML: troubles ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("driver", "code"), [({"driver_loaded": 0}, 9), ({"init_error": 18}, 18), ({"init_error": 999}, 999)]
)
def test_the_driver_cannot_be_reached(machine: Machine, driver: dict[str, int], code: int) -> None:
    machine.state.set_driver(**driver)
    assert machine.ask("n.nvmlInit()", init=False) == [{"error": code}]


def test_without_init_nothing_answers(machine: Machine) -> None:
    assert machine.ask("n.nvmlInit() or n.nvmlShutdown()", "n.nvmlDeviceGetCount()", init=False) == [None, {"error": 1}]


def test_any_error_for_any_call_of_one_gpu(machine: Machine) -> None:
    machine.state.set_error(0, "nvmlDeviceGetUtilizationRates", 999)
    machine.state.set_error(0, "nvmlDeviceGetMemoryInfo_v2", 7)
    machine.state.set_error(1, "handle", 15)
    machine.state.set_error(None, "nvmlDeviceGetCount", 4)
    assert machine.ask(
        "n.nvmlDeviceGetUtilizationRates(h(0))",
        "n.nvmlDeviceGetMemoryInfo(h(0), n.nvmlMemory_v2)",
        "n.nvmlDeviceGetMemoryInfo(h(0)).used",
        "h(1)",
        "n.nvmlDeviceGetCount()",
        "n.nvmlDeviceGetUtilizationRates(h(2)).gpu",
    ) == [{"error": 999}, {"error": 7}, 636 * MIB, {"error": 15}, {"error": 4}, 0]


def test_an_error_that_passes_and_one_that_is_taken_back(machine: Machine) -> None:
    machine.state.set_error(0, "*", 999, times=2)
    asked = "n.nvmlDeviceGetPersistenceMode(h(0))"
    assert machine.ask(asked, asked)[0] == {"error": 999}
    machine.state.clear_error(0)
    assert machine.ask(asked) == [0]


def test_a_lost_gpu_gives_no_handle_and_keeps_its_name(machine: Machine) -> None:
    machine.state.set_lost(0)
    assert machine.ask("h(0)", "n.nvmlDeviceGetCount()", "n.nvmlDeviceGetUtilizationRates(h(1)).gpu") == [
        {"error": 15},
        3,
        0,
    ]
    machine.state.set_error(0, "handle", 0)  # a handle taken before the GPU fell off the bus
    assert machine.ask("n.nvmlDeviceGetUUID(h(0))", "n.nvmlDeviceGetUtilizationRates(h(0))") == [
        gpu(0)["uuid"],
        {"error": 15},
    ]


def test_a_gpu_that_needs_a_reset_still_says_so(machine: Machine) -> None:
    machine.state.set_reset_required(0)
    memory, mode, persistence, fields = machine.ask(
        "n.nvmlDeviceGetMemoryInfo(h(0), n.nvmlMemory_v2)",
        "n.nvmlDeviceGetMigMode(h(0))",
        "n.nvmlDeviceSetPersistenceMode(h(0), 0)",
        "n.nvmlDeviceGetFieldValues(h(0), [230, 144])",
    )
    assert memory == mode == {"error": 16} and persistence is None
    assert [(f["nvmlReturn"], f["value"]["uiVal"]) for f in fields] == [(0, 1), (16, 0)]


def test_a_hung_gpu_blocks_its_own_calls_until_released(machine: Machine) -> None:
    machine.state.set_hang(0)
    asked = ["n.nvmlInit()", "n.nvmlDeviceGetUtilizationRates(h(1)).gpu", "n.nvmlDeviceGetName(h(0))"]
    with machine.popen(sys.executable, "-c", ASKER, *asked, "n.nvmlDeviceGetUtilizationRates(h(0)).gpu") as child:
        assert child.stdout is not None
        assert [json.loads(child.stdout.readline()) for _ in asked] == [None, 0, gpu(0)["name"]]
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(timeout=0.3)
        machine.state.set(0, util_gpu=9)
        machine.state.release(0)
        assert child.communicate(timeout=LONG)[0] == "9\n"


def test_a_deep_hang_takes_the_handle_too_and_init_can_hang_for_all(machine: Machine) -> None:
    machine.state.hang_init(True)
    machine.state.set_hang(2, deep=True)
    with machine.popen(sys.executable, "-c", ASKER, "n.nvmlInit()", "h(0) and 0", "h(2) and 2") as child:
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(timeout=0.3)
        machine.state.hang_init(False)
        assert child.stdout is not None
        assert [child.stdout.readline() for _ in range(2)] == ["null\n", "0\n"]
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(timeout=0.3)
        machine.state.release(2)
        assert child.communicate(timeout=LONG)[0] == "2\n"


def test_a_client_holds_the_nodes_until_shutdown(machine: Machine) -> None:
    script = (
        "import pynvml as n, sys; n.nvmlInit(); n.nvmlDeviceGetHandleByIndex(1); print(flush=True);"
        "sys.stdin.readline(); n.nvmlShutdown(); print(flush=True); sys.stdin.readline()"
    )
    with machine.popen(sys.executable, "-c", script, stdin=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdin is not None
        child.stdout.readline()
        held = [holds_node(child.pid, machine.dev / name) for name in ("nvidiactl", "nvidia0", "nvidia1")]
        child.stdin.write("\n")
        child.stdin.flush()
        child.stdout.readline()
        after = [holds_node(child.pid, machine.dev / name) for name in ("nvidiactl", "nvidia1")]
        child.communicate("\n", timeout=LONG)
    assert held == [True, False, True] and after == [False, False]


# -- NVML: other drivers -------------------------------------------------------------------------------------------


def test_r470_lacks_what_came_later_and_its_v1_leaves_the_reserve_out(built: dict[str, Built], tmp_path: Path) -> None:
    old = machine_of(built["r470"], tmp_path, "470.82.01")
    old.state.attach(42, 100, 0)
    v2, v3, used, procs = old.ask(
        "n.nvmlDeviceGetMemoryInfo(h(0), n.nvmlMemory_v2)",
        "n.nvmlDeviceGetComputeRunningProcesses_v3(h(0))",
        "n.nvmlDeviceGetMemoryInfo(h(0)).used",
        "n.nvmlDeviceGetComputeRunningProcesses_v2(h(0))",
    )
    assert v2 == v3 == {"error": 13} and used == 100 * MIB
    assert [p["pid"] for p in procs] == [42]
    old.state.close()


def test_r535_fills_entries_of_32_bytes(built: dict[str, Built], tmp_path: Path) -> None:
    early = machine_of(built["r535"], tmp_path, "535.43.02")
    early.state.attach(42, 1, 0)
    early.state.attach(43, 1, 0)
    [procs] = early.ask("n.nvmlDeviceGetComputeRunningProcesses_v3(h(0))")
    assert procs[0]["pid"] == 42 and procs[1]["pid"] != 43
    early.state.close()


# -- CUDA ----------------------------------------------------------------------------------------------------------

CONTEXT = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
device, context = ctypes.c_int(), ctypes.c_void_p()
codes = [cuda.cuInit(0)]
if not codes[0]:
    codes.append(cuda.cuDeviceGetByPCIBusId(ctypes.byref(device), sys.argv[1].encode()))
    if sys.argv[2] == "primary":
        codes.append(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        codes += [cuda.cuDevicePrimaryCtxRelease(device)] if not codes[-1] else []
    else:
        codes.append(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device))
        codes += [cuda.cuCtxDestroy_v2(context)] if not codes[-1] else []
print(*codes)
"""


def context(machine: Machine, bus: str = "0000:02:00.0", way: str = "create") -> str:
    with machine.popen(sys.executable, "-c", CONTEXT, bus, way) as child:
        return child.communicate(timeout=LONG)[0].strip()


@pytest.mark.parametrize("way", ["create", "primary"])
def test_a_context_wakes_only_the_gpu_it_was_opened_on(machine: Machine, way: str) -> None:
    machine.state.set_ghost(0)
    machine.state.set_ghost(1)
    assert context(machine, way=way) == "0 0 0 0"
    assert [machine.state.get(n, "ghost") for n in (0, 1)] == [1, 0]


def test_a_sticky_ghost_stays(machine: Machine) -> None:
    machine.state.set_ghost(1, sticky=True)
    assert context(machine) == "0 0 0 0"
    assert machine.state.get(1, "ghost") == 2


def test_contexts_fail_as_cuda_does(machine: Machine) -> None:
    machine.state.set_reset_required(1)
    assert context(machine) == "0 0 46"
    machine.state.set_reset_required(1, on=False)
    machine.state.set(1, fabric_state=2)
    assert context(machine) == "0 0 802"
    assert context(machine, bus="0000:66:00.0").startswith("0 101")
    machine.state.set_driver(init_error=18)
    assert context(machine) == "803"


# -- nvidia-smi: looking -------------------------------------------------------------------------------------------


def test_smi_lists_and_draws(machine: Machine) -> None:
    code, text = machine.smi("-L")
    assert code == 0 and text.splitlines()[0] == f"GPU 0: {gpu(0)['name']} (UUID: {gpu(0)['uuid']})"
    code, text = machine.smi()
    assert code == 0 and "No running processes found" in text and "0MiB /  97887MiB" in text


def test_smi_xml_has_the_fields_and_the_words_for_what_is_missing(machine: Machine) -> None:
    machine.state.attach(os.getpid(), 81000, 0)
    machine.state.set_reset_required(1)
    machine.state.set(0, link_width=8, remap_failed=1)
    code, text = machine.smi("-q", "-x")
    root = ElementTree.fromstring(text)
    first, second, _ = root.findall("gpu")
    read = first.findtext
    assert code == 0 and root.findtext("driver_version") == "570.148.08" and root.findtext("attached_gpus") == "3"
    assert first.get("id") == "00000000:01:00.0" and read("uuid") == gpu(0)["uuid"]
    assert (read("fb_memory_usage/used"), read("fb_memory_usage/reserved")) == ("81000 MiB", "636 MiB")
    assert read("pci/pci_gpu_link_info/link_widths/current_link_width") == "8x"
    assert read("remapped_rows/remapped_row_failure") == "Yes" and read("gpu_recovery_action") == "None"
    assert read("gpu_virtualization_mode/virtualization_mode") == "Pass-Through"
    assert read("processes/process_info/pid") == str(os.getpid())
    assert second.findtext("fb_memory_usage/used") == "GPU requires reset"
    assert second.findtext("gpu_recovery_action") == "Reset"


@pytest.mark.parametrize(
    ("driver", "status", "recovery"),
    [
        ("550.163.01", "Yes", None),
        ("575.57.08", "Requested functionality has been deprecated", "Reset"),
        ("580.105.08", None, "Reset"),
    ],
)
def test_smi_xml_follows_the_driver_version(
    machine: Machine, driver: str, status: str | None, recovery: str | None
) -> None:
    machine.state.set_driver(driver_version=driver)
    machine.state.set_reset_required(0)
    root = ElementTree.fromstring(machine.smi("-q", "-x", "-i", "0")[1])
    assert root.findtext("gpu/gpu_reset_status/reset_required") == status
    assert root.findtext("gpu/gpu_recovery_action") == recovery


def test_smi_csv(machine: Machine) -> None:
    machine.state.set_used(1, 500)
    machine.state.set_reset_required(2)
    fields = "--query-gpu=index,memory.used,utilization.gpu,gpu_recovery_action"
    code, text = machine.smi(fields, "--format=csv")
    assert code == 0 and text.splitlines() == [
        "index, memory.used [MiB], utilization.gpu [%], gpu_recovery_action",
        "0, 0 MiB, 0 %, None",
        "1, 500 MiB, 0 %, None",
        "2, [GPU requires reset], [GPU requires reset], Reset",
    ]
    bare = machine.smi(fields, "--format=csv,noheader,nounits", "-i", gpu(1)["uuid"])
    assert bare == (0, "1, 500, 0, None\n")


def test_smi_csv_of_every_field_that_a_probe_asks(machine: Machine) -> None:
    fields = (
        "index,uuid,serial,pci.bus_id,name,driver_version,memory.total,memory.reserved,memory.used,memory.free,"
        "utilization.gpu,persistence_mode,mig.mode.current,ecc.errors.uncorrected.volatile.total,"
        "ecc.errors.uncorrected.aggregate.total,retired_pages.pending,remapped_rows.pending,remapped_rows.failure,"
        "fabric.state,gpu_recovery_action"
    )
    code, text = machine.smi(f"--query-gpu={fields}", "--format=csv,noheader,nounits", "-i", "0000:01:00.0")
    assert code == 0 and len(text.split(", ")) == len(fields.split(",")) and ", [N/A], " in text


def test_smi_compute_apps(machine: Machine) -> None:
    machine.state.attach(4194300, 77, 2, name="sglang::scheduler_TP0")
    machine.state.attach(4194301, 5, 2, kind="graphics", name="Xorg")
    query = "--query-compute-apps=gpu_uuid,pid,process_name,used_memory"
    line = f"{gpu(2)['uuid']}, 4194300, sglang::scheduler_TP0, 77\n"
    assert machine.smi(query, "--format=csv,noheader,nounits") == (0, line)


@pytest.mark.parametrize(
    ("driver", "arguments", "text"),
    [
        ("570.1", ["--query-gpu=index,colour", "--format=csv"], 'Field "colour" is not a valid field to query.'),
        ("550.1", ["--query-gpu=gpu_recovery_action", "--format=csv"], "is not a valid field to query."),
        ("470.1", ["--query-gpu=memory.reserved", "--format=csv"], "is not a valid field to query."),
        ("570.1", ["--query-gpu=index"], "--format="),
        ("570.1", ["--frobnicate"], "is not recognized"),
        ("570.1", ["-pm", "perhaps"], "is not a valid value"),
    ],
)
def test_smi_refuses_bad_words_with_2(machine: Machine, driver: str, arguments: list[str], text: str) -> None:
    machine.state.set_driver(driver_version=driver)
    code, said = machine.smi(*arguments)
    assert code == 2 and text in said


@pytest.mark.parametrize(
    ("driver", "code", "text"),
    [
        ({"driver_loaded": 0}, 9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."),
        (
            {"init_error": 18, "nvml_version": "12.565.57"},
            18,
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 565.57\n",
        ),
        ({"init_error": 999}, 255, "Failed to initialize NVML: Unknown Error\n"),
    ],
)
def test_smi_without_a_driver(machine: Machine, driver: dict[str, Any], code: int, text: str) -> None:
    machine.state.set_driver(**driver)
    got, said = machine.smi("-q", "-x")
    assert got == code and said.startswith(text)


def test_smi_without_a_gpu(machine: Machine) -> None:
    assert machine.smi("-i", "7", "-L") == (6, "No devices were found\n")


def test_smi_on_a_lost_gpu(machine: Machine) -> None:
    machine.state.set_lost(1)
    code, text = machine.smi()
    assert code == 15
    assert text == (
        "Unable to determine the device handle for GPU1: 0000:02:00.0: GPU is lost"
        ".  Reboot the system to recover this GPU\n"
    )
    code, text = machine.smi("-q", "-x")
    gpus = ElementTree.fromstring(text).findall("gpu")
    assert code == 15 and [g.findtext("fb_memory_usage/used") for g in gpus] == ["0 MiB", "GPU is lost", "0 MiB"]
    machine.state.set_error(0, "handle", 999)
    assert machine.smi("-L") == (255, "Unable to determine the device handle for GPU0: 0000:01:00.0: Unknown Error\n")


def test_smi_hangs_on_a_hung_gpu_and_only_there(machine: Machine) -> None:
    machine.state.set_hang(0)
    assert machine.smi("-i", "1")[0] == 0
    with machine.popen("nvidia-smi") as child:
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(timeout=0.5)
        machine.state.release(0)
        out, _ = child.communicate(timeout=LONG)
    assert child.returncode == 0 and "NVIDIA-SMI" in out


def test_smi_is_called_nvidia_smi_in_the_process_table(machine: Machine) -> None:
    machine.state.hang_init(True)
    with machine.popen("nvidia-smi") as child:
        comm = Path(f"/proc/{child.pid}/comm")
        until(lambda: comm.read_text() == "nvidia-smi\n")
        machine.state.hang_init(False)
        child.communicate(timeout=LONG)


# -- nvidia-smi: changing ------------------------------------------------------------------------------------------


def test_smi_persistence(machine: Machine) -> None:
    assert machine.smi("-pm", "1", "-i", "1") == (
        0,
        "Enabled persistence mode for GPU 00000000:02:00.0.\nAll done.\n",
    )
    assert [machine.state.get(n, "persistence") for n in range(3)] == [0, 1, 0]
    code, text = machine.smi("-pm", "0")
    assert code == 0 and "Persistence mode is already Disabled for GPU 00000000:01:00.0." in text
    assert machine.state.get(1, "persistence") == 0


def test_smi_resets_one_gpu(machine: Machine) -> None:
    for number in (0, 1):
        machine.state.set_used(number, 5000)
        machine.state.set_reset_required(number)
    assert machine.smi("--gpu-reset", "-i", "1") == (
        0,
        "GPU 00000000:02:00.0 was successfully reset.\nAll done.\n",
    )
    assert [machine.state.used_mib(n) for n in (0, 1)] == [5000, 0]
    assert [machine.state.get(n, "recovery_action") for n in (0, 1)] == [1, 0]


def in_use(code: int, text: str) -> bool:
    wanted = "The following GPUs could not be reset:\n  GPU 00000000:01:00.0: In use by another client\n\n1 device is "
    return code == 255 and text.startswith(wanted)


def test_smi_reset_is_refused_while_anything_is_a_client(machine: Machine) -> None:
    machine.state.set(0, persistence=1)
    assert in_use(*machine.smi("-r", "-i", "0"))
    machine.state.set(0, persistence=0)
    machine.state.attach(4194300, 1, 0)
    assert in_use(*machine.smi("-r", "-i", "0"))
    machine.state.detach(4194300)
    with open(machine.dev / "nvidia0"):
        assert in_use(*machine.smi("-r", "-i", "0"))
    assert machine.smi("-r", "-i", "0")[0] == 0


# The main thread leaves by the bare system call: the leader is defunct, its descriptors are the sleeping thread's.
DEFUNCT = """
import ctypes, os, sys, threading, time
node = os.open(sys.argv[1], os.O_RDWR)
threading.Thread(target=time.sleep, args=(600,)).start()
print(flush=True)
ctypes.CDLL(None).syscall({"aarch64": 93}.get(os.uname().machine, 60), 0)
"""


def test_smi_reset_is_refused_for_a_thread_whose_leader_is_defunct(machine: Machine) -> None:
    with machine.popen(sys.executable, "-c", DEFUNCT, str(machine.dev / "nvidia0")) as child:
        until(lambda: "(zombie)" in Path(f"/proc/{child.pid}/status").read_text())
        said = machine.smi("-r", "-i", "0")
        child.kill()
    assert in_use(*said)


def test_smi_reset_of_all_is_refused_as_a_whole(machine: Machine) -> None:
    machine.state.set_used(1, 100)
    machine.state.set(0, persistence=1)
    assert in_use(*machine.smi("-r"))
    assert machine.state.used_mib(1) == 100


@pytest.mark.parametrize(
    ("mode", "code", "text"),
    [
        ("unsupported", 3, "Resetting GPU 00000000:01:00.0 is not supported.\n"),
        ("fail", 255, "The following GPUs could not be reset:\n  GPU 00000000:01:00.0: Unknown Error\n"),
        ("in-use", 255, "The following GPUs could not be reset:\n  GPU 00000000:01:00.0: In use by another client\n"),
    ],
)
def test_smi_reset_that_does_not_work(machine: Machine, mode: str, code: int, text: str) -> None:
    machine.state.set(0, reset_mode=RESET_MODES[mode], leak_mib=9)
    got, said = machine.smi("-r", "-i", "0")
    assert got == code and said.startswith(text) and machine.state.used_mib(0) == 9


def test_smi_reset_hangs_until_the_mode_changes(machine: Machine) -> None:
    machine.state.set(0, reset_mode=RESET_MODES["hang"], leak_mib=9)
    with machine.popen("nvidia-smi", "-r", "-i", "0") as child:
        until(lambda: machine.state.get(0, "resetting_pid"))
        assert machine.state.get(0, "resetting_pid") == child.pid
        assert machine.ask("n.nvmlDeviceGetPersistenceMode(h(0))") == [{"error": 999}]
        machine.state.set(0, reset_mode=RESET_MODES["ok"])
        child.communicate(timeout=LONG)
    assert child.returncode == 0 and machine.state.used_mib(0) == 0


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_reset_ended_in_the_middle_leaves_the_gpu_as_it_was(machine: Machine, how: signal.Signals) -> None:
    machine.state.set(0, reset_ms=LONG * 1000, leak_mib=9)
    with machine.popen("nvidia-smi", "-r", "-i", "0") as child:
        until(lambda: machine.state.get(0, "resetting_pid"))
        child.send_signal(how)
        child.communicate(timeout=LONG)
    assert child.returncode == (130 if how == signal.SIGINT else -signal.SIGKILL)
    assert machine.state.used_mib(0) == 9
    assert machine.ask("n.nvmlDeviceGetPersistenceMode(h(0))") == [0]


# -- remedies ------------------------------------------------------------------------------------------------------


def test_each_remedy_clears_what_its_mask_says(machine: Machine) -> None:
    for name in REMEDIES:
        machine.state.set(0, leak_mib=5, leak_cleared_by=mask("vm-restart", "host-reset"))
        machine.state.reset(0, name)
        assert (machine.state.used_mib(0) == 0) == (name in ("vm-restart", "host-reset")), name


def test_a_vm_restart_ends_everything_inside_and_may_keep_the_leak(machine: Machine) -> None:
    machine.state.attach(7, 100, 0)
    machine.state.set(0, leak_mib=50, persistence=1)
    machine.state.set_lost(1)
    machine.state.vm_restart(keep_leak=True)
    assert machine.state.pids() == set() and machine.state.used_mib(0) == 50
    assert machine.state.get(1, "lost") == 0 and machine.state.get(0, "persistence") == 0
    machine.state.vm_restart()
    assert machine.state.used_mib(0) == 0


def test_a_fragile_card_is_lost_by_a_vm_restart_and_not_by_a_reboot(machine: Machine) -> None:
    machine.state.set(2, wedges_on_restart=1)
    machine.state.guest_reboot()
    assert machine.state.get(2, "lost") == 0
    machine.state.vm_restart()
    assert machine.state.get(2, "lost") == 1


@pytest.mark.parametrize(("code", "after"), [(18, 0), (999, 999)])
def test_a_reload_ends_a_version_mismatch_and_no_other_failure(machine: Machine, code: int, after: int) -> None:
    machine.state.set_driver(init_error=code, driver_loaded=0)
    machine.state.driver_reload()
    assert (machine.state.raw.init_error, machine.state.raw.driver_loaded) == (after, 1)


def test_a_slow_release_falls_row_by_row(machine: Machine) -> None:
    machine.state.attach(7, 100, 0)
    machine.state.set_row(7, 40, 0)
    assert machine.state.used_mib(0) == 40
    machine.state.detach(7)
    assert machine.state.used_mib(0) == 0


def test_the_snapshot_is_plain_data(machine: Machine) -> None:
    machine.state.attach(7, 100, 0, kind="mps", name="w")
    machine.state.set_error(1, "handle", 15)
    seen = json.loads(json.dumps(machine.state.snapshot()))
    assert seen["driver_version"] == "570.148.08" and len(seen["gpus"]) == 3
    assert seen["gpus"][0]["rows"] == [{"pid": 7, "mib": 100, "kind": "mps", "name": "w"}]
    assert seen["gpus"][0]["used_mib"] == 100
    assert seen["gpus"][1]["errors"] == [{"call": "handle", "code": 15, "left": 0}]


def test_changes_by_many_processes_do_not_lose_each_other(machine: Machine) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); from fakedriver.state import State; s = State.open();"
        "[s.attach(int(sys.argv[2]) + n, 1, 0) for n in range(15)]"
    )
    root = str(machine.built.root)
    children = [machine.popen(sys.executable, "-c", script, root, str(1000 * n)) for n in range(1, 5)]
    for child in children:
        with child:
            assert child.communicate(timeout=LONG)[1] == ""
    assert len(machine.state.pids(0)) == 60
