"""Requests as they are sent: subjects and bytes (C13.2-16..25, C13.3-10..30)."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.base.strictjson import JsonValue
from sidecar.rails.endpoint.calls_request import Plan, Rail, check_bind, check_id, check_seconds, checked_args
from sidecar.rails.endpoint.calls_types import To
from sidecar.rails.endpoint.codes import CallFailed, Code, Outcome
from sidecar.rails.endpoint.contracts import Contract
from sidecar.rails.endpoint.envelope import Bind, EndpointRequest, Op, Sender, Target
from sidecar.rails.endpoint.shapes import VOID
from sidecar.rails.envelopes.shapes import ANYTHING
from sidecar.rails.names import endpoint as subjects
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.names.tokens import MODES
from tests.property.test_endpoint_property import VALUES

INSTANCE, UID, BOB_UID = "i2" * 13, "a1" * 13, "b2" * 13
ALICE = Lifecycle(Principal("local", "alice"), UID)
GENERATION = "0f" * 16
ECHO = Contract("echo", ANYTHING, ANYTHING)
AIMED = Contract("stop", VOID, VOID, modes=MODES)
SENDER = Sender("local.alice", "Alice", "dev")
NONCE = "9" * 32


def plan(contract: Contract | None = ECHO, generation: str | None = None, **more: Any) -> Plan:
    return Plan(Rail("main", ALICE, generation), SENDER, "com.acme.echo", contract, **more)


def refused(work: Any) -> CallFailed:
    with pytest.raises(CallFailed) as error:
        work()
    assert error.value.outcome is Outcome.NOT_EXECUTED
    return error.value


@pytest.mark.req("C13.2-16", "C13.2-20", "C13.2-25", "C13.2-37")
@pytest.mark.parametrize("generation", [None, GENERATION])
@pytest.mark.parametrize("route", subjects.ROUTES)
@pytest.mark.parametrize("mode", ["", *MODES])
def test_the_subject_is_that_of_the_table(generation: str | None, route: str, mode: str) -> None:
    instance = INSTANCE if route == "inst" else None
    to = To(mode, "local", "bob", BOB_UID) if mode not in ("", "self") else (To("self") if mode else None)
    made = plan(AIMED if mode else ECHO, generation, route=route, instance=instance, to=to)
    found = subjects.parse_request(made.prefix + NONCE)
    assert (found.route, found.mode, found.issued, found.sender) == (route, mode, generation is not None, "local.alice")
    assert found.values["nonce"] == NONCE
    assert found.values.get("generation") == generation
    assert found.values.get("instance") == instance
    own = {"to_owner": "local", "to_actor": "bob", "to_uid": BOB_UID}
    assert found.target == {name: own[name] for name in found.target}
    assert len(found.target) == {"": 0, "self": 0, "handle": 3, "exact": 3}.get(mode, 1)


@pytest.mark.req("C13.2-25", "C13.3-49", "C13.2-47")
@pytest.mark.parametrize("generation", [None, GENERATION])
def test_the_sentinel_and_the_replies_are_of_the_same_rail(generation: str | None) -> None:
    rail = Rail("main", ALICE, generation)
    more = {} if generation is None else {"generation": generation}
    names = {"space": "main", **ALICE.names, **more}
    assert rail.sentinel + NONCE == subjects.SENTINELS[rail.issued].build(**names, nonce=NONCE)
    assert rail.replies == subjects.REPLIES[rail.issued].filter(**names)
    reply = f"{rail.reply_prefix}com_acme_echo.{INSTANCE}.7{rail.caller}{NONCE}"
    assert reply == subjects.parse_request(plan(generation=generation).prefix + NONCE).reply(INSTANCE, 7)


CORRELATION = st.none() | st.dictionaries(
    st.sampled_from(["traceparent", "tracestate", "baggage"]), st.text("abc-", min_size=1), min_size=1
)


@pytest.mark.req("C13.3-09", "C13.3-10", "C13.3-12", "C13.3-15", "C13.3-17", "C13.3-21", "C13.14-10")
@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(["", "self", "owner", "exact"]),
    VALUES,
    st.none() | st.integers(1, 3_600_000),
    CORRELATION,
    st.none() | st.integers(0, 2**53 - 1),
    st.none() | st.integers(0, 9),
    st.booleans(),
)
def test_the_bytes_are_those_of_the_plain_form(
    mode: str,
    args: JsonValue,
    deadline: int | None,
    correlation: dict[str, str] | None,
    epoch: int | None,
    revision: int | None,
    described: bool,
) -> None:
    contract = None if described else (AIMED if mode else ECHO)
    to = To(mode, "local", "bob", BOB_UID, revision) if mode not in ("", "self") and not described else None
    if mode == "self" and not described:
        to = To("self")
    bind = None if epoch is None else Bind(INSTANCE, epoch)
    made = plan(contract, to=to)
    op = Op("com.acme.echo", "describe")
    if contract is not None:
        op = Op("com.acme.echo", contract.command, contract.input_digest, contract.output_digest)
    body_target = None if to is None or to.mode == "self" else Target("local", "bob", BOB_UID, revision)
    plain = EndpointRequest(
        "r-1", op, "ephemeral", deadline is not None, SENDER, args, deadline, None, body_target, bind, correlation
    )
    assert made.body("r-1", args, deadline, correlation, bind) == plain.encode()


@pytest.mark.req("C13.3-25", "C13.3-26")
def test_a_bind_stands_where_one_incarnation_is_asked_for_and_names_it() -> None:
    check_bind(None, "all", "describe", None)
    check_bind(Bind(INSTANCE, 0), "one", "echo", None)
    check_bind(Bind(INSTANCE, 0), "inst", "echo", INSTANCE)
    for bind, route, command, instance in (
        (Bind(INSTANCE, 0), "all", "echo", None),
        (Bind(INSTANCE, 0), "one", "describe", None),
        (Bind(INSTANCE, 0), "inst", "echo", "e5" * 13),
        (Bind("x", 0), "one", "echo", None),
        (Bind(INSTANCE, -1), "one", "echo", None),
        (Bind(INSTANCE, True), "one", "echo", None),
    ):
        assert refused(lambda: check_bind(bind, route, command, instance)).code == Code.BAD_REQUEST  # noqa: B023


@pytest.mark.req("C13.3-30", "C13.5-26", "C13.8-40")
def test_a_deadline_is_there_and_bounded() -> None:
    assert check_seconds(15) == 15.0
    for bad in (None, 0, -1, 0.0009, 3600.001, math.inf, math.nan, "5", True):
        assert refused(lambda: check_seconds(bad)).code == Code.BAD_REQUEST  # type: ignore[arg-type]  # noqa: B023


@pytest.mark.req("C13.3-10", "C13.14-09")
def test_an_id_is_one_of_its_grammar() -> None:
    assert check_id("a_B-9" * 12) == "a_B-9" * 12
    for bad in ("", "x" * 65, "a.b", "ü", 'a"b'):
        assert refused(lambda: check_id(bad)).code == Code.BAD_REQUEST  # noqa: B023


@pytest.mark.req("C13.3-28", "C13.7-26")
def test_arguments_are_checked_before_they_are_sent() -> None:
    assert checked_args(AIMED, {}) is None
    assert checked_args(AIMED, None) is None
    assert checked_args(ECHO, {}) == {}
    for contract, args in ((AIMED, {"a": 1}), (ECHO, {"a": math.nan}), (ECHO, {"a": {1}}), (ECHO, {"a": "\ud800"})):
        assert refused(lambda: checked_args(contract, args)).code == Code.BAD_REQUEST  # type: ignore[arg-type] # noqa: B023


@pytest.mark.req("C13.2-20", "C13.3-21", "C13.3-20")
@pytest.mark.parametrize(
    ("contract", "to"),
    [
        (ECHO, To("self")),
        (AIMED, None),
        (AIMED, To("self", "local")),
        (AIMED, To("owner", "local")),
        (AIMED, To("owner", "local", "bob")),
        (AIMED, To("exact", "local", "bob", "short")),
        (AIMED, To("owner", "a.b", "bob", BOB_UID)),
        (Contract("stop", VOID, VOID, modes=("self",)), To("owner", "local", "bob", BOB_UID)),
        (AIMED, To("whole", "local", "bob", BOB_UID)),
    ],
)
def test_a_target_is_whole_and_of_a_mode_that_the_command_admits(contract: Contract, to: To | None) -> None:
    assert refused(lambda: plan(contract, to=to)).code == Code.TARGET_MISMATCH


def test_names_that_are_none_are_refused_before_anything_is_sent() -> None:
    assert refused(lambda: plan(route="inst", instance="x")).code == Code.BAD_REQUEST
    assert refused(lambda: Plan(Rail("main", ALICE, None), SENDER, "A.b", ECHO)).code == Code.BAD_REQUEST
