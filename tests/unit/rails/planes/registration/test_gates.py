"""Gates of endpoint instances: closed values, and the whole table of transitions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.base.strictjson import JsonValue, canonical, parse
from sidecar.rails.names.principals import Principal
from sidecar.rails.planes.registration.gates import (
    CredentialRow,
    Gate,
    GateState,
    Intent,
    InvalidGate,
    Op,
    RowState,
)

ID = "0123456789abcdefghijklmnop"
OTHER = "zyxwvutsrqponmlkjihgfedcba"
WHO = Principal("local", "ep_0123456789abcdefghij")
OPEN = Gate(GateState.OPEN, 4, 2, 17, 3, WHO)
ROW = CredentialRow("com.acme.echo", "U" + "A" * 55, WHO, ID, RowState.ACTIVE, 1_800_000_000)
VECTOR = (
    b'{"generation":4,"nameAuthorityRevision":3,"op":{"kind":"registration","opId":"0123456789abcdefghijklmnop"},'
    b'"principal":"local.ep_0123456789abcdefghij","processEpoch":2,"registrationRevision":17,"state":"frozen"}'
)


def frozen(kind: Intent, op_id: str = ID) -> Gate:
    return replace(OPEN, state=GateState.FROZEN, op=Op(op_id, kind))


@pytest.mark.req("C13.1-066", "C13.1-055", "C13.1-056")
def test_a_gate_has_these_bytes_and_is_read_back_from_them() -> None:
    gate = OPEN.frozen(Op(ID, Intent.REGISTRATION))
    assert gate.encode() == VECTOR
    assert Gate.decode(VECTOR) == gate
    assert Gate.decode(OPEN.encode()) == OPEN
    assert "op" not in parse(OPEN.encode())  # type: ignore[operator]


def spoilt(gate: bytes) -> list[bytes]:
    value = parse(gate)
    assert isinstance(value, dict)
    wrongs: list[JsonValue] = [None, True, [], -1]
    changes: list[dict[str, JsonValue]] = [{**value, name: wrong} for name in value for wrong in wrongs]
    changes += [{name: one for name, one in value.items() if name != gone} for gone in value]
    changes.append({**value, "more": 1})
    return [canonical(change) for change in changes]


@pytest.mark.req("C13.1-066", "C13.1-065", "C13.1-099")
@pytest.mark.parametrize("data", [*spoilt(VECTOR), b"", b"[]", b"{", VECTOR.replace(b"4", b"4.5", 1)])
def test_no_other_shape_is_a_gate(data: bytes) -> None:
    with pytest.raises(InvalidGate):
        Gate.decode(data)


@pytest.mark.req("C13.1-065", "C13.1-059", "C13.1-056")
def test_an_intent_is_closed() -> None:
    for change in (b'"endpoints":[],"kind"', b'"successor":1,"kind"'):
        with pytest.raises(InvalidGate):
            Gate.decode(VECTOR.replace(b'"kind"', change))
    for kind in (Intent.ACTIVATION, Intent.RETIREMENT):
        with pytest.raises(InvalidGate):
            Op(ID, kind, "x")
    with pytest.raises(InvalidGate):
        Op("short", Intent.TAKEOVER)
    assert Op(ID, Intent.TAKEOVER, "x").value()["successor"] == "x"


@pytest.mark.req("C13.1-058", "C13.1-061", "C13.1-060", "C13.1-057")
@pytest.mark.parametrize(("kind", "state"), list(product(Intent, GateState)))
def test_every_transition_that_is_not_in_the_table_is_refused(kind: Intent, state: GateState) -> None:
    own = Op(ID, kind)
    gate = replace(OPEN, state=state, op=None if state is GateState.OPEN else own) if _stands(kind, state) else None
    if gate is None:
        with pytest.raises(InvalidGate):
            replace(OPEN, state=state, op=own)
        return
    steps: dict[str, tuple[Callable[[], Gate], bool]] = {
        "freeze": (lambda: gate.frozen(own), state is GateState.OPEN and kind is not Intent.ACTIVATION),
        "reopen": (lambda: gate.reopened(own), state is GateState.FROZEN and kind is not Intent.RETIREMENT),
        "retire": (
            lambda: gate.retired(own),
            state is GateState.FROZEN and kind in (Intent.ACTIVATION, Intent.RETIREMENT),
        ),
    }
    for step, allowed in steps.values():
        if allowed:
            step()
        else:
            with pytest.raises(InvalidGate):
                step()


def _stands(kind: Intent, state: GateState) -> bool:
    return state is not GateState.RETIRED or kind in (Intent.ACTIVATION, Intent.RETIREMENT)


@pytest.mark.req("C13.1-057")
def test_only_the_operation_that_froze_a_gate_moves_it() -> None:
    for kind in (Intent.REGISTRATION, Intent.TAKEOVER):
        with pytest.raises(InvalidGate):
            frozen(kind).reopened(Op(OTHER, kind))
    with pytest.raises(InvalidGate):
        frozen(Intent.RETIREMENT).retired(Op(OTHER, Intent.RETIREMENT))
    with pytest.raises(InvalidGate):
        frozen(Intent.REGISTRATION).reopened(Op(ID, Intent.TAKEOVER))


@pytest.mark.req("C13.7-63", "C13.7-64", "C13.1-062", "C13.1-061")
def test_the_first_epoch_is_zero_and_each_later_one_the_next() -> None:
    gate = Gate.virgin(WHO, 5)
    assert not gate.mintable
    for epoch in range(4):
        assert gate.next_epoch() == epoch
        op = Op(ID, Intent.REGISTRATION)
        gate = gate.frozen(op).reopened(op, epoch=gate.next_epoch(), revision=10 + epoch, authority=5)
        assert (gate.process_epoch, gate.generation, gate.mintable) == (epoch, epoch + 1, True)
    aborted = gate.frozen(op).reopened(op)
    assert (aborted.process_epoch, aborted.registration_revision, aborted.generation) == (3, 13, 5)
    assert not gate.frozen(op).mintable


@pytest.mark.req("C13.1-067", "C13.1-042", "C13.1-043", "C13.1-049")
def test_a_ledger_row_is_closed_and_its_holder_is_a_principal() -> None:
    assert CredentialRow.decode(ROW.encode()) == ROW
    assert CredentialRow.decode(ROW.revoked().encode()).state is RowState.REVOKED
    for data in spoilt(ROW.encode()):
        with pytest.raises(InvalidGate):
            CredentialRow.decode(data)
    with pytest.raises(InvalidGate):
        CredentialRow.decode(ROW.encode().replace(b"local.ep_0123456789abcdefghij", b"com.acme.echo"))
    assert (ROW.left(1_799_999_990), ROW.left(1_900_000_000)) == (10, 1)


@given(st.binary(max_size=80))
def test_bytes_of_strangers_raise_nothing_else(data: bytes) -> None:
    for reader in (Gate.decode, CredentialRow.decode):
        try:
            reader(data)
        except InvalidGate:
            continue
