"""What the delivery plane reads for the members of a mediated space, who hold no raw read themselves (C9-47).

The caller is the authenticated sender of the request and nobody else: its durables are named by its own lifecycle, and
what depends on a list of it (channels, roles) is judged by its current read-ACL row. Nothing is acked here but by
``settle``: a copy whose answer was lost comes again when its ack wait is over, or sooner, when a newer process of the
member reads (``sessions``). Tokens are the numbers of an ack subject, so that a restart of the plane forgets nothing.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from sidecar.base.strictjson import JsonError, JsonValue, parse
from sidecar.rails.connection import ConnectionFault, NoResponders
from sidecar.rails.connection.kv import Entry, KeyValue, Unreadable
from sidecar.rails.endpoint.call import Call, Handler
from sidecar.rails.endpoint.codes import Code, Outcome, Refusal
from sidecar.rails.endpoint.contracts import MAX_PAGE
from sidecar.rails.messaging.frames import FRAME_MARGIN, HEADER_BYTES, Frame, frame_value, most_in_answer
from sidecar.rails.names import InvalidName, Lifecycle, acks, buckets, consumers, headers, streams
from sidecar.rails.names.tokens import GRAMMARS
from sidecar.rails.planes.delivery.history import HistoryReader
from sidecar.rails.planes.delivery.lease import InvalidLease, LeaseRow
from sidecar.rails.planes.delivery.paging import Pages
from sidecar.rails.planes.delivery.plane import Plane
from sidecar.rails.planes.delivery.pulls import Durable, Puller
from sidecar.rails.planes.delivery.sessions import Reader, Sessions
from sidecar.rails.space.acl import AclRow, InvalidRow

BATCH_BYTES: Final = 256 * 1024
"""Bytes of stored messages in one answer, unless its first one is larger."""
ACK_SECONDS: Final = 2.0
DEADLINE_MARGIN_MS: Final = 500
"""How long before the caller's deadline a wait ends."""
_MAX_HEADERS, _MAX_HEADER = 64, 8192
"""What the contract of a frame holds."""
_NANO_PER_MS: Final = 1_000_000
HOLD: Final = "hold"
"""What a process says of a copy that it still has. It is for the plane alone: the broker hears nothing of it."""
SWEEP_SECONDS: Final = 1.0
"""How often it is looked for copies of processes that are gone."""
_HOW: Final = {"ack": headers.ACK, "nak": headers.NAK, "term": headers.TERM, "renew": headers.PROGRESS}
_TROUBLE: Final = (ConnectionFault, Unreadable, TimeoutError)
T = TypeVar("T")


class Shared(Generic[T]):
    """One read for everybody who asks at the same time. It begins after the last of them has asked, so that nobody
    gets what was read before."""

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read
        self._running: asyncio.Task[T] | None = None
        self._following: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """What the next read gives; raises what it raises."""
        if self._following is None:
            self._following = asyncio.create_task(self._after(self._running))
            # Whoever asked may have been cancelled: then nobody takes what it ends with.
            self._following.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._following)

    async def _after(self, running: asyncio.Task[T] | None) -> T:
        if running is not None:
            await asyncio.wait((running,))
        self._running, self._following = self._following, None
        return await self._read()


