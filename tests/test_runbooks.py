"""The runbooks and alert rules say what is so: each command is one, it prints what its page says, nothing is left out.

Seen to fail on: a page without its signal, a signal on two pages, an option renamed, an output of another number, a
call that would need a flag that is gone, an alert whose page is another, a threshold shifted by a minute.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from recover.core.explain.message_table import MESSAGES
from recover.core.report.check.prometheus import EXPORTER_METRICS, METRICS
from recover.edge.playbooks import shipped_names
from tests import docs, runbooks
from tests.runbooks import Call
from tests.test_docs import FORBIDDEN, anchor

PAGES = {page.stem: page.read_text() for page in runbooks.pages()}
SYMPTOMS = {name: runbooks.signals(text) for name, text in PAGES.items() if runbooks.signals(text)}
CALLS = [(name, call) for name, text in PAGES.items() for call in runbooks.calls(text)]
OURS = [(name, call) for name, call in CALLS if call.words.startswith("gpu-recover")]
REFRESH = "run `python -m tests.runbooks` and read what it wrote"


def named_in(files: list[Path]) -> set[str]:
    """Names of findings that the source makes."""
    text = "".join(file.read_text() for file in files)
    found = set(re.findall(r'\b(?:Finding|on_gpu|_finding|_told|_one|Told)\(\s*"([a-z][a-z-]+)"', text))
    choices = re.findall(r'\bsignal = "([a-z-]+)" if .* else "([a-z-]+)"', text)
    return found | {name for pair in choices for name in pair}


CORE = docs.ROOT / "recover" / "core"
JUDGED = named_in([*(CORE / "signals").glob("*.py"), CORE / "ranks.py"])
EXPLAINED = named_in(list((CORE / "explain").glob("*.py"))) | {m.signal for m in MESSAGES if not m.note}


# -- whole and findable


def test_every_signal_has_exactly_one_page() -> None:
    assert len(JUDGED) > 35 and {"dead-group", "recovery-action", "unload-stuck"} <= JUDGED
    said = [signal for of in SYMPTOMS.values() for signal in of]
    assert sorted(said) == sorted(JUDGED | EXPLAINED)


def test_every_playbook_has_a_page() -> None:
    assert {f"playbook-{name}" for name in shipped_names()} == {name for name in PAGES if name.startswith("playbook-")}


@pytest.mark.parametrize("name", [n for n in PAGES if n != "README"])
def test_a_page_has_the_order_of_three_in_the_morning(name: str) -> None:
    heads = re.findall(r"^## (.*)$", PAGES[name], re.M)
    assert heads == [
        "What you see", "What to type, and what it says", "When to stop, and whom to call", "Why"
    ]  # fmt: skip
    assert any(page == name for page, _ in OURS), "it tells nobody what to type"
    assert f"]({name}.md)" in PAGES["README"], "the index does not have it"
    assert max(map(len, PAGES[name].splitlines())) <= 260


@pytest.mark.parametrize("page", runbooks.MADE, ids=lambda p: p.parent.name)
def test_the_lists_are_as_pages_and_rules_are(page: Path) -> None:
    assert runbooks.renewed(page) == page.read_text(), REFRESH


READ = {**{f"docs/runbooks/{n}.md": t for n, t in PAGES.items()},
        "docs/schedulers/README.md": (docs.ROOT / "docs/schedulers/README.md").read_text()}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_links_lead_somewhere_and_no_word_is_out_of_place(name: str) -> None:
    broken = []
    for where in re.findall(r"\]\(([^)\s]+)\)", READ[name]):
        path, _, part = where.partition("#")
        target = ((docs.ROOT / name).parent / path).resolve() if path else docs.ROOT / name
        heads = re.findall(r"^#+ (.*)$", target.read_text(), re.M) if target.suffix == ".md" and part else []
        if not target.exists() or (part and part not in map(anchor, heads)):
            broken.append(where)
    assert not broken and not [word for word in FORBIDDEN if word.lower() in READ[name].lower()]


# -- commands


def test_every_call_is_one_that_the_parser_takes() -> None:
    assert len(OURS) > 90
    assert {(n, c.words): bad for n, c in OURS if (bad := runbooks.accepted(c.words))} == {}
    named = [(n, call) for n, text in READ.items() for call in docs.calls(text)]  # those within sentences too
    assert {(n, " ".join(call)): bad for n, call in named if (bad := docs.unknown_in(call))} == {}


def test_the_parser_refuses_what_is_wrong() -> None:
    assert "No such option" in runbooks.accepted("gpu-recover plan node-174 --aprove vm")
    assert runbooks.accepted("gpu-recover node-174 --approve everything")
    assert runbooks.accepted("gpu-recover baseline sav node-174")
    assert runbooks.accepted("gpu-recover check --looks many node-174")
    assert not runbooks.accepted("gpu-recover node-174 --start-at power-cycle-vm")


@pytest.fixture(autouse=True)
def _nobodys_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.setenv("GPU_RECOVER_STATE", str(tmp_path / "state"))


SAID = [(name, call) for name, call in OURS if call.said is not None]


@pytest.mark.parametrize(("name", "call"), SAID, ids=[f"{n}:{c.line}" for n, c in SAID])
def test_a_command_prints_what_its_page_says(name: str, call: Call, tmp_path: Path) -> None:
    printed = runbooks.printed(call, tmp_path / "state")
    assert call.said is not None and re.search(r"[a-z]{4}", call.said), "a page that promises nothing"
    assert runbooks.agrees(call.said, printed), f"{call.words}\n{printed}"
    if "explain" in call.words:
        signals = re.findall(r"^([a-z][a-z0-9-]+): ", printed, re.M)
        assert set(signals) & set(SYMPTOMS[name]), "a pasted line that is another page's"


def test_agreement_is_exact_but_for_what_is_left_out() -> None:
    assert runbooks.agrees("a … c\n…\nd\n", "a b c\nx\ny\nd\n") and runbooks.agrees("a\n…\n", "a\n")
    for said in ("a … d\n…\nd\n", "a b c\nd\n", "a b\n…\n", "…\nx\n"):
        assert not runbooks.agrees(said, "a b c\nx\ny\nd\n"), said


# The node's side shows only once the rungs below have failed.
ONLY_AFTER = {"device-lost-on-node": {"gpu-memory-held"}}


def test_every_machine_of_a_page_shows_the_pages_own_signal() -> None:
    """A page's first simulated machine is sick in the way that the page is for."""
    from recover.core.diagnose import assess
    from recover.core.look import Limits
    from recover.core.past import Past, advance
    from recover.edge.simulated import FAULTS, SimulatedClock, SimulatedMachine

    for name, of in SYMPTOMS.items():
        machines = {c.machine for n, c in CALLS if n == name and c.machine} - {"route-down", "idle"}
        for fault in machines:
            clock, past, seen = SimulatedClock(), Past(), set[str]()
            machine = SimulatedMachine(FAULTS[fault], clock)
            for _ in range(4):
                snapshot, diagnosis = assess(machine.look(), past, Limits())
                seen |= {f.signal for f in diagnosis.findings} | {s.finding.signal for s in diagnosis.symptoms}
                past = Past(anchors=advance(past.anchors, diagnosis.symptoms, snapshot.at))
                clock.sleep(30)
            assert seen & {
                *of,
                *({"gpu-memory-held"} if "host-device" in "".join(READ) or "node" in name else set()),
            }, (name, seen)


