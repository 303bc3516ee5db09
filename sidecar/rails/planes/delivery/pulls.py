"""Pulls from durables that exist, one request each, with a bound on bytes (C9-47).

A pull that waits asks for one message: it costs one request and one answer however long it waits, and nothing is left
open behind it. What else is there by then comes with a second pull that does not wait.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, NamedTuple

from nats.aio.msg import Msg

from sidecar.rails.connection import Connection, ConnectionFault
from sidecar.rails.messaging.frames import Frame, frame_of
from sidecar.rails.names import api, headers
from sidecar.rails.names.acks import is_ack

SLACK_SECONDS: Final = 2.0
"""How much longer than the broker's own end of a pull its answer is waited for."""
_NANO: Final = 10**9
_TOO_LARGE: Final = "exceeds maxbytes"
_CONFLICT: Final = "409"
_DESCRIPTION: Final = "Description"


class End(Enum):
    """How a pull ended."""

    FULL = "every message that was asked for"
    EMPTY = "no more messages"
    BYTES = "the next message does not fit"
    REFUSED = "the broker refuses the pull"


class Pulled(NamedTuple):
    """What a pull gave."""

    frames: list[Frame]
    end: End


class Durable(NamedTuple):
    """A consumer on its stream."""

    stream: str
    consumer: str


def size_of(frame: Frame) -> int:
    """Bytes that the broker counts for a message, without its reply subject."""
    named = sum(len(name) + len(value) + 4 for name, value in frame.headers.items())
    return len(frame.subject) + len(frame.data) + named


async def gather(connection: Connection, durable: Durable, batch: int, seconds: float, max_bytes: int) -> list[Frame]:
    """Up to ``batch`` messages of at most about ``max_bytes``, the first of them within ``seconds``; a single one may
    be larger. Raises what ``pull`` raises, when nothing was delivered before."""
    if seconds > 0.0:
        found = (await pull(connection, durable, 1, seconds=seconds)).frames
        if not found or batch == 1 or found[0].pending == 0:
            return found
        batch, max_bytes = min(batch - 1, found[0].pending), max_bytes - size_of(found[0])
        if max_bytes <= 0:
            return found
        try:
            return found + (await pull(connection, durable, batch, max_bytes=max_bytes)).frames
        except (ConnectionFault, TimeoutError):
            return found
    found, end = await pull(connection, durable, batch, max_bytes=max_bytes)
    if not found and end is End.BYTES:
        found = (await pull(connection, durable, 1)).frames
    return found


async def pull(
    connection: Connection, durable: Durable, batch: int, *, seconds: float = 0.0, max_bytes: int = 0
) -> Pulled:
    """One pull; with ``seconds`` it waits for so long. Raises NoResponders without such a consumer, NotConnected,
    PermissionViolation, Stopped, TimeoutError."""
    body: dict[str, Any] = {"batch": batch}
    if seconds > 0.0:
        body["expires"] = int(seconds * _NANO)
    else:
        body["no_wait"] = True
    if max_bytes:
        body["max_bytes"] = max_bytes
    answers = await connection.request_until(
        api.CONSUMER_NEXT.build(stream=durable.stream, consumer=durable.consumer),
        json.dumps(body).encode(),
        _last(batch),
        at_most=batch + 1,
        seconds=seconds + SLACK_SECONDS,
    )
    frames = [frame_of(one, durable.stream, durable.consumer) for one in answers if is_ack(one.reply)]
    return Pulled(frames, End.FULL if is_ack(answers[-1].reply) else _ended(answers[-1]))


def _last(batch: int) -> Callable[[Msg], bool]:
    """Whether an answer is the last one: a word of the broker, or the last message that was asked for."""
    seen = 0

    def last(message: Msg) -> bool:
        nonlocal seen
        if not is_ack(message.reply):
            return True
        seen += 1
        return seen == batch

    return last


def _ended(message: Msg) -> End:
    said = message.headers or {}
    if said.get(headers.STATUS) != _CONFLICT:
        return End.EMPTY
    return End.BYTES if _TOO_LARGE in said.get(_DESCRIPTION, "").lower() else End.REFUSED