class Mediated:
    """The commands of one space. ``epoch`` gives the creation time of the task stream or raises Refusal."""

    def __init__(self, plane: Plane, epoch: Callable[[], Awaitable[str]]) -> None:
        self._plane = plane
        self._connection = plane.connection
        self._epoch = epoch
        self._acl = KeyValue(plane.connection, buckets.ACL, plane.space)
        self._leases = KeyValue(plane.connection, buckets.DELIVERY, plane.space)
        self._registry, self._roster = (
            Pages(Shared(KeyValue(plane.connection, bucket, plane.space).read_all).get, plane.clock)
            for bucket in (buckets.CHANNELS, buckets.PRESENCE)
        )
        self._puller = Puller(plane.connection)
        self._sessions = Sessions()
        self._history = HistoryReader(plane, self._puller)

    @property
    def _answer_bytes(self) -> int:
        """Bytes of one answer: what the broker takes, and callers read, without the envelope around it."""
        return most_in_answer(self._connection.max_payload)

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """The commands by name."""
        return {
            "fetch": self.fetch,
            "settle": self.settle,
            "read-history": self.read_history,
            "read-registry": self.read_registry,
            "read-roster": self.read_roster,
            "task-epoch": self.task_epoch,
            "lease-holder": self.lease_holder,
        }

    # ---- durable sources ----

    async def fetch(self, called: Call) -> JsonValue:
        """Copies of one durable source of the caller; empty when none came in time. Raises Refusal."""
        args = _members(called.args)
        source, role = _source(args)
        durable = await self._durable(called.caller, source, role)
        seconds = _wait(int(args["waitMs"]), called.deadline_ms)
        begun = self._plane.clock().mono
        session, reader = args.get("session", ""), Reader(durable, called.caller)
        turn = self._sessions.spoke(reader, session, begun) if session else 0
        try:
            frames = await self._puller.gather(durable, int(args["batch"]), seconds, BATCH_BYTES)
        except NoResponders:
            raise _not_found(source) from None
        except _TROUBLE as error:
            raise self._unavailable(error) from None
        self._plane.metrics.histogram("delivery_fetch_seconds", source).observe(self._plane.clock().mono - begun)
        if role and frames and seconds:  # it waited: the row may say something else now
            try:
                await self._holding(called.caller, role)
            except Refusal:
                await self._give_back(durable, frames)
                raise
        if frames and self._sessions.superseded(reader, session, turn):  # who asked may be dead, and a newer one waits
            self._plane.metrics.counter("delivery_frames_superseded", source).inc(len(frames))
            await self._give_back(durable, frames)
            return {"frames": []}
        shown = await self._fitting(durable, source, frames)
        copies = {frame.sequence: frame.token for frame in frames[: len(shown)]}
        self._sessions.handed(reader, session, copies, self._plane.clock().mono)
        return {"frames": shown}

    async def _fitting(self, durable: Durable, source: str, frames: Sequence[Frame]) -> list[JsonValue]:
        """Frames as far as they fit into one answer; the others are given back to the broker at once."""
        shown: list[JsonValue] = []
        left = self._answer_bytes
        for at, frame in enumerate(frames):
            value, size = framed(frame, self._answer_bytes)
            if size > left:
                self._plane.metrics.counter("delivery_frames_returned", source).inc(len(frames) - at)
                await self._give_back(durable, frames[at:])
                break
            if "omitted" in value:
                self._plane.metrics.counter("delivery_frames_omitted", source).inc()
                self._plane.log.warning("frame_omitted", space=self._plane.space, source=source, size=len(frame.data))
            left -= size
            shown.append(value)
        self._plane.metrics.counter("delivery_frames_fetched", source).inc(len(shown))
        return shown

    async def reclaim_for_ever(self, bound: asyncio.Event) -> None:
        """Give back what processes hold that are gone, as far as newer ones of the same members read."""
        bound.set()
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self._registry.expire()
            self._roster.expire()
            for durable, token in self._sessions.abandoned(self._plane.clock().mono):
                self._plane.metrics.counter("delivery_frames_reclaimed").inc()
                with contextlib.suppress(ConnectionFault):  # the ack wait does the same
                    await self._connection.send(acks.ack_subject(*durable, token), headers.NAK)

    async def _give_back(self, durable: Durable, frames: Sequence[Frame]) -> None:
        """Copies that are not handed out, for the broker to deliver again; what fails comes after the ack wait."""
        for frame in frames:
            try:
                await self._connection.send(acks.ack_subject(*durable, frame.token), headers.NAK)
            except ConnectionFault:
                return

    async def settle(self, called: Call) -> JsonValue:
        """Ack, nak, end or renew copies of the caller's own durable; true for each that the broker has confirmed.

        Whoever asks again after a lost answer settles nothing twice. Raises Refusal.
        """
        args = _members(called.args)
        source, role = _source(args)
        durable = await self._durable(called.caller, source, role)
        items, now = args["items"], self._plane.clock().mono
        if session := args.get("session"):
            reader = Reader(durable, called.caller)
            if args.get("end"):
                self._sessions.ended(reader, session)
            else:
                self._sessions.spoke(reader, session, now)
        settled = await asyncio.gather(*(self._settle(durable, item) for item in items))
        self._plane.metrics.counter("delivery_settled", source, "confirmed").inc(sum(settled))
        self._plane.metrics.counter("delivery_settled", source, "unconfirmed").inc(len(settled) - sum(settled))
        return {"settled": list(settled)}

    async def _settle(self, durable: Durable, item: Mapping[str, Any]) -> bool:
        if item["how"] == HOLD:
            return True
        body = _HOW[item["how"]]
        if item["how"] == "nak" and item.get("delayMs"):
            body += b" " + json.dumps({"delay": item["delayMs"] * _NANO_PER_MS}).encode()
        try:
            subject = acks.ack_subject(*durable, item["token"])
            await self._connection.request(subject, body, seconds=ACK_SECONDS)
        except (InvalidName, *_TROUBLE):
            return False
        sequence = acks.parse_tail(item["token"]).sequence
        self._sessions.settled(durable, sequence, renewed=item["how"] == "renew", now=self._plane.clock().mono)
        return True

    async def _durable(self, lifecycle: Lifecycle, source: str, role: str) -> Durable:
        """The caller's own durable of a source. Raises Refusal for a role that its ACL row does not hold."""
        space, names = self._plane.space, lifecycle.names
        if source == "dm":
            return Durable(streams.DM.stream(space), consumers.DM.build(**names))
        if source == "backstop":
            return Durable(streams.DLV.stream(space), consumers.HANDOFF.build(**names))
        await self._holding(lifecycle, role)
        return Durable(streams.TASK.stream(space), consumers.ROLE.build(role=role))

    # ---- the caller's ACL row ----

    async def _row(self, lifecycle: Lifecycle) -> AclRow:
        """The caller's current row. Raises Refusal when there is none, or it cannot be read."""
        try:
            entry = await self._acl.get(buckets.ACL_KEY.build(**lifecycle.names))
            if entry is not None:
                return AclRow.decode(entry.value)
        except Unreadable as error:
            raise self._unavailable(error) from None
        except InvalidRow as error:
            self._plane.log.error("acl_row_invalid", space=self._plane.space, problem=str(error))
            raise self._unavailable(error) from None
        raise Refusal(Code.PERMISSION_DENIED, "no read list is known for this lifecycle", Outcome.NOT_EXECUTED)

    async def _holding(self, lifecycle: Lifecycle, role: str) -> None:
        if not (await self._row(lifecycle)).holds(role):
            raise Refusal(Code.PERMISSION_DENIED, "this lifecycle does not serve the role", Outcome.NOT_EXECUTED)

    async def _reading(self, lifecycle: Lifecycle, channel: str) -> None:
        if not (await self._row(lifecycle)).reads(channel):
            raise Refusal(Code.PERMISSION_DENIED, "the channel is not in the read list", Outcome.NOT_EXECUTED)

    # ---- reads of what everybody may see ----

    async def read_history(self, called: Call) -> JsonValue:
        """Posts of one concrete channel within the caller's current read list, oldest first (C8-28). Raises Refusal."""
        args = _members(called.args)
        channel = args["channel"]
        if not GRAMMARS["channel"].accepts(channel):
            raise Refusal(Code.BAD_REQUEST, "history is read of one concrete channel", Outcome.NOT_EXECUTED)
        await self._reading(called.caller, channel)
        try:
            page = await self._history.read(
                channel,
                after=args.get("after", 0),
                up_to=args.get("upTo"),
                since_ms=args.get("sinceMs"),
                limit=args["limit"],
                max_bytes=BATCH_BYTES,
            )
        except _TROUBLE as error:
            raise self._unavailable(error) from None
        if page.frames:  # it may have waited for its turn: the row may say something else now
            await self._reading(called.caller, channel)
        shown: list[JsonValue] = []
        left, complete = self._answer_bytes, page.complete
        for frame in page.frames:
            value, size = framed(frame._replace(token=""), self._answer_bytes)
            if size > left:
                complete = False
                break
            left -= size
            shown.append(value)
        self._plane.metrics.counter("delivery_history_frames").inc(len(shown))
        return {"frames": shown, "frontier": page.frontier, "complete": complete}

    async def read_registry(self, called: Call) -> JsonValue:
        """A page of the channel registry, in the order of its keys. Raises Refusal."""
        defaults_key = buckets.CHANNEL_DEFAULTS.build()
        after = _members(called.args).get("after", "")
        entries = await self._all(self._registry, called.caller, after)
        defaults = entries.pop(defaults_key, None)

        def shown(entry: Entry) -> dict[str, JsonValue] | None:
            config = self._config(entry)
            return None if config is None else {"channel": entry.key, "config": config}

        page, following = self._page(entries, after, shown)
        if following is None:
            self._registry.ended(called.caller)
        value: dict[str, JsonValue] = {
            "defaults": None if defaults is None else self._config(defaults),
            "channels": page,
        }
        return value if following is None else {**value, "next": following}

    def _config(self, entry: Entry) -> Mapping[str, JsonValue] | None:
        """The object that a registry entry is; None for one that is none, which is as if it were not there."""
        try:
            value = parse(entry.value)
        except JsonError:
            value = None
        if isinstance(value, dict) and len(value) <= _MAX_HEADERS:
            return value
        self._plane.metrics.counter("delivery_registry_invalid").inc()
        return None

    async def read_roster(self, called: Call) -> JsonValue:
        """A page of the presence records as they are stored; the reader judges them (C6-46). Raises Refusal."""

        def shown(entry: Entry) -> dict[str, JsonValue]:
            value = base64.b64encode(entry.value).decode("ascii")
            return {"key": entry.key, "value": value, "revision": entry.revision, "timeMs": entry.time_ms}

        after = _members(called.args).get("after", "")
        page, following = self._page(await self._all(self._roster, called.caller, after), after, shown)
        if following is None:
            self._roster.ended(called.caller)
        value: dict[str, JsonValue] = {"entries": page}
        return value if following is None else {**value, "next": following}

    def _page(
        self, entries: Mapping[str, Entry], after: str, shown: Callable[[Entry], dict[str, JsonValue] | None]
    ) -> tuple[list[JsonValue], str | None]:
        """Entries behind a key as far as one answer holds them, and the key behind which the next page begins."""
        page: list[JsonValue] = []
        left, last = self._answer_bytes, after
        for key in sorted(key for key in entries if key > after):
            size = len(key) + 2 * len(entries[key].value) + FRAME_MARGIN
            if size > self._answer_bytes:  # it fits into no answer: as if it were not there
                continue
            if len(page) >= MAX_PAGE or size > left:
                return page, last
            left -= size
            last = key
            if (value := shown(entries[key])) is not None:
                page.append(value)
        return page, None

    async def _all(self, pages: Pages, caller: Lifecycle, after: str) -> dict[str, Entry]:
        try:
            return dict(await pages.entries(caller, after))
        except _TROUBLE as error:
            raise self._unavailable(error) from None

    # ---- small reads ----

    async def task_epoch(self, called: Call) -> JsonValue:
        """The creation time of the task stream, for the takes of a holder (C8.1-06). Raises Refusal."""
        return {"epoch": await self._epoch()}

    async def lease_holder(self, called: Call) -> JsonValue:
        """Whose notices are notices (C8.1-47); no member when nobody holds the lease. Raises Refusal."""
        try:
            entry = await self._leases.get(buckets.DELIVERY_LEASE.build(shard=0))
            return {} if entry is None else {"holder": LeaseRow.decode(entry.value).holder}
        except (InvalidLease, *_TROUBLE) as error:
            raise self._unavailable(error) from None

    def _unavailable(self, error: BaseException) -> Refusal:
        self._plane.metrics.counter("delivery_mediated_trouble").inc()
        self._plane.log.warning("mediated_trouble", space=self._plane.space, error=type(error).__name__)
        return Refusal(Code.UNAVAILABLE, "it cannot be read now; ask again", Outcome.NOT_EXECUTED)


