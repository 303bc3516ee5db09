"""Stretches of the log as one visibility has them: found once and sent to every subscription that stands there.

Which of the next events a subscription sees and what they cost in credit depends on its place and its visibility alone.
Subscriptions that keep up stand at the same place, so that a turn of most of them is a few binary searches. A stretch
grows no further than somebody's credit and room reach: who takes one event at a time costs one event at a time.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Final

from cext.credit import Credit
from sidecar.coordinator.engine.log import EventLog
from sidecar.coordinator.engine.visibility import Visibility
from sidecar.coordinator.wire.events import EVENT_HEAD_BYTES
from sidecar.coordinator.wire.limits import Limits

STRETCH_SCAN: Final = 4_096
"""Events that are looked at for one stretch."""
_LENGTH_BYTES: Final = 4
"""What the limit of a frame does not count."""
_CHUNK: Final = 128
"""Events that are judged at once, in no more time than two or three by themselves."""
_NO_CREDIT: Final = Credit(1, 1)
_KEPT: Final = 64
"""Places of which the stretch is kept; that many are wanted only by those who do not keep up."""


class Stretch:
    """The next visible events behind one place, without a hole. It grows at its end and changes in nothing else."""

    __slots__ = (
        "_at",
        "_largest",
        "_limit",
        "_log",
        "_mask",
        "_visibility",
        "ends",
        "payloads",
        "sequences",
        "tails",
        "through",
    )

    def __init__(self, log: EventLog, cursor: int, visibility: Visibility) -> None:
        self._log = log
        self._visibility = visibility
        self._limit = min(log.head, cursor + STRETCH_SCAN)
        self._mask = b""
        """Which of the next events are visible, and what comes behind ``through`` in it."""
        self._at = 0
        self._largest = (0, 0)
        """Bytes of the largest payload and of the largest whole frame."""
        self.tails: list[bytes] = []
        """Shared encodings of the events (P10-14)."""
        self.sequences: list[int] = []
        self.ends: list[int] = []
        """Bytes of all whole frames up to and with each event."""
        self.payloads: list[int] = []
        """Bytes of the payload of each event."""
        self.through = cursor
        """The last event that was looked at: whoever was sent everything stands there."""

    def grow(self, credit: Credit, room: int) -> None:
        """Find events up to the first that ``credit`` does not cover, or the one that fills ``room`` bytes."""
        log, mask, at, through, limit = self._log, self._mask, self._at, self.through, self._limit
        total = self.ends[-1] if self.ends else 0
        payload, frame = self._largest
        while through < limit and len(self.tails) <= credit.count and total <= credit.nbytes and total < room:
            if at == len(mask):
                mask, at = log.mask(through, min(_CHUNK, limit - through), self._visibility), 0
            found = mask.find(1, at)
            if found < 0:
                through += len(mask) - at
                at = len(mask)
                continue
            through += found + 1 - at
            at = found + 1
            entry = log[through]
            tail, content = entry.tail, len(entry.event.payload)
            size = EVENT_HEAD_BYTES + len(tail)
            total += size
            self.tails.append(tail)
            self.sequences.append(through)
            self.ends.append(total)
            self.payloads.append(content)
            payload, frame = max(payload, content), max(frame, size)
        self._mask, self._at, self.through, self._largest = mask, at, through, (payload, frame)

    def first(self) -> int | None:
        """Sequence of the first of the events; ``None`` when none of those that are looked at is visible."""
        self.grow(_NO_CREDIT, 1)
        return self.sequences[0] if self.sequences else None

    def fitting(self, selected: Limits) -> int:
        """How many of the events go out before one that the peer's limits do not allow."""
        payload, frame = selected.typed_payload, selected.frame + _LENGTH_BYTES
        if self._largest[0] <= payload and self._largest[1] <= frame:
            return len(self.tails)
        sizes = (EVENT_HEAD_BYTES + len(tail) for tail in self.tails)
        fits = (has <= payload and size <= frame for has, size in zip(self.payloads, sizes, strict=True))
        return sum(takewhile(bool, fits))


class Stretches:
    """The stretches of a log as it stands now."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._known: dict[tuple[int, Visibility], Stretch] = {}
        self._at = (0, 0)

    def behind(self, cursor: int, visibility: Visibility) -> Stretch:
        """What ``visibility`` shows behind event ``cursor``; the log holds the event after it or ends there."""
        at = (self._log.first, self._log.head)
        if self._at != at or len(self._known) >= _KEPT:
            self._known.clear()
            self._at = at
        stretch = self._known.get((cursor, visibility))
        if stretch is None:
            stretch = self._known[cursor, visibility] = Stretch(self._log, cursor, visibility)
        return stretch
