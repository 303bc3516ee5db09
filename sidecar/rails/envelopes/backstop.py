"""The copy of a post in a member's own durable store: what its headers say, written and read here alone (C8-40..59).

The payload is the post's own, byte for byte. Its author's headers are not kept; these stand in their place:

- the subject that the post was published on, from which kind, sender and channel come, as for a live copy (C4-05);
- its CHAT sequence;
- why the member has the copy: as a member of the channel, or because it was mentioned;
- on what was handed off, the count of the store when it was written (C8-54);
- a message id, unless the post has none to give (C8-50, C8-59).

A reader judges the payload with ``receive(data, copy.delivery, Source.DURABLE, ...)``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple

from sidecar.rails.names import headers
from sidecar.rails.names.limits import BACKSTOP_COUNT, MAX_SAFE_INTEGER, MAX_SUBJECT
from sidecar.rails.names.principals import Lifecycle
from sidecar.rails.names.subjects import Delivery, delivery_of

_WHOLE: Final = re.compile(r"0|[1-9][0-9]{0,15}")
_KIND: Final = "chat"


class Why(StrEnum):
    """Why a lifecycle has a copy; what a hand-off is checked against (C8-42, C8-47)."""

    CHANNEL = "channel"
    """It is a member: its read list and the interval of its membership count."""
    MENTION = "mention"
    """It was mentioned on a live channel: its read list alone counts."""


_WHYS: Final = {why.value: why for why in Why}


class MalformedCopy(ValueError):  # noqa: N818 - a state of the frame
    """A frame without the headers of a copy; the message says which, and nothing of its content."""


class Copy(NamedTuple):
    """What the headers of a copy say. ``delivery`` is ``subject`` taken apart, always a post on one channel."""

    subject: str
    delivery: Delivery
    sequence: int
    why: Why

    @property
    def channel(self) -> str:
        return self.delivery.rest


def encode(subject: str, sequence: int, why: Why, message_id: str, member: Lifecycle) -> dict[str, str]:
    """The headers of ``member``'s copy of the post ``message_id``, before it is handed off."""
    written = {headers.COPY_SUBJECT: subject, headers.COPY_SEQUENCE: str(sequence), headers.COPY_WHY: why.value}
    identity = headers.copy_id(message_id, member)
    return written if identity is None else {headers.MESSAGE_ID: identity, **written}


def handed_off(written: Mapping[str, str], limit: int | None) -> dict[str, str]:
    """The headers under which a copy is handed off: those that it was written with, and the count in force (C8-54)."""
    kept = (headers.MESSAGE_ID, headers.COPY_SUBJECT, headers.COPY_SEQUENCE, headers.COPY_WHY)
    stamp = headers.DELIVERY_LIMIT_NONE if limit is None else str(limit)
    return {name: written[name] for name in kept if name in written} | {headers.DELIVERY_LIMIT: stamp}


def decode(found: Mapping[str, str], space: str) -> Copy:
    """The copy that a frame's headers describe; MalformedCopy unless it is one of a post that may be shown (C3-09)."""
    subject = found.get(headers.COPY_SUBJECT, "")
    delivery = _post(subject, space) if len(subject) <= MAX_SUBJECT else None
    if delivery is None:
        raise MalformedCopy("its subject is no post of this space by a principal on one channel")
    sequence = _whole(found.get(headers.COPY_SEQUENCE, ""))
    if not sequence:
        raise MalformedCopy("its sequence is no whole number from 1 on")
    why = _WHYS.get(found.get(headers.COPY_WHY, ""))
    if why is None:
        raise MalformedCopy("it does not say why it was made")
    return Copy(subject, delivery, sequence, why)


@lru_cache(maxsize=1024)
def _post(subject: str, space: str) -> Delivery | None:
    """The post that a subject is of; many copies name the same few."""
    delivery = delivery_of(subject)
    if delivery is None or delivery.kind != _KIND or delivery.space != space:
        return None
    return delivery if delivery.surfaces and delivery.concrete else None


def limit_of(found: Mapping[str, str]) -> int | None:
    """The count that the store had when a copy was handed off, None for no limit; a copy without a stamp that can be
    read counts as 1000 (C8-55)."""
    stamp = found.get(headers.DELIVERY_LIMIT, "")
    if stamp == headers.DELIVERY_LIMIT_NONE:
        return None
    count = _whole(stamp)
    return BACKSTOP_COUNT if count is None else count


def _whole(text: str) -> int | None:
    if _WHOLE.fullmatch(text) is None:
        return None
    number = int(text)
    return number if number <= MAX_SAFE_INTEGER else None
