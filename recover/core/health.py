"""A group is what the evidence of its own processes and answers shows; without evidence it is live, and is spared.

Engine facts behind the rules: HTTP 200 alone proves nothing (vllm `check_health` only reads a flag, sglang's main
answers while its schedulers are gone); sglang's `/health` generates a token and takes about a second; the engines' own
watchdogs need 300 to 450 s.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from recover.core import engines
from recover.core.engines import BY_NAME, OTHER
from recover.core.groups import with_health
from recover.core.kinship import Part
from recover.core.look import Look, Watch, age_s, gib, watch
from recover.core.owners import container_of
from recover.core.ranks import dead_by_its_own, hung_finding, kept, rank_watch, rank_words
from recover.core.waits import frozen, storage_wait
from recover.model.gpu import uuid_of
from recover.model.process import Group, Health, Rank, ServerAnswer
from recover.model.reading import Known

GROWTH_MIB = 64  # less than this is noise of a process that does nothing
YOUNG_S = 3600.0
AS_ENGINES = 2.5  # of two minutes: five, the least that the engines' own watchdogs need
_NEVER = 1e9
BURNS_TICKS = 100  # a second of CPU time between two looks
_CONTAINER_HELD = "its ports are in a network of its own"
_FORWARDERS = frozenset({"docker-proxy", "rootlessport", "pasta", "passt", "slirp4netns", "systemd"})
COMPILERS = frozenset({"nvcc", "cicc", "ptxas", "cudafe++", "fatbinary", "nvlink", "cc1plus", "cc1"})
_NO_PORT = ("--headless", "--uds")  # servers that answer elsewhere, or nowhere


@dataclass(frozen=True, slots=True)
class Judged:
    health: Health
    why: str
    watches: tuple[Watch, ...] = ()


def judge_all(look: Look) -> Look:
    """The look with the health of each group, and with what must be watched to know it."""
    groups: list[Group] = []
    watches: list[Watch] = []
    for group in look.groups:
        judged = _judge(look, group)
        groups.append(with_health(group, judged.health, judged.why))
        watches.extend(judged.watches)
    return replace(look, groups=tuple(groups), watches=tuple(watches))


def _judge(look: Look, group: Group) -> Judged:
    if group.protected:
        return Judged(Health.LIVE, group.protected)
    parts = look.parts[group.key]
    if dead := dead_by_its_own(look, group, parts):
        return Judged(Health.DEAD, dead)
    serves = BY_NAME.get(group.engine, OTHER).serves
    if held_by_others := _frozen(parts):
        return Judged(Health.LIVE, held_by_others)
    judged = _by_answer(look, group, parts) if serves else Judged(Health.LIVE, "no health question is known for it")
    judged = _unless_compiling(look, parts, judged) if serves else judged
    held = kept(look, group, parts) if judged.health is Health.LIVE else ""
    if held:
        return Judged(Health.HUNG, hung_finding(group, held).says)
    if not serves:
        return judged
    stored = next((p.process for p in parts if storage_wait(p.process)), None)
    if stored is not None:  # it goes on when its storage does, see storage_hang; its time starts anew then
        why = f"pid {stored.pid} waits for storage ({storage_wait(stored)})"
        hung = judged.health is Health.HUNG
        judged = Judged(Health.LIVE if hung else judged.health, why if hung else judged.why)
    ranks = rank_watch(look, group, parts)
    if ranks is None:
        return judged
    if look.ripe(ranks.symptom):
        return Judged(Health.DEAD, rank_words(group, parts), (*judged.watches, ranks))
    return replace(judged, watches=(*judged.watches, ranks))


def _frozen(parts: tuple[Part, ...]) -> str:
    """A server that somebody stopped on purpose answers nobody, and is not hung."""
    core = [p.process for p in parts if p.rank in (Rank.MAIN, Rank.WORKER) or not p.named]
    stopped = next((p for p in core if frozen(p)), None)
    if stopped is None:
        return ""
    how = "stopped or traced" if stopped.state in "Tt" else "frozen with its control group"
    return f"pid {stopped.pid} ({stopped.comm}) is {how}: somebody holds it"


def _unless_compiling(look: Look, parts: tuple[Part, ...], judged: Judged) -> Judged:
    """Kernels are built at a server's start or inside its first requests: minutes, even 1.5 hours, in which it grows
    nothing and gives no token (sglang pull request 15891, TensorRT-LLM 17286, flashinfer 3556). Its time starts anew.
    """
    at_it = next((p.process for p in parts if _compiles(look, p)), None)
    if at_it is None or not any(seen.worrying for seen in judged.watches):
        return judged
    return Judged(Health.STARTING, f"it compiles ({at_it.comm}, pid {at_it.pid})")


def _compiles(look: Look, part: Part) -> bool:
    """A compiler that works. One that stands still, as on a file lock, shows nothing."""
    process = part.process
    young = age_s(process, look.uptime_s) < look.limits.hung_after_s
    return process.comm in COMPILERS and (process.state == "R" or (young and not process.plain_zombie))


def answer_of(look: Look, group: Group) -> ServerAnswer | None:
    """The answer of a port that the group listens on; of a free one if it is the only server and listens nowhere."""
    guest = look.guest
    if guest is None:
        return None
    ports = {port for part in look.parts[group.key] for port in part.process.listens}
    members = {part.process.pid for part in look.parts[group.key]}
    own = [a for a in guest.servers if a.pid in members]  # asked in its own network: nobody else can have answered
    shared = [a for a in guest.servers if not a.pid]
    own = own or [a for a in shared if port_of(a) in ports and not _contested(look, group, port_of(a))]
    if not own and not ports:
        servers = [g for g in look.groups if BY_NAME.get(g.engine, OTHER).serves and not g.protected]
        taken = {port for p in look.processes for port in p.listens}
        own = [a for a in shared if len(servers) == 1 and port_of(a) not in taken]
    return max(own, key=lambda a: (a.tokens is not None, a.outcome == "answered"), default=None)


def _contested(look: Look, group: Group, port: int) -> bool:
    """Whether others listen on the same port, in another network or at another address: who answered is not known.

    What listens in no container answers for the guest before what does; a forwarder only passes on.
    """
    members = {part.process.pid for part in look.parts[group.key]}
    others = [p for p in look.processes if port in p.listens and p.pid not in members and p.pid != 1]
    rivals = [p for p in others if p.comm not in _FORWARDERS]
    boxed = any(container_of(part.process.cgroup) for part in look.parts[group.key])
    return any(boxed or not container_of(p.cgroup) for p in rivals)


def port_of(answer: ServerAnswer) -> int:
    parts = urlsplit(answer.url)
    try:
        return parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return -1


def _by_answer(look: Look, group: Group, parts: tuple[Part, ...]) -> Judged:
    answer = answer_of(look, group)
    if answer is None:
        return _unasked(look, group, parts)
    running = (answer.running or 0) + (answer.waiting or 0)
    if answer.tokens is not None and running > 0:
        return _by_counters(look, group, answer)
    if answer.outcome == "timeout" or (answer.outcome == "answered" and answer.status is None):
        return _silent(look, group, parts)
    if answer.outcome == "refused" and answer.pid:
        return Judged(Health.LIVE, "its port refused the health question, in its own network")
    if answer.outcome == "refused":
        return _refused(look, group, parts, port_of(answer))
    if answer.outcome != "answered":
        return Judged(Health.LIVE, f"its health question failed: {answer.detail or answer.outcome}")
    if (answer.status or 0) >= 500:
        return _loading(look, group, parts, f"HTTP {answer.status}")
    return _answered(group, answer)


def _refused(look: Look, group: Group, parts: tuple[Part, ...], port: int) -> Judged:
    """A port that it listens on and that refuses us is another address or network: nobody was asked."""
    if any(port in part.process.listens for part in parts):
        own_network = any(container_of(part.process.cgroup) for part in parts)
        elsewhere = f"it listens on port {port} at another address than was asked"
        return Judged(Health.LIVE, _CONTAINER_HELD if own_network else elsewhere)
    default = BY_NAME.get(group.engine, OTHER).port
    if _is_server(group, parts) and port == (engines.number(group.launch, ("--port",)) or default):
        return _loading(look, group, parts, "its port is closed")
    return _unasked(look, group, parts)


def _is_server(group: Group, parts: tuple[Part, ...]) -> bool:
    """Whether its command is a server's, with a TCP port of its own: an engine in a script has none, and works."""
    return any(p.rank is Rank.MAIN and p.named for p in parts) and not _dummy(group) and not _portless(group.launch)


