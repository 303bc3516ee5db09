"""What an operator sees of an engine: positions and counts of everything held, and nothing that is secret."""

from __future__ import annotations

import json
from typing import Any

from sidecar.base.ed25519 import digest_text
from sidecar.coordinator.engine.policy import Policy
from sidecar.coordinator.engine.quota import Resource
from sidecar.coordinator.wire.enums import Capability, GapReason
from sidecar.coordinator.wire.frames import OpenReplay, ReplayBegin, SnapshotBegin
from sidecar.coordinator.wire.ids import EventCut, SubscriptionId
from sidecar.coordinator.wire.limits import QUOTAS, QuotaCaps
from tests.canary import CANARY, spellings_in
from tests.unit.engine.harness import SMALL, Client, World


def seen(world: World) -> dict[str, Any]:
    document, views = world.engine.inspect(world.now)
    assert list(views.values()) == document["connections"]
    found: dict[str, Any] = json.loads(json.dumps(document))
    return found


def only_subscription(world: World) -> dict[str, Any]:
    (sub,) = [sub for conn in seen(world)["connections"] for sub in conn["subscriptions"]]
    return dict(sub)


def test_an_empty_engine_holds_nothing() -> None:
    world = World()
    document = seen(world)
    assert (document["principals"], document["connections"]) == ([], [])
    assert {name: quota["used"] for name, quota in document["quotas"].items()} == dict.fromkeys(QUOTAS, 0)
    assert {name: quota["cap"] for name, quota in document["quotas"].items()} == {
        name: caps.server for name, caps in QUOTAS.items()
    }
    assert document["authority"]["fenced"] is None


def test_a_connection_is_told_with_its_grant() -> None:
    world = World()
    client = world.connect(2, scopes=3, capabilities=int(Capability.EVENT_REPLAY), expires_in=100)
    (conn,) = seen(world)["connections"]
    assert conn["key_id"] == digest_text(client.conn.grant.key_id)
    assert conn["scopes"] == ["WORK_READ", "WORK_COMMAND"]
    assert conn["capabilities"] == ["EVENT_REPLAY"]
    assert 99 <= conn["grant_seconds"] <= 100
    assert (conn["closing"], conn["writable"], conn["requests"]) == (None, True, 0)
    (principal,) = seen(world)["principals"]
    assert principal["key_id"] == conn["key_id"]
    assert principal["quotas"]["connections"] == {"used": 1, "cap": QUOTAS["connections"].principal}
    client.detach()
    assert (seen(world)["connections"], seen(world)["principals"]) == ([], [])


def test_a_stalled_subscription_is_told_with_what_it_lacks() -> None:
    world = World()
    reader, writer = world.connect(1), world.connect(2)
    sub = reader.live(0, count=1)
    assert only_subscription(world)["stalled"] is False
    for number in range(1, 4):
        writer.done(writer.create(number))
    delivered = [event.event_sequence for event in (reader.pull(), reader.events())[1]]
    told, head = only_subscription(world), seen(world)["events"]["durable"]
    assert delivered == [1]
    assert told["id"] == sub.hex()
    assert (told["state"], told["stalled"], told["deliveries"], told["last_event"]) == ("LIVE", True, 1, 1)
    assert told["credit_count"] == 0
    assert told["lag"] == told["queue_frames"] == head - 1 > 1
    assert told["queue_bytes"] > 0
    reader.send(reader.credit(sub, 100, 0))
    reader.pull()
    told = only_subscription(world)
    assert (told["stalled"], told["lag"], told["queue_frames"], told["last_event"]) == (False, 0, 0, head)


def test_a_subscription_without_anything_to_wait_for_has_no_lag() -> None:
    """A reader that may not see the last events is not behind, although its cursor rests before them."""
    world = World()
    reader, writer = world.connect(1, scopes=1), world.connect(2)
    reader.live()
    writer.done(writer.create(1))
    reader.pull()
    told = only_subscription(world)
    assert told["last_event"] < seen(world)["events"]["durable"]
    assert told["lag"] == 0


