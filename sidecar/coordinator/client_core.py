"""The client's work on one connection: requests, snapshots, streams (sans-IO: bytes in, verified events out).

``ClientSession`` reads no clock, no random source and no socket. Beside the state of the connection it knows how far
the authority's state is known: SYNCING until a snapshot or a stream, CURRENT, and STALE after any discontinuity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final

from sidecar.coordinator import client_events as ev
from sidecar.coordinator.client_connection import ClientState
from sidecar.coordinator.client_errors import PeerFault
from sidecar.coordinator.client_handshake import ClientConfig
from sidecar.coordinator.client_healing import ClientHealing
from sidecar.coordinator.client_requests import Ask, ReplayAsk, Request, SnapshotAsk, SubscribeAsk
from sidecar.coordinator.client_snapshot import SnapshotStaging
from sidecar.coordinator.client_stream import Projection, Stream, StreamState
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import CommandKind, ErrorCode
from sidecar.coordinator.wire.errors import LocalProtocolError, ProtocolError
from sidecar.coordinator.wire.fields import Frame
from sidecar.coordinator.wire.ids import EventCut, OperationId, SubscriptionId
from sidecar.coordinator.wire.limits import WHOLE_AUTHORITY_SELECTOR
from sidecar.coordinator.wire.records import Precondition

_STALE: Final = (StreamState.STALE, StreamState.PAUSED_GAP, StreamState.REPLAYING)


class SyncState(Enum):
    """What this connection knows of the authority's state."""

    SYNCING = "syncing"
    CURRENT = "current"
    STALE = "stale"


