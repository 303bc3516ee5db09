"""Clients that heal by replay, in frames, and verify what they are told."""

from __future__ import annotations

from typing import Any

from cext.digest import ReplayDigest
from sidecar.coordinator.engine.policy import Policy
from sidecar.coordinator.engine.subscription import Subscription
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import Capability, Scope
from sidecar.coordinator.wire.ids import EventCut, ReplayId, SubscriptionId
from sidecar.coordinator.wire.limits import HARD, LEASE_SECONDS, Limits, QuotaCaps
from sidecar.coordinator.wire.records import ReplayEvent
from tests.unit.engine.harness import Client, World, make

REPLAY = int(Capability.EVENT_REPLAY)
PAGES_OF_THREE = Limits(16_384, 4_096, 3, 2_048, 1_024, 65_536)
QUEUE = 8
"""Frames that may wait for all subscriptions of one principal: a pause is cheap."""


def small_world(**policy: Any) -> World:
    """A world in which a subscription without credit pauses at its ninth event."""
    return World(policy=Policy(quotas={"queue_frames": QuotaCaps(None, QUEUE, 60)}, **policy))


def reader_of(world: World, *, selected: Limits = HARD, principal: int = 1) -> Client:
    """A client that sees one event of each command that another principal sends, and may replay."""
    return world.connect(principal, scopes=Scope.WORK_READ, capabilities=REPLAY, selected=selected)


def open_replay(client: Client, subscription: bytes, after: int, **options: Any) -> fr.OpenReplay:
    return fr.OpenReplay(
        request_id=options.get("request") or next(client.requests),
        authority_guard=options.get("guard") or client.guard,
        subscription_id=SubscriptionId(subscription),
        after_event_sequence=EventCut(after),
    )


def next_page(client: Client, replay: bytes, cursor: bytes | None, request: int | None = None) -> fr.ReplayNext:
    return fr.ReplayNext(
        request_id=request or next(client.requests), replay_id=ReplayId(replay), cursor=cursor or b"none"
    )


def applied(client: Client, begin: fr.ReplayBegin, count: int = 0, nbytes: int = 0, **options: Any) -> fr.ReplayApplied:
    return fr.ReplayApplied(
        request_id=next(client.requests),
        replay_id=ReplayId(options.get("replay", begin.replay_id)),
        subscription_id=SubscriptionId(options.get("subscription", begin.subscription_id)),
        initial_credit_count=count,
        initial_credit_bytes=nbytes,
    )


def state(client: Client, subscription: bytes) -> Subscription:
    return client.conn.subscriptions[subscription]


def pause(client: Client, maker: Client, *, missed: int = QUEUE + 1, document: bytes = b"d") -> bytes:
    """A subscription of ``client`` at the head of this moment that missed so many visible events; its id."""
    subscription = client.live(client.world.disk.last_sequence, 0, 0)
    make(maker, missed, 100_000 + client.world.disk.last_sequence, document=document)
    client.pull()
    assert client.gaps()[-1].subscription_id == subscription
    return subscription


def pause_by_expiry(client: Client) -> bytes:
    """A subscription that paused at the head of this moment and has missed nothing yet; its id."""
    begin = client.ask(client.open_snapshot(reserve=True))[0]
    assert isinstance(begin, fr.SnapshotBegin)
    assert begin.subscription_id is not None
    client.world.advance(LEASE_SECONDS)
    client.pull()
    assert client.gaps()[-1].subscription_id == begin.subscription_id
    return begin.subscription_id


def begin_replay(client: Client, subscription: bytes, after: int | None = None) -> fr.ReplayBegin:
    """OPEN_REPLAY of what has events to replay."""
    cut = state(client, subscription).last_event if after is None else after
    return client.one(open_replay(client, subscription, cut), fr.ReplayBegin)


class Replay:
    """A replay that was read to its end and verified as a client must (P10-32)."""

    def __init__(self, client: Client, subscription: bytes, after: int) -> None:
        request = open_replay(client, subscription, after)
        begin, *rest = client.ask(request)
        assert isinstance(begin, fr.ReplayBegin), begin
        assert (begin.request_id, begin.subscription_id) == (request.request_id, subscription)
        self.client, self.begin = client, begin
        self.pages: list[fr.ReplayPage] = []
        ends = [frame for frame in rest if isinstance(frame, fr.ReplayEnd)]
        cursor = begin.first_cursor
        assert (cursor is None) == bool(ends) == (begin.first_event is None)
        while cursor is not None:
            asked = next_page(client, begin.replay_id, cursor)
            page, *more = client.ask(asked)
            assert isinstance(page, fr.ReplayPage), page
            assert not any(isinstance(frame, fr.ReplayPage) for frame in more)
            assert (page.request_id, page.replay_id) == (asked.request_id, begin.replay_id)
            assert (page.cursor, page.page_index) == (cursor, len(self.pages))
            self.pages.append(page)
            cursor = page.next_cursor
            ends += [frame for frame in more if isinstance(frame, fr.ReplayEnd)]
            assert (cursor is None) == bool(ends)
        (self.end,) = ends
        self.events: list[ReplayEvent] = [event for page in self.pages for event in page.events]
        self.sequences = [int(event.event_sequence) for event in self.events]
        assert self.sequences == sorted(set(self.sequences))
        assert all(after < sequence <= begin.replay_cut for sequence in self.sequences)
        assert begin.first_event == (self.sequences[0] if self.sequences else None)
        assert (self.end.page_count, self.end.event_count) == (len(self.pages), len(self.events))
        guard = client.guard
        digest = ReplayDigest(
            guard.coordinator_id,
            guard.authority_epoch,
            guard.activation_sequence,
            subscription,
            after,
            begin.replay_cut,
            len(self.events),
        )
        for event in self.events:
            digest.update(event.encode())
        assert digest.digest() == self.end.canonical_sha256

    def apply(self, count: int = HARD.credit_count, nbytes: int = 1 << 16) -> list[fr.Frame]:
        """REPLAY_APPLIED; what comes behind its ACK."""
        request = applied(self.client, self.begin, count, nbytes)
        ack, *rest = self.client.ask(request)
        assert ack == fr.Ack(request_id=request.request_id)
        return rest
