"""What is kept of a guest's record at Proxmox: its answers, its last tasks' logs, and no password."""

from __future__ import annotations

import json

from recover.edge.proxmox.record import record
from tests.edge.proxmox.conftest import VM


def test_answers_and_task_logs_are_kept_without_passwords(lab):
    server = lab(vms=[VM | {"config": {"args": "-vnc :1 --password=hunter2"}}])
    log = [
        "starting",
        "vfio-pci 0000:41:00.0: not ready 1023ms after FLR; waiting",
        "\x1b[2Jkvm --token sesame -id 174",
    ]
    server.call(
        "task", type="qmstart", vmid=174, user="kim@pam", status="start failed: QEMU exited with code 1", log=log
    )
    files, missing = record(server.client(), "lab", 174, 20.0)
    kept = {name: data.decode() for name, data in files}
    assert missing == [] and {"hypervisor.json", "task-1-qmstart.txt"} <= set(kept), (kept.keys(), missing)
    raw = json.loads(kept["hypervisor.json"])
    assert raw["vmid"] == 174 and "hunter2" not in kept["hypervisor.json"]
    task = kept["task-1-qmstart.txt"]
    assert "by kim@pam" in task and "QEMU exited with code 1" in task and "not ready 1023ms" in task
    assert "sesame" not in task and "\x1b" not in task


def test_what_the_token_may_not_read_is_said(lab):
    server = lab()
    server.call("task", type="qmstop", vmid=174, user="kim@pam", status="OK", log=["stopped"])
    server.inject(kind="http", method="GET", path="/nodes/*/tasks/*/log", status=403, times=None,
                  message="Permission check failed (/nodes/pve1, Sys.Audit)")  # fmt: skip
    files, missing = record(server.client(), "lab", 174, 20.0)
    assert [name for name, _ in files] == ["hypervisor.json"]
    assert len(missing) == 1 and "Sys.Audit on /nodes/pve1" in missing[0] and "qmstop" in missing[0]
    server.call("destroy", vmid=174)
    nothing, why = record(server.client(), "lab", 174, 20.0)
    assert nothing == [] and "no guest 174" in why[0]
