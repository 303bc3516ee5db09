"""The exchange: fragments, authentication, binding of request and reply to one connection, hostile bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.base.ed25519 import InvalidSignature, SigningKey
from sidecar.base.witnessing import Refusal, WitnessProtocolError
from sidecar.coordinator.wire.ids import ActivationSequence, ActivationWitnessId, AuthorityEpoch
from sidecar.witness import messages, protocol
from sidecar.witness.messages import (
    ANSWERS,
    IMAGE_BYTES,
    REPLIES,
    REQUESTS,
    Activate,
    Challenge,
    Kind,
    Last,
    Refused,
    Released,
    Relinquish,
    Renew,
    Report,
    Request,
)
from sidecar.witness.protocol import ClientExchange, ServerExchange, SignedRequest, encode_reply
from tests.unit.witness.rig import COORDINATOR, client_key, incarnation

WITNESS = ActivationWitnessId(b"\xaa" * 16)
NONCE = bytes(range(32))
REQUEST_VALUES: list[Request] = [
    Activate(COORDINATOR, AuthorityEpoch(2**64 - 1), incarnation(1)),
    Renew(COORDINATOR, ActivationSequence(7), AuthorityEpoch(5), incarnation(1), b"\xd0" * 32),
    Relinquish(COORDINATOR, ActivationSequence(7), b"\xd0" * 32),
    Last(COORDINATOR),
]


def exchange(request: Request, key: SigningKey | None = None) -> tuple[ClientExchange, bytes]:
    """A client that saw the challenge, and the bytes that it sends."""
    client = ClientExchange(key or client_key(), WITNESS, request)
    return client, client.feed(ServerExchange(WITNESS, NONCE).opening())


def received(data: bytes, nonce: bytes = NONCE) -> SignedRequest:
    signed = ServerExchange(WITNESS, nonce).feed(data)
    assert signed is not None
    return signed


@pytest.mark.parametrize("request_value", REQUEST_VALUES, ids=lambda value: value.kind.name)
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_any_fragmentation_gives_the_same_exchange(request_value: Request, size: int) -> None:
    server = ServerExchange(WITNESS, NONCE)
    client = ClientExchange(client_key(), WITNESS, request_value)
    sent = b"".join(client.feed(server.opening()[at : at + size]) for at in range(0, len(server.opening()), size))
    requests = [server.feed(sent[at : at + size]) for at in range(0, len(sent), size)]
    assert requests[:-1] == [None] * (len(requests) - 1)
    signed = requests[-1]
    assert signed is not None
    assert signed.open(WITNESS) == request_value
    assert signed.client_key == client_key().public_key
    reply = Refused(Refusal.LEASE_ACTIVE, retry_after_ms=1500, last_epoch=2)
    frame = encode_reply(NONCE, reply)
    for at in range(0, len(frame), size):
        assert client.feed(frame[at : at + size]) == b""
    assert client.reply == reply


@pytest.mark.req("P12-12")
@pytest.mark.parametrize("request_value", REQUEST_VALUES, ids=lambda value: value.kind.name)
def test_a_signature_holds_for_one_nonce_witness_key_kind_and_request(request_value: Request) -> None:
    _, sent = exchange(request_value)
    signed = received(sent)
    signed.open(WITNESS)
    forged = [
        replace(signed, nonce=bytes(32)),
        replace(signed, client_key=client_key(2).public_key),
        replace(signed, signature=signed.signature[:-1] + bytes([signed.signature[-1] ^ 1])),
        *(
            replace(signed, image=signed.image[:at] + bytes([signed.image[at] ^ 1]) + signed.image[at + 1 :])
            for at in range(len(signed.image))
        ),
        *(replace(signed, kind=kind) for kind in REQUESTS if kind is not signed.kind),
    ]
    for attempt in forged:
        with pytest.raises(InvalidSignature):
            attempt.open(WITNESS)
    with pytest.raises(InvalidSignature):
        signed.open(ActivationWitnessId(b"\xab" * 16))


def test_the_transcript_is_these_bytes() -> None:
    signed = protocol.transcript(NONCE, WITNESS, b"\x01" * 32, Kind.LAST, COORDINATOR)
    assert signed == (
        b"sidecar-witness-request/v1\0" + NONCE + WITNESS + b"\x01" * 32 + b"\x13" + b"\x00\x00\x00\x10" + COORDINATOR
    )


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00\x00\x00",  # no type
        b"\xff\xff\xff\xff\x10",  # 4 GiB announced
        b"\x00\x00\x00\x02\x99",  # unknown kind
        b"\x00\x00\x00\x02\x81",  # a reply sent to the witness
        b"\x00\x00\x00\x02\x10\x00",  # an activation that is too short
        (1 + 96 + 40 + 1).to_bytes(4, "big") + b"\x10",  # one byte too long
    ],
)
def test_the_witness_refuses_what_is_no_request(data: bytes) -> None:
    with pytest.raises(WitnessProtocolError):
        ServerExchange(WITNESS, NONCE).feed(data)


def test_one_request_per_connection() -> None:
    _, sent = exchange(Last(COORDINATOR))
    with pytest.raises(WitnessProtocolError):
        ServerExchange(WITNESS, NONCE).feed(sent + b"\x00")
    server = ServerExchange(WITNESS, NONCE)
    server.feed(sent)
    with pytest.raises(WitnessProtocolError, match="after the request"):
        server.feed(b"\x00")


@pytest.mark.parametrize("kind", list(REQUESTS))
def test_zero_ids_and_epochs_are_malformed(kind: Kind) -> None:
    image = bytes(IMAGE_BYTES[kind])
    with pytest.raises(WitnessProtocolError):
        REQUESTS[kind].parse(image)
    with pytest.raises(WitnessProtocolError):
        REQUESTS[kind].parse(image + b"\x00")


@pytest.mark.req("P12-08")
def test_the_client_signs_nothing_for_another_witness() -> None:
    client = ClientExchange(client_key(), WITNESS, Last(COORDINATOR))
    with pytest.raises(WitnessProtocolError, match="another witness"):
        client.feed(ServerExchange(ActivationWitnessId(b"\xab" * 16), NONCE).opening())


def test_the_client_takes_no_other_version() -> None:
    image = Challenge(NONCE, WITNESS).image()
    with pytest.raises(WitnessProtocolError, match="version 2"):
        Challenge.parse(b"\x02" + image[1:])


def test_the_client_takes_only_the_reply_to_its_own_request() -> None:
    client, _ = exchange(Last(COORDINATOR))
    with pytest.raises(WitnessProtocolError, match="does not belong"):
        client.feed(encode_reply(bytes(32), Report(1, 1)))
    client, _ = exchange(Last(COORDINATOR))
    with pytest.raises(WitnessProtocolError):
        client.feed(encode_reply(NONCE, Released()))
    client, _ = exchange(Last(COORDINATOR))
    with pytest.raises(WitnessProtocolError):
        client.feed(encode_reply(NONCE, Report(1, 1)) * 2)


def test_the_client_takes_no_reply_before_its_request() -> None:
    client = ClientExchange(client_key(), WITNESS, Last(COORDINATOR))
    with pytest.raises(WitnessProtocolError):
        client.feed(encode_reply(NONCE, Report(1, 1)))


def test_a_reply_that_holds_no_certificate_or_reason_is_malformed() -> None:
    with pytest.raises(WitnessProtocolError, match="no certificate"):
        messages.Granted.parse(bytes(IMAGE_BYTES[Kind.GRANTED]))
    with pytest.raises(WitnessProtocolError):
        Refused.parse(b"\x63" + bytes(16))
    with pytest.raises(WitnessProtocolError):
        Released.parse(b"\x00")


@pytest.mark.parametrize("reason", list(Refusal))
def test_every_reason_travels(reason: Refusal) -> None:
    refused = Refused(reason, 2**64 - 1, 2**64 - 1)
    assert Refused.parse(refused.image()) == refused


def test_the_tables_name_every_kind_once() -> None:
    assert set(REQUESTS) | set(REPLIES) | {Kind.CHALLENGE} == set(Kind)
    assert set(ANSWERS) == set(REQUESTS)
    assert set(IMAGE_BYTES) == set(Kind)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.integers(1, 50))
def test_hostile_bytes_raise_only_the_declared_error(data: bytes, size: int) -> None:
    server = ServerExchange(WITNESS, NONCE)
    client = ClientExchange(client_key(), WITNESS, Last(COORDINATOR))
    for half in (server, client):
        try:
            for at in range(0, len(data), size):
                half.feed(data[at : at + size])
        except WitnessProtocolError:
            pass


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(list(REQUESTS)), st.binary(min_size=160, max_size=160))
def test_hostile_requests_of_the_right_size_raise_only_declared_errors(kind: Kind, data: bytes) -> None:
    image = data[: IMAGE_BYTES[kind]]
    key = client_key()
    signature = key.sign(protocol.transcript(NONCE, WITNESS, key.public_key, kind, image))
    try:
        opened = SignedRequest(NONCE, key.public_key, signature, kind, image).open(WITNESS)
    except WitnessProtocolError:
        return
    assert opened.image() == image


def test_tokens_are_not_shown() -> None:
    for request in REQUEST_VALUES[1:3]:
        assert "d0d0" not in repr(request)
        assert "\\xd0" not in repr(request)
