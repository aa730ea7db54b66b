"""An engine inside a container or an image: read as overlayfs would show it, of the right place, without running it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recover.core.budget.launch import parse
from recover.core.budget.model import Scope
from recover.core.budget.preflight import preflight
from recover.core.budget.preflight_report import gathered, wanted
from recover.guest.layers import View
from tests.core.budget.wheels import sources
from tests.guest.conftest import pythons, start_of

SITE = "usr/local/lib/python3.12/dist-packages"
IMAGE = "lmsysorg/sglang:v0.5.9-cu130"
COMMAND = f"docker run --gpus all {IMAGE} python3 -m sglang.launch_server --model-path /m --tp 8"
UNREADABLE = "can't be read where docker keeps them"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def installed(root: Path, version: str, site: str = SITE, files: dict[str, str] | None = None) -> Path:
    said = files if files is not None else sources("sglang", version)
    write(root, {f"{site}/{name}": text for name, text in said.items()})
    write(root, {f"{site}/sglang/__init__.py": "raise SystemExit('imported')"})
    return write(root, {f"{site}/sglang-{version}.dist-info/METADATA": f"Name: sglang\nVersion: {version}\n"})


def whiteout(place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(place, 0o020000, os.makedev(0, 0))


# -- layers


def test_layers_are_seen_as_overlayfs_would_show_them(tmp_path):
    low = write(tmp_path / "low", {"a/one": "low", "a/two": "low", "b/three": "low", "c/four": "low", "d": "file"})
    high = write(tmp_path / "high", {"a/one": "high", "c/five": "high", "d/six": "high"})
    whiteout(high / "a/two")
    whiteout(high / "b")
    os.setxattr(high / "c", "user.overlay.opaque", b"y")
    view = View([str(high), str(low)])
    assert (view.names("/a"), view.text("/a/one"), view.place("/a/two")) == (["one"], "high", None)
    assert not view.is_folder("/b") and view.place("/b/three") is None
    assert view.names("/c") == ["five"] and view.place("/c/four") is None
    assert view.names("/d") == ["six"] and sorted(view.names("/")) == ["a", "c", "d"]


def test_the_kernel_itself_agrees(tmp_path):
    """A real overlay with the same layers; the mount lives in a namespace of its own."""
    low = write(tmp_path / "low", {"a/one": "1", "a/two": "2", "b/three": "3", "c/x/four": "4"})
    work, high, top = (tmp_path / name for name in ("work", "high", "top"))
    for folder in (work, high, top):
        folder.mkdir()
    script = (
        f"mount -t tmpfs t {work} && mkdir {work}/w {work}/u && "
        f"mount -t overlay o -o lowerdir={low},upperdir={work}/u,workdir={work}/w {top} && "
        f"rm -r {top}/b {top}/a/two {top}/c && mkdir {top}/c && echo 5 > {top}/c/five && "
        f"cp -a --preserve=all {work}/u/. {high}/ && cd {top} && find . -type f | sort"
    )
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    view = View([str(high), str(low)])
    ours = sorted("./" + inner.partition("/")[2] for name in view.names("/") for inner, _ in _under(view, "/" + name))
    assert ours == done.stdout.split()


def _under(view, path):
    return [("/" + inner, place) for inner, place in view.files(path)]


def test_links_never_lead_outside(tmp_path):
    outside = write(tmp_path / "outside", {"secret": "no"})
    root = write(tmp_path / "root", {"real/sglang/x": "yes"})
    (root / "abs").symlink_to("/real/sglang")
    (root / "out").symlink_to(f"{outside}")
    (root / "up").symlink_to("../../../../../../outside")
    (root / "loop").symlink_to("loop")
    view = View([str(root)])
    assert view.real("/abs") == "/real/sglang"
    assert [view.real(name) for name in ("/out", "/up", "/loop", "/abs/../../..")] == [None, None, None, ""]
    assert [view.text(name) for name in ("/out/secret", "/up/secret")] == ["", ""]


# -- an image


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """A docker that knows what it is told, with the words and the exit codes of Docker 28."""
    folder = tmp_path / "bin"
    write(folder, {"docker": f"""#!{sys.executable}
