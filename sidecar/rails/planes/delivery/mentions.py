"""Who is meant by a mentioned name: one live peer, or nobody (C4-13..16).

Names are resolved when the post is fanned out, by presence as it is then (OPEN C4-a). Only the instance that a name
resolves to is asked whether it may read the channel; its name authorises nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Final

from sidecar.rails.connection.streams import ConsumerRefused
from sidecar.rails.messaging.watcher import PresenceWatch, Transition
from sidecar.rails.names.principals import Lifecycle
from sidecar.rails.planes.delivery.plane import Plane
from sidecar.rails.space.acl import AclRow

MAX_NAMES: Final = 256
"""Different names of one message that are looked up; further ones reach nobody."""
_AGAIN_SECONDS: Final = 1.0
_ID_BYTES: Final = 8


class Outcome(StrEnum):
    """What became of one name; metric labels."""

    RESOLVED = "resolved"
    UNKNOWN = "unknown"
    AMBIGUOUS = "ambiguous"
    UNREADABLE = "unreadable"
    """It may not read the channel, or nobody knows what it may read (C4-14)."""
    AUTHOR = "author"


def fold(name: str) -> str:
    """A name as mentions compare it (C5-06)."""
    return name.strip().lower()


class Names:
    """Live peers by name; principals in dot-form."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._principals: dict[str, set[str]] = {}

    def put(self, principal: str, name: str) -> None:
        """The peer is live and called so."""
        self.remove(principal)
        folded = fold(name)
        self._names[principal] = folded
        self._principals.setdefault(folded, set()).add(principal)

    def remove(self, principal: str) -> None:
        """The peer is not live."""
        folded = self._names.pop(principal, None)
        if folded is None:
            return
        rest = self._principals[folded]
        rest.discard(principal)
        if not rest:
            del self._principals[folded]

    def called(self, name: str) -> frozenset[str]:
        """Every live peer of this name."""
        return frozenset(self._principals.get(fold(name), ()))


Newest = Callable[[str], tuple[Lifecycle, AclRow] | None]


def resolve(
    names: Names, mentioned: Iterable[str], channel: str, author: str, newest: Newest
) -> Iterator[tuple[Outcome, Lifecycle | None]]:
    """What becomes of each different name; a lifecycle for those who get a copy. The author gets none (OPEN C4-b)."""
    folded = list(dict.fromkeys(fold(name) for name in mentioned))[:MAX_NAMES]
    for name in folded:
        found = names.called(name)
        if len(found) != 1:
            yield Outcome.AMBIGUOUS if found else Outcome.UNKNOWN, None
            continue
        (principal,) = found
        if principal == author:
            yield Outcome.AUTHOR, None
            continue
        known = newest(principal)
        if known is None or not known[1].reads(channel):
            yield Outcome.UNREADABLE, None
        else:
            yield Outcome.RESOLVED, known[0]


class Mentions:
    """Resolves by a watch of the presence bucket; ``run`` feeds it."""

    def __init__(self, plane: Plane, newest: Newest) -> None:
        self._plane, self._newest = plane, newest
        self._names = Names()
        self.primed = asyncio.Event()
        """Set when everybody who was there at the begin is known."""

    async def run(self) -> None:
        """Feed the names until cancelled. Raises Stopped, PermissionViolation."""
        plane = self._plane
        while True:
            watcher = plane.entropy(_ID_BYTES).hex()
            watch = PresenceWatch(
                plane.connection, plane.space, watcher, clock=plane.clock, metrics=plane.metrics, log=plane.log
            )
            self._names = Names()
            self.primed.clear()
            priming = asyncio.create_task(self._prime(watch))
            try:
                while True:
                    self._take(await watch.next())
            except ConsumerRefused as error:
                plane.log.error("delivery_watch_refused", bucket="presence", error=error)
                await asyncio.sleep(_AGAIN_SECONDS)
            finally:
                priming.cancel()
                await watch.close()

    async def _prime(self, watch: PresenceWatch) -> None:
        await watch.primed.wait()
        self.primed.set()

    def resolved(self, mentioned: Iterable[str], channel: str, author: str) -> list[Lifecycle]:
        """The lifecycles that a post mentions and that may read its channel."""
        found = []
        for outcome, lifecycle in resolve(self._names, mentioned, channel, author, self._newest):
            self._plane.metrics.counter("delivery_mentions", outcome.value).inc()
            if lifecycle is not None:
                found.append(lifecycle)
        return found

    def _take(self, change: Transition) -> None:
        if change.row.live:
            self._names.put(change.principal.dot, change.row.presence.card.name)
        else:
            self._names.remove(change.principal.dot)
