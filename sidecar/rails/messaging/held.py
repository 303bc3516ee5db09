"""When a held copy may be acked, refused, put back or renewed: the ack discipline of one copy (C8-62..67). Pure.

A copy is acked only after it was shown or handled, and is settled once. What has to do with the broker's ack wait (put
back, renew) is not sent when more than one ack wait may have passed since the copy came or was last renewed: an ack
names the stream sequence and not one delivery, so that a late word would be about the copy of another reader.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Final

from sidecar.base.clock import Now
from sidecar.rails.names import headers
from sidecar.rails.names.limits import ACK_WAIT_MS

ACK_WAIT: Final = ACK_WAIT_MS / 1000
RENEW_EVERY: Final = 3
"""Renewals in one ack wait while a copy is handled."""


class Copy(Enum):
    """Where a held copy is."""

    HELD = "not shown yet"
    SHOWN = "shown, or being handled"
    SETTLED = "nothing more is said of it"


class Wish(Enum):
    """What its holder wants."""

    SHOW = "it is shown now"
    ACK = "it was handled"
    NAK = "not now: deliver it again"
    TERM = "never again"
    RENEW = "still at it"
    FORGET = "drop it without a word"


class Word(StrEnum):
    """What is said to the broker; the values are metric labels."""

    ACK = "ack"
    NAK = "nak"
    TERM = "term"
    RENEW = "renew"

    @property
    def body(self) -> bytes:
        """The ack body."""
        return _BODIES[self]


_BODIES: Final = {
    Word.ACK: headers.ACK,
    Word.NAK: headers.NAK,
    Word.TERM: headers.TERM,
    Word.RENEW: headers.PROGRESS,
}


class NotShown(Exception):  # noqa: N818 - it says what the copy was not
    """An ack for a copy that was neither shown nor handled (C8-62)."""


STEPS: Final[dict[tuple[Copy, Wish], tuple[Copy, Word | None]]] = {
    (Copy.HELD, Wish.SHOW): (Copy.SHOWN, None),
    (Copy.HELD, Wish.NAK): (Copy.SETTLED, Word.NAK),
    (Copy.HELD, Wish.TERM): (Copy.SETTLED, Word.TERM),
    (Copy.HELD, Wish.RENEW): (Copy.HELD, Word.RENEW),
    (Copy.HELD, Wish.FORGET): (Copy.SETTLED, None),
    (Copy.SHOWN, Wish.SHOW): (Copy.SHOWN, None),
    (Copy.SHOWN, Wish.ACK): (Copy.SETTLED, Word.ACK),
    (Copy.SHOWN, Wish.NAK): (Copy.SETTLED, Word.NAK),
    (Copy.SHOWN, Wish.TERM): (Copy.SETTLED, Word.TERM),
    (Copy.SHOWN, Wish.RENEW): (Copy.SHOWN, Word.RENEW),
    (Copy.SHOWN, Wish.FORGET): (Copy.SETTLED, None),
    **{(Copy.SETTLED, wish): (Copy.SETTLED, None) for wish in Wish},
}
"""Every state with every wish but one: a copy that was not shown is not acked."""
TIMED: Final = (Word.NAK, Word.RENEW)
"""Words that are about the ack wait of a copy, and worth nothing after it."""


class Held:
    """One held copy. ``ack_wait`` in seconds is the consumer's."""

    __slots__ = ("_since", "_wait", "state")

    def __init__(self, now: Now, ack_wait: float = ACK_WAIT) -> None:
        self.state = Copy.HELD
        self._since = now
        self._wait = ack_wait

    def age(self, now: Now) -> float:
        """Seconds since the copy came or was renewed, by whichever clock says more: the monotonic one stands still
        while the machine sleeps, the wall clock may be set back."""
        return max(now.mono - self._since.mono, now.wall - self._since.wall)

    def fresh(self, now: Now) -> bool:
        """Whether the broker's ack wait cannot be over yet (C8-67)."""
        return self.age(now) < self._wait

    def renew_in(self, now: Now) -> float:
        """Seconds until the next renewal is due, for a copy that is being handled."""
        return max(0.0, self._wait / RENEW_EVERY - self.age(now))

    def wish(self, wish: Wish, now: Now) -> Word | None:
        """The word to say for a wish, if any. NotShown for the ack of a copy that was not shown."""
        step = STEPS.get((self.state, wish))
        if step is None:
            raise NotShown("a copy is acked when it was shown or handled, not before")
        self.state, word = step
        return None if word in TIMED and not self.fresh(now) else word

    def renewed(self, said: Now) -> None:
        """A renewal that was said at this time got through."""
        self._since = said
