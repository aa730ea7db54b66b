"""The model that a launch names: its config.json and the size of its weights, never from the network."""

import os
import re

from recover.guest.child import Child, collect
from recover.guest.wire import Limit, emit, gap, read_or

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_HUB = re.compile(r"^[\w.-]+/[\w.-]+$")


def find_model(request: "dict[str, Any]", limit: Limit) -> None:
    """config.json and the size of the weights: of a folder, or of a name in a hub's cache. Never from the network."""
    model, names = str(request.get("model") or ""), [str(name) for name in request.get("files") or ()]
    homes = [str(home) for home in request.get("homes") or ()]

    def job(say: "Callable[[Any], None]") -> None:
        for name in names:
            if os.path.isfile(name):
                say({"file": name, "size": os.path.getsize(name)})
        for folder in model_folders(model, homes):
            if os.path.isfile(os.path.join(folder, "config.json")):
                text = read_or(os.path.join(folder, "config.json"))
                say({"folder": folder, "config": text, "weights": weights(folder)})
                return
        if os.path.isfile(model):
            say({"file": model, "size": os.path.getsize(model)})

    reader = Child("model", job)
    late = collect([reader], limit)
    found = [value for value in reader.values if "folder" in value]
    files = {value["file"]: value["size"] for value in reader.values if "file" in value}
    emit("budget-model", model=model, files=files, **(found[0] if found else {}))
    if late:
        gap("budget-model", "timeout", "%s could not be read in time" % model)


def model_folders(model: str, homes: "list[str]") -> "list[str]":
    if not model:
        return []
    if os.path.isdir(model) or not _HUB.match(model):
        return [model]
    roots = homes or _hubs()
    found = []
    for root in roots:
        repo = os.path.join(root, "models--" + model.replace("/", "--"))
        revision = read_or(os.path.join(repo, "refs", "main")).strip()
        snapshots = os.path.join(repo, "snapshots")
        names = sorted(os.listdir(snapshots), reverse=True) if os.path.isdir(snapshots) else []
        found += [os.path.join(snapshots, name) for name in ([revision] if revision in names else names)]
        found.append(os.path.join(root, model))  # ModelScope keeps names as folders
    return found


def _hubs() -> "list[str]":
    homes = [os.path.expanduser("~"), "/root"]
    homes += [os.path.join("/home", name) for name in (sorted(os.listdir("/home")) if os.path.isdir("/home") else [])]
    hubs = [os.environ.get("HF_HUB_CACHE") or "", os.path.join(os.environ.get("HF_HOME") or "/nowhere", "hub")]
    for home in homes:
        hubs += [os.path.join(home, ".cache/huggingface/hub"), os.path.join(home, ".cache/modelscope/hub"),
                 os.path.join(home, ".cache/modelscope/hub/models")]  # fmt: skip
    return [hub for hub in dict.fromkeys(hubs) if os.path.isdir(hub)]


def weights(folder: str) -> "Optional[int]":
    """Bytes of the weight files. safetensors beside .bin are the same weights twice: only the first kind counts."""
    names = os.listdir(folder)
    for end in _WEIGHTS:
        sizes = [os.path.getsize(os.path.join(folder, name)) for name in names if name.endswith(end)]
        if sizes:
            return sum(sizes)
    return None
