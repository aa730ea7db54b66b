"""A guest's configuration as PVE writes it becomes values; what cannot be resolved stays visibly unresolved."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from recover.core.read.pve_values import flag, number, properties, rows_of, text, whole
from recover.model.gpu import NOT_ASKED
from recover.model.hypervisor import HostPci, NumaNode, VmConfig
from recover.model.reading import Known, Reading, Unknown, Why

_ADDRESS = re.compile(r"(?:(?P<domain>[0-9a-f]{4,8}):)?(?P<slot>[0-9a-f]{2}:[0-9a-f]{2})(?:\.(?P<function>[0-7]))?")
_FULL = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ID, _CLASS = re.compile(r"[0-9a-f]{4}"), re.compile(r"[0-9a-f]{4}")
_MAC = re.compile(r"(?<![0-9A-Fa-f:])(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}(?![0-9A-Fa-f:])")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DISK = re.compile(r"(?:(?:ide|sata|scsi|virtio|efidisk|tpmstate|mp)\d+|rootfs|vmstate)")
_VOLUME = re.compile(r"(?P<storage>[A-Za-z][\w.-]*):")
_HOSTPCI = re.compile(r"hostpci(\d*)")
ALL_NVIDIA = "/dev/nvidia*"
_NVIDIA_RULE = re.compile(r"c 195:(\d+|\*)")  # Documentation/admin-guide/devices.txt: 195 is NVIDIA's
_NO_GPU_MINOR = 250  # above: modeset and control nodes
_NVIDIA_NODE = re.compile(r"/dev/nvidia\d+")


@dataclass(frozen=True, slots=True)
class PciDevice:
    """One row of the node's hardware/pci list."""

    address: str  # "0000:41:00.0"
    ids: str  # "10de:2bb1"
    group: int | None  # None: no IOMMU
    kind: str = ""  # class, four hex digits: "0302"

    @property
    def nvswitch(self) -> bool:
        return self.ids.startswith("10de:") and self.kind == "0680"

    @property
    def gpu(self) -> bool:
        return self.ids.startswith("10de:") and self.kind.startswith("03")


def pci_devices(rows: object) -> tuple[PciDevice, ...]:
    """What can be read of the list; `bus` also says whether that is all of it."""
    return tuple(device for device in map(_pci_device, rows_of(rows)) if device is not None)


def bus(reading: Reading[Any]) -> Reading[tuple[PciDevice, ...]]:
    """The node's devices. A row that makes no sense could be any of them, so then none of the list is believed."""
    if isinstance(reading, Unknown):
        return reading
    found = pci_devices(reading.value)
    if isinstance(reading.value, list) and len(found) == len(reading.value):
        return Known(found)
    return Unknown(Why.GARBLED, "the node's list of PCI devices has rows that are none")


def _pci_device(row: Mapping[str, Any]) -> PciDevice | None:
    address, vendor, device, kind = (
        text(row.get(key)).lower().removeprefix("0x") for key in ("id", "vendor", "device", "class")
    )
    group = whole(row.get("iommugroup"))  # -1: none
    if not (_FULL.fullmatch(address) and _ID.fullmatch(vendor) and _ID.fullmatch(device) and _CLASS.match(kind)):
        return None
    if group is None:
        return None
    return PciDevice(address, f"{vendor}:{device}", group if group >= 0 else None, kind[:4])


def expand(host: str, devices: Reading[tuple[PciDevice, ...]]) -> tuple[str, ...]:
    """The functions that a `host=` or `path=` names: "41:00" is all functions of that slot, as PVE matches by prefix.

    Without the node's list a slot cannot be expanded and is left out; a full address stands for itself.
    """
    found: list[str] = []
    for one in host.lower().split(";"):
        match = _ADDRESS.fullmatch(one.strip())
        if match is None:
            continue
        slot = f"{match['domain'] or '0000'}:{match['slot']}"
        if match["function"] is not None:
            found.append(f"{slot}.{match['function']}")
        elif isinstance(devices, Known):
            there = sorted(d.address for d in devices.value if d.address.startswith(slot + "."))
            found += there or [slot + ".0"]  # gone from the bus: it still must be named
    return tuple(dict.fromkeys(found))


def mapping_paths(name: str, node: str, mappings: object) -> tuple[str, ...] | None:
    """The paths of a mapping's entries for this node, which are alternatives; None if it is not shown or not readable.

    Mappings on which the token holds no privilege are left out of the list, without a word (pve-manager,
    API2/Cluster/Mapping/PCI.pm).
    """
    for row in rows_of(mappings):
        if row.get("id") == name:
            lines = row.get("map")
            entries = [properties(text(line)) for line in lines] if isinstance(lines, list) else [{}]
            if not all(e.get("node") and e.get("path") for e in entries):
                return None
            return tuple(e["path"] for e in entries if e["node"] == node)
    return None


