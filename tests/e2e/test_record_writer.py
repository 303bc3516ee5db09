"""The record writer at a real broker: what instances report becomes their record, and nobody else's."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sidecar.app.endpoint_host import Hosted, deregister
from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, PermissionViolation
from sidecar.rails.connection.kv import KeyValue
from sidecar.rails.connection.publishing import store
from sidecar.rails.names import buckets
from sidecar.rails.planes.delivery.broker import DurableDiffers
from sidecar.rails.planes.registration.merged import Half, Merged, merge
from sidecar.rails.planes.registration.naming import Place
from sidecar.rails.planes.registration.record_status import MAX_STATUS_BYTES, WriteRefused
from sidecar.rails.planes.registration.record_writer import RecordWriter, UnfitStore
from sidecar.rails.planes.registration.report import report_status
from sidecar.rails.space.asking import ask
from sidecar.rails.space.heads import Head, head_subject
from tests.e2e.registering import ME, NAME, SPACE, YOU, Site, site
from tests.e2e.space_broker import EVENT_SECONDS, User

pytestmark = pytest.mark.asyncio
TOKEN = "com_acme_echo"
DURABLE = "recw_main-svc"


@pytest_asyncio.fixture
async def here(tmp_path: Path) -> AsyncIterator[Site]:
    async with site(tmp_path) as made:
        yield made


@contextlib.asynccontextmanager
async def serving(here: Site, **more: Any) -> AsyncIterator[tuple[Hosted, Connection]]:
    hosted = await here.host(**more)
    async with await Connection.open([here.broker.url], hosted.minter) as connection:
        yield hosted, connection


def subject(instance: str = ME, epoch: int = 0, of: str = "") -> str:
    return f"cotal.main.epr.{TOKEN}.{instance}.{epoch}.svc.{of or f'{TOKEN}.{instance}'}"


async def forged(hand: User, where: str, body: Any, **more: Any) -> None:
    """A write as no grant lets anybody publish it."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = await hand.client.request(where, data, timeout=EVENT_SECONDS, **more)
    assert "error" not in json.loads(answer.data)


async def idle(hand: User) -> dict[str, Any]:
    """Wait until the writer has settled everything; the state of its durable."""
    async with asyncio.timeout(EVENT_SECONDS):
        while True:
            info = await ask(hand.client, f"$JS.API.CONSUMER.INFO.EPR_main.{DURABLE}")
            if info["num_pending"] == info["num_ack_pending"] == 0:
                return info
            await asyncio.sleep(0.005)


def counted(here: Site, outcome: str) -> float:
    return here.written.totals("registration_record_writes").get((outcome,), 0.0)


@pytest.mark.req("C13.9-M24", "C13.9-M25", "C13.2-70", "C13.7-61", "C13.4-05", "C13.4-08", "C13.7-62", "C13.7-64")
async def test_what_an_instance_reports_stands_in_its_record(here: Site) -> None:
    async with serving(here) as (hosted, connection), here.record_writer() as written:
        await report_status(connection, hosted.identity, "ready", note="up")
        value = await written(ME, "ready")
        revision = hosted.registered.registration_revision
        assert value == {"epoch": 0, "state": "ready", "observedSpecRevision": revision, "note": "up"}
        spec, status = await here.record("spec"), await here.record("status")
        assert spec[1] == revision  # a status moves its own half alone
        merged = merge(Half(spec[1], spec[0]), Half(status[1], status[0]))
        assert isinstance(merged, Merged)
        assert (merged.observed, merged.stale) == (revision, False)
        await report_status(connection, hosted.identity, "draining", observed=revision)
        await written(ME, "draining")
        before = await here.record("status")
        await report_status(connection, hosted.identity, "draining")
        async with here.hand() as hand:
            await idle(hand)
        assert await here.record("status") == before
        assert (counted(here, "written"), counted(here, "unchanged")) == (2, 1)


@pytest.mark.req("C13.9-083", "C13.4-06", "C13.2-70", "C13.1-030")
async def test_an_instance_writes_no_record_itself_and_none_of_another(here: Site) -> None:
    await here.host(instance=YOU)
    async with serving(here) as (hosted, connection), here.record_writer():
        place, other = Place(SPACE, NAME, ME), Place(SPACE, NAME, YOU)
        for where in (place.status, place.spec, other.status, place.gate, place.govern):
            with pytest.raises(PermissionViolation):
                await connection.publish(where, b"{}")
        hostile = (subject(YOU), subject(epoch=1), subject(of=f"{TOKEN}.{YOU}"), subject().replace(".svc.", ".goal."))
        for where in hostile:
            with pytest.raises(PermissionViolation):
                await connection.publish(where, b'{"state":"exited"}')
        with pytest.raises(WriteRefused):
            await report_status(connection, hosted.identity, "escalated")
        assert (await here.record("status", YOU))[0] is None


