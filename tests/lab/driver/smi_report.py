"""The long forms of `nvidia-smi` (XML, text, table) in the shape of R550 to R580; nothing here changes anything."""

from __future__ import annotations

import time
from collections.abc import Callable
from xml.sax.saxutils import escape

from .smi_query import Device, Failed, shown

Tree = list[tuple[str, "str | Tree"]]
PCIE_GEN = (("max", "link_gen_max"), ("current", "link_gen"))
PCIE_WIDTH = (("max", "link_width_max"), ("current", "link_width"))


def gpu_tree(device: Device) -> Tree:
    """One GPU, element by element; a value that cannot be had is replaced by the words for it."""

    def ask(read: Callable[[], str]) -> str:
        return shown(read)

    reset_status: Tree = []
    if device.branch < 580:
        reset_status.append(("reset_required", ask(lambda: device.reset_required_field(1))))
        reset_status.append(("drain_and_reset_recommended", ask(lambda: device.reset_required_field(4))))
    recovery: Tree = [("gpu_recovery_action", ask(device.recovery_action))] if device.branch >= 565 else []
    return [
        ("product_name", device.text("name")),
        ("product_brand", "NVIDIA"),
        ("persistence_mode", ask(device.persistence)),
        ("addressing_mode", "None"),
        ("mig_mode", [(f"{part}_mig", ask(lambda p=part: device.mig(p))) for part in ("current", "pending")]),  # type: ignore[misc]
        ("mig_devices", "None"),
        ("accounting_mode", "Disabled"),
        ("driver_model", [("current_dm", "N/A"), ("pending_dm", "N/A")]),
        ("serial", device.text("serial") or "N/A"),
        ("uuid", device.text("uuid")),
        ("minor_number", str(device.slot.minor)),
        ("vbios_version", device.text("vbios")),
        ("multigpu_board", "No"),
        ("gsp_firmware_version", "N/A"),
        ("gpu_virtualization_mode", [("virtualization_mode", ask(device.virtualisation)), ("host_vgpu_mode", "N/A")]),
        *([("gpu_reset_status", reset_status)] if reset_status else []),
        *recovery,
        ("pci", pci_tree(device)),
        ("fan_speed", "N/A"),
        ("performance_state", "P8"),
        ("fb_memory_usage", memory_tree(device.memory, ("total", "reserved", "used", "free"))),
        ("bar1_memory_usage", memory_tree(device.bar1, ("total", "used", "free"))),
        ("compute_mode", "Default"),
        ("utilization", [(f"{p}_util", ask(lambda p=p: device.utilisation(p))) for p in ("gpu", "memory")]),  # type: ignore[misc]
        ("ecc_mode", [(f"{p}_ecc", ask(lambda: device.ecc("ecc_enabled"))) for p in ("current", "pending")]),
        ("ecc_errors", [("volatile", ecc_tree(device, "vol")), ("aggregate", ecc_tree(device, "agg"))]),
        ("retired_pages", retired_tree(device)),
        ("remapped_rows", remapped_tree(device)),
        ("fabric", [("state", ask(device.fabric)), ("status", "N/A")]),
        ("processes", process_tree(device)),
        ("accounted_processes", []),
    ]


def pci_tree(device: Device) -> Tree:
    domain, bus, slot = device.bus_id.split(":")

    def link(field: str) -> str:
        return shown(lambda: device.link(field))

    def width(field: str) -> str:
        value = link(field)
        return f"{value}x" if value.isdigit() else value

    return [
        ("pci_bus", bus),
        ("pci_device", slot.split(".")[0]),
        ("pci_domain", domain[-4:]),
        ("pci_device_id", f"{device.slot.pci_device_id:08X}"),
        ("pci_bus_id", device.bus_id),
        ("pci_sub_system_id", f"{device.slot.pci_subsystem_id:08X}"),
        (
            "pci_gpu_link_info",
            [
                ("pcie_gen", [(f"{part}_link_gen", link(field)) for part, field in PCIE_GEN]),
                ("link_widths", [(f"{part}_link_width", width(field)) for part, field in PCIE_WIDTH]),
            ],
        ),
        ("replay_counter", "0"),
    ]


def memory_tree(read: Callable[[str], str], parts: tuple[str, ...]) -> Tree:
    return [(part, shown(lambda p=part: read(p))) for part in parts]  # type: ignore[misc]


def ecc_tree(device: Device, counter: str) -> Tree:
    corr, unc = (shown(lambda k=kind: device.ecc(f"ecc_{counter}_{k}")) for kind in ("corr", "unc"))  # type: ignore[misc]
    zero = "0" if corr.isdigit() else corr
    return [
        ("sram_correctable", zero),
        ("sram_uncorrectable_parity", zero),
        ("sram_uncorrectable_secded", zero),
        ("dram_correctable", corr),
        ("dram_uncorrectable", unc),
    ]


def retired_tree(device: Device) -> Tree:
    pending = shown(lambda: device.retired("retired_pending"))
    return [
        ("multiple_single_bit_retirement", [("retired_count", shown(lambda: device.retired("retired_sbe")))]),
        ("double_bit_retirement", [("retired_count", shown(lambda: device.retired("retired_dbe")))]),
        ("pending_blacklist", pending),
        ("pending_retirement", pending),
    ]


def remapped_tree(device: Device) -> str | Tree:
    names = {"corr": "remap_corr", "unc": "remap_unc", "pending": "remap_pending", "failure": "remap_failed"}
    if not device.slot.remap_supported:
        return "N/A"
    return [(f"remapped_row_{part}", shown(lambda f=field: device.remapped(f))) for part, field in names.items()]  # type: ignore[misc]


