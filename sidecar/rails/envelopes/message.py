"""Delivery messages: JSON text to typed values and back (C5, CS).

``decode`` and ``read`` judge what came; ``encode`` judges as a publisher must and is stricter. Unknown members are
ignored (C5-16); those of extension parts and of parts that are not as they should be are kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias, cast
from uuid import UUID

import orjson

from sidecar.base.strictjson import MAX_BYTES, SAFE_INTEGER, JsonValue, NotJson, check_value, parse
from sidecar.rails.envelopes.errors import EnvelopeError, TooLarge
from sidecar.rails.envelopes.schema import EXTENSION, MESSAGE, PARTS_BY_KIND, RECEIVED_MESSAGE
from sidecar.rails.names import InvalidName, Principal
from sidecar.rails.names.headers import MESSAGE_ID
from sidecar.rails.names.limits import MAX_DISPLAY_NAME, MAX_MESSAGE_ID
from sidecar.rails.names.tokens import GRAMMARS

MAX_ID: Final = MAX_MESSAGE_ID
"""Characters of a message id that we publish: it is a header value too (C5-02). Received ids have no bound."""
_tuple: Final = tuple.__new__
_ID = re.compile(rf"[!-~]{{1,{MAX_ID}}}")


class EndpointRef(NamedTuple):
    """Who sent a message: ``id`` is the principal in dot-form, the rest is for people."""

    id: str
    name: str
    role: str | None = None


class TextPart(NamedTuple):
    """Text for the reader."""

    text: str
    kind: str = "text"


class DataPart(NamedTuple):
    """Any JSON value (C5-09)."""

    data: JsonValue
    kind: str = "data"


class ArtifactPart(NamedTuple):
    """Bytes that lie elsewhere, named by their digest (C5-10).

    ``name``, ``media_type`` and ``size`` are claims of the sender: never reserve memory by ``size``, and check fetched
    bytes against ``digest`` before use (C5-12, C5-13).
    """

    name: str
    media_type: str
    digest: str
    size: int
    kind: str = "artifact"


class ExtensionPart(NamedTuple):
    """A part of another vocabulary, ``members`` with all of it but the kind; ignored unless supported (C5-17)."""

    kind: str
    members: Mapping[str, JsonValue]


class OddPart(NamedTuple):
    """A received part with a kind that is no name we know, or without the fields of its kind (OPEN C5-a, C5-18).

    It is kept so that the rest of its message can be shown, and is never published.
    """

    kind: str
    members: Mapping[str, JsonValue]


Part: TypeAlias = TextPart | DataPart | ArtifactPart | ExtensionPart | OddPart


class Message(NamedTuple):
    """A delivery message. Exactly one of ``channel``, ``to`` (a principal in dot-form) and ``to_service`` is set.

    On receipt these are advisory; kind and target come from the subject (C4-05). ``ts``: milliseconds since 1970.
    """

    id: str
    ts: int | float
    space: str
    sender: EndpointRef
    parts: tuple[Part, ...]
    channel: str | None = None
    to: str | None = None
    to_service: str | None = None
    mentions: tuple[str, ...] = ()
    reply_to: str | None = None
    context_id: str | None = None


def decode(data: bytes, *, limit: int = MAX_BYTES) -> Message:
    """A message that has the schema's shape, from strict JSON text. JsonError, or EnvelopeError with the field."""
    return read(parse(data, limit=limit))


def read(value: JsonValue) -> Message:
    """A message from a parsed value that has the schema's shape (CS-01); EnvelopeError with the field."""
    if (fault := MESSAGE.check(value)) is not None:
        raise EnvelopeError(*fault)
    return _built(cast(dict[str, Any], value))


def read_received(value: JsonValue) -> Message:
    """Like ``read``, but a part that is an object with a string ``kind`` is kept whatever else it lacks (OPEN C5-a)."""
    if (fault := RECEIVED_MESSAGE.check(value)) is not None:
        raise EnvelopeError(*fault)
    return _built(cast(dict[str, Any], value))


def _built(value: dict[str, Any]) -> Message:
    """The typed form of a value whose shape is known."""
    get, sender = value.get, value["from"]
    # Made without the constructors, which cost more than all the values; a test holds the order of the fields.
    return _tuple(
        Message,
        (
            value["id"],
            value["ts"],
            value["space"],
            _tuple(EndpointRef, (sender["id"], sender["name"], sender.get("role"))),
            tuple([_part(part) for part in value["parts"]]),
            get("channel"),
            get("to"),
            get("toService"),
            tuple(get("mentions", ())),
            get("replyTo"),
            get("contextId"),
        ),
    )


def _artifact(part: dict[str, Any]) -> ArtifactPart:
    return ArtifactPart(part["name"], part["mediaType"], part["digest"], int(part["size"]))


_READERS: dict[str, Callable[[dict[str, Any]], Part]] = {
    "text": lambda part: _tuple(TextPart, (part["text"], "text")),
    "data": lambda part: _tuple(DataPart, (part["data"], "data")),
    "artifact": _artifact,
}


def _part(part: dict[str, Any]) -> Part:
    kind = part["kind"]
    if (shape := PARTS_BY_KIND.get(kind)) is not None:
        return _READERS[kind](part) if shape.check(part) is None else OddPart(kind, _others(part))
    return ExtensionPart(kind, _others(part)) if EXTENSION.check(kind) is None else OddPart(kind, _others(part))


def _others(part: dict[str, Any]) -> dict[str, JsonValue]:
    return {name: value for name, value in part.items() if name != "kind"}