class ClientSession(ClientHealing):
    """One connection to a coordinator and everything that is asked over it."""

    def __init__(self, config: ClientConfig, entropy: Callable[[int], bytes]) -> None:
        super().__init__(config, entropy)
        self._synced = False

    @property
    def sync(self) -> SyncState:
        """STALE from the first discontinuity or the close on, until it is healed (P10-12..19)."""
        if self.closing or any(stream.state in _STALE for stream in self._streams.values()):
            return SyncState.STALE
        return SyncState.CURRENT if self._synced else SyncState.SYNCING

    # -- requests ---------------------------------------------------------------------------------------------------

    def command(
        self, operation_id: OperationId, kind: CommandKind, payload: bytes, preconditions: Iterable[Precondition] = ()
    ) -> int:
        """Send a command (P8-01); its reply is ``OperationReply`` or ``Refused`` with the returned request id.

        ``payload`` is the canonical payload image; the preconditions are sorted when they are encoded (P8-03).
        """
        guard = self._require_current()
        selected = self.welcome.selected
        if len(payload) > selected.typed_payload:
            raise LocalProtocolError(f"a payload of {len(payload)} bytes; the server takes {selected.typed_payload}")
        conditions = tuple(preconditions)
        return self._ask(
            Ask.COMMAND,
            None,
            lambda request_id: fr.CoordCommand(
                request_id=request_id,
                authority_guard=guard,
                operation_id=operation_id,
                command_kind=kind,
                payload=payload,
                preconditions=conditions,
            ),
        )

    def lookup(self, operation_id: OperationId) -> int:
        """Ask for the stored result of an operation (P8-02)."""
        guard = self._require_active()
        return self._ask(
            Ask.LOOKUP,
            None,
            lambda request_id: fr.GetOperationResult(
                request_id=request_id, authority_guard=guard, operation_id=operation_id
            ),
        )

    def open_snapshot(
        self,
        *,
        keep: bool = True,
        reserve: bool = False,
        replaces: SubscriptionId | None = None,
        credit: tuple[int, int] | None = None,
    ) -> int:
        """Take a complete snapshot; pages are asked for and verified by the session (P9-16).

        ``reserve`` continues it with a subscription whose initial credit is ``credit`` (count, bytes; default the
        selected maxima). ``replaces`` names a paused subscription that the new one heals. The events are
        ``SnapshotReady`` and, when reserved, ``StreamLive``; ``Refused`` otherwise.
        """
        guard = self._require_active()
        granted = self._credit(credit) if reserve else (0, 0)
        snapshot = SnapshotAsk(keep or reserve, reserve, replaces, granted)
        snapshot.handle = self._ask(
            Ask.BEGIN,
            snapshot,
            lambda request_id: fr.OpenSnapshot(
                request_id=request_id,
                authority_guard=guard,
                selector=WHOLE_AUTHORITY_SELECTOR,
                reserve_subscription=reserve,
                replace_paused_subscription=replaces,
            ),
        )
        return snapshot.handle

    def subscribe(
        self, after: EventCut, *, credit: tuple[int, int] | None = None, projection: Projection | None = None
    ) -> int:
        """Follow the events after a cut (0 = from the first event). ``projection`` is what is known at that cut."""
        guard = self._require_current()
        granted = self._credit(credit)
        known = Projection((), after, complete=after == 0) if projection is None else projection
        if known.cut != after or known.stale is not None:
            raise LocalProtocolError("the projection is not the state at the cut to follow from")
        return self._ask(
            Ask.SUBSCRIBED,
            SubscribeAsk(known, granted),
            lambda request_id: fr.Subscribe(
                request_id=request_id,
                authority_guard=guard,
                after_event_sequence=after,
                initial_credit_count=granted[0],
                initial_credit_bytes=granted[1],
            ),
        )

    def consumed(self, event: ev.WorkEvent) -> None:
        """The application is done with an event: its credit goes back to the server when half of it was used."""
        stream = self._streams.get(event.subscription_id)
        owed = None if stream is None or self._state is not ClientState.ACTIVE else stream.consumed(event)
        if owed is not None:
            self._send(fr.CreditFrame(subscription_id=event.subscription_id, add_count=owed[0], add_bytes=owed[1]))

    # -- answers ----------------------------------------------------------------------------------------------------

    def _work_frame(self, frame: Frame, body_bytes: int) -> None:
        if isinstance(frame, fr.CoordEvent):
            outcome = self._stream(frame.subscription_id).event(frame, body_bytes)
            if outcome is not None:
                self._emit(outcome)
        elif isinstance(frame, fr.Gap):
            self._emit(self._stream(frame.subscription_id).gap(frame))
        elif isinstance(frame, fr.CoordCommandResult):
            self._take(frame.request_id, Ask.COMMAND)
            self._emit(ev.OperationReply(frame.request_id, frame.operation))
        elif isinstance(frame, fr.OperationResultFrame):
            self._take(frame.request_id, Ask.LOOKUP)
            self._emit(ev.OperationReply(frame.request_id, frame.operation))
        elif isinstance(frame, fr.SnapshotBegin):
            self._snapshot_begin(frame)
        elif isinstance(frame, fr.SnapshotPage):
            self._snapshot_page(frame)
        elif isinstance(frame, fr.SnapshotEnd):
            self._snapshot_end(frame)
        elif isinstance(frame, fr.Subscribed):
            self._subscribed(frame)
        elif isinstance(frame, fr.ReplayBegin):
            self._replay_begin(frame)
        elif isinstance(frame, fr.ReplayPage):
            self._replay_page(frame)
        elif isinstance(frame, fr.ReplayEnd):
            self._replay_end(frame)
        elif isinstance(frame, fr.Ack):
            self._applied(frame)
        else:
            raise PeerFault(ErrorCode.PROTOCOL_ERROR, f"{type(frame).__name__} was not asked for")

    def _snapshot_begin(self, frame: fr.SnapshotBegin) -> None:
        snapshot = self._snapshot(frame.request_id, Ask.BEGIN)
        welcome = self.welcome
        if (frame.subscription_id is not None) != snapshot.reserve:
            raise PeerFault(ErrorCode.PROTOCOL_ERROR, "a reservation that was not asked for, or none that was")
        snapshot.staging = SnapshotStaging(frame, self._require_active(), welcome.standing, keep=snapshot.keep)
        if snapshot.replaces is not None:
            self._streams.pop(snapshot.replaces, None)
        if frame.subscription_id is not None:
            self._add_stream(
                Stream(
                    snapshot.handle,
                    frame.subscription_id,
                    welcome.selected,
                    Projection((), frame.base_event_sequence),
                    StreamState.RESERVED_SNAPSHOT,
                )
            )
        self._continue(frame.request_id, snapshot, snapshot.staging)

    def _snapshot_page(self, frame: fr.SnapshotPage) -> None:
        snapshot = self._snapshot(frame.request_id, Ask.PAGE)
        staging = _staging(snapshot)
        staging.page(frame)
        self._continue(frame.request_id, snapshot, staging)

    def _continue(self, request_id: int, snapshot: SnapshotAsk, staging: SnapshotStaging) -> None:
        """Ask for the next page, or wait for END under the id that stays occupied (P9-17..20)."""
        cursor = staging.cursor
        if cursor is None:
            self._requests[request_id] = Request(Ask.END, snapshot)
        else:
            self._ask(
                Ask.PAGE,
                snapshot,
                lambda next_id: fr.SnapshotNext(request_id=next_id, snapshot_id=staging.snapshot_id, cursor=cursor),
            )

    def _snapshot_end(self, frame: fr.SnapshotEnd) -> None:
        request = self._snapshot(frame.request_id, Ask.END)
        staging = _staging(request)
        snapshot = staging.end(frame)
        self._synced = True
        if self._adopting:
            self._config.pins.mark_current(self.welcome.fingerprint, self.welcome.standing)
            self._adopting = False
        stream = None if snapshot.subscription_id is None else self._streams.get(snapshot.subscription_id)
        if stream is not None and stream.state is StreamState.RESERVED_SNAPSHOT:
            stream.projection = Projection(snapshot.records, snapshot.base)
        self._emit(ev.SnapshotReady(request.handle, snapshot))
        self._ask(
            Ask.APPLIED,
            request,
            lambda request_id: fr.SnapshotApplied(
                request_id=request_id,
                snapshot_id=staging.snapshot_id,
                subscription_id=snapshot.subscription_id,
                initial_credit_count=request.credit[0],
                initial_credit_bytes=request.credit[1],
            ),
        )

    def _applied(self, frame: fr.Ack) -> None:
        request = self._take(frame.request_id, Ask.APPLIED).detail
        if isinstance(request, ReplayAsk):
            self._replay_applied(request)
            return
        if not isinstance(request, SnapshotAsk):
            raise PeerFault(ErrorCode.PROTOCOL_ERROR, "an ACK of something that is not applied")
        subscription_id = _staging(request).subscription_id
        if subscription_id is not None and (stream := self._streams.get(subscription_id)) is not None:
            self._go_live(stream, request.handle, request.credit)

    def _subscribed(self, frame: fr.Subscribed) -> None:
        detail = self._take(frame.request_id, Ask.SUBSCRIBED).detail
        if not isinstance(detail, SubscribeAsk):
            raise PeerFault(ErrorCode.PROTOCOL_ERROR, "a subscription that was not asked for")
        if frame.next_delivery_sequence != 1:
            raise PeerFault(ErrorCode.PROTOCOL_ERROR, "a new subscription does not start at delivery 1")
        stream = Stream(
            frame.request_id, frame.subscription_id, self.welcome.selected, detail.projection, StreamState.LIVE
        )
        self._add_stream(stream)
        self._synced = True
        self._go_live(stream, frame.request_id, detail.credit)

    def _go_live(self, stream: Stream, request_id: int, credit: tuple[int, int]) -> None:
        if stream.state in (StreamState.RESERVED_SNAPSHOT, StreamState.LIVE):
            stream.go_live(*credit)
            self._emit(ev.StreamLive(request_id, stream.subscription_id))

    def _refuse(self, request_id: int, error: ProtocolError) -> None:
        request = self._requests.pop(request_id, None)
        if request is None:
            if not error.fatal:
                raise PeerFault(ErrorCode.PROTOCOL_ERROR, "an error of a request that is not open")
            return
        if isinstance(request.detail, ReplayAsk):
            self._replay_refused(request.detail, request.ask, error)
            return
        if isinstance(request.detail, SnapshotAsk):
            self._drop_reservation(request.detail, error)
            request_id = request.detail.handle
            if request.ask is Ask.APPLIED and not request.detail.reserve:
                return  # the snapshot is complete and published; only its lease was gone already
        self._emit(ev.Refused(request_id, error))

    def _drop_reservation(self, snapshot: SnapshotAsk, error: ProtocolError) -> None:
        staging = snapshot.staging
        reserved = None if staging is None else staging.subscription_id
        # It may be replaced already by the snapshot that healed it.
        stream = None if reserved is None else self._streams.get(reserved)
        if stream is not None and stream.state is StreamState.RESERVED_SNAPSHOT:
            self._emit(stream.go_stale(f"the snapshot that it continues was refused ({error.code.name})"))


def _staging(snapshot: SnapshotAsk) -> SnapshotStaging:
    if snapshot.staging is None:
        raise PeerFault(ErrorCode.PROTOCOL_ERROR, "a snapshot frame before SNAPSHOT_BEGIN")
    return snapshot.staging