def overflown(world: World) -> tuple[Client, bytes]:
    """A subscription whose queue overflowed behind its first event."""
    reader, writer = world.connect(1, capabilities=int(Capability.EVENT_REPLAY)), world.connect(2)
    sub = reader.live(0, count=1)
    for number in range(1, 5):
        writer.done(writer.create(number))
        reader.pull()
    assert [gap.reason for gap in reader.gaps()] == [GapReason.QUEUE_OVERFLOW]
    return reader, sub


def tight() -> World:
    return World(policy=Policy(quotas={"queue_frames": QuotaCaps(None, 3, 100)}))


def test_a_gap_counts_as_lag_since_the_last_delivery_and_so_does_its_replay() -> None:
    world = tight()
    reader, sub = overflown(world)
    told, head = only_subscription(world), seen(world)["events"]["durable"]
    assert (told["state"], told["lag"], told["queue_frames"]) == ("PAUSED_GAP", head - 1, 0)
    begin = reader.one(
        OpenReplay(
            request_id=next(reader.requests),
            authority_guard=reader.guard,
            subscription_id=SubscriptionId(sub),
            after_event_sequence=EventCut(1),
        ),
        ReplayBegin,
    )
    told = only_subscription(world)
    assert (told["state"], told["lag"]) == ("REPLAYING", head - 1)
    (lease,) = next(conn["leases"] for conn in seen(world)["connections"] if conn["leases"])
    assert (lease["kind"], lease["id"], lease["subscription_id"]) == ("replay", begin.replay_id.hex(), sub.hex())
    assert lease["pinned_bytes"] == seen(world)["quotas"]["pinned_bytes"]["used"] > 0


def test_a_snapshot_lease_is_told_with_its_time_and_bytes() -> None:
    world = World()
    writer = world.connect(1)
    for number in range(1, 6):
        writer.done(writer.create(number))
    reader = world.connect(2, selected=SMALL)
    begin = reader.one(reader.open_snapshot(reserve=True), SnapshotBegin)
    reader.ask(reader.next_page(begin, begin.first_cursor))
    world.advance(20)
    (lease,) = next(conn["leases"] for conn in seen(world)["connections"] if conn["leases"])
    assert (lease["kind"], lease["id"], lease["pages"], lease["ended"]) == (
        "snapshot",
        begin.snapshot_id.hex(),
        1,
        False,
    )
    assert lease["seconds_left"] == 40
    assert lease["pinned_bytes"] == world.used()["pinned_bytes"]
    assert only_subscription(world)["state"] == "RESERVED_SNAPSHOT"
    world.advance(41)
    assert not any(conn["leases"] for conn in seen(world)["connections"])


def test_every_level_of_quotas_is_what_is_charged() -> None:
    world = World()
    first, second = world.connect(1), world.connect(1)
    first.live()
    second.live()
    second.send(second.open_snapshot())
    document = seen(world)
    (principal,) = document["principals"]
    for resource in Resource:
        own = world.engine._runtime.quotas.principal(first.conn.grant.key_id)
        assert principal["quotas"][resource.label]["used"] == own.used(resource)
        assert document["quotas"][resource.label]["used"] == own.used(resource)
    used = [conn["quotas"]["subscriptions"]["used"] for conn in document["connections"]]
    assert used == [1, 1]
    assert document["quotas"]["subscriptions"]["used"] == 2
    assert all(
        quota["cap"] is not None or quota["used"]
        for conn in document["connections"]
        for quota in conn["quotas"].values()
    )


def test_a_fenced_engine_says_why() -> None:
    world = World()
    world.connect()
    world.engine.fence("the disk is gone")
    document = seen(world)
    assert document["authority"]["fenced"] == "the disk is gone"
    assert [conn["closing"] for conn in document["connections"]] == ["AUTHORITY_FENCED"]


def test_nothing_secret_is_told() -> None:
    """Documents, object ids, cursors and the fencing token stay where they are."""
    world = World()
    client = world.connect(1, selected=SMALL)
    for number in range(1, 8):
        client.done(client.create(number, CANARY + bytes([number])))
    begin = client.one(client.open_snapshot(), SnapshotBegin)
    assert begin.first_cursor is not None
    client.live(0, count=1, nbytes=1000)
    text = json.dumps(seen(world))
    assert not spellings_in(text)
    assert begin.first_cursor.hex() not in text
    assert world.authority.certificate.fencing_token.hex() not in text
    assert (7).to_bytes(16, "big").hex() not in text
