"""The governance head: governed traits stay, and a registration that stopped blocks nobody for good."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sidecar.base.strictjson import JsonValue, canonical, parse
from sidecar.rails.endpoint.codes import Code
from sidecar.rails.names.principals import Principal
from sidecar.rails.planes.registration.faults import Conflict
from sidecar.rails.planes.registration.gates import Gate, GateState, Intent, Op
from sidecar.rails.planes.registration.govern import (
    MAX_PENDING,
    BindingDropped,
    Head,
    Hold,
    InvalidHead,
    abandoned,
)

ONE, TWO = "1" * 26, "2" * 26
HOLD = Hold("a" * 26, 3, ("sha256:" + "0" * 64,), 1)
GUARDED = frozenset(("ai.cotal.guarded",))


@pytest.mark.req("C13.7-46")
def test_a_head_is_read_back_and_carries_the_policy_selector_as_it_is() -> None:
    head = Head({"spawn": GUARDED}, {ONE: HOLD}, {"enforcedPolicyKey": "policy.x.y", "enforcedPolicyRevision": 4})
    assert Head.decode(head.encode()) == head
    assert Head.decode(Head().encode()) == Head()
    promoted = head.promoted(ONE, HOLD.op_id, {})
    assert parse(promoted.encode())["enforcedPolicyKey"] == "policy.x.y"  # type: ignore[index, call-overload]


@pytest.mark.req("C13.7-46")
def test_a_fresh_instance_cannot_drop_a_governed_trait_nor_can_a_command_come_back_without_it() -> None:
    head = Head({"spawn": GUARDED})
    for surface, governed in ((["spawn"], {}), (["spawn"], {"spawn": frozenset(("ai.cotal.priced",))})):
        with pytest.raises(BindingDropped) as caught:
            head.check(surface, governed)
        assert caught.value.code == Code.CONTRACT_INVALID
    head.check(["spawn"], {"spawn": GUARDED | {"ai.cotal.priced"}})
    gone = head.taken(ONE, HOLD).promoted(ONE, HOLD.op_id, {})
    assert gone.bindings == {"spawn": GUARDED}  # a surface without the command leaves the binding


@pytest.mark.req("C13.7-46")
def test_a_promotion_needs_its_own_hold() -> None:
    head = Head().taken(ONE, HOLD)
    for wrong in (head.without((ONE,)), head.taken(ONE, replace(HOLD, op_id="b" * 26))):
        with pytest.raises(Conflict):
            wrong.promoted(ONE, HOLD.op_id, {})
    assert head.promoted(ONE, HOLD.op_id, {"spawn": GUARDED}) == Head({"spawn": GUARDED})


@pytest.mark.req("C13.7-47")
def test_a_hold_is_abandoned_when_its_gate_shows_that_it_can_never_complete() -> None:
    op = Op(HOLD.op_id, Intent.REGISTRATION)
    live = Gate(GateState.FROZEN, 3, 0, 0, 0, Principal("local", "x"), op)
    assert not abandoned(HOLD, live)
    assert not abandoned(HOLD, None)  # nothing decides it
    assert abandoned(HOLD, live.reopened(op))
    assert abandoned(HOLD, replace(live, op=Op("b" * 26, Intent.REGISTRATION)))
    assert abandoned(HOLD, replace(live, generation=4))
    retired = replace(live, state=GateState.RETIRED, op=Op(HOLD.op_id, Intent.RETIREMENT))
    assert abandoned(HOLD, retired)


def test_so_many_registrations_are_on_their_way_and_no_more() -> None:
    head = Head(holds={f"{n:026}": HOLD for n in range(MAX_PENDING)})
    with pytest.raises(Conflict) as caught:
        head.taken(TWO, HOLD)
    assert caught.value.code == Code.RESOURCE_EXHAUSTED
    assert len(head.taken(f"{0:026}", HOLD).holds) == MAX_PENDING


@pytest.mark.req("C13.7-43")
def test_no_other_shape_is_a_head() -> None:
    value = parse(Head({"spawn": GUARDED}, {ONE: HOLD}).encode())
    assert isinstance(value, dict)
    changes: list[JsonValue] = [
        {**value, name: wrong} for name in value for wrong in (None, True, 2, "x", [1], {"x": 1})
    ]
    changes += [{name: one for name, one in value.items() if name != gone} for gone in value]
    changes += [{**value, "more": 1}, [], None, {**value, "holds": {"short": value["holds"][ONE]}}]
    for change in changes:
        with pytest.raises(InvalidHead):
            Head.decode(canonical(change))
    with pytest.raises(InvalidHead):
        Head.decode(b"{")
