"""The client library against real processes: kills, stalls, restarts, rotation, renewal, overflow."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.coordinator import client_events as ev
from sidecar.coordinator.authority.certificate import WitnessPin
from sidecar.coordinator.authority.keyfile import KEY_NAME, init_authority_key
from sidecar.coordinator.client_errors import AuthorityChanged, ContinuityLost, VerificationFailed
from sidecar.coordinator.client_link import Subscription
from sidecar.coordinator.client_trust import Admission, Pins
from sidecar.coordinator.client_watch import Broken, Cut, Restored, watch
from sidecar.coordinator.pins import PinFile
from sidecar.coordinator.wire.enums import EventKind, ObjectKind
from sidecar.coordinator.wire.ids import EventCut
from sidecar.coordinator.wire.records import Succeeded
from tests.e2e.clients import PATIENT, connect, witness_pin
from tests.e2e.cluster import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, certificate_seconds=5) as running:
        yield running


def restart(cluster: Cluster) -> None:
    cluster.kill()
    cluster.start_serve()


@pytest.mark.req("P8-37", "P8-38", "P8-39", "P12-31")
@pytest.mark.asyncio
async def test_commands_in_flight_at_a_kill_are_each_done_exactly_once(cluster: Cluster, tmp_path: Path) -> None:
    pins = PinFile(tmp_path / "pins" / "pins.json")
    async with await connect(cluster, pins) as client:
        first = await client.create_objective(b'{"n":0}')
        work = [asyncio.ensure_future(client.create_objective(b'{"n":%d}' % n)) for n in range(1, 1000)]
        await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.to_thread(restart, cluster)
        outcomes = [first, *await asyncio.gather(*work)]
        assert any(outcome.recovered for outcome in outcomes)
        assert all(isinstance(outcome.result, Succeeded) for outcome in outcomes)
        snapshot = await client.snapshot()
        objectives = [record for record in snapshot.records if record.kind is ObjectKind.OBJECTIVE]
        assert len(objectives) == 1000
        assert {record.revision for record in objectives} == {1}
        for outcome in (outcomes[0], outcomes[-1]):
            assert await client.operation(outcome.operation_id) == outcome.result
        assert client.welcome.standing.epoch == 2
    (pin,) = PinFile(tmp_path / "pins" / "pins.json").pins
    assert (pin.current.epoch, pin.seen.epoch) == (2, 2)


@pytest.mark.req("P8-37", "P13-07")
@pytest.mark.asyncio
async def test_a_server_that_stands_still_is_left_and_asked_again(cluster: Cluster) -> None:
    assert cluster.serve is not None
    async with await connect(cluster, Pins(), patience=0.5) as client:
        os.kill(cluster.serve.pid, signal.SIGSTOP)
        asked = asyncio.ensure_future(client.create_objective(b"{}"))
        await asyncio.wait([asked], timeout=1.0)
        assert not asked.done()
        os.kill(cluster.serve.pid, signal.SIGCONT)
        outcome = await asked
        assert outcome.recovered
        assert isinstance(outcome.result, Succeeded)
        snapshot = await client.snapshot()
        assert len([record for record in snapshot.records if record.kind is ObjectKind.OBJECTIVE]) == 1


@pytest.mark.req("P12-18", "P12-15")
@pytest.mark.asyncio
async def test_renewals_keep_the_connection_and_their_absence_ends_it(cluster: Cluster) -> None:
    renewals: asyncio.Queue[ev.Event] = asyncio.Queue()
    async with await connect(cluster, Pins(), notice=renewals.put_nowait) as client:
        first = client.welcome.certificate.expires_at
        expiry = first
        while expiry <= first + 2:  # one whole certificate life beyond the first
            event = await renewals.get()
            if isinstance(event, ev.Renewed):
                expiry = event.expires_at
        assert await client.ping() >= 0
        assert cluster.witness is not None
        cluster.witness.kill()
        while not isinstance(event := await renewals.get(), ev.Closed):
            pass
        assert client.down is event.error


@pytest.mark.req("W2-07", "W2-08", "P5-09")
@pytest.mark.asyncio
async def test_a_moved_socket_and_a_new_incarnation_are_the_same_authority(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "pins" / "pins.json"
    async with await connect(cluster, PinFile(path)) as client:
        before = client.welcome
    cluster.stop()
    moved = cluster.layout.run / "elsewhere.sock"
    cluster.configure(cluster.serve_config, {"coordinator": {"socket": str(moved)}})
    cluster.start_serve()
    async with await connect(cluster, PinFile(path), socket=moved, witness=None) as client:
        assert client.welcome.admission is Admission.HIGHER
        assert client.welcome.fingerprint == before.fingerprint
        assert client.welcome.standing.incarnation != before.standing.incarnation


@pytest.mark.req("W2-09", "W2-06", "P12-27", "P5-09")
@pytest.mark.asyncio
async def test_a_rotated_authority_is_refused_and_the_pin_stays(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "pins" / "pins.json"
    async with await connect(cluster, PinFile(path)):
        pass
    before = path.read_bytes()
    cluster.stop()
    (cluster.state_dir / KEY_NAME).unlink()
    init_authority_key(cluster.state_dir, os.urandom)
    cluster.start_serve()
    with pytest.raises(AuthorityChanged, match="authority_changed"):
        await connect(cluster, PinFile(path))
    assert path.read_bytes() == before


@pytest.mark.req("P12-08", "P12-19")
@pytest.mark.asyncio
@pytest.mark.parametrize("part", ["id", "key"])
async def test_another_witness_than_the_given_one_is_refused(cluster: Cluster, part: str) -> None:
    right = witness_pin(cluster)
    wrong = (
        WitnessPin(b"\x01" * 16, right.public_key)
        if part == "id"
        else WitnessPin(right.witness_id, cluster.key("reader").public_key)
    )
    pins = Pins()
    with pytest.raises(VerificationFailed):
        await connect(cluster, pins, witness=wrong)
    assert pins.pins == ()


@pytest.mark.req("P10-19", "P10-12", "P9-23")
@pytest.mark.asyncio
async def test_a_watch_tells_a_restart_and_goes_on_without_a_hole(cluster: Cluster) -> None:
    pins = Pins()
    async with await connect(cluster, pins) as client, await connect(cluster, pins) as writer:
        await writer.create_objective(b'{"n":1}')
        stream = watch(client, policy=PATIENT)
        start = await anext(stream)
        assert isinstance(start, Cut)
        assert start.snapshot.record_count == len(start.changed) == 2
        await writer.create_objective(b'{"n":2}')
        events = [await anext(stream), await anext(stream)]
        assert [event.kind for event in events if isinstance(event, ev.WorkEvent)] == [
            EventKind.OBJECTIVE_CHANGED,
            EventKind.OPERATION_CHANGED,
        ]
        await asyncio.to_thread(cluster.kill)
        broken = await anext(stream)
        assert isinstance(broken, Broken)
        assert broken.connection is not None
        assert broken.loss.last_event == 4
        await asyncio.to_thread(cluster.start_serve)
        await writer.create_objective(b'{"n":3}')
        restored = await anext(stream)
        assert isinstance(restored, Restored)
        assert restored.welcome.standing.epoch == 2
        healed = await anext(stream)
        assert isinstance(healed, Cut)
        assert healed.gone == ()
        seen = {record.key() for record in healed.changed}
        while len(seen) < 2:  # what the healing cut does not hold yet arrives as events after it
            event = await anext(stream)
            assert isinstance(event, ev.WorkEvent)
            assert event.sequence > healed.snapshot.base
            seen.add(event.object.encode())
        await stream.aclose()


async def drained(events: Subscription) -> None:
    async for _ in events:
        pass


@pytest.mark.req("P10-21", "P9-26")
@pytest.mark.asyncio
async def test_an_overflow_is_a_gap_and_a_fresh_snapshot_heals_it(cluster: Cluster) -> None:
    pins = Pins()
    async with await connect(cluster, pins) as client, await connect(cluster, pins) as writer:
        _, events = await client.follow(credit=(1, 4_194_304))
        await asyncio.gather(*(writer.create_objective(b"{}") for _ in range(520)))
        assert (await anext(events)).delivery == 1
        with pytest.raises(ContinuityLost) as caught:
            await drained(events)
        assert caught.value.healable
        snapshot, healed = await client.follow(replaces=events.subscription_id)
        assert snapshot.record_count == 1040
        await writer.create_objective(b"{}")
        assert (await anext(healed)).sequence == snapshot.base + 1
        assert client.down is None


@pytest.mark.req("P10-02", "P10-15")
@pytest.mark.asyncio
async def test_following_from_the_first_event_builds_the_snapshot(cluster: Cluster) -> None:
    async with await connect(cluster, Pins()) as client:
        made = await client.create_objective(b'{"n":1}')
        for number in range(2, 40):
            await client.create_objective(b'{"n":%d}' % number)
        assert isinstance(made.result, Succeeded)
        snapshot = await client.snapshot()
        events = await client.subscribe(EventCut(0), credit=(3, 1_000_000))
        while events.projection.cut < snapshot.base:
            await anext(events)
        assert events.projection.records == {record.key(): record for record in snapshot.records}
