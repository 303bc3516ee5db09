"""Lifecycle heads and reservations as values (C13.1-002..020)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sidecar.base.strictjson import canonical
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.principals import Principal
from sidecar.rails.space.heads import (
    Head,
    HeadOp,
    HeadState,
    InvalidHead,
    head_subject,
    reservation,
    uid_subject,
)

ALICE = Principal("local", "alice")
UID, MANAGER = "a1" * 13, "m2" * 13
HEAD = Head(ALICE, UID, MANAGER, 3, HeadState.ACTIVE, "cred-1", "op-1")
VALUE: dict[str, Any] = {
    "owner": "local",
    "actor": "alice",
    "lifecycleUid": UID,
    "managerInstance": MANAGER,
    "processEpoch": 3,
    "state": "active",
    "currentCredentialId": "cred-1",
    "lastTakeoverOpId": "op-1",
}


@pytest.mark.req("C13.1-012", "C13.1-013", "C13.1-017")
def test_a_head_is_a_closed_object_and_read_back() -> None:
    assert HEAD.value() == VALUE
    assert Head.decode(HEAD.encode(), ALICE) == HEAD
    bare = Head(ALICE, UID, MANAGER, 0, HeadState.RETIRED)
    assert Head.decode(bare.encode()) == bare
    assert set(bare.value()) == {"owner", "actor", "lifecycleUid", "managerInstance", "processEpoch", "state"}
    broken: list[Any] = [
        {**VALUE, "mappingRevision": 4},
        {**VALUE, "owner": "a.b"},
        {**VALUE, "state": "gone"},
        {**VALUE, "processEpoch": -1},
        {**VALUE, "processEpoch": "3"},
        {**VALUE, "processEpoch": True},
        {**VALUE, "lifecycleUid": "A" * 26},
        {**VALUE, "lifecycleUid": "a" * 25},
        {**VALUE, "currentCredentialId": ""},
        {**VALUE, "currentCredentialId": None},
        {**VALUE, "lastTakeoverOpId": 5},
        {**VALUE, "managerInstance": 5},
        {**VALUE, "op": None},
        [],
        None,
        5,
        {**VALUE, "op": {"opId": "x", "kind": "retirement"}},
        {key: one for key, one in VALUE.items() if key != "state"},
    ]
    for one in broken:
        with pytest.raises(InvalidHead):
            Head.decode(canonical(one))
    for raw in (b"", b"{", b'{"owner":1,"owner":1}'):
        with pytest.raises(InvalidHead):
            Head.decode(raw)
    with pytest.raises(InvalidHead, match=r"C13\.1-013"):
        Head.decode(HEAD.encode(), Principal("local", "bob"))


@pytest.mark.req("C13.1-016")
@pytest.mark.parametrize(
    "op",
    [
        {},
        {"opId": "x"},
        {"opId": "x", "kind": "takeover"},
        {"opId": "", "kind": "retirement"},
        {"opId": "x", "kind": "retirement", "endpoints": []},
        {"opId": 5, "kind": "retirement"},
    ],
)
def test_the_operation_of_a_retiring_head_is_closed(op: dict[str, Any]) -> None:
    with pytest.raises(InvalidHead):
        Head.decode(canonical({**VALUE, "state": "retiring", "op": op}))


@pytest.mark.req("C13.1-016", "C13.1-019", "C13.1-020", "C13.1-026")
def test_a_lifecycle_ends_once_and_by_one_operation() -> None:
    with pytest.raises(InvalidHead):
        Head(ALICE, UID, MANAGER, 0, HeadState.RETIRING)
    for state in (HeadState.ACTIVE, HeadState.RETIRED):
        with pytest.raises(InvalidHead):
            Head(ALICE, UID, MANAGER, 0, state, op=HeadOp("x"))
    retiring = HEAD.retiring("one")
    assert (retiring.state, retiring.op, retiring.current) == (HeadState.RETIRING, HeadOp("one"), False)
    assert Head.decode(retiring.encode(), ALICE) == retiring
    with pytest.raises(InvalidHead):
        retiring.retired("other")
    ended = retiring.retired("one")
    assert (ended.state, ended.op, ended.current, HEAD.current) == (HeadState.RETIRED, None, False, True)
    assert ended.lifecycle == HEAD.lifecycle
    for head in (retiring, ended):
        with pytest.raises(InvalidHead):
            head.retiring("again")
    with pytest.raises(InvalidHead):
        HEAD.retired("one")
    with pytest.raises(InvalidName):
        replace(HEAD, process_epoch=-1)


@pytest.mark.req("C13.1-002", "C13.1-004", "C13.1-012")
def test_head_and_reservation_have_their_keys() -> None:
    assert head_subject("main", ALICE) == "$KV.cotal_records_main.lifecycle.local.alice"
    assert uid_subject("main", UID) == f"$KV.cotal_records_main.uid.{UID}"
    assert reservation(ALICE, "provisioner") == b'{"actor":"alice","mintedBy":"provisioner","owner":"local"}'
    for bad in ("a" * 25, "a" * 33, "A" * 26, "a-" * 13):
        with pytest.raises(InvalidName):
            uid_subject("main", bad)
