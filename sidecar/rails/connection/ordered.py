"""The books of an ordered watch: which delivery comes next, and where a new consumer has to begin."""

from __future__ import annotations


class Ordered:
    """One watch over all the consumers that it has had."""

    __slots__ = ("_expected", "last")

    def __init__(self) -> None:
        self._expected = 1
        self.last = 0
        """Stream sequence of the last delivery that was in order; 0 before the first."""

    def restarted(self) -> None:
        """A new consumer begins behind ``last``."""
        self._expected = 1

    def take(self, stream: int, consumer: int) -> bool:
        """True when this is the next delivery. False: something was missed, and the watch has to begin anew."""
        if consumer != self._expected or stream <= self.last:
            return False
        self._expected += 1
        self.last = stream
        return True

    def idle(self, delivered: int) -> bool:
        """A heartbeat says how many deliveries there were; False when some are missing."""
        return delivered + 1 == self._expected
