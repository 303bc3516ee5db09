"""Single keys of a space's buckets: read at the leader, write by compare-and-set. The connection is the caller's."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any, Final

from nats.aio.client import Client

from sidecar.rails.names import api, headers
from sidecar.rails.space.asking import SECONDS, BrokerRefused, ask

_NO_MESSAGE: Final = 10037
_WRONG_LAST: Final = 10071
_OPERATION: Final = headers.KV_OPERATION.encode()
_STORED_IN: Final = headers.STREAM.lower().encode()
_ENDED: Final = tuple(one.encode() for one in headers.KV_MARKERS)


class Changed(Exception):  # noqa: N818 - what happened
    """Somebody else wrote the key since it was read; nothing was written."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What stands at a key: ``value`` None for one that was deleted, whose ``revision`` the next write still names.
    What a redirected read has put there is no value either (C13.3-02)."""

    value: bytes | None
    revision: int


async def read_key(client: Client, stream: str, subject: str, *, seconds: float = SECONDS) -> Kept:
    """The key as the stream's leader has it; revision 0 and no value for one that was never written.

    Raises BrokerRefused, nats.errors.Error.
    """
    request = api.MESSAGE_GET.build(stream=stream)
    try:
        answer = await ask(client, request, {"last_by_subj": subject}, seconds=seconds)
    except BrokerRefused as error:
        if error.code == _NO_MESSAGE:
            return Kept(None, 0)
        raise
    message: Any = answer.get("message")
    try:
        told = base64.b64decode(message.get("hdrs", ""))
        value = base64.b64decode(message.get("data", ""))
        revision = int(message["seq"])
    except (AttributeError, KeyError, TypeError, ValueError, binascii.Error):
        raise BrokerRefused(request, {"description": "the answer holds no message"}) from None
    return Kept(None if _deleted(told) else value, revision)


def _deleted(told: bytes) -> bool:
    """Whether the headers are those of a delete marker, or of the answer to somebody's Direct Get."""
    lines = [(name.strip(), what.strip()) for name, _, what in (line.partition(b":") for line in told.split(b"\r\n"))]
    return any((name == _OPERATION and what in _ENDED) or name.lower() == _STORED_IN for name, what in lines)


async def read_first(client: Client, stream: str, subject: str, *, seconds: float = SECONDS) -> bytes | None:
    """The first value that was ever written to the key and is still there, as the leader has it; None when there is
    none. For rows of which a second write is inert (C13.15-08). Raises BrokerRefused, nats.errors.Error."""
    request = api.MESSAGE_GET.build(stream=stream)
    try:
        answer = await ask(client, request, {"seq": 1, "next_by_subj": subject}, seconds=seconds)
        return base64.b64decode(answer["message"].get("data", ""))
    except BrokerRefused as error:
        if error.code == _NO_MESSAGE:
            return None
        raise
    except (AttributeError, KeyError, TypeError, binascii.Error):
        raise BrokerRefused(request, {"description": "the answer holds no message"}) from None


async def write_key(
    client: Client,
    subject: str,
    value: bytes,
    revision: int,
    *,
    seconds: float = SECONDS,
    seconds_to_live: int | None = None,
) -> int:
    """Write the key if ``revision`` is still its last one (0: it was never written); the new revision. With
    ``seconds_to_live`` the broker forgets the message after them, where its bucket allows that.

    Raises Changed, BrokerRefused, nats.errors.Error. After a timeout it may have been written: read it again.
    """
    expected = {headers.EXPECTED_LAST_SEQUENCE: str(revision)}
    if seconds_to_live is not None:
        expected[headers.TTL] = f"{seconds_to_live}s"
    try:
        answer = await ask(client, subject, value, headers=expected, seconds=seconds)
    except BrokerRefused as error:
        if error.code == _WRONG_LAST:
            raise Changed(subject) from None
        raise
    return int(answer["seq"])
