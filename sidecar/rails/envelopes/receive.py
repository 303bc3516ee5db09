"""From a frame of the broker to a message that may be shown: what is refused, why, and what is marked (C4, C5).

Pure: the subject is parsed and the header names are collected by the caller. Whether a copy may be shown to this reader
(membership, takes, read lists) is not decided here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple

from sidecar.base.strictjson import MAX_BYTES, JsonError, JsonValue, parse
from sidecar.rails.envelopes.errors import EnvelopeError
from sidecar.rails.envelopes.message import Message, read_received
from sidecar.rails.names.api import ACK
from sidecar.rails.names.headers import carries_provenance
from sidecar.rails.names.subjects import Delivery


class Source(StrEnum):
    """Where a frame was read."""

    LIVE = "live"
    """A core subscription: what is published this moment."""
    TAP = "tap"
    """A core subscription of an observer or admin, to deliveries of every kind."""
    DURABLE = "durable"
    """A consumer that acks: direct messages, anycast, the backstop."""
    HISTORY = "history"
    """A consumer that does not ack: backfill and recall."""
    DIRECT = "direct"
    """A Direct Get, to whose answer the broker itself adds the headers of stored messages."""


class Action(StrEnum):
    """What is done with a refused frame; none of them brings it back (C4-27)."""

    DROP = "drop"
    TERMINATE = "terminate"
    SKIP = "skip"


ACTIONS: Final = {
    Source.LIVE: Action.DROP,
    Source.TAP: Action.DROP,
    Source.DURABLE: Action.TERMINATE,
    Source.HISTORY: Action.SKIP,
    Source.DIRECT: Action.SKIP,
}
"""By source (C4-25)."""


class Reason(StrEnum):
    """Why a frame is refused; tokens for logs and counters (C5-21)."""

    MALFORMED_SUBJECT = "malformed-subject"
    """The subject is no delivery, its owner is none that may be shown (C3-09, C12-05), or its target is a pattern."""
    REDIRECTED = "redirected"
    """Stored bytes that a read made the broker deliver where something else is expected."""
    MALFORMED_JSON = "malformed-json"
    """No strict UTF-8 JSON text (CC-01)."""
    SENDER_MISMATCH = "sender-mismatch"
    """``from`` is missing, or its id is not the subject's sender (C5-14)."""
    MALFORMED_ENVELOPE = "malformed-envelope"
    """JSON without the shape of a message (OPEN C5-a)."""
    ROUTING_MISMATCH = "routing-mismatch"
    """A routing field says something else than the subject, in a mediated space."""


class Rejected(Exception):  # noqa: N818 - it says what happened to the frame
    """A frame that is never shown and never tried again.

    ``reason`` and ``action`` for the caller, ``detail`` for a person: bounded, without any content.
    """

    def __init__(self, reason: Reason, source: Source, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.action = ACTIONS[source]
        self.detail = detail


class Meta(NamedTuple):
    """What a receiver is told beside the message; all of it from the subject (C4-05).

    ``kind``: ``channel``, ``dm`` or ``anycast``. ``target``: the channel, the recipient in dot-form, or the role.
    ``mismatched``: the message's own routing field says something else; it is shown with this mark.
    """

    kind: str
    space: str
    sender: str
    target: str
    historical: bool
    mismatched: bool


class Received(NamedTuple):
    """A message that may be shown as far as its own bytes decide that."""

    message: Message
    meta: Meta


# Members by name once: looking one up in its class costs as much as a tenth of a whole message.
_LIVE, _TAP, _HISTORY, _DIRECT = Source.LIVE, Source.TAP, Source.HISTORY, Source.DIRECT
_tuple = tuple.__new__
_LIVE_KIND = "chat"
_ACK_PREFIX = ".".join(part.literals[0] for part in ACK.parts if not part.fields) + "."


def receive(
    payload: bytes,
    delivery: Delivery | None,
    source: Source,
    *,
    header_names: Iterable[str] = (),
    reply: str = "",
    mediated: bool = False,
    limit: int = MAX_BYTES,
) -> Received:
    """Judge one frame; raises :class:`Rejected`.

    ``delivery``: the parsed subject, None if it does not parse. ``reply``: the frame's reply subject. ``mediated``: the
    space refuses a routing mismatch instead of marking it. ``limit``: the broker's ``max_payload``.
    """
    sight = None if delivery is None else _sight(delivery)
    if delivery is None or sight is None:
        raise Rejected(Reason.MALFORMED_SUBJECT, source, "the subject carries no delivery of a principal to one target")
    if is_redirected(delivery, source, header_names, reply):
        raise Rejected(Reason.REDIRECTED, source, "stored bytes came where a publish is expected")
    try:
        value = parse(payload, limit=limit)
    except JsonError as error:
        raise Rejected(Reason.MALFORMED_JSON, source, str(error)) from None
    check_sender(value, sight.sender, source)
    try:
        message = read_received(value)
    except EnvelopeError as error:
        raise Rejected(Reason.MALFORMED_ENVELOPE, source, str(error)) from None
    mismatched = not routes_to(message, delivery)
    if mismatched and mediated:
        raise Rejected(Reason.ROUTING_MISMATCH, source, f"the {delivery.shown} is not the one of the subject")
    past = source is _HISTORY or source is _DIRECT
    return _tuple(Received, (message, sight.metas[past, mismatched]))


class _Sight(NamedTuple):
    """What a subject alone decides: its sender, and what a reader is told, by ``historical`` and ``mismatched``."""

    sender: str
    metas: Mapping[tuple[bool, bool], Meta]


@lru_cache(maxsize=1024)
def _sight(delivery: Delivery) -> _Sight | None:
    """None for a delivery that is never shown. A reader hears the same few senders and channels, again and again."""
    if not (delivery.surfaces and delivery.concrete):
        return None
    shown, sender = delivery.shown, delivery.sender
    marks = itertools.product((False, True), (False, True))
    return _Sight(sender, {two: Meta(shown, delivery.space, sender, delivery.rest, *two) for two in marks})


def is_redirected(delivery: Delivery, source: Source, header_names: Iterable[str], reply: str) -> bool:
    """Whether a frame is one that a reader asked the broker to deliver to a subject of its own choice.

    A Direct Get marks its answer with headers, also when a stream stored that answer again. A consumer marks its
    deliveries with an ack subject to reply to. Live, members read posts alone; everything else has a consumer.
    """
    if source is _LIVE and delivery.kind != _LIVE_KIND:
        return True
    if (source is _LIVE or source is _TAP) and reply.startswith(_ACK_PREFIX):
        return True
    return source is not _DIRECT and carries_provenance(header_names)


def check_sender(value: JsonValue, expected: str, source: Source) -> None:
    """Refuse a document whose ``from.id`` is not the subject's sender (C5-14). Anything but an object passes here."""
    if type(value) is not dict:
        return
    sender = value.get("from")
    if type(sender) is not dict or sender.get("id") != expected:
        raise Rejected(Reason.SENDER_MISMATCH, source, "from.id is not the sender of the subject")


def routes_to(message: Message, delivery: Delivery) -> bool:
    """Whether the message's one routing field names what its subject names."""
    if delivery.kind == "chat":
        return message.channel == delivery.rest
    return (message.to if delivery.kind == "inst" else message.to_service) == delivery.rest