import json, os, sys
known = json.load(open({str(tmp_path / "known.json")!r}))
kind, verb, _, name = sys.argv[1:]
assert verb == "inspect"
if name in known.get(kind, {{}}):
    print(json.dumps([known[kind][name]]))
    sys.exit(0)
print("[]")
print("Error response from daemon: No such " + kind + ": " + name, file=sys.stderr)
sys.exit(1)
"""})  # fmt: skip
    (folder / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def knows(**known):
        (tmp_path / "known.json").write_text(json.dumps(known))

    knows()
    return knows


def layered(*roots: Path, path: str = "/usr/local/bin:/usr/bin") -> dict:
    upper, *lower = map(str, roots)
    data = {"LowerDir": ":".join(lower), "UpperDir": upper, "MergedDir": "/nowhere", "WorkDir": "/nowhere"}
    return {"GraphDriver": {"Name": "overlay2", "Data": data}, "Config": {"Env": [f"PATH={path}"]}}


def judged(report, size=48):
    command = (
        f"docker run --gpus all {IMAGE} python3 -m sglang.launch_server --model-path /m --tp 8 --hicache-size {size}"
    )
    (result,) = preflight(command, gathered(report))
    return result


def asked(command=None):
    (launch,) = parse(
        command or f"docker run --gpus all {IMAGE} python3 -m sglang.launch_server --model-path /m --tp 8"
    )
    return {key: value for key, value in wanted(launch).items() if key != "do"}


@pytest.mark.parametrize("python", pythons())
def test_an_image_is_proved_from_its_layers(docker, agent, tmp_path, python):
    base = installed(tmp_path / "base", "0.5.9")
    docker(image={IMAGE: layered(write(tmp_path / "top", {"etc/hostname": "x"}), base)})
    report = agent("budget", python, **asked())
    row = report.one("budget-engine")
    assert row is not None, report.gaps()
    assert (row.text("version"), row.text("origin"), row.text("asked")) == (
        "0.5.9",
        f"/{SITE}/sglang",
        f"image {IMAGE}",
    )
    result = judged(report)
    assert [proof.proved for proof in result.proofs] == [True] and "memory_pool_host.py:159" in str(result.proofs[0].at)


def test_what_an_upper_layer_changed_is_what_counts(docker, agent, tmp_path):
    base = installed(tmp_path / "base", "0.5.9")
    path = "sglang/srt/mem_cache/memory_pool_host.py"
    text = sources("sglang", "0.5.9")[path]
    divided = text.replace(
        "host_size * 1e9 // self.size_per_token", "host_size * 1e9 // self.size_per_token // tp_size"
    )
    assert divided != text
    top = write(tmp_path / "top", {f"{SITE}/{path}": divided})
    docker(image={IMAGE: layered(write(tmp_path / "plain", {"etc/x": ""}), base)})
    assert judged(agent("budget", **asked())).proofs[0].scope is Scope.RANK
    docker(image={IMAGE: layered(top, base)})
    assert judged(agent("budget", **asked())).proofs[0].scope is not Scope.RANK


def test_an_upgrade_in_an_upper_layer_hides_the_old_release(docker, agent, tmp_path):
    base = installed(tmp_path / "base", "0.5.4")
    top = installed(tmp_path / "top", "0.5.9")
    whiteout(top / SITE / "sglang-0.5.4.dist-info")
    docker(image={IMAGE: layered(top, base)})
    row = agent("budget", **asked()).one("budget-engine")
    assert row is not None and row.text("version") == "0.5.9"


def test_an_editable_install_of_the_image_is_followed(docker, agent, tmp_path):
    root = tmp_path / "root"
    write(root, {f"sgl-workspace/sglang/python/{n}": t for n, t in sources("sglang", "0.5.9").items()})
    write(root, {"sgl-workspace/sglang/python/sglang/__init__.py": ""})
    direct = {"url": "file:///sgl-workspace/sglang/python", "dir_info": {"editable": True}}
    write(root, {f"{SITE}/sglang-0.5.9.dist-info/direct_url.json": json.dumps(direct)})
    docker(image={IMAGE: layered(root)})
    row = agent("budget", **asked()).one("budget-engine")
    assert row is not None
    assert (row.text("install"), row.text("origin")) == ("editable", "/sgl-workspace/sglang/python/sglang")


def test_of_two_installs_the_one_that_the_words_start(docker, agent, tmp_path):
    root = installed(installed(tmp_path / "root", "0.5.9"), "0.5.4", "opt/venv/lib/python3.12/site-packages")
    write(root, {"opt/venv/bin/python3": "", "usr/bin/python3": ""})
    docker(image={IMAGE: layered(root, path="/opt/venv/bin:/usr/bin")})
    assert agent("budget", **asked()).one("budget-engine").text("version") == "0.5.4"
    command = f"docker run {IMAGE} /usr/bin/python3 -m sglang.launch_server --model-path /m"
    assert agent("budget", **asked(command)).one("budget-engine").text("version") == "0.5.9"
    docker(image={IMAGE: layered(root, path="/srv/bin")})
    report = agent("budget", **asked())
    assert report.one("budget-engine") is None
    assert any("several" in gap for gap in report.gaps())


@pytest.mark.parametrize(
    ("known", "word"),
    [
        ({}, "No such image"),
        ({"image": {IMAGE: {"GraphDriver": None, "Config": {}}}}, UNREADABLE),
        (
            {"image": {IMAGE: layered(Path("/nowhere/up"), Path("/nowhere/low"))}},
            "can't be read where docker keeps them",
        ),
    ],
)
def test_an_image_that_can_not_be_read_is_a_gap_and_the_table_speaks(docker, agent, known, word):
    docker(**known)
    report = agent("budget", **asked())
    assert report.one("budget-engine") is None and any(word in gap for gap in report.gaps()), report.gaps()
    result = judged(report)
    assert not result.proofs and any(note.startswith("not proved") for note in result.notes)


# -- a container


@pytest.fixture
def contained(tmp_path):
    """A process that sees another root, as a container's does."""
    root = installed(tmp_path / "root", "0.5.9")
    child = subprocess.Popen(
        ["unshare", "-m", "sh", "-c", f"mount --bind {root} /opt && exec sleep 600"], env={"PATH": "/usr/bin:/bin"}
    )
    yield child
    child.kill()
    child.wait()


