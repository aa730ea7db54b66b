# ruff: noqa: E501
"""Printed nvidia-smi as cells: what is no figure stays a word, what is no print is left alone."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from recover.core.read.smi_text import SmiText, read

RAW = Path(__file__).parents[2] / "data" / "cases" / "raw"


def of(text: str) -> SmiText:
    return read(enumerate(text.splitlines(), 1))


def raw(name: str) -> SmiText:
    return of("\n".join(line for line in (RAW / f"{name}.txt").read_text().splitlines() if not line.startswith("# ")))


def test_the_plain_table_of_550() -> None:
    ((gpu,),) = (table.gpus for table in raw("smi_550_vllm_holds_memory_100util").prints)
    assert (gpu.index, gpu.name, gpu.bus_id) == (0, "NVIDIA RTX 6000 Ada Gene...", "00000000:c1:00.0")
    assert (gpu.used_mib, gpu.busy_pct, gpu.mig, gpu.persistence) == (46867, 100, "N/A", True)


def test_the_plain_table_of_390_has_no_mig_row() -> None:
    (table,) = raw("smi_container_memory_used_no_process_390").prints
    assert [(gpu.used_mib, gpu.busy_pct, gpu.mig) for gpu in table.gpus] == [(814, 78, ""), (558, 78, "")]
    assert table.panel is None


def test_a_blank_panel_says_nothing_of_processes() -> None:
    none, blank = raw("smi_processes_none_vs_blank").prints
    assert none.panel is not None and none.panel.says_none
    assert blank.panel is not None and not blank.panel.says_none and blank.panel.rows == ()


def test_rows_of_the_process_panel() -> None:
    (table,) = raw("smi_process_unknown_error").prints
    assert table.panel is not None
    assert [(row.gpu, row.pid, row.name, row.used_mib) for row in table.panel.rows][:2] == [
        (0, 31794, "Unknown Error", 5371),
        (1, 7653, "python", 5369),
    ]


def test_mig_rows() -> None:
    (table,) = raw("smi_mig_pending_disabled_star").prints
    assert [gpu.mig for gpu in table.gpus] == ["Disabled", "Disabled*"]
    assert table.gpus[1].used_mib == 0 and table.gpus[1].busy_pct is None


def test_words_are_no_figures() -> None:
    text = "|   0  NVIDIA A100  On  | 00000000:21:00.0 Off | ERR! |\n| N/A  28C  P0  31W / 250W | GPU is lost | N/A  Default |"
    ((gpu,),) = (table.gpus for table in of(text).prints)
    assert gpu.used_mib is None and gpu.busy_pct is None and gpu.memory == "GPU is lost"


def test_a_query_keeps_sections_and_gpus() -> None:
    text = (
        "==============NVSMI LOG==============\nGPU 00000000:01:00.0\n    Remapped Rows\n"
        "        Pending                           : No\nGPU 00000000:02:00.0\n    Remapped Rows\n"
        "        Pending                           : Yes\n"
    )
    cells = [(cell.gpu, cell.section, cell.key, cell.value, cell.line) for cell in of(text).cells]
    assert cells == [
        ("00000000:01:00.0", "remapped rows", "pending", "No", 4),
        ("00000000:02:00.0", "remapped rows", "pending", "Yes", 7),
    ]


def test_xml_line_by_line_also_cut_off() -> None:
    text = '<gpu id="00000000:C1:00.0">\n\t<remapped_rows>\n\t\t<remapped_row_pending>Yes</remapped_row_pending>\n'
    (cell,) = of(text).cells
    assert (cell.gpu, cell.section, cell.key, cell.value) == (
        "00000000:c1:00.0",
        "remapped rows",
        "remapped row pending",
        "Yes",
    )


def test_csv_needs_its_header() -> None:
    assert raw("smi_csv_not_available_variants").cells == ()
    cells = of("index, memory.used [MiB]\n0, 12 MiB\n1, [N/A]\nno row any more\n2, 5").cells
    assert [(cell.gpu, cell.key, cell.value) for cell in cells if cell.key != "index"] == [
        ("0", "memory.used", "12 MiB"),
        ("1", "memory.used", "[N/A]"),
    ]


def test_other_text_is_left_alone() -> None:
    text = "TASK ERROR: can't lock file\nkernel : booted\nNo devices were found\n<html>\nname, age\nbob, 3\n"
    assert of(text).lines == frozenset()


@given(st.text(alphabet="|+-=<>:, GPU0123456789MiB/%[]\n", max_size=300))
@settings(deadline=None)
def test_any_text(text: str) -> None:
    seen = of(text)
    assert all(number >= 1 for number in seen.lines)