def encode(message: Message, *, max_payload: int) -> bytes:
    """The text that a publisher sends, of at most ``max_payload`` bytes (headers count against the broker's bound too).

    Beyond the schema: an id that can be a message id, whole milliseconds, principals and names of the grammar
    (C5-02..04, C6-24), nothing that JSON cannot hold (C5-09). Mentions are lowered (C5-06). EnvelopeError names the
    field; TooLarge says what to do (C5-19).
    """
    value = _members(message)
    if (fault := MESSAGE.check(value)) is not None:
        raise EnvelopeError(*fault)
    _check_published(message)
    try:
        for index, part in enumerate(message.parts):
            if isinstance(part, DataPart):
                check_value(part.data, f"parts[{index}].data")
            elif isinstance(part, ExtensionPart):
                check_value(part.members, f"parts[{index}]")
        data = orjson.dumps(value)
    except NotJson as error:
        raise EnvelopeError(error.path, error.why) from None
    except orjson.JSONEncodeError:  # half of a surrogate pair in one of the strings
        raise _unspeakable(value) from None
    if len(data) > max_payload:
        raise TooLarge(len(data), max_payload)
    return data


def _unspeakable(value: dict[str, object]) -> EnvelopeError:
    """The error for a document that orjson refuses, with the field that it does not tell."""
    try:
        check_value(value)
    except NotJson as error:
        return EnvelopeError(error.path, error.why)
    raise AssertionError("orjson refuses what is a JSON value")


def message_headers(message_id: str) -> dict[str, str]:
    """The header that lets the broker drop a second copy: absent for an empty id, which identifies nothing (C8-59)."""
    return {MESSAGE_ID: message_id} if message_id else {}


def fresh_id(now_ms: int, entropy: bytes) -> str:
    """A unique id (C4-24): UUID version 7 of a time in milliseconds and ten random bytes; ValueError otherwise."""
    if not 0 <= now_ms < 1 << 48 or len(entropy) != 10:
        raise ValueError("an id takes 48 bits of milliseconds and 10 random bytes")
    noise = int.from_bytes(entropy, "big")
    bits = now_ms << 80 | 0x7 << 76 | (noise >> 68) << 64 | 0x2 << 62 | (noise & (1 << 62) - 1)
    return str(UUID(int=bits))


def mention_names(names: Iterable[str]) -> tuple[str, ...]:
    """Names as they are mentioned on the wire: trimmed, lowered, each once, none empty (C5-06)."""
    lowered = (name.strip().lower() for name in names)
    return tuple(dict.fromkeys(name for name in lowered if name))


def _members(message: Message) -> dict[str, object]:
    sender: dict[str, object] = {"id": message.sender.id, "name": message.sender.name}
    if message.sender.role is not None:
        sender["role"] = message.sender.role
    members: dict[str, object] = {"id": message.id, "ts": message.ts, "space": message.space, "from": sender}
    for name, value in (
        ("channel", message.channel),
        ("to", message.to),
        ("toService", message.to_service),
        ("mentions", list(mention_names(message.mentions)) or None),
        ("replyTo", message.reply_to),
        ("contextId", message.context_id),
    ):
        if value is not None:
            members[name] = value
    members["parts"] = [_part_members(part) for part in message.parts]
    return members


def _part_members(part: Part) -> dict[str, object]:
    if isinstance(part, ExtensionPart | OddPart):
        return {**part.members, "kind": part.kind}
    if isinstance(part, ArtifactPart):
        name, media_type, digest, size, kind = part
        return {"kind": kind, "name": name, "mediaType": media_type, "digest": digest, "size": size}
    return {"kind": part.kind, part.kind: part[0]}


def _check_published(message: Message) -> None:
    """What a publisher keeps to beyond the schema; the types are known."""
    if _ID.fullmatch(message.id) is None:
        raise EnvelopeError("id", f"is not 1 to {MAX_ID} printable ASCII characters without spaces")
    if type(message.ts) is not int or not 0 <= message.ts <= SAFE_INTEGER:
        raise EnvelopeError("ts", "is no whole number of milliseconds since 1970")
    if not GRAMMARS["space"].accepts(message.space):
        raise EnvelopeError("space", "is no token of a space")
    check_principal("from.id", message.sender.id)
    check_display_name("from.name", message.sender.name)
    if message.to is not None:
        check_principal("to", message.to)
    elif message.channel is not None:
        if not GRAMMARS["channel"].accepts(message.channel):
            raise EnvelopeError("channel", "is no concrete channel")
    elif not GRAMMARS["role"].accepts(message.to_service):
        raise EnvelopeError("toService", "is no role")
    for index, part in enumerate(message.parts):
        if isinstance(part, ArtifactPart) and (type(part.size) is not int or part.size > SAFE_INTEGER):
            raise EnvelopeError(f"parts[{index}].size", "is no whole number up to 2**53 - 1")


def check_principal(field: str, text: str) -> None:
    """Refuse what is no principal in dot-form (C2-09)."""
    if not _is_principal(text):
        raise EnvelopeError(field, "is no principal in dot-form")


@lru_cache(maxsize=1024)
def _is_principal(text: str) -> bool:
    """A process sends as few principals, again and again."""
    try:
        Principal.from_dot(text)
    except InvalidName:
        return False
    return True


def check_display_name(field: str, name: str) -> None:
    """Refuse a name of more than 128 UTF-16 code units (C6-24, OPEN C6-a)."""
    units = len(name) if name.isascii() else len(name) + sum(character > "\uffff" for character in name)
    if units > MAX_DISPLAY_NAME:
        raise EnvelopeError(field, f"has more than {MAX_DISPLAY_NAME} UTF-16 code units")