@pytest.mark.req("C13.9-082", "C13.8-10", "C13.2-70", "C13.9-044", "C13.4-13", "C13.7-37")
async def test_hostile_writes_are_settled_counted_and_change_nothing(here: Site) -> None:
    """With a hand that may publish what the grants of no instance allow: the writer judges for itself."""
    await here.host()
    await here.host(instance=YOU)
    await here.host()  # epoch 1
    async with here.hand() as hand:
        await forged(hand, subject(epoch=0), {"state": "stale"})
        await forged(hand, subject(epoch=2), {"state": "ahead"})
        await forged(hand, subject(epoch=1, of=f"{TOKEN}.{YOU}"), {"state": "foreign"})
        await forged(hand, subject(epoch=1), {"state": "lies", "incarnation": 7})
        await forged(hand, subject(epoch=1), {"state": "escalated"})
        await forged(hand, subject(epoch=1), b"no json")
        await forged(hand, subject(epoch=1), b'{"state":"big","note":"' + b"x" * MAX_STATUS_BYTES + b'"}')
        await forged(hand, subject(epoch=1), {"state": "ready", "observedSpecRevision": 10**9})
        await forged(hand, subject("n" * 26), {"state": "ready"})
        redirected = {"Nats-Stream": "X", "Nats-Subject": "y", "Nats-Sequence": "1"}
        await forged(hand, subject(epoch=1), {"state": "copied"}, headers=redirected)
        await forged(hand, subject(epoch=1), {"state": "honest", "restarts": 9, "epoch": 9})
        async with here.record_writer() as written:
            value = await written(ME, "honest")
            info = await idle(hand)
        assert value["epoch"] == 1
        assert "restarts" not in value
        assert info["delivered"]["stream_seq"] == 11
    assert (await here.record("status", YOU))[0] is None
    wanted = {
        "expired": 2,
        "permission-denied": 1,
        "bad-request": 4,
        "resource-exhausted": 1,
        "conflict": 1,
        "not-found": 1,
        "written": 1,
    }
    assert {outcome: counted(here, outcome) for outcome in wanted} == wanted


@pytest.mark.req("C13.8-10", "C13.9-082", "C13.1-029", "C13.14-05")
async def test_a_superseded_process_writes_nothing_from_the_moment_the_epoch_moves(here: Site) -> None:
    first = await here.host()
    async with here.hand() as hand:
        # Sent before it was superseded, read after: what was on its way is of the old epoch.
        await forged(hand, subject(epoch=0), {"state": "late"})
        await here.host()
        async with here.record_writer():
            await idle(hand)
        assert (await here.record("status"))[0] is None
        assert counted(here, "expired") == 1
        # Below the epoch of the stored status, should the head ever be behind it.
        await hand.client.request(Place(SPACE, NAME, ME).status, b'{"epoch":5}', timeout=EVENT_SECONDS)
        await forged(hand, subject(epoch=1), {"state": "below"})
        async with here.record_writer():
            await idle(hand)
        assert counted(here, "conflict") == 1
    assert first.identity.epoch == 0


@pytest.mark.req("C13.8-11", "C13.4-07")
async def test_a_report_that_replaces_another_status_than_it_read_is_a_conflict(here: Site) -> None:
    await here.host()
    async with here.hand() as hand, here.record_writer() as written:
        await forged(hand, subject(), {"state": "one"})
        await written(ME, "one")
        _, revision = await here.record("status")
        await forged(hand, subject(), {"state": "two", "baseRevision": revision})
        await written(ME, "two")
        await forged(hand, subject(), {"state": "three", "baseRevision": revision})
        await idle(hand)
        assert (await here.record("status"))[0]["state"] == "two"
        assert counted(here, "conflict") == 1


