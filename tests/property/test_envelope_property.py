"""Envelopes against the published schema as a second reader of draft-07 understands it, and their round trips."""

from __future__ import annotations

import copy
import json
from typing import Any

import orjson
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sidecar.base.strictjson import JsonError
from sidecar.rails.envelopes.errors import EnvelopeError
from sidecar.rails.envelopes.message import DataPart, EndpointRef, Message, OddPart, decode, encode, read, read_received
from sidecar.rails.envelopes.presence import decode_presence, encode_presence, read_presence
from sidecar.rails.envelopes.receive import Rejected, Source, receive
from sidecar.rails.envelopes.schema import CARD, ENDPOINT_REF, MESSAGE, PART, PRESENCE, PUBLISHED, RECEIVED_MESSAGE
from sidecar.rails.names.subjects import Delivery
from tests.oracles.json_schema import Schema
from tests.property import envelope_values as values
from tests.property.test_json_property import VALUES as JSON_VALUES

DOCUMENT: dict[str, Any] = json.loads(PUBLISHED.read_text())
SCHEMA = Schema(DOCUMENT)
# The schema whose parts are what a receiver still keeps (OPEN C5-a).
KEPT = copy.deepcopy(DOCUMENT)
KEPT["definitions"]["Part"] = {"type": "object", "required": ["kind"], "properties": {"kind": {"type": "string"}}}
RECEIVED_SCHEMA = Schema(KEPT)


def times(document: dict[str, Any]) -> list[Any]:
    """Every time in a presence record."""
    inner = (document.get("condition", {}).get("since"), document.get("runtime", {}).get("startedAt"))
    return [*inner, *(document.get(name) for name in ("statusSince", "activitySince", "activeAt"))]


@pytest.mark.req("CS-01", "C5-01", "C5-16", "C5-18", "C5-20", "C0-01", "C4-01")
@given(document=values.damaged(values.MESSAGE))
@settings(max_examples=1500, deadline=None)
def test_messages_are_judged_as_by_the_schema(document: Any) -> None:
    valid = SCHEMA.accepts(document)
    assert (MESSAGE.check(document) is None) == valid
    if valid:
        message = read(document)
        assert not any(isinstance(part, OddPart) for part in message.parts)
        assert read_received(document) == message
    else:
        with pytest.raises(EnvelopeError) as refused:
            read(document)
        assert len(str(refused.value)) < 300


@pytest.mark.req("C4-25", "C5-17")
@given(document=values.damaged(values.MESSAGE, 1))
@settings(max_examples=500, deadline=None)
def test_what_a_receiver_keeps_beyond_the_schema_is_a_part(document: Any) -> None:
    valid = RECEIVED_SCHEMA.accepts(document)
    assert (RECEIVED_MESSAGE.check(document) is None) == valid
    if valid:
        message = read_received(document)
        assert len(message.parts) == len(document["parts"])
        assert any(isinstance(part, OddPart) for part in message.parts) != SCHEMA.accepts(document)


@pytest.mark.req("CS-01", "CS-04")
@given(document=values.damaged(values.PRESENCE))
@settings(max_examples=1000, deadline=None)
def test_presence_is_judged_as_by_the_schema(document: Any) -> None:
    assert (PRESENCE.check(document) is None) == SCHEMA.accepts(document, "Presence")
    if isinstance(document, dict):
        assert (CARD.check(document.get("card")) is None) == SCHEMA.accepts(document.get("card"), "AgentCard")


@pytest.mark.req("CS-01", "C5-08")
@given(document=values.damaged(values.PART), reference=values.damaged(values.REF))
@settings(max_examples=1000, deadline=None)
def test_parts_and_senders_are_judged_as_by_the_schema(document: Any, reference: Any) -> None:
    assert (PART.check(document) is None) == SCHEMA.accepts(document, "Part")
    assert (ENDPOINT_REF.check(reference) is None) == SCHEMA.accepts(reference, "EndpointRef")


