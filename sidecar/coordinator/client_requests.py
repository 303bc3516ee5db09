"""What a client session has open on its connection: request ids, what each waits for, and the streams (sans-IO)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from sidecar.coordinator.client_connection import ClientConnection
from sidecar.coordinator.client_errors import PeerFault, ReplayTooLarge
from sidecar.coordinator.client_handshake import ClientConfig
from sidecar.coordinator.client_replay import ReplayStaging
from sidecar.coordinator.client_snapshot import SnapshotStaging
from sidecar.coordinator.client_stream import Projection, Stream, StreamState
from sidecar.coordinator.wire.enums import ErrorCode
from sidecar.coordinator.wire.errors import LocalProtocolError
from sidecar.coordinator.wire.fields import Frame
from sidecar.coordinator.wire.ids import EventCut, SubscriptionId
from sidecar.coordinator.wire.limits import QUOTAS
from sidecar.coordinator.wire.records import AuthorityGuard

MAX_REQUESTS: Final = QUOTAS["requests"].connection or 0
"""Most requests that one connection may have open (P3-33)."""
_U32: Final = 1 << 32


class Ask(Enum):
    """What an occupied request id waits for."""

    COMMAND = "COORD_COMMAND_RESULT"
    LOOKUP = "OPERATION_RESULT"
    BEGIN = "SNAPSHOT_BEGIN"
    PAGE = "SNAPSHOT_PAGE"
    END = "SNAPSHOT_END"
    SUBSCRIBED = "SUBSCRIBED"
    REPLAY_BEGIN = "REPLAY_BEGIN"
    REPLAY_PAGE = "REPLAY_PAGE"
    REPLAY_END = "REPLAY_END"
    APPLIED = "ACK"


@dataclass(slots=True)
class SnapshotAsk:
    """A snapshot that was asked for. ``handle`` is the request id that its caller knows it by."""

    keep: bool
    reserve: bool
    replaces: SubscriptionId | None
    credit: tuple[int, int]
    handle: int = 0
    staging: SnapshotStaging | None = None


@dataclass(slots=True)
class SubscribeAsk:
    """A direct subscription that was asked for."""

    projection: Projection
    credit: tuple[int, int]


@dataclass(slots=True)
class ReplayAsk:
    """A replay that was asked for. ``too_large`` is why it was left before its end."""

    stream: Stream
    after: EventCut
    credit: tuple[int, int]
    handle: int = 0
    staging: ReplayStaging | None = None
    too_large: ReplayTooLarge | None = None


Detail = SnapshotAsk | SubscribeAsk | ReplayAsk | None


@dataclass(slots=True)
class Request:
    """One occupied request id (P7-09)."""

    ask: Ask
    detail: Detail = None


class ClientRequests(ClientConnection):
    """A connection with its open requests and its streams."""

    def __init__(self, config: ClientConfig, entropy: Callable[[int], bytes]) -> None:
        super().__init__(config, entropy)
        self._requests: dict[int, Request] = {}
        self._next_request = 1
        self._streams: dict[SubscriptionId, Stream] = {}

    @property
    def open_requests(self) -> int:
        """Occupied request ids."""
        return len(self._requests)

    def projection(self, subscription_id: SubscriptionId) -> Projection:
        """What a stream knows; it goes on being readable, and says that it is stale, after the connection ended."""
        stream = self._streams.get(subscription_id)
        if stream is None:
            raise LocalProtocolError("this connection has no such subscription")
        return stream.projection

    def _require_current(self) -> AuthorityGuard:
        guard = self._require_active()
        if self._adopting:
            raise LocalProtocolError("a later activation answered: a complete snapshot comes first")
        return guard

    def _credit(self, credit: tuple[int, int] | None) -> tuple[int, int]:
        selected = self.welcome.selected
        most = (selected.credit_count, selected.credit_bytes)
        if credit is None:
            return most
        if not (0 <= credit[0] <= most[0] and 0 <= credit[1] <= most[1]):
            raise LocalProtocolError(f"initial credit {credit} is above the selected maxima {most}")
        return credit

    def _ask(self, ask: Ask, detail: Detail, build: Callable[[int], Frame]) -> int:
        if len(self._requests) >= MAX_REQUESTS:
            raise LocalProtocolError(f"{MAX_REQUESTS} requests are open; wait for a reply")
        while self._next_request in self._requests:
            self._advance()
        request_id = self._next_request
        self._send(build(request_id))
        self._advance()
        self._requests[request_id] = Request(ask, detail)
        return request_id

    def _advance(self) -> None:
        self._next_request = (self._next_request + 1) % _U32 or 1

    def _take(self, request_id: int, ask: Ask) -> Request:
        """Free the id that this reply ends; a reply to anything else is a breach (P8-01, P13-08)."""
        request = self._requests.pop(request_id, None)
        if request is None or request.ask is not ask:
            raise PeerFault(ErrorCode.PROTOCOL_ERROR, f"{ask.value} answers no such request")
        return request

    def _snapshot(self, request_id: int, ask: Ask) -> SnapshotAsk:
        detail = self._take(request_id, ask).detail
        if not isinstance(detail, SnapshotAsk):
            raise PeerFault(ErrorCode.PROTOCOL_ERROR, f"{ask.value} answers no snapshot")
        return detail

    def _stream(self, subscription_id: SubscriptionId) -> Stream:
        stream = self._streams.get(subscription_id)
        if stream is None:
            raise PeerFault(ErrorCode.PROTOCOL_ERROR, "a frame of a subscription that does not exist")
        return stream

    def _add_stream(self, stream: Stream) -> None:
        if stream.subscription_id in self._streams:
            raise PeerFault(ErrorCode.PROTOCOL_ERROR, "a subscription id is given out twice")
        self._streams[stream.subscription_id] = stream

    def _abandon(self) -> tuple[int, ...]:
        """Every stream is stale and every request indeterminate (P10-19, P13-07)."""
        for stream in self._streams.values():
            if stream.state not in (StreamState.STALE, StreamState.PAUSED_GAP):
                self._emit(stream.go_stale("the connection ended"))
        handles = {
            request.detail.handle if isinstance(request.detail, SnapshotAsk | ReplayAsk) else request_id
            for request_id, request in self._requests.items()
        }
        self._requests.clear()
        return tuple(sorted(handles))
