"""One logged-in connection of the soak: what it asks, and everything that it is told checked on arrival."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from cext.frame import MAX_LENGTH, Splitter
from sidecar.coordinator.engine.visibility import Visibility
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode, FrameType, GapReason
from sidecar.coordinator.wire.limits import Limits
from sidecar.coordinator.wire.table import FRAME_TABLE
from tests.soak.streams import Healing, Reading, Stream
from tests.soak.truth import Failed, Stretch, Truth

PATIENCE = 30.0
"""Seconds within which everything that is due has come, on a machine that is busy with other things."""
CHUNK = 65_536

Codes = frozenset[ErrorCode]


class Link:
    """One socket, as bytes and as frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.splitter = Splitter([MAX_LENGTH] * 256)

    @classmethod
    async def open(cls, path: str) -> Link:
        return cls(*await asyncio.open_unix_connection(path, limit=CHUNK))

    def send(self, *parts: bytes | fr.Frame) -> None:
        if not self.writer.is_closing():
            self.writer.write(b"".join(part if isinstance(part, bytes) else part.encode() for part in parts))

    async def next(self, selected: Limits | None = None) -> fr.Frame | None:
        """The next frame; None at the end of the connection."""
        while (found := self.splitter.next_frame()) is None:
            try:
                data = await asyncio.wait_for(self.reader.read(CHUNK), PATIENCE)
            except ConnectionError:
                data = b""
            if not data:
                return None
            self.splitter.feed(data)
        return fr.decode_frame(FrameType(found[0]), found[1], selected)

    def abort(self) -> None:
        """Gone at once, with whatever was not read or written."""
        self.writer.transport.abort()


@dataclass
class Asked:
    """One open request."""

    frame: fr.Frame
    allowed: Codes
    """Scoped refusals that it may get."""
    done: asyncio.Future[fr.Frame]
    continued: bool = False


