"""How much is fetched at once, and how long a reader waits after a failure. Pure."""

from __future__ import annotations

from typing import Final

FIRST_BATCH: Final = 8


class Batching:
    """The size of the next fetch: doubled after a full one, halved after one that was not half full.

    What is fetched has its ack wait running: a reader that is slow, or alone, must not hold what it does not get to.
    """

    def __init__(self, most: int) -> None:
        if most < 1:
            raise ValueError("a batch has at least one frame")
        self._most = most
        self.size = min(FIRST_BATCH, most)

    def came(self, count: int) -> None:
        """A fetch of ``size`` brought so many."""
        if count >= self.size:
            self.size = min(self._most, self.size * 2)
        elif count * 2 < self.size:
            self.size = max(1, self.size // 2)


class Backoff:
    """Waits in seconds that double from ``first`` to ``longest``, and begin anew after a success."""

    def __init__(self, first: float, longest: float) -> None:
        self._first, self._longest = first, longest
        self._failures = 0

    def failed(self, chance: float = 1.0) -> float:
        """The wait after one more failure; ``chance`` in [0, 1] spreads it over its upper half."""
        ceiling = min(self._longest, self._first * 2.0 ** min(self._failures, 32))
        self._failures += 1
        return ceiling * (0.5 + chance / 2)

    def succeeded(self) -> None:
        """Begin anew."""
        self._failures = 0
