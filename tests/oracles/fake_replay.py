"""The subscriptions of ``FakeServer`` and their replays: true pages, a true END and a true resumption."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode, FrameType, GapReason
from sidecar.coordinator.wire.ids import SubscriptionId
from sidecar.coordinator.wire.records import ReplayEvent
from tests.oracles.digest import replay_preimage

if TYPE_CHECKING:
    from tests.oracles.fake_server import FakeServer


@dataclass
class FakeStream:
    """One subscription. ``last`` is what its GAP names: hidden events, which are empty, do not move it (P10-f)."""

    subscription_id: SubscriptionId
    cursor: int
    live: bool
    count: int = 0
    nbytes: int = 0
    delivery: int = 0
    paused: bool = False

    def __post_init__(self) -> None:
        self.last = self.cursor


@dataclass
class FakeReplay:
    """One replay: the events of ``(after, cut]`` in pages."""

    stream: FakeStream
    after: int
    cut: int
    pages: list[list[ReplayEvent]]


class FakeReplays:
    """The replays of one connection. ``expire`` ends all leases; a GAP of the stream ends its replay (P10-35)."""

    def __init__(self, server: FakeServer) -> None:
        self._server = server
        self._replays: dict[bytes, FakeReplay] = {}
        self._opened = 0
        self.handlers: dict[FrameType, Callable[[Any], None]] = {
            FrameType.OPEN_REPLAY: self._on_open,
            FrameType.REPLAY_NEXT: self._on_next,
            FrameType.REPLAY_APPLIED: self._on_applied,
        }

    def expire(self) -> None:
        """All leases run out; their streams are paused as before (P10-h)."""
        self._replays.clear()

    def end(self, stream: FakeStream) -> None:
        """The stream has a GAP."""
        self._replays = {key: replay for key, replay in self._replays.items() if replay.stream is not stream}

    def _on_open(self, request: fr.OpenReplay) -> None:
        server, world = self._server, self._server.world
        stream = server.streams.get(request.subscription_id)
        if stream is None or not stream.paused:
            server.error(ErrorCode.NOT_FOUND if stream is None else ErrorCode.CURSOR_INVALID, request.request_id)
            return
        if request.after_event_sequence != stream.last:
            server.error(ErrorCode.MALFORMED_MESSAGE, request.request_id)
            server.closed = True
            return
        if stream.last + 1 < world.first_retained:
            server.gap(stream, GapReason.RETENTION)
            server.error(ErrorCode.CURSOR_INVALID, request.request_id)
            return
        self._opened += 1
        replay_id = hashlib.sha256(b"replay%d" % self._opened).digest()[:16]
        events = [ReplayEvent(**event) for event in world.events[stream.last :] if event]
        pages = [events[at : at + world.page_size] for at in range(0, len(events), world.page_size)]
        self._replays[replay_id] = FakeReplay(stream, stream.last, len(world.events), pages)
        server.send(
            fr.ReplayBegin.build(
                {
                    "request_id": request.request_id,
                    "replay_id": replay_id,
                    "subscription_id": stream.subscription_id,
                    "first_event": events[0].event_sequence if events else None,
                    "replay_cut": len(world.events),
                    "first_cursor": b"replay-0" if pages else None,
                    "lease_expires_at": int(server.now.wall) + 60,
                }
            )
        )
        if not pages:
            self._send_end(request.request_id, replay_id, self._replays[replay_id])

    def _on_next(self, request: fr.ReplayNext) -> None:
        replay = self._replays.get(request.replay_id)
        if replay is None:
            self._server.error(ErrorCode.CURSOR_INVALID, request.request_id)
            return
        index = int(request.cursor.removeprefix(b"replay-"))
        last = index == len(replay.pages) - 1
        self._server.send(
            fr.ReplayPage.build(
                {
                    "request_id": request.request_id,
                    "replay_id": request.replay_id,
                    "cursor": request.cursor,
                    "page_index": index,
                    "events": tuple(replay.pages[index]),
                    "next_cursor": None if last else b"replay-%d" % (index + 1),
                }
            )
        )
        if last:
            self._send_end(request.request_id, request.replay_id, replay)

    def _send_end(self, request_id: int, replay_id: bytes, replay: FakeReplay) -> None:
        world = self._server.world
        images = [event.encode() for page in replay.pages for event in page]
        preimage = replay_preimage(
            world.coordinator_id,
            world.epoch,
            world.activation,
            replay.stream.subscription_id,
            replay.after,
            replay.cut,
            images,
        )
        self._server.send(
            fr.ReplayEnd.build(
                {
                    "request_id": request_id,
                    "replay_id": replay_id,
                    "page_count": len(replay.pages),
                    "event_count": len(images),
                    "canonical_sha256": hashlib.sha256(preimage).digest(),
                }
            )
        )

    def _on_applied(self, request: fr.ReplayApplied) -> None:
        replay = self._replays.pop(request.replay_id, None)
        if replay is None:
            self._server.error(ErrorCode.CURSOR_INVALID, request.request_id)
            return
        stream = replay.stream
        stream.cursor = stream.last = replay.cut
        stream.paused = False
        stream.count, stream.nbytes = request.initial_credit_count, request.initial_credit_bytes
        self._server.send(fr.Ack(request_id=request.request_id))
        self._server.pump()
