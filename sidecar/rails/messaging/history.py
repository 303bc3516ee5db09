"""Reading what a channel holds, in either form of a space (C7-22, C7-23, C8-28).

``RawHistory`` reads CHAT itself, with the one consumer that its lifecycle may make, one channel at a time.
``MediatedHistory`` asks the delivery plane for pages. Both give frames in stream order and nothing above ``up_to``, and
both say so when a read did not come to its end: what is missing then was not read, and may exist.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import orjson

from sidecar.base.strictjson import JsonValue
from sidecar.rails.connection import (
    Connection,
    ConnectionFault,
    NoResponders,
    NotConnected,
    PermissionViolation,
    Subscription,
)
from sidecar.rails.connection.streams import status_of
from sidecar.rails.endpoint.caller import Calls
from sidecar.rails.endpoint.calls_types import DELIVERY_SECONDS
from sidecar.rails.endpoint.codes import CallFailed, CallRefused, Code
from sidecar.rails.endpoint.contracts import DELIVERY_ENDPOINT
from sidecar.rails.messaging.frames import BadFrame, Frame, frame_of, read_frame
from sidecar.rails.messaging.identity import Identity
from sidecar.rails.names import InvalidName, api, consumers, streams
from sidecar.rails.names.acks import parse_tail
from sidecar.rails.names.grants import covers
from sidecar.rails.names.subjects import CHAT
from sidecar.rails.names.tokens import TAIL, WILDCARD

PAGE: Final = 256
"""Frames asked for at a time."""
PAGE_BYTES: Final = 8 * 1024 * 1024
"""Payload after which a page ends early."""
READS_AT_ONCE: Final = 16
"""Pages that one member asks the delivery plane for at a time: half of what the plane works on for one caller. After an
interruption all channels of a member want to read."""
SILENCE_SECONDS: Final = 5.0
"""The longest wait for the next frame of a page."""
IDLE_SECONDS: Final = 10
"""After which the broker forgets a consumer that a crash left behind."""
ATTEMPTS: Final = 6
"""Beginnings in a row that gave no frame, before a read is given up."""
_FIRST_WAIT, _LONGEST_WAIT = 0.2, 3.0
_NANO: Final = 10**9
ALREADY_EXISTS: Final = (10_013, 10_105, 10_148)
"""What the broker says when a consumer has the name already, with another configuration."""
_NOTHING_THERE: Final = "404"
_ANY: Final = "x"
_AGAIN: Final = frozenset({Code.DEADLINE_EXCEEDED})


Frames: TypeAlias = AsyncGenerator[Frame, None]
"""Frames as they are read; to be closed when they are not read to their end (``contextlib.aclosing``)."""


class HistoryNotGranted(Exception):  # noqa: N818 - a state
    """The credential reads the channel live, but not its history.

    An entry of the read list that ends in ``*`` pins no history consumer; and the broker may refuse what was narrowed.
    """


class HistoryUnreadable(Exception):  # noqa: N818 - a state
    """The read did not come to its end; nothing may be concluded from what it did not give."""


class History(Protocol):
    """Either way of reading."""

    async def frontier(self) -> int:
        """The last sequence of CHAT. Raises HistoryUnreadable, HistoryNotGranted."""

    def read(self, channel: str, *, up_to: int, after: int = 0, since_ms: int | None = None) -> Frames:
        """Frames of one channel behind ``after``, not above ``up_to``, not older than ``since_ms``; in stream order.

        Raises HistoryNotGranted, HistoryUnreadable. Close the iterator when it is not read to its end.
        """


def grants_history(identity: Identity, channel: str) -> bool:
    """Whether one entry of the read list that pins a history consumer holds the channel."""
    pinned = (entry for entry in identity.readable if entry.split(".")[-1] != WILDCARD)
    return any(covers(entry, channel) for entry in pinned)


class _Stretch(NamedTuple):
    """What is left of a read."""

    channel: str
    up_to: int
    after: int
    since_ms: int | None

    @property
    def start(self) -> dict[str, Any]:
        """Where the broker begins."""
        if self.after:
            return {"deliver_policy": "by_start_sequence", "opt_start_seq": self.after + 1}
        if self.since_ms is not None:
            at = datetime.fromtimestamp(self.since_ms / 1000, UTC)
            return {"deliver_policy": "by_start_time", "opt_start_time": at.isoformat().replace("+00:00", "Z")}
        return {"deliver_policy": "all"}


class _Broken(Exception):  # noqa: N818 - stays in this file
    """The consumer or the link is gone: begin anew behind the last frame."""


class RawHistory:
    """The reads of one lifecycle of a compatible space: one at a time, as they share the name of their consumer."""

    def __init__(self, connection: Connection, identity: Identity, *, entropy: Callable[[int], bytes]) -> None:
        self._connection = connection
        self._identity = identity
        self._entropy = entropy
        self._stream = streams.CHAT.stream(identity.space)
        self._consumer = consumers.CHAT_HISTORY.build(**identity.lifecycle.names)
        self._turn = asyncio.Lock()

    async def frontier(self) -> int:
        """See :class:`History`."""
        answer = await self._ask(api.STREAM_INFO.build(stream=self._stream))
        last = answer.get("state", {}).get("last_seq") if isinstance(answer.get("state"), dict) else None
        if type(last) is not int:
            raise HistoryUnreadable(f"{self._stream} does not say where it ends: {_description(answer)}")
        return last

    async def read(self, channel: str, *, up_to: int, after: int = 0, since_ms: int | None = None) -> Frames:
        """See :class:`History`."""
        if not grants_history(self._identity, channel):
            raise HistoryNotGranted(f"no entry of the read list pins the history of {channel}")
        left = _Stretch(channel, up_to, after, since_ms)
        failures, complete = 0, False
        while left.after < up_to and not complete:
            frames: list[Frame] = []
            try:
                # Nobody has the turn while frames are looked at: who looks may want to read history too.
                async with self._turn:
                    complete = await self._stretch(left, frames)
                failures = 0
            except _Broken as error:
                failures = 1 if frames else failures + 1
                if failures >= ATTEMPTS:
                    raise HistoryUnreadable(f"the history of {channel} could not be read: {error}") from None
            for frame in frames:
                left = left._replace(after=frame.sequence)
                if since_ms is None or frame.time_ms >= since_ms:
                    yield frame
            if failures:
                await asyncio.sleep(min(_LONGEST_WAIT, _FIRST_WAIT * 2.0**failures))

    async def _stretch(self, left: _Stretch, frames: list[Frame]) -> bool:
        """Put the frames of one page into the list, also when it ends early; True when there are no more. A consumer
        is made for each page, and gone behind it. Raises _Broken, HistoryNotGranted."""
        pending = await self._make(left)
        subscription: Subscription | None = None
        try:
            if not pending:
                return True
            subscription = await self._connection.subscribe(self._connection.new_inbox())
            return await self._page(subscription, min(PAGE, pending), left.up_to, frames)
        except PermissionViolation as error:
            raise HistoryNotGranted(str(error)) from None
        except (NotConnected, TimeoutError) as error:
            raise _Broken(str(error) or "the broker is silent") from None
        finally:
            if subscription is not None:
                await subscription.close()
            with contextlib.suppress(ConnectionFault, TimeoutError):
                await self._connection.request(self._own(api.CONSUMER_DELETE))

    async def _page(self, subscription: Subscription, wanted: int, up_to: int, frames: list[Frame]) -> bool:
        """The frames of one pull, at most ``wanted``; True when there are no more up to ``up_to``."""
        interruptions = subscription.interruptions
        pull, size = self._own(api.CONSUMER_NEXT), 0
        await self._connection.publish(
            pull, orjson.dumps({"batch": wanted, "no_wait": True}), reply=subscription.subject
        )
        while len(frames) < wanted and size < PAGE_BYTES:
            async with asyncio.timeout(SILENCE_SECONDS):
                message = await subscription.next()
            status = status_of(message, pull)
            if status == _NOTHING_THERE:
                # Without a frame: what was pending was removed by the limits of the stream.
                return not frames or not frames[-1].pending
            if status is not None or subscription.interruptions != interruptions:
                raise _Broken(f"the broker ended the read ({status})")
            try:
                frame = frame_of(message, self._stream, self._consumer)
            except InvalidName:
                continue  # stored bytes that somebody's read had the broker put here
            if parse_tail(frame.token).serial != len(frames) + 1:
                raise _Broken("a frame was missed")
            if frame.sequence > up_to:
                return True
            frames.append(frame._replace(token=""))
            size += len(frame.data)
        return not frames[-1].pending or frames[-1].sequence >= up_to

    async def _make(self, left: _Stretch) -> int:
        """Make the consumer; how many messages it has. One that a crash left behind, or that another process of this
        lifecycle reads from, makes room: its reader begins anew behind its last frame."""
        filter_subject = CHAT.filter(space=self._identity.space, channel=left.channel)
        config = {
            "name": self._consumer,
            # No two readers make the same consumer: the broker would hand out the one that is there.
            "description": self._entropy(16).hex(),
            "filter_subject": filter_subject,
            "ack_policy": "none",
            "max_deliver": 1,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": IDLE_SECONDS * _NANO,
            **left.start,
        }
        subject = api.CONSUMER_CREATE_FILTERED.build(
            stream=self._stream, consumer=self._consumer, filter=filter_subject
        )
        body = {"stream_name": self._stream, "config": config, "action": "create"}
        for _ in range(2):
            answer = await self._request(subject, body)
            error = answer.get("error")
            if not isinstance(error, dict):
                pending = answer.get("num_pending")
                return pending if type(pending) is int else 0
            if error.get("err_code") not in ALREADY_EXISTS:
                break
            await self._request(self._own(api.CONSUMER_DELETE))
        raise _Broken(_description(answer))

    def _own(self, template: Any) -> str:
        subject: str = template.build(stream=self._stream, consumer=self._consumer)
        return subject

    async def _request(self, subject: str, body: Any = None) -> dict[str, Any]:
        """One API request within a read. Raises _Broken for what another attempt may heal."""
        try:
            return await self._ask(subject, body)
        except HistoryUnreadable as error:
            raise _Broken(str(error)) from None

    async def _ask(self, subject: str, body: Any = None) -> dict[str, Any]:
        data = b"" if body is None else orjson.dumps(body)
        try:
            answer = orjson.loads((await self._connection.request(subject, data)).data)
        except PermissionViolation as error:
            raise HistoryNotGranted(str(error)) from None
        except (NotConnected, NoResponders, TimeoutError, orjson.JSONDecodeError) as error:
            raise HistoryUnreadable(str(error) or "the broker does not answer") from None
        return answer if isinstance(answer, dict) else {}


def _description(answer: dict[str, Any]) -> str:
    error = answer.get("error")
    text = error.get("description") if isinstance(error, dict) else None
    return text[:200] if isinstance(text, str) else "the broker's answer has another form"


class MediatedHistory:
    """The reads of one lifecycle of a mediated space, through the delivery plane (C9-47)."""

    def __init__(self, caller: Calls, identity: Identity) -> None:
        self._caller = caller
        self._identity = identity
        self._turns = asyncio.Semaphore(READS_AT_ONCE)

    async def frontier(self) -> int:
        """See :class:`History`."""
        if not self._identity.readable:
            raise HistoryNotGranted("the read list is empty")
        # An answer without frames says the same for every channel of the read list.
        channel = self._identity.readable[0].replace(WILDCARD, _ANY).replace(TAIL, _ANY)
        return (await self._page({"channel": channel, "limit": 0})).frontier

    async def read(self, channel: str, *, up_to: int, after: int = 0, since_ms: int | None = None) -> Frames:
        """See :class:`History`."""
        since: dict[str, JsonValue] = {} if since_ms is None else {"sinceMs": since_ms}
        position = after
        while position < up_to:
            page = await self._page({"channel": channel, "after": position, "upTo": up_to, "limit": PAGE, **since})
            for frame in page.frames:
                if not position < frame.sequence <= up_to:
                    raise HistoryUnreadable(f"a page of {channel} is not in the order of its stream")
                position = frame.sequence
                yield frame
            if page.complete:
                return
            if not page.frames:
                raise HistoryUnreadable(f"a page of {channel} is empty, and not the last one")

    async def _page(self, args: dict[str, JsonValue]) -> _Page:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                async with self._turns:
                    return _Page.of(
                        await self._caller.call(DELIVERY_ENDPOINT, "read-history", args, seconds=DELIVERY_SECONDS)
                    )
            except CallRefused as error:
                if error.code == Code.PERMISSION_DENIED:
                    raise HistoryNotGranted(error.message) from None
                raise HistoryUnreadable(error.message) from None
            except CallFailed as error:
                # Nobody there, or no right to ask: another attempt of this read would hear the same.
                if attempt == ATTEMPTS or error.code not in _AGAIN:
                    raise HistoryUnreadable(error.message) from None
                await asyncio.sleep(min(_LONGEST_WAIT, _FIRST_WAIT * 2.0**attempt))
        raise HistoryUnreadable("the delivery plane does not answer")


class _Page(NamedTuple):
    """One answer of ``read-history``."""

    frames: list[Frame]
    frontier: int
    complete: bool

    @classmethod
    def of(cls, answer: JsonValue) -> _Page:
        """Raises HistoryUnreadable for any other shape."""
        found = answer if isinstance(answer, dict) else {}
        frames, frontier = found.get("frames"), found.get("frontier")
        if not isinstance(frames, list) or type(frontier) is not int:
            raise HistoryUnreadable("the answer of the delivery plane is no page")
        try:
            return cls([read_frame(one) for one in frames], frontier, found.get("complete") is True)
        except BadFrame as error:
            raise HistoryUnreadable(f"a frame of a page is none: {error}") from None
