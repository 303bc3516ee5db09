"""Which subscriptions a connection has, and on which of its links each of them stands.

A new link gets every subscription before it is used; for as long as two links overlap, each stands on both. One that
the broker refuses ends for its owner and for nobody else.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as ClientSubscription

from sidecar.rails.connection.faults import ConnectionFault, Fault, PermissionViolation, Said
from sidecar.rails.connection.link import Link
from sidecar.rails.connection.subscription import Subscription, SubscriptionClosed
from sidecar.rails.connection.watch import Watch


class Placements:
    """The subscriptions of one connection. ``now`` gives its link at the moment, or raises why there is none."""

    def __init__(self, now: Callable[[], Link], watch: Watch) -> None:
        self.placed: dict[Subscription, dict[Link, ClientSubscription]] = {}
        self.placing = asyncio.Lock()
        """Held while subscriptions are put on a link."""
        self._now, self._watch = now, watch

    async def place(self, *subscriptions: Subscription) -> None:
        """Put new ones on the link; the broker has taken all of them when this returns, or none stands. Raises
        PermissionViolation, NotConnected, Stopped."""
        try:
            async with self.placing:
                for one in subscriptions:
                    self.placed[one] = {}
                with self._now().used() as link:
                    await self._restore(list(subscriptions), link)
                for one in subscriptions:
                    if one.error is not None:
                        raise one.error
        except BaseException:
            for one in subscriptions:
                one.fail(SubscriptionClosed())
                await self.remove(one)
            raise

    async def _put(self, subscription: Subscription, link: Link) -> None:
        def take(message: Msg) -> None:
            subscription.take(message, link)

        placed = await link.subscribe(subscription.subject, subscription.queue, take)
        self.placed.setdefault(subscription, {})[link] = placed
        subscription.placements += 1

    async def remove(self, subscription: Subscription) -> None:
        """Its owner closed it, or it failed."""
        for link, placed in self.placed.pop(subscription, {}).items():
            if not link.ended.done():
                with contextlib.suppress(Exception):  # the link may end at any moment, which unsubscribes as well
                    await placed.unsubscribe()

    async def drain(self, subscriptions: Sequence[Subscription]) -> None:
        """Their owner wants no more of them, but all that the broker has sent."""
        async with self.placing:  # no new link may be given what goes
            placed = [one for each in subscriptions for one in self.placed.pop(each, {}).items()]
            await asyncio.gather(
                *(link.drained(one) for link, one in placed if not link.ended.done()), return_exceptions=True
            )
        for one in subscriptions:
            one.fail(SubscriptionClosed())

    async def restore(self, link: Link) -> None:
        """Every subscription once on a new link; one that the broker refuses now ends for its owner. ``placing`` is
        held by the caller."""
        settled = waiting = [one for one in self.placed if one.error is None]
        for one in waiting:
            one.settled = False
        try:
            await self._restore(waiting, link)
        except BaseException:
            for one in settled:  # what stands on another link still stands there
                one.settled = any(other is not link and not other.ended.done() for other in self.placed.get(one, ()))
            raise
        for one in [one for one in self.placed if one.error is not None]:
            await self.remove(one)

    async def _restore(self, waiting: list[Subscription], link: Link) -> None:
        while waiting:
            # Of two that the broker's violation could not tell apart only one is unsettled at a time.
            batch = {one.key: one for one in reversed(waiting)}
            waiting = [one for one in waiting if batch[one.key] is not one]
            for one in batch.values():
                if one in self.placed:
                    await self._put(one, link)
            await link.settle()
            for one in batch.values():
                one.settled = True
                one.nudge()

    def overlap(self, link: Link) -> None:
        """A second link comes beside the one that is used."""
        for subscription in self.placed:
            subscription.merge(link)

    def forget(self, link: Link) -> None:
        """The link is gone."""
        for subscription, placed in self.placed.items():
            placed.pop(link, None)
            if len(placed) < 2:
                subscription.merge(None)

    # ---- what happens to them ----

    def denied(self, said: Said) -> bool:
        """The broker refuses a subscription; False when it is none of these."""
        about = [one for one in self.placed if one.key == (said.subject, said.queue)]
        refused = [one for one in about if not one.settled] or about
        for one in refused:
            one.fail(PermissionViolation(said.fault, one.subject))
        return bool(refused)

    def slow(self, subscription: Subscription, first: bool) -> None:
        """A message was dropped because its reader is too slow."""
        self._watch.dropped()
        if first:
            self._watch.fault(Said(Fault.SLOW_CONSUMER, "a reader is too slow", subscription.subject))

    def interrupted(self) -> None:
        """There was no link for a while: messages may be missing."""
        for subscription in self.placed:
            subscription.interruptions += 1

    def fail(self, error: ConnectionFault) -> None:
        """The connection ended."""
        for subscription in list(self.placed):
            subscription.fail(error)