def _portless(launch: tuple[str, ...]) -> bool:
    return any(word.partition("=")[0] in _NO_PORT for word in launch)


def _by_counters(look: Look, group: Group, answer: ServerAnswer) -> Judged:
    """Requests run: the token and iteration counters say whether work is done, whatever /health says."""
    busy = f"{answer.running or 0} requests run, {answer.waiting or 0} wait"
    level = -(answer.tokens or 0)
    finding = hung_finding(group, f"{busy}, and no token counter has moved for {look.limits.hung_after_s:.0f} s")
    seen = watch(f"tokens:{group.key}", level, 1, look.limits.hung_after_s, finding)
    if look.ripe(seen.symptom):
        return Judged(Health.HUNG, finding.says, (seen,))
    if look.moved(seen.symptom):
        health = Health.HEALTHY if answer.status == 200 and not _dummy(group) else Health.LIVE
        return Judged(health, f"{busy}, and its token counters move", (replace(seen, worrying=False),))
    return Judged(Health.LIVE, f"{busy}; whether its counters move is not known yet", (seen,))


def _silent(look: Look, group: Group, parts: tuple[Part, ...]) -> Judged:
    """Without counters a server that works on one long request looks like one that spins: it has as long as engines
    give themselves.
    """
    finding = hung_finding(group, "it takes the health question and does not answer, and its ranks make no progress")
    ticks = sum(p.process.cpu_ticks for p in parts)
    burns = watch(f"burns:{group.key}", -ticks, BURNS_TICKS, _NEVER, finding)
    limit = look.limits.hung_after_s * (AS_ENGINES if look.moved(burns.symptom) else 1.0)
    seen = watch(f"silent:{group.key}", -_weight(look, group, parts), GROWTH_MIB, limit, finding)
    if look.ripe(seen.symptom):
        return Judged(Health.HUNG, finding.says, (seen,))
    return Judged(Health.LIVE, "its health question got no answer in time", (seen, replace(burns, worrying=False)))