@pytest.mark.req("C13.8-11", "C13.9-082")
async def test_a_write_that_loses_a_race_is_decided_anew(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its reading and its writing somebody else writes the status: the report is not taken for written."""
    await here.host()
    async with here.hand() as hand, here.recording() as connection:
        writer = RecordWriter(connection, SPACE, metrics=here.written, log=Log(here.log))
        records: KeyValue = writer._records
        update = records.update
        beaten: list[int] = []

        async def late(key: str, value: bytes, revision: int) -> int:
            if not beaten:
                beaten.append(revision)
                await forged(hand, Place(SPACE, NAME, ME).status, {"epoch": 0, "state": "other"})
            return await update(key, value, revision)

        monkeypatch.setattr(records, "update", late)
        bound = asyncio.Event()
        running = asyncio.create_task(writer.run(bound))
        async with asyncio.timeout(EVENT_SECONDS):
            await bound.wait()
        await forged(hand, subject(), {"state": "mine"})
        await idle(hand)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert (await here.record("status"))[0]["state"] == "mine"
        assert beaten


@pytest.mark.req("C13.8-10", "C13.1-020", "C13.9-M25")
async def test_a_lifecycle_that_is_not_current_writes_nothing(here: Site) -> None:
    """The epoch is the one of the head: from the moment its retirement begins the head is no mapping."""
    hosted = await here.host()
    principal = hosted.identity.lifecycle.principal
    async with here.hand() as hand:
        place = head_subject(SPACE, principal)
        head = Head.decode((await here.kept(buckets.RECORDS, place)).value or b"", principal)
        for ended in (head.retiring("op-1"), head.retiring("op-1").retired("op-1")):
            await forged(hand, place, ended.encode())
            await forged(hand, subject(), {"state": "ghost"})
        async with here.record_writer() as written:
            await idle(hand)
            assert counted(here, "expired") == 2
            await forged(hand, place, head.encode())
            await forged(hand, subject(), {"state": "back"})
            await written(ME, "back")


@pytest.mark.req("C13.9-044", "C13.7-83")
async def test_a_status_that_comes_after_the_end_of_a_registration_is_dropped(here: Site) -> None:
    await here.host()
    async with here.hand() as hand:
        await forged(hand, subject(), {"state": "late"})
        assert await deregister(here.root, SPACE, here.broker.url, NAME, ME)
        async with here.record_writer():
            await idle(hand)
    assert (await here.record("status"))[0] is None
    assert counted(here, "not-found") == 1


@pytest.mark.req("C13.9-044", "C13.12-28")
async def test_a_writer_that_dies_between_write_and_ack_gives_the_write_once_more(here: Site) -> None:
    async with serving(here) as (hosted, connection):
        await report_status(connection, hosted.identity, "ready")
        async with here.record_writer() as written:
            writer_died = await written(ME, "ready")
        before = await here.record("status")
        async with here.hand() as hand:
            # The same message again, as after a crash: the record stays as it is.
            await store(connection, subject(), json.dumps({"state": "ready"}).encode())
            async with here.record_writer():
                await idle(hand)
        assert await here.record("status") == before
        assert writer_died["state"] == "ready"


@pytest.mark.req("C13.12-18")
async def test_a_bucket_that_may_lose_records_is_not_served_from(here: Site) -> None:
    async with here.hand() as hand:
        stream = buckets.RECORDS.stream(SPACE)
        config = (await ask(hand.client, f"$JS.API.STREAM.INFO.{stream}"))["config"]
        await ask(hand.client, f"$JS.API.STREAM.UPDATE.{stream}", {**config, "max_bytes": 1 << 30})
    with pytest.raises(UnfitStore, match="max_bytes"):
        await run_writer(here)
    with pytest.raises(Exception, match="max_bytes"):
        await here.host()


@pytest.mark.req("C13.12-28", "C8-69")
async def test_a_durable_of_another_shape_is_not_repaired_in_silence(here: Site) -> None:
    async with here.hand() as hand:
        config = {"name": DURABLE, "durable_name": DURABLE, "ack_policy": "none", "filter_subject": "cotal.main.epr.>"}
        body = {"stream_name": "EPR_main", "config": config}
        await ask(hand.client, f"$JS.API.CONSUMER.CREATE.EPR_main.{DURABLE}.cotal.main.epr.>", body)
    with pytest.raises(DurableDiffers):
        await run_writer(here)


async def run_writer(here: Site) -> None:
    """Run a writer until it ends by itself."""
    async with here.recording() as connection, asyncio.timeout(EVENT_SECONDS):
        await RecordWriter(connection, SPACE, metrics=Metrics(), log=Log(here.log)).run()
