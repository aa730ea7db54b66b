"""Looks and acts through an agent that stays: its sources travel once per connection, and one that fails is replaced.

A look may be asked again of a new agent. An act is asked once: where its end was not heard, it is unclear.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from queue import Queue
from typing import Any

from recover.core.read.stream import Unpacker
from recover.edge.probe import GuestProbe, ProbeSettings, command, line_of, packed_for_acts, payload
from recover.edge.shell.talk import Talk, TalkingShell
from recover.model.contact import Broken, Failure, Ran

_HERE = {"do": "here", "stay": True}  # nothing is done: does the agent still answer?
_FIRST_WORD_S = 15.0  # an agent that stays says who it is before it does anything else
_TURN_S = 0.0005  # so long who works here lets wait who hears the guest; the 5 ms of Python would double a login
_FRESH_S = 10.0  # so long how a greeting failed is how a look would fail


class SteadyProbe(GuestProbe):
    """As `GuestProbe`, for several looks and acts. `close` it; a connection that ends closes it as well."""

    def __init__(self, shell: TalkingShell, settings: ProbeSettings | None = None) -> None:
        super().__init__(shell, settings)
        self._far = shell
        self._talk: Talk | None = None
        self._stream = Unpacker()
        self._knows_acts = False
        self._greeting: threading.Thread | None = None
        self._unmet: tuple[Broken, float] | None = None  # why the guest could not be greeted, and when that was clear

    def greet(self, deadline: float, *, acts: bool) -> None:
        """Begin what every look begins with, in a thread: log in, and where acts may follow start an agent for them.

        The guest is asked nothing. The first look waits for this, and where it failed it is how that look failed.
        """
        sys.setswitchinterval(_TURN_S)
        packed: Queue[str] = Queue()
        self._greeting = threading.Thread(
            target=self._greet, args=(deadline, packed if acts else None), name="greeting", daemon=True
        )
        self._greeting.start()
        if acts:  # while the guest lets us in
            payload("look")
            packed.put(packed_for_acts())

    def _greet(self, deadline: float, packed: Queue[str] | None) -> None:
        ends = time.monotonic() + deadline
        with contextlib.suppress(Exception):  # whatever it is, the look meets it again and raises it where it is seen
            said: Ran | Broken | None = self._far.connect(deadline)
            if said is None and packed is not None:
                said = self._anew(line_of({**_HERE, "sources": packed.get(timeout=deadline)}), ends)
                self._knows_acts = self._talk is not None
            if isinstance(said, Broken) and not said.started:
                self._unmet = said, time.monotonic()

    def _met(self, seconds: float) -> Broken | None:
        """None: go on with the agent that is there, or a new one. Else the answer that a look would have had now."""
        greeting = self._greeting
        if greeting is None:
            return None
        greeting.join(seconds)
        self._greeting = None
        if greeting.is_alive():
            self._far.forget()
            return Broken(Failure.TIMEOUT, f"{self._far.where}: the total deadline passed while its agent was started")
        unmet, self._unmet = self._unmet, None
        return unmet[0] if unmet is not None and time.monotonic() - unmet[1] < _FRESH_S else None

    def close(self) -> None:
        talk, self._talk = self._talk, None
        if talk is not None:
            talk.close()

    def _say(self, request: dict[str, Any], deadline: float) -> Ran | Broken:
        ends = time.monotonic() + deadline
        met = self._met(deadline)
        if met is not None:
            return met
        line = line_of({**request, "stay": True})
        if self._talk is not None:
            said = self._again(self._talk, line, ends)
            if said is not None:
                return said
        return self._anew(line, ends)

    def act(self, request: dict[str, Any], deadline: float) -> Ran | Broken:
        """By the agent that is there and was just heard, else by one of its own."""
        ends = time.monotonic() + deadline
        self._met(deadline / 3)
        talk = self._talk if self._answers(min(_FIRST_WORD_S, deadline / 3)) else None
        left = max(0.1, ends - time.monotonic())
        if talk is None:
            return super().act(request, left)
        said = self._rest(talk, line_of({**request, "stay": True, "most": left}), ends, time.monotonic())
        if isinstance(said, Ran) and self._talk is None:
            # It only passes on what its child says: whatever was heard of it, the child may have begun and may go on.
            why = f"the agent ended with {said.code}" if said.code else "the agent's answer could not be read"
            return Broken(Failure.DIED, why, said.stdout, said.stderr, started=True)
        return said

    def _answers(self, patience: float) -> bool:
        """Asked before each act, so that an agent that is gone by now never leaves an act unclear."""
        if self._talk is None:
            return False
        known = {} if self._knows_acts else {"sources": packed_for_acts()}
        said = self._rest(self._talk, line_of({**_HERE, **known}), time.monotonic() + patience, time.monotonic())
        if self._talk is None or not isinstance(said, Ran):
            self.close()
            return False
        self._knows_acts = True
        return True

    def _anew(self, line: bytes, ends: float) -> Ran | Broken:
        began = time.monotonic()
        opened = self._far.converse(command(self._settings.pythons), max(0.1, ends - began))
        if isinstance(opened, Broken):
            return opened
        self._talk, self._stream, self._knows_acts = opened, Unpacker(), False
        return self._rest(opened, payload("look") + line, ends, began)

    def _again(self, talk: Talk, line: bytes, ends: float) -> Ran | Broken | None:
        """Ask the agent that is there. None: it has nothing to say, and a new one must be asked."""
        began = time.monotonic()
        patience = min(_FIRST_WORD_S, max(0.1, (ends - began) / 3))
        if talk.ask(line, self._hear(lambda: self._stream.spoke), patience) is not None and not self._stream.spoke:
            self.close()
            return None
        return self._rest(talk, b"", ends, began)

    def _rest(self, talk: Talk, data: bytes, ends: float, began: float) -> Ran | Broken:
        """Send, and listen until the answer's end. An agent whose answer had none is given up."""
        stream = self._stream
        ended = None
        if not stream.over:
            ended = talk.ask(data, self._hear(lambda: stream.over), max(0.1, ends - time.monotonic()))
        if ended is not None or stream.broken:
            self.close()
        text = stream.turn()
        match ended:
            case None if stream.flooded:
                detail = f"{self._far.where}: sends and sends, and none of it is the agent's report"
                return Broken(Failure.DIED, detail, started=True)
            case None:
                return Ran(0, text, b"", time.monotonic() - began)
            case Ran(code, _, err):
                return Ran(code, text, err, time.monotonic() - began)
            case Broken(failure, detail, _, err):
                return Broken(failure, detail, text, err, started=True)

    def _hear(self, enough: Callable[[], bool]) -> Callable[[bytes], bool]:
        def hear(data: bytes) -> bool:
            self._stream.feed(data)
            return enough()

        return hear
