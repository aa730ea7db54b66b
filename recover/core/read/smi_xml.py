"""`nvidia-smi -q -x` of drivers 325 to 610 as GPU records: words that stand for a figure are never read as 0.

NVIDIA does not promise this output; NVML is asked first, and this is what is left where it can't be used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from recover.core.clean import clean
from recover.core.read.procfs import bus_id
from recover.model.gpu import Condition, Gpu, GpuProcess, RecoveryAction
from recover.model.reading import Known, Reading, Unknown, Why, known_or, map_known

if TYPE_CHECKING:
    from xml.etree import ElementTree

_LOST = re.compile(r"GPU is lost", re.I)
_RESET = re.compile(r"GPU requires reset|reset required", re.I)
_FAILED = re.compile(r"Unknown Error|ERR!|Insufficient (External )?Power|not found", re.I)
_ABSENT = re.compile(r"^\[?(N/A|Not Supported|Not Available|Not Active)\]?$|has been deprecated", re.I)
_DENIED = re.compile(r"Insufficient Permissions|No Permission", re.I)
# One enum, three vocabularies: nvidia-smi, the kernel log (Xid 154), NVML's numbers.
ACTIONS = {
    "none": RecoveryAction.NONE,
    "reset": RecoveryAction.GPU_RESET,
    "gpu reset": RecoveryAction.GPU_RESET,
    "gpu reset required": RecoveryAction.GPU_RESET,
    "reboot": RecoveryAction.NODE_REBOOT,
    "node reboot required": RecoveryAction.NODE_REBOOT,
    "drain p2p": RecoveryAction.DRAIN_P2P,
    "drain and reset": RecoveryAction.DRAIN_AND_RESET,
    "recover imex domain": RecoveryAction.RECOVER_IMEX_DOMAIN,
    "bus reset": RecoveryAction.BUS_RESET,
    "system reboot": RecoveryAction.SYSTEM_REBOOT,
}


@dataclass(frozen=True, slots=True)
class SmiReport:
    driver_version: Reading[str]
    gpus: tuple[Gpu, ...]


def parse(text: str) -> Reading[SmiReport]:
    """The report, or why the text is none. Text before the XML (warnings) is skipped; a DTD is never followed."""
    start, end = text.find("<nvidia_smi_log"), text.rfind("</nvidia_smi_log>")
    if start < 0:
        return Unknown(_why_of(text), clean(text, 300) or "nvidia-smi said nothing")
    if end < 0:
        return Unknown(Why.GARBLED, "the XML broke off")
    body = text[start : end + len("</nvidia_smi_log>")]
    if "<!" in body:
        return Unknown(Why.GARBLED, "declarations inside the XML")
    from xml.etree import ElementTree

    try:
        root = ElementTree.fromstring(re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]", " ", body))
    except (ElementTree.ParseError, ValueError) as error:
        return Unknown(Why.GARBLED, f"not well-formed: {error}")
    version = words(root, "driver_version", "kmd_version")
    gpus = (_gpu(index, node) for index, node in enumerate(root.findall("gpu")))
    return Known(SmiReport(version, tuple(gpus)))


def _why_of(text: str) -> Why:
    return Why.DENIED if _DENIED.search(text) else Why.ABSENT if not text.strip() else Why.GARBLED


def words(node: ElementTree.Element, *paths: str) -> Reading[str]:
    """The first path that is there and has a meaning; else why not."""
    seen: Unknown = Unknown(Why.ABSENT, "not in this nvidia-smi")
    for path in paths:
        found = node.find(path)
        if found is None:
            continue
        text = clean(found.text or "", 200)
        problem = _problem(text)
        if problem is None:
            return Known(text)
        seen = problem
    return seen


def _problem(text: str) -> Unknown | None:
    if not text or _ABSENT.search(text):
        return Unknown(Why.ABSENT, text or "empty")
    if _LOST.search(text) or _RESET.search(text):
        return Unknown(Why.UNREACHABLE, text)
    if _DENIED.search(text):
        return Unknown(Why.DENIED, text)
    if _FAILED.search(text):
        return Unknown(Why.GARBLED, text)
    return None


def figure(node: ElementTree.Element, *paths: str) -> Reading[int]:
    """A number with or without a unit ("97887 MiB", "37 %", "16x")."""
    said = words(node, *paths)
    if isinstance(said, Unknown):
        return said
    match = re.fullmatch(r"(\d{1,15})(?:\s*(?:MiB|MB|%|x|W|C))?", said.value)
    return Known(int(match.group(1))) if match else Unknown(Why.GARBLED, said.value)


def yes(node: ElementTree.Element, *paths: str) -> Reading[bool]:
    said = words(node, *paths)
    if isinstance(said, Unknown):
        return said
    word = said.value.rstrip("*").strip().lower()
    if word in ("yes", "enabled", "on", "1"):
        return Known(True)
    return Known(False) if word in ("no", "disabled", "off", "0") else Unknown(Why.GARBLED, said.value)


def _gpu(index: int, node: ElementTree.Element) -> Gpu:
    condition, detail = _condition(node)
    name = words(node, "product_name")
    action = words(node, "gpu_recovery_action")
    virtual = words(node, "gpu_virtualization_mode/virtualization_mode")
    return Gpu(
        index=index,
        bus_id=bus_id(node.get("id") or known_or(words(node, "pci/pci_bus_id"), f"index:{index}")),
        uuid=words(node, "uuid"),
        condition=condition,
        detail=detail,
        minor=figure(node, "minor_number"),
        name=name,
        total_mib=figure(node, "fb_memory_usage/total", "memory_usage/total"),
        reserved_mib=figure(node, "fb_memory_usage/reserved"),
        used_mib=figure(node, "fb_memory_usage/used", "memory_usage/used"),
        processes=_processes(node),
        utilisation_pct=figure(node, "utilization/gpu_util"),
        recovery_action=action if isinstance(action, Unknown) else _action(action.value),
        persistence=yes(node, "persistence_mode"),
        link_width=figure(node, "pci/pci_gpu_link_info/link_widths/current_link_width"),
        link_width_max=figure(node, "pci/pci_gpu_link_info/link_widths/max_link_width"),
        mig=yes(node, "mig_mode/current_mig"),
        remap_pending=yes(node, "remapped_rows/remapped_row_pending"),
        remap_failed=yes(node, "remapped_rows/remapped_row_failure"),
        ecc_uncorrected=_ecc(node),
        fabric=map_known(words(node, "fabric/state"), str.lower),
        pages_pending=yes(node, "retired_pages/pending_retirement", "retired_pages/pending_blacklist"),
        virtualisation=virtual if isinstance(virtual, Unknown) else Known(_virtual(virtual.value)),
        shares_system_memory=re.search(r"\bG[HB](?:10|200|300)\b", known_or(name, "")) is not None,
    )


def _action(text: str) -> Reading[RecoveryAction]:
    found = ACTIONS.get(text.strip().lower())
    return Known(RecoveryAction.OTHER) if found is None else Known(found)


def _virtual(text: str) -> str:
    word = text.lower().replace("-", "").replace(" ", "")
    return {"passthrough": "passthrough", "vgpu": "vgpu", "none": "none", "hostvgpu": "host-vgpu"}.get(word, text)


def _condition(node: ElementTree.Element) -> tuple[Condition, str]:
    """Any value that says so: which fields a dead GPU still answers differs between drivers."""
    texts = [clean(element.text, 200) for element in node.iter() if element.text and element.tag != "process_name"]
    for pattern, condition in ((_LOST, Condition.LOST), (_RESET, Condition.RESET_REQUIRED)):
        said = next((text for text in texts if pattern.search(text)), None)
        if said:
            return condition, said
    used = words(node, "fb_memory_usage/used", "memory_usage/used")
    if isinstance(used, Unknown) and used.why is Why.GARBLED:
        return Condition.FAILS, used.detail
    required = yes(node, "gpu_reset_status/reset_required")
    if isinstance(required, Known) and required.value:
        return Condition.RESET_REQUIRED, "reset required: Yes"
    return Condition.ANSWERS, ""


def _ecc(node: ElementTree.Element) -> Reading[int]:
    """Uncorrected since the driver was loaded: one figure before R450, SRAM and DRAM parts since."""
    old = figure(node, "ecc_errors/volatile/double_bit/total")
    if isinstance(old, Known):
        return old
    sram = ("sram_uncorrectable_parity", "sram_uncorrectable_secded", "sram_uncorrectable", "dram_uncorrectable")
    parts = [figure(node, f"ecc_errors/volatile/{name}") for name in sram]
    known = [part.value for part in parts if isinstance(part, Known)]
    return Known(sum(known)) if known else old


def _processes(node: ElementTree.Element) -> Reading[tuple[GpuProcess, ...]]:
    """No element: not told. An element without rows: none that this name space can resolve, which is also "none"."""
    table = node.find("processes")
    if table is None:
        return Unknown(Why.ABSENT, "not in this nvidia-smi")
    text = clean(table.text or "", 200)
    if text and text.lower() != "none" and not len(table):
        problem = _problem(text)
        return Unknown(Why.GARBLED, text) if problem is None else problem
    found = []
    for row in table.findall("process_info"):
        pid, used, kind = figure(row, "pid"), figure(row, "used_memory"), known_or(words(row, "type"), "C")
        if isinstance(pid, Known):
            word = "mps" if kind.startswith("M") else "graphics" if kind == "G" else "compute"
            found.append(GpuProcess(pid.value, used.value if isinstance(used, Known) else None, word))
    return Known(tuple(found))
