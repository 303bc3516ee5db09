"""Presence records and the card in them (C6): what a writer sends, and what a reader makes of anything that came.

A writer keeps to the schema and to the prose. A reader drops a record only for what C6-37..42 name; any other member of
a wrong type counts as absent, so that one odd field does not hide a peer.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple, NoReturn

import orjson

from sidecar.base.strictjson import JsonError, JsonValue, NotJson, check_value, parse
from sidecar.rails.envelopes.errors import EnvelopeError
from sidecar.rails.envelopes.message import check_display_name, check_principal
from sidecar.rails.envelopes.schema import EXTENSION, PRESENCE, Attention, ChannelMode, EndpointKind, Status

RUNTIME_SOURCE: Final = "endpoint-process"
"""The one value of ``runtime.source``; an observer shows any other as unsupported (C6-18)."""
_TIME: Final = b',"ts":'
_DIGITS: Final = 15
_CACHED_BYTES: Final = 2_048
"""The longest record whose reading is kept; with 1,024 of them some megabytes."""
MAX_RECORD: Final = 256 * 1024
"""Bytes of a presence record that a reader parses."""
RESERVED_META: Final = frozenset(
    ("connector", "model", "provider", "host", "cwd", "repo", "branch", "head", "sessionKind", "sessionId", "terminal")
)
"""Keys of ``card.meta`` that the specification gives a meaning, all advisory (C6-27)."""
TERMINALS: Final = ("stream", "none")
_STATUSES: Final = {str(one): one for one in Status}
_ATTENTION: Final = {str(one): one for one in Attention}
_CHANNEL_MODES: Final = {str(one): one for one in ChannelMode}
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Skill(NamedTuple):
    """One thing that an agent says it can do."""

    id: str
    name: str
    description: str | None = None


class Card(NamedTuple):
    """Who an instance says it is. ``id`` is the principal in dot-form; ``meta`` is advisory throughout (C6-27).

    ``protocol_version`` absent means a peer before 0.4 (C6-28).
    """

    id: str
    name: str
    kind: EndpointKind = EndpointKind.ENDPOINT
    role: str | None = None
    description: str | None = None
    tags: tuple[str, ...] = ()
    skills: tuple[Skill, ...] = ()
    meta: Mapping[str, JsonValue] = _NOTHING
    protocol_version: str | None = None


class ReportedCondition(NamedTuple):
    """What the harness said is wrong; a reader keeps codes that it does not know (C6-42)."""

    code: str
    source: str | None = None
    message: str | None = None
    since: int | float | None = None


class Runtime(NamedTuple):
    """The process that holds the connection, as it saw itself (C6-15..20)."""

    id: str
    started_at: int | float
    source: str = RUNTIME_SOURCE

    @property
    def supported(self) -> bool:
        return self.source == RUNTIME_SOURCE


class Presence(NamedTuple):
    """One record of the roster. Times are milliseconds since 1970; ``ts`` is the last heartbeat."""

    card: Card
    status: Status
    ts: int | float
    condition: ReportedCondition | None = None
    environment: str | None = None
    activity: str | None = None
    status_since: int | float | None = None
    activity_since: int | float | None = None
    active_at: int | float | None = None
    attention: Attention | None = None
    lifecycle_uid: str | None = None
    runtime: Runtime | None = None
    channel_modes: Mapping[str, ChannelMode] = _NOTHING


_TS: Final = Presence._fields.index("ts")
_tuple: Final = tuple.__new__


def encode_presence(presence: Presence) -> bytes:
    """The record that an instance writes under its own key (C6-02); EnvelopeError names the field.

    Beyond the schema: the id is a principal and the name is short enough (C6-23, C6-24), times are whole, an offline
    record does not say since when (C6-08), and the runtime has the one known source (C6-18).
    """
    value = _members(presence)
    try:
        check_value(value)
    except NotJson as error:
        raise EnvelopeError(error.path, error.why) from None
    if (fault := PRESENCE.check(value)) is not None:
        raise EnvelopeError(*fault)
    check_principal("card.id", presence.card.id)
    check_display_name("card.name", presence.card.name)
    _check_meta(presence.card.meta)
    if type(presence.ts) is not int or presence.ts < 0:
        raise EnvelopeError("ts", "is no whole number of milliseconds since 1970")
    if presence.status is Status.OFFLINE and presence.status_since is not None:
        raise EnvelopeError("statusSince", "does not stand in an offline record")
    if presence.runtime is not None and not presence.runtime.supported:
        raise EnvelopeError("runtime.source", f"is not {RUNTIME_SOURCE}")
    return orjson.dumps(value)


def _check_meta(meta: Mapping[str, JsonValue]) -> None:
    """Keys without a dot are the specification's, and flat strings; others are named like extensions (C11-16, -17)."""
    for key, value in meta.items():
        if key in RESERVED_META:
            if type(value) is not str or (key == "terminal" and value not in TERMINALS):
                raise EnvelopeError(f"card.meta.{key}", "is not what the specification says of it")
        elif EXTENSION.check(key) is not None:
            raise EnvelopeError("card.meta", "has a key that is neither reserved nor a dotted name")


