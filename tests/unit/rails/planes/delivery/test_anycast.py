"""Anycast records as values: every take, cancel and status on every record, and what a record keeps."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest

from sidecar.rails.names import Principal
from sidecar.rails.names.limits import ANYCAST_ROW_SECONDS, MAX_ANYCAST_VALUE
from sidecar.rails.planes.delivery import anycast
from sidecar.rails.planes.delivery.anycast import (
    MAX_OWED,
    Code,
    Event,
    InvalidRecord,
    Owed,
    Record,
    Ref,
    Removal,
    Request,
    State,
    Take,
)

EPOCH = "2026-10-30T12:00:00.123456789Z"
CAROL, DAVE = Ref("local.carol", "Carol"), Ref("local.dave", "Dave")
ALICE = Principal("local", "alice")
REQUEST = Request("reviewer", "local.alice", "m-1")
NOW = 1_800_000_000_000


def wanted(taker: Ref = CAROL, delivered: int = 1, **other: Any) -> Take:
    return Take("reviewer", taker, 17, "m-1", delivered, EPOCH)._replace(**other)


def taken(taker: Ref = CAROL, delivered: int = 1) -> Record:
    record = anycast.take(None, REQUEST, wanted(taker, delivered), NOW)
    assert isinstance(record, Record)
    return record


def cancelled(removal: Removal = Removal.DELETED) -> Record:
    return anycast.cancelled(REQUEST, EPOCH, 17, NOW).removed(removal)


# ---- take ----


@pytest.mark.req("C8.1-01", "C8.1-24", "C8.1-26", "C8.1-43")
def test_a_first_take_wins_and_owes_its_sender_one_notice() -> None:
    record = taken()
    assert (record.id, record.role, record.sender) == ("m-1", "reviewer", "local.alice")
    assert (record.state, record.taker, record.count, record.at) == (State.TAKEN, CAROL, 1, NOW)
    assert record.n == 1
    assert record.owed == (Owed(1, Event.TAKEN, CAROL),)


@pytest.mark.req("C8.1-23", "C8.1-45")
def test_key_and_notice_id_are_those_of_the_stream_s_creation_time() -> None:
    assert taken().key == "r.20261030T120000123456789Z.17"
    assert taken().notice_id(3) == "anycast.20261030T120000123456789Z.17.3"


@pytest.mark.req("C8.1-27")
def test_the_same_take_wins_again_without_a_write() -> None:
    assert anycast.take(taken(delivered=4), REQUEST, wanted(delivered=4), NOW + 1) is None


@pytest.mark.req("C8.1-28", "C8.1-43", "C8.1-53")
def test_a_later_delivery_moves_the_take_and_keeps_who_had_it() -> None:
    moved = anycast.take(taken(), REQUEST, wanted(DAVE, 2), NOW + 5)
    assert isinstance(moved, Record)
    assert (moved.taker, moved.previous, moved.count, moved.at) == (DAVE, CAROL, 2, NOW + 5)
    assert moved.owed[-1] == Owed(2, Event.REDELIVERED, DAVE, CAROL)
    assert moved.n == 2


@pytest.mark.req("C8.1-28", "C8.1-43")
def test_a_later_delivery_to_the_same_holder_tells_nobody() -> None:
    again = anycast.take(taken(), REQUEST, wanted(CAROL, 2), NOW + 5)
    assert isinstance(again, Record)
    assert (again.count, again.previous, again.n, again.owed) == (2, None, 1, taken().owed)


@pytest.mark.req("C8.1-29")
@pytest.mark.parametrize(("taker", "delivered"), [(DAVE, 1), (DAVE, 2), (DAVE, 3), (CAROL, 1), (CAROL, 2)])
def test_any_other_take_is_taken(taker: Ref, delivered: int) -> None:
    assert anycast.take(taken(delivered=3), REQUEST, wanted(taker, delivered), NOW) is Code.TAKEN


@pytest.mark.req("C8.1-11", "C8.1-29")
@pytest.mark.parametrize("removal", Removal)
@pytest.mark.parametrize("request_", [REQUEST, None])
def test_a_cancelled_request_is_taken_by_nobody(removal: Removal, request_: Request | None) -> None:
    assert anycast.take(cancelled(removal), request_, wanted(delivered=9), NOW) is Code.CANCELLED


@pytest.mark.req("C8.1-11")
@pytest.mark.parametrize("record", [None, taken()])
def test_a_request_that_left_is_gone(record: Record | None) -> None:
    assert anycast.take(record, None, wanted(delivered=9), NOW) is Code.GONE


@pytest.mark.req("C8.1-11")
@pytest.mark.parametrize(
    "stored", [REQUEST._replace(role="tester"), REQUEST._replace(id="m-2"), REQUEST._replace(id=None)]
)
@pytest.mark.parametrize("record", [None, taken(), cancelled()])
def test_another_request_at_the_sequence_is_a_mismatch(record: Record | None, stored: Request) -> None:
    assert anycast.take(record, stored, wanted(), NOW) is Code.MISMATCH


@pytest.mark.req("C8.1-46")
def test_a_record_that_owes_too_much_moves_no_further() -> None:
    record = taken()
    for delivered in range(2, MAX_OWED + 1):
        moved = anycast.take(record, REQUEST, wanted(DAVE if delivered % 2 == 0 else CAROL, delivered), NOW)
        assert isinstance(moved, Record)
        record = moved
    assert len(record.owed) == MAX_OWED
    assert anycast.take(record, REQUEST, wanted(CAROL, 99), NOW) is Code.BUSY
    assert isinstance(anycast.take(record.published(1), REQUEST, wanted(CAROL, 99), NOW), Record)


@pytest.mark.req("C8.1-11", "C8.1-26", "C8.1-27", "C8.1-28", "C8.1-29")
def test_every_take_on_every_record_has_one_outcome() -> None:
    """The whole table: row x request x epoch-checked take x count."""
    rows: list[Record | None] = [None, taken(delivered=2), *map(cancelled, Removal)]
    requests: list[Request | None] = [None, REQUEST, REQUEST._replace(id="m-2")]
    for row, stored, taker, delivered in itertools.product(rows, requests, (CAROL, DAVE), (1, 2, 3)):
        decided = anycast.take(row, stored, wanted(taker, delivered), NOW)
        if stored is None:
            assert decided is (Code.CANCELLED if row is not None and row.state is State.CANCELLED else Code.GONE)
        elif stored.id != "m-1":
            assert decided is Code.MISMATCH
        elif row is None:
            assert isinstance(decided, Record)
        elif row.state is State.CANCELLED:
            assert decided is Code.CANCELLED
        elif delivered > 2:
            assert isinstance(decided, Record)
            assert decided.previous == (None if taker == CAROL else CAROL)
        else:
            assert decided is (None if (taker, delivered) == (CAROL, 2) else Code.TAKEN)


# ---- what comes ----


def body(**other: object) -> bytes:
    value = {"from": {"id": "local.carol", "name": "Carol"}, "seq": 17, "id": "m-1", "count": 1, "epoch": EPOCH}
    return json.dumps({**value, **other}).encode()


@pytest.mark.req("C8.1-08")
def test_a_take_is_read_under_its_own_subject() -> None:
    assert anycast.read_take("reviewer", Principal("local", "carol"), body()) == wanted()
    assert anycast.read_take("reviewer", Principal("local", "dave"), body()) is None


@pytest.mark.req("C8.1-07", "C8.1-08")
@pytest.mark.parametrize(
    "name", ["a\nb", "a\u2028b", " a", "a ", "\ufeffa", "a/b", "a\\b", "x" * 129, "\U0001f600" * 65, "\ud800"]
)
def test_a_holder_does_not_call_itself_so(name: str) -> None:
    assert not anycast.holder_name(name)
    assert (
        anycast.read_take(
            "reviewer", Principal("local", "carol"), body(**{"from": {"id": "local.carol", "name": name}})
        )
        is None
    )


@pytest.mark.req("C8.1-07")
@pytest.mark.parametrize("name", ["", "Carol", "x" * 128, "\U0001f600" * 64, "a b", "Ünï"])
def test_a_holder_may_call_itself_so(name: str) -> None:
    assert anycast.holder_name(name)


@pytest.mark.req("C8.1-11")
@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"{}", b"nul", body(seq=0), body(seq="17"), body(seq=2**53), body(seq=True), body(id=""),
        body(id=7), body(count=0), body(count=1.5), body(epoch=None), body(epoch="x" * 65), body(**{"from": None}),
        body(**{"from": {"id": "local.carol"}}), body() + b" " * 8192, body()[:-1],
    ],
)  # fmt: skip
def test_a_malformed_take_is_none(data: bytes) -> None:
    assert anycast.read_take("reviewer", Principal("local", "carol"), data) is None


def test_a_stored_request_is_what_its_subject_says() -> None:
    subject = "cotal.main.svc.reviewer.local.alice"
    assert anycast.read_request(subject, b'{"id":"m-1","from":{"id":"local.mallory"}}') == REQUEST
    assert anycast.read_request(subject, b"no json") == REQUEST._replace(id=None)
    assert anycast.read_request(subject, b'{"id":7}') == REQUEST._replace(id=None)
    assert anycast.read_request("cotal.main.inst.local.bob.local.alice", b'{"id":"m-1"}') is None


# ---- status and cancel ----


@pytest.mark.req("C8.1-34", "C8.1-36")
def test_the_sender_is_told_the_state() -> None:
    told = anycast.status(None, REQUEST, ALICE, 17, None)
    assert told == {"state": "waiting", "seq": 17, "role": "reviewer"}
    told = anycast.status(taken(), REQUEST, ALICE, 17, "m-1")
    assert told == {"state": "taken", "seq": 17, "role": "reviewer", "taker": CAROL.json, "at": NOW}
    moved = anycast.take(taken(), REQUEST, wanted(DAVE, 2), NOW)
    assert isinstance(moved, Record)
    assert anycast.status(moved, None, ALICE, 17, None)["previous"] == CAROL.json
    told = anycast.status(cancelled(), None, ALICE, 17, None)
    assert told == {"state": "cancelled", "seq": 17, "role": "reviewer", "removal": "deleted"}
    assert anycast.status(None, None, ALICE, 17, None) == {"state": "unknown", "seq": 17}


@pytest.mark.req("C8.1-34", "C8.1-35", "C8.1-54")
@pytest.mark.parametrize("record", [None, taken(), cancelled()])
@pytest.mark.parametrize(("caller", "wanted_id"), [(Principal("local", "mallory"), None), (ALICE, "m-2")])
def test_others_and_other_ids_are_told_nothing(record: Record | None, caller: Principal, wanted_id: str | None) -> None:
    assert anycast.status(record, REQUEST, caller, 17, wanted_id) == {"state": "unknown", "seq": 17}


@pytest.mark.req("C8.1-24", "C8.1-38")
def test_a_cancel_begins_with_its_removal_pending() -> None:
    record = anycast.cancelled(REQUEST, EPOCH, 17, NOW)
    assert (record.state, record.removal, record.id, record.role, record.sender) == (
        State.CANCELLED, Removal.PENDING, "m-1", "reviewer", "local.alice",
    )  # fmt: skip
    assert record.owed == ()


# ---- how long it stays ----


@pytest.mark.req("C8.1-30", "C8.1-46")
def test_a_record_goes_a_day_after_its_request_and_never_owing() -> None:
    day = ANYCAST_ROW_SECONDS * 1000
    record = taken().published(1)
    assert not record.over(NOW + 10 * day)
    gone = record.off_queue(NOW)
    assert not gone.over(NOW + day - 1)
    assert gone.over(NOW + day)
    assert not gone.on_queue().over(NOW + day)
    assert not taken().off_queue(NOW).over(NOW + day)


# ---- what is stored ----


RECORDS = [
    taken(),
    taken(delivered=7).published(1).off_queue(NOW),
    replace(taken(), previous=DAVE, owed=(Owed(2, Event.REDELIVERED, CAROL, DAVE),), n=2),
    *map(cancelled, Removal),
    replace(anycast.cancelled(REQUEST._replace(id=None), EPOCH, 17, NOW)),
]


@pytest.mark.req("C8.1-24")
@pytest.mark.parametrize("record", RECORDS)
def test_a_record_is_read_as_it_was_written(record: Record) -> None:
    assert Record.decode(record.encode()) == record


@pytest.mark.req("C8-71")
def test_the_largest_record_fits_into_its_bucket() -> None:
    ref = Ref("u_" + "a" * 62 + "." + "b" * 64, "\u00e9" * 128)
    owed = tuple(Owed(n, Event.REDELIVERED, ref, ref) for n in range(2**53 - MAX_OWED, 2**53))
    record = replace(taken(), id="\U0001f600" * anycast.MAX_ID, taker=ref, previous=ref, owed=owed, off_queue_since=NOW)
    assert len(record.encode()) <= MAX_ANYCAST_VALUE


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_without_a_member_or_with_another_type_is_refused(record: Record) -> None:
    value = json.loads(record.encode())
    optional = {"v", "previous", "offQueueSince"}
    for name in value.keys() - optional:
        with pytest.raises(InvalidRecord):
            Record.decode(json.dumps({key: one for key, one in value.items() if key != name}).encode())
    for name in value.keys() - {"v"}:
        with pytest.raises(InvalidRecord):
            Record.decode(json.dumps({**value, name: None}).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"null", b"x" * (MAX_ANYCAST_VALUE + 1)])
def test_bytes_that_are_no_record_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidRecord):
        Record.decode(data)


@pytest.mark.parametrize("field", ["sender", "taker"])
def test_a_record_names_principals(field: str) -> None:
    value = json.loads(taken().encode())
    value[field] = "nobody" if field == "sender" else {"id": "nobody", "name": "x"}
    with pytest.raises(InvalidRecord):
        Record.decode(json.dumps(value).encode())


# ---- notices ----


@pytest.mark.req("C8.1-44")
def test_a_notice_tells_event_and_holders() -> None:
    record = taken()
    told = {"seq": 17, "role": "reviewer", "event": "taken", "taker": CAROL.json}
    assert anycast.notice_data(record, record.owed[0]) == told
    moved = Owed(2, Event.REDELIVERED, DAVE, CAROL)
    assert anycast.notice_data(record, moved) == {
        **told, "event": "redelivered", "taker": DAVE.json, "previous": CAROL.json,
    }  # fmt: skip


@pytest.mark.req("C8.1-52")
def test_a_notice_never_says_that_a_request_was_read_or_done() -> None:
    record = taken()
    for owed in (record.owed[0], Owed(2, Event.REDELIVERED, DAVE, CAROL)):
        text = anycast.notice_text(record, owed)
        assert "does not say that it was read, begun or done" in text
        before, _, _ = text.partition("That does not say")
        assert not [word for word in ("read", "started", "finished", "begun", "done") if word in before.split()]


@pytest.mark.parametrize("epoch", ["", "-", "é"])
def test_a_record_of_no_creation_time_is_none(epoch: str) -> None:
    """Its key could not be built, and the sweep ended with it."""
    with pytest.raises(InvalidRecord, match="epoch"):
        Record.decode(json.dumps({**json.loads(taken().encode()), "epoch": epoch}).encode())
