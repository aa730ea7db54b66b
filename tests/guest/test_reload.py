"""Modules go out in their order and only while nobody holds them; what hangs is given up; the tools are stand-ins."""

from __future__ import annotations

from pathlib import Path

import pytest

from recover.guest import reload, wire
from recover.guest.child import which
from tests.guest.conftest import BOOT

RMMOD = """#!/bin/sh
D="{folder}"; echo "rmmod $*" >>"$D/calls"
[ -e "$D/hangs" ] && {{ sed -i "s/^$1 \\(.*\\) Live/$1 \\1 Unloading/" "$D/root/proc/modules"; sleep 600; }}
[ -e "$D/fails" ] && {{ echo "rmmod: ERROR: Module $1 is in use" >&2; exit 1; }}
sed -i "/^$1 /d; s/$1,//; s/ 1 - Live/ 0 - Live/" "$D/root/proc/modules"
"""
MODPROBE = """#!/bin/sh
D="{folder}"; echo "modprobe $*" >>"$D/calls"
[ -e "$D/fails" ] && {{ echo "modprobe: ERROR: No such device" >&2; exit 1; }}
echo "$1 100 0 - Live 0x0" >>"$D/root/proc/modules"
"""
LOADED = "ext4 1 0 - Live 0x0\nnvidia_uvm 100 0 - Live 0x0\nnvidia 900 0 - Live 0x0 (OE)\n"


@pytest.fixture
def tools(tmp_path, monkeypatch):
    (tmp_path / "root/proc").mkdir(parents=True)
    (tmp_path / "root/proc/modules").write_text(LOADED)
    (tmp_path / "bin").mkdir()
    for name, text in (("rmmod", RMMOD), ("modprobe", MODPROBE), ("nvidia-modprobe", "#!/bin/sh\n")):
        path = tmp_path / "bin" / name
        path.write_text(text.format(folder=tmp_path))
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setattr(wire, "ROOT", str(tmp_path / "root"))
    monkeypatch.setattr(reload, "_holders", lambda limit: ([], True))
    assert which("rmmod") == str(tmp_path / "bin/rmmod") and which("modprobe") == str(tmp_path / "bin/modprobe")
    return tmp_path


def calls(folder: Path) -> list[str]:
    found = folder / "calls"
    return found.read_text().splitlines() if found.exists() else []


def unload(*names: str, deadline: float = 30.0, boot: str = BOOT):
    return reload.unload({"modules": names, "boot_id": boot, "deadline": deadline})


def test_out_in_order_and_in_again(tools):
    done = unload("nvidia_uvm", "nvidia")
    assert done["ok"] and done["changed"] and calls(tools) == ["rmmod nvidia_uvm", "rmmod nvidia"]
    back = {"modules": ["nvidia", "nvidia_uvm"], "deadline": 30.0}
    first, second = reload.load(back), reload.load(back)
    assert first["ok"] and first["changed"] and second["ok"] and not second["changed"]
    assert calls(tools)[2:] == ["modprobe nvidia", "modprobe nvidia_uvm"]


def test_who_holds_it_stops_it(tools, monkeypatch):
    monkeypatch.setattr(reload, "_holders", lambda limit: (["7 python3 holds nvidia0"], True))
    done = unload("nvidia")
    assert not done["ok"] and not done["changed"] and "7 python3" in done["detail"]
    monkeypatch.setattr(reload, "_holders", lambda limit: ([], False))
    assert not unload("nvidia")["ok"] and calls(tools) == []


def test_a_module_that_is_used_is_named(tools):
    (tools / "root/proc/modules").write_text(LOADED.replace("nvidia 900 0 -", "nvidia 900 3 nvidia_drm,"))
    done = unload("nvidia")
    assert not done["ok"] and "used 3 times, by nvidia_drm" in done["detail"] and calls(tools) == []


def test_only_the_drivers_modules_and_only_in_that_boot(tools):
    for names, boot in ((("ext4",), BOOT), (("nvidia; reboot",), BOOT), (("nvidia",), "another"), ((), BOOT)):
        done = unload(*names, boot=boot)
        assert not done["ok"] and not done["changed"]
    assert not reload.load({"modules": ["ext4"]})["ok"] and calls(tools) == []


def test_an_unload_that_hangs_is_given_up_and_nothing_is_done_beside_it(tools):
    (tools / "hangs").touch()
    done = unload("nvidia_uvm", "nvidia", deadline=2.0)
    assert not done["ok"] and done["clear"] is False and "Unloading" in done["detail"]
    back = reload.load({"modules": ["nvidia", "nvidia_uvm"], "deadline": 5.0})
    assert not back["ok"] and not back["changed"] and "Unloading" in back["detail"]
    assert not unload("nvidia")["ok"]
    assert [c for c in calls(tools) if c.startswith("modprobe")] == []


def test_where_proc_modules_is_not_shown_sysfs_tells(tools):
    (tools / "root/proc/modules").unlink()
    for name, state, refs, users in (("nvidia", "live", "2", ["nvidia_uvm"]), ("nvidia_uvm", "going", "-1", [])):
        folder = tools / "root/sys/module" / name
        (folder / "holders").mkdir(parents=True)
        for user in users:
            (folder / "holders" / user).touch()
        (folder / "initstate").write_text(state + "\n")
        (folder / "refcnt").write_text(refs + "\n")
    (tools / "root/sys/module/nvidia_built_in").mkdir()
    assert reload.modules() == {
        "nvidia": {"name": "nvidia", "refs": 2, "by": ["nvidia_uvm"], "state": "Live"},
        "nvidia_uvm": {"name": "nvidia_uvm", "refs": 0, "by": [], "state": "Unloading"},
    }
    done = unload("nvidia")
    assert not done["ok"] and "Unloading" in done["detail"] and calls(tools) == []


def test_what_the_tools_say_is_told(tools):
    (tools / "fails").touch()
    assert "is in use" in unload("nvidia")["detail"]
    (tools / "root/proc/modules").write_text("")
    assert "No such device" in reload.load({"modules": ["nvidia"], "deadline": 5.0})["detail"]
