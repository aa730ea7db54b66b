"""An engine inside a container or an image, read where its files lie: nothing of it is executed, no container is made.

A running container is read below /proc/PID/root, an image in its layers.
"""

import json
import os
import posixpath
import re

from recover.guest import child, procs
from recover.guest.layers import View
from recover.guest.wire import Limit, read_or

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Optional, Tuple, Union

    Found = Dict[str, Any]

_LIBS = ("lib/python3*/site-packages", "lib/python3*/dist-packages")
_PREFIXES = ("/usr/local", "/usr", "/opt/*", "/opt/*/*", "/*", "/*/.venv", "/*/*", "/home/*/*")
VERSIONS = ("_version.py", "version.py", "__init__.py")
_OWN = re.compile(r"^(?:__version__|version)\b[^=\n]*=\s*(?:version\s*=\s*)?['\"]([^'\"]+)['\"]", re.M)
_ASK_S = 20.0


# --- which tree ---------------------------------------------------------------------------------------------------


class Inside:
    """A tree, what it is called for people, and the search path of the process that would start in it."""

    def __init__(self, roots: "List[str]", name: str, path: str) -> None:
        self.roots, self.view, self.name, self.path = roots, View(roots), name, path


def find(request: "Found", engine: str, word: str, limit: Limit) -> "Found":
    """For a child, since all of it may block: what lies inside, `gap` with the reason, or `word` and `paths` of a
    server that runs on this machine itself."""
    members = [(int(pid), int(start)) for pid, start in request.get("members") or ()]
    members = [(pid, start) for pid, start in members if procs.start_of(pid) == start]
    inside, why = of_process(members), ""
    if inside is None and request.get("image"):
        inside, why = of_image(str(request["image"]), limit)
    if why:
        return {"gap": why}
    if inside is None:
        return {"word": _as_started(word, members), "paths": _working_folders(members)}
    found = engine_in(inside, engine, word)
    if isinstance(found, str):
        return {"gap": found}
    return dict(found, roots=inside.roots, name=inside.name)


def _as_started(word: str, members: "List[Tuple[int, int]]") -> str:
    """The interpreter by the search path of the server that was started with it, which may be a virtual environment."""
    for pid, _ in [] if "/" in word else members:
        for folder in search_path(pid).split(":"):
            if folder.startswith("/") and os.access(os.path.join(folder, word), os.X_OK):
                return os.path.join(folder, word)
    return word


def _working_folders(members: "List[Tuple[int, int]]") -> "List[str]":
    """`python -m` looks there first, so a checkout may lie there."""
    found = []
    for pid, _ in members[:1]:
        try:
            found.append(os.readlink("/proc/%d/cwd" % pid))
        except OSError:
            pass
    return found


def of_process(members: "List[Tuple[int, int]]") -> "Optional[Inside]":
    """The tree of a process that runs in a container; None where it sees this machine's own files."""
    for pid, _ in members:
        try:
            if os.readlink("/proc/%d/ns/mnt" % pid) == os.readlink("/proc/self/ns/mnt"):
                continue
        except OSError:
            continue
        return Inside(["/proc/%d/root" % pid], "the container of process %d" % pid, search_path(pid))
    return None


def search_path(pid: int) -> str:
    rows = dict(line.split("=", 1) for line in read_or("/proc/%d/environ" % pid).split("\0") if "=" in line)
    return rows.get("PATH", "")


def of_image(name: str, limit: Limit) -> "Tuple[Optional[Inside], str]":
    """The tree of a container or an image by its name, or why there is none."""
    why = "no docker or podman on this machine tells where image %s lies" % name
    for tool in ("docker", "podman"):
        if child.which(tool) is None:
            continue
        for kind in ("container", "image"):
            said = _inspect([tool, kind, "inspect", "--", name], limit)
            if isinstance(said, str):
                why = "%s tells of no container and no image %s here: %s" % (tool, name, said)
                continue
            found = _tree(said, "%s %s" % (kind, name))
            if found is not None:
                return found, ""
            return None, "the layers of %s %s can't be read where %s keeps them" % (kind, name, tool)
    return None, why


