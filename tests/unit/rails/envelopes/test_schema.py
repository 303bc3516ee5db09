"""The published schema: what it says, and that what is shipped is what the table prints."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import pytest

from sidecar.rails.envelopes import schema
from sidecar.rails.envelopes.message import read
from tests.oracles.json_schema import Schema
from tests.unit.rails.envelopes.samples import DIGEST, MULTICAST_TEXT, UNICAST_TEXT, document

PUBLISHED: dict[str, Any] = json.loads(schema.PUBLISHED.read_text())
SCHEMA = Schema(PUBLISHED)
# Name -> (required, optional) members, as the specification lists them; None for what is no object with members.
MEMBERS: dict[str, tuple[set[str], set[str]] | None] = {
    "CotalMessage": None,
    "EndpointRef": ({"id", "name"}, {"role"}),
    "ExtensionPartKind": None,
    "Part": None,
    "AgentCard": (
        {"id", "name", "kind"},
        {"owner", "actor", "role", "description", "tags", "skills", "meta", "protocolVersion"},
    ),
    "AgentSkill": ({"id", "name"}, {"description"}),
    "EndpointKind": None,
    "AttentionMode": None,
    "ChannelMode": None,
    "Presence": (
        {"card", "status", "ts"},
        {
            *("condition", "environment", "activity", "statusSince", "activitySince", "activeAt", "attention"),
            *("lifecycleUid", "runtime", "channelModes"),
        },
    ),
    "PresenceCondition": ({"code"}, {"source", "message", "since"}),
    "PresenceConditionCode": None,
    "PresenceRuntime": ({"id", "startedAt", "source"}, set()),
    "PresenceStatus": None,
}
ENUMS = {
    "EndpointKind": "agent endpoint",
    "AttentionMode": "open dnd focus",
    "ChannelMode": "quiet muted",
    "PresenceStatus": "idle waiting working offline",
    "PresenceConditionCode": (
        "rate_limit overloaded auth billing budget context model request server retrying approval input failed"
    ),
}


@pytest.mark.req("C5-22")
def test_the_shipped_document_is_what_the_table_prints() -> None:
    assert files("sidecar.rails.envelopes").joinpath("envelope.schema.json").read_text() == schema.text()


@pytest.mark.req("CS-01")
def test_the_definitions_and_their_members() -> None:
    assert PUBLISHED["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert PUBLISHED["$ref"] == "#/definitions/CotalMessage"
    assert set(PUBLISHED) == {"$schema", "$ref", "definitions"}
    definitions = PUBLISHED["definitions"]
    assert set(definitions) == set(MEMBERS)
    for name, members in MEMBERS.items():
        if members is not None:
            required, optional = members
            assert set(definitions[name]["required"]) == required
            assert set(definitions[name]["properties"]) == required | optional


@pytest.mark.req("CS-01", "C6-03", "C6-25", "C6-49")
@pytest.mark.parametrize("name", ENUMS)
def test_the_closed_sets(name: str) -> None:
    assert PUBLISHED["definitions"][name]["enum"] == ENUMS[name].split()


@pytest.mark.req("CS-01")
def test_no_object_is_closed() -> None:
    def closed(value: object) -> bool:
        if isinstance(value, dict):
            return value.get("additionalProperties") is False or any(map(closed, value.values()))
        return isinstance(value, list) and any(map(closed, value))

    assert not closed(PUBLISHED)


def judged(value: object) -> bool:
    """The verdict, which the schema and the code share."""
    verdict = SCHEMA.accepts(value)
    assert (schema.MESSAGE.check(value) is None) == verdict
    return verdict


@pytest.mark.req("CS-02", "C5-16", "C5-07")
@pytest.mark.parametrize(
    "value",
    [
        document(parts=[]),
        document(id="", space="", channel="", parts=[{"kind": "text", "text": ""}]),
        document(channel=..., to="", mentions=["bob"]),
        document(channel=..., toService="reviewer", mentions=[]),
        document(extra=None, parts=[{"kind": "text", "text": "x", "extra": [1]}]),
        document(**{"from": {"id": "", "name": "", "extra": {}}}),
        document(ts=-1.5),
        document(replyTo="m-0", contextId="c"),
        document(parts=[{"kind": "data", "data": None}]),
        document(parts=[{"kind": "artifact", "name": "", "mediaType": "", "digest": DIGEST, "size": 1e15}]),
        document(parts=[{"kind": "artifact", "name": "", "mediaType": "", "digest": DIGEST, "size": 0}]),
        document(parts=[{"kind": "com.acme.x"}, {"kind": "a.b", "text": 5}]),
        json.loads(MULTICAST_TEXT),
        json.loads(UNICAST_TEXT),
    ],
)
def test_valid_messages(value: dict[str, Any]) -> None:
    assert judged(value)
    read(value)


@pytest.mark.req("CS-03", "C4-01", "C4-25", "C5-08", "C5-10", "C5-15", "C5-18", "C11-16")
@pytest.mark.parametrize(
    ("value", "field"),
    [
        (document(to="x"), "channel, to, toService"),
        (document(to=None), "channel, to, toService"),
        (document(toService=None), "channel, to, toService"),
        (document(channel=...), "channel, to, toService"),
        (document(channel=None), "channel"),
        (document(channel=..., to=5), "to"),
        (document(id=...), "id"),
        (document(id=5), "id"),
        (document(id=None), "id"),
        (document(ts="1710000000000"), "ts"),
        (document(ts=True), "ts"),
        (document(ts=None), "ts"),
        (document(space=None), "space"),
        (document(**{"from": ...}), "from"),
        (document(**{"from": "alice"}), "from"),
        (document(**{"from": {"id": "x"}}), "from.name"),
        (document(**{"from": {"id": 1, "name": "x"}}), "from.id"),
        (document(**{"from": {"id": "x", "name": "x", "role": None}}), "from.role"),
        (document(mentions=None), "mentions"),
        (document(mentions="bob"), "mentions"),
        (document(mentions=["bob", 5]), "mentions[1]"),
        (document(replyTo=None), "replyTo"),
        (document(contextId=7), "contextId"),
        (document(parts=...), "parts"),
        (document(parts={}), "parts"),
        (document(parts=["text"]), "parts[0]"),
        (document(parts=[{}]), "parts[0].kind"),
        (document(parts=[{"kind": "text", "text": "a"}, {"kind": "text"}]), "parts[1].text"),
        (document(parts=[{"kind": "text", "text": None}]), "parts[0].text"),
        (document(parts=[{"kind": "data"}]), "parts[0].data"),
        (document(parts=[{"kind": "image", "url": "x"}]), "parts[0].kind"),
        (document(parts=[{"kind": "Text", "text": "x"}]), "parts[0].kind"),
        (document(parts=[{"kind": "com.acme.x\n"}]), "parts[0].kind"),
        (document(parts=[{"kind": "com..x"}]), "parts[0].kind"),
        (document(parts=[{"kind": "com.acme_x"}]), "parts[0].kind"),
        (document(parts=[{"kind": None}]), "parts[0].kind"),
        *(
            (
                document(
                    parts=[{"kind": "artifact", "name": "n", "mediaType": "m", "digest": DIGEST, "size": 1} | changed]
                ),
                f"parts[0].{next(iter(changed))}",
            )
            for changed in (
                {"digest": DIGEST.upper()},
                {"digest": "sha256:" + "A" * 64},
                {"digest": DIGEST[:-1]},
                {"digest": DIGEST + "0"},
                {"digest": DIGEST + "\n"},
                {"digest": DIGEST.replace("sha256", "sha512")},
                {"size": -1},
                {"size": 1.5},
                {"size": "1"},
                {"size": True},
                {"size": None},
                {"name": None},
                {"mediaType": 1},
            )
        ),
        (
            {"v": 1, "id": "r", "op": {"endpoint": "manager", "command": "ps"}, "from": {"id": "x"}},
            "channel, to, toService",
        ),
        ({"v": 1, "id": "r", "ok": True}, "channel, to, toService"),
        ([], ""),
        (None, ""),
        ("text", ""),
    ],
)
def test_invalid_messages(value: object, field: str) -> None:
    assert not judged(value)
    fault = schema.MESSAGE.check(value)
    assert fault is not None
    assert fault.field == field


PRESENCE: dict[str, Any] = {"card": {"id": "local.a", "name": "a", "kind": "agent"}, "status": "idle", "ts": 1}


@pytest.mark.req("CS-04", "C6-02", "C6-03")
@pytest.mark.parametrize(
    ("changes", "valid"),
    [
        ({}, True),
        ({"ts": 1e308, "activity": "x" * 10_000, "card": {"id": "", "name": "n" * 500, "kind": "endpoint"}}, True),
        ({"runtime": {"id": "r", "startedAt": 1, "source": "another"}}, True),
        ({"runtime": {"id": "r", "startedAt": 1}}, False),
        ({"runtime": None}, False),
        ({"status": "busy"}, False),
        ({"status": None}, False),
        ({"ts": None}, False),
        ({"ts": "1"}, False),
        ({"card": {"id": "local.a", "name": "a"}}, False),
        ({"card": {"id": "local.a", "name": "a", "kind": "bot"}}, False),
        ({"attention": "away"}, False),
        ({"condition": {"code": "other"}}, False),
        ({"condition": {"code": "failed", "since": "now"}}, False),
        ({"channelModes": {"general": "loud"}}, False),
        ({"channelModes": {"general": "muted", "team.x": "quiet"}}, True),
        ({"card": {"id": "local.a", "name": "a", "kind": "agent", "skills": [{"id": "s"}]}}, False),
        ({"card": {"id": "local.a", "name": "a", "kind": "agent", "tags": ["x", 1]}}, False),
        ({"card": {"id": "local.a", "name": "a", "kind": "agent", "meta": []}}, False),
        ({"card": {"id": "local.a", "name": "a", "kind": "agent", "meta": {"any": [1]}}}, True),
    ],
)
def test_presence(changes: dict[str, Any], valid: bool) -> None:
    value = {**PRESENCE, **changes}
    assert SCHEMA.accepts(value, "Presence") == valid
    assert (schema.PRESENCE.check(value) is None) == valid


@pytest.mark.req("CS-04", "C6-02")
@pytest.mark.parametrize("name", ["card", "status", "ts"])
def test_presence_without_a_needed_member(name: str) -> None:
    value = {other: member for other, member in PRESENCE.items() if other != name}
    assert not SCHEMA.accepts(value, "Presence")
    fault = schema.PRESENCE.check(value)
    assert fault == (name, "is missing")


def test_a_fault_tells_no_name_of_a_map_and_no_value() -> None:
    fault = schema.PRESENCE.check({**PRESENCE, "channelModes": {"SECRET": "SECRET"}})
    assert fault is not None
    assert fault.field == "channelModes"
    assert "SECRET" not in f"{fault}"