@pytest.mark.req("C5-01")
@given(document=values.MESSAGE, mediated=st.booleans(), source=st.sampled_from(Source))
@settings(max_examples=500, deadline=None)
def test_a_frame_is_shown_or_refused_and_nothing_else_happens(document: Any, mediated: bool, source: Source) -> None:
    delivery = Delivery("chat", "main", "local", "alice", "team.backend")
    try:
        received = receive(orjson.dumps(document), delivery, source, mediated=mediated)
    except Rejected:
        assert not (SCHEMA.accepts(document) and document["from"]["id"] == "local.alice" and not mediated)
    else:
        assert received.message == read_received(document)
        assert received.meta.kind == "channel"
        assert received.meta.mismatched == (document.get("channel") != "team.backend")


@given(data=st.binary(max_size=60) | values.damaged(values.MESSAGE, 3).map(orjson.dumps))
@settings(max_examples=300, deadline=None)
def test_arbitrary_bytes_are_refused_in_words(data: bytes) -> None:
    told: list[str] = []
    try:
        receive(data, Delivery("chat", "main", "local", "alice", "general"), Source.LIVE)
    except Rejected as refused:
        told = [str(refused), refused.detail, refused.reason, refused.action]
    assert all(len(text) < 300 and text.isprintable() for text in told)


@pytest.mark.req("C5-09")
@given(data=JSON_VALUES)
@settings(max_examples=200, deadline=None)
def test_any_json_value_travels_in_a_data_part(data: Any) -> None:
    message = Message("id-1", 1, "main", EndpointRef("local.alice", "Alice"), (DataPart(data),), channel="general")
    assert decode(encode(message, max_payload=1 << 20)) == message


@pytest.mark.req("C6-37", "C6-38", "C6-39", "C6-40", "C6-41", "C6-42")
@given(document=values.damaged(values.PRESENCE, 3))
@settings(max_examples=1000, deadline=None)
def test_presence_is_dropped_for_the_named_reasons_alone(document: Any) -> None:
    record: dict[str, Any] = document if isinstance(document, dict) else {}
    given: Any = record.get("card")
    card: dict[str, Any] = given if isinstance(given, dict) else {}
    texts = [holder.get(name, "") for holder, name in ((card, "role"), (record, "activity"), (record, "attention"))]
    condition = record.get("condition", {"code": ""})
    kept = (
        card.get("id") == "local.alice"
        and isinstance(card.get("name"), str)
        and record.get("status") in ("idle", "waiting", "working", "offline")
        and isinstance(record.get("ts"), int | float)
        and not isinstance(record.get("ts"), bool)
        and all(isinstance(one, str) for one in texts)
        and isinstance(condition, dict)
        and isinstance(condition.get("code"), str)
    )
    try:
        presence = decode_presence("local.alice", orjson.dumps(document))
    except (EnvelopeError, JsonError):
        assert not kept
    else:
        assert kept
        assert presence == read_presence("local.alice", document)
        assert presence.status == record["status"]


@pytest.mark.req("C6-02")
@given(document=values.PRESENCE.filter(lambda document: SCHEMA.accepts(document, "Presence")))
@settings(max_examples=300, deadline=None)
def test_what_was_read_can_be_written_and_is_read_as_the_same(document: Any) -> None:
    assume(not any(type(time) is int and time >= 2**53 for time in times(document)))
    document["card"]["id"], document["ts"] = "local.alice", 5
    document.pop("runtime", None)
    if "meta" in document["card"]:  # a reader keeps any key, a writer none that is the specification's to name
        document["card"]["meta"] = {
            f"com.acme.k{at}": value for at, value in enumerate(document["card"]["meta"].values())
        }
    if document["status"] == "offline":
        document.pop("statusSince", None)
    presence = read_presence("local.alice", document)
    data = encode_presence(presence)
    assert decode_presence("local.alice", data) == presence
    assert SCHEMA.accepts(json.loads(data), "Presence")
