"""Several copies of one message are shown once (C4-18..23, C7-25, C12-12)."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

DEFAULT_CAPACITY: Final = 8_192


class Coalescer:
    """Ids that were shown, over all sources of one reader; the oldest are forgotten above ``capacity``.

    It decides about showing and nothing else. A durable copy that is not shown again is still acked (C4-19), and
    whether a copy may be shown at all is decided before it is asked for here: a seen id authorises nothing (C4-20).
    """

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        if capacity < 1:
            raise ValueError("a coalescer remembers at least one id")
        self._capacity = capacity
        # Not a dict: its oldest entry is found behind the holes of all that were dropped before.
        self._seen: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def first(self, message_id: str) -> bool:
        """Whether this copy is the one to show. Empty ids are never remembered: every such copy is (C4-21..23)."""
        if not message_id:
            return True
        if message_id in self._seen:
            return False
        self._seen[message_id] = None
        if len(self._seen) > self._capacity:
            self._seen.popitem(last=False)
        return True

    def forget(self, message_id: str) -> None:
        """Show the next copy after all: the one that was let through was not shown."""
        self._seen.pop(message_id, None)
