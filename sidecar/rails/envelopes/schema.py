"""The shapes of delivery messages, cards and presence records: one table for the schema and for the checks (CS).

``python -m sidecar.rails.envelopes.schema`` prints the draft-07 document that lies beside this file; a test keeps the
two equal (C5-22). Only what JSON Schema can say stands here; the rules of the prose are in ``message``, ``presence``.
"""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Final

from sidecar.rails.envelopes.shapes import (
    ANYTHING,
    NUMBER,
    TEXT,
    WHOLE,
    Schema,
    Shape,
    constant,
    exclusive,
    list_of,
    map_of,
    matching,
    record,
    tagged,
    words,
)

PUBLISHED: Final = Path(__file__).with_name("envelope.schema.json")
DIALECT: Final = "http://json-schema.org/draft-07/schema#"
DIGEST: Final = r"^sha256:[0-9a-f]{64}$"
EXTENSION_KIND: Final = r"^[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+$"
"""A name with at least one dot, so that it never equals a core kind."""


class EndpointKind(StrEnum):
    """How an instance takes part (C6-25)."""

    AGENT = "agent"
    ENDPOINT = "endpoint"


class Status(StrEnum):
    """What an instance is doing (C6-03)."""

    IDLE = "idle"
    WAITING = "waiting"
    WORKING = "working"
    OFFLINE = "offline"


class Condition(StrEnum):
    """What a harness reported to be wrong (C6-49)."""

    RATE_LIMIT = "rate_limit"
    OVERLOADED = "overloaded"
    AUTH = "auth"
    BILLING = "billing"
    BUDGET = "budget"
    CONTEXT = "context"
    MODEL = "model"
    REQUEST = "request"
    SERVER = "server"
    RETRYING = "retrying"
    APPROVAL = "approval"
    INPUT = "input"
    FAILED = "failed"


class Attention(StrEnum):
    """What an instance would like to be disturbed by; advisory (C6-11)."""

    OPEN = "open"
    DND = "dnd"
    FOCUS = "focus"


class ChannelMode(StrEnum):
    """The same for one channel; advisory (C6-21)."""

    QUIET = "quiet"
    MUTED = "muted"


DEFINITIONS: Final[dict[str, Schema]] = {}


def _define(name: str, shape: Shape) -> Shape:
    """Put a shape into the document; others refer to it by name."""
    DEFINITIONS[name] = shape.schema
    return Shape({"$ref": f"#/definitions/{name}"}, shape.check)


ENDPOINT_REF: Final = _define("EndpointRef", record({"id": TEXT, "name": TEXT}, {"role": TEXT}))
EXTENSION: Final = _define("ExtensionPartKind", matching(EXTENSION_KIND, "is neither a core kind nor a dotted name"))
PARTS_BY_KIND: Final = {
    "text": record({"kind": constant("text"), "text": TEXT}),
    "data": record({"kind": constant("data"), "data": ANYTHING}),
    "artifact": record(
        {
            "kind": constant("artifact"),
            "name": TEXT,
            "mediaType": TEXT,
            "digest": matching(DIGEST, "is no sha256: with 64 lowercase hex digits"),
            "size": WHOLE,
        }
    ),
}
PART: Final = _define("Part", tagged("kind", PARTS_BY_KIND, record({"kind": EXTENSION}, is_open=True)))
KEPT_PART: Final = record({"kind": TEXT})
"""The part that a receiver still keeps: older producers left the fields of core kinds out (OPEN C5-a)."""


def _message(part: Shape) -> Shape:
    return exclusive(
        {"id": TEXT, "ts": NUMBER, "space": TEXT, "from": ENDPOINT_REF, "parts": list_of(part)},
        {"mentions": list_of(TEXT), "replyTo": TEXT, "contextId": TEXT},
        {"channel": TEXT, "to": TEXT, "toService": TEXT},
    )


MESSAGE: Final = _define("CotalMessage", _message(PART))
RECEIVED_MESSAGE: Final = _message(KEPT_PART)

SKILL: Final = _define("AgentSkill", record({"id": TEXT, "name": TEXT}, {"description": TEXT}))
KIND: Final = _define("EndpointKind", words(*EndpointKind))
ATTENTION: Final = _define("AttentionMode", words(*Attention))
CHANNEL_MODE: Final = _define("ChannelMode", words(*ChannelMode))
STATUS: Final = _define("PresenceStatus", words(*Status))
CONDITION_CODE: Final = _define("PresenceConditionCode", words(*Condition))
CONDITION: Final = _define(
    "PresenceCondition", record({"code": CONDITION_CODE}, {"source": TEXT, "message": TEXT, "since": NUMBER})
)
RUNTIME: Final = _define("PresenceRuntime", record({"id": TEXT, "startedAt": NUMBER, "source": TEXT}))
CARD: Final = _define(
    "AgentCard",
    record(
        {"id": TEXT, "name": TEXT, "kind": KIND},
        {
            "owner": TEXT,
            "actor": TEXT,
            "role": TEXT,
            "description": TEXT,
            "tags": list_of(TEXT),
            "skills": list_of(SKILL),
            "meta": map_of(ANYTHING),
            "protocolVersion": TEXT,
        },
    ),
)
PRESENCE: Final = _define(
    "Presence",
    record(
        {"card": CARD, "status": STATUS, "ts": NUMBER},
        {
            "condition": CONDITION,
            "environment": TEXT,
            "activity": TEXT,
            "statusSince": NUMBER,
            "activitySince": NUMBER,
            "activeAt": NUMBER,
            "attention": ATTENTION,
            "lifecycleUid": TEXT,
            "runtime": RUNTIME,
            "channelModes": map_of(CHANNEL_MODE),
        },
    ),
)


def document() -> Schema:
    """The whole schema: a delivery message at the root, everything else by name."""
    return {"$schema": DIALECT, "$ref": "#/definitions/CotalMessage", "definitions": dict(sorted(DEFINITIONS.items()))}


def text() -> str:
    """The document as it is shipped."""
    return json.dumps(document(), indent=2) + "\n"


if __name__ == "__main__":
    print(text(), end="")
