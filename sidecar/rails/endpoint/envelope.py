"""The two envelopes of the endpoint rails, read strictly and written exactly (C13.3).

A request that does not have its shape is refused with the code of the field that is wrong. Unknown members are ignored
(C13.3-08).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

import orjson

from sidecar.base.strictjson import JsonError, JsonValue, NotJson, check_value, parse
from sidecar.rails.endpoint.codes import (
    MAX_DETAIL_BYTES,
    MAX_DETAILS,
    MAX_ERROR_TEXT,
    Code,
    Details,
    Outcome,
    Refusal,
    is_code,
)
from sidecar.rails.envelopes.errors import EnvelopeError
from sidecar.rails.names.limits import MAX_DISPLAY_NAME, MAX_SAFE_INTEGER
from sidecar.rails.names.tokens import EXTENSION_KIND, GRAMMARS

VERSION: Final = 1
NO_ID: Final = "invalid"
"""The id of an answer to a request that had none (OPEN C13.3-a)."""
MAX_RECEIPT: Final = 16_384
MAX_AUTH: Final = 65_536
"""Characters of the opaque slots."""
MAX_DEADLINE_MS: Final = 3_600_000
"""The longest wait that a caller of ours asks for; never unlimited (C13.3-30)."""
_CORRELATION: Final = {"traceparent": 256, "tracestate": 512, "baggage": 8_192}
TRACEPARENT: Final = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_ID_SHAPE: Final = re.compile(GRAMMARS["id"].shape).fullmatch
_MISSING: Final = object()


class Op(NamedTuple):
    """What is called: the dotted endpoint name, and the digests that the caller pins."""

    endpoint: str
    command: str
    input_digest: object = None
    output_digest: object = None


class Sender(NamedTuple):
    """``from``: the principal in dot-form and a display name."""

    id: str
    name: str
    role: str | None = None


class Target(NamedTuple):
    """The body target of a targeted command."""

    owner: str
    actor: str
    lifecycle_uid: str
    mapping_revision: int | None = None


class Bind(NamedTuple):
    """The incarnation that the caller wants served by, and no other."""

    instance: str
    epoch: int


class EndpointRequest(NamedTuple):
    """A request with the shape of one. Whether it agrees with its subject and contract is for ``judge``."""

    id: str
    op: Op
    contract_class: str
    reply_expected: bool
    sender: Sender
    args: JsonValue = None
    deadline_ms: int | None = None
    goal: str | None = None
    target: Target | None = None
    bind: Bind | None = None
    correlation: Mapping[str, str] | None = None
    auth: str | None = None

    def encode(self) -> bytes:
        """The bytes of a request of ours; EnvelopeError names the member that JSON cannot hold."""
        op = {"endpoint": self.op.endpoint, "command": self.op.command}
        if self.op.input_digest is not None or self.op.output_digest is not None:
            op |= {"inputDigest": self.op.input_digest, "outputDigest": self.op.output_digest}  # type: ignore[dict-item]
        target = self.target and _given(
            owner=self.target.owner,
            actor=self.target.actor,
            lifecycleUid=self.target.lifecycle_uid,
            mappingRevision=self.target.mapping_revision,
        )
        value = {
            "v": VERSION,
            "id": self.id,
            "op": op,
            "class": self.contract_class,
            "replyExpected": self.reply_expected,
            "from": _given(**self.sender._asdict()),
            **_given(
                args=self.args,
                deadlineMs=self.deadline_ms,
                goalId=self.goal,
                target=target,
                bind=self.bind and {"instanceId": self.bind.instance, "epoch": self.bind.epoch},
                correlation=self.correlation and dict(self.correlation),
                auth=self.auth,
            ),
        }
        return _dump(value)


def is_id(value: object) -> bool:
    """Whether a value is an id (C13.2-11)."""
    # What ``GRAMMARS["id"].accepts`` says, whose shape has the bounds too; asked twice for each call.
    return type(value) is str and _ID_SHAPE(value) is not None


class Body:
    """A parsed request body before it is judged: who is to be answered, and under which id."""

    __slots__ = ("answered", "id", "members")

    def __init__(self, data: bytes) -> None:
        """Never raises; ``members`` is None for what is no JSON object."""
        try:
            value = parse(data)
        except JsonError:
            value = None
        self.members: dict[str, Any] | None = cast("dict[str, Any]", value) if type(value) is dict else None
        found = self.members or {}
        self.id = found["id"] if is_id(found.get("id")) else NO_ID
        self.answered = found.get("replyExpected") is not False
        """A cast says ``false``; what says nothing readable may be a call, and is told what is wrong (C13.3-18)."""


def read_request(body: Body) -> EndpointRequest:
    """The request in a body. Refusal has the code of the first field that is wrong, version first (C13.3-09)."""
    members = body.members
    if members is None:
        raise _refused(Code.BAD_REQUEST, "the payload is no JSON object")
    if not _is(members.get("v"), VERSION):
        raise _refused(Code.UNSUPPORTED_VERSION, f"the envelope's v is not {VERSION}")
    if body.id == NO_ID and members.get("id") != NO_ID:
        raise _refused(Code.BAD_REQUEST, "id is not 1 to 64 characters of A-Z a-z 0-9 _ -")
    op = _op(members.get("op"))
    contract_class = members.get("class")
    if type(contract_class) is not str:
        raise _refused(Code.CLASS_MISMATCH, "class is no string")
    expected = members.get("replyExpected")
    if type(expected) is not bool:
        raise _refused(Code.BAD_REQUEST, "replyExpected is no boolean")
    return EndpointRequest(
        id=body.id,
        op=op,
        contract_class=contract_class,
        reply_expected=expected,
        goal=_goal(members),
        target=_target(members),
        bind=_bind(members),
        sender=_sender(members.get("from")),
        deadline_ms=_deadline(members, expected),
        correlation=_correlation(members),
        auth=_auth(members),
        args=members.get("args"),
    )


def _refused(code: Code, message: str) -> Refusal:
    return Refusal(code, message, Outcome.NOT_EXECUTED)


def _is(value: object, number: int) -> bool:
    """Whether a member is this number; JSON's true is none."""
    return type(value) in (int, float) and value == number


