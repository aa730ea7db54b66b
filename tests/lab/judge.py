"""Whether a scenario ended right, by the lab's own state before and after; the tool's report is not asked.

problems(expected, before, after) -> list of sentences, empty when all is as `expected.toml`'s [lab] table says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

State = dict[str, Any]


def workers(state: State, group: str | None = None) -> set[tuple[int, str]]:
    """(pid, boot id) of every live engine process."""
    return {
        (p["pid"], state["boot_id"])
        for p in state["processes"]
        if p["alive"] and p["group"] and not p["kind"].startswith("bystander:") and group in (None, p["group"])
    }


def posts(state: State, action: str | None = None) -> list[dict[str, Any]]:
    """Requests that could change something; the guest agent's ping is a question that happens to be a POST."""
    return [
        r
        for r in state["pve"]["requests"]
        if r["method"] in ("POST", "PUT", "DELETE")
        and "/agent" not in r["path"]
        and (action is None or r["path"].endswith("/status/" + action))
    ]


def _since(before: State, after: State) -> State:
    seen = {r["n"] for r in before["pve"]["requests"]}
    return {**after, "pve": {**after["pve"], "requests": [r for r in after["pve"]["requests"] if r["n"] not in seen]}}


def _monitor(after: State) -> list[str]:
    """A monitor may have been stopped for a reset; it must run again."""
    unit = after["units"].get("nvidia-dcgm.service")
    return (
        []
        if unit is None or (unit["state"] == "active" and unit["enabled"])
        else [f"nvidia-dcgm.service is {unit['state']}"]
    )


def _bystanders(before: State, after: State) -> list[str]:
    now = {b["pid"]: b for b in after["bystanders"]}
    out = [
        f"bystander {b['name']} (pid {b['pid']}) is gone"
        for b in before["bystanders"]
        if not now.get(b["pid"], {}).get("alive")
    ]
    return (
        out
        + _monitor(after)
        + [f"bystander {b['name']} got {', '.join(b['signals'])}" for b in after["bystanders"] if b["signals"]]
    )


def _untouched(before: State, after: State) -> list[str]:
    out = _bystanders(before, after)
    if workers(before) != workers(after):
        out.append(f"workers changed: {sorted(workers(before) ^ workers(after))}")
    out += [f"a worker got {s['signal']}" for s in after["signals"][len(before["signals"]) :]]
    if before["boot_ids"] != after["boot_ids"]:
        out.append("the guest was restarted")
    return out + _no_posts(before, after)


def _no_posts(before: State, after: State) -> list[str]:
    return [f"the API got {r['method']} {r['path']}" for r in posts(_since(before, after))]


def _groups(after: State, names: list[str], alive: bool) -> list[str]:
    return [
        f"group {name} is {'gone' if alive else 'still there'}"
        for name in names
        if bool(workers(after, name)) is not alive
    ]


def _posts(before: State, after: State, wanted: dict[str, int]) -> list[str]:
    now = _since(before, after)
    return [
        f"{len(posts(now, action))} requests for {action}, not {number}"
        for action, number in wanted.items()
        if len(posts(now, action)) != number
    ]


def _count(name: str) -> Callable[[State, State, Any], list[str]]:
    def check(before: State, after: State, wanted: Any) -> list[str]:
        got = after["vm"][name] - (0 if name == "boots" else before["vm"][name])
        return [] if got == wanted else [f"{name}: {got}, not {wanted}"]

    return check


def _is(text: str, got: Any, wanted: Any) -> list[str]:
    return [] if got == wanted else [f"{text}: {got!r}, not {wanted!r}"]


def _signals_of(before: State, after: State, names: list[str]) -> list[str]:
    pids = {p["pid"]: p["group"] for p in before["processes"] if p["group"] in names}
    return [
        f"{pids[s['pid']]} got {s['signal']}"
        for s in after["signals"][len(before["signals"]) :]
        if s["pid"] in pids and s["boot"] == before["vm"]["boots"]
    ]


def _resets(state: State) -> list[int]:
    return [g["index"] for g in state["gpus"] for _ in range(g["resets"])]


CHECKS: dict[str, Callable[[State, State, Any], list[str]]] = {
    "untouched": lambda b, a, _: _untouched(b, a),
    "bystanders_untouched": lambda b, a, _: _bystanders(b, a),
    "no_posts": lambda b, a, _: _no_posts(b, a),
    "posts": _posts,
    "alive_groups": lambda _b, a, names: _groups(a, names, True),
    "gone_groups": lambda _b, a, names: _groups(a, names, False),
    "unsignalled_groups": _signals_of,
    "old_workers_gone": lambda b, a, _: (
        [f"still there from before: {sorted(workers(b) & workers(a))}"] if workers(b) & workers(a) else []
    ),
    "launches": lambda _b, a, n: _is("launches", len(a["launches"]), n),
    "signals_seen": lambda _b, a, names: [
        f"no worker got {n}" for n in names if n not in {s["signal"] for s in a["signals"]}
    ],
    "gpu_used_max_mib": lambda _b, a, n: [
        f"GPU {g['index']}: {g['used_mib']} MiB used" for g in a["gpus"] if g["used_mib"] > n
    ],
    "gpu_resets": lambda b, a, n: _is("GPU resets", len(_resets(a)) - len(_resets(b)), n),
    "reset_gpus": lambda _b, a, want: _is("reset GPUs", sorted(set(_resets(a))), want),
    "persistence": lambda _b, a, n: [
        f"GPU {g['index']}: persistence {g['persistence']}" for g in a["gpus"] if g["persistence"] != n
    ],
    "ram_available_min_gib": lambda _b, a, n: (
        [] if a["ram"]["available_gib"] >= n else [f"{a['ram']['available_gib']} GiB available, under {n}"]
    ),
    "requests": lambda _b, a, models: _is("real requests", a["requests"], models),
    "shm_left": lambda _b, a, names: _is("/dev/shm", a["shm"], names),
    "modules_done": lambda _b, a, words: _is("modules", a["modules"]["done"], words),
    "modules_loaded": lambda _b, a, names: _is("loaded modules", sorted(a["modules"]["loaded"]), names),
    "vm_status": lambda _b, a, word: (
        _is("VM", a["vm"]["status"], word) + _is("API's VM", a["pve"]["vms"]["174"]["status"], word)
    ),
    "new_boot": lambda b, a, _: [] if a["boot_id"] not in b["boot_ids"] else ["the boot id is still the old one"],
    **{name: _count(name) for name in ("boots", "power_cycles", "stops", "starts", "resets", "guest_reboots")},
}


def problems(expected: dict[str, Any], before: State, after: State) -> list[str]:
    unknown = set(expected.get("lab", {})) - set(CHECKS)
    if unknown:
        raise ValueError(f"expected.toml: no such check: {', '.join(sorted(unknown))}")
    return [line for name, wanted in expected.get("lab", {}).items() for line in CHECKS[name](before, after, wanted)]
