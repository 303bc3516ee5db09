"""The names of a reader's history consumers: what the next step takes, and what it leaves alone (CD-13, CD-14).

Pure; times are of one monotonic clock, in seconds.
"""

from __future__ import annotations

from sidecar.rails.names.limits import HISTORY_READER_SLOTS


class NoFreeName(Exception):  # noqa: N818 - a state
    """Every name is somebody else's or may still be in use; ``seconds`` until one of them is free for sure."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no name of a history consumer is free; the next one is in {seconds:.0f} s")
        self.seconds = seconds


class Slots:
    """The eight names. ``threshold``: seconds after which the broker removes a consumer that nobody uses."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._unused_until = [0.0] * HISTORY_READER_SLOTS
        self._next = 0

    def take(self, now: float) -> int:
        """A name for one step, in turns. Raises NoFreeName."""
        for step in range(HISTORY_READER_SLOTS):
            slot = (self._next + step) % HISTORY_READER_SLOTS
            if self._unused_until[slot] <= now:
                self._next = (slot + 1) % HISTORY_READER_SLOTS
                return slot
        raise NoFreeName(min(self._unused_until) - now)

    def leave(self, slot: int, now: float) -> None:
        """A consumer that is not this step's has the name, or one may have it: nothing is done under it for as long as
        such a consumer lives without its owner."""
        self._unused_until[slot] = now + self._threshold

    def freed(self, slot: int) -> None:
        """The broker said that nobody has the name."""
        self._unused_until[slot] = 0.0
