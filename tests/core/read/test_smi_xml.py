"""nvidia-smi's XML over fifteen years of drivers; words never become figures."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recover.core.read.smi_xml import SmiReport, parse
from recover.model.gpu import Condition, RecoveryAction
from recover.model.reading import Known, Unknown, Why

DATA = Path(__file__).parents[2] / "data" / "smi"
HEAD = '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n'


def smi(gpu: str, version: str = "570.148.08", tag: str = "driver_version") -> SmiReport:
    text = f"{HEAD}<nvidia_smi_log><{tag}>{version}</{tag}><gpu id='00000000:41:00.0'>{gpu}</gpu></nvidia_smi_log>"
    found = parse(text)
    assert isinstance(found, Known), found
    return found.value


MODERN = """
<product_name>NVIDIA RTX PRO 6000 Blackwell</product_name><persistence_mode>Enabled</persistence_mode>
<mig_mode><current_mig>Disabled</current_mig></mig_mode><uuid>GPU-1</uuid><minor_number>3</minor_number>
<gpu_virtualization_mode><virtualization_mode>Pass-Through</virtualization_mode></gpu_virtualization_mode>
<gpu_reset_status><reset_required>Requested functionality has been deprecated</reset_required></gpu_reset_status>
<gpu_recovery_action>{action}</gpu_recovery_action>
<pci><pci_gpu_link_info><link_widths><max_link_width>16x</max_link_width><current_link_width>8x</current_link_width>
</link_widths></pci_gpu_link_info></pci>
<fb_memory_usage><total>97887 MiB</total><reserved>636 MiB</reserved>
<used>{used}</used><free>0 MiB</free></fb_memory_usage>
<utilization><gpu_util>{util}</gpu_util></utilization>
<ecc_errors><volatile><sram_uncorrectable_parity>1</sram_uncorrectable_parity><sram_uncorrectable_secded>0</sram_uncorrectable_secded>
<dram_uncorrectable>2</dram_uncorrectable></volatile></ecc_errors>
<remapped_rows><remapped_row_pending>Yes</remapped_row_pending><remapped_row_failure>No</remapped_row_failure></remapped_rows>
<processes><process_info><pid>42</pid><type>C</type>
<process_name>[Not Found]</process_name><used_memory>100 MiB</used_memory></process_info>
<process_info><pid>43</pid><type>G</type><process_name>x</process_name>
<used_memory>N/A</used_memory></process_info></processes>
"""


def modern(used: str = "89 MiB", util: str = "37 %", action: str = "None") -> str:
    return MODERN.format(used=used, util=util, action=action)


def test_a_gpu_of_today():
    gpu = smi(modern()).gpus[0]
    assert (gpu.bus_id, gpu.uuid, gpu.minor) == ("00000000:41:00.0", Known("GPU-1"), Known(3))
    assert (gpu.total_mib, gpu.reserved_mib, gpu.used_mib) == (Known(97887), Known(636), Known(89))
    assert (gpu.utilisation_pct, gpu.persistence, gpu.mig) == (Known(37), Known(True), Known(False))
    assert (gpu.link_width, gpu.link_width_max) == (Known(8), Known(16))
    assert (gpu.remap_pending, gpu.remap_failed, gpu.ecc_uncorrected) == (Known(True), Known(False), Known(3))
    assert gpu.virtualisation == Known("passthrough") and gpu.condition is Condition.ANSWERS
    assert isinstance(gpu.processes, Known)
    assert [(p.pid, p.used_mib, p.kind) for p in gpu.processes.value] == [(42, 100, "compute"), (43, None, "graphics")]


def test_drivers_of_325_and_610():
    old = "<product_name>Tesla K20m</product_name><memory_usage><total>4799 MB</total><used>12 MB</used></memory_usage>"
    assert smi(old, "325.15").gpus[0].used_mib == Known(12)
    assert smi(modern(), "610.10", "kmd_version").driver_version == Known("610.10")


@pytest.mark.parametrize("words", ["N/A", "[N/A]", "[Not Supported]", "ERR!", "Unknown Error", "GPU is lost",
                                   "GPU requires reset", "Requested functionality has been deprecated", "", "lots",
                                   "Insufficient Permissions"])  # fmt: skip
def test_words_are_never_a_figure(words):
    gpu = smi(modern(used=words, util=words)).gpus[0]
    assert isinstance(gpu.used_mib, Unknown) and isinstance(gpu.utilisation_pct, Unknown)


@pytest.mark.parametrize(
    ("words", "condition"),
    [("GPU is lost", Condition.LOST), ("GPU requires reset", Condition.RESET_REQUIRED),
     ("Unknown Error", Condition.FAILS),
     ("ERR!", Condition.FAILS), ("N/A", Condition.ANSWERS)],
)  # fmt: skip
def test_what_words_mean(words, condition):
    assert smi(modern(used=words)).gpus[0].condition is condition


def test_a_process_title_can_not_make_a_gpu_lost():
    assert smi(modern().replace("[Not Found]", "GPU is lost")).gpus[0].condition is Condition.ANSWERS


@pytest.mark.parametrize(
    ("words", "action"),
    [("None", RecoveryAction.NONE), ("Reset", RecoveryAction.GPU_RESET), ("Reboot", RecoveryAction.NODE_REBOOT),
     ("Drain P2P", RecoveryAction.DRAIN_P2P), ("Drain and Reset", RecoveryAction.DRAIN_AND_RESET),
     ("Pray", RecoveryAction.OTHER)],
)  # fmt: skip
def test_recovery_actions(words, action):
    assert smi(modern(action=words)).gpus[0].recovery_action == Known(action)


def test_an_empty_table_is_no_process_and_a_missing_one_is_unknown():
    assert smi("<processes>\n\t\t</processes>").gpus[0].processes == Known(())
    assert smi("<processes>None</processes>").gpus[0].processes == Known(())
    assert isinstance(smi("<processes>N/A</processes>").gpus[0].processes, Unknown)
    assert isinstance(smi("<uuid>x</uuid>").gpus[0].processes, Unknown)


@pytest.mark.parametrize("path", sorted(DATA.iterdir()), ids=lambda path: path.stem)
def test_what_is_no_xml_is_no_report(path):
    found = parse(path.read_text())
    assert isinstance(found, Unknown) and found.detail


def test_warnings_before_the_xml_and_entity_bombs():
    text = f"WARNING: infoROM is corrupted at gpu 0000:41:00.0\n{HEAD}<nvidia_smi_log><gpu id='1'/></nvidia_smi_log>"
    assert isinstance(parse(text), Known)
    bomb = '<nvidia_smi_log><!DOCTYPE x [<!ENTITY a "aa">]>&a;</nvidia_smi_log>'
    assert isinstance(parse(bomb), Unknown)
    cut = parse(f"{HEAD}<nvidia_smi_log><gpu>")
    assert isinstance(cut, Unknown) and cut.why is Why.GARBLED


@given(st.text())
def test_nothing_makes_it_raise(text):
    parse(text)
    parse(f"<nvidia_smi_log><gpu id='x'>{text}</gpu></nvidia_smi_log>")
