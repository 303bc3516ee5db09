"""The commands about memberships: join, leave, list, and the inventory of a lifecycle that ends (C7-16, CD-04..10).

Rows are written by compare-and-set alone. A join reads the lifecycle's read list at the stream's leader right before
the write that opens a row and again behind it (CD-05); every other write names the revision that it read, and never
makes a row again that somebody removed (CD-06). What was posted while the row was written is copied before the join is
answered (OPEN C7-d).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Final

from sidecar.base.strictjson import JsonValue
from sidecar.rails.connection import ConnectionFault
from sidecar.rails.connection.kv import KeyExists, KeyValue, Unreadable, WrongRevision
from sidecar.rails.connection.publishing import StoreRefused
from sidecar.rails.endpoint.call import Call, Handler
from sidecar.rails.endpoint.codes import Code, Outcome, Refusal
from sidecar.rails.names import buckets, streams
from sidecar.rails.names.buckets import member_key
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.principals import Lifecycle
from sidecar.rails.planes.delivery import membership
from sidecar.rails.planes.delivery.acl import Acl
from sidecar.rails.planes.delivery.broker import Unanswered, stream_state
from sidecar.rails.planes.delivery.catchup import CatchUp, Shortfall
from sidecar.rails.planes.delivery.members import Members
from sidecar.rails.planes.delivery.membership import InvalidRow, Membership, Writer, check_channel
from sidecar.rails.planes.delivery.mirror import Behind
from sidecar.rails.planes.delivery.plane import Plane

MAX_ROWS: Final = 1_024
"""Memberships of one lifecycle, those that it left included; a row is used again when its channel is joined again."""
MAX_FENCED: Final = 16_384
"""Lifecycles that are known to end; the oldest is forgotten, and its read list, which is empty, refuses it then."""
ATTEMPTS: Final = 8
FINISH_SECONDS: Final = 10.0
"""How long an inventory waits for joins and leaves of its lifecycle that are under way."""
_UNSURE = (ConnectionFault, TimeoutError, Unreadable, Unanswered, Behind, StoreRefused)


class _Refused(Exception):  # noqa: N818 - stays inside this module
    """A join or leave that is not done: the label of its counter, and what the caller is told."""

    def __init__(self, outcome: str, code: Code, message: str, effect: Outcome = Outcome.NOT_EXECUTED) -> None:
        super().__init__(message)
        self.outcome, self.refusal = outcome, Refusal(code, message, effect)


class _Turn:
    """The joins of one row: the one that runs, and those that wait for it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class MembershipDesk:
    """Handlers of the delivery endpoint. ``routing`` is set once posts are fanned out: before that no join succeeds."""

    def __init__(self, plane: Plane, members: Members, acl: Acl, catch_up: CatchUp, routing: asyncio.Event) -> None:
        self._plane, self._members, self._acl, self._catch_up = plane, members, acl, catch_up
        self._routing = routing
        self._rows = KeyValue(plane.connection, buckets.MEMBERS, plane.space)
        self._running: dict[Lifecycle, int] = {}
        self._finished = asyncio.Condition()
        self._fenced: dict[Lifecycle, None] = {}
        self._turns: dict[str, _Turn] = {}
        self._joined_ms = 0

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """By command."""
        return {
            "durable-join": self.join,
            "durable-leave": self.leave,
            "list-memberships": self.list,
            "lifecycle-memberships": self.inventory,
        }

    # ---- join ----

    async def join(self, called: Call) -> JsonValue:
        """``{channel, joinCursor}`` -> ``{durable, reason?, generation?}``."""
        try:
            async with self._unfenced(called.caller):
                row, outcome = await self._joined(called.caller, *_channel_and(called.args, "joinCursor"))
        except Shortfall as short:
            self._count("joins", short.outcome)
            return {"durable": False, "reason": short.reason}
        except _Refused as refused:
            self._count("joins", refused.outcome)
            raise refused.refusal from None
        except _UNSURE as error:
            raise self._unavailable("joins", error) from error
        self._count("joins", outcome)
        return {"durable": True, "generation": row.generation}

    async def _joined(self, lifecycle: Lifecycle, channel: str, asked: int) -> tuple[Membership, str]:
        async with asyncio.timeout(FINISH_SECONDS):
            await self._routing.wait()
        state = await stream_state(self._plane.connection, streams.CHAT.stream(self._plane.space))
        cursor = membership.join_cursor(asked, state.last)
        async with self._one_at_a_time(member_key(channel, lifecycle)):
            row, revision, kept = await self._opened(lifecycle, channel, cursor)
            if kept and row.activated:
                return row, "kept"
            try:
                await self._catch_up.copy(row)
            except Shortfall:
                await self._closed(row)
                raise
            return await self._activated(row, revision), "joined"

    async def _opened(self, lifecycle: Lifecycle, channel: str, cursor: int) -> tuple[Membership, int, bool]:
        """An open row with its revision, and whether it was open before."""
        key = member_key(channel, lifecycle)
        for _ in range(ATTEMPTS):
            before, revision = await self._row(key)
            if before is None:
                await self._check_room(lifecycle)
            row = membership.joined(before, channel, lifecycle, cursor, self._joiner())
            await self._check_acl(lifecycle, channel)
            if row is before:
                return row, revision, True
            try:
                if before is None:
                    revision = await self._rows.create(key, row.encode())
                else:
                    revision = await self._rows.update(key, row.encode(), revision)
            except (KeyExists, WrongRevision):
                continue
            try:
                await self._check_acl(lifecycle, channel)
            except BaseException:
                # Whatever it was, nobody may take the row for a membership that was granted (CD-05).
                await self._rows.delete(key)
                raise
            return row, revision, False
        raise _Refused("conflict", Code.CONFLICT, "others keep changing the membership")

    async def _check_acl(self, lifecycle: Lifecycle, channel: str) -> None:
        row = await self._acl.exact(lifecycle)
        if row is None:
            raise _Refused("acl", Code.UNAVAILABLE, "the read list of this lifecycle is not known")
        if not row.reads(channel):
            raise _Refused("acl", Code.PERMISSION_DENIED, "the channel is within no entry of the read list")

    async def _check_room(self, lifecycle: Lifecycle) -> None:
        await self._members.current()
        if len(self._members.of(lifecycle)) >= MAX_ROWS:
            raise _Refused("limit", Code.RESOURCE_EXHAUSTED, f"a lifecycle has at most {MAX_ROWS} memberships")

    async def _activated(self, row: Membership, revision: int) -> Membership:
        """Everything up to the frontier was copied. The row may have been left or removed meanwhile: then this join has
        failed, and its row is not made again."""
        active = membership.activated(row, self._writer())
        try:
            await self._rows.update(row.key, active.encode(), revision)
        except WrongRevision:
            found, _ = await self._row(row.key)
            if found is not None and found.open and found.activated and found.generation == row.generation:
                return found  # another request for the same join was faster
            raise _Refused("conflict", Code.CONFLICT, "the membership was ended while it began") from None
        return active

    async def _closed(self, row: Membership) -> None:
        """End a membership that was not completed, if it is still this one."""
        with contextlib.suppress(WrongRevision, *_UNSURE):
            found, revision = await self._row(row.key)
            frontier = (await stream_state(self._plane.connection, streams.CHAT.stream(self._plane.space))).last
            tombstone = membership.left(found, row.generation, frontier, self._writer())
            if tombstone is not None:
                await self._rows.update(row.key, tombstone.encode(), revision)

    # ---- leave ----

    async def leave(self, called: Call) -> JsonValue:
        """``{channel, generation}`` -> ``{channel, alreadyLeft?}``."""
        try:
            async with self._unfenced(called.caller):
                channel, generation = _channel_and(called.args, "generation")
                left = await self._left(called.caller, channel, generation)
        except _Refused as refused:
            self._count("leaves", refused.outcome)
            raise refused.refusal from None
        except _UNSURE as error:
            raise self._unavailable("leaves", error) from error
        self._count("leaves", "left" if left else "already")
        return {"channel": channel} if left else {"channel": channel, "alreadyLeft": True}

    async def _left(self, lifecycle: Lifecycle, channel: str, generation: int) -> bool:
        key = member_key(channel, lifecycle)
        for _ in range(ATTEMPTS):
            row, revision = await self._row(key)
            # The frontier is behind the row that was read: whatever is posted from here on is not of this membership.
            frontier = (await stream_state(self._plane.connection, streams.CHAT.stream(self._plane.space))).last
            tombstone = membership.left(row, generation, frontier, self._writer())
            if tombstone is None:
                return False
            with contextlib.suppress(WrongRevision):
                await self._rows.update(key, tombstone.encode(), revision)
                return True
        raise _Refused("conflict", Code.CONFLICT, "others keep changing the membership")

    # ---- lists ----

    async def list(self, called: Call) -> JsonValue:
        """The caller's own memberships that have not been left."""
        try:
            await self._members.current()
        except Behind as error:
            raise Refusal(Code.UNAVAILABLE, str(error), Outcome.NOT_EXECUTED) from error
        rows = [row for row in self._members.of(called.caller) if row.open]
        return {
            "memberships": [
                {"channel": row.channel, "generation": row.generation, "activated": row.activated} for row in rows
            ]
        }

    async def inventory(self, called: Call) -> JsonValue:
        """Every row of a lifecycle that ends, tombstones too. From here on it joins and leaves nothing (CD-07), and the
        read begins when what is under way has finished (CD-08). It waits behind nothing else (CD-09)."""
        arguments = called.args if isinstance(called.args, Mapping) else {}
        try:
            lifecycle = Lifecycle.from_dot(arguments.get("lifecycle"))
        except InvalidName as error:
            raise Refusal(Code.BAD_REQUEST, f"lifecycle: {error.reason}", Outcome.NOT_EXECUTED) from None
        self._fenced.pop(lifecycle, None)
        self._fenced[lifecycle] = None
        if len(self._fenced) > MAX_FENCED:
            del self._fenced[next(iter(self._fenced))]
        try:
            async with asyncio.timeout(FINISH_SECONDS), self._finished:
                await self._finished.wait_for(lambda: lifecycle not in self._running)
            await self._members.current()
        except (TimeoutError, Behind) as error:
            message = str(error) or "joins of the lifecycle are still under way"
            raise Refusal(Code.UNAVAILABLE, message, Outcome.NOT_EXECUTED) from error
        self._plane.metrics.counter("delivery_inventories").inc()
        return {"memberships": [_listed(row) for row in self._members.of(lifecycle)]}

    # ---- common ----

    @contextlib.asynccontextmanager
    async def _unfenced(self, lifecycle: Lifecycle) -> AsyncIterator[None]:
        """A join or leave under way; refused for a lifecycle that ends (CD-07)."""
        if lifecycle in self._fenced:
            raise _Refused("fenced", Code.FAILED_PRECONDITION, "the lifecycle is about to end")
        self._running[lifecycle] = self._running.get(lifecycle, 0) + 1
        try:
            yield
        finally:
            self._running[lifecycle] -= 1
            if not self._running[lifecycle]:
                del self._running[lifecycle]
            async with self._finished:
                self._finished.notify_all()

    @contextlib.asynccontextmanager
    async def _one_at_a_time(self, key: str) -> AsyncIterator[None]:
        """Joins of one row: they read the same window by the same consumer."""
        turn = self._turns.setdefault(key, _Turn())
        turn.users += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[key]

    async def _row(self, key: str) -> tuple[Membership | None, int]:
        entry = await self._rows.get(key)
        if entry is None:
            return None, 0
        try:
            return membership.decode(key, entry.value), entry.revision
        except InvalidRow as error:
            self._plane.log.error("delivery_bad_membership", error=error)
            raise _Refused("unavailable", Code.INTERNAL, "the membership cannot be read") from None

    def _writer(self) -> Writer:
        return Writer(self._plane.lifecycle.principal.dot, int(self._plane.clock().wall * 1000))

    def _joiner(self) -> Writer:
        """A writer whose time no other join has: the consumer that a join reads by is named by its generation."""
        writer = self._writer()
        self._joined_ms = max(writer.now_ms, self._joined_ms + 1)
        return Writer(writer.identity, self._joined_ms)

    def _count(self, what: str, outcome: str) -> None:
        self._plane.metrics.counter(f"delivery_{what}", outcome).inc()

    def _unavailable(self, what: str, error: Exception) -> Refusal:
        """What was begun may have been written; asking again finds out."""
        self._count(what, "unavailable")
        self._plane.log.warning("delivery_membership_unavailable", what=what, error=error)
        return Refusal(Code.UNAVAILABLE, "the broker did not answer in time", Outcome.UNKNOWN)


def _listed(row: Membership) -> dict[str, JsonValue]:
    value: dict[str, JsonValue] = {
        "channel": row.channel,
        "generation": row.generation,
        "activated": row.activated,
        "state": row.state,
        "joinCursor": row.interval.join,
    }
    return value if row.interval.leave is None else value | {"leaveCursor": row.interval.leave}


def _channel_and(args: JsonValue, name: str) -> tuple[str, int]:
    """The endpoint has checked the shape; a pattern that no membership may name is refused here (C7-38, C7-44)."""
    given = args if isinstance(args, Mapping) else {}
    number = given.get(name)
    try:
        channel = check_channel(given.get("channel"))
    except InvalidName:
        message = "a durable membership names one channel, or a family that ends in '.>'"
        raise _Refused("invalid", Code.BAD_REQUEST, message) from None
    if type(number) is not int or number < 0:
        raise _Refused("invalid", Code.BAD_REQUEST, f"{name} is no whole number")
    return channel, number
