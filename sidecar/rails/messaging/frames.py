"""One stored message as a reader gets it, in either form of a space, and its spelling in the answers of commands."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Final, NamedTuple

from nats.aio.msg import Msg

from sidecar.base.strictjson import MAX_BYTES, JsonValue
from sidecar.rails.names import InvalidName
from sidecar.rails.names.acks import parse_tail, tail_of
from sidecar.rails.names.limits import COPY_HEADROOM, MAX_SUBJECT

ENVELOPE_BYTES: Final = 8 * 1024
"""Bytes of an answer around its frames."""
FRAME_MARGIN: Final = 256
"""Bytes of a frame in an answer beside its subject, payload and headers."""
HEADER_BYTES: Final = 6
"""Bytes that JSON takes for one of a header, at most."""
_MILLION: Final = 1_000_000


def most_in_answer(max_payload: int) -> int:
    """Bytes of frames in one answer at most, where the broker takes messages of ``max_payload`` bytes."""
    return min(MAX_BYTES, max_payload) - ENVELOPE_BYTES


def most_readable(max_payload: int) -> int:
    """Bytes of a message that can be read in a mediated space, whichever copy of it is: of one that is larger the
    members are only told that it is there (C9-47)."""
    around = MAX_SUBJECT + HEADER_BYTES * COPY_HEADROOM + FRAME_MARGIN
    return max(0, (most_in_answer(max_payload) - around) // 4 * 3)


class Frame(NamedTuple):
    """A copy of a stored message.

    ``subject`` is the one that it was stored on, ``sequence`` its place in the stream, ``delivered`` how often this
    consumer delivered it (1 first), ``pending`` how many come behind it, ``time_ms`` when it was stored. ``token``
    settles the copy: the tail of its ack subject; empty for copies that are not settled. ``omitted`` is the size in
    bytes of a payload that did not fit into an answer: then ``data`` is empty, and the copy can only be settled.
    """

    subject: str
    data: bytes
    headers: Mapping[str, str]
    sequence: int
    delivered: int
    pending: int
    time_ms: int
    token: str = ""
    omitted: int = 0


class BadFrame(ValueError):  # noqa: N818 - a state of the value
    """What came is no frame; the message says which member, never what is in it."""


def frame_of(message: Msg, stream: str, consumer: str) -> Frame:
    """The frame of a delivery of this consumer. InvalidName for the delivery of any other."""
    tail = tail_of(message.reply, stream, consumer)
    return Frame(
        message.subject,
        message.data,
        message.headers or {},
        tail.sequence,
        tail.delivered,
        tail.pending,
        tail.time_ns // _MILLION,
        tail.text,
    )


def frame_value(frame: Frame) -> dict[str, JsonValue]:
    """A frame as an answer holds it: bytes in base64, no token for a copy that is not settled."""
    value: dict[str, JsonValue] = {
        "subject": frame.subject,
        "data": base64.b64encode(frame.data).decode("ascii"),
        "headers": dict(frame.headers),
        "sequence": frame.sequence,
        "delivered": frame.delivered,
        "pending": frame.pending,
        "timeMs": frame.time_ms,
    }
    if frame.token:
        value["token"] = frame.token
    if frame.omitted:
        value["omitted"] = frame.omitted
    return value


def read_frame(value: JsonValue) -> Frame:
    """A frame from an answer. BadFrame for any other shape, also for a token that is no tail of an ack subject."""
    if type(value) is not dict:
        raise BadFrame("it is no object")
    subject, text, named = value.get("subject"), value.get("data"), value.get("headers")
    token = value.get("token", "")
    if not isinstance(subject, str) or not isinstance(text, str) or not isinstance(token, str):
        raise BadFrame("subject, data or token is no text")
    if type(named) is not dict:
        raise BadFrame("headers is no object")
    headers = {name: one for name, one in named.items() if isinstance(one, str)}
    if len(headers) != len(named):
        raise BadFrame("a header is no text")
    try:
        data = base64.b64decode(text, validate=True)
        if token:
            parse_tail(token)
    except (binascii.Error, InvalidName, ValueError):
        raise BadFrame("data is no base64, or token is none") from None
    sequence, delivered, pending, time_ms = (_count(value, name) for name in _COUNTS)
    omitted = _count(value, "omitted") if "omitted" in value else 0
    return Frame(subject, data, headers, sequence, delivered, pending, time_ms, token, omitted)


_COUNTS: Final = ("sequence", "delivered", "pending", "timeMs")


def _count(value: dict[str, JsonValue], name: str) -> int:
    found = value.get(name)
    if type(found) is not int or found < 0:
        raise BadFrame(f"{name} is no count")
    return found
