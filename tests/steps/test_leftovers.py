"""release-leftovers: what dead servers left under known names, and nothing that anybody else may miss."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recover.model.act import MemoryObject, Pass, RemoveLeftovers
from recover.model.guest import FuseMount
from recover.model.memory import Leftover, LeftoverKind
from recover.model.process import Health
from recover.model.reading import Known, Unknown, Why
from recover.model.verdict import Scope
from recover.steps.leftovers import abandoned, known_name
from tests.core import builders as b
from tests.steps.looks import acts, dead, group, plan

FOUND = dead(None, Scope.PROCESS, "leftover-memory")
OWNED = Leftover(LeftoverKind.SHM_FILE, "sgl_shm_mm_4000_ab12", 2048, 4000, False, False, 77, 1.0, "/dev/shm")
PLAIN = Leftover(LeftoverKind.SHM_FILE, "psm_1a2b3c4d", 2048, None, None, False, 78, 1.0, "/dev/shm")
SEGMENT = Leftover(LeftoverKind.SYSV, "32768", 2048, 4001, False, False)


def look(*items, groups=(), **changes):
    return b.healthy_snapshot(leftovers=Known(items), groups=groups, **changes)


def chosen(snapshot, **params):
    found = plan("release-leftovers", snapshot, FOUND, **params)
    return [] if isinstance(found, Pass) else [o.name for o in acts(found)[0].objects]


def test_the_object_is_handed_on_as_it_was_seen():
    (act,) = acts(plan("release-leftovers", look(OWNED), FOUND))
    assert act == RemoveLeftovers((MemoryObject("shm-file", OWNED.name, "/dev/shm", 77, 2048, 4000, 1.0),), 60.0)


@pytest.mark.parametrize(
    "name", ["mine.bin", "users-own-file", "psm_", "postgresql.1", "sgl_shm_x", "vllm.log", "sem.x"]
)
def test_a_name_that_nobody_knows_stays(name):
    item = replace(PLAIN, name=name)
    assert not known_name(item) and chosen(look(item)) == []


@pytest.mark.parametrize(
    "name",
    ["psm_1a2b3c4d", "sem.mp-x1y2", "nccl-aB3dE6", "cuda.shm.0.1f.1", "vllm_offload_7.mmap", "vllm_offload_7.mmap.3",
     "VLLM_OBJECT_STORAGE_SHM_BUFFER_ab", "sglang_host_pool_0af.mmap", "sglang_loads_x_12.shm", "sem.loky-1-x"],
)  # fmt: skip
def test_names_that_engines_give(name):
    assert chosen(look(replace(PLAIN, name=name))) == [name]


@pytest.mark.parametrize(
    "change", [{"mapped": True}, {"mapped": None}, {"owner_alive": True}, {"owner_alive": None}], ids=str
)
def test_whatever_may_have_an_owner_stays(change):
    item = replace(OWNED, **change)
    assert not abandoned(item) and chosen(look(item)) == []


@pytest.mark.parametrize("health", [Health.HEALTHY, Health.STARTING, Health.LIVE])
def test_while_a_server_lives_only_what_names_its_dead_owner_goes(health):
    serving = look(OWNED, PLAIN, groups=(group(900, health=health),))
    assert chosen(serving) == [OWNED.name]
    assert chosen(look(OWNED, PLAIN, groups=(group(900, health=Health.DEAD),))) == [OWNED.name, PLAIN.name]


def test_segments_only_on_request():
    assert chosen(look(SEGMENT)) == []
    assert chosen(look(SEGMENT), sysv=True) == ["32768"]
    assert chosen(look(replace(SEGMENT, owner_alive=None)), sysv=True) == []


def test_what_is_not_known_is_no_reason_to_remove():
    unknown = b.healthy_snapshot(leftovers=Unknown(Why.DENIED, "x"))
    assert isinstance(plan("release-leftovers", unknown, FOUND), Pass)
    assert isinstance(plan("release-leftovers", look(OWNED), dead(None)), Pass)
    user = look(OWNED)
    assert isinstance(plan("release-leftovers", replace(user, guest=replace(user.guest, root=False)), FOUND), Pass)


def test_a_stuck_fuse_mount_is_named_with_the_command():
    seen = look(OWNED)
    seen = replace(seen, guest=replace(seen.guest, stuck_fuse=(FuseMount("/data", "52", 7),)))
    words = plan("release-leftovers", seen, FOUND).words
    assert any("/data" in w and "/sys/fs/fuse/connections/52/abort" in w for w in words)
