"""The membership feed: looks at connections and durable memberships, and keeps one row for each agent (C8-72..C8-75).

Two connections, and neither can do what the other does: an observer of the system account that may only ask who is
connected to this one account (CB-117), and a writer that may only write the feed (CB-104).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from sidecar.ops.logging import Log
from sidecar.rails.connection import Connection, ConnectionFault, PermissionViolation, Stopped, Subscription
from sidecar.rails.connection.kv import Entry, KeyValue
from sidecar.rails.connection.publishing import StoreRefused
from sidecar.rails.names import api, buckets, inboxes
from sidecar.rails.planes.delivery.connections import Sweep
from sidecar.rails.planes.delivery.feed_rows import HEARTBEAT, fold, heartbeat, plan
from sidecar.rails.planes.delivery.membership import InvalidRow, Membership, decode
from sidecar.rails.planes.delivery.mirror import Behind, Mirror
from sidecar.rails.planes.delivery.plane import Plane

EVERY_SECONDS: Final = 5.0
"""Between two looks while nobody comes or goes."""
SETTLE_SECONDS: Final = 0.5
"""Between somebody's coming or going and the next look, so that many of them are one look."""
QUIET_SECONDS: Final = 0.25
"""No server has answered for so long: all have."""
PAGE_SECONDS: Final = 2.0
"""The longest that one page is waited for."""


class MembershipFeed:
    """The feed of one space. ``plane`` is the writer's; ``observer`` is the connection of the system account.

    ``every``, ``settle``: seconds, see the constants of this module.
    """

    def __init__(
        self,
        plane: Plane,
        observer: Connection,
        account: str,
        *,
        every: float = EVERY_SECONDS,
        settle: float = SETTLE_SECONDS,
    ) -> None:
        self._plane, self._observer, self._account = plane, observer, account
        self._every, self._settle = every, settle
        self._log: Log = plane.log
        self._values = KeyValue(plane.connection, buckets.MEMBERSHIP, plane.space)
        self._memberships: dict[str, Membership] = {}
        self._stored: dict[str, bytes] = {}
        self._members = Mirror(plane, buckets.MEMBERS, "members", self._member)
        self._rows = Mirror(plane, buckets.MEMBERSHIP, "membership", self._row)
        self._moved = asyncio.Event()

    async def run(self, bound: asyncio.Event | None = None) -> None:
        """Keep the feed until cancelled; ``bound`` is set once both buckets and all events are read. Raises Stopped,
        PermissionViolation."""
        tasks: list[asyncio.Task[None]] = []
        events: list[Subscription] = []
        try:
            for template in (api.CONNECTED, api.DISCONNECTED):
                events.append(await self._observer.subscribe(template.build(account=self._account), max_messages=64))
            work = [self._members.run(), self._rows.run(), *(self._hear(one) for one in events), self._keep(bound)]
            tasks = [asyncio.create_task(one) for one in work]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for event in events:
                await event.close()

    def _member(self, entry: Entry) -> None:
        self._memberships.pop(entry.key, None)
        if entry.deleted:
            return
        try:
            self._memberships[entry.key] = decode(entry.key, entry.value)
        except InvalidRow:
            self._plane.metrics.counter("feed_bad_rows").inc()

    def _row(self, entry: Entry) -> None:
        if entry.deleted:
            self._stored.pop(entry.key, None)
        else:
            self._stored[entry.key] = entry.value

    async def _hear(self, events: Subscription) -> None:
        while True:
            await events.next()
            self._moved.set()

    async def _keep(self, bound: asyncio.Event | None) -> None:
        while True:
            self._moved.clear()
            began = self._plane.clock().mono
            try:
                outcome = await self.look()
                if bound is not None:
                    bound.set()
            except (PermissionViolation, Stopped):
                raise
            except (Behind, ConnectionFault, StoreRefused, TimeoutError) as error:
                outcome = "failed"
                self._log.warning("membership_feed_failed", error=type(error).__name__)
            self._plane.metrics.counter("feed_looks", outcome).inc()
            self._plane.metrics.histogram("feed_look_seconds").observe(self._plane.clock().mono - began)
            try:
                async with asyncio.timeout(self._every):
                    await self._moved.wait()
                await asyncio.sleep(self._settle)
            except TimeoutError:
                continue

    async def look(self) -> str:
        """One look, and what it changes; ``complete`` or ``incomplete``. Raises Behind, ConnectionFault, StoreRefused,
        TimeoutError."""
        sweep = await self._sweep()
        await self._members.current()
        await self._rows.current()
        rows = fold(sweep.live, self._memberships.values())
        now_ms = int(self._plane.clock().wall * 1000)
        wanted = plan(rows, self._stored, now_ms, complete=sweep.complete)
        for key, value in wanted.puts.items():
            await self._values.put(key, value)
        for key in wanted.deletes:
            await self._values.delete(key)
        await self._values.put(HEARTBEAT, heartbeat(now_ms, len(rows), complete=sweep.complete))
        self._told(rows, sweep, wanted.puts, wanted.deletes)
        return "complete" if sweep.complete else "incomplete"

    def _told(self, rows: Iterable[str], sweep: Sweep, puts: Iterable[str], deletes: Iterable[str]) -> None:
        metrics = self._plane.metrics
        metrics.gauge("feed_rows").set(len(list(rows)))
        metrics.gauge("feed_unattributed").set(sweep.unattributed)
        metrics.counter("feed_writes", "put").inc(len(list(puts)))
        metrics.counter("feed_writes", "delete").inc(len(list(deletes)))

    async def _sweep(self) -> Sweep:
        """All pages of all servers, each page to an inbox of its own."""
        sweep = Sweep(self._plane.space)
        subject = api.CONNECTIONS.build(account=self._account)
        while True:
            inbox = await self._observer.subscribe(f"{inboxes.MEMBERSHIP.build()}.{self._plane.entropy(16).hex()}")
            try:
                await self._observer.publish(subject, sweep.request(), reply=inbox.subject)
                await _answers(inbox, sweep)
            finally:
                await inbox.close()
            if not sweep.turn():
                return sweep


async def _answers(inbox: Subscription, sweep: Sweep) -> None:
    """Every answer to one page: until all servers are quiet, and not for longer than a page may take."""
    quiet = PAGE_SECONDS
    try:
        async with asyncio.timeout(PAGE_SECONDS):
            while True:
                async with asyncio.timeout(quiet):
                    message = await inbox.next()
                sweep.take(message.data)
                quiet = QUIET_SECONDS
    except TimeoutError:
        return