def _op(value: object) -> Op:
    if type(value) is not dict or type(value.get("endpoint")) is not str or type(value.get("command")) is not str:
        raise _refused(Code.OP_MISMATCH, "op is no object with an endpoint and a command")
    return Op(value["endpoint"], value["command"], value.get("inputDigest"), value.get("outputDigest"))


def _goal(members: Mapping[str, Any]) -> str | None:
    goal = members.get("goalId", _MISSING)
    if goal is _MISSING:
        return None
    if not is_id(goal):
        raise _refused(Code.BAD_REQUEST, "goalId is no id")
    return cast("str", goal)


def _target(members: Mapping[str, Any]) -> Target | None:
    value = members.get("target", _MISSING)
    if value is _MISSING:
        return None
    if type(value) is dict:
        revision = value.get("mappingRevision")
        named = (("owner", "owner"), ("actor", "actor"), ("lifecycleUid", "uid"))
        if all(type(value.get(name)) is str and GRAMMARS[grammar].accepts(value[name]) for name, grammar in named) and (
            revision is None or _wire_integer(revision)
        ):
            return Target(value["owner"], value["actor"], value["lifecycleUid"], revision)
    raise _refused(Code.TARGET_MISMATCH, "target is no owner, actor and lifecycleUid")


def _bind(members: Mapping[str, Any]) -> Bind | None:
    value = members.get("bind", _MISSING)
    if value is _MISSING:
        return None
    if type(value) is dict and _wire_integer(value.get("epoch")):
        instance = value.get("instanceId")
        if type(instance) is str and GRAMMARS["instance"].accepts(instance):
            return Bind(instance, value["epoch"])
    raise _refused(Code.BAD_REQUEST, "bind is no instanceId and epoch")


def _sender(value: object) -> Sender:
    if type(value) is not dict:
        raise _refused(Code.SENDER_MISMATCH, "from is no object")
    identity, name, role = value.get("id"), value.get("name"), value.get("role")
    if type(identity) is not str or type(name) is not str or not (role is None or type(role) is str):
        raise _refused(Code.SENDER_MISMATCH, "from is no id and name")
    if len(name) > MAX_DISPLAY_NAME:
        raise _refused(Code.SENDER_MISMATCH, f"from.name is longer than {MAX_DISPLAY_NAME} characters")
    return Sender(identity, name, role)


def _deadline(members: Mapping[str, Any], expected: bool) -> int | None:
    value = members.get("deadlineMs", _MISSING)
    if value is _MISSING:
        if expected:
            raise _refused(Code.BAD_REQUEST, "a call has a deadlineMs")
        return None
    if not _wire_integer(value) or not value:
        raise _refused(Code.BAD_REQUEST, "deadlineMs is no positive whole number up to 2**53 - 1")
    return cast("int", value)


def _correlation(members: Mapping[str, Any]) -> Mapping[str, str] | None:
    value = members.get("correlation", _MISSING)
    if value is _MISSING:
        return None
    if type(value) is not dict:
        raise _refused(Code.BAD_REQUEST, "correlation is no object")
    found = {name: value[name] for name in _CORRELATION if name in value}
    for name, one in found.items():
        if type(one) is not str or len(one.encode()) > _CORRELATION[name] or _CONTROL.search(one):
            raise _refused(Code.BAD_REQUEST, f"correlation.{name} is no text of at most {_CORRELATION[name]} bytes")
    parent = found.get("traceparent", "")
    if parent.startswith("00-") and TRACEPARENT.fullmatch(parent) is None:
        # What a later version looks like is for that version to say; of this one it is known.
        raise _refused(Code.BAD_REQUEST, "correlation.traceparent is none of version 00")
    return found


def _auth(members: Mapping[str, Any]) -> str | None:
    value = members.get("auth", _MISSING)
    if value is _MISSING:
        return None
    if type(value) is not str or len(value) > MAX_AUTH:
        raise _refused(Code.BAD_REQUEST, f"auth is no text of at most {MAX_AUTH} characters")
    return value


