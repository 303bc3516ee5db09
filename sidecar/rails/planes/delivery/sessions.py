"""Which process of a member holds which copies, so that those of one that died are given back soon. Pure.

A process names itself in ``fetch`` and ``settle`` by a session that it draws when it begins to read. The broker knows
no such thing: a copy that was handed to a process that is dead by now would come again when its ack wait is over, and
a poll that it left waiting would swallow the next one. So when a newer session of the same member reads the same
durable, polls that were waiting before it give back what they get, and copies of an older session are given back when
it was silent for ``GRACE_SECONDS`` since. A process that lives says a word far more often while it holds something.

This is kept in memory: after a restart of the plane the ack wait does the same, later.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from sidecar.rails.messaging.held import ACK_WAIT
from sidecar.rails.names import Lifecycle
from sidecar.rails.planes.delivery.pulls import Durable

GRACE_SECONDS: Final = 8.0
"""How long an older session may be silent before its copies are given back."""
FORGET_SECONDS: Final = 2 * ACK_WAIT
"""Silence after which a session is forgotten: its copies are the broker's business by then."""
MARGIN_SECONDS: Final = 5.0
"""Copies so close to the end of their ack wait are left to it: the word could be about the next delivery."""
MOST_READERS: Final = 16_384
"""Members and durables with a session; one more is left to the ack wait."""
MOST_SESSIONS: Final = 8
"""Sessions of one reader; the oldest gives way."""
MOST_COPIES: Final = 4_096
"""Copies of one durable; one more is left to the ack wait."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A member at one of its durables."""

    durable: Durable
    lifecycle: Lifecycle


@dataclass(slots=True)
class _Session:
    serial: int
    spoke: float


@dataclass(frozen=True, slots=True)
class _Copy:
    reader: Reader
    session: str
    token: str
    at: float


@dataclass(slots=True)
class _Reading:
    sessions: dict[str, _Session] = field(default_factory=dict)
    newest: int = 0
    newest_since: float = 0.0


class Sessions:
    """All readers of one space. ``now`` is monotonic time in seconds."""

    def __init__(self) -> None:
        self._readings: dict[Reader, _Reading] = {}
        self._copies: dict[Durable, dict[int, _Copy]] = {}
        self._serial = 0

    def spoke(self, reader: Reader, session: str, now: float) -> int:
        """A word of a session; the serial of the newest session of the reader, for ``superseded``. A session that is
        not known is the newest."""
        reading = self._readings.get(reader)
        if reading is None:
            if len(self._readings) >= MOST_READERS:
                return 0
            reading = self._readings[reader] = _Reading()
        known = reading.sessions.get(session)
        if known is None:
            self._serial += 1
            reading.newest, reading.newest_since = self._serial, now
            reading.sessions[session] = _Session(self._serial, now)
            if len(reading.sessions) > MOST_SESSIONS:
                del reading.sessions[min(reading.sessions, key=lambda name: reading.sessions[name].serial)]
        else:
            known.spoke = now
        return reading.newest

    def superseded(self, reader: Reader, session: str, begun: int) -> bool:
        """Whether the session has ended, or another one came, since a poll began, at which ``spoke`` gave ``begun``."""
        if not begun:
            return False
        reading = self._readings.get(reader)
        return reading is None or session not in reading.sessions or reading.newest > begun

    def ended(self, reader: Reader, session: str) -> None:
        """A session has said its last word: what it has is to be given back without delay."""
        reading = self._readings.get(reader)
        if reading is not None:
            reading.sessions.pop(session, None)

    def handed(self, reader: Reader, session: str, copies: dict[int, str], now: float) -> None:
        """Copies, by stream sequence with their tokens, are on their way to a session. Whoever had them before has
        them no more."""
        held = self._copies.setdefault(reader.durable, {})
        for sequence, token in copies.items():
            held.pop(sequence, None)
            if session and len(held) < MOST_COPIES:
                held[sequence] = _Copy(reader, session, token, now)
        if not held:
            del self._copies[reader.durable]

    def settled(self, durable: Durable, sequence: int, *, renewed: bool, now: float) -> None:
        """The broker has confirmed a word about a copy."""
        held = self._copies.get(durable)
        copy = None if held is None else held.pop(sequence, None)
        if held is None or copy is None:
            return
        if renewed:
            held[sequence] = _Copy(copy.reader, copy.session, copy.token, now)
        elif not held:
            del self._copies[durable]

    def abandoned(self, now: float) -> list[tuple[Durable, str]]:
        """Copies, by their token, that are to be given back now; they are forgotten. So is what is too old."""
        found: list[tuple[Durable, str]] = []
        for durable, held in list(self._copies.items()):
            for sequence, copy in list(held.items()):
                if now - copy.at >= ACK_WAIT - MARGIN_SECONDS:
                    del held[sequence]
                elif self._left(copy, now):
                    del held[sequence]
                    found.append((durable, copy.token))
            if not held:
                del self._copies[durable]
        for reader, reading in list(self._readings.items()):
            for name, session in list(reading.sessions.items()):
                if now - session.spoke >= FORGET_SECONDS:
                    del reading.sessions[name]
            if not reading.sessions:
                del self._readings[reader]
        return found

    def _left(self, copy: _Copy, now: float) -> bool:
        reading = self._readings.get(copy.reader)
        session = None if reading is None else reading.sessions.get(copy.session)
        if reading is None or session is None:
            return True
        if session.serial == reading.newest:
            return False
        return now - max(copy.at, session.spoke, reading.newest_since) >= GRACE_SECONDS
