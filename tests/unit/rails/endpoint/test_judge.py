"""The responder order: each violation with its code, and which of two is named."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest

from sidecar.rails.endpoint.codes import Code, Outcome
from sidecar.rails.endpoint.contracts import DELIVERY_ENDPOINT, DESCRIBE
from sidecar.rails.endpoint.judge import REMEMBERED, Accepted, Describes, Discard, Ignored, Refused
from sidecar.rails.names import endpoint, headers
from sidecar.rails.names.endpoint import UNTARGETED
from sidecar.rails.names.limits import MAX_SAFE_INTEGER
from tests.unit.rails.endpoint.samples import (
    BOB_UID,
    GENERATION,
    INSTANCE,
    OTHER,
    SERVING,
    TARGET,
    body,
    judged,
    op,
    subject,
)


def code(value: Any, at: str | None = None) -> str:
    """The code with which a request is refused, without an effect (C13.3-40)."""
    verdict = judged(value, at)
    assert isinstance(verdict, Refused)
    assert verdict.refusal.outcome is Outcome.NOT_EXECUTED
    return verdict.refusal.code


def test_a_right_request_is_accepted() -> None:
    verdict = judged(body())
    assert isinstance(verdict, Accepted)
    assert verdict.caller.dot == f"local.alice.{'a1' * 13}"
    assert verdict.args == {"channel": "general", "joinCursor": 7}
    assert (verdict.request.id, verdict.request.deadline_ms, verdict.contract.command) == ("r1", 5000, "durable-join")
    assert verdict.reply == (f"cotal.main.ep.reply.delivery.{INSTANCE}.3.local.alice.{'a1' * 13}.{'n' * 32}")


@pytest.mark.req("C13.3-08", "C13.3-05")
def test_unknown_members_and_other_headers_are_harmless() -> None:
    assert isinstance(judged(body(whatever=1, target2={}), names=("X-Foo", "Nats-Msg-Id")), Accepted)


@pytest.mark.req("C13.3-02", "C13.3-03", "C13.3-04", "C13.3-06")
def test_stored_messages_are_discarded_before_anything() -> None:
    names = (headers.STREAM, headers.SUBJECT, headers.SEQUENCE, headers.TIMESTAMP)
    for name, route, issued in itertools.product(names, endpoint.ROUTES, (False, True)):
        for spelled in (name, name.upper(), name.lower()):
            for value in (body(), b"junk"):
                verdict = judged(value, subject(route=route, issued=issued), ("X-Foo", spelled))
                assert verdict == Discard(Ignored.REDIRECTED)


@pytest.mark.req("C13.2-22", "C13.2-21", "C13.2-23")
def test_a_subject_that_fits_no_form_has_no_sender() -> None:
    good = subject()
    for at in (
        f"{good}.more",
        good.rpartition(".")[0],
        subject(mode="owner").replace(".owner.", ".self."),
        good.replace(".one.", ".any."),
        good.replace("local", "lo cal"),
        "",
        "cotal",
        "cotal.main.ctl.delivery.x",
        "x" * 5_000,
    ):
        assert judged(body(), at) == Discard(Ignored.NO_SENDER)
    for at in (subject(endpoint="manager"), subject(space="other"), subject(route="inst", instance=OTHER)):
        assert judged(body(), at) == Discard(Ignored.ELSEWHERE)


@pytest.mark.req("C13.2-28", "C13.2-45")
def test_the_answer_goes_to_the_rail_that_the_request_came_in_on() -> None:
    for route in endpoint.ROUTES:
        verdict = judged(body(), subject(route=route, issued=True))
        assert isinstance(verdict, Accepted)
        assert verdict.reply == (
            f"cotal.main.ep.v1.reply.delivery.{INSTANCE}.3.local.alice.{'a1' * 13}.{GENERATION}.{'n' * 32}"
        )


@pytest.mark.req("C13.3-18")
def test_a_cast_is_never_answered_whatever_is_wrong_with_it() -> None:
    wrongs: list[dict[str, Any]] = [
        {},
        {"v": 2},
        {"id": "-.-"},
        {"args": 7},
        {"op": 7},
        {"from": {}},
        {"class": "journal"},
    ]
    for wrong in wrongs:
        verdict = judged(body(replyExpected=False, without="deadlineMs", **wrong))
        assert isinstance(verdict, Refused | Accepted)
        assert verdict.reply is None
    asked = judged(body(replyExpected="no"))
    assert isinstance(asked, Refused)
    assert asked.reply is not None


@pytest.mark.req("C13.3-01", "C13.3-09")
def test_what_is_no_envelope_of_this_version_is_told_so_under_no_id() -> None:
    for data in (b"", b"\xff", b"[1]", b"null", b'{"v":1,"v":1}', b'{"v":1} ,', b"[" * 4_000, b"{" + b" " * (1 << 20)):
        verdict = judged(data)
        assert isinstance(verdict, Refused)
        assert (verdict.id, verdict.refusal.code) == ("invalid", Code.BAD_REQUEST)
        assert verdict.reply is not None
    for version in (0, 2, True, "1", None, 1.5, [1]):
        assert code(body(v=version, id="?", op=7)) == Code.UNSUPPORTED_VERSION
    assert code(body(without="v")) == Code.UNSUPPORTED_VERSION
    assert code({"op": "durableJoin", "args": {"channel": "general"}}) == Code.UNSUPPORTED_VERSION
    for identity in ("", "a" * 65, "a.b", 7, None, "ä", "a\n"):
        verdict = judged(body(id=identity))
        assert isinstance(verdict, Refused)
        assert (verdict.id, verdict.refusal.code) == ("invalid", Code.BAD_REQUEST)
    assert isinstance(judged(body(v=1.0, id="a" * 64)), Accepted)


FIELDS: list[tuple[str, dict[str, Any], str]] = [
    ("op", {"op": 7}, Code.OP_MISMATCH),
    ("op", {"op": op(endpoint=7)}, Code.OP_MISMATCH),
    ("op", {"op": op(command=None)}, Code.OP_MISMATCH),
    ("op", {"op": op(endpoint="manager")}, Code.OP_MISMATCH),
    ("op", {"op": op(command="durable-leave")}, Code.OP_MISMATCH),
    ("class", {"class": 7}, Code.CLASS_MISMATCH),
    ("class", {"class": "journal"}, Code.CLASS_MISMATCH),
    ("class", {"class": "record"}, Code.CLASS_MISMATCH),
    ("replyExpected", {"replyExpected": 1}, Code.BAD_REQUEST),
    ("goalId", {"goalId": "a.b"}, Code.BAD_REQUEST),
    ("goalId", {"goalId": None}, Code.BAD_REQUEST),
    ("goalId", {"goalId": "g1"}, Code.BAD_REQUEST),
    ("target", {"target": TARGET}, Code.TARGET_MISMATCH),
    ("target", {"target": None}, Code.TARGET_MISMATCH),
    ("target", {"target": {**TARGET, "lifecycleUid": "short"}}, Code.TARGET_MISMATCH),
    ("bind", {"bind": None}, Code.BAD_REQUEST),
    ("bind", {"bind": {"instanceId": INSTANCE}}, Code.BAD_REQUEST),
    ("bind", {"bind": {"instanceId": INSTANCE, "epoch": -1}}, Code.BAD_REQUEST),
    ("bind", {"bind": {"instanceId": INSTANCE, "epoch": True}}, Code.BAD_REQUEST),
    ("bind", {"bind": {"instanceId": INSTANCE, "epoch": MAX_SAFE_INTEGER + 1}}, Code.BAD_REQUEST),
    ("bind", {"bind": {"instanceId": "i.x", "epoch": 3}}, Code.BAD_REQUEST),
    ("from", {"from": None}, Code.SENDER_MISMATCH),
    ("from", {"from": {"id": "local.alice"}}, Code.SENDER_MISMATCH),
    ("from", {"from": {"id": "local.alice", "name": "a", "role": 7}}, Code.SENDER_MISMATCH),
    ("from", {"from": {"id": "local.alice", "name": "a" * 129}}, Code.SENDER_MISMATCH),
    ("from", {"from": {"id": "local.bob", "name": "alice"}}, Code.SENDER_MISMATCH),
    ("deadlineMs", {"deadlineMs": 0}, Code.BAD_REQUEST),
    ("deadlineMs", {"deadlineMs": -1}, Code.BAD_REQUEST),
    ("deadlineMs", {"deadlineMs": 1.5}, Code.BAD_REQUEST),
    ("deadlineMs", {"deadlineMs": None}, Code.BAD_REQUEST),
    ("deadlineMs", {"deadlineMs": MAX_SAFE_INTEGER + 1}, Code.BAD_REQUEST),
    ("correlation", {"correlation": 7}, Code.BAD_REQUEST),
    ("correlation", {"correlation": {"traceparent": "x" * 257}}, Code.BAD_REQUEST),
    ("correlation", {"correlation": {"tracestate": "a\nb"}}, Code.BAD_REQUEST),
    ("auth", {"auth": 7}, Code.BAD_REQUEST),
    ("auth", {"auth": "x" * 65_537}, Code.BAD_REQUEST),
    ("digest", {"op": op(inputDigest=None)}, Code.CONTRACT_MISMATCH),
    ("digest", {"op": op(outputDigest=7)}, Code.CONTRACT_MISMATCH),
    ("digest", {"op": op(inputDigest=op()["outputDigest"])}, Code.CONTRACT_MISMATCH),
    ("args", {"args": None}, Code.BAD_REQUEST),
    ("args", {"args": []}, Code.BAD_REQUEST),
    ("args", {"args": {"channel": "general"}}, Code.BAD_REQUEST),
    ("args", {"args": {"channel": "general", "joinCursor": "7"}}, Code.BAD_REQUEST),
    ("args", {"args": {"channel": "general", "joinCursor": 7, "more": 1}}, Code.BAD_REQUEST),
]
OF_CALLS = ("replyExpected", "deadlineMs")


@pytest.mark.req("C13.3-11", "C13.3-13", "C13.3-14", "C13.3-16", "C13.3-17", "C13.3-20", "C13.3-28", "C13.3-29")
@pytest.mark.req("C13.3-30", "C13.3-40", "C13.2-29", "C13.2-13", "C13.3-19")
@pytest.mark.parametrize(("field", "changes", "expected"), FIELDS, ids=[f"{at}-{f[0]}" for at, f in enumerate(FIELDS)])
def test_each_field_has_its_code(field: str, changes: dict[str, Any], expected: str) -> None:
    assert code(body(**changes)) == expected


@pytest.mark.req("C13.3-28", "C13.3-13", "C13.3-14", "C13.3-18", "C13.3-29")
@pytest.mark.parametrize(("changes", "expected"), [one[1:] for one in FIELDS if one[0] not in OF_CALLS])
def test_a_cast_is_held_to_the_same_and_told_nothing(changes: dict[str, Any], expected: str) -> None:
    """Nobody hears of it, and no handler does either."""
    verdict = judged(body(replyExpected=False, without="deadlineMs", **changes))
    assert isinstance(verdict, Refused)
    assert (verdict.refusal.code, verdict.reply) == (expected, None)


@pytest.mark.req("C13.3-17", "C13.3-30", "C13.3-28")
def test_missing_members_have_the_code_of_the_field() -> None:
    for name, expected in (
        ("id", Code.BAD_REQUEST),
        ("op", Code.OP_MISMATCH),
        ("class", Code.CLASS_MISMATCH),
        ("replyExpected", Code.BAD_REQUEST),
        ("from", Code.SENDER_MISMATCH),
        ("deadlineMs", Code.BAD_REQUEST),
        ("args", Code.BAD_REQUEST),
    ):
        assert code(body(without=name)) == expected


ORDER: list[tuple[str, dict[str, Any]]] = [
    (Code.UNSUPPORTED_VERSION, {"v": 2}),
    (Code.BAD_REQUEST, {"correlation": 7}),
    (Code.OP_MISMATCH, {"op": op(command="fetch", inputDigest=None)}),
    (Code.FAILED_PRECONDITION, {"bind": {"instanceId": OTHER, "epoch": 3}}),
    (Code.TARGET_MISMATCH, {"target": TARGET}),
    (Code.SENDER_MISMATCH, {"from": {"id": "local.bob", "name": "bob"}}),
    (Code.CLASS_MISMATCH, {"class": "journal"}),
    (Code.CONTRACT_MISMATCH, {"op": op(inputDigest=None)}),
    (Code.BAD_REQUEST, {"args": 7}),
]


@pytest.mark.req("C13.2-53")
def test_of_two_violations_the_earlier_check_names_its_code() -> None:
    for (earlier, one), (later, two) in itertools.combinations(ORDER, 2):
        assert code(body(**two)) == later
        if not one.keys() & two.keys():
            assert code(body(**one, **two)) == earlier


@pytest.mark.req("C13.2-53", "C13.2-54", "C13.3-25", "C13.3-26", "C13.3-27")
def test_a_bound_request_is_served_by_that_incarnation_alone() -> None:
    here = {"instanceId": INSTANCE, "epoch": 3}
    for route in ("one", "inst"):
        assert isinstance(judged(body(bind=here), subject(route=route)), Accepted)
    assert code(body(bind=here), subject(route="all")) == Code.BAD_REQUEST
    assert code(body(bind={**here, "instanceId": OTHER}), subject(route="inst")) == Code.BAD_REQUEST
    for bind, expected in (
        ({"instanceId": OTHER, "epoch": 3}, Code.FAILED_PRECONDITION),
        ({"instanceId": INSTANCE, "epoch": 2}, Code.EXPIRED),
        ({"instanceId": INSTANCE, "epoch": 0}, Code.EXPIRED),
    ):
        verdict = judged(body(bind=bind, args=7))
        assert isinstance(verdict, Refused)
        assert verdict.refusal.code == expected
        assert verdict.refusal.details == (
            {
                "kind": "ai.cotal.ep.bind-refused",
                "endpoint": DELIVERY_ENDPOINT,
                "command": "durable-join",
                "boundTo": bind,
                "servedBy": here,
            },
        )
    asked = body(bind=here, op={"endpoint": DELIVERY_ENDPOINT, "command": DESCRIBE})
    assert code(asked, subject(DESCRIBE)) == Code.BAD_REQUEST
    assert code({**asked, "bind": {**here, "epoch": 9}}, subject(DESCRIBE)) == Code.BAD_REQUEST


@pytest.mark.req("C13.2-20", "C13.2-29", "C13.2-39", "C13.3-20", "C13.3-21", "C13.3-22", "C13.2-37")
def test_the_body_target_is_that_of_the_subject_or_there_is_none() -> None:
    assert isinstance(judged(body("stop"), subject("stop", mode="self")), Accepted)
    assert code(body("stop", target=TARGET), subject("stop", mode="self")) == Code.TARGET_MISMATCH
    assert code(body("stop")) == Code.OP_MISMATCH
    assert code(body("stop"), subject("stop")) == Code.TARGET_MISMATCH
    assert code(body("stop", target=TARGET), subject("stop", mode="any")) == Code.TARGET_MISMATCH
    assert code(body(), subject(mode="self")) == Code.TARGET_MISMATCH
    for mode in ("owner", "handle"):
        at = subject("stop", mode=mode)
        assert isinstance(judged(body("stop", target=TARGET), at), Accepted)
        assert isinstance(judged(body("stop", target={**TARGET, "mappingRevision": 4}), at), Accepted)
        assert code(body("stop"), at) == Code.TARGET_MISMATCH
        assert code(body("stop", target={**TARGET, "owner": "u_x"}), at) == Code.TARGET_MISMATCH
        assert code(body("stop", target={**TARGET, "mappingRevision": -1}), at) == Code.TARGET_MISMATCH
    for changed in ({"actor": "eve"}, {"lifecycleUid": "c3" * 13}):
        assert isinstance(judged(body("stop", target={**TARGET, **changed}), subject("stop", mode="owner")), Accepted)
        assert code(body("stop", target={**TARGET, **changed}), subject("stop", mode="handle")) == Code.TARGET_MISMATCH
    assert TARGET["lifecycleUid"] == BOB_UID


@pytest.mark.req("C13.3-19")
def test_a_goal_stands_exactly_on_actions() -> None:
    assert isinstance(judged(body("start"), subject("start")), Accepted)
    assert code(body("start", without="goalId"), subject("start")) == Code.BAD_REQUEST


@pytest.mark.req("C13.7-26")
def test_a_command_without_arguments_takes_none_or_null() -> None:
    at = subject("list-memberships")
    assert isinstance(judged(body("list-memberships"), at), Accepted)
    assert isinstance(judged(body("list-memberships", args=None), at), Accepted)
    assert code(body("list-memberships", args={}), at) == Code.BAD_REQUEST


def test_an_unknown_command_is_not_implemented() -> None:
    asked = body(op={"endpoint": DELIVERY_ENDPOINT, "command": "dig"})
    assert code(asked, subject("dig", mode=UNTARGETED)) == Code.UNIMPLEMENTED


@pytest.mark.req("C13.5-05", "C13.3-18")
def test_a_journal_command_is_not_cast() -> None:
    cast = body("start", without="deadlineMs", replyExpected=False)
    verdict = judged(cast, subject("start"))
    assert isinstance(verdict, Refused)
    assert (verdict.refusal.code, verdict.reply) == (Code.CLASS_MISMATCH, None)


@pytest.mark.req("C13.7-65", "C13.3-15", "C13.2-28")
def test_describe_is_judged_like_any_request_but_without_a_contract() -> None:
    serving = replace(SERVING, describes=True)
    asked = body(op={"endpoint": DELIVERY_ENDPOINT, "command": DESCRIBE}, without="args")
    for route, issued in itertools.product(endpoint.ROUTES, (False, True)):
        at = subject(DESCRIBE, route=route, issued=issued)
        verdict = serving.judge(at, (), json.dumps(asked).encode())
        assert isinstance(verdict, Describes)
        assert verdict.origin.generation == (GENERATION if issued else None)
        assert verdict.reply is not None
        assert verdict.reply.startswith("cotal.main.ep.v1.reply." if issued else "cotal.main.ep.reply.")
    assert code(asked, subject(DESCRIBE)) == Code.UNIMPLEMENTED  # an instance without a descriptor


@pytest.mark.req("C13.2-22", "C13.2-45", "C13.2-10")
def test_what_is_remembered_of_a_subject_changes_no_verdict() -> None:
    serving = replace(SERVING)
    data = json.dumps(body()).encode()
    first = serving.judge(subject(nonce="a" * 32), (), data)
    assert isinstance(first, Accepted)
    again = serving.judge(subject(nonce="b" * 22), (), data)
    assert isinstance(again, Accepted)
    assert first.reply is not None
    assert again.reply == first.reply.replace("a" * 32, "b" * 22)
    head = subject().rpartition(".")[0]
    for nonce in ("", "b" * 21, "b" * 65, "b" * 22 + "!", "b" * 5_000):
        assert serving.judge(f"{head}.{nonce}", (), data) == Discard(Ignored.NO_SENDER)
    for number in range(REMEMBERED + 5):
        caller = subject(actor=f"a{number}")
        verdict = serving.judge(caller, (), data)
        assert isinstance(verdict, Refused)
        assert verdict.refusal.code == Code.SENDER_MISMATCH
    assert len(serving._origins) == REMEMBERED
    assert isinstance(serving.judge(subject(), (), data), Accepted)