def decode_presence(key: str, data: bytes) -> Presence:
    """The record under ``key`` (the principal in dot-form). JsonError or EnvelopeError: the record is dropped, and the
    caller reports that where it cannot end the process (C6-43)."""
    head, moment = _apart(data)
    if moment is not None:
        try:
            undated = _undated(key, head)
        except (JsonError, EnvelopeError):
            pass  # the whole record says what is wrong with it
        else:
            return _tuple(Presence, (*undated[:_TS], moment, *undated[_TS + 1 :]))
    return read_presence(key, parse(data, limit=MAX_RECORD))


def _apart(data: bytes) -> tuple[bytes, int | None]:
    """A record that ends with its heartbeat time: what stands before the time, and the time. Behind a comma the quote
    opens the name, and what closes the text closes its root: no other text in place of the digits is another record."""
    at = data.rfind(_TIME) if len(data) <= _CACHED_BYTES and data.endswith(b"}") else -1
    digits = data[at + len(_TIME) : -1]
    if at < 0 or not digits.isdigit() or len(digits) > _DIGITS or digits.startswith(b"0"):
        return b"", None
    return data[: at + len(_TIME)], int(digits)


@lru_cache(maxsize=1_024)
def _undated(key: str, head: bytes) -> Presence:
    """A record but for its time. Peers change seldom, and each heartbeat moves the time alone."""
    return read_presence(key, parse(head + b"0}", limit=MAX_RECORD))


def read_presence(key: str, value: JsonValue) -> Presence:
    """Like ``decode_presence`` from a parsed value; EnvelopeError names the member for which it is dropped."""
    record = _object(value)
    card = _object(record.get("card"))
    if card.get("id") != key:
        _drop("card.id", "is not the key of the record")
    if type(card.get("name")) is not str:
        _drop("card.name", "is no string")
    word, ts = record.get("status"), record.get("ts")
    status = _STATUSES.get(word) if type(word) is str else None
    if status is None:
        _drop("status", f"is none of {', '.join(Status)}")
    if type(ts) is not int and type(ts) is not float:
        _drop("ts", "is no number")
    for field, holder, name in (
        ("card.role", card, "role"),
        ("activity", record, "activity"),
        ("attention", record, "attention"),
    ):
        if name in holder and type(holder[name]) is not str:
            _drop(field, "is no string")
    return Presence(
        card=_card(card),
        status=status,
        ts=ts,
        condition=_condition(record),
        environment=_text(record, "environment"),
        activity=_text(record, "activity"),
        status_since=_number(record, "statusSince"),
        activity_since=_number(record, "activitySince"),
        active_at=_number(record, "activeAt"),
        attention=_attention(record.get("attention")),
        lifecycle_uid=_text(record, "lifecycleUid"),
        runtime=_runtime(_object(record["runtime"])) if "runtime" in record else None,
        channel_modes=_channel_modes(record["channelModes"]) if "channelModes" in record else _NOTHING,
    )


def _drop(field: str, why: str) -> NoReturn:
    raise EnvelopeError(field, why)


