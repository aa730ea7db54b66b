"""One look from all sides at once, each side bounded; it can change nothing but its own memory of which GPUs hung."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Protocol

from recover.core.look import BOOT_S
from recover.model.act import Action, ClearMarker, PlaceMarker, SyncDisks
from recover.model.contact import Failure
from recover.model.gpu import NOT_ASKED, Condition
from recover.model.guest import Guest, Mute
from recover.model.host import Host
from recover.model.hypervisor import Hypervisor, NoHypervisor
from recover.model.reading import Known, Reading
from recover.model.snapshot import Baseline, Snapshot, Target
from recover.ports import Clock

_CHANGES_NO_GPU = (PlaceMarker, ClearMarker, SyncDisks)


class GuestEye(Protocol):
    def look(self, skip_gpus: Iterable[str] = (), *, deadline: float) -> Guest | Mute: ...


class CombinedObserver:
    """Looks at the guest and the hypervisor in parallel. `hypervisor` None: no cluster is configured."""

    def __init__(
        self,
        target: Target,
        clock: Clock,
        guest: GuestEye | None,
        hypervisor: Callable[[], Hypervisor | NoHypervisor] | None,
        baseline: Baseline | None,
        *,
        host: Callable[[Hypervisor], Reading[Host]] | None = None,
        assume_hung: bool = False,
        look_deadline: float = 180.0,
    ) -> None:
        self._target, self._clock, self._guest, self._hypervisor = target, clock, guest, hypervisor
        self._baseline, self._host, self._assume_hung = baseline, host, assume_hung
        self._deadline = look_deadline
        self._hung: frozenset[str] = frozenset()
        self._young = False

    def look(self) -> Snapshot:
        if self._hypervisor is None:  # a fleet's looks are many, and a thread that asks nobody costs as much as one
            guest, (hypervisor, host) = self._ask_guest(), self._ask_hypervisor()
        else:
            with ThreadPoolExecutor(1, thread_name_prefix="look") as pool:
                asked = pool.submit(self._ask_hypervisor)
                guest = self._ask_guest()
                hypervisor, host = asked.result()
        unasked = self._hung
        self._remember(guest)
        now = self._clock.now()
        target = self._target
        if isinstance(hypervisor, Hypervisor):
            target = replace(target, kind=hypervisor.kind)
        return Snapshot(
            target=target,
            at=now,
            wall=now,
            guest=guest,
            hypervisor=hypervisor,
            baseline=self._baseline,
            host_shell=isinstance(host, Known),
            host=host,
            unasked_gpus=unasked,
            assume_hung=self._assume_hung,
        )

    def _ask_guest(self) -> Guest | Mute:
        if self._guest is None:
            return Mute(Failure.DNS, f"no address is known for {self._target.name}")
        return self._guest.look(self._hung, deadline=self._deadline)

    def _ask_hypervisor(self) -> tuple[Hypervisor | NoHypervisor, Reading[Host]]:
        """The node after the API, which alone knows where the guest is now."""
        if self._hypervisor is None:
            return NoHypervisor("not-configured", f"no cluster is configured for {self._target.name}"), NOT_ASKED
        seen = self._hypervisor()
        if self._host is None or not isinstance(seen, Hypervisor):
            return seen, NOT_ASKED
        return seen, self._host(seen)

    def _remember(self, guest: Guest | Mute) -> None:
        """A GPU that hung is asked again only after something was done about it: each question adds a stuck thread."""
        if not isinstance(guest, Guest):
            return
        if self._young and guest.mark.uptime_s >= BOOT_S:  # what did not answer while it booted is asked once more
            self._hung = frozenset()
        self._young = guest.mark.uptime_s < BOOT_S
        if isinstance(guest.gpus, Known):
            self._hung |= {g.bus_id for g in guest.gpus.value if g.condition is Condition.HANGS}

    def acted(self, action: Action) -> None:
        if not isinstance(action, _CHANGES_NO_GPU):
            self._hung = frozenset()
