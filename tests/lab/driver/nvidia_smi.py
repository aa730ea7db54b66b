"""The fake `nvidia-smi` says and returns what the real one does; it changes persistence mode and what a reset clears.

Forms: no option (table), -L, -q [-x], --query-gpu=, --query-compute-apps= (with --format=csv[,noheader][,nounits]),
-pm 0|1, -r | --gpu-reset [bus], each with -i INDEX|UUID|BUS,...

A reset is refused ("In use by another client", 255) while persistence is on, a process row exists or any process or
thread has the GPU's node open.  Then reset_mode of the GPU speaks: ok, unsupported (3), fail (255), hang (until the
mode changes), in-use (255).  It takes reset_ms; meanwhile resetting_pid is this process, other clients get 999, and
Ctrl-C ends it with the GPU as it was.  Every form that asks a GPU whose `hang` is set blocks until the release.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from dataclasses import dataclass, field
from typing import NoReturn

from . import smi_query as query
from . import smi_report as report
from .layout import RESET_MODES
from .smi_query import Device, Failed
from .state import State

NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n"
)
IN_USE = (
    "{count} device{s} currently being used by one or more other processes (e.g., Fabric Manager, CUDA application, "
    "graphics application such as an X server, or a monitoring application such as another instance of nvidia-smi). "
    "Please first kill all processes using {these} and all compute applications running in the system."
)
TAKES_VALUE = {"-i": "id", "--id": "id", "-pm": "pm", "--persistence-mode": "pm", "-d": "part", "--display": "part"}
TAKES_VALUE |= {"--query-gpu": "query", "--query-compute-apps": "apps", "--format": "format"}
FLAGS = {"-L": "list", "--list-gpus": "list", "-q": "long", "--query": "long", "-x": "xml", "--xml-format": "xml"}
FLAGS |= {"-r": "reset", "--gpu-reset": "reset"}


class Exit(Exception):
    """The end of the command: what it prints last and its exit code."""

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(text)
        self.code, self.text = code, text


@dataclass(slots=True)
class Request:
    """The command line: `flags` that were given, `values` of the options that take one."""

    flags: set[str] = field(default_factory=set)
    values: dict[str, str] = field(default_factory=dict)


def parse(argv: list[str]) -> Request:
    request, rest = Request(), list(argv)
    while rest:
        word, _, value = rest.pop(0).partition("=")
        if word in TAKES_VALUE:
            if not value and not rest:
                raise Exit(2, f"Option \"{word}\" requires an argument. Please run 'nvidia-smi -h' for help.\n")
            request.values[TAKES_VALUE[word]] = value or rest.pop(0)
        elif word in FLAGS:
            request.flags.add(FLAGS[word])
            if FLAGS[word] == "reset" and not value and rest and rest[0] in ("bus", "flr"):
                rest.pop(0)
        else:
            raise Exit(2, f"Option \"{word}\" is not recognized. Please run 'nvidia-smi -h' for help.\n")
    return request


class Session:
    """The driver as this command sees it after a successful initialisation; closes its nodes with it."""

    def __init__(self) -> None:
        try:
            self.state = State.open()
        except (OSError, ValueError):
            raise Exit(9, NO_DRIVER) from None
        self._nodes: list[int] = []
        raw = self.state.raw
        while raw.init_hang:
            query.nap()
        self.driver = raw.driver_version.decode()
        self.cuda = f"{raw.cuda_version // 1000}.{raw.cuda_version % 1000 // 10}"
        code = raw.init_error or query.planted(raw.errors, "nvmlInitWithFlags") or (0 if raw.driver_loaded else 9)
        if code:
            raise Exit(*_init_failure(code, raw.nvml_version.decode()))
        branch = int(self.driver.split(".", 1)[0])
        present = [slot for slot in raw.gpus if slot.present]
        self.all = [Device(number, slot, branch) for number, slot in enumerate(present)]
        self._open("nvidiactl")

    def _open(self, node: str) -> None:
        with contextlib.suppress(OSError):
            self._nodes.append(os.open(f"{_dev()}/{node}", os.O_RDWR | os.O_CLOEXEC))

    def chosen(self, wanted: str | None) -> list[Device]:
        keys = wanted.split(",") if wanted else []
        devices = [d for d in self.all if not keys or any(_names(key, d) for key in keys)]
        if not devices:
            raise Exit(6, "No devices were found\n")
        return devices

    def attach(self, devices: list[Device]) -> None:
        """Take each handle; the first that cannot be had ends the command, as it does with the real one."""
        for device in devices:
            try:
                device.attach()
            except Failed as failed:
                raise Exit(*_no_handle(device, failed)) from None
            self._open(f"nvidia{device.slot.minor}")


def _dev() -> str:
    return os.environ.get("FAKENVML_DEV") or "/dev"


def _init_failure(code: int, library: str) -> tuple[int, str]:
    if code == 9:
        return 9, NO_DRIVER
    if code == 18:
        version = library.split(".", 1)[-1]
        return 18, f"Failed to initialize NVML: Driver/library version mismatch\nNVML library version: {version}\n"
    return code if code < 256 else 255, f"Failed to initialize NVML: {Failed(code).text}\n"


def _no_handle(device: Device, failed: Failed) -> tuple[int, str]:
    advice = ".  Reboot the system to recover this GPU" if failed.code == 15 else ""
    short = device.bus_id[4:]
    text = f"Unable to determine the device handle for GPU{device.number}: {short}: {failed.text}{advice}\n"
    return failed.code if failed.code < 256 else 255, text


def _names(key: str, device: Device) -> bool:
    if key == str(device.number) or key == device.text("uuid"):
        return True
    return bool(re.fullmatch(r"[0-9a-fA-F:.]+", key)) and ":" in key and device.bus_id.lower().endswith(key.lower())


# -- forms that only look ------------------------------------------------------------------------------------------


def listing(session: Session, devices: list[Device]) -> str:
    session.attach(devices)
    return "".join(f"GPU {d.number}: {d.text('name')} (UUID: {d.text('uuid')})\n" for d in devices)


def csv(session: Session, devices: list[Device], request: Request) -> str:
    apps = "apps" in request.values
    fields = [name.strip() for name in request.values["apps" if apps else "query"].split(",")]
    wrong = query.unknown_field(fields, session.driver, apps)
    if wrong is not None:
        raise Exit(2, f'Field "{wrong}" is not a valid field to query.\n\n')
    options = request.values.get("format", "").split(",")
    if "csv" not in options:
        raise Exit(2, "\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.\n")
    session.attach(devices)
    rows = [[query.APPS[name] for name in fields] if apps else query.gpu_header(fields)]
    rows = [] if "noheader" in options else rows
    for device in devices:
        if apps:
            found = query.app_rows(device, fields)
        else:
            found = [query.gpu_row(device, fields, session.driver, len(session.all))]
        if "nounits" in options:
            found = [[re.sub(r"^(\d+) (MiB|%)$", r"\1", value) for value in row] for row in found]
        rows += found
    return "".join(", ".join(row) + "\n" for row in rows)


def long_form(session: Session, devices: list[Device], as_xml: bool) -> str:
    # The long forms go on past a GPU without a handle and put the words for it in the place of each value.
    for device in devices:
        session._open(f"nvidia{device.slot.minor}")
    write = report.xml if as_xml else report.text
    return write(devices, session.driver, session.cuda, len(session.all))


# -- forms that change something -----------------------------------------------------------------------------------


def set_persistence(session: Session, devices: list[Device], wanted: str) -> str:
    modes = {"0": 0, "1": 1, "DISABLED": 0, "ENABLED": 1}
    if wanted.upper() not in modes:
        raise Exit(2, f'"{wanted}" is not a valid value for the persistence mode.\n')
    session.attach(devices)
    said, mode = "", modes[wanted.upper()]
    word = "Enabled" if mode else "Disabled"
    for device in devices:
        try:
            if os.geteuid():
                raise Failed(4)
            device.ask("nvmlDeviceSetPersistenceMode", survives_reset_required=True)
        except Failed as failed:
            said += f"Unable to set persistence mode for GPU {device.bus_id}: {failed.text}\n"
            code = failed.code if failed.code < 256 else 255
            raise Exit(code, said + "Terminating early due to previous error.\n") from None
        same = device.slot.persistence == mode
        said += f"Persistence mode is already {word}" if same else f"{word} persistence mode"
        said += f" for GPU {device.bus_id}.\n"
        device.slot.persistence = mode
    return said + "All done.\n"


def holders(device: Device) -> set[int]:
    """Other processes with the GPU's node open, by any thread: a dead leader shows no descriptors of its own."""
    node, found = f"{_dev()}/nvidia{device.slot.minor}", set()
    for pid in (name for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()):
        for folder in (f"/proc/{pid}/fd", *_thread_folders(pid)):
            with contextlib.suppress(OSError):
                if any(_link(f"{folder}/{name}") == node for name in os.listdir(folder)):
                    found.add(int(pid))
                    break
    return found