def _wire_integer(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_SAFE_INTEGER


def _given(**members: object) -> dict[str, object]:
    return {name: value for name, value in members.items() if value is not None}


def _dump(value: object) -> bytes:
    try:
        check_value(value)
    except NotJson as error:
        raise EnvelopeError(error.path, error.why) from None
    return orjson.dumps(value)


# ---- replies ----


@dataclass(frozen=True, slots=True)
class ReplyError:
    """Why a request was refused. ``outcome`` is UNKNOWN when the reply has none (C13.3-43)."""

    code: str
    message: str
    outcome: Outcome = Outcome.UNKNOWN
    details: Details = ()


@dataclass(frozen=True, slots=True)
class EndpointReply:
    """An answer: ``data`` when ``error`` is None."""

    id: str
    data: JsonValue = None
    error: ReplyError | None = None
    receipt: str | None = None


def encode_data(identity: str, data: JsonValue) -> bytes:
    """The answer that a command succeeded; EnvelopeError for data that JSON cannot hold. No data is no member."""
    head = b'{"v":%d,"id":%b,"ok":true' % (VERSION, orjson.dumps(identity))
    if data is None:
        return head + b"}"
    try:
        check_value(data, "data")
    except NotJson as error:
        raise EnvelopeError(error.path, error.why) from None
    return b'%b,"data":%b}' % (head, orjson.dumps(data))


def encode_refusal(identity: str, refusal: Refusal) -> bytes:
    """The answer that a request is refused. What a handler said wrongly (a code that is none, details that are no
    JSON) is left out or replaced: a refusal is always answered."""
    code = refusal.code if is_code(refusal.code) else Code.INTERNAL
    error: dict[str, object] = {
        "code": str(code),
        "message": refusal.message[:MAX_ERROR_TEXT].encode("utf-8", "replace").decode(),
        "outcome": str(refusal.outcome),
    }
    details = _bounded(dict(one) for one in refusal.details[:MAX_DETAILS] if _is_detail(one))
    if details:
        error["details"] = details
    return orjson.dumps({"v": VERSION, "id": identity, "ok": False, "error": error})


def _bounded(details: Iterable[dict[str, JsonValue]]) -> list[dict[str, JsonValue]]:
    """The details that there is room for: a refusal must fit into any message, or its outcome could not be told."""
    found, left = [], MAX_DETAIL_BYTES
    for one in details:
        left -= len(orjson.dumps(one))
        if left < 0:
            break
        found.append(one)
    return found


def _is_detail(value: object) -> bool:
    """Whether an entry is an object with a reverse-DNS ``kind`` (C13.3-37) that JSON can hold."""
    if not isinstance(value, Mapping) or not EXTENSION_KIND.accepts(value.get("kind")):
        return False
    try:
        check_value(dict(value))
    except NotJson:
        return False
    return True


def decode_reply(data: bytes, *, limit: int = 1 << 24) -> EndpointReply:
    """A reply, read strictly; EnvelopeError for anything that is none (C13.3-35, -37, -39, -58)."""
    try:
        value = parse(data, limit=limit)
    except JsonError:
        raise EnvelopeError("", "is no JSON") from None
    if type(value) is not dict:
        raise EnvelopeError("", "is no object")
    if not _is(value.get("v"), VERSION):
        raise EnvelopeError("v", f"is not {VERSION}")
    identity, ok, receipt = value.get("id"), value.get("ok"), value.get("receipt")
    if not is_id(identity):
        raise EnvelopeError("id", "is no id")
    if type(ok) is not bool:
        raise EnvelopeError("ok", "is no boolean")
    if not (receipt is None or (type(receipt) is str and len(receipt) <= MAX_RECEIPT)):
        raise EnvelopeError("receipt", "is no text")
    if ok:
        if "error" in value:
            raise EnvelopeError("error", "stands beside ok")
        return EndpointReply(cast("str", identity), value.get("data"), receipt=receipt)
    if "data" in value:
        raise EnvelopeError("data", "stands beside an error")
    return EndpointReply(cast("str", identity), error=_error(value.get("error")), receipt=receipt)


def _error(value: object) -> ReplyError:
    if type(value) is not dict:
        raise EnvelopeError("error", "is no object")
    code, message, outcome = value.get("code"), value.get("message"), value.get("outcome", Outcome.UNKNOWN)
    if type(code) is not str or not is_code(code):
        raise EnvelopeError("error.code", "is neither of the catalog nor an extension")
    if type(message) is not str:
        raise EnvelopeError("error.message", "is no string")
    if type(outcome) not in (str, Outcome) or outcome not in frozenset(Outcome):
        raise EnvelopeError("error.outcome", f"is none of {', '.join(Outcome)}")
    details = value.get("details", [])
    if type(details) is not list or len(details) > MAX_DETAILS or not all(map(_is_detail, details)):
        raise EnvelopeError("error.details", "is no list of objects with a reverse-DNS kind")
    return ReplyError(code, message[:MAX_ERROR_TEXT], Outcome(outcome), tuple(details))
