"""One stream out of two links that carry the same: while credentials are renewed, old and new link are both subscribed.

Each link delivers in the broker's order. A message is passed on when its first copy comes, and its twin is dropped;
equal messages that were published twice are passed on twice. Nothing is lost and nothing comes twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable


class Overlap:
    """The balance of copies between the two links; it lives for one renewal."""

    __slots__ = ("_balance",)

    def __init__(self) -> None:
        self._balance: Counter[Hashable] = Counter()

    def first(self, message: Hashable, *, fresh: bool) -> bool:
        """True when this is the first copy; ``fresh`` names the link that it came on."""
        balance = self._balance[message]
        self._balance[message] = balance + (1 if fresh else -1)
        return balance >= 0 if fresh else balance <= 0