SSH = r"ssh (?:node-174|pve1) "
FOREIGN = [
    re.compile(p.replace("SSH ", SSH))
    for p in (  # each read in its manual: nothing else may stand in a block
        r"SSH systemctl (?:start|stop|status|is-active) [\w.@-]+",
        r"SSH cat /proc/(?:mounts|meminfo)",
        r"SSH timeout 5 stat -f /models",
        r"SSH dpkg -l 'nvidia-driver\*'",
        r"SSH (?:uname -r|dkms status)",
        r"SSH nvidia-smi -q (?:-d ROW_REMAPPER,ECC|\| grep -A 2 Fabric)",
        r"SSH lspci -vv -s 0000:41:00\.0",
        r"SSH qm (?:status 174 --verbose|config 174 --current|start 174(?: --timeout \d+)?)",
        r"systemctl (?:status|stop)(?: gpu-recover-[\w-]+\.(?:service|timer))+",
        r"journalctl -u gpu-recover-[\w-]+\.service -n 50",
    )
]


def test_other_programs_are_called_as_their_manuals_say() -> None:
    others = {call.words for _, call in CALLS if not call.words.startswith("gpu-recover")}
    assert others and {w for w in others if not any(p.fullmatch(w) for p in FOREIGN)} == set()
    units = {unit for w in others for unit in re.findall(r"gpu-recover-[\w-]+\.(?:service|timer)", w)}
    assert all((docs.ROOT / "docs/schedulers/systemd" / unit).exists() for unit in units)


