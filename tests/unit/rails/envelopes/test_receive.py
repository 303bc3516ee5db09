"""Frames of the broker: what is shown, with which mark, and what is refused for which reason."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from sidecar.rails.envelopes.receive import ACTIONS, Action, Meta, Reason, Received, Rejected, Source, receive
from sidecar.rails.names.headers import SEQUENCE, STREAM, SUBJECT, TIMESTAMP
from sidecar.rails.names.subjects import Delivery, delivery_of
from tests.unit.rails.envelopes.samples import (
    ALICE,
    BOB,
    CHAT,
    INST,
    MULTICAST,
    MULTICAST_TEXT,
    OWNER_A,
    OWNER_B,
    SVC,
    UNICAST,
    UNICAST_TEXT,
    document,
)

ROUTES = {"chat": "channel", "inst": "to", "svc": "toService"}
ACK_SUBJECT = "$JS.ACK.CHAT_main.reader.1.2.3.4.5"


def text(**changes: Any) -> bytes:
    return orjson.dumps(document(**changes))


def rejected(
    payload: bytes, delivery: Delivery | None = CHAT, source: Source = Source.LIVE, **options: Any
) -> Rejected:
    with pytest.raises(Rejected) as error:
        receive(payload, delivery, source, **options)
    return error.value


@pytest.mark.req("C4-05", "C12-06", "C12-23")
def test_a_post() -> None:
    delivery = delivery_of(f"cotal.main.chat.{ALICE}.team.backend")
    assert delivery == CHAT
    assert receive(MULTICAST_TEXT, delivery, Source.LIVE) == Received(
        MULTICAST, Meta("channel", "main", ALICE, "team.backend", historical=False, mismatched=False)
    )


@pytest.mark.req("C4-05", "C12-06", "C12-24")
def test_a_direct_message() -> None:
    delivery = delivery_of(f"cotal.main.inst.{BOB}.{ALICE}")
    assert receive(UNICAST_TEXT, delivery, Source.DURABLE) == Received(
        UNICAST, Meta("dm", "main", ALICE, BOB, historical=False, mismatched=False)
    )


@pytest.mark.req("C4-05", "C12-06")
def test_work_for_a_role() -> None:
    payload = text(channel=..., toService="reviewer")
    received = receive(payload, delivery_of(f"cotal.main.svc.reviewer.{ALICE}"), Source.DURABLE)
    assert received.meta == Meta("anycast", "main", ALICE, "reviewer", historical=False, mismatched=False)


@pytest.mark.req("C7-24")
@pytest.mark.parametrize("source", Source)
def test_what_comes_from_history_says_so(source: Source) -> None:
    assert receive(text(), CHAT, source).meta.historical == (source in (Source.HISTORY, Source.DIRECT))


@pytest.mark.req("C4-25", "C4-27", "C5-21")
@pytest.mark.parametrize(
    ("source", "action"),
    [
        (Source.LIVE, Action.DROP),
        (Source.TAP, Action.DROP),
        (Source.DURABLE, Action.TERMINATE),
        (Source.HISTORY, Action.SKIP),
        (Source.DIRECT, Action.SKIP),
    ],
)
def test_no_refusal_brings_a_frame_back(source: Source, action: Action) -> None:
    assert set(ACTIONS) == set(Source)
    for payload, delivery, reason in (
        (text(), None, Reason.MALFORMED_SUBJECT),
        (b"{", CHAT, Reason.MALFORMED_JSON),
        (text(**{"from": {"id": BOB, "name": "bob"}}), CHAT, Reason.SENDER_MISMATCH),
        (text(id=5), CHAT, Reason.MALFORMED_ENVELOPE),
        (text(id=...), CHAT, Reason.MALFORMED_ENVELOPE),
    ):
        refusal = rejected(payload, delivery, source)
        assert (refusal.reason, refusal.action) == (reason, action)


@pytest.mark.req("C5-21")
def test_the_reason_tokens() -> None:
    assert {"malformed-subject", "sender-mismatch", "malformed-json", "malformed-envelope"} <= set(Reason)


@pytest.mark.req("C5-14", "C12-05")
@pytest.mark.parametrize(
    "subject",
    [
        f"cotal.main.chat.{ALICE}",
        f"cotal.main.ctl.manager.{ALICE}",
        f"cotal.main.live.manager.{ALICE}",
        "chat",
        "cotal.main.chat.UAQGWOEVJKMIO4WXSYOTLARXYOZTCXFK67JASEH6AFFFYK6FOPSKQCAD.team.backend",
        f"cotal.main.chat.p_{OWNER_A[2:]}.alice.team.backend",
        "cotal.main.chat.someone.alice.team.backend",
        f"cotal.main.chat.{ALICE}.team.*",
        f"cotal.main.chat.{ALICE}.>",
        f"cotal.main.inst.{OWNER_B}.*.{ALICE}",
        f"cotal.main.svc.*.{ALICE}",
    ],
)
def test_a_subject_that_carries_no_delivery_of_a_principal_to_one_target(subject: str) -> None:
    delivery = delivery_of(subject)
    sender = "x.y" if delivery is None else delivery.sender
    refusal = rejected(text(**{"from": {"id": sender, "name": "n"}}), delivery)
    assert refusal.reason is Reason.MALFORMED_SUBJECT


@pytest.mark.req("C12-05")
def test_the_owner_of_the_static_path_is_shown() -> None:
    payload = text(**{"from": {"id": "local.alice", "name": "n"}}, channel="general")
    assert (
        receive(payload, delivery_of("cotal.main.chat.local.alice.general"), Source.LIVE).meta.sender == "local.alice"
    )


@pytest.mark.req("C5-14", "C12-05", "C4-27")
@pytest.mark.parametrize(
    "sender",
    [
        ...,
        None,
        ALICE,
        [],
        {},
        {"name": "alice"},
        {"id": None, "name": "alice"},
        {"id": BOB, "name": "alice"},
        {"id": ALICE.upper(), "name": "alice"},
        {"id": ALICE.replace(".", "-"), "name": "alice"},
        {"id": ALICE + " ", "name": "alice"},
        {"id": [ALICE], "name": "alice"},
    ],
)
def test_a_sender_that_is_not_the_subjects(sender: object) -> None:
    assert rejected(text(**{"from": sender})).reason is Reason.SENDER_MISMATCH
    # Also where more is wrong: a forged sender is the reason that an operator must see.
    assert rejected(text(**{"from": sender}, id=5, parts=None)).reason is Reason.SENDER_MISMATCH


@pytest.mark.req("C5-14")
def test_two_senders_in_one_message() -> None:
    payload = text().replace(b'"name":"alice"', b'"name":"alice","id":"%s"' % BOB.encode())
    assert rejected(payload).reason is Reason.MALFORMED_JSON
    payload = text()[:-1] + b',"from":{"id":"%s","name":"bob"}}' % BOB.encode()
    assert rejected(payload).reason is Reason.MALFORMED_JSON


@pytest.mark.req("CC-01", "C4-27")
@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"not json",
        b"\xef\xbb\xbf" + text(),
        text().replace(b"hello", b"h\xffllo"),
        text() + b"{}",
        text().replace(b"hello", b"\\ud800"),
        text().replace(b"1710000000000", b"1e999"),
        json.dumps(document()).encode("utf-16"),
    ],
)
def test_text_that_is_no_strict_json(payload: bytes) -> None:
    assert rejected(payload).reason is Reason.MALFORMED_JSON


@pytest.mark.req("C4-25", "C5-15", "C1-06")
@pytest.mark.parametrize(
    "payload",
    [
        b"null",
        b"[]",
        b'"text"',
        text(id=None),
        text(to=BOB),
        text(channel=...),
        text(parts="x"),
        text(parts=[5]),
        orjson.dumps({"v": 1, "id": "r", "op": {}, "class": "ephemeral", "from": {"id": ALICE, "name": "a"}}),
    ],
)
def test_json_without_the_shape_of_a_message(payload: bytes) -> None:
    assert rejected(payload).reason is Reason.MALFORMED_ENVELOPE


@pytest.mark.req("C5-16", "C12-10", "C5-17")
def test_unknown_members_and_kinds_are_no_reason() -> None:
    payload = text(extra={}, parts=[{"kind": "com.acme.x", "n": 1}, {"kind": "text", "text": "hello", "z": 0}])
    assert len(receive(payload, CHAT, Source.LIVE).message.parts) == 2


@pytest.mark.req("C4-05")
@pytest.mark.parametrize(
    ("delivery", "route", "agrees"),
    [
        (CHAT, {"channel": "team.backend"}, True),
        (CHAT, {"channel": "team.frontend"}, False),
        (CHAT, {"channel": "team.Backend"}, False),
        (CHAT, {"channel": ""}, False),
        (CHAT, {"to": BOB}, False),
        (CHAT, {"to": "team.backend"}, False),
        (CHAT, {"toService": "team.backend"}, False),
        (INST, {"to": BOB}, True),
        (INST, {"to": ALICE}, False),
        (INST, {"channel": BOB}, False),
        (INST, {"toService": BOB}, False),
        (SVC, {"toService": "reviewer"}, True),
        (SVC, {"toService": "planner"}, False),
        (SVC, {"to": "reviewer"}, False),
        (SVC, {"channel": "reviewer"}, False),
    ],
)
def test_a_route_that_is_not_the_subjects_is_marked_or_refused(
    delivery: Delivery, route: dict[str, str], agrees: bool
) -> None:
    payload = text(**{"channel": ..., **route})
    meta = receive(payload, delivery, Source.DURABLE).meta
    assert meta.mismatched != agrees
    # Kind and target are those of the subject in any case.
    assert (meta.kind, meta.target) == (delivery.shown, delivery.rest)
    if agrees:
        assert receive(payload, delivery, Source.DURABLE, mediated=True).meta == meta
    else:
        refusal = rejected(payload, delivery, Source.DURABLE, mediated=True)
        assert (refusal.reason, refusal.action) == (Reason.ROUTING_MISMATCH, Action.TERMINATE)


@pytest.mark.req("C4-05")
def test_the_space_of_the_payload_is_advisory() -> None:
    meta = receive(text(space="another"), CHAT, Source.LIVE, mediated=True).meta
    assert (meta.space, meta.mismatched) == ("main", False)


@pytest.mark.parametrize("header", [STREAM, SUBJECT, SEQUENCE, TIMESTAMP])
@pytest.mark.parametrize("spell", [str, str.lower, str.upper])
@pytest.mark.parametrize("delivery", [CHAT, INST, SVC])
def test_stored_bytes_are_discarded_where_a_publish_is_expected(header: str, spell: Any, delivery: Delivery) -> None:
    payload = text(**{"channel": ..., ROUTES[delivery.kind]: delivery.rest})
    names = ["Nats-Msg-Id", spell(header)]
    for source in (Source.DURABLE, Source.HISTORY):
        refusal = rejected(payload, delivery, source, header_names=names)
        assert (refusal.reason, refusal.action) == (Reason.REDIRECTED, ACTIONS[source])
        receive(payload, delivery, source, header_names=["Nats-Msg-Id", "Nats-Streams", "X"], reply=ACK_SUBJECT)
    assert rejected(payload, delivery, Source.LIVE, header_names=names).reason is Reason.REDIRECTED
    # The broker itself marks the answer to a Direct Get.
    assert receive(payload, delivery, Source.DIRECT, header_names=names).meta.historical


def test_a_delivery_of_a_consumer_is_no_live_post() -> None:
    assert receive(text(), CHAT, Source.LIVE, reply="_INBOX_abc.1").message
    assert rejected(text(), CHAT, Source.LIVE, reply=ACK_SUBJECT).reason is Reason.REDIRECTED


@pytest.mark.parametrize("delivery", [INST, SVC])
def test_live_only_posts_are_read(delivery: Delivery) -> None:
    payload = text(**{"channel": ..., ROUTES[delivery.kind]: delivery.rest})
    assert rejected(payload, delivery, Source.LIVE).reason is Reason.REDIRECTED
    assert receive(payload, delivery, Source.DURABLE).message


def test_the_size_of_a_frame() -> None:
    assert receive(text(), CHAT, Source.LIVE, limit=len(text())).message
    assert rejected(text(), CHAT, Source.LIVE, limit=len(text()) - 1).reason is Reason.MALFORMED_JSON


def test_no_refusal_tells_what_a_frame_says() -> None:
    for payload in (
        text(id=["SECRET"]),
        text(**{"from": {"id": "SECRET", "name": "SECRET"}}),
        text(channel=..., SECRET="SECRET"),
        text(parts=[{"kind": ["SECRET"]}]),
        b'{"SECRET":SECRET}',
    ):
        refusal = rejected(payload)
        assert "SECRET" not in f"{refusal} {refusal.detail}"
        assert len(str(refusal)) < 200
