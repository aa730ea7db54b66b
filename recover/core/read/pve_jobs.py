"""A backup job that may include the guest and begin soon does so, unless what is read clearly rules it out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from recover.core.read.pve_raw import PveRaw, guest_rows
from recover.core.read.pve_values import flag, given, rows_of, text, whole
from recover.model.reading import Known, Reading, Unknown, Why, known_or

BACKUP_SOON_S = 30 * 60


def backup_due(raw: PveRaw, clock: int) -> Reading[bool]:
    """Whether a job that includes this guest begins within half an hour."""
    if isinstance(raw.backup_jobs, Unknown):
        return raw.backup_jobs
    if not clock:
        return Unknown(Why.ABSENT, "the node's clock is not known")
    rows = rows_of(raw.backup_jobs.value)
    if len(rows) != len(raw.backup_jobs.value):
        return Unknown(Why.GARBLED, "the list of backup jobs has rows that are none")
    jobs = [j for j in rows if flag(given(j, "enabled", 1), doubt=True) and _includes(j, raw)]
    begins = [(text(job.get("id")) or "?", whole(job.get("next-run"))) for job in jobs]
    unplanned = [name for name, at in begins if at is None or at <= 0]
    if unplanned:  # pve-manager before 7.1 has a day and a time instead
        return Unknown(Why.ABSENT, f"this release does not tell when backup job {unplanned[0]} runs next")
    return Known(any(0 <= at - clock <= BACKUP_SOON_S for _, at in begins if at is not None))


def _includes(job: Mapping[str, Any], raw: PveRaw) -> bool:
    if given(job, "node", "") not in ("", raw.node) and isinstance(job["node"], str):
        return False
    if job.get("pool"):
        pools = {row.pool for row in guest_rows(known_or(raw.resources, [])) if row.vmid == raw.vmid and row.pool}
        return text(job["pool"]) in (pools or {text(job["pool"])})  # our pool is not shown: it may be this one
    everybody = flag(job.get("all"))
    named = _numbers(given(job, "exclude" if everybody else "vmid", ""))
    if named is None or not (everybody or named):  # which guests it means can't be read
        return True
    return (str(raw.vmid) in named) != everybody


def _numbers(value: object) -> list[str] | None:
    """The guests that a list names; None if it is none. A single one may come as a number."""
    if isinstance(value, list):
        return [text(word).strip() for word in value]
    return [word for word in re.split(r"[;, ]+", text(value)) if word] if value == "" or text(value) else None