def _thread_folders(pid: str) -> list[str]:
    with contextlib.suppress(OSError):
        return [f"/proc/{pid}/task/{tid}/fd" for tid in os.listdir(f"/proc/{pid}/task") if tid != pid]
    return []


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def reset(session: Session, devices: list[Device]) -> str:
    if os.geteuid():
        raise Exit(4, "Unable to reset this GPU because of insufficient permissions.\n")
    for device in devices:
        try:
            device.attach()
        except Failed as failed:
            raise Exit(*_no_handle(device, failed)) from None
        while device.slot.hang:
            query.nap()
    unsupported = [d for d in devices if d.slot.reset_mode == RESET_MODES["unsupported"]]
    if unsupported:
        raise Exit(3, "".join(f"Resetting GPU {d.bus_id} is not supported.\n" for d in unsupported))
    busy = [d for d in devices if _in_use(d)]
    if busy:
        one = len(busy) == 1
        verb, these = (" is", "this device") if one else ("s are", "these devices")
        words = IN_USE.format(count=len(busy), s=verb, these=these)
        raise Exit(255, _refused(busy, "In use by another client") + "\n" + words + "\n")
    said = ""
    for device in devices:
        _reset_one(session.state, device, said)
        said += f"GPU {device.bus_id} was successfully reset.\n"
    return said + "All done.\n"


