"""Rosters from records of which none is trusted, and who a name means."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from sidecar.rails.envelopes.schema import Attention, Status
from sidecar.rails.messaging.reads import ROWS_AT_ONCE, read_large_roster
from sidecar.rails.messaging.roster import AmbiguousName, NoSuchPeer, Row, read_roster
from sidecar.rails.names import Principal

NOW = 1_000_000


def record(actor: str, **more: Any) -> tuple[str, bytes]:
    card = {"id": f"local.{actor}", "name": actor.title(), "kind": "agent", **more.pop("card", {})}
    value = {"card": card, "status": "idle", "ts": NOW - 1_000, "statusSince": 5, "attention": "dnd", **more}
    return f"local.{actor}", json.dumps(value).encode()


def roster(*records: tuple[str, bytes], now: int = NOW) -> Any:
    return read_roster(records, now)


@pytest.mark.req("C6-30", "C6-33", "C6-46")
def test_a_heartbeat_older_than_the_window_is_offline() -> None:
    found = roster(record("young", ts=NOW - 6_000), record("old", ts=NOW - 6_001), record("ahead", ts=NOW + 9_000))
    assert {row.principal.actor: row.live for row in found} == {"young": True, "old": False, "ahead": True}
    assert [row.principal.actor for row in found.live] == ["young", "ahead"]


@pytest.mark.req("C6-08", "C6-12", "C6-19", "C6-35")
def test_an_offline_row_is_kept_and_says_neither_since_nor_uptime_nor_attention() -> None:
    runtime = {"id": "x", "startedAt": NOW - 60_000, "source": "endpoint-process"}
    said = record("said", status="offline", runtime=runtime)
    stale = record("stale", ts=1, runtime=runtime, activity="tests")
    for row in roster(said, stale):
        assert row.presence.status is Status.OFFLINE
        assert (row.presence.status_since, row.presence.attention) == (None, None)
        assert row.presence.runtime is not None
        assert row.uptime_ms(NOW) is None
    assert roster(stale).rows["local.stale"].presence.activity == "tests"


@pytest.mark.req("C6-18", "C6-19")
def test_an_uptime_is_of_a_live_process_in_a_form_that_is_known() -> None:
    runtime = {"id": "x", "startedAt": NOW - 60_000, "source": "endpoint-process"}
    found = roster(
        record("a", runtime=runtime), record("b", runtime={**runtime, "source": "other"}), record("c"), record("d")
    )
    assert {row.principal.actor: row.uptime_ms(NOW) for row in found} == {"a": 60_000, "b": None, "c": None, "d": None}
    assert found.rows["local.b"].presence.runtime.supported is False


BAD = {
    "C6-37 card.id": record("x", card={"id": "local.y"}),
    "C6-38 name": record("x", card={"name": {}}),
    "C6-39 status, a number": record("x", status=3),
    "C6-39 status, unknown": record("x", status="busy"),
    "C6-40 ts, text": record("x", ts="nope"),
    "C6-40 ts, missing": ("local.x", b'{"card":{"id":"local.x","name":"X"},"status":"idle"}'),
    "C6-40 ts, NaN": ("local.x", b'{"card":{"id":"local.x","name":"X"},"status":"idle","ts":NaN}'),
    "C6-41 role": record("x", card={"role": 1}),
    "C6-41 activity": record("x", activity={"toString": None}),
    "C6-41 attention": record("x", attention=None),
    "C6-42 condition, null": record("x", condition=None),
    "C6-42 condition, text": record("x", condition="bad"),
    "C6-42 condition, empty": record("x", condition={}),
    "no JSON": ("local.x", b"{"),
    "no principal": ("x", record("x")[1]),
    "deep": ("local.x", b"[" * 5_000),
}


@pytest.mark.req("C6-37", "C6-38", "C6-39", "C6-40", "C6-41", "C6-42", "C6-43", "C6-46")
@pytest.mark.parametrize("name", BAD)
def test_a_bad_record_is_dropped_and_reported_and_hides_nobody(name: str) -> None:
    found = roster(record("a"), BAD[name], record("b"))
    assert list(found.rows) == ["local.a", "local.b"]
    (dropped,) = found.dropped
    assert dropped.key == BAD[name][0]
    assert dropped.why


@pytest.mark.req("C6-42")
def test_an_unknown_condition_stays_and_an_unknown_attention_is_open() -> None:
    found = roster(record("a", condition={"code": "new"}, attention="zen"))
    presence = found.rows["local.a"].presence
    assert presence.condition.code == "new"
    assert presence.attention is Attention.OPEN
    assert found.dropped == ()


def test_a_name_is_one_live_peer_or_an_error() -> None:
    found = roster(
        record("a", card={"name": "Ann"}),
        record("b", card={"name": "Twin"}),
        record("c", card={"name": "Twin"}),
        record("d", card={"name": "Gone"}, ts=1),
        record("e", card={"name": "local.a"}),
        record("f", card={"name": "local.nobody"}),
    )
    assert found.resolve("Ann") == found.resolve("local.a") == Principal("local", "a")
    assert found.resolve("local.d") == Principal("local", "d")
    for absent in ("Gone", "ann", "local.nobody", "", "x" * 10_000):
        with pytest.raises(NoSuchPeer) as error:
            found.resolve(absent)
        assert len(str(error.value)) < 200
    with pytest.raises(AmbiguousName) as several:
        found.resolve("Twin")
    assert several.value.candidates == (Principal("local", "b"), Principal("local", "c"))


def test_a_row_is_found_by_its_principal() -> None:
    found = roster(record("a"))
    row = found.get(Principal("local", "a"))
    assert isinstance(row, Row)
    assert found.get(Principal("local", "z")) is None
    assert len(found) == 1


@pytest.mark.asyncio
async def test_a_large_roster_lets_others_have_their_turn_and_is_the_same() -> None:
    records = [record(f"p{number}", ts=NOW - number) for number in range(4 * ROWS_AT_ONCE)] + [("local.bad", b"{")]
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    found = await read_large_roster(records, NOW)
    beside.cancel()
    assert turns >= 4
    assert found == read_roster(records, NOW)
    assert [one.key for one in found.dropped] == ["local.bad"]