def process_tree(device: Device) -> str | Tree:
    try:
        rows = device.processes()
    except Failed as failed:
        return failed.text
    return [
        (
            "process_info",
            [
                ("gpu_instance_id", "N/A"),
                ("compute_instance_id", "N/A"),
                ("pid", str(pid)),
                ("type", kind),
                ("process_name", name),
                ("used_memory", f"{mib} MiB"),
            ],
        )
        for pid, kind, name, mib in rows
    ]


def xml_lines(tree: Tree, depth: int) -> list[str]:
    lines = []
    for tag, value in tree:
        pad = "\t" * depth
        if isinstance(value, str):
            lines.append(f"{pad}<{tag}>{escape(value)}</{tag}>")
        else:
            lines += [f"{pad}<{tag}>", *xml_lines(value, depth + 1), f"{pad}</{tag}>"]
    return lines


def xml(devices: list[Device], driver: str, cuda: str, attached: int) -> str:
    lines = ['<?xml version="1.0" ?>', '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">', "<nvidia_smi_log>"]
    head: Tree = [("timestamp", time.ctime()), ("driver_version", driver), ("cuda_version", cuda)]
    lines += xml_lines([*head, ("attached_gpus", str(attached))], 1)
    for device in devices:
        lines += [f'\t<gpu id="{device.bus_id}">', *xml_lines(gpu_tree(device), 2), "\t</gpu>"]
    return "\n".join([*lines, "</nvidia_smi_log>", ""])


UPPER = ("FB", "BAR1", "GPU", "PCI", "PCIe", "ECC", "MIG", "UUID", "ID", "GSP", "CUDA", "VBIOS", "SRAM", "DRAM", "and")
WORDS = {word.lower(): word for word in UPPER}
LABELS = {"pid": "Process ID", "process_name": "Name", "used_memory": "Used GPU Memory", "process_info": "Process"}
LABELS |= {f"{part}_{mode}": part.capitalize() for part in ("current", "pending") for mode in ("mig", "ecc")}
LABELS |= {"gpu_util": "Gpu", "memory_util": "Memory"}


def _label(tag: str) -> str:
    return LABELS.get(tag) or " ".join(WORDS.get(word, word.capitalize()) for word in tag.split("_"))


def text_lines(tree: Tree, depth: int) -> list[str]:
    lines = []
    for tag, value in tree:
        label = " " * (4 * depth) + _label(tag)
        if isinstance(value, str):
            lines.append(f"{label:<50}: {value}")
        else:
            lines += [label, *text_lines(value, depth + 1)] if value else [f"{label:<50}: None"]
    return lines


def text(devices: list[Device], driver: str, cuda: str, attached: int) -> str:
    lines = ["", "==============NVSMI LOG==============", ""]
    head: Tree = [("timestamp", time.ctime()), ("driver_version", driver), ("cuda_version", cuda)]
    lines += text_lines(head, 0)
    lines += ["", f"{'Attached GPUs':<50}: {attached}"]
    for device in devices:
        lines += [f"GPU {device.bus_id}", *text_lines(gpu_tree(device), 1), ""]
    return "\n".join([*lines, ""])


EDGE = "+-----------------------------------------+------------------------+----------------------+"
FRAME = "+-----------------------------------------------------------------------------------------+"


def table(devices: list[Device], driver: str, cuda: str) -> str:
    lines = [
        time.ctime(),
        FRAME,
        f"| NVIDIA-SMI {driver:<22} Driver Version: {driver:<14} CUDA Version: {cuda:<8} |",
        "|-----------------------------------------+------------------------+----------------------+",
        "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |",
        "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |",
        "|                                         |                        |               MIG M. |",
        "|=========================================+========================+======================|",
    ]
    for device in devices:
        lines += [*table_rows(device), EDGE]
    return "\n".join([*lines, " " * 91, *process_panel(devices), ""])


def table_rows(device: Device) -> list[str]:
    name = device.text("name")
    name = name if len(name) <= 25 else name[:22] + "..."
    persistence = {"Enabled": "On", "Disabled": "Off"}.get(shown(device.persistence), "ERR!")
    ecc = _short(lambda: device.ecc("ecc_vol_unc"), 20)
    used, total = (_short(lambda p=part: device.memory(p).replace(" ", ""), 10) for part in ("used", "total"))  # type: ignore[misc]
    util = _short(lambda: device.utilisation("gpu").replace(" ", ""), 8)
    mig = _short(lambda: device.mig("current"), 20)
    return [
        f"| {device.number:>3}  {name:<25}    {persistence:<3}  |   {device.bus_id} Off | {ecc:>20} |",
        f"| N/A   30C    P8             15W /  600W | {used:>10} / {total:>9} | {util:>8}      Default |",
        f"|                                         |                        | {mig:>20} |",
    ]


def _short(read: Callable[[], str], width: int) -> str:
    try:
        return read()[:width]
    except Failed as failed:
        return "N/A" if failed.code == 3 else "ERR!"


def process_panel(devices: list[Device]) -> list[str]:
    lines = [
        FRAME,
        "| Processes:                                                                              |",
        "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |",
        "|        ID   ID                                                               Usage      |",
        "|=========================================================================================|",
    ]
    found = []
    for device in devices:
        try:
            rows = device.processes()
        except Failed:
            continue
        for pid, kind, name, mib in rows:
            short = name if len(name) <= 35 else "..." + name[-32:]
            found.append(f"| {device.number:>4}   N/A  N/A {pid:>16} {kind:>6}   {short:<35} {mib:>7}MiB |")
    none = "|  No running processes found                                                             |"
    return [*lines, *(found or [none]), FRAME]
