"""Acts through a node's root shell, only in the boot that was looked at; a connection that breaks is an unclear end."""

from __future__ import annotations

from typing import Any, assert_never

from recover.edge.actuator import HOST_ACTIONS
from recover.edge.actuator.guest import outcome_of, request_of
from recover.edge.host import Shells
from recover.edge.probe import ask
from recover.model.act import Action, OnHost, Outcome, RescanPci, ResetGpu, ResetPci, RestoreResetMethod
from recover.steps.bounds import HOST_SLACK_S

HostAction = ResetPci | RescanPci | RestoreResetMethod | OnHost


class HostActuator:
    """`root`: a prefix for /sys, /run and /dev on the node, for tests."""

    def __init__(self, shells: Shells, root: str = "") -> None:
        self._shells, self._root = shells, root

    def perform(self, action: Action) -> Outcome:
        if not isinstance(action, HOST_ACTIONS):
            return Outcome(False, f"{type(action).__name__} is not done on the node", changed=False)
        shell = self._shells(action.node)
        if shell is None:
            return Outcome(False, f"no [hosts.{action.node}] in the configuration", changed=False)
        request, seconds = host_request(action)
        request["root"] = self._root
        return outcome_of(ask(shell, request, seconds + HOST_SLACK_S))


def host_request(action: HostAction) -> tuple[dict[str, Any], float]:
    """The agent's request and the act's own deadline. It checks the boot id, and who answers by that."""
    match action:
        case ResetPci(vm, _, addresses, how, boot_id, deadline_s, own):
            what = {"do": "reset_pci", "addresses": addresses, "how": how, "own": own, "vmid": vm.vmid}
            return {**what, "boot_id": boot_id, "deadline": deadline_s}, deadline_s
        case RescanPci(_, addresses, boot_id, deadline_s):
            what = {"do": "rescan_pci", "addresses": addresses}
            return {**what, "boot_id": boot_id, "deadline": deadline_s}, deadline_s
        case RestoreResetMethod(_, addresses, boot_id, deadline_s):
            what = {"do": "restore_reset_method", "addresses": addresses}
            return {**what, "boot_id": boot_id, "deadline": deadline_s}, deadline_s
        case OnHost(_, boot_id, ResetGpu() as reset):
            request, seconds = request_of(reset)
            return {**request, "do": "host_reset_gpu", "boot_id": boot_id}, seconds
        case OnHost(_, boot_id, inner):
            request, seconds = request_of(inner)
            return {**request, "boot_id": boot_id}, seconds
        case _:
            assert_never(action)