def test_no_page_hands_out_consent_to_be_copied() -> None:
    """A tired person copies: what a block holds to be typed asks before it acts."""
    for name, call in OURS:
        words = shlex.split(call.words, comments=True)
        given = {"--yes", "--approve", "--evict", "--apply-pending", "--trust-vmid"} & set(words)
        assert not given or (name, given) == ("device-lost-on-node", {"--approve"}), (name, call.words)


# -- alert rules


SHIPPED = docs.ROOT / "docs/schedulers/prometheus/gpu-recover.rules.yml"
RULES = {rule["alert"]: rule for rule in runbooks.rules()}
FINDINGS = {name: rule for name, rule in RULES.items() if "gpu_recover_finding" in rule["expr"]}
PROMTOOL = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpu-recover-tests/promtool/promtool"


def promtool(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    from shutil import which

    program = which("promtool") or str(PROMTOOL)
    return subprocess.run([program, *words], input=stdin, capture_output=True, text=True, timeout=60)


def test_every_signal_of_a_metric_has_exactly_one_alert_that_leads_to_its_page() -> None:
    seen: dict[str, str] = {}
    for name, rule in FINDINGS.items():
        for signal in re.search(r'finding\{signal=~?"([^"]+)"', rule["expr"])[1].split("|"):  # type: ignore[index]
            assert signal not in seen, signal
            seen[signal] = rule["annotations"]["runbook_url"].rpartition("/")[2].removesuffix(".md")
        for again in re.findall(r"ripening\{(signal=[^}]+)\}", rule["expr"]):
            assert "{" + again + "}" in rule["expr"].partition(" or ")[0], name
    assert set(seen) == JUDGED
    assert {signal: page for signal, page in seen.items() if signal not in SYMPTOMS.get(page, ())} == {}


def test_every_alert_has_what_a_person_needs() -> None:
    for name, rule in RULES.items():
        told = rule["annotations"]
        assert {"summary", "description", "runbook_url"} == set(told) and set(rule["labels"]) == {"severity"}
        page = told["runbook_url"].removeprefix("{{ $externalLabels.runbooks }}/")
        assert (runbooks.FOLDER / page).exists(), name
        for call in re.findall(
            r"gpu-recover (?:[a-z]+|\{\{)[^,.]*", told["description"].replace("{{ $labels.target }}", "node-174")
        ):
            assert not runbooks.accepted(re.split(r" (?:shows|says)\b", call)[0]), (name, call)
    metrics = {m for rule in RULES.values() for m in re.findall(r"gpu_recover_\w+", rule["expr"])}
    assert metrics <= {*METRICS, *EXPORTER_METRICS}


def test_promtool_takes_rules_and_configuration() -> None:
    for words in (("check", "rules", "gpu-recover.rules.yml"), ("check", "config", "prometheus.yml")):
        done = promtool(*words[:2], str(docs.ROOT / "docs/schedulers/prometheus" / words[2]))
        assert done.returncode == 0, done.stdout + done.stderr
    external = yaml.safe_load((docs.ROOT / "docs/schedulers/prometheus/prometheus.yml").read_text())["global"]
    assert external["external_labels"]["runbooks"].endswith("docs/runbooks")


@dataclass(frozen=True)
class Fires:
    """`alert` fires of this target from `minute` on, with this severity, and not a minute before."""

    alert: str
    minute: int
    severity: str
    signal: str = ""
    cure: str = ""
    ripening: bool = False
    series: str = ""  # another metric than a finding, with `%` for the target's label
    values: str = "1x60"
    value: str = ""
    step: int = 1  # minutes between two evaluations

    def input(self, target: str) -> dict[str, str]:
        kind = "ripening" if self.ripening else "finding"
        made = f'gpu_recover_{kind}{{%,signal="{self.signal}",cure="{self.cure}",where="x"}}'
        return {"series": (self.series or made).replace("%", f'target="{target}"'), "values": self.values}

    def expected(self, target: str) -> dict[str, Any]:
        labels = {"target": target, "severity": self.severity}
        labels |= {"signal": self.signal, "cure": self.cure} if self.signal else {}
        return alert(self.alert, labels, self.value)


def alert(name: str, labels: dict[str, str], value: str = "") -> dict[str, Any]:
    """As promtool expects it, with the texts of the rules filled in."""
    known = {
        **{"$labels." + k: v for k, v in labels.items()},
        "$externalLabels.runbooks": "https://x/y",
        "$value": value,
    }
    told = dict(RULES[name]["annotations"])
    for word, text in known.items():
        told = {key: said.replace("{{ " + word + " }}", text) for key, said in told.items()}
    return {"exp_labels": labels, "exp_annotations": told}


STATE = "gpu_recover_state{%}"
LASTING = "gpu_recover_hard_state{%}"
FIRES = (
    Fires("GpuServerDeadOrHung", 2, "ticket", "dead-group", "process"),
    Fires("GpuServerCrashLoop", 2, "page", "crash-loop", "none"),
    Fires("GpuProcessStuck", 2, "page", "unkillable-process", "guest"),
    Fires("GpuProcessStuck", 2, "ticket", "stuck-process", "process"),
    Fires("GpuServerWaitsForStorage", 2, "page", "storage-hang", "none"),
    Fires("GpuMemoryHeld", 10, "ticket", "gpu-memory-held", "gpu"),
    Fires("GpuMemoryHeld", 10, "ticket", "gpu-memory-held", "gpu", ripening=True),
    Fires("GpuGhostUtilisation", 10, "ticket", "ghost-utilisation", "gpu"),
    Fires("GpuGuestRamGone", 10, "page", "ram-unowned", "guest"),
    Fires("GpuGuestRamGone", 10, "ticket", "ram-below-baseline", "process"),
    Fires("GpuLeftoverMemory", 10, "ticket", "leftover-memory", "process"),
    Fires("GpuDriverHangs", 2, "page", "nvml-hang", "vm"),
    Fires("GpuDriverFails", 5, "ticket", "driver-mismatch", "none"),
    Fires("GpuDriverFails", 5, "page", "driver-not-loaded", "driver"),
    Fires("GpuLost", 2, "page", "gpu-lost", "vm"),
    Fires("GpuAsksForReset", 2, "ticket", "xid", "gpu"),
    Fires("GpuAsksForReset", 2, "page", "recovery-action", "guest"),
    Fires("GpuBadMemory", 2, "page", "row-remap-failed", "none"),
    Fires("GpuBadMemory", 2, "ticket", "row-remap-pending", "gpu"),
    Fires("GpuLinkNarrow", 10, "ticket", "link-width", "host-device"),
    Fires("GpuNvSwitchError", 2, "page", "sxid", "none"),
    Fires("GpuContainerLostGpus", 2, "ticket", "container-lost-gpus", "process"),
    Fires("GpuGuestHangs", 5, "page", "guest-mute", "vm"),
    Fires("GpuGuestRebootHangs", 2, "page", "reboot-hangs", "vm"),
    Fires("GpuVmNotRunning", 5, "ticket", "vm-stopped", "none"),
    Fires("GpuVmNotRunning", 5, "page", "vm-io-error", "none"),
    Fires("GpuVmDoesNotStop", 2, "page", "leftover-qemu", "none"),
    Fires("GpuDeviceLostOnNode", 2, "page", "pci-device-dead", "none"),
    Fires("GpuGuestSickForLong", 20, "page", series=STATE, values="2x60"),
    Fires("GpuGuestNotSeen", 10, "page", series=STATE, values="3x60"),
    Fires("GpuGuestSuspicious", 30, "ticket", series=STATE, values="1x60"),
    Fires("GpuGuestFlaps", 6, "ticket", series=STATE, values="0 2 0 2 0 2 0 0x60"),
    Fires("GpuGuestSickForLong", 20, "page", series=LASTING, values="2x60"),
    Fires("GpuGuestNotSeen", 10, "page", series=LASTING, values="3x60"),
    Fires("GpuGuestSuspicious", 30, "ticket", series=LASTING, values="1x60"),
    Fires("GpuGuestFlaps", 3, "ticket", series="gpu_recover_flapping{%}", values="0 0 0 1x60"),
    Fires("GpuRecoverLookStale", 16, "page", series="gpu_recover_look_timestamp_seconds{%}", values="0x60"),
)
DAY = (
    Fires("GpuBaselineMissing", 1440, "ticket", series='gpu_recover_baseline{%,state="none"}', values="1x30", step=60),
)
LOOK = {"series": 'gpu_recover_look_timestamp_seconds{target="well"}', "values": "0+60x70"}
WELL = [{"series": 'gpu_recover_state{target="well"}', "values": "0x70"}, LOOK]


def together(fires: tuple[Fires, ...]) -> dict[str, Any]:
    """All of these at once, each with a target of its own; each alert is asked for at its minute and the one before."""
    named = [(f"t{n}", one) for n, one in enumerate(fires)]
    asked = sorted({(one.alert, minute) for one in fires for minute in (one.minute, one.minute - one.step)})
    return a_test(
        [*(one.input(target) for target, one in named), *WELL],
        [(name, m, [o.expected(t) for t, o in named if o.alert == name and o.minute <= m]) for name, m in asked],
    )


def a_test(series: list[dict[str, str]], asked: list[tuple[str, int, list[dict[str, Any]]]]) -> dict[str, Any]:
    return {
        "interval": "1m",
        "external_labels": {"runbooks": "https://x/y"},
        "input_series": series,
        "alert_rule_test": [{"eval_time": f"{m}m", "alertname": name, "exp_alerts": told} for name, m, told in asked],
    }


def special() -> list[dict[str, Any]]:
    """What can't stand beside the others."""
    silent = alert("GpuRecoverSilent", {"severity": "page"})
    unseen = [{"series": f'gpu_recover_state{{target="{n}"}}', "values": "3x60" if n < 3 else "0x60"} for n in range(5)]
    many = alert("GpuManyGuestsNotSeen", {"severity": "page"}, "3")
    ripe = Fires("GpuMemoryHeld", 10, "ticket", "gpu-memory-held", "gpu", ripening=True, values="1x5 _x60")
    figures = ("last_period_seconds", "181x60"), ("period_seconds", "60x60"), ("looks_hanging", "2x60")
    own = [
        {"series": f'gpu_recover_exporter_{name}{{instance="c"}}', "values": values}
        for name, values in (*figures, ("configuration_ok", "0x60"))
    ]
    own.append({"series": 'gpu_recover_breaker_open{instance="c"}', "values": "0 0 0 1x60"})
    minutes = ("GpuRecoverBehind", 15), ("GpuRecoverLooksHang", 15), ("GpuRecoverConfigurationRefused", 5)
    minutes = (*minutes, ("GpuRecoverBreakerOpen", 3))
    told = [(name, at, alert(name, {"instance": "c", "severity": "ticket"}, "2")) for name, at in minutes]
    return [
        a_test([{"series": "up", "values": "1x60"}], [("GpuRecoverSilent", 9, []), ("GpuRecoverSilent", 10, [silent])]),
        a_test(unseen, [("GpuManyGuestsNotSeen", 4, []), ("GpuManyGuestsNotSeen", 5, [many])]),
        a_test(unseen[1:], [("GpuManyGuestsNotSeen", 30, [])]),
        # What ripened becomes a finding, and the alert goes on counting.
        a_test(
            [ripe.input("a"), replace(ripe, ripening=False, values="_x5 1x60").input("a")],
            [(ripe.alert, 10, [ripe.expected("a")])],
        ),
        a_test(own, [entry for name, m, one in told for entry in ((name, m - 1, []), (name, m, [one]))]),
        *remembered(),
        a_test(WELL, [(name, 60, []) for name in RULES]),
    ]


def remembered() -> list[dict[str, Any]]:
    """Where looks are remembered, the newest one alone neither begins nor ends what is told of a target's state."""

    def target(looks: str, lasting: str) -> list[dict[str, str]]:
        told = {"state": looks, "hard_state": lasting, "flapping": "0x60"}
        return [{"series": f'gpu_recover_{name}{{target="a"}}', "values": v} for name, v in told.items()]

    sick = alert("GpuGuestSickForLong", {"target": "a", "severity": "page"})
    states = ("GpuGuestSickForLong", "GpuGuestNotSeen", "GpuGuestSuspicious", "GpuGuestFlaps")
    return [
        a_test(target("2x9 3 2x50", "2x60"), [(sick_at := "GpuGuestSickForLong", 19, []), (sick_at, 20, [sick])]),
        a_test(target("2x60", "_x5 2x60"), [(sick_at, 19, []), (sick_at, 20, [sick])]),  # a state comes after looks
        a_test(target("2 0 3 1 " * 15, "0x60"), [(name, m, []) for name in states for m in (10, 20, 30, 59)]),
    ]


def judged(tests: list[dict[str, Any]], folder: Path, every: str, rules: Path = SHIPPED) -> str:
    """What promtool has against it; empty if nothing. `every`: both the samples' interval and the rules'."""
    data = [{**one, "interval": every} for one in tests]
    file = folder / "tests.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": every, "tests": data}))
    done = promtool("test", "rules", str(file))
    return "" if done.returncode == 0 else (done.stdout + done.stderr)[-3000:]