def _in_use(device: Device) -> bool:
    slot = device.slot
    forced = slot.reset_mode == RESET_MODES["in-use"]
    rows = any(row.pid for row in slot.rows)
    return bool(forced or slot.persistence or rows or device.resetting() or holders(device))


def _refused(devices: list[Device], why: str) -> str:
    return "The following GPUs could not be reset:\n" + "".join(f"  GPU {d.bus_id}: {why}\n" for d in devices)


def _reset_one(state: State, device: Device, said: str) -> None:
    slot, number = device.slot, next(i for i, s in enumerate(state.raw.gpus) if s.bus_id == device.slot.bus_id)
    slot.resetting_pid = os.getpid()
    try:
        due = time.monotonic() + slot.reset_ms / 1000
        while time.monotonic() < due or slot.reset_mode == RESET_MODES["hang"]:
            query.nap()
        if slot.reset_mode == RESET_MODES["fail"]:
            raise Exit(255, said + _refused([device], "Unknown Error"))
        state.reset(number, "gpu-reset")
    finally:
        slot.resetting_pid = 0


# -- command -------------------------------------------------------------------------------------------------------


def run(argv: list[str]) -> str:
    request = parse(argv)
    session = Session()
    devices = session.chosen(request.values.get("id"))
    if "reset" in request.flags:
        return reset(session, devices)
    if "pm" in request.values:
        return set_persistence(session, devices, request.values["pm"])
    if "query" in request.values or "apps" in request.values:
        return csv(session, devices, request)
    if "list" in request.flags:
        return listing(session, devices)
    if "long" in request.flags:
        said = long_form(session, devices, "xml" in request.flags)
        if any(d.slot.lost for d in devices):
            raise Exit(15, said)
        return said
    session.attach(devices)
    return report.table(devices, session.driver, session.cuda)


def main() -> NoReturn:
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as comm:
        comm.write("nvidia-smi")
    try:
        code, text = 0, run(sys.argv[1:])
    except Exit as end:
        code, text = end.code, end.text
    except KeyboardInterrupt:
        code, text = 130, ""
    sys.stdout.write(text)
    sys.stdout.flush()
    sys.exit(code)


if __name__ == "__main__":
    main()