def test_a_server_in_a_container_is_proved_below_its_own_root(contained, agent):
    end = time.monotonic() + 90
    while not Path(f"/proc/{contained.pid}/root/opt/{SITE}").exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    me = (contained.pid, start_of(contained.pid))
    report = agent("budget", engine="sglang", interpreter="/opt/usr/local/bin/python3", members=[me])
    row = report.one("budget-engine")
    assert row is not None, report.gaps()
    assert row.text("version") == "0.5.9" and "container of process" in row.text("asked")


def test_another_process_with_its_pid_is_not_looked_into(contained, agent):
    report = agent("budget", engine="sglang", interpreter="/nowhere/python3", members=[(contained.pid, 1)])
    assert report.one("budget-engine") is None
    assert any("/nowhere/python3 does not exist" in gap for gap in report.gaps())


def test_a_server_on_the_machine_itself_is_asked_by_its_own_search_path(agent, tmp_path):
    venv = tmp_path / "venv/bin"
    venv.mkdir(parents=True)
    (venv / "python3").symlink_to(sys.executable)
    write(tmp_path / "work", {f"{n}": t for n, t in sources("sglang", "0.5.9").items()})
    write(tmp_path / "work", {"sglang/__init__.py": "", "sglang/version.py": '__version__ = "0.5.9"\n'})
    child = subprocess.Popen(["sleep", "600"], env={"PATH": f"{venv}:/bin"}, cwd=tmp_path / "work")
    try:
        report = agent("budget", engine="sglang", interpreter="python3", members=[(child.pid, start_of(child.pid))])
        row = report.one("budget-engine")
        assert row is not None, report.gaps()
        assert (row.text("asked"), row.text("install")) == (f"{venv}/python3", "checkout")
    finally:
        child.kill()
        child.wait()
