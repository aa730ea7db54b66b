"""The hypervisor's signals: a guest that does not answer is sick only on a second witness."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recover.core.diagnose import assess, vitals
from recover.core.past import Past
from recover.model.contact import Failure
from recover.model.guest import Mute
from recover.model.hypervisor import AgentState, Task
from recover.model.ladder import Limits
from recover.model.reading import Known, Unknown, Why
from recover.model.snapshot import Snapshot
from recover.model.verdict import Scope, State
from tests.core import builders as b
from tests.core.looks import finding, once, signals, stuck

SILENT = {"agent": Known(AgentState.SILENT)}
NO_AGENT = {"agent": Known(AgentState.OFF)}
NEVER = [
    f for f in Failure if f not in {Failure.CONNECT_TIMEOUT, Failure.BANNER_SILENCE, Failure.TIMEOUT, Failure.DIED}
]


def mute(failure: Failure, **changes: object) -> Snapshot:
    hypervisor = b.hypervisor(**changes.pop("api", {}))  # type: ignore[arg-type]
    return b.mute_snapshot(Mute(failure, "no answer"), hypervisor=hypervisor, **changes)


def test_silence_after_tcp_is_a_witness() -> None:
    found = finding(stuck(mute(Failure.BANNER_SILENCE, api=NO_AGENT)), "guest-mute")
    assert (found.cure, found.at_least) == (Scope.VM, Scope.VM)
    assert once(mute(Failure.BANNER_SILENCE, api=NO_AGENT)).state is State.UNCERTAIN


def test_an_agent_that_answers_outweighs_a_silence_after_tcp() -> None:
    """Its programs run: what accepts and says nothing may be sshd alone, or something on our way to it."""
    diagnosis = stuck(mute(Failure.BANNER_SILENCE), 20)
    assert (diagnosis.findings, diagnosis.state) == ((), State.UNCERTAIN)


def test_an_agent_that_answered_and_is_silent_is_a_witness() -> None:
    assert signals(stuck(mute(Failure.CONNECT_TIMEOUT, api=SILENT))) == ["guest-mute"]
    assert signals(stuck(mute(Failure.CONNECT_TIMEOUT))) == []
    never = b.baseline(agent_answered=False)
    assert signals(stuck(mute(Failure.CONNECT_TIMEOUT, api=SILENT, baseline=never))) == []
    assert signals(stuck(mute(Failure.CONNECT_TIMEOUT, api=SILENT, baseline=None))) == []
    denied = {"agent": Unknown(Why.DENIED, "VM.GuestAgent.Audit")}
    assert signals(stuck(mute(Failure.CONNECT_TIMEOUT, api=denied))) == []


@pytest.mark.parametrize("failure", NEVER)
def test_what_lies_on_our_way_never_counts(failure: Failure) -> None:
    diagnosis = stuck(mute(failure, api=SILENT), 20)
    assert (diagnosis.findings, diagnosis.ripening, diagnosis.state) == ((), (), State.UNCERTAIN)
    assert failure.value in diagnosis.gaps[0]


@pytest.mark.parametrize("failure", [f for f in Failure if f is not Failure.BANNER_SILENCE])
def test_a_person_may_be_the_witness(failure: Failure) -> None:
    assert signals(stuck(replace(mute(failure), assume_hung=True))) == ["guest-mute"]


def test_a_guest_that_boots_has_ten_minutes() -> None:
    assert signals(stuck(mute(Failure.BANNER_SILENCE, api={**NO_AGENT, "uptime_s": 30}), 8)) == []


def test_internal_error_is_a_witness_of_its_own() -> None:
    broken = {"qmpstatus": Known("internal-error")}
    assert finding(once(mute(Failure.REFUSED, api=broken)), "vm-internal-error").cure is Scope.VM


def test_a_full_storage_is_cured_by_nobody_here() -> None:
    diagnosis = once(mute(Failure.CONNECT_TIMEOUT, api={"qmpstatus": Known("io-error")}))
    assert (finding(diagnosis, "vm-io-error").cure, diagnosis.state) == (None, State.HOPELESS)


def test_a_stopped_vm_that_we_do_not_owe_names_who_stopped_it() -> None:
    task = Task("UPID:x", "pve1", "qmstop", 174, "kim@pam", 1, False, "OK")
    snapshot = mute(Failure.NO_ROUTE, api={"status": "stopped", "tasks": Known((task,))})
    found = finding(once(snapshot), "vm-stopped")
    assert found.cure is None
    assert found.says.endswith("its last task is qmstop by kim@pam")
    failed = replace(task, type="qmstart", status="start failed: QEMU exited with code 1")
    seen = once(mute(Failure.NO_ROUTE, api={"status": "stopped", "tasks": Known((failed,))}))
    assert "qmstart by kim@pam, which failed: start failed: QEMU" in finding(seen, "vm-stopped").says
    assert once(snapshot, Past(owed_vm=True)).findings == ()
    assert once(replace(snapshot, assume_hung=True), Past(owed_vm=True)).findings == ()


def test_a_pause_may_be_a_backups() -> None:
    paused = mute(Failure.CONNECT_TIMEOUT, api={"qmpstatus": Known("paused")})
    assert once(paused).findings == ()
    assert finding(stuck(paused), "vm-paused").cure is None


def test_no_hypervisor_is_no_doubt_while_the_guest_answers() -> None:
    assert once(b.healthy_snapshot(hypervisor=b.no_hypervisor())).state is State.HEALTHY
    unseen = b.mute_snapshot(Mute(Failure.CONNECT_TIMEOUT, ""), hypervisor=b.no_hypervisor())
    assert stuck(unseen).state is State.UNCERTAIN


def test_channels_are_what_works() -> None:
    assert once(b.healthy_snapshot(host_shell=True)).channels == {"guest", "hypervisor", "host"}
    assert once(mute(Failure.DNS)).channels == {"hypervisor"}


def test_vitals_of_a_mute_and_of_a_serving_guest() -> None:
    seen, diagnosis = assess(mute(Failure.DNS), Past(), Limits())
    assert (vitals(seen, diagnosis).reached, vitals(seen, diagnosis).vm_status) == (False, "running")
    seen, diagnosis = assess(b.serving_snapshot(), Past(), Limits())
    told = vitals(seen, diagnosis)
    assert [g.used_mib for g in told.gpus] == [80_000] * 8
    assert told.groups == (("5000@50000", "healthy", " ".join(b.LAUNCH)),)
    assert told.launches[0][0] == "5000@50000"
    assert (told.ram_baseline_mib, told.baseline_is_default) == (b.IDLE_AVAILABLE_MIB, False)
    assert told.server.startswith("healthy")
