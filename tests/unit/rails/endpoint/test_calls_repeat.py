"""Which calls are repeated by themselves, and when (C13.7-09..14, C13.8-39)."""

from __future__ import annotations

import itertools

import pytest

from sidecar.rails.endpoint import calls_repeat as again
from sidecar.rails.endpoint.calls_repeat import Again
from sidecar.rails.endpoint.codes import CallError, CallFailed, CallRefused, Code, Outcome
from sidecar.rails.endpoint.contracts import DELIVERY, Contract
from sidecar.rails.endpoint.registry_contracts import REGISTRY
from sidecar.rails.endpoint.shapes import VOID
from sidecar.rails.names import headers

BIND = ({"kind": headers.DETAIL_BIND_REFUSED},)
UNMAPPED = ({"kind": headers.DETAIL_UNMAPPED},)
NOT, YES, UNKNOWN = Outcome.NOT_EXECUTED, Outcome.EXECUTED, Outcome.UNKNOWN


@pytest.mark.req("C13.7-13", "C13.7-14", "C13.8-39", "C13.14-12")
@pytest.mark.parametrize("kind", [CallFailed, CallRefused])
def test_a_write_is_repeated_only_when_it_is_proved_that_nothing_was_executed(kind: type[CallError]) -> None:
    for code, outcome in itertools.product(Code, Outcome):
        why = again.repeats(kind(code, "", outcome), read=False)
        passing = code in (Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED)
        assert why is (Again.NOT_EXECUTED if passing and outcome is NOT else None)


@pytest.mark.req("C13.7-13")
def test_a_read_is_repeated_after_an_unknown_outcome_too_and_no_more_after_an_answer() -> None:
    assert again.repeats(CallFailed(Code.UNAVAILABLE, "", UNKNOWN), read=True) is Again.READ
    assert again.repeats(CallFailed(Code.UNAVAILABLE, "", NOT), read=True) is Again.NOT_EXECUTED
    assert again.repeats(CallFailed(Code.UNAVAILABLE, "", YES), read=True) is None
    assert again.repeats(CallFailed(Code.INTERNAL, "", UNKNOWN), read=True) is None
    assert again.repeats(CallFailed(Code.PERMISSION_DENIED, "", NOT), read=True) is None


@pytest.mark.req("C13.7-11", "C13.7-10", "C13.7-09")
def test_without_a_declaration_everything_writes_but_what_we_know_ourselves_and_a_declaration_wins() -> None:
    plain = Contract("list-memberships", VOID, VOID)
    assert not again.reads("com.acme.echo", plain)
    assert again.reads("delivery", plain)
    assert not again.reads("delivery", Contract("list-memberships", VOID, VOID, effect="write"))
    assert again.reads("com.acme.echo", Contract("look", VOID, VOID, effect="read"))
    assert not again.reads("delivery", Contract("durable-join", VOID, VOID))
    assert all(again.reads("registry", one) for one in REGISTRY.values())
    assert again.READS["delivery"] <= DELIVERY.keys()
    assert not {"fetch", "settle", "durable-join", "durable-leave", "anycast-cancel"} & again.READS["delivery"]


@pytest.mark.req("C13.8-39")
def test_pauses_are_drawn_below_a_quarter_second_that_doubles_up_to_fifteen() -> None:
    tops = [again.pause(attempt, lambda: 1.0) for attempt in range(20)]
    assert tops[:7] == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0]
    assert set(tops[6:]) == {15.0}
    assert again.pause(3, lambda: 0.5) == 1.0
    assert again.pause(10_000, lambda: 0.0) == 0.0


@pytest.mark.req("C13.2-55", "C13.2-42", "C13.2-43", "C13.14-10")
def test_a_call_whose_basis_changed_is_repaired_on_the_marker_that_proves_it() -> None:
    bind = CallRefused(Code.EXPIRED, "", NOT, BIND)
    assert again.repairs(bind, "one", bound=True, resolved=False) is Again.BIND
    assert again.repairs(bind, "one", bound=False, resolved=False) is None
    foreign = CallFailed(Code.FAILED_PRECONDITION, "", NOT, ({"kind": headers.DETAIL_UNBOUND_RESPONDER},))
    assert again.repairs(foreign, "one", bound=True, resolved=True) is None
    unmapped = CallRefused(Code.EXPIRED, "", NOT, UNMAPPED)
    assert again.repairs(unmapped, "one", bound=False, resolved=False) is Again.UNMAPPED
    assert again.repairs(unmapped, "inst", bound=False, resolved=False) is None
    assert again.repairs(CallRefused(Code.EXPIRED, "", UNKNOWN, UNMAPPED), "one", bound=False, resolved=False) is None
    mismatch = CallRefused(Code.CONTRACT_MISMATCH, "", NOT)
    assert again.repairs(mismatch, "one", bound=False, resolved=True) is Again.CONTRACT
    assert again.repairs(mismatch, "one", bound=False, resolved=False) is None
    late = CallRefused(Code.CONTRACT_MISMATCH, "", UNKNOWN)
    assert again.repairs(late, "one", bound=False, resolved=True) is None
