"""What observers and admins read: posts as they come, and history (CD-11..CD-14, CB-61, CB-67, CB-68).

History is read in steps. A step makes one consumer under a name of this reader, with a description that no other step
has, reads one page through it and deletes it. Whatever else is found under such a name is not touched.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, NamedTuple

from nats.aio.msg import Msg

from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import (
    Connection,
    ConnectionFault,
    PermissionViolation,
    Subscription,
    SubscriptionClosed,
)
from sidecar.rails.connection.streams import status_of
from sidecar.rails.envelopes.receive import Received, Rejected, Source, receive
from sidecar.rails.messaging.frames import Frame, frame_of
from sidecar.rails.messaging.history import ALREADY_EXISTS, HistoryUnreadable
from sidecar.rails.messaging.slots import NoFreeName, Slots
from sidecar.rails.names import InvalidName, api, consumers, streams, subjects
from sidecar.rails.names.limits import HISTORY_READER_SLOTS
from sidecar.rails.names.subjects import delivery_of

__all__ = ["HistoryReader", "HistoryRefused", "HistoryUnreadable", "NoFreeName", "Page", "Tap", "Tapped"]

PAGE: Final = 256
"""Messages of one step."""
THRESHOLD: Final = 30.0
"""Seconds after which the broker removes a consumer of this reader that nobody uses."""
_STEP_SECONDS: Final = 10.0
_NANO: Final = 10**9
_MARGIN: Final = 1.5
_NO_CONSUMER: Final = 10014


class HistoryRefused(HistoryUnreadable):
    """The credential has not the rows of a history reader: it has to be minted again (CD-14)."""


class Page(NamedTuple):
    """One step: frames in stream order, the sequence to go on ``after``, and whether the end was reached."""

    frames: tuple[Frame, ...]
    after: int
    complete: bool


class HistoryReader:
    """History of CHAT for observers and admins, of DM for admins. Steps are taken one at a time.

    ``reader`` is the credential's own nkey, which its grants name (CD-12). ``clock`` is monotonic, in seconds.
    """

    def __init__(
        self,
        connection: Connection,
        space: str,
        reader: str,
        *,
        metrics: Metrics | None = None,
        log: Log | None = None,
        clock: Callable[[], float] = time.monotonic,
        entropy: Callable[[int], bytes] = os.urandom,
        threshold: float = THRESHOLD,
        page: int = PAGE,
    ) -> None:
        self._connection, self._space, self._reader = connection, space, reader
        self._metrics, self._log = metrics, log
        self._clock, self._entropy = clock, entropy
        self._threshold, self._page = threshold, page
        # A step goes on for a while after the broker's last word on it, so a name rests longer than the threshold.
        self._slots = {one: Slots(threshold * _MARGIN) for one in (streams.CHAT, streams.DM)}
        self._turn = asyncio.Lock()

    def chat(self, channel: str, *, after: int = 0, up_to: int | None = None) -> AsyncIterator[Frame]:
        """Posts of a channel or pattern behind a sequence. Raises HistoryUnreadable, NoFreeName, InvalidName."""
        return self._all(streams.CHAT, subjects.CHAT.filter(space=self._space, channel=channel), after, up_to)

    def direct(self, *, after: int = 0, up_to: int | None = None) -> AsyncIterator[Frame]:
        """Direct messages of the space (admins only). Raises as :meth:`chat`."""
        return self._all(streams.DM, subjects.INST.subtree(space=self._space), after, up_to)

    async def _all(self, stream: streams.Stream, pattern: str, after: int, up_to: int | None) -> AsyncIterator[Frame]:
        while True:
            page = await self.step(stream, pattern, after=after)
            for frame in page.frames:
                if up_to is not None and frame.sequence > up_to:
                    return
                yield frame
            after = page.after
            if page.complete or (up_to is not None and after >= up_to):
                return

    async def step(self, stream: streams.Stream, pattern: str, *, after: int = 0) -> Page:
        """One page. Raises HistoryUnreadable, HistoryRefused, NoFreeName."""
        async with self._turn:
            try:
                async with asyncio.timeout(_STEP_SECONDS):
                    page = await self._step(stream, pattern, after)
            except PermissionViolation as error:
                self._count("refused")
                raise HistoryRefused(
                    f"this credential cannot read history ({error}); mint it again with the profile's present rows"
                ) from None
            except (ConnectionFault, TimeoutError) as error:
                self._count("failed")
                raise HistoryUnreadable(f"the step did not complete: {error or 'no answer in time'}") from None
            except NoFreeName:
                self._count("no_name")
                raise
            except HistoryUnreadable:
                self._count("failed")
                raise
        self._count("read")
        return page

    async def _step(self, stream: streams.Stream, pattern: str, after: int) -> Page:
        description = f"{self._reader}:{self._entropy(16).hex()}"
        name, slot, pending = await self._make(stream, pattern, after, description)
        slots = self._slots[stream]
        # Until the broker says that it is gone, something may stand under the name.
        slots.leave(slot, self._clock())
        wanted = min(pending, self._page)
        frames = await self._pull(stream.stream(self._space), name, wanted) if wanted else []
        await self._end(stream, name, slot, description)
        if wanted and not frames:
            raise HistoryUnreadable("the broker gave none of the messages that it has")
        last = frames[-1].sequence if frames else after
        return Page(tuple(frames), last, pending <= wanted)

    async def _make(self, stream: streams.Stream, pattern: str, after: int, description: str) -> tuple[str, int, int]:
        """The consumer of this step: name, slot, and how many messages wait for it."""
        slots = self._slots[stream]
        for _ in range(HISTORY_READER_SLOTS):
            slot = slots.take(self._clock())
            slots.leave(slot, self._clock())
            name = consumers.HISTORY_READER.build(reader=self._reader, slot=slot)
            body = {"stream_name": stream.stream(self._space), "action": "create"}
            config = {
                "name": name,
                "description": description,
                "ack_policy": "none",
                "deliver_policy": "by_start_sequence",
                "opt_start_seq": after + 1,
                "filter_subject": pattern,
                "inactive_threshold": int(self._threshold * _NANO),
                "mem_storage": True,
                "num_replicas": 1,
            }
            subject = api.CONSUMER_CREATE_FILTERED.build(
                stream=stream.stream(self._space), consumer=name, filter=pattern
            )
            answer = await self._ask(subject, {**body, "config": config})
            if _description(answer) == description:
                return name, slot, _count(answer, "num_pending")
            if "error" not in answer:
                raise HistoryUnreadable("the broker did not say what it made")
            if _code(answer) not in ALREADY_EXISTS:
                slots.freed(slot)
                raise HistoryUnreadable(f"the broker makes no consumer: {_text(answer)}")
            self._count("name_taken")
            if self._log is not None:
                self._log.warning("history_name_taken", slot=slot)
        raise NoFreeName(self._threshold)

    async def _pull(self, stream: str, name: str, wanted: int) -> list[Frame]:
        """``wanted`` messages, which wait for this consumer already."""
        inbox = await self._connection.subscribe(self._connection.new_inbox())
        try:
            body = {"batch": wanted, "expires": int(_STEP_SECONDS * _NANO / 2)}
            subject = api.CONSUMER_NEXT.build(stream=stream, consumer=name)
            await self._connection.publish(subject, json.dumps(body).encode(), reply=inbox.subject)
            frames: list[Frame] = []
            while len(frames) < wanted:
                message = await inbox.next()
                if status_of(message, subject) is not None:
                    break  # evicted since, or the consumer is gone: what came is what there is
                try:
                    frames.append(frame_of(message, stream, name))
                except InvalidName:
                    self._count("foreign_frame")
            return frames
        finally:
            await inbox.close()

    async def _end(self, stream: streams.Stream, name: str, slot: int, description: str) -> None:
        """Delete the consumer of this step, and nothing else that has its name by now."""
        named = {"stream": stream.stream(self._space), "consumer": name}
        found = await self._ask(api.CONSUMER_INFO.build(**named))
        if _code(found) == _NO_CONSUMER:
            self._slots[stream].freed(slot)
            raise HistoryUnreadable("the consumer was gone before its step ended")
        if _description(found) != description:
            raise HistoryUnreadable("somebody else has the name of this step's consumer")
        try:
            answer = await self._ask(api.CONSUMER_DELETE.build(**named))
        except PermissionViolation:
            raise
        except (ConnectionFault, TimeoutError):
            self._count("delete_unclear")
            return  # what was read is good; the name rests
        if answer.get("success") is True or _code(answer) == _NO_CONSUMER:
            self._slots[stream].freed(slot)
        else:
            self._count("delete_unclear")

    async def _ask(self, subject: str, body: Any = None) -> dict[str, Any]:
        data = b"" if body is None else json.dumps(body).encode()
        message = await self._connection.request(subject, data)
        try:
            answer = json.loads(message.data)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise HistoryUnreadable("the broker's answer is no JSON object")
        return answer

    def _count(self, outcome: str) -> None:
        if self._metrics is not None:
            self._metrics.counter("history_steps", outcome).inc()


def _code(answer: dict[str, Any]) -> int:
    error = answer.get("error")
    return int(error.get("err_code", 0)) if isinstance(error, dict) else 0


def _text(answer: dict[str, Any]) -> str:
    error = answer.get("error")
    return str(error.get("description", ""))[:200] if isinstance(error, dict) else ""


def _description(answer: dict[str, Any]) -> str | None:
    config = answer.get("config")
    found = config.get("description") if isinstance(config, dict) else None
    return found if isinstance(found, str) else None


def _count(answer: dict[str, Any], name: str) -> int:
    found = answer.get(name)
    if type(found) is not int or found < 0:
        raise HistoryUnreadable("the broker did not say how much there is")
    return found


class Tapped(NamedTuple):
    """One message that may be shown; ``missed`` when something may be missing right before it: a lost link, or more
    than this reader could take."""

    received: Received
    missed: bool


class Tap:
    """Everything that is published, as it is published: posts for observers, all deliveries for admins.

    A core subscription: what is published while the link is down is missed, and :class:`Tapped` says so. Stored bytes
    that somebody has the broker send here are refused, like every frame whose sender is not its subject's (C5-14).
    """

    def __init__(self, subscriptions: list[Subscription], metrics: Metrics | None, log: Log | None) -> None:
        self._subscriptions = subscriptions
        self._metrics, self._log = metrics, log
        self._messages: asyncio.Queue[tuple[int, Msg] | None] = asyncio.Queue(1)
        self._error: Exception | None = None
        self._seen = [(0, 0)] * len(subscriptions)
        self.refused: Counter[str] = Counter()
        """How many frames were refused, by reason."""
        self._tasks = [asyncio.create_task(self._read(n, one)) for n, one in enumerate(subscriptions)]

    @classmethod
    async def open(
        cls,
        connection: Connection,
        space: str,
        *,
        admin: bool = False,
        metrics: Metrics | None = None,
        log: Log | None = None,
    ) -> Tap:
        """Subscribe. Raises PermissionViolation, NotConnected, Stopped."""
        kinds = (subjects.CHAT, subjects.INST, subjects.SVC) if admin else (subjects.CHAT,)
        placed: list[Subscription] = []
        try:
            for kind in kinds:
                placed.append(await connection.subscribe(kind.subtree(space=space)))
        except BaseException:
            for one in placed:
                await one.close()
            raise
        return cls(placed, metrics, log)

    async def _read(self, number: int, subscription: Subscription) -> None:
        try:
            while True:
                message = await subscription.next()
                await self._messages.put((number, message))
        except Exception as error:  # what ended the subscription is told to the reader
            self._error = self._error or error
            await self._messages.put(None)

    async def next(self) -> Tapped:
        """The next message. Raises PermissionViolation, Stopped, SubscriptionClosed."""
        while True:
            if self._error is not None and self._messages.empty():
                raise self._error
            found = await self._messages.get()
            if found is None:
                continue  # the end: what is still queued comes first
            number, message = found
            try:
                received = receive(
                    message.data,
                    delivery_of(message.subject),
                    Source.TAP,
                    header_names=message.headers or (),
                    reply=message.reply,
                )
            except Rejected as error:
                self.refused[error.reason] += 1
                if self._metrics is not None:
                    self._metrics.counter("tap_frames_refused", error.reason.value).inc()
                if self._log is not None:
                    self._log.warning("tapped_frame_refused", reason=error.reason.value, detail=error.detail)
                continue
            return Tapped(received, self._missed(number))

    def _missed(self, number: int) -> bool:
        subscription = self._subscriptions[number]
        now = (subscription.interruptions, subscription.dropped)
        missed, self._seen[number] = now != self._seen[number], now
        return missed

    async def close(self) -> None:
        """Stop: whoever waits gets SubscriptionClosed. May be called twice."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._error = self._error or SubscriptionClosed()
        if self._messages.empty():  # whoever waits for the next one learns of it
            self._messages.put_nowait(None)
        for one in self._subscriptions:
            await one.close()