@dataclass
class Talk:
    """One active connection."""

    truth: Truth
    name: str
    key_id: bytes
    link: Link
    welcome: fr.CoordHelloOk
    selected: Limits
    began: float
    requests: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    asked: dict[int, Asked] = field(default_factory=dict)
    streams: dict[bytes, Stream] = field(default_factory=dict)
    readings: dict[bytes, Reading] = field(default_factory=dict)
    healings: dict[bytes, Healing] = field(default_factory=dict)
    pings: deque[int] = field(default_factory=deque)
    history: deque[str] = field(default_factory=lambda: deque(maxlen=40))
    doom: Codes | None = None
    """Codes of which one ends it, because of what this side did."""
    left: bool = False
    """This side ended it."""
    broken: bool = False
    """A write met a closed socket, and what could still have been read is lost."""
    last: ErrorCode | None = None
    recorder: bool = False
    """It sees everything and leaves nothing out."""
    chunk: int = CHUNK
    pause: float = 0.0
    """Seconds between two reads."""
    reading: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    on_snapshot: Callable[[Reading], None] | None = None

    def __post_init__(self) -> None:
        grant = self.welcome.workload_grant
        self.scopes = int(grant.scopes)
        self.capabilities = self.welcome.negotiated_capabilities
        self.visibility = Visibility.of(self.scopes, self.capabilities, self.key_id)
        self.guard: Any = self.welcome.activation_certificate.guard()
        self.reading.set()
        self.task = asyncio.create_task(self._read_forever())

    # ---- saying ----

    def note(self, what: str) -> None:
        self.history.append(f"{self.truth.elapsed:.2f} {what}")

    def ask(self, frame: fr.Frame, allowed: Iterable[ErrorCode] = ()) -> asyncio.Future[fr.Frame]:
        """Send a request; its terminal reply, which is an error only if it is allowed to be one."""
        request = frame.fields.u32(1)
        future: asyncio.Future[fr.Frame] = asyncio.get_running_loop().create_future()
        self.asked[request] = Asked(frame, frozenset(allowed), future)
        self.note(f"> {type(frame).__name__} {request}")
        self.link.send(frame)
        return future

    def expect(self, frame: fr.Frame, allowed: Iterable[ErrorCode]) -> None:
        """A request that goes out in another way."""
        self.asked[frame.fields.u32(1)] = Asked(frame, frozenset(allowed), asyncio.get_running_loop().create_future())

    def ping(self, count: int = 1) -> None:
        nonces = [len(self.pings) + number for number in range(count)]
        self.pings.extend(nonces)
        self.link.send(*(fr.CoordPing(nonce=nonce) for nonce in nonces))

    # ---- hearing ----

    async def _read_forever(self) -> None:
        try:
            self._hear_all()
            while True:
                await self.reading.wait()
                if self.pause:
                    await asyncio.sleep(self.pause)
                data = await self.link.reader.read(self.chunk)
                if not data:
                    break
                self.link.splitter.feed(data)
                self._hear_all()
        except ConnectionError:
            self.broken = True
        except Exception as error:
            self.truth.fail(error, self.name, tuple(self.history))
        finally:
            self._over()

    def _hear_all(self) -> None:
        while (found := self.link.splitter.next_frame()) is not None:
            self.hear(fr.decode_frame(FrameType(found[0]), found[1], self.selected), len(found[1]) + 5)

    def _over(self) -> None:
        for id_ in list(self.streams):
            self.claim(id_)
        for asked in self.asked.values():
            asked.done.cancel()
        self.link.writer.close()
        self.truth.lives += 1
        try:
            self._check_end()
        except Failed as error:
            self.truth.fail(error, self.name, tuple(self.history))
        self.ended.set()

    def _check_end(self) -> None:
        """The connection ended for a reason, and the reason was told (P13-05)."""
        told = self.broken or self.last is ErrorCode.AUTHENTICATION_FAILED
        refused = told and self.truth.refusable(self.key_id, self.began)
        if self.left or refused or self.truth.over.is_set():
            return
        if self.doom is None:
            raise Failed(f"the connection was closed for no reason, the last error is {self.last!r}")
        if self.last not in self.doom:
            raise Failed(f"the connection was closed as {self.last!r} and not as one of {set(self.doom)}")

    def hear(self, frame: fr.Frame, size: int) -> None:
        """One frame."""
        if isinstance(frame, fr.CoordEvent):
            self._event(frame, size)
            return
        if isinstance(frame, fr.CoordPong):
            if not self.pings or self.pings.popleft() != frame.nonce:
                raise Failed("a pong that answers no ping, or not in its turn")
            return
        self.note(f"< {type(frame).__name__} {getattr(frame, 'request_id', '')} {getattr(frame, 'code', '')}")
        if isinstance(frame, fr.AuthorityRenewed):
            if frame.activation_certificate.guard() != self.guard:
                raise Failed("a renewal changed the guard")
        elif isinstance(frame, fr.Gap):
            self._gap(frame)
        elif isinstance(frame, fr.CoordErrorFrame):
            self._error(frame)
        else:
            self._reply(frame)

    def _error(self, frame: fr.CoordErrorFrame) -> None:
        self.last = frame.code
        self.truth.seen[f"error {frame.code.name}"] += 1
        fatal = self.doom is not None and frame.code in self.doom
        asked = None if frame.request_id is None else self.asked.get(frame.request_id)
        if asked is not None and frame.request_id is not None:
            if frame.code in asked.allowed or fatal:
                del self.asked[frame.request_id]
                if not asked.done.done():
                    asked.done.set_result(frame)
                return
            raise Failed(f"{type(asked.frame).__name__} was refused as {frame.code.name}: {frame.message}")
        if not fatal and not (
            frame.code is ErrorCode.AUTHENTICATION_FAILED and self.truth.refusable(self.key_id, self.began)
        ):
            raise Failed(f"{frame.code.name} answers nothing that was asked: {frame.message}")

    def _reply(self, frame: Any) -> None:
        """Exactly one terminal reply of a legal type for each request (P13-08)."""
        asked = self.asked.get(frame.request_id)
        if asked is None:
            raise Failed(f"{type(frame).__name__} for request {frame.request_id}, which is not open")
        if frame.TYPE not in FRAME_TABLE[asked.frame.TYPE].replies:
            raise Failed(f"{type(frame).__name__} answers {type(asked.frame).__name__}")
        self.truth.seen[type(frame).__name__] += 1
        if self._take(asked, frame):
            if asked.continued:
                raise Failed(f"{type(frame).__name__} where an END is due")
            asked.continued = True
            return
        if asked.continued and not isinstance(frame, fr.SnapshotEnd | fr.ReplayEnd):
            raise Failed(f"{type(frame).__name__} where an END is due")
        del self.asked[frame.request_id]
        if not asked.done.done():
            asked.done.set_result(frame)

    def _take(self, asked: Asked, frame: Any) -> bool:
        """Follow what the reply means; whether another frame of the same request is due."""
        if isinstance(frame, fr.SnapshotBegin):
            return self._begin(asked.frame, frame)
        if isinstance(frame, fr.SnapshotPage):
            reading = self.readings.get(frame.snapshot_id)
            if reading is not None:
                reading.page(frame)
            return frame.next_cursor is None
        if isinstance(frame, fr.SnapshotEnd):
            reading = self.readings.get(frame.snapshot_id)
            if reading is not None:
                reading.end(frame)
                if self.on_snapshot is not None:
                    self.on_snapshot(reading)
        elif isinstance(frame, fr.ReplayBegin):
            assert isinstance(asked.frame, fr.OpenReplay)
            healing = Healing(frame, int(asked.frame.after_event_sequence), self.guard, time.monotonic())
            self.healings[frame.replay_id] = healing
            return frame.first_cursor is None
        elif isinstance(frame, fr.ReplayPage):
            if (known := self.healings.get(frame.replay_id)) is not None:
                known.page(frame, self.truth)
            return frame.next_cursor is None
        elif isinstance(frame, fr.ReplayEnd):
            if (known := self.healings.get(frame.replay_id)) is not None:
                known.end(frame)
        elif isinstance(frame, fr.Subscribed):
            assert isinstance(asked.frame, fr.Subscribe)
            stream = Stream(int(asked.frame.after_event_sequence))
            stream.give(asked.frame.initial_credit_count, asked.frame.initial_credit_bytes)
            self.streams[frame.subscription_id] = stream
        elif isinstance(frame, fr.Ack):
            self._applied(asked.frame)
        return False

    def _begin(self, asked: fr.Frame, frame: fr.SnapshotBegin) -> bool:
        assert isinstance(asked, fr.OpenSnapshot)
        if (frame.subscription_id is not None) != asked.reserve_subscription:
            raise Failed("a subscription was reserved that was not asked for, or none that was")
        if frame.authority_guard != self.guard:
            raise Failed("a snapshot of another authority")
        self.readings[frame.snapshot_id] = Reading(frame, time.monotonic())
        if asked.replace_paused_subscription is not None:
            self.forget(asked.replace_paused_subscription)
        if frame.subscription_id is not None:
            self.streams[frame.subscription_id] = Stream(int(frame.base_event_sequence), live=False)
        return frame.first_cursor is None

    def _applied(self, asked: fr.Frame) -> None:
        if isinstance(asked, fr.SnapshotApplied):
            self.readings.pop(asked.snapshot_id, None)
            if asked.subscription_id is not None:
                stream = self.streams[asked.subscription_id]
                if stream.paused or stream.live:
                    raise Failed("a reservation that lost continuity, or none at all, went live")
                stream.live = True
                stream.give(asked.initial_credit_count, asked.initial_credit_bytes)
        elif isinstance(asked, fr.ReplayApplied):
            healing = self.healings.pop(asked.replay_id)
            stream = self.streams[asked.subscription_id]
            if not stream.paused:
                raise Failed("a replay was applied to what is not paused")
            self._claim(stream.event, int(healing.begin.replay_cut), tuple(healing.sequences))
            stream.heal(int(healing.begin.replay_cut))
            stream.give(asked.initial_credit_count, asked.initial_credit_bytes)
            self.truth.seen["healed by replay"] += 1

    # ---- streams ----

    def _event(self, event: fr.CoordEvent, size: int) -> None:
        stream = self.streams.get(event.subscription_id)
        if stream is None:
            raise Failed("an event of a subscription that is not there")
        stream.event_came(event, size)
        self.truth.told(event)
        self.truth.seen["CoordEvent"] += 1
        if self.recorder:
            if int(event.event_sequence) != self.truth.recorded + 1:
                raise Failed(f"event {event.event_sequence} follows {self.truth.recorded} for one who sees everything")
            self.truth.recorded = int(event.event_sequence)
            stream.got.clear()
        elif len(stream.got) > 200:
            self.claim(event.subscription_id)

    def _gap(self, gap: fr.Gap) -> None:
        stream = self.streams.get(gap.subscription_id)
        if stream is None:
            raise Failed("a gap of a subscription that is not there")
        self.truth.seen[f"gap {gap.reason.name}"] += 1
        farewell = gap.reason in (GapReason.EPOCH_CHANGED, GapReason.GRANT_REVOKED)
        lost = [id_ for id_, one in self.healings.items() if one.begin.subscription_id == gap.subscription_id]
        retention = gap.reason is GapReason.RETENTION
        if stream.paused and not (lost or farewell or retention or stream.abandoned):
            raise Failed("a second gap of a paused subscription")
        applied = [self.healings.pop(id_) for id_ in lost]
        cut = (int(gap.last_contiguous_delivery), int(gap.last_contiguous_event))
        # The ACK of an applied replay may have fallen with the connection.
        healed = [(stream.delivery, int(healing.begin.replay_cut)) for healing in applied if healing.ended]
        if cut != (stream.delivery, stream.event) and not (farewell and cut in healed):
            raise Failed(f"the gap names {cut}, the last delivery was {(stream.delivery, stream.event)}")
        self.claim(gap.subscription_id)
        for reading in self.readings.values():
            reading.lost |= reading.begin.subscription_id == gap.subscription_id
        stream.outlived, stream.lost = retention, stream.paused and retention
        stream.pause()

    def claim(self, id_: bytes) -> None:
        """What came since the last claim is all that there was."""
        stream = self.streams[id_]
        if not self.recorder:
            self._claim(stream.start, stream.event, tuple(stream.got))
        stream.start = stream.event
        stream.got.clear()

    def _claim(self, after: int, until: int, got: tuple[int, ...]) -> None:
        self.truth.claim(Stretch(self.visibility, after, until, got, (self.name, *self.history)))

    def forget(self, id_: bytes) -> None:
        """A subscription was replaced."""
        self.claim(id_)
        del self.streams[id_]

    # ---- ending ----

    async def wait_end(self) -> None:
        """The server closes."""
        await asyncio.wait_for(self.ended.wait(), PATIENCE)

    def hurry(self) -> None:
        """Read everything as it comes from now on."""
        self.pause, self.chunk = 0.0, CHUNK
        self.reading.set()

    async def settle(self) -> None:
        """Every request and every ping is answered while the connection lives."""
        self.hurry()
        due = time.monotonic() + PATIENCE
        while (self.asked or self.pings) and not self.ended.is_set():
            if time.monotonic() > due:
                self.truth.fail(
                    Failed(f"never answered: {sorted(self.asked)}, {len(self.pings)} pings"),
                    self.name,
                    tuple(self.history),
                )
                return
            await asyncio.sleep(0.02)

    async def leave(self) -> None:
        """Go, in good order."""
        self.left = True
        self.link.writer.close()
        self.reading.set()
        self.task.cancel()
        await asyncio.wait([self.task])