def test_each_alert_fires_when_it_should_and_not_a_minute_before(tmp_path: Path) -> None:
    tests = [together(FIRES), *special()]
    asked = {one["alertname"] for test in tests[:-1] for one in test["alert_rule_test"]}
    assert asked | {one.alert for one in DAY} == set(RULES)
    assert judged(tests, tmp_path, "1m") == ""
    # By the hour: a day of minutes takes promtool long.
    assert judged([together(DAY)], tmp_path, "1h") == ""


def test_a_rule_that_waits_longer_is_seen(tmp_path: Path) -> None:
    text = SHIPPED.read_text()
    (tmp_path / "rules.yml").write_text(text.replace("for: 2m", "for: 3m", 1))
    assert "GpuServerDeadOrHung" in judged([together(FIRES[:1])], tmp_path, "1m", tmp_path / "rules.yml")


@pytest.mark.parametrize("fault", ["incident", "gpu-lost", "mute", "idle"])
def test_promtool_takes_what_check_writes(fault: str, tmp_path: Path) -> None:
    call = Call("gpu-recover check node-174 -q --format prometheus", "", fault, "", 0)
    text = runbooks.printed(call, tmp_path / "state")
    done = promtool("check", "metrics", stdin=text)
    assert "gpu_recover_state" in text and (done.returncode, done.stdout + done.stderr) == (0, "")
