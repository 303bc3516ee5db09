"""Durable copies that are still to come for live posts which were handled already (C4-19, C8-62). Pure.

Such a copy is acked as soon as it comes. A member that ends before that leaves it to its next process, which would show
the post again: so the end waits for what is remembered here. Bounded in number and time: a copy that does not come, as
while the delivery plane is away, is no reason to stay.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

MOST_OWED: Final = 512
"""Posts that are remembered; beyond them the oldest is forgotten, and may be shown again."""
OWED_SECONDS: Final = 10.0
"""How long a copy is expected after its post was handled."""


class Owed:
    """The identities of the posts whose copies are expected, the oldest first."""

    def __init__(self) -> None:
        self._posts: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def expect(self, identity: str, channel: str, mono: float) -> None:
        """A post was handled before its copy came."""
        self._posts[identity] = (channel, mono + OWED_SECONDS)
        if len(self._posts) > MOST_OWED:
            self._posts.popitem(last=False)

    def came(self, identity: str) -> bool:
        """Its copy was acked; whether it was expected."""
        return self._posts.pop(identity, None) is not None

    def until(self, mono: float, backed: Callable[[str], bool]) -> float:
        """Up to when to wait for what is missing now: 0.0 when that is nothing. ``backed`` says whether posts of a
        channel have durable copies at this moment; one that was left has none any more."""
        ends = [end for channel, end in self._posts.values() if end > mono and backed(channel)]
        return max(ends, default=0.0)
