"""Messages as typed values: what is read, and what a publisher may send."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sidecar.base.strictjson import JsonError
from sidecar.rails.envelopes.errors import EnvelopeError, TooLarge
from sidecar.rails.envelopes.message import (
    ArtifactPart,
    DataPart,
    EndpointRef,
    ExtensionPart,
    Message,
    OddPart,
    TextPart,
    decode,
    encode,
    fresh_id,
    mention_names,
    message_headers,
    read,
    read_received,
)
from tests.unit.rails.envelopes.samples import (
    ALICE,
    BOB,
    DIGEST,
    MULTICAST,
    MULTICAST_TEXT,
    UNICAST,
    UNICAST_TEXT,
    document,
)

ROOM = 1 << 20


def refused(message: Message) -> EnvelopeError:
    with pytest.raises(EnvelopeError) as error:
        encode(message, max_payload=ROOM)
    return error.value


def routed(routes: dict[str, Any]) -> Message:
    """The unicast with other routing fields."""
    return UNICAST._replace(to=routes.get("to"), channel=routes.get("channel"), to_service=routes.get("to_service"))


def with_part(part: Any) -> Message:
    return UNICAST._replace(parts=(part,))


@pytest.mark.req("C12-23", "C5-01")
def test_the_multicast_of_the_vectors() -> None:
    assert decode(MULTICAST_TEXT) == MULTICAST
    assert json.loads(encode(MULTICAST, max_payload=ROOM)) == json.loads(MULTICAST_TEXT)


@pytest.mark.req("C12-24", "C5-01")
def test_the_unicast_of_the_vectors() -> None:
    assert decode(UNICAST_TEXT) == UNICAST
    assert json.loads(encode(UNICAST, max_payload=ROOM)) == json.loads(UNICAST_TEXT)


@pytest.mark.req("C5-08", "C5-12", "C5-16", "C5-17")
def test_every_kind_of_part() -> None:
    parts = [
        {"kind": "text", "text": "é😀", "extra": 1},
        {"kind": "data", "data": {"a": [None, 1.5]}, "text": "ignored"},
        {"kind": "artifact", "name": "n", "mediaType": "m/t", "digest": DIGEST, "size": 1e15, "url": "x"},
        {"kind": "com.acme.x", "text": 5, "more": {}},
    ]
    message = read(document(parts=parts))
    assert message.parts == (
        TextPart("é😀"),
        DataPart({"a": [None, 1.5]}),
        ArtifactPart("n", "m/t", DIGEST, 10**15),
        ExtensionPart("com.acme.x", {"text": 5, "more": {}}),
    )
    assert [part.kind for part in message.parts] == ["text", "data", "artifact", "com.acme.x"]
    assert type(message.parts[2].size) is int
    assert decode(encode(message, max_payload=ROOM)) == message


def test_parts_of_different_kinds_are_never_equal() -> None:
    assert len({TextPart("x"), DataPart("x"), TextPart("y")}) == 3


@pytest.mark.req("C5-11")
def test_an_artifact_has_no_location() -> None:
    artifact = ArtifactPart("n", "m", DIGEST, 1)
    (sent,) = json.loads(encode(with_part(artifact), max_payload=ROOM))["parts"]
    assert set(sent) == {"kind", "name", "mediaType", "digest", "size"}


@pytest.mark.req("C5-18")
@pytest.mark.parametrize(
    "part",
    [
        {"kind": "data"},
        {"kind": "text", "text": 5},
        {"kind": "artifact", "name": "n", "mediaType": "m", "digest": "x", "size": 1},
        {"kind": "image", "url": "u"},
        {"kind": ""},
    ],
)
def test_a_received_part_that_is_not_as_it_should_be_is_kept_apart(part: dict[str, Any]) -> None:
    value = document(parts=[part, {"kind": "text", "text": "rest"}])
    with pytest.raises(EnvelopeError):
        read(value)
    message = read_received(value)
    others = {name: member for name, member in part.items() if name != "kind"}
    assert message.parts == (OddPart(part["kind"], others), TextPart("rest"))
    assert type(message.parts[0]) is OddPart
    assert refused(message._replace(parts=message.parts[:1])).field.startswith("parts[0]")


@pytest.mark.parametrize("part", [5, None, [], {}, {"kind": None}, {"kind": 1, "text": "x"}])
def test_a_part_without_a_kind_is_not_kept(part: object) -> None:
    with pytest.raises(EnvelopeError):
        read_received(document(parts=[part]))


@pytest.mark.req("CC-01")
def test_text_that_is_no_strict_json() -> None:
    for data in (
        b"",
        b"{",
        b"\xef\xbb\xbf" + UNICAST_TEXT,
        UNICAST_TEXT + b"x",
        UNICAST_TEXT.replace(b"note", b"\xff"),
    ):
        with pytest.raises(JsonError):
            decode(data)
    with pytest.raises(JsonError, match="duplicate"):
        decode(UNICAST_TEXT.replace(b'"name":"alice"', b'"name":"alice","id":"local.mallory"'))


def test_the_size_of_received_text() -> None:
    assert decode(UNICAST_TEXT, limit=len(UNICAST_TEXT)) == UNICAST
    with pytest.raises(JsonError, match="size"):
        decode(UNICAST_TEXT, limit=len(UNICAST_TEXT) - 1)


@pytest.mark.req("C4-01", "C12-04", "C5-05")
@pytest.mark.parametrize(
    "routes",
    [
        {},
        {"mentions": ("bob",)},
        {"channel": "general", "to": BOB},
        {"channel": "general", "to_service": "reviewer"},
        {"to": BOB, "to_service": "reviewer"},
        {"channel": "general", "to": BOB, "to_service": "reviewer"},
    ],
)
def test_a_publisher_sets_exactly_one_route(routes: dict[str, Any]) -> None:
    message = routed(routes)._replace(mentions=routes.get("mentions", ()))
    assert refused(message).field == "channel, to, toService"


@pytest.mark.req("C4-01")
@pytest.mark.parametrize("route", [{"channel": "general"}, {"to": BOB}, {"to_service": "reviewer"}])
def test_each_route_alone(route: dict[str, str]) -> None:
    sent = json.loads(encode(routed(route), max_payload=ROOM))
    assert len({"channel", "to", "toService"} & set(sent)) == 1


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"channel": "team.*"}, "channel"),
        ({"channel": "team.>"}, "channel"),
        ({"channel": ""}, "channel"),
        ({"channel": "a..b"}, "channel"),
        ({"channel": "white space"}, "channel"),
        ({"to": "bob"}, "to"),
        ({"to": "local.b.c"}, "to"),
        ({"to": "local-b"}, "to"),
        ({"to_service": "a.b"}, "toService"),
        ({"to_service": "*"}, "toService"),
    ],
)
def test_routes_have_their_grammar(changes: dict[str, str], field: str) -> None:
    assert refused(routed(changes)).field == field


@pytest.mark.req("C5-02", "C4-24")
@pytest.mark.parametrize(
    ("message_id", "fits"),
    [
        ("", False),
        ("m", True),
        ("x" * 255, True),
        ("x" * 256, True),
        ("x" * 257, False),
        ("two words", False),
        ("line\nend", False),
        ("m\n", False),
        ("é", False),
        ("\x7f", False),
        ("!~", True),
    ],
)
def test_published_ids(message_id: str, fits: bool) -> None:
    message = UNICAST._replace(id=message_id)
    if fits:
        assert decode(encode(message, max_payload=ROOM)).id == message_id
        assert message_headers(message_id) == {"Nats-Msg-Id": message_id}
    else:
        assert refused(message).field == "id"


@pytest.mark.req("C8-59")
def test_an_empty_id_is_no_message_id() -> None:
    assert message_headers("") == {}


@pytest.mark.req("C5-03")
@pytest.mark.parametrize(
    ("ts", "fits"),
    [(-1, False), (0, True), (1, True), (2**53 - 1, True), (2**53, False), (1.0, False), (1.5, False), (True, False)],
)
def test_published_times(ts: Any, fits: bool) -> None:
    message = UNICAST._replace(ts=ts)
    if fits:
        assert decode(encode(message, max_payload=ROOM)).ts == ts
    else:
        assert refused(message).field == "ts"


@pytest.mark.req("C5-04")
@pytest.mark.parametrize("sender", ["alice", "", "local.a.b", "local-a", "local.a-b", "local.*", "a.b ", "\n.a"])
def test_the_sender_is_a_principal_in_dot_form(sender: str) -> None:
    assert refused(UNICAST._replace(sender=EndpointRef(sender, "alice"))).field == "from.id"


@pytest.mark.req("C6-24")
@pytest.mark.parametrize(
    ("name", "fits"),
    [("n" * 127, True), ("n" * 128, True), ("n" * 129, False), ("😀" * 64, True), ("😀" * 64 + "n", False), ("", True)],
)
def test_names_are_counted_in_utf16(name: str, fits: bool) -> None:
    message = UNICAST._replace(sender=EndpointRef(ALICE, name))
    if fits:
        assert decode(encode(message, max_payload=ROOM)).sender.name == name
    else:
        assert refused(message).field == "from.name"


def test_the_space_is_a_token() -> None:
    assert refused(UNICAST._replace(space="my space")).field == "space"
    assert refused(UNICAST._replace(space="")).field == "space"


@pytest.mark.req("C5-09")
@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"a": [1, float("nan")]}, "parts[0].data.a[1]"),
        ({"a": float("inf")}, "parts[0].data.a"),
        (b"bytes", "parts[0].data"),
        (object(), "parts[0].data"),
        ({"when": {"at": (1, 2)}}, "parts[0].data.when.at"),
        ({1: "one"}, "parts[0].data"),
        (["\ud800"], "parts[0].data[0]"),
        ([2**53], "parts[0].data[0]"),
    ],
)
def test_data_that_json_cannot_hold_is_refused_by_its_path(data: Any, field: str) -> None:
    error = refused(with_part(DataPart(data)))
    assert error.field == field
    assert str(error).startswith(field)


@pytest.mark.req("C5-09")
def test_half_a_surrogate_pair_is_refused_wherever_it_stands() -> None:
    assert refused(with_part(TextPart("\ud800"))).field == "parts[0].text"
    assert refused(UNICAST._replace(reply_to="\udfff")).field == "replyTo"
    assert refused(UNICAST._replace(sender=EndpointRef(ALICE, "\ud800"))).field == "from.name"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"reply_to": 5}, "replyTo"),
        ({"context_id": ["c"]}, "contextId"),
        ({"parts": (TextPart(None),)}, "parts[0].text"),  # type: ignore[arg-type]
        ({"parts": (ArtifactPart("n", "m", DIGEST.upper(), 1),)}, "parts[0].digest"),
        ({"parts": (ArtifactPart("n", "m", DIGEST, -1),)}, "parts[0].size"),
        ({"parts": (ArtifactPart("n", "m", DIGEST, 2**53),)}, "parts[0].size"),
        ({"parts": (ArtifactPart("n", "m", DIGEST, 1.0),)}, "parts[0].size"),  # type: ignore[arg-type]
        ({"parts": (ExtensionPart("image", {}),)}, "parts[0].kind"),
        ({"parts": (ExtensionPart("com.acme.x", {"x": b""}),)}, "parts[0].x"),
        ({"parts": (ExtensionPart("com.acme.x", {"x": [float("nan")]}),)}, "parts[0].x[0]"),
        ({"sender": EndpointRef(ALICE, "alice", 5)}, "from.role"),  # type: ignore[arg-type]
    ],
)
def test_what_the_schema_refuses_is_not_published(changes: dict[str, Any], field: str) -> None:
    assert refused(UNICAST._replace(**changes)).field == field


@pytest.mark.req("C5-06")
def test_mentions_are_lowered_and_each_stands_once() -> None:
    assert mention_names([" Bob ", "bob", "", "  ", "ÄNNE", "alice"]) == ("bob", "änne", "alice")
    sent = json.loads(encode(MULTICAST._replace(mentions=("Bob", "BOB", " ")), max_payload=ROOM))
    assert sent["mentions"] == ["bob"]
    assert "mentions" not in json.loads(encode(MULTICAST._replace(mentions=(" ",)), max_payload=ROOM))


@pytest.mark.req("C5-07")
def test_absent_fields_are_left_out() -> None:
    sent = json.loads(encode(UNICAST._replace(reply_to="m-0", context_id="c"), max_payload=ROOM))
    assert (sent["replyTo"], sent["contextId"]) == ("m-0", "c")
    assert set(json.loads(encode(UNICAST, max_payload=ROOM))) == {"id", "ts", "space", "from", "to", "parts"}


def test_an_artifact_of_the_largest_size() -> None:
    artifact = ArtifactPart("n", "m", DIGEST, 2**53 - 1)
    assert decode(encode(with_part(artifact), max_payload=ROOM)).parts == (artifact,)


@pytest.mark.req("C5-19")
def test_a_message_fits_the_broker() -> None:
    size = len(encode(UNICAST, max_payload=ROOM))
    assert len(encode(UNICAST, max_payload=size)) == size
    with pytest.raises(TooLarge, match="artifact part") as error:
        encode(UNICAST, max_payload=size - 1)
    assert (error.value.size, error.value.limit) == (size, size - 1)


@pytest.mark.req("C4-24")
def test_fresh_ids() -> None:
    first, second = fresh_id(1710000000000, bytes(10)), fresh_id(1710000000000, b"\xff" * 10)
    assert first == "018e23f1-4c00-7000-8000-000000000000"
    assert second == "018e23f1-4c00-7fff-bfff-ffffffffffff"
    assert fresh_id(1710000000001, bytes(10)) > first
    assert len({fresh_id(1, (n << 8 | n).to_bytes(10, "big")) for n in range(1000)}) == 1000
    encode(UNICAST._replace(id=second), max_payload=ROOM)
    for now, entropy in ((-1, bytes(10)), (1 << 48, bytes(10)), (1, bytes(9)), (1, bytes(11))):
        with pytest.raises(ValueError):
            fresh_id(now, entropy)
    assert fresh_id((1 << 48) - 1, bytes(10)).startswith("ffffffff-ffff-7")


def test_no_error_tells_what_a_message_says() -> None:
    for message in (
        with_part(TextPart(b"SECRET")),  # type: ignore[arg-type]
        UNICAST._replace(to="SECRET"),
        UNICAST._replace(to=None, channel="SECRET SECRET"),
        UNICAST._replace(sender=EndpointRef("SECRET", "n")),
        UNICAST._replace(id="SECRET SECRET"),
        with_part(ExtensionPart("SECRET", {})),
        with_part(ArtifactPart("SECRET", "SECRET", "SECRET", 1)),
    ):
        assert "SECRET" not in str(refused(message))