class Sized(NamedTuple):
    """A frame as an answer holds it, and a bound on its bytes."""

    value: dict[str, JsonValue]
    size: int


def framed(frame: Frame, answer_bytes: int) -> Sized:
    """A frame for an answer. One that fits into none is shown without its payload and headers, with its size: the
    reader sees that it is there and from whom, and settles it; it is not delivered for ever."""
    size = len(frame.subject) + 4 * len(frame.data) // 3 + FRAME_MARGIN
    # The broker takes header values that JSON has to write as six characters each.
    size += sum(HEADER_BYTES * (len(name) + len(value) + 1) for name, value in frame.headers.items())
    fits = len(frame.headers) <= _MAX_HEADERS and all(len(value) <= _MAX_HEADER for value in frame.headers.values())
    if fits and size <= answer_bytes:
        return Sized(frame_value(frame), size)
    value = frame_value(frame._replace(data=b"", headers={}))
    value["omitted"] = max(1, len(frame.data))
    return Sized(value, len(frame.subject) + FRAME_MARGIN)


def _members(args: JsonValue) -> dict[str, Any]:
    """The arguments, which the contract has judged."""
    return dict(args) if isinstance(args, Mapping) else {}


def _wait(wanted_ms: int, deadline_ms: int | None) -> float:
    """How long a first copy is waited for, in seconds: the answer has to be there before the caller stops waiting."""
    if deadline_ms is not None:
        wanted_ms = min(wanted_ms, deadline_ms - DEADLINE_MARGIN_MS)
    return max(0, wanted_ms) / 1000


def _source(args: Mapping[str, Any]) -> tuple[str, str]:
    """Source and role; a role stands exactly with the source of that name. Raises Refusal."""
    source, role = args["source"], args.get("role", "")
    if (source == "role") != bool(role) or (role and not GRAMMARS["role"].accepts(role)):
        raise Refusal(Code.BAD_REQUEST, "a role stands with the source 'role' and no other", Outcome.NOT_EXECUTED)
    return source, role


def _not_found(source: str) -> Refusal:
    return Refusal(Code.NOT_FOUND, f"this lifecycle has no durable for {source}", Outcome.NOT_EXECUTED)
