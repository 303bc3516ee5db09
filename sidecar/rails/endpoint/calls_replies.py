"""What a reply means to the call that waits for it (C13.2-49..57, C13.3-34..51). Pure.

Who answered is read from the subject of the reply alone: the broker lets an instance publish at its own epoch only.
Whatever the caller refuses although it holds a reply keeps the outcome that this reply proves (C13.3-48).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from sidecar.base.strictjson import JsonError, JsonValue, parse
from sidecar.rails.endpoint.calls_types import Answer
from sidecar.rails.endpoint.codes import CallFailed, CallRefused, Code, Details, Outcome
from sidecar.rails.endpoint.envelope import NO_ID, VERSION, Bind, EndpointReply, ReplyError, decode_reply
from sidecar.rails.envelopes.errors import EnvelopeError
from sidecar.rails.envelopes.shapes import Shape
from sidecar.rails.names import headers
from sidecar.rails.names.tokens import GRAMMARS

LONGEST_REPLY: Final = 1 << 24
"""Bytes; the broker bounds a message before."""
_NOT_PLAIN: Final = object()
_INSTANCE: Final = GRAMMARS["instance"]
_EPOCH: Final = GRAMMARS["number"]


class Origin(NamedTuple):
    """The incarnation that a reply subject names, with the wire token of its endpoint."""

    endpoint: str
    instance: str
    epoch: int


class Expected(NamedTuple):
    """What a call expects of its reply. Without ``output`` the data is not checked."""

    endpoint: str
    command: str
    id: str
    output: Shape | None = None
    bind: Bind | None = None


def origin(subject: str, prefix: str, suffix: str) -> Origin | None:
    """Who answered. ``prefix`` and ``suffix`` are what all reply subjects of a call have around the three tokens;
    None for a subject of another form."""
    if not (subject.startswith(prefix) and subject.endswith(suffix)) or len(subject) < len(prefix) + len(suffix):
        return None
    tokens = subject[len(prefix) : len(subject) - len(suffix)].split(".")
    if len(tokens) != 3 or not _INSTANCE.accepts(tokens[1]) or not _EPOCH.accepts(tokens[2]):
        return None
    return Origin(tokens[0], tokens[1], int(tokens[2]))


def answer(expected: Expected, data: bytes, found: Origin, newest: int | None) -> Answer:
    """The answer in a reply. Raises CallRefused for a refusal, CallFailed for what is no reply to this request or comes
    from an incarnation that it must not come from. ``newest`` is the highest epoch known of the instance."""
    given = _plainly_given(expected, data, found, newest)
    if given is not _NOT_PLAIN:
        if expected.output is not None and (fault := expected.output.check(given)) is not None:
            raise CallFailed(Code.INTERNAL, f"the data {fault.field} {fault.why}", Outcome.EXECUTED)
        return Answer(given, found.instance, found.epoch, expected.id)  # type: ignore[arg-type]
    return judged(expected, data, found, newest)


def _plainly_given(expected: Expected, data: bytes, found: Origin, newest: int | None) -> object:
    """The data of a reply that has nothing but data, by who may give it: most are such. Everything else is for
    ``judged``, which finds the same in such a reply."""
    if expected.bind is not None or (newest is not None and found.epoch < newest):
        return _NOT_PLAIN
    try:
        value = parse(data, limit=LONGEST_REPLY)
    except JsonError:
        return _NOT_PLAIN
    if type(value) is not dict or value.get("ok") is not True or value.get("id") != expected.id:
        return _NOT_PLAIN
    if value.get("v") != VERSION or value["v"] is True or "error" in value or "receipt" in value:
        return _NOT_PLAIN
    return value.get("data")


def judged(expected: Expected, data: bytes, found: Origin, newest: int | None) -> Answer:
    """``answer`` for whatever came."""
    try:
        reply = decode_reply(data, limit=LONGEST_REPLY)
    except EnvelopeError as error:
        raise CallFailed(Code.INTERNAL, f"the reply is none of version {VERSION}: {error}", Outcome.UNKNOWN) from None
    why = reply.error
    proved = Outcome.EXECUTED if why is None else why.outcome
    if reply.id != expected.id and (why is None or reply.id != NO_ID):
        raise CallFailed(Code.INTERNAL, "the reply is to another request", proved)
    _check_incarnation(expected, reply, found, newest, proved)
    if why is not None:
        raise CallRefused(why.code, why.message, why.outcome, why.details, found.instance, found.epoch)
    if expected.output is not None and (fault := expected.output.check(reply.data)) is not None:
        raise CallFailed(Code.INTERNAL, f"the data {fault.field} {fault.why}", Outcome.EXECUTED)
    return Answer(reply.data, found.instance, found.epoch, reply.id, reply.receipt)


def _check_incarnation(
    expected: Expected, reply: EndpointReply, found: Origin, newest: int | None, proved: Outcome
) -> None:
    """Whether this incarnation may have answered, and a bind refusal is one. Raises CallFailed."""
    bind, why = expected.bind, reply.error
    marker = None if why is None else _marker(why.details)
    if marker is not None and why is not None:
        if not _is_coherent(expected, why, marker, found):
            raise CallFailed(Code.INTERNAL, "the reply refuses a bind that its subject does not contradict", proved)
        return
    if bind is not None and found.instance != bind.instance:
        text = f"bound to {bind.instance}, answered by {found.instance}"
        raise CallFailed(Code.FAILED_PRECONDITION, text, proved, _unbound(bind, found))
    if bind is not None and found.epoch != bind.epoch:
        text = f"bound to epoch {bind.epoch}, answered by epoch {found.epoch}"
        raise CallFailed(Code.EXPIRED, text, proved, _unbound(bind, found))
    if newest is not None and found.epoch < newest:
        raise CallFailed(Code.EXPIRED, f"answered by epoch {found.epoch}, epoch {newest} is known", proved)


def _marker(details: Details) -> Mapping[str, JsonValue] | None:
    return next((one for one in details if one.get("kind") == headers.DETAIL_BIND_REFUSED), None)


def _is_coherent(expected: Expected, why: ReplyError, marker: Mapping[str, JsonValue], found: Origin) -> bool:
    """Whether a bind refusal can be true: this request was bound, to another incarnation than the one that answers, and
    what the marker tells of both agrees with that (C13.2-54, -56, OPEN C13.2-e)."""
    bind = expected.bind
    if bind is None or (found.instance, found.epoch) == bind or why.outcome is not Outcome.NOT_EXECUTED:
        return False
    if why.code != (Code.EXPIRED if found.instance == bind.instance else Code.FAILED_PRECONDITION):
        return False
    true: dict[str, JsonValue] = {
        "endpoint": expected.endpoint,
        "command": expected.command,
        "boundTo": {"instanceId": bind.instance, "epoch": bind.epoch},
        "servedBy": {"instanceId": found.instance, "epoch": found.epoch},
    }
    return all(marker.get(name, value) == value for name, value in true.items())


def _unbound(bind: Bind, found: Origin) -> Details:
    """Marks what the caller raised itself: unlike a bind refusal it proves nothing about the effect (C13.2-55)."""
    return (
        {
            "kind": headers.DETAIL_UNBOUND_RESPONDER,
            "boundTo": {"instanceId": bind.instance, "epoch": bind.epoch},
            "servedBy": {"instanceId": found.instance, "epoch": found.epoch},
        },
    )
