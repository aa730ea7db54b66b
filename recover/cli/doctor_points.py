"""The doctor's answers are brought before the rules that judge them; nothing is asked of any machine here."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recover.cli.doctor import Seen
    from recover.core.doctor import Point
    from recover.edge.doctor import ClusterSeen
    from recover.model.ladder import Playbook
    from recover.model.snapshot import Target
    from recover.wiring import App


def judged(
    opened: App, targets: tuple[Target, ...], books: dict[str, Playbook | tuple[tuple[str, ...], str]], seen: Seen
) -> list[Point]:
    from recover.core.doctor_guest import node_points, ssh_points, uid_point

    points = _here(opened, targets)
    points += _heard_points(opened, seen)
    for name, cluster in sorted(seen.clusters.items()):
        points += _cluster_points(f"cluster {name}", cluster, pinned=bool(opened.config.clusters[name].fingerprint))
    for name, shell in sorted(seen.hosts.items()):
        sudo = bool(opened.config.hosts[name].ssh.sudo)
        points += ssh_points(f"node {name}", shell.where, shell.failure, shell.detail, sudo=sudo)
        if shell.failure is None:
            points += [uid_point(f"node {name}", shell.uid), *node_points(name, shell.hostname, shell.python)]
    for target in targets:
        points += _target_points(opened, target, books[target.name], seen)
    return points + seen.late


def _here(opened: App, targets: tuple[Target, ...]) -> list[Point]:
    from recover.core.doctor import Point, Status, state_point
    from recover.core.report.words import count
    from recover.edge.store.folder import StateProblem

    try:
        opened.state.ready()
        problem = ""
    except StateProblem as error:
        problem = str(error)
    source, config = opened.config.source or "given by the caller", opened.config
    says = f"{source}: {count(len(config.clusters), 'cluster')}, {count(len(config.targets), 'target')}"
    points = [Point("here", "configuration", Status.OK, says), state_point(str(opened.state.root), problem)]
    if not targets:
        points.append(
            Point(
                "here",
                "targets",
                Status.WARN,
                "no target is configured, so only clusters were checked",
                "name one: gpu-recover doctor TARGET (gpu-recover targets lists what there is)",
            )
        )
    return points


def _heard_points(opened: App, seen: Seen) -> list[Point]:
    """Nothing is sent and no hook is run."""
    from recover.core.doctor_notify import hook_point, told_points
    from recover.edge.child import runnable
    from recover.model.notice import HookEvent

    points: list[Point] = []
    for name in opened.config.notify:
        if name in seen.told:
            points += told_points(name, seen.told[name].why, seen.told[name].warnings)
    for event, hook in opened.config.hooks.items():
        needed = hook.required and event is HookEvent.BEFORE_DISRUPTION
        points.append(hook_point(event.value, hook.command[0], runnable(hook.command[0]), required=needed))
    return points


def _cluster_points(about: str, seen: ClusterSeen, *, pinned: bool) -> list[Point]:
    from recover.core.doctor import api_point, clock_point, expiry_point, name_point, secret_points

    works = sum(isinstance(url.said, str) for url in seen.urls)
    points = list(secret_points(about, seen.warnings))
    for url in seen.urls:
        points.append(name_point(about, url.host, url.addresses, url.name_problem))
        if url.name_problem:
            continue
        points.append(expiry_point(about, url.host, url.certificate, time.time(), pinned=pinned))
        points.append(api_point(about, url.url, url.said, only=works == 0))
        if url.ahead_s is not None:
            points.append(clock_point(about, f"the clock of {url.host}", url.ahead_s, url.margin_s))
    return points


def _target_points(
    opened: App, target: Target, book: Playbook | tuple[tuple[str, ...], str], seen: Seen
) -> list[Point]:
    from recover.core.doctor import playbook_points
    from recover.model.snapshot import Channel
    from recover.steps.table import ALL_STEPS

    channels = [Channel.GUEST]
    channels += [Channel.HYPERVISOR] if target.cluster and target.vmid is not None else []
    channels += [Channel.HOST] if opened.config.hosts else []
    found, hint = (book[0], book[1]) if isinstance(book, tuple) else (book, "")
    points = list(playbook_points(target.name, found, hint, ALL_STEPS, channels))
    points += _api_points(opened, target, seen)
    points += _guest_points(opened, target, seen)
    return points + _compared(opened, target, seen)


def _api_points(opened: App, target: Target, seen: Seen) -> list[Point]:
    from recover.core.doctor import Refusal, guest_point, privilege_points
    from recover.model.hypervisor import NoHypervisor

    api = seen.apis.get(target.name)
    if api is None or target.vmid is None:
        return []
    found = Refusal(api.found.why, api.found.detail) if isinstance(api.found, NoHypervisor) else api.found.node
    token = opened.config.clusters[target.cluster].token_id
    cluster = seen.clusters.get(target.cluster)
    answers = cluster is None or any(isinstance(url.said, str) for url in cluster.urls)
    point = guest_point(target.name, target.vmid, found, answers=answers)
    if isinstance(found, Refusal) and not answers:
        return [point]
    return [point, *privilege_points(target.name, api.wanted, api.held, token)]


def _guest_points(opened: App, target: Target, seen: Seen) -> list[Point]:
    from recover.core.doctor import clock_point
    from recover.core.doctor_guest import agent_points, ssh_points, uid_point

    shell, name = seen.guests.get(target.name), target.name
    if shell is None:
        return []
    settings = opened.config.targets.get(name)
    sudo = bool(settings.ssh.sudo if settings is not None else opened.config.ssh.sudo)
    points = list(ssh_points(name, shell.where, shell.failure, shell.detail, sudo=sudo))
    if shell.failure is not None:
        return points
    points += [] if sudo and shell.uid == 0 else [uid_point(name, shell.uid)]
    points += agent_points(name, shell.agent) if shell.agent is not None else ()
    if shell.ahead_s is not None:
        points.append(clock_point(name, "the guest's clock", shell.ahead_s, shell.margin_s))
    return points


def _compared(opened: App, target: Target, seen: Seen) -> list[Point]:
    """What needs both sides, or the past: identity and baseline."""
    from recover.core.baseline import stale
    from recover.core.doctor_guest import baseline_point, identity_point
    from recover.core.identity import identity
    from recover.edge.doctor import snapshot
    from recover.model.guest import Guest
    from recover.model.hypervisor import Hypervisor
    from recover.wiring import UsageProblem

    saved, problem = None, ""
    try:
        saved = opened.baseline(target)
    except UsageProblem as error:
        problem = str(error)
    shot = snapshot(target, seen.guests.get(target.name), seen.apis.get(target.name), saved)
    inside = isinstance(shot.guest, Guest)
    points = [identity_point(target.name, identity(shot))] if inside and isinstance(shot.hypervisor, Hypervisor) else []
    reasons = stale(saved, shot) if saved is not None else ()
    return [*points, baseline_point(target.name, saved, problem, reasons, inside)]