def _inspect(argv: "List[str]", limit: Limit) -> "Union[Found, str]":
    ended = child.run(argv, limit.within(_ASK_S), argv[0])
    if ended.code != 0:
        return "no answer in time" if ended.code is None else (ended.err.strip().splitlines() or [""])[-1][-200:]
    try:
        value = json.loads(ended.out)
    except ValueError:
        return "its answer is not JSON"
    value = value[0] if isinstance(value, list) and value else value
    return value if isinstance(value, dict) else "its answer is empty"


def _tree(said: "Found", name: str) -> "Optional[Inside]":
    config = said.get("Config") or {}
    env = dict(line.split("=", 1) for line in config.get("Env") or () if "=" in line)
    pid = (said.get("State") or {}).get("Pid") or 0
    if pid and os.path.isdir("/proc/%d/root/" % pid):
        return Inside(["/proc/%d/root" % pid], name, env.get("PATH", ""))
    data = (said.get("GraphDriver") or {}).get("Data") or {}
    roots = [part for key in ("UpperDir", "LowerDir") for part in str(data.get(key) or "").split(":")]
    roots = [root for root in roots if root.startswith("/") and os.path.isdir(root)]
    return Inside(roots, name, env.get("PATH", "")) if roots else None


# --- the engine in it ---------------------------------------------------------------------------------------------


def engine_in(inside: Inside, engine: str, interpreter: str) -> "Union[Found, str]":
    """Where the engine lies and its version; words where it is not found or not the only one."""
    view = inside.view
    sites = [site for prefix in _PREFIXES for lib in _LIBS for site in view.glob(prefix + "/" + lib)]
    found = {}  # type: Dict[str, Found]
    for site in dict.fromkeys(sites):
        one = _in_site(view, site, engine)
        if one is not None:
            found.setdefault(one["origin"], one)
    if len(found) > 1:
        near = _prefixes(inside, interpreter)
        for prefix in near:
            some = {place: one for place, one in found.items() if one["site"].startswith(prefix + "/")}
            if some:
                found = some
                break
    if len(found) != 1:
        what = "several: %s" % ", ".join(sorted(found)) if found else "none"
        return "%s in %s: %s found where Python keeps packages" % (engine, inside.name, what)
    (one,) = found.values()
    return one


def _prefixes(inside: Inside, interpreter: str) -> "List[str]":
    """Where the interpreter that the words would start keeps its packages, the likeliest first."""
    folders = [posixpath.dirname(interpreter)] if interpreter.startswith("/") else inside.path.split(":")
    name = posixpath.basename(interpreter) or "python3"
    found = []
    for folder in folders:
        if interpreter.startswith("/") or inside.view.real(folder + "/" + name) is not None:
            prefix = posixpath.dirname(folder)
            found += ["/usr/local", "/usr"] if prefix == "/usr" else [prefix]
    return found


def _in_site(view: View, site: str, engine: str) -> "Optional[Found]":
    version, places = "", [site]
    for name in view.names(site):
        match = re.match(r"%s-([^-]+)\.dist-info$" % re.escape(engine), name)
        if match:
            version = match.group(1)
            places += _editable(view.text("%s/%s/direct_url.json" % (site, name)))
        elif name == engine + ".egg-link" or re.match(r"__editable__\.%s-.*\.pth$" % re.escape(engine), name):
            places += view.text("%s/%s" % (site, name)).split("\n")[:1]
    for place in places:
        origin = view.real(place + "/" + engine) if place.startswith("/") else None
        if origin is not None and view.is_folder(origin) and view.place(origin + "/__init__.py") is not None:
            kind = "installed" if place == site else "editable"
            version = version or version_in(view.text(origin + "/" + name) for name in VERSIONS)
            return {"origin": origin, "version": version, "site": site, "install": kind}
    return None


def _editable(text: str) -> "List[str]":
    try:
        said = json.loads(text)
        url = str(said["url"]) if (said.get("dir_info") or {}).get("editable") else ""
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
    folder = url[len("file://") :] if url.startswith("file:///") else ""
    return [folder, folder + "/python", folder + "/src"] if folder else []


def version_in(texts: "Iterable[str]") -> str:
    """Of a checkout without metadata: its own word."""
    for text in texts:
        match = _OWN.search(text)
        if match:
            return match.group(1)
    return ""