def host_pci(key: str, raw: str, node: str, devices: Reading[tuple[PciDevice, ...]], mappings: Reading[Any]) -> HostPci:
    parts = properties(raw, "host")
    host, mapping = parts.get("host", ""), parts.get("mapping", "")
    if host and not mapping and not _ADDRESS.fullmatch(host.lower().split(";")[0].strip()):
        host, mapping = "", host  # the documentation also shows a bare mapping name
    shown = _paths(host, mapping, node, mappings)
    paths = shown.value if isinstance(shown, Known) else ()
    addresses = tuple(dict.fromkeys(a for one in paths for a in expand(one, devices)))
    on_bus = {d.address: d for d in devices.value} if isinstance(devices, Known) else {}
    rows = [on_bus[a] for a in addresses if a in on_bus]
    return HostPci(
        key=key,
        raw=raw,
        addresses=addresses,
        mapping=mapping,
        choices=max(len(paths), 1),
        mdev=parts.get("mdev", ""),
        driver=parts.get("driver", "vfio"),
        device_ids=tuple(d.ids for d in rows),
        iommu_groups=tuple(dict.fromkeys(d.group for d in rows if d.group is not None)),
        present=_present(devices, shown, len(addresses), len(rows)),
        gpus=_gpus(parts, paths, devices),
    )


def _paths(host: str, mapping: str, node: str, mappings: Reading[Any]) -> Reading[tuple[str, ...]]:
    if not mapping:
        return Known((host,) if host else ())
    if isinstance(mappings, Unknown):
        return mappings
    named = mapping_paths(mapping, node, mappings.value)
    if named is None:
        return Unknown(Why.DENIED, f"needs Mapping.Audit on /mapping/pci/{mapping}, if there is such a mapping")
    return Known(named)


def _gpus(parts: Mapping[str, str], paths: tuple[str, ...], devices: Reading[tuple[PciDevice, ...]]) -> Reading[int]:
    """By the class of each function, since audio and NVSwitches share the vendor. Alternatives must all say the same.

    A vGPU (mdev) is one GPU; a guest that is shown another vendor may show none.
    """
    if isinstance(devices, Unknown):
        return devices
    if "vendor-id" in parts:
        return Unknown(Why.ABSENT, "the guest is shown another vendor")
    on_bus = {d.address: d for d in devices.value}
    counts = set()
    for path in paths:
        there = [on_bus.get(address) for address in expand(path, devices)]
        if not there or None in there:
            return Unknown(Why.ABSENT, f"{path} is not on the node's bus")
        found = sum(d.gpu for d in there if d is not None)
        counts.add(min(found, 1) if "mdev" in parts else found)
    return Known(counts.pop()) if len(counts) == 1 else Unknown(Why.ABSENT, "which device it is, is not known")


def _present(
    devices: Reading[tuple[PciDevice, ...]], paths: Reading[tuple[str, ...]], wanted: int, there: int
) -> Reading[bool]:
    if isinstance(paths, Unknown):
        return paths
    if not paths.value:  # a mapping without an entry for this node
        return Known(False)
    if isinstance(devices, Unknown):
        return devices
    return Known(wanted > 0 and wanted == there)


def host_pcis(
    config: Mapping[str, Any],
    node: str,
    devices: Reading[tuple[PciDevice, ...]] = NOT_ASKED,
    mappings: Reading[Any] = NOT_ASKED,
) -> tuple[HostPci, ...]:
    keys = [key for key in config if _HOSTPCI.fullmatch(key)]
    keys.sort(key=lambda key: number(key.removeprefix("hostpci")))
    return tuple(host_pci(key, text(config[key]), node, devices, mappings) for key in keys)


def nvidia_nodes(config: Mapping[str, Any]) -> frozenset[str]:
    """The GPUs' device files that a container is given: devN entries, mount entries and control group rules.

    A rule for all of NVIDIA's devices that no entry narrows down gives ALL_NVIDIA.
    """
    texts = [str(value) for key, value in config.items() if re.fullmatch(r"dev\d+", key)]
    raw = config.get("lxc")
    lines = [str(line) for line in raw] if isinstance(raw, list) else []
    named = {node for text in (*texts, *lines) for node in _NVIDIA_NODE.findall(text)}
    rules = {rule for line in lines if "devices.allow" in line for rule in _NVIDIA_RULE.findall(line)}
    named |= {f"/dev/nvidia{rule}" for rule in rules if rule.isdecimal() and int(rule) < _NO_GPU_MINOR}
    return frozenset(named or ({ALL_NVIDIA} if "*" in rules else ()))


