"""The lease of the delivery plane: one holder in a space, and what it means to lose it (OPEN C6.1-b, D3).

The row is kept in a bucket whose values live for 30 seconds. Its holder renews it at half of that by compare-and-set,
and stops believing in it five seconds before the broker forgets it, on either clock: whoever comes next begins after
its predecessor has stopped. A row is taken over when it is gone, when it did not change for a whole life as this
process saw it, or when it is of an instance that is known to be dead.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from sidecar.base.clock import Now
from sidecar.base.strictjson import JsonError, canonical, parse
from sidecar.rails.connection import ConnectionFault, Stopped
from sidecar.rails.connection.kv import Entry, KeyExists, KeyValue, Unreadable, WrongRevision
from sidecar.rails.connection.publishing import StoreRefused
from sidecar.rails.messaging.liveness import Verdict
from sidecar.rails.names import InvalidName, Principal, buckets
from sidecar.rails.names.limits import DELIVERY_LEASE_SECONDS
from sidecar.rails.planes.delivery.plane import Plane

MARGIN_SECONDS: Final = 5.0
"""How long before its end a lease is given up that could not be renewed: time to stop in."""
RETRY_SECONDS: Final = 1.0
RELEASE_SECONDS: Final = 2.0
"""How long a stop waits for a broker to take the lease back."""
POLL_SECONDS: Final = 1.0
"""How often the lease of another is looked at."""
_MAX_ROW: Final = 4096
_MAX_INSTANCE: Final = 64
Sleep = Callable[[float], Awaitable[None]]


class InvalidLease(ValueError):  # noqa: N818 - a state of the value
    """Bytes that are no lease row."""


class Claim(Enum):
    """What may be done about a row."""

    CREATE = "there is none"
    STEAL = "its holder is known to be gone"
    WAIT = "its holder may be there"


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """Who holds the plane. ``holder`` is a principal in dot-form, ``since`` in milliseconds since 1970."""

    holder: str
    instance: str
    since: int
    ready: bool = False

    def encode(self) -> bytes:
        """The stored bytes."""
        return canonical({"holder": self.holder, "instanceId": self.instance, "since": self.since, "ready": self.ready})

    @classmethod
    def decode(cls, data: bytes) -> LeaseRow:
        """The row in stored bytes; InvalidLease for anything that is not one. Other members are passed by."""
        try:
            value = parse(data, limit=_MAX_ROW, safe_integers=True)
        except JsonError as error:
            raise InvalidLease(f"it is no JSON: {error}") from None
        if not isinstance(value, Mapping):
            raise InvalidLease("it is no object")
        holder, instance, since, ready = (value.get(name) for name in ("holder", "instanceId", "since", "ready"))
        try:
            principal = Principal.from_dot(holder)
        except InvalidName as error:
            raise InvalidLease(f"holder: {error.reason}") from None
        if not isinstance(instance, str) or not 0 < len(instance) <= _MAX_INSTANCE:
            raise InvalidLease("instanceId is no name")
        if type(since) is not int or since < 0 or type(ready) is not bool:
            raise InvalidLease("since is no time, or ready no boolean")
        return cls(principal.dot, instance, since, ready)


def claim(row: LeaseRow | None, unchanged: float, ended: Collection[str]) -> Claim:
    """What may be done. ``row`` is None for a key without a value, ``unchanged`` the seconds for which this process
    has seen the same revision, ``ended`` the instances that have ended for sure."""
    if row is None:
        return Claim.CREATE
    if unchanged > DELIVERY_LEASE_SECONDS or row.instance in ended:
        return Claim.STEAL
    return Claim.WAIT


def judge(row: LeaseRow | None, instance: str) -> Verdict:
    """What a row says to a probe that ``instance`` answers (C6.1-15)."""
    if row is None or not row.ready:
        return Verdict.UNBOUND
    return Verdict.BOUND if row.instance == instance else Verdict.STALE


@dataclass(frozen=True, slots=True)
class Term:
    """How long a lease is believed in: until either clock has reached its bound."""

    wall: float
    mono: float

    @classmethod
    def from_write(cls, before: Now) -> Term:
        """The term of a write that was begun at ``before`` and succeeded: the broker counts from later on."""
        seconds = DELIVERY_LEASE_SECONDS - MARGIN_SECONDS
        return cls(before.wall + seconds, before.mono + seconds)

    def left(self, now: Now) -> float:
        """Seconds that are left; 0 when it is over. A wall clock that was set back does not lengthen it."""
        return max(0.0, min(self.wall - now.wall, self.mono - now.mono))


def _decoded(entry: Entry) -> LeaseRow:
    """The row of a value; one that cannot be read is of an instance that nobody is."""
    try:
        return LeaseRow.decode(entry.value)
    except InvalidLease:
        return LeaseRow("", "", 0)


_TROUBLE: Final = (ConnectionFault, StoreRefused, Unreadable, TimeoutError)


class Lease:
    """The lease of one space, as one instance of the plane sees it."""

    def __init__(
        self, plane: Plane, instance: str, *, ended: Collection[str] = (), sleep: Sleep = asyncio.sleep
    ) -> None:
        """``ended``: instances whose lease need not be waited for."""
        self.instance = instance
        self._bucket = KeyValue(plane.connection, buckets.DELIVERY, plane.space)
        self._key = buckets.DELIVERY_LEASE.build(shard=0)
        self._space = plane.space
        self._row = LeaseRow(plane.lifecycle.principal.dot, instance, 0)
        self._clock, self._metrics, self._log, self._sleep = plane.clock, plane.metrics, plane.log, sleep
        # Its own row too: whoever asks for the lease has stopped to act by an earlier one.
        self._ended = frozenset((*ended, instance))
        self._revision = 0
        self._term: Term | None = None
        self._writing = asyncio.Lock()
        self.elsewhere = asyncio.Event()
        """Set when this instance has had to wait for another one."""

    @property
    def held(self) -> bool:
        """Whether this instance may act now."""
        return self._term is not None and self._term.left(self._clock()) > 0.0

    @property
    def ready(self) -> bool:
        """Whether it holds the lease and has said that its loops are bound."""
        return self.held and self._row.ready

    async def acquire(self) -> None:
        """Wait for the lease, and take it with ``ready`` false. Raises Stopped only."""
        seen, since = -1, self._clock().mono
        while True:
            try:
                entry = await self._bucket.get(self._key)
                now = self._clock()
                revision = 0 if entry is None else entry.revision
                if revision != seen:
                    seen, since = revision, now.mono
                row = None if entry is None else _decoded(entry)
                if await self._take(claim(row, now.mono - since, self._ended), revision, now):
                    return
                self.elsewhere.set()
                self._log.info("delivery_lease_waits", space=self._space)
            except Stopped:
                raise
            except (KeyExists, WrongRevision):  # somebody else was faster
                self._metrics.counter("delivery_lease", "outrun").inc()
            except _TROUBLE as error:
                self._trouble(error)
            await self._sleep(POLL_SECONDS)

    async def _take(self, what: Claim, revision: int, now: Now) -> bool:
        if what is Claim.WAIT:
            return False
        row = replace(self._row, since=int(now.wall * 1000), ready=False)
        if what is Claim.CREATE:
            taken = await self._bucket.create(self._key, row.encode())
        else:
            taken = await self._bucket.update(self._key, row.encode(), revision)
        self._row, self._revision, self._term = row, taken, Term.from_write(now)
        self._metrics.counter("delivery_lease", "taken" if what is Claim.CREATE else "stolen").inc()
        self._log.info("delivery_lease_taken", space=self._space, after=what.name.lower())
        return True

    async def set_ready(self) -> None:
        """The loops are bound: say so (OPEN C6.1-b). Tries until it is written or the lease is lost."""
        self._row = replace(self._row, ready=True)
        while self.held and not await self._renew():
            await self._sleep(RETRY_SECONDS)

    async def keep(self) -> None:
        """Renew at half of its life, and return when it is lost: from then on this instance does nothing."""
        wait = DELIVERY_LEASE_SECONDS / 2
        while True:
            left = self._left()
            if left <= 0.0:
                self._lost("it could not be renewed in time")
                return
            await self._sleep(min(wait, left))
            renewed = await self._renew()
            wait = DELIVERY_LEASE_SECONDS / 2 if renewed else RETRY_SECONDS

    def _left(self) -> float:
        return 0.0 if self._term is None else self._term.left(self._clock())

    async def _renew(self) -> bool:
        """Write the row over our own revision; False when that is to be tried again, or all is lost."""
        async with self._writing:
            left = self._left()
            if left <= 0.0:
                return False
            before = self._clock()
            try:
                async with asyncio.timeout(left):
                    self._revision = await self._bucket.update(self._key, self._row.encode(), self._revision)
            except WrongRevision:
                await self._reconcile()
                return False
            except _TROUBLE as error:
                self._trouble(error)
                return False
            self._term = Term.from_write(before)
            self._metrics.counter("delivery_lease", "renewed").inc()
            return True

    async def _reconcile(self) -> None:
        """Another revision: our own write whose answer was lost, or somebody else's row."""
        try:
            entry = await self._bucket.get(self._key)
        except _TROUBLE as error:
            self._trouble(error)
            return
        if entry is not None and _decoded(entry).instance == self.instance:
            self._revision = entry.revision
        else:
            self._term = None

    def _lost(self, why: str) -> None:
        self._term = None
        self._metrics.counter("delivery_lease", "lost").inc()
        self._log.error("delivery_lease_lost", space=self._space, why=why)

    async def release(self) -> None:
        """Give it back, so that the next one need not wait. Does nothing when it is not held."""
        async with self._writing:
            if not self.held:
                return
            with contextlib.suppress(WrongRevision, *_TROUBLE):
                async with asyncio.timeout(RELEASE_SECONDS):
                    await self._given_back()
                self._metrics.counter("delivery_lease", "released").inc()
            self._term = None

    async def _given_back(self) -> None:
        try:
            await self._bucket.delete(self._key, self._revision)
        except WrongRevision:  # a renewal that was cut off may have been written
            await self._reconcile()
            await self._bucket.delete(self._key, self._revision)

    async def verdict(self) -> Verdict:
        """What to answer a liveness probe: from the row itself, not from what this process believes (C6.1-15, -16)."""
        try:
            entry = await self._bucket.get(self._key)
            return judge(None if entry is None else LeaseRow.decode(entry.value), self.instance)
        except (InvalidLease, *_TROUBLE):
            return Verdict.UNKNOWN

    def _trouble(self, error: BaseException) -> None:
        self._metrics.counter("delivery_lease", "trouble").inc()
        self._log.warning("delivery_lease_trouble", space=self._space, error=type(error).__name__)