def _object(value: object) -> Mapping[str, Any]:
    return value if type(value) is dict else _NOTHING


def _text(holder: Mapping[str, Any], name: str) -> str | None:
    value = holder.get(name)
    return value if type(value) is str else None


def _number(holder: Mapping[str, Any], name: str) -> int | float | None:
    value = holder.get(name)
    return value if type(value) is int or type(value) is float else None


def _items(holder: Mapping[str, Any], name: str) -> list[Any]:
    value = holder.get(name)
    return value if type(value) is list else []


def _card(card: Mapping[str, Any]) -> Card:
    """The members beside ``id`` and ``name``; ``owner`` and ``actor`` only repeat the id (OPEN CS-b)."""
    return Card(
        id=card["id"],
        name=card["name"],
        # Whatever is no agent is an endpoint.
        kind=EndpointKind.AGENT if card.get("kind") == EndpointKind.AGENT else EndpointKind.ENDPOINT,
        role=_text(card, "role"),
        description=_text(card, "description"),
        tags=tuple(tag for tag in _items(card, "tags") if type(tag) is str) if "tags" in card else (),
        skills=_skills(card) if "skills" in card else (),
        meta=_object(card.get("meta")),
        protocol_version=_text(card, "protocolVersion"),
    )


def _skills(card: Mapping[str, Any]) -> tuple[Skill, ...]:
    return tuple(skill for one in _items(card, "skills") if (skill := _skill(_object(one))) is not None)


def _skill(skill: Mapping[str, Any]) -> Skill | None:
    identity, name = _text(skill, "id"), _text(skill, "name")
    return None if identity is None or name is None else Skill(identity, name, _text(skill, "description"))


def _condition(record: Mapping[str, Any]) -> ReportedCondition | None:
    if "condition" not in record:
        return None
    condition = _object(record["condition"])
    code = _text(condition, "code")
    if code is None:
        _drop("condition", "is no object with a string code")
    return ReportedCondition(code, _text(condition, "source"), _text(condition, "message"), _number(condition, "since"))


def _attention(mode: str | None) -> Attention | None:
    """A mode that is not known receives everything, like no mode (OPEN C6-b)."""
    if mode is None:
        return None
    return _ATTENTION.get(mode, Attention.OPEN)


def _runtime(runtime: Mapping[str, Any]) -> Runtime | None:
    identity, started_at, source = _text(runtime, "id"), _number(runtime, "startedAt"), _text(runtime, "source")
    return None if identity is None or started_at is None or source is None else Runtime(identity, started_at, source)


def _channel_modes(value: object) -> Mapping[str, ChannelMode]:
    said = _object(value).items()
    known = {name: _CHANNEL_MODES[mode] for name, mode in said if type(mode) is str and mode in _CHANNEL_MODES}
    return known or _NOTHING


def _given(**members: object) -> dict[str, object]:
    return {name: value for name, value in members.items() if value is not None}


def _members(presence: Presence) -> dict[str, object]:
    card, condition, runtime = presence.card, presence.condition, presence.runtime
    owner, _, actor = card.id.partition(".")
    return _given(
        card=_given(
            id=card.id,
            name=card.name,
            kind=str(card.kind),
            owner=owner,
            actor=actor,
            role=card.role,
            description=card.description,
            tags=list(card.tags) or None,
            skills=[_given(**skill._asdict()) for skill in card.skills] or None,
            meta=dict(card.meta) or None,
            protocolVersion=card.protocol_version,
        ),
        status=str(presence.status),
        condition=condition and _given(**condition._asdict()),
        environment=presence.environment,
        activity=presence.activity,
        statusSince=presence.status_since,
        activitySince=presence.activity_since,
        activeAt=presence.active_at,
        attention=presence.attention and str(presence.attention),
        lifecycleUid=presence.lifecycle_uid,
        runtime=runtime and {"id": runtime.id, "startedAt": runtime.started_at, "source": runtime.source},
        channelModes={name: str(mode) for name, mode in presence.channel_modes.items()} or None,
        ts=presence.ts,
    )