def _loading(look: Look, group: Group, parts: tuple[Part, ...], words: str) -> Judged:
    stalls = look.limits.loading_stalls_s
    weight = _weight(look, group, parts)
    finding = hung_finding(group, f"{words}, and nothing of it has grown for {stalls:.0f} s")
    seen = watch(f"loading:{group.key}", -weight, GROWTH_MIB, stalls, finding)
    if look.ripe(seen.symptom):
        return Judged(Health.HUNG, finding.says, (seen,))
    if look.moved(seen.symptom):
        return Judged(Health.STARTING, f"{words}; it grows, {gib(weight)} so far", (replace(seen, worrying=False),))
    if min(age_s(p.process, look.uptime_s) for p in parts) < YOUNG_S:
        return Judged(Health.STARTING, f"{words}; it holds {gib(weight)} so far", (seen,))
    return Judged(Health.LIVE, words, (seen,))


def _unasked(look: Look, group: Group, parts: tuple[Part, ...]) -> Judged:
    """Nobody was asked. That it listens nowhere counts only where all its handles and the guest's ports were read."""
    guest = look.guest
    seen = guest is not None and guest.root and guest.complete and all(p.process.holds_known for p in parts)
    own_network = any(container_of(p.process.cgroup) for p in parts)
    if seen and not _listens(parts) and not own_network and _is_server(group, parts):
        return _loading(look, group, parts, "it listens on no port")
    return Judged(Health.LIVE, _CONTAINER_HELD if own_network else "its health was not asked")


def _listens(parts: tuple[Part, ...]) -> bool:
    """Ranks listen for each other (torch's TCPStore) long before anybody is served."""
    front = (p.process for p in parts if p.rank in (Rank.MAIN, Rank.HELPER))
    return any(p.listens and not engines.spawned_child(p) for p in front)


def _answered(group: Group, answer: ServerAnswer) -> Judged:
    if answer.status != 200:
        return Judged(Health.LIVE, f"HTTP {answer.status}")
    if _dummy(group):
        return Judged(Health.LIVE, "HTTP 200, as node ranks above 0 always say")
    if answer.running == 0 and not answer.waiting:
        return Judged(Health.HEALTHY, "idle, and its health question was answered with 200")
    generated = "health_generate" in answer.url or answer.seconds >= 0.9
    if group.engine == "sglang" and generated and answer.tokens is None:
        return Judged(Health.HEALTHY, f"it generated a token for its health question in {answer.seconds:.1f} s")
    return Judged(Health.LIVE, "HTTP 200, which alone proves nothing")


def _dummy(group: Group) -> bool:
    return (engines.number(group.launch, ("--node-rank",)) or 0) > 0


def _weight(look: Look, group: Group, parts: tuple[Part, ...]) -> int:
    """What grows while a server loads, MiB: its memory, its GPUs' memory, and what it has read and written."""
    own = sum(p.process.rss_mib + p.process.shmem_mib + p.process.io_bytes // (1 << 20) for p in parts)
    used = sum(g.used_mib.value for g in look.gpus if isinstance(g.used_mib, Known) and uuid_of(g) in group.gpus)
    return own + used
