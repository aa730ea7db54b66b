"""A connection is built hop by hop; what fails before the last hop is the way's fault and never the machine's."""

from __future__ import annotations

from typing import Any

from recover.edge.shell.auth import log_in
from recover.edge.shell.clock import Limit, out_of_time
from recover.edge.shell.failures import ShellError
from recover.edge.shell.route import Hop
from recover.edge.shell.settings import SshSettings
from recover.edge.shell.transport import Transport, shake_hands
from recover.edge.shell.wire import Wire, dial
from recover.model.contact import Failure

_OF_THE_WAY = {
    Failure.REFUSED, Failure.NO_ROUTE, Failure.CONNECT_TIMEOUT, Failure.DNS, Failure.BANNER_SILENCE, Failure.DIED,
}  # fmt: skip
_SERVER_SAYS = (
    ("refused", Failure.REFUSED),
    ("no route", Failure.NO_ROUTE),
    ("unreachable", Failure.NO_ROUTE),
    ("timed out", Failure.CONNECT_TIMEOUT),
    ("not known", Failure.DNS),
    ("resol", Failure.DNS),
)


def build(hops: tuple[Hop, ...], settings: SshSettings, limit: Limit) -> list[Transport]:
    """Connect through all hops, or raise ShellError with nothing left open."""
    chain: list[Transport] = []
    try:
        for hop in hops:
            try:
                chain.append(_reach(chain, hop, settings, limit))
            except ShellError as error:
                raise error if hop is hops[-1] else _blame_the_way(error, "jump host ") from None
    except BaseException:
        for transport in chain:
            transport.hang_up()
        raise
    return chain


def _reach(chain: list[Transport], hop: Hop, settings: SshSettings, limit: Limit) -> Transport:
    wire = _through(chain[-1], hop, settings, limit) if chain else dial(hop, settings, limit)
    via = chain[-1].wire.label if chain else "the far end of its ProxyCommand" if hop.command else ""
    wire.label = hop.where
    try:
        transport = shake_hands(wire, hop, settings, limit, via)
    except ShellError as error:
        wire.close()
        # Our pipe to a ProxyCommand always opens, so silence on it doesn't say that the machine accepted anything.
        if hop.command is not None and not wire.heard_any:
            said = f" ({wire.excuse})" if wire.excuse else ""
            raise _blame_the_way(error, f"ProxyCommand{said}: ") from None
        raise
    try:
        log_in(transport, hop, settings, limit)
    except BaseException:
        transport.hang_up()
        raise
    transport.feel_pulse(settings.keepalive, settings.silence_limit)
    return transport


def _through(jump: Transport, hop: Hop, settings: SshSettings, limit: Limit) -> Wire:
    """A stretch that the jump host dials for us. It says yes only when the machine has accepted."""
    near = limit.within(settings.connect_timeout)
    jump.open_refusal = ""
    try:
        stream: Any = jump.open_channel("direct-tcpip", (hop.address, hop.port), ("127.0.0.1", 0), timeout=near.left)
    except Exception as error:  # whatever the library says, the jump host's words are better
        if limit.over:
            raise out_of_time(hop.where, "connecting through the jump host") from None
        if not jump.is_active():
            raise ShellError(Failure.PROXY, f"the jump host {jump.wire.label} was lost while connecting") from None
        said = jump.open_refusal
        if not said and near.over:
            raise ShellError(Failure.CONNECT_TIMEOUT, f"{hop.where}: no answer through {jump.wire.label}") from None
        failure = next((failure for word, failure in _SERVER_SAYS if word in said.lower()), Failure.PROXY)
        raise ShellError(failure, f"{hop.where}: the jump host {jump.wire.label} says: {said or error}") from None
    return Wire(stream)


def _blame_the_way(error: ShellError, who: str) -> ShellError:
    broken = error.broken
    return ShellError(Failure.PROXY if broken.failure in _OF_THE_WAY else broken.failure, who + broken.detail)
