"""Four forms of one verdict: an unknown is never shown as well, and no word of a machine breaks a form."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families as families

from recover.core.clean import clean
from recover.core.diagnose import assess
from recover.core.past import Past
from recover.core.report.check.data import data
from recover.core.report.check.nagios import nagios, trouble
from recover.core.report.check.prometheus import METRICS, prometheus
from recover.core.report.check.table import table
from recover.core.report.check.verdict import Checked, checked, judge, unjudged, worst
from recover.edge.playbooks import read_playbook
from recover.edge.simulated import FAULTS, SimulatedClock, SimulatedMachine
from recover.model.guest import Guest
from recover.model.reading import Known, Unknown, Why
from recover.model.snapshot import Snapshot
from recover.model.verdict import Diagnosis, Finding, Scope, State
from recover.model.watch import Judged, Standing, Status

LIMITS = read_playbook("hung-server").limits
EVIL = 'a|b\n"c"\\ \x1b[31m\x00\u2028 \'x\'=9;;; # HELP x\ngpu_recover_state{target="node"} 0'


def look(fault: str) -> Snapshot:
    return SimulatedMachine(FAULTS[fault], SimulatedClock()).look()


def seen(fault: str, target: str = "node-174") -> Checked:
    return checked(target, *assess(look(fault), Past(), LIMITS), 1.5)


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        ("idle", Status.OK),
        ("dead-rank", Status.CRITICAL),
        ("nvml-hang", Status.CRITICAL),
        ("row-remap-failed", Status.CRITICAL),
        ("vm-stopped", Status.CRITICAL),
        ("vram-held", Status.WARNING),
        ("healthy", Status.WARNING),  # one look: whether its counters move is not known
        ("mute", Status.UNKNOWN),
        ("route-down", Status.UNKNOWN),
    ],
)
def test_one_look(fault: str, status: Status) -> None:
    assert seen(fault).status is status


def test_what_can_not_be_judged_is_unknown_whatever_ripens() -> None:
    whole = look("vram-held")
    assert isinstance(whole.guest, Guest)
    for guest in (
        replace(whole.guest, complete=False),
        replace(whole.guest, processes=Unknown(Why.TIMEOUT, "")),
        replace(whole.guest, ram=Unknown(Why.DENIED, "")),
        replace(whole.guest, gpus=Unknown(Why.DENIED, "")),
    ):
        one = checked("x", *assess(replace(whole, guest=guest), Past(), LIMITS), 0.1)
        assert one.status is Status.UNKNOWN, one.why


def test_an_uncertain_diagnosis_without_a_reason_is_not_ok() -> None:
    assert judge(look("idle"), Diagnosis(State.UNCERTAIN))[0] is Status.UNKNOWN


def test_the_worst_of_several() -> None:
    ok, warning, critical, unknown = Status
    assert worst([]) is unknown
    assert worst([ok, warning]) is warning
    assert worst([ok, unknown, warning]) is unknown
    assert worst([critical, unknown]) is critical


def test_unknown_figures_are_never_zero() -> None:
    whole = look("idle")
    assert isinstance(whole.guest, Guest) and isinstance(whole.guest.gpus, Known)
    blind = tuple(replace(g, used_mib=Unknown(Why.GARBLED, "")) for g in whole.guest.gpus.value)
    guest = replace(whole.guest, gpus=Known(blind), ram=Unknown(Why.DENIED, ""))
    one = checked("x", *assess(replace(whole, guest=guest), Past(), LIMITS), 0.1)
    assert one.status is Status.UNKNOWN
    assert "_memory_used_bytes" not in prometheus([one]) and "ram_available" not in prometheus([one])
    assert "'gpu0_used'=U" in nagios([one]) and "'ram_available'=U" in nagios([one])
    (told,) = data([one], 1.0)["targets"]
    assert told["ram"]["available_mib"] is None and told["gpus"][0]["used_mib"] is None
    assert "0 MiB" not in table([one])


def hostile() -> Checked:
    one = seen("incident", EVIL)
    assert one.diagnosis is not None
    finding = Finding("dead-group", EVIL, Scope.PROCESS, EVIL, (EVIL,))
    diagnosis = Diagnosis(State.FAULTY, (finding, replace(finding, signal="hung-group")), gaps=(EVIL,))
    return replace(one, why=EVIL, diagnosis=diagnosis)


def test_nagios_has_one_bar_and_no_word_of_a_machine_in_its_figures() -> None:
    for found in ([hostile()], [hostile(), seen("idle")], [unjudged(EVIL, EVIL, 1.0)]):
        first, *rest = nagios(found).split("\n")
        assert first.startswith("GPU ") and first.count("|") == 1
        assert not any("|" in line for line in rest)
        assert nagios(found).isprintable() or "\x1b" not in nagios(found)
        figures = first.partition("| ")[2].split(" ")
        assert all(re.fullmatch(r"'[^'=|\s]+'=(U|[\d.]+(B|s|%)(;;;0(;\d+)?)?)", f) for f in figures), figures
    assert trouble([EVIL]).count("\n") == 0 and "|" not in trouble([EVIL])


_SAMPLE = re.compile(r'(gpu_recover_\w+)\{(?:\w+="(?:[^"\\\n]|\\["\\n])*",?)+\} -?[\d.e+-]+')


def test_the_state_that_lasts_is_told_beside_the_looks_own_and_not_before_there_is_one() -> None:
    """Seen to fail with a state of 0 for a target that was not judged often enough yet."""
    known = Standing(EVIL, Judged(60.0, Status.WARNING), 60.0, flapping=True)
    text = prometheus([replace(seen("incident"), target=EVIL)], {EVIL: known, "new": Standing("new")})
    found = {(s.name, s.labels["target"]): s.value for f in families(text) for s in f.samples}
    name = clean(EVIL, 200)
    assert found["gpu_recover_state", name] == 2 and found["gpu_recover_hard_state", name] == 1
    assert found["gpu_recover_hard_state_since_timestamp_seconds", name] == 60 and found["gpu_recover_flapping", name]
    assert [key for key in found if key[1] == "new"] == [("gpu_recover_flapping", "new")]
    assert "hard_state" not in prometheus([seen("incident")])


def test_prometheus_is_what_a_server_reads() -> None:
    text = prometheus([hostile(), seen("idle"), seen("mute", "mute"), unjudged("late", "late", 60.0)])
    assert text.endswith("\n") and not text.endswith("\n\n")
    names: list[str] = []
    for line in text.splitlines():
        if line.startswith("#"):
            word, name, rest = line[2:].split(" ", 2)
            assert word in ("HELP", "TYPE") and name in METRICS
            if word == "TYPE":
                assert rest == "gauge"
                names.append(name)
            continue
        match = _SAMPLE.fullmatch(line)
        assert match and match.group(1) == names[-1], line
    assert len(names) == len(set(names))
    assert 'gpu_recover_state{target="late"} 3' in text and 'gpu_recover_up{target="mute"} 0' in text
    samples = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(samples) == len(set(samples)), "a series twice is refused by the server"


def test_json_names_every_part() -> None:
    told = json.loads(json.dumps(data([seen("incident"), unjudged("late", "late", 9.0)], 2.0)))
    assert (told["schema"], told["status"], told["exit_code"]) == (1, "CRITICAL", 2)
    first, late = told["targets"]
    assert first.keys() == late.keys()
    assert first["findings"][0]["cure"] == "process" and len(first["gpus"]) == 8 and first["looks"] == 1
    assert late["state"] is None and late["status"] == "UNKNOWN" and not late["reached"]


def test_the_table_says_what_is_wrong_and_how_it_is_cured() -> None:
    text = table([seen("incident"), seen("idle", "spare")], lambda word, status: f"<{word}>")
    assert "<CRITICAL>" in text and "<OK>" in text
    assert "cured at scope process" in text and text.endswith("CRITICAL: 2 targets, 1 CRITICAL, 1 OK")
    assert "\x1b" not in table([hostile()])


@given(st.text(max_size=80), st.text(max_size=80))
def test_any_words_keep_the_forms(target: str, why: str) -> None:
    one = replace(seen("incident", target), why=why)
    assert nagios([one]).split("\n")[0].count("|") == 1
    for line in prometheus([one]).splitlines():
        assert line.startswith("#") or _SAMPLE.fullmatch(line), line
    assert len(table([one]).splitlines()) == len(table([seen("incident")]).splitlines())