def shared_nodes(ours: frozenset[str], theirs: frozenset[str]) -> frozenset[str]:
    """What both are given; who is given all shares whatever the other has."""
    if ALL_NVIDIA in theirs:
        return ours
    return theirs if ALL_NVIDIA in ours else ours & theirs


def storages(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The storages that a start needs: of all disks, in order, without empty drives and plain paths."""
    volumes = (properties(text(v), "volume") for k, v in config.items() if _DISK.fullmatch(k))
    names = (_VOLUME.match(p.get("volume", p.get("file", ""))) for p in volumes)
    return tuple(dict.fromkeys(match["storage"] for match in names if match))


def _macs(values: Iterable[object]) -> frozenset[str]:
    return frozenset(mac.lower() for value in values for mac in _MAC.findall(str(value)))


# What a start, a stop and their guards depend on must be read, or nothing is known of the guest.
_WEIGHTY = re.compile(rf"{_DISK.pattern}|hostpci\d*|(?:numa|net|dev)\d+|memory|smbios1|args|hugepages")
_NUMBERS = ("memory", "hugepages")


def unreadable(raw: Mapping[str, Any]) -> str:
    """A key whose value PVE would never send, or an empty string."""
    for key, value in raw.items():
        if _WEIGHTY.fullmatch(key) and not isinstance(value, str) and key not in _NUMBERS:
            return key
    memory = properties(text(raw.get("memory", "512")), "current").get("current", "")
    if not (whole(memory) or 0) > 0:
        return "memory"
    return "" if text(raw.get("hugepages", "any")) in ("any", "2", "1024") else "hugepages"


def vm_config(
    raw: Mapping[str, Any],
    node: str,
    devices: Reading[tuple[PciDevice, ...]] = NOT_ASKED,
    mappings: Reading[Any] = NOT_ASKED,
) -> VmConfig:
    nets = [value for key, value in raw.items() if re.fullmatch(r"net\d+", key)]
    # The base64 flag of smbios1 is about its texts; the schema wants the UUID itself plain.
    uuid = properties(text(raw.get("smbios1"))).get("uuid", "").lower()
    memory = properties(text(raw.get("memory")), "current").get("current", "")
    return VmConfig(
        name=text(raw.get("name")) or text(raw.get("hostname")),
        memory_mib=number(memory, 512),  # PVE's default
        smbios_uuid=uuid if _UUID.fullmatch(uuid) else "",
        macs=_macs(nets),
        hostpci=host_pcis(raw, node, devices, mappings),
        agent=flag(properties(text(raw.get("agent"), "0"), "enabled").get("enabled", "0")),
        balloon_mib=whole(raw.get("balloon")),
        hugepages=text(raw.get("hugepages")),
        keeps_hugepages=flag(raw.get("keephugepages")),
        args=text(raw.get("args")),
        onboot=flag(raw.get("onboot")),
        protection=flag(raw.get("protection"), doubt=True),
        template=flag(raw.get("template"), doubt=True),
        bios=text(raw.get("bios")),
        digest=text(raw.get("digest")),
        storages=storages(raw),
        cores=number(raw.get("cores"), 1) * number(raw.get("sockets"), 1),
        hookscript=text(raw.get("hookscript")),
        nics=len(nets),
        numa=flag(raw.get("numa")),
        numa_nodes=tuple(_numa(text(value)) for key, value in sorted(raw.items()) if re.fullmatch(r"numa\d+", key)),
        sockets=number(raw.get("sockets"), 1),
        device_files=_device_files(raw),
        plugs_memory="memory" in re.split(r"[;, ]+", text(raw.get("hotplug"))),
    )


def _device_files(raw: Mapping[str, Any]) -> tuple[str, ...]:
    entries = [properties(text(v), "path") for k, v in sorted(raw.items()) if re.fullmatch(r"dev\d+", k)]
    return tuple(dict.fromkeys(e["path"] for e in entries if "path" in e))


def _numa(raw: str) -> NumaNode:
    """`cpus=0-31,hostnodes=0,memory=229376,policy=bind`; a list of host nodes can't be had with huge pages."""
    parts = properties(raw)
    return NumaNode(number(parts.get("memory")), whole(parts.get("hostnodes")), parts.get("policy") == "bind")
