"""Healing a paused stream by replay: the conversation from OPEN_REPLAY to the ACK of REPLAY_APPLIED (P10-22..35).

At every moment of it exactly one request is open, and its reply ends the replay when it can not go on: a GAP makes the
replay void (P10-35), a refusal leaves the stream paused, a replay above the bound is left where it is.
"""

from __future__ import annotations

from sidecar.coordinator import client_events as ev
from sidecar.coordinator.client_errors import PeerFault, ReplayTooLarge
from sidecar.coordinator.client_replay import ReplayStaging
from sidecar.coordinator.client_requests import Ask, ClientRequests, ReplayAsk, Request
from sidecar.coordinator.client_stream import StreamState
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import Capability, ErrorCode
from sidecar.coordinator.wire.errors import CursorInvalid, LocalProtocolError, ProtocolError
from sidecar.coordinator.wire.ids import SubscriptionId


class ClientHealing(ClientRequests):
    """A connection that can replay what a paused stream missed."""

    def replayable(self, subscription_id: SubscriptionId) -> bool:
        """Can a replay heal this subscription? It needs EVENT_REPLAY and a stream that the server paused (P10-22); a
        subscription ends with its connection (OPEN P10-d).

        Where this side found the fault there is nothing to replay from: such a connection is not believed any more.
        """
        stream = self._streams.get(subscription_id)
        return (
            stream is not None
            and not self.closing
            and stream.state is StreamState.PAUSED_GAP
            and stream.heal_from is not None
            and bool(self.welcome.capabilities & Capability.EVENT_REPLAY)
        )

    def open_replay(self, subscription_id: SubscriptionId, *, credit: tuple[int, int] | None = None) -> int:
        """Replay what a paused subscription missed and resume it with ``credit`` (default: what it began with).

        ``ReplayReady`` and ``StreamLive`` follow with the returned request id, or ``Refused``: then the subscription
        waits for another replay or for a snapshot that replaces it. ``Refused`` with ``ReplayTooLarge`` is this side's
        own; the server goes on holding the replay until its lease runs out.
        """
        guard = self._require_current()
        stream = self._streams.get(subscription_id)
        if stream is None or stream.heal_from is None or not self.replayable(subscription_id):
            raise LocalProtocolError("a replay needs EVENT_REPLAY and a subscription that the server paused")
        after = stream.heal_from
        replay = ReplayAsk(stream, after, self._credit(stream.window if credit is None else credit))
        replay.handle = self._ask(
            Ask.REPLAY_BEGIN,
            replay,
            lambda request_id: fr.OpenReplay(
                request_id=request_id,
                authority_guard=guard,
                subscription_id=subscription_id,
                after_event_sequence=after,
            ),
        )
        stream.replaying(replay.handle)
        return replay.handle

    def _replay_begin(self, frame: fr.ReplayBegin) -> None:
        replay = self._replay(frame.request_id, Ask.REPLAY_BEGIN)
        if replay.stream.replay != replay.handle:
            self._leave(replay, frame.request_id, ends=frame.first_cursor is None)
            return
        guard = self._require_active()
        replay.staging = ReplayStaging(frame, guard, replay.stream, replay.after, self._config.replay)
        self._replay_on(replay, frame.request_id, replay.staging)

    def _replay_page(self, frame: fr.ReplayPage) -> None:
        replay = self._replay(frame.request_id, Ask.REPLAY_PAGE)
        staging = _staging(replay)
        if replay.stream.replay == replay.handle:
            try:
                staging.page(frame)
            except ReplayTooLarge as error:
                replay.too_large, replay.stream.replay = error, None
            else:
                self._replay_on(replay, frame.request_id, staging)
                return
        self._leave(replay, frame.request_id, ends=frame.next_cursor is None)

    def _replay_on(self, replay: ReplayAsk, request_id: int, staging: ReplayStaging) -> None:
        """Ask for the next page, or wait for END under the id that stays occupied (P9-17..20, P10-29)."""
        cursor = staging.cursor
        if cursor is None:
            self._requests[request_id] = Request(Ask.REPLAY_END, replay)
        else:
            self._ask(
                Ask.REPLAY_PAGE,
                replay,
                lambda next_id: fr.ReplayNext(request_id=next_id, replay_id=staging.replay_id, cursor=cursor),
            )

    def _replay_end(self, frame: fr.ReplayEnd) -> None:
        replay = self._replay(frame.request_id, Ask.REPLAY_END)
        if replay.stream.replay != replay.handle:
            self._leave(replay, frame.request_id, ends=False)
            return
        staging = _staging(replay)
        verified = staging.end(frame)
        replay.stream.replayed(verified)
        self._emit(ev.ReplayReady(replay.handle, verified))
        self._ask(
            Ask.APPLIED,
            replay,
            lambda request_id: fr.ReplayApplied(
                request_id=request_id,
                replay_id=staging.replay_id,
                subscription_id=replay.stream.subscription_id,
                initial_credit_count=replay.credit[0],
                initial_credit_bytes=replay.credit[1],
            ),
        )

    def _replay_applied(self, replay: ReplayAsk) -> None:
        # A GAP may have overtaken this ACK; the stream is paused again then.
        if replay.stream.replay == replay.handle:
            replay.stream.go_live(*replay.credit)
            self._emit(ev.StreamLive(replay.handle, replay.stream.subscription_id))

    def _replay_refused(self, replay: ReplayAsk, ask: Ask, error: ProtocolError) -> None:
        under_way = replay.stream.replay == replay.handle
        if under_way:
            replay.stream.paused_again()
        if ask is not Ask.APPLIED:
            self._emit(ev.Refused(replay.handle, error))
        elif under_way:  # it was told already; only that the stream goes on is not true any more
            self._emit(replay.stream.not_resumed(f"the replay was not applied ({error.code.name})"))

    def _leave(self, replay: ReplayAsk, request_id: int, *, ends: bool) -> None:
        """A reply of a replay that is void or too large: ask nothing more, and take the END that still follows."""
        if ends:
            self._requests[request_id] = Request(Ask.REPLAY_END, replay)
        else:
            error = replay.too_large or CursorInvalid("a GAP made the replay void")
            self._emit(ev.Refused(replay.handle, error))

    def _replay(self, request_id: int, ask: Ask) -> ReplayAsk:
        detail = self._take(request_id, ask).detail
        if not isinstance(detail, ReplayAsk):
            raise PeerFault(ErrorCode.PROTOCOL_ERROR, f"{ask.value} answers no replay")
        return detail


def _staging(replay: ReplayAsk) -> ReplayStaging:
    if replay.staging is None:
        raise PeerFault(ErrorCode.PROTOCOL_ERROR, "a replay frame before REPLAY_BEGIN")
    return replay.staging
