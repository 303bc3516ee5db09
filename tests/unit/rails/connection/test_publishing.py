"""What a stream answers to a message, and what a caller makes of it."""

from __future__ import annotations

import json

import pytest

from sidecar.rails.connection.publishing import (
    Refusal,
    Stored,
    StoreRefused,
    StreamFull,
    TooLarge,
    WrongSequence,
    read_ack,
)


def test_an_acknowledgement_says_where_the_message_stands() -> None:
    assert read_ack(b'{"stream":"S","seq":7}') == Stored("S", 7, False)
    assert read_ack(b'{"stream":"S","seq":7,"duplicate":true,"domain":"d"}') == Stored("S", 7, True)


@pytest.mark.parametrize(
    ("code", "refusal", "error"),
    [
        (10071, Refusal.WRONG_SEQUENCE, WrongSequence),
        (10164, Refusal.WRONG_SEQUENCE, WrongSequence),
        (10077, Refusal.FULL, StreamFull),
        (10047, Refusal.FULL, StreamFull),
        (10054, Refusal.TOO_LARGE, TooLarge),
        (10060, Refusal.EXPECTATION, StoreRefused),
        (10109, Refusal.OTHER, StoreRefused),
    ],
)
def test_a_refusal_has_its_class(code: int, refusal: Refusal, error: type[StoreRefused]) -> None:
    answer = {"error": {"code": 400, "err_code": code, "description": "why " * 100}, "stream": "S", "seq": 0}
    with pytest.raises(StoreRefused) as raised:
        read_ack(json.dumps(answer).encode())
    assert type(raised.value) is error
    assert (raised.value.code, raised.value.refusal) == (code, refusal)
    assert len(raised.value.text) == 200


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"x",
        b"[]",
        b"{}",
        b'{"stream":"S"}',
        b'{"stream":1,"seq":1}',
        b'{"stream":"S","seq":0}',
        b'{"stream":"S","seq":true}',
        b'{"error":"no"}',
        b'{"error":{}}',
        b'{"error":{"err_code":"10071"}}',
    ],
)
def test_an_answer_of_another_form_is_unclear(answer: bytes) -> None:
    with pytest.raises(StoreRefused) as raised:
        read_ack(answer)
    assert raised.value.refusal is Refusal.UNCLEAR
