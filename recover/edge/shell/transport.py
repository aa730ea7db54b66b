"""The only module built upon paramiko's own classes; it is imported when the first connection is made, not before."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from typing import Any, ClassVar

from recover.edge.shell import host_key, known_hosts
from recover.edge.shell.clock import Limit, out_of_time
from recover.edge.shell.failures import ShellError, Stage, translate
from recover.edge.shell.library import MSG_CHANNEL_REQUEST, ChannelMap, cMSG_GLOBAL_REQUEST, paramiko
from recover.edge.shell.route import Hop
from recover.edge.shell.settings import SshSettings
from recover.edge.shell.wire import Wire
from recover.model.contact import Failure

# Its threads log what they meet, banners and tracebacks too; we report each failure once, as a value.
_LOG = logging.getLogger("paramiko")
_LOG.addHandler(logging.NullHandler())
_LOG.propagate = False
_LOG.setLevel(logging.CRITICAL + 1)


def _on_request(channel: Any, message: Any) -> None:
    """paramiko drops `exit-signal`; without it a killed command can't be told from a lost connection."""
    if message.get_text() == "exit-signal":
        message.get_boolean()
        channel.ended_by = message.get_text()
        channel.status_event.set()
        return
    message.rewind()
    message.get_int()  # the channel's number, which the library has read before it calls a handler
    paramiko.Channel._handle_request(channel, message)  # type: ignore[attr-defined]


class _Channels(ChannelMap):
    """A channel knows its transport before anybody can see it.

    The library tells it afterwards (transport.py, `open_channel`): if the connection ends between the two, the
    transport's thread dies with a traceback on the terminal, and who opens the channel waits for his whole deadline.
    """

    def __init__(self, transport: paramiko.Transport) -> None:
        super().__init__()
        self._transport = transport

    def put(self, chanid: int, chan: Any) -> None:
        chan._set_transport(self._transport)
        super().put(chanid, chan)


_GCM = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")


class Transport(paramiko.Transport):
    """paramiko's transport with an ordered choice of host key types, exit signals, and a pulse."""

    _channel_handler_table: ClassVar[dict[int, Any]] = {
        **paramiko.Transport._channel_handler_table,  # type: ignore[attr-defined]
        MSG_CHANNEL_REQUEST: _on_request,
    }

    # One pass of the cipher for secrecy and proof together, in the crypto library: the MACs would be taken in Python.
    _preferred_ciphers = _GCM + tuple(c for c in paramiko.Transport._preferred_ciphers if c not in _GCM)  # type: ignore[attr-defined]

    def __init__(self, wire: Wire, look_up_s: float) -> None:
        """`look_up_s`: how often its thread looks up from a silent socket, to see whether a sign of life is due."""
        self._active_check_timeout = look_up_s
        self.key_order: tuple[str, ...] = ()
        super().__init__(wire)  # type: ignore[arg-type]
        self._channels = _Channels(self)
        self.wire = wire
        self.died_silent = False
        self.open_refusal = ""
        self.farewell = ""

    @property
    def preferred_keys(self) -> tuple[str, ...]:
        return self.key_order or tuple(super().preferred_keys)

    def _parse_channel_open_failure(self, m: Any) -> None:
        """The library keeps a code for "connect failed"; the server's own words say why."""
        m.get_int()
        m.get_int()
        self.open_refusal = m.get_text()
        m.rewind()
        super()._parse_channel_open_failure(m)  # type: ignore[misc]

    def _parse_disconnect(self, m: Any) -> None:
        m.get_int()
        self.farewell = m.get_text()
        m.rewind()
        super()._parse_disconnect(m)  # type: ignore[misc]

    def feel_pulse(self, every: float, silence: float) -> None:
        """Ask the peer for a sign of life; one that gives none for `silence` is gone, whatever TCP believes.

        paramiko's own keepalive wants no answer, so it can't see a peer that takes bytes and does nothing.
        """

        def beat() -> None:
            if time.monotonic() - self.wire.heard_at > silence:
                self.died_silent = True
                self.wire.close()
                raise EOFError
            if not self.clear_to_send.is_set():
                return  # keys are being exchanged anew; a question would block the very thread that does it
            ask = paramiko.Message()
            ask.add_byte(cMSG_GLOBAL_REQUEST)
            ask.add_string("keepalive@openssh.com")
            ask.add_boolean(True)
            self._send_user_message(ask)  # type: ignore[attr-defined]

        self.packetizer.set_keepalive(every, beat)

    def hang_up(self) -> None:
        self.wire.wake()
        self.packetizer.complete_handshake()  # else its timer, a thread, outlives a handshake that failed
        with contextlib.suppress(Exception):
            self.close()
        self.wire.close()


def signal_number(name: str) -> int:
    """RFC 4254 6.10 names signals without SIG; one that we don't know still ended the command."""
    with contextlib.suppress(KeyError):
        return int(signal.Signals[f"SIG{name}"])
    return int(signal.SIGKILL)


def shake_hands(wire: Wire, hop: Hop, settings: SshSettings, limit: Limit, via: str) -> Transport:
    """Banner, key exchange and the judgement of the host key. The transport returned isn't authenticated yet."""
    known = known_hosts.load(hop.known_hosts)
    asked = host_key.Asked(hop.key_name, hop.key_port, hop.address, hop.port, via)
    transport = Transport(wire, min(1.0, settings.keepalive / 4))
    try:
        # Ours are the limits that count; the library's only have to be longer.
        transport.banner_timeout = transport.handshake_timeout = 2 * settings.banner_timeout + 5
        transport.key_order = host_key.wanted(known, asked, tuple(transport._preferred_keys))  # type: ignore[attr-defined]
        done = threading.Event()
        transport.start_client(event=done)
        _await_banner(transport, hop, limit.within(settings.banner_timeout), limit)
        _await_keys(transport, done, hop, limit.within(settings.banner_timeout), limit)
        wire.room = None
        host_key.judge(known, asked, _shown(transport))
    except BaseException:
        transport.hang_up()
        raise
    return transport


def _shown(transport: Transport) -> bytes:
    key: Any = transport.get_remote_server_key()
    blob: bytes = key.public_blob.key_blob if key.public_blob is not None else key.asbytes()
    return blob


def _await_banner(transport: Transport, hop: Hop, near: Limit, limit: Limit) -> None:
    if not transport.wire.spoke.wait(near.left):
        if limit.over:
            raise out_of_time(hop.where, Stage.BANNER.value)
        raise ShellError(Failure.BANNER_SILENCE, f"{hop.where}: accepted the connection and then sent no SSH banner")


def _await_keys(transport: Transport, done: threading.Event, hop: Hop, near: Limit, limit: Limit) -> None:
    if not done.wait(near.left):
        if limit.over:
            raise out_of_time(hop.where, Stage.KEX.value)
        if transport.remote_version:
            raise ShellError(Failure.BANNER_SILENCE, f"{hop.where}: sent its SSH banner, then the key exchange stopped")
        raise ShellError(Failure.CONFIG, f"{hop.where}: what answers there sends no SSH banner; is it the right port?")
    _raise_if_dead(transport, hop, Stage.KEX if transport.remote_version else Stage.BANNER)


def _raise_if_dead(transport: Transport, hop: Hop, stage: Stage) -> None:
    if not transport.is_active():
        error = transport.get_exception() or EOFError()
        raise translate(error, stage, hop.where)
