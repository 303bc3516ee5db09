"""The ack subject of one delivery: what it tells of the copy, and how it is built again from its numbers.

A consumer gives every copy a reply subject: the ack subject of the consumer, and below it a tail of five numbers: how
often it was delivered, its stream sequence, the consumer's own count, when it was stored, and how many are pending
behind it. A reader keeps the tail alone. An ack is always built from the reader's own consumer, so that nobody settles
the copy of another.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from sidecar.rails.names.api import ACK
from sidecar.rails.names.errors import InvalidName, excerpt

_NUMBER = "(0|[1-9][0-9]{0,18})"
_TAIL = re.compile(r"\.".join([_NUMBER] * 5))
_ROOT = ".".join(part.literals[0] for part in ACK.parts if not part.fields) + "."


class AckTail(NamedTuple):
    """The numbers of one delivery. ``delivered`` counts from 1; ``time_ns`` is when the message was stored."""

    delivered: int
    sequence: int
    serial: int
    time_ns: int
    pending: int

    @property
    def text(self) -> str:
        """As it stands in the subject."""
        return ".".join(map(str, self))


def is_ack(reply: str) -> bool:
    """Whether a reply subject is one that a consumer gives to its copies: such a frame was stored."""
    return reply.startswith(_ROOT)


def parse_tail(text: object) -> AckTail:
    """The numbers of a tail; InvalidName for anything but five of them."""
    found = _TAIL.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise InvalidName("ack tail", f"{excerpt(text)} is not five numbers", "C8-39")
    return AckTail(*map(int, found.groups()))


def tail_of(reply: str, stream: str, consumer: str) -> AckTail:
    """The numbers of a copy of this consumer; InvalidName for the copy of any other, and for another form."""
    prefix = _prefix(stream, consumer)
    if not reply.startswith(prefix):
        raise InvalidName("ack", "the copy is of another consumer", "C8-39")
    return parse_tail(reply[len(prefix) :])


def ack_subject(stream: str, consumer: str, tail: str) -> str:
    """Where the copy is settled; InvalidName for a tail that is not five numbers."""
    return f"{_prefix(stream, consumer)}{parse_tail(tail).text}"


@lru_cache(maxsize=1024)
def _prefix(stream: str, consumer: str) -> str:
    """What stands before the numbers; a reader has few consumers, and many copies of each."""
    return f"{ACK.build(stream=stream, consumer=consumer)}."
