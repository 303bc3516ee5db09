"""Storing: a publish that the broker acknowledges when the message stands in a stream, or refuses with a reason."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

import orjson

from sidecar.rails.connection.connection import Connection

STORE_SECONDS: Final = 5.0


class Stored(NamedTuple):
    """What a stream says of a message that it holds. ``duplicate``: it held it already, under the same message id."""

    stream: str
    sequence: int
    duplicate: bool


class Refusal(StrEnum):
    """Why a stream did not take a message; the values are metric labels."""

    WRONG_SEQUENCE = "wrong_sequence"
    FULL = "full"
    TOO_LARGE = "too_large"
    EXPECTATION = "expectation"
    UNCLEAR = "unclear"
    OTHER = "other"


_REFUSALS: Final = {
    # JetStream error codes (`err_code` of the answer) of nats-server 2.12 to 2.15.
    10071: Refusal.WRONG_SEQUENCE,
    10164: Refusal.WRONG_SEQUENCE,
    10002: Refusal.FULL,
    10023: Refusal.FULL,
    10028: Refusal.FULL,
    10047: Refusal.FULL,
    10077: Refusal.FULL,
    10054: Refusal.TOO_LARGE,
    10060: Refusal.EXPECTATION,
    10070: Refusal.EXPECTATION,
    10193: Refusal.EXPECTATION,
}


class StoreRefused(Exception):  # noqa: N818 - what the broker said
    """The stream did not take the message. ``code`` is JetStream's; 0 for an answer that is no acknowledgement, after
    which the message may have been stored (``Refusal.UNCLEAR``)."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} ({code})" if code else text)
        self.code = code
        self.text = text

    @property
    def refusal(self) -> Refusal:
        """The class of the refusal."""
        return Refusal.UNCLEAR if self.code == 0 else _REFUSALS.get(self.code, Refusal.OTHER)


class WrongSequence(StoreRefused):
    """Compare-and-set: the last sequence of the subject or stream is another one."""


class StreamFull(StoreRefused):
    """The stream, its account or its disk takes no more."""


class TooLarge(StoreRefused):
    """The message is larger than the stream takes."""


_CLASSES: Final[Mapping[Refusal, type[StoreRefused]]] = {
    Refusal.WRONG_SEQUENCE: WrongSequence,
    Refusal.FULL: StreamFull,
    Refusal.TOO_LARGE: TooLarge,
}
_MAX_TEXT: Final = 200


def read_ack(data: bytes) -> Stored:
    """An acknowledgement. Raises StoreRefused, or the subclass that says why."""
    try:
        answer = orjson.loads(data)
    except orjson.JSONDecodeError:
        answer = None
    if type(answer) is dict:
        stream, sequence = answer.get("stream"), answer.get("seq")
        if type(answer.get("error")) is dict:
            raise _refused(answer["error"])
        if type(stream) is str and type(sequence) is int and sequence > 0:
            return Stored(stream, sequence, answer.get("duplicate") is True)
    raise StoreRefused(0, "the answer is no acknowledgement")


def _refused(error: dict[str, Any]) -> StoreRefused:
    code, text = error.get("err_code"), error.get("description")
    known = StoreRefused(code if type(code) is int else 0, text[:_MAX_TEXT] if type(text) is str else "refused")
    return _CLASSES.get(known.refusal, StoreRefused)(known.code, known.text)


async def store(
    connection: Connection,
    subject: str,
    data: bytes,
    headers: Mapping[str, str] | None = None,
    *,
    seconds: float = STORE_SECONDS,
) -> Stored:
    """Store one message; when this returns it stands in the stream. Raises StoreRefused (``WrongSequence``,
    ``StreamFull``, ``TooLarge``), PermissionViolation, NoResponders when no stream takes the subject, and NotConnected,
    Stopped or TimeoutError, after which it may have been stored."""
    message = await connection.request(subject, data, seconds=seconds, headers=headers)
    try:
        return read_ack(message.data)
    except StoreRefused as error:
        connection.store_refused(error.refusal)
        raise
