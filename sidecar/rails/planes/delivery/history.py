"""Stored posts of one channel, read page by page for a member who may not read the stream itself.

Each page is a consumer of its own, in memory and gone after it: unlike a Direct Get it hands messages out with exactly
the headers that they were stored with, so that a receiver still sees which of them were redirected there.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from sidecar.rails.connection import ConnectionFault
from sidecar.rails.connection.kv import Unreadable
from sidecar.rails.messaging.frames import Frame
from sidecar.rails.names import api, consumers, streams, subjects
from sidecar.rails.planes.delivery.plane import Plane
from sidecar.rails.planes.delivery.pulls import Durable, End, Puller

AT_ONCE: Final = 16
"""Pages that are read at a time; the others wait for their turn, as long as their callers do."""
_IDLE_SECONDS: Final = 10
_NANO: Final = 10**9
_LAST_MS: Final = 4_102_444_800_000
"""2100: a later time begins behind every post as well, and every reader of times takes it."""


class Page(NamedTuple):
    """Posts in the order of the stream. ``frontier`` is the last sequence of the stream before they were read;
    ``complete``: nothing up to the bound is left behind them."""

    frames: list[Frame]
    frontier: int
    complete: bool


class HistoryReader:
    """Reads pages of one space's posts."""

    def __init__(self, plane: Plane, puller: Puller) -> None:
        self._plane, self._puller = plane, puller
        self._stream = streams.CHAT.stream(plane.space)
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._serials = itertools.count(1)
        self._watcher = f"{plane.lifecycle.uid}h{plane.entropy(4).hex()}"

    async def read(
        self, channel: str, *, after: int, up_to: int | None, since_ms: int | None, limit: int, max_bytes: int
    ) -> Page:
        """One page. Raises Unreadable, ConnectionFault, TimeoutError."""
        frontier = await self._frontier()
        bound = frontier if up_to is None else min(up_to, frontier)
        if limit == 0 or after >= bound:
            return Page([], frontier, after >= bound)
        async with self._turns:
            frames, more = await self._page(channel, after, since_ms, limit, max_bytes)
        kept = [frame for frame in frames if frame.sequence <= bound]
        return Page(kept, frontier, not more or len(kept) < len(frames))

    async def _frontier(self) -> int:
        answer = await self._ask(api.STREAM_INFO.build(stream=self._stream))
        state = answer.get("state")
        last = state.get("last_seq") if isinstance(state, dict) else None
        if type(last) is not int:
            raise Unreadable(f"{self._stream}: the broker's answer has another form")
        return last

    async def _page(
        self, channel: str, after: int, since_ms: int | None, limit: int, max_bytes: int
    ) -> tuple[list[Frame], bool]:
        """Frames behind a sequence and a time, and whether there are more."""
        name = consumers.WATCHER.build(watcher=self._watcher, serial=next(self._serials))
        only = subjects.CHAT.filter(space=self._plane.space, channel=channel)
        durable = Durable(self._stream, name)
        pending = await self._create(durable, only, {"deliver_policy": "by_start_sequence", "opt_start_seq": after + 1})
        try:
            if pending and since_ms is not None:
                frames = (await self._puller.pull(durable, 1)).frames
                if frames and frames[0].time_ms < since_ms:
                    # The time is behind the sequence: from there on no post is older.
                    await self._delete(durable)
                    pending = await self._create(durable, only, _from_time(since_ms))
                elif frames:
                    return await self._rest(durable, frames, limit, max_bytes)
            if not pending:
                return [], False
            return await self._rest(durable, [], limit, max_bytes)
        finally:
            await self._delete(durable)

    async def _rest(
        self, durable: Durable, frames: list[Frame], limit: int, max_bytes: int
    ) -> tuple[list[Frame], bool]:
        """Frames up to the limits. One that is larger than a page is a page of its own."""
        if len(frames) < limit:
            found, end = await self._puller.pull(durable, limit - len(frames), max_bytes=max_bytes)
            if not found and not frames and end is End.BYTES:
                found, end = await self._puller.pull(durable, 1)
            frames = frames + found
            if end is End.REFUSED:
                raise Unreadable(f"{self._stream}: the broker ended the read")
            if end is End.EMPTY:
                return frames, False
        return frames, bool(frames) and frames[-1].pending > 0

    async def _create(self, durable: Durable, only: str, start: dict[str, Any]) -> int:
        """Make the consumer; how many posts it has."""
        config = {
            "name": durable.consumer,
            "filter_subject": only,
            "ack_policy": "none",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": _IDLE_SECONDS * _NANO,
            **start,
        }
        subject = api.CONSUMER_CREATE_FILTERED.build(stream=durable.stream, consumer=durable.consumer, filter=only)
        answer = await self._ask(subject, {"stream_name": durable.stream, "config": config})
        pending = answer.get("num_pending")
        if type(pending) is not int:
            raise Unreadable(f"{self._stream}: the broker makes no reader")
        return pending

    async def _delete(self, durable: Durable) -> None:
        """Drop the consumer; one that cannot be deleted now is forgotten when it is idle."""
        subject = api.CONSUMER_DELETE.build(stream=durable.stream, consumer=durable.consumer)
        with contextlib.suppress(ConnectionFault, TimeoutError):
            await self._plane.connection.request(subject)

    async def _ask(self, subject: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        data = b"" if body is None else json.dumps(body).encode()
        message = await self._plane.connection.request(subject, data)
        try:
            answer = json.loads(message.data)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise Unreadable(f"{self._stream}: the broker's answer has another form")
        return answer


def _from_time(since_ms: int) -> dict[str, Any]:
    seconds, rest = divmod(min(since_ms, _LAST_MS), 1000)
    begin = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return {"deliver_policy": "by_start_time", "opt_start_time": f"{begin}.{rest:03d}Z"}
