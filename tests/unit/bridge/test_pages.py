"""Pages of a cut: every object once and in order, whatever the limit, and no token that is of another cut."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.base.strictjson import SAFE_INTEGER, canonical
from sidecar.bridge.pages import MAX_TOKEN, PAGE_BYTES, Token, page, plain, read_token, row_of
from sidecar.coordinator.client_events import Snapshot
from sidecar.coordinator.client_trust import Standing
from sidecar.coordinator.wire.enums import ObjectiveState, ObjectKind, RunState
from sidecar.coordinator.wire.ids import EventCut, ObjectId, ObjectiveId, ObjectRevision
from sidecar.coordinator.wire.payloads import ObjectiveRecord, RunRecord
from sidecar.coordinator.wire.records import SnapshotRecord

STANDING = Standing(3, 5, b"\x11" * 16, b"\x22" * 32)
U64 = 2**64 - 1


def record(kind: ObjectKind, number: int, document: bytes = b"{}") -> SnapshotRecord:
    body: Any = (
        ObjectiveRecord(document_schema=1, document=document, state=ObjectiveState.ACTIVE)
        if kind is ObjectKind.OBJECTIVE
        else RunRecord(objective_id=ObjectiveId(bytes(15) + b"\x01"), attempt=1, state=RunState.RUNNING)
    )
    return SnapshotRecord(kind, ObjectId(number.to_bytes(16, "big")), ObjectRevision(1), 1, body.body())


def cut(*records: SnapshotRecord, standing: Standing = STANDING, base: int = 9) -> Snapshot:
    return Snapshot(EventCut(base), standing, records, len(records), 1, b"\x33" * 32, None)


MIXED = cut(
    *(record(ObjectKind.OBJECTIVE, number) for number in range(1, 8)),
    *(record(ObjectKind.RUN, number) for number in range(1, 5)),
)


def walked(snapshot: Snapshot, kind: ObjectKind | None, limit: int) -> list[str]:
    found: list[str] = []
    after: Token | None = None
    while True:
        rows, after = page(snapshot, kind, after, limit)
        assert len(rows) <= limit
        found += [f"{row['kind']} {int(row['id'], 16)}" for row in rows]
        if after is None:
            return found
        assert read_token(str(after)) == after
        assert after.within(snapshot)


@pytest.mark.parametrize("kind", [None, ObjectKind.OBJECTIVE, ObjectKind.RUN, ObjectKind.SIGNAL])
@given(limit=st.integers(1, 20))
def test_every_object_of_the_kind_comes_once_and_in_order(kind: ObjectKind | None, limit: int) -> None:
    everything = [f"OBJECTIVE {number}" for number in range(1, 8)] + [f"RUN {number}" for number in range(1, 5)]
    wanted = [one for one in everything if kind is None or one.startswith(kind.name)]
    assert walked(MIXED, kind, limit) == wanted


def test_a_page_is_bounded_by_bytes_and_one_object_too_large_is_named_without_its_content() -> None:
    small, half = b'{"a":1}', b"x" * (PAGE_BYTES // 2)
    whole = b"\xff" * (PAGE_BYTES // 2)  # no text: two digits for each byte
    snapshot = cut(*(record(ObjectKind.OBJECTIVE, n, text) for n, text in enumerate((half, half, whole, small), 1)))
    rows, after = page(snapshot, None, None, 100)
    assert [int(row["id"], 16) for row in rows] == [1]
    rows, after = page(snapshot, None, after, 100)
    assert [int(row["id"], 16) for row in rows] == [2, 3, 4]
    assert after is None
    assert rows[1]["omittedBytes"] > PAGE_BYTES // 2
    assert "content" not in rows[1]
    assert len(canonical(rows)) < PAGE_BYTES + 1000


def test_what_an_object_is_made_of_is_in_its_row() -> None:
    assert row_of(record(ObjectKind.OBJECTIVE, 7, b'{"t":1}')) == {
        "kind": "OBJECTIVE",
        "id": "00000000000000000000000000000007",
        "revision": 1,
        "content": {"document_schema": 1, "document": '{"t":1}', "state": "ACTIVE"},
    }


@given(
    token=st.builds(
        Token,
        st.integers(0, U64),
        st.integers(0, U64),
        st.integers(0, U64),
        st.binary(min_size=32, max_size=32),
        st.binary(min_size=18, max_size=18),
    )
)
def test_a_token_is_read_back_as_it_was_written(token: Token) -> None:
    assert len(str(token)) <= MAX_TOKEN
    assert read_token(str(token)) == token


@given(text=st.text(max_size=300))
def test_no_other_text_is_a_token(text: str) -> None:
    with pytest.raises(ValueError, match="no token"):
        read_token(text)


def test_a_token_of_another_cut_is_known_as_one() -> None:
    _, after = page(MIXED, None, None, 3)
    assert after is not None
    assert after.within(MIXED)
    later = dataclasses.replace(STANDING, epoch=4)
    others = [
        dataclasses.replace(MIXED, base=EventCut(10)),
        dataclasses.replace(MIXED, digest=b"\x34" * 32),
        dataclasses.replace(MIXED, standing=later),
        dataclasses.replace(MIXED, standing=dataclasses.replace(STANDING, activation=6)),
    ]
    assert [after.within(one) for one in others] == [False] * 4


@pytest.mark.parametrize("text", ["01.1.1." + "a" * 64 + "." + "b" * 36, "1.1.1." + "A" * 64 + "." + "b" * 36])
def test_a_token_has_one_spelling(text: str) -> None:
    with pytest.raises(ValueError, match="no token"):
        read_token(text)


def test_numbers_that_not_every_reader_keeps_become_text() -> None:
    value = {"a": [SAFE_INTEGER, SAFE_INTEGER + 1, -SAFE_INTEGER - 1, True], "b": {"c": U64}}
    assert plain(value) == {
        "a": [SAFE_INTEGER, str(SAFE_INTEGER + 1), str(-SAFE_INTEGER - 1), True],
        "b": {"c": str(U64)},
    }
