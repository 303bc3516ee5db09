"""The records of anycast requests at the broker: takes, status and cancels, notices, and the sweep (C8.1).

Rows are written by compare-and-set: of a take and a cancel that race exactly one wins (C8.1-25). A take is answered
when its row stands. Its notice is owed in the row until it is published, under an id that makes a second one a
duplicate, so that a death between any two steps loses nothing and doubles nothing (C8.1-45, C8.1-46).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from nats.aio.msg import Msg

from sidecar.base.strictjson import JsonValue, canonical
from sidecar.rails.connection import ConnectionFault, NotConnected, Stopped
from sidecar.rails.connection.kv import KeyExists, KeyValue, Unreadable, WrongRevision
from sidecar.rails.connection.publishing import StoreRefused, store
from sidecar.rails.endpoint.call import Call, Handler
from sidecar.rails.endpoint.codes import Code as EndpointCode
from sidecar.rails.endpoint.codes import Outcome, Refusal
from sidecar.rails.envelopes.message import DataPart, EndpointRef, Message, TextPart, encode, message_headers
from sidecar.rails.names import InvalidName, Principal, api, buckets, streams, subjects
from sidecar.rails.names.headers import ANYCAST_NOTICE, carries_provenance
from sidecar.rails.names.limits import ANYCAST_SWEEP_SECONDS
from sidecar.rails.planes.delivery import anycast
from sidecar.rails.planes.delivery.anycast import Code, Record, Removal, State
from sidecar.rails.planes.delivery.plane import Plane

TAKE_QUEUE: Final = "take"
"""Queue group of the serve filter (OPEN C8.1-e)."""
ATTEMPTS: Final = 8
"""Writes that are tried in a row when others write the same row; then ``busy``."""
AT_ONCE: Final = 128
"""Takes that are decided at a time; those beyond are answered ``busy``."""
SWEPT_AT_ONCE: Final = 32
"""Rows that a sweep looks at beside each other."""
API_SECONDS: Final = 5.0
NOTICE_RETRY_SECONDS: Final = 5.0
MAX_UNTOLD: Final = 1024
"""Rows that are known to owe a notice; the sweep finds the others."""
_MAX_NOTICE: Final = 64 * 1024
_NO_MESSAGE: Final = 10037
_DAEMON_NAME: Final = "delivery"
_SWEEPER: Final = "s"
_TROUBLE: Final = (ConnectionFault, StoreRefused, Unreadable, TimeoutError)


class Stored(NamedTuple):
    """What stands at a sequence of the task stream: its creation time, and the request (None: nothing there)."""

    epoch: str
    request: anycast.Request | None


class Undecided(Exception):  # noqa: N818 - a state
    """The broker did not answer, or others keep changing the row: ask again later."""


class AnycastDesk:
    """Everything about the anycast records of one space. ``serve``, ``tell`` and ``sweep_for_ever`` are loops."""

    def __init__(self, plane: Plane, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._plane, self._sleep = plane, sleep
        self._connection = plane.connection
        self._bucket = KeyValue(plane.connection, buckets.ANYCAST, plane.space)
        self._task = streams.TASK.stream(plane.space)
        self._untold: OrderedDict[str, None] = OrderedDict()
        self._wake = asyncio.Event()
        self._working: set[asyncio.Task[None]] = set()

    # ---- takes ----

    async def serve(self, bound: asyncio.Event) -> None:
        """Answer takes until cancelled; ``bound`` is set when the broker has taken the subscription (C8.1-57)."""
        everything = subjects.TAKE.filter(space=self._plane.space)
        subscription = await self._connection.subscribe(everything, TAKE_QUEUE)
        bound.set()
        try:
            while True:
                self._accept(await subscription.next())
        finally:
            await subscription.close()
            for task in self._working:
                task.cancel()
            await asyncio.gather(*self._working, return_exceptions=True)

    def _accept(self, message: Msg) -> None:
        values = self._asked(message)
        if values is None:
            self._plane.metrics.counter("delivery_takes", "dropped").inc()
            self._plane.log.warning("anycast_take_dropped", space=self._plane.space)
            return
        task = asyncio.create_task(self._answer(message, values, busy=len(self._working) >= AT_ONCE))
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    def _asked(self, message: Msg) -> dict[str, str] | None:
        """Fields of the take subject; None for what is not answered: a reply target that is not below the take itself,
        and stored bytes that a read was made to put here (C8.1-04)."""
        if carries_provenance(message.headers or {}):
            return None
        try:
            values = subjects.TAKE.parse(message.subject)
            reply = subjects.TAKE_REPLY.parse(message.reply)
        except InvalidName:
            return None
        return values if all(reply[name] == value for name, value in values.items()) else None

    async def _answer(self, message: Msg, values: dict[str, str], *, busy: bool) -> None:
        begun = self._plane.clock().mono
        record: Record | None = None
        try:
            code, record = (Code.BUSY, None) if busy else await self.take(values, message.data)
        except Undecided:
            code = Code.BUSY
        outcome = "ok" if code is None else code.value
        self._plane.metrics.counter("delivery_takes", outcome).inc()
        self._plane.metrics.histogram("delivery_take_seconds").observe(self._plane.clock().mono - begun)
        answer: dict[str, JsonValue] = {"ok": True}
        if code is not None:
            answer = {"ok": False, "code": code.value, "error": anycast.EXPLAINED[code]}
        with contextlib.suppress(NotConnected):  # the holder asks again on its next link
            await self._connection.send(message.reply, canonical(answer))
        if record is not None and record.owed:
            await self._tell(record.key)

    async def take(self, values: Mapping[str, str], data: bytes) -> tuple[Code | None, Record | None]:
        """Decide on a take, ``values`` being the fields of its subject: the refusal, or None and the row that was
        written. Raises Undecided."""
        holder = Principal(values["owner"], values["actor"])
        wanted = anycast.read_take(values["role"], holder, data)
        if wanted is None:
            return Code.MISMATCH, None
        for _ in range(ATTEMPTS):
            stored = await self._stored(wanted.sequence)
            if stored.epoch != wanted.epoch:
                return Code.MISMATCH, None
            record, revision = await self._record(stored.epoch, wanted.sequence)
            decided = anycast.take(record, stored.request, wanted, self._now_ms())
            if not isinstance(decided, Record):
                return decided, None
            if await self._write(decided, revision) is not None:
                return None, decided
        raise Undecided

    # ---- reads and writes ----

    def _now_ms(self) -> int:
        return int(self._plane.clock().wall * 1000)

    async def _api(self, subject: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        data = b"" if body is None else json.dumps(body).encode()
        try:
            answer = json.loads((await self._connection.request(subject, data, seconds=API_SECONDS)).data)
        except Stopped:
            raise
        except (*_TROUBLE, ValueError) as error:
            raise self._undecided(error) from error
        return answer if isinstance(answer, dict) else {}

    async def epoch(self) -> str:
        """The creation time of the task stream, exactly as the broker says it (OPEN C8.1-d). Raises Undecided."""
        answer = await self._api(api.STREAM_INFO.build(stream=self._task))
        created = answer.get("created")
        if not isinstance(created, str):
            raise self._undecided(None)
        return created

    async def _stored(self, sequence: int) -> Stored:
        """What stands at a sequence, of one and the same stream: its creation time is read before and after, and all
        of it again when the stream was made anew in between (C8.1-09). Raises Undecided."""
        before = await self.epoch()
        for _ in range(ATTEMPTS):
            answer = await self._api(api.MESSAGE_GET.build(stream=self._task), {"seq": sequence})
            after = await self.epoch()
            if after == before:
                return Stored(after, self._request(answer))
            before = after
        raise Undecided

    def _request(self, answer: dict[str, Any]) -> anycast.Request | None:
        error = answer.get("error")
        if isinstance(error, dict) and error.get("err_code") == _NO_MESSAGE:
            return None
        try:
            message = answer["message"]
            return anycast.read_request(message["subject"], base64.b64decode(message.get("data") or "", validate=True))
        except (KeyError, TypeError, AttributeError, binascii.Error):
            raise self._undecided(None) from None

    async def _record(self, epoch: str, sequence: int) -> tuple[Record | None, int]:
        return await self._row(anycast.key_of(epoch, sequence))

    async def _row(self, key: str) -> tuple[Record | None, int]:
        """The row and its revision; 0 for none. Raises Undecided, also for a row that cannot be read."""
        try:
            entry = await self._bucket.get(key)
            return (None, 0) if entry is None else (Record.decode(entry.value), entry.revision)
        except Unreadable as error:
            raise self._undecided(error) from error
        except anycast.InvalidRecord as error:
            self._plane.metrics.counter("delivery_anycast_invalid").inc()
            self._plane.log.error("anycast_row_invalid", space=self._plane.space, problem=str(error))
            raise Undecided from None

    async def _write(self, record: Record, revision: int) -> int | None:
        """The new revision; None when somebody else wrote first. Raises Undecided: it may have been written."""
        try:
            if revision == 0:
                return await self._bucket.create(record.key, record.encode())
            return await self._bucket.update(record.key, record.encode(), revision)
        except (KeyExists, WrongRevision):
            self._plane.metrics.counter("delivery_anycast_conflicts").inc()
            return None
        except Stopped:
            raise
        except _TROUBLE as error:
            raise self._undecided(error) from error

    def _undecided(self, error: BaseException | None) -> Undecided:
        self._plane.metrics.counter("delivery_anycast_trouble").inc()
        self._plane.log.warning(
            "anycast_trouble", space=self._plane.space, error="form" if error is None else type(error).__name__
        )
        return Undecided()

    # ---- commands ----

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """Commands of the delivery endpoint (C8.1-34, C8.1-41, OPEN C8.1-a)."""
        return {
            "anycast-status": self._asked_status,
            "anycast-cancel": self._asked_cancel,
            "anycast-takes": self._takes,
        }

    async def _asked_status(self, called: Call) -> JsonValue:
        return await self.status(called.caller.principal, *_request_of(called.args))

    async def _asked_cancel(self, called: Call) -> JsonValue:
        return await self.cancel(called.caller.principal, *_request_of(called.args))

    async def _takes(self, called: Call) -> JsonValue:
        return {"takes": True}

    async def epoch_or_refusal(self) -> str:
        """``epoch`` for a caller. Raises Refusal."""
        try:
            return await self.epoch()
        except Undecided:
            raise _later(Outcome.NOT_EXECUTED) from None

    async def status(self, caller: Principal, sequence: int, wanted_id: str | None) -> dict[str, JsonValue]:
        """What the caller is told of a request (C8.1-34..36). Raises Refusal."""
        try:
            stored = await self._stored(sequence)
            record, _ = await self._record(stored.epoch, sequence)
        except Undecided:
            raise _later(Outcome.NOT_EXECUTED) from None
        return anycast.status(record, stored.request, caller, sequence, wanted_id)

    async def cancel(self, caller: Principal, sequence: int, wanted_id: str | None) -> dict[str, JsonValue]:
        """Cancel a request that still waits; the status that it has then (C8.1-38..40, OPEN C8.1-b). Raises Refusal."""
        outcome = Outcome.NOT_EXECUTED
        try:
            for _ in range(ATTEMPTS):
                stored = await self._stored(sequence)
                record, revision = await self._record(stored.epoch, sequence)
                told = anycast.status(record, stored.request, caller, sequence, wanted_id)
                if record is None and told["state"] == "waiting" and stored.request is not None:
                    record = anycast.cancelled(stored.request, stored.epoch, sequence, self._now_ms())
                    outcome = Outcome.UNKNOWN
                    written = await self._write(record, 0)
                    if written is None:
                        continue
                    revision = written
                elif record is None or told["state"] != "cancelled" or record.removal is not Removal.PENDING:
                    return told
                record = await self._remove(record, revision)
                return anycast.status(record, None, caller, sequence, wanted_id)
        except Undecided:
            pass
        raise _later(outcome)

    async def _remove(self, record: Record, revision: int) -> Record:
        """Take a cancelled request off the queue and note how it left; the row as it is then (C8.1-37)."""
        how = Removal.ALREADY_GONE
        if await self.epoch() == record.epoch:
            body = {"seq": record.sequence, "no_erase": True}
            answer = await self._api(api.MESSAGE_DELETE.build(stream=self._task), body)
            if answer.get("success") is True:
                how = Removal.DELETED
            elif await self._queued(record):
                raise self._undecided(None)
        done = record.removed(how)
        if await self._write(done, revision) is None:
            raise Undecided
        self._plane.metrics.counter("delivery_cancels", how.value).inc()
        return done

    async def _queued(self, record: Record) -> bool:
        stored = await self._stored(record.sequence)
        return stored.epoch == record.epoch and stored.request is not None

    # ---- notices ----

    async def tell(self, bound: asyncio.Event) -> None:
        """Publish what is owed, again and again until it is out; runs until cancelled."""
        bound.set()
        while True:
            await self._wake.wait()
            self._wake.clear()
            for key in list(self._untold):
                await self._tell(key)
            if self._untold:
                await self._sleep(NOTICE_RETRY_SECONDS)
                self._wake.set()

    async def _tell(self, key: str) -> None:
        """Publish the notices of one row and strike them out; what does not succeed is tried again by ``tell``."""
        self._untold[key] = None
        try:
            for _ in range(ATTEMPTS):
                record, revision = await self._row(key)
                if record is None or not record.owed:
                    break
                for owed in record.owed:
                    await self._publish(record, owed)
                    record = record.published(owed.n)
                if await self._write(record, revision) is not None:
                    break
            else:
                raise Undecided
        except Undecided:
            self._remember()
            return
        self._untold.pop(key, None)
        self._plane.metrics.gauge("delivery_notices_owed").set(len(self._untold))

    def _remember(self) -> None:
        while len(self._untold) > MAX_UNTOLD:
            self._untold.popitem(last=False)
        self._plane.metrics.gauge("delivery_notices_owed").set(len(self._untold))
        self._wake.set()

    async def _publish(self, record: Record, owed: anycast.Owed) -> None:
        """One notice as a direct message of the daemon's own principal (C8.1-43..45). Raises Undecided."""
        own = self._plane.lifecycle.principal
        to = Principal.from_dot(record.sender)
        data: JsonValue = {ANYCAST_NOTICE: anycast.notice_data(record, owed)}
        message = Message(
            id=record.notice_id(owed.n),
            ts=self._now_ms(),
            space=self._plane.space,
            sender=EndpointRef(own.dot, _DAEMON_NAME),
            parts=(TextPart(anycast.notice_text(record, owed)), DataPart(data)),
            to=to.dot,
        )
        subject = subjects.INST.build(
            space=self._plane.space, to_owner=to.owner, to_actor=to.actor, owner=own.owner, actor=own.actor
        )
        try:
            stored = await store(
                self._connection, subject, encode(message, max_payload=_MAX_NOTICE), message_headers(message.id)
            )
        except Stopped:
            raise
        except _TROUBLE as error:
            raise self._undecided(error) from error
        self._plane.metrics.counter("delivery_notices", "duplicate" if stored.duplicate else "published").inc()

    # ---- the sweep ----

    async def sweep_for_ever(self, bound: asyncio.Event) -> None:
        """Look at every row now and every ten minutes after (C8.1-31); runs until cancelled."""
        bound.set()
        while True:
            try:
                await self.sweep()
            except Undecided:
                self._plane.metrics.counter("delivery_sweeps", "failed").inc()
            else:
                self._plane.metrics.counter("delivery_sweeps", "done").inc()
            await self._sleep(ANYCAST_SWEEP_SECONDS)

    async def sweep(self) -> None:
        """Finish what is pending, publish what is owed, and let rows go a day after their request left (C8.1-30).

        A row that cannot be read or written now is left for the next sweep. Raises Undecided when the rows cannot be
        listed.
        """
        begun = self._plane.clock().mono
        keys = await self._keys()
        for at in range(0, len(keys), SWEPT_AT_ONCE):
            await asyncio.gather(*map(self._sweep_row, keys[at : at + SWEPT_AT_ONCE]))
        self._plane.metrics.gauge("delivery_anycast_rows").set(len(keys))
        self._plane.metrics.histogram("delivery_sweep_seconds").observe(self._plane.clock().mono - begun)

    async def _keys(self) -> list[str]:
        """The keys of all rows, from a watch that ends when it has seen what is there. Raises Undecided."""
        watch = self._bucket.watch(f"{self._plane.lifecycle.uid}{_SWEEPER}{self._plane.entropy(4).hex()}")
        primed = asyncio.create_task(watch.primed.wait())
        found: dict[str, None] = {}
        try:
            while not primed.done():
                following = asyncio.create_task(watch.next())
                await asyncio.wait((following, primed), return_when=asyncio.FIRST_COMPLETED)
                if not following.done():
                    following.cancel()
                    break
                entry = following.result()
                if not entry.deleted:
                    found[entry.key] = None
        except _TROUBLE as error:
            raise self._undecided(error) from error
        finally:
            primed.cancel()
            await watch.close()
        return list(found)

    async def _sweep_row(self, key: str) -> None:
        try:
            record, revision = await self._row(key)
            if record is None:
                return
            if record.owed:
                await self._tell(key)
                record, revision = await self._row(key)
                if record is None:
                    return
            queued = await self._queued(record)
            if record.state is State.CANCELLED and record.removal is Removal.PENDING:
                await self._remove(record, revision)
            elif queued and record.off_queue_since is not None:
                await self._write(record.on_queue(), revision)
            elif not queued and record.off_queue_since is None:
                await self._write(record.off_queue(self._now_ms()), revision)
            elif not queued and record.over(self._now_ms()):
                await self._bucket.delete(key, revision)
        except (Undecided, WrongRevision):
            self._plane.metrics.counter("delivery_anycast_conflicts").inc()


def _request_of(args: JsonValue) -> tuple[int, str | None]:
    """Sequence and id, which the contract has judged."""
    value = args if isinstance(args, Mapping) else {}
    sequence, wanted = value.get("seq"), value.get("id")
    if type(sequence) is not int:
        raise Refusal(EndpointCode.BAD_REQUEST, "seq is no sequence", Outcome.NOT_EXECUTED)
    return sequence, wanted if isinstance(wanted, str) else None


def _later(outcome: Outcome) -> Refusal:
    return Refusal(EndpointCode.UNAVAILABLE, "the records cannot be read or written now; ask again", outcome)
