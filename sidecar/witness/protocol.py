"""One exchange with the witness, sans-IO: challenge, one signed request, one reply bound to the challenge.

    witness                          client
      CHALLENGE nonce, witness_id ->
                                  <- request: client key, signature over the transcript, image
      reply: nonce, image         ->                                    (then both close)

Frames are ``u32 length || u8 kind || body`` as on the coordinator's wire. A frame's length is checked against the one
size of its kind before a byte of its body is taken.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from cext.frame import FrameTooLarge, FrameTypeRefused, Splitter, encode_frame
from sidecar.base import ed25519
from sidecar.base.witnessing import WitnessProtocolError
from sidecar.coordinator.wire.ids import ActivationWitnessId
from sidecar.witness.messages import (
    ANSWERS,
    IMAGE_BYTES,
    KEY_BYTES,
    NONCE_BYTES,
    REPLIES,
    REQUESTS,
    SIGNATURE_BYTES,
    Challenge,
    Kind,
    Reply,
    Request,
)

_DOMAIN: Final = b"sidecar-witness-request/v1\0"
_PROOF: Final = struct.Struct(f">{KEY_BYTES}s{SIGNATURE_BYTES}s")
_TYPES: Final = 256


def _caps(sizes: dict[Kind, int]) -> list[int]:
    caps = [0] * _TYPES
    for kind, size in sizes.items():
        caps[kind] = 1 + size
    return caps


_REQUEST_CAPS: Final = _caps({kind: _PROOF.size + IMAGE_BYTES[kind] for kind in REQUESTS})
_CHALLENGE_CAPS: Final = _caps({Kind.CHALLENGE: IMAGE_BYTES[Kind.CHALLENGE]})


def transcript(nonce: bytes, witness_id: bytes, client_key: bytes, kind: int, image: bytes) -> bytes:
    """What a client signs: nothing of it can be moved to another witness, connection, request or protocol."""
    return b"".join((_DOMAIN, nonce, witness_id, client_key, bytes((kind,)), struct.pack(">I", len(image)), image))


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A request as it came in: well-formed in size, not yet checked for its signature or its values."""

    nonce: bytes
    client_key: bytes
    signature: bytes
    kind: Kind
    image: bytes

    def open(self, witness_id: bytes) -> Request:
        """The request; InvalidSignature when the client key did not sign it here and now."""
        signed = transcript(self.nonce, witness_id, self.client_key, self.kind, self.image)
        ed25519.verify(self.client_key, signed, self.signature)
        return REQUESTS[self.kind].parse(self.image)


def encode_reply(nonce: bytes, reply: Reply) -> bytes:
    """The frame of a reply; it repeats the challenge's nonce."""
    return encode_frame(reply.kind, nonce + reply.image())


class _Inbox:
    """Frames out of fragments, refusals as :exc:`WitnessProtocolError`."""

    def __init__(self, caps: list[int]) -> None:
        self._splitter = Splitter(caps)

    def expect(self, caps: list[int]) -> None:
        self._splitter.set_caps(caps)

    def feed(self, data: bytes) -> None:
        self._splitter.feed(data)

    def next(self) -> tuple[Kind, bytes] | None:
        try:
            frame = self._splitter.next_frame()
        except (FrameTooLarge, FrameTypeRefused) as error:
            raise WitnessProtocolError("an unexpected message arrived") from error
        if frame is None:
            return None
        return Kind(frame[0]), bytes(frame[1])

    @property
    def empty(self) -> bool:
        return self._splitter.buffered == 0


class ServerExchange:
    """The witness's half of one connection: at most one request comes out of it."""

    def __init__(self, witness_id: ActivationWitnessId, nonce: bytes) -> None:
        self._challenge = Challenge(nonce, witness_id)
        self._inbox = _Inbox(_REQUEST_CAPS)
        self._taken = False

    def opening(self) -> bytes:
        """The challenge frame, to be sent before anything is read."""
        return encode_frame(Kind.CHALLENGE, self._challenge.image())

    def feed(self, data: bytes) -> SignedRequest | None:
        """Take received bytes; the request once it is whole. Raises :exc:`WitnessProtocolError`: close then."""
        if self._taken:
            raise WitnessProtocolError("bytes after the request")
        self._inbox.feed(data)
        if (frame := self._inbox.next()) is None:
            return None
        kind, body = frame
        if len(body) != _PROOF.size + IMAGE_BYTES[kind] or not self._inbox.empty:
            raise WitnessProtocolError("a request has the wrong size")
        self._taken = True
        client_key, signature = _PROOF.unpack_from(body)
        return SignedRequest(self._challenge.nonce, client_key, signature, kind, body[_PROOF.size :])


class _ClientState(Enum):
    CHALLENGE = auto()
    REPLY = auto()
    DONE = auto()


class ClientExchange:
    """The caller's half: feed it what arrives, send what it returns, until ``reply`` is there."""

    def __init__(self, key: ed25519.SigningKey, witness_id: bytes, request: Request) -> None:
        self._key = key
        self._witness_id = witness_id
        self._request = request
        self._inbox = _Inbox(_CHALLENGE_CAPS)
        self._state = _ClientState.CHALLENGE
        self._nonce = b""
        self.reply: Reply | None = None

    def feed(self, data: bytes) -> bytes:
        """Take received bytes; returns bytes to send (maybe none). Raises :exc:`WitnessProtocolError`."""
        self._inbox.feed(data)
        output = b""
        while (frame := self._inbox.next()) is not None:
            if self._state is _ClientState.CHALLENGE:
                output += self._answer(*frame)
            else:
                self._conclude(*frame)
        return output

    def _answer(self, kind: Kind, body: bytes) -> bytes:
        challenge = Challenge.parse(body)
        if challenge.witness_id != self._witness_id:
            raise WitnessProtocolError("the socket belongs to another witness than the pinned one")
        self._nonce = challenge.nonce
        self._state = _ClientState.REPLY
        answers = (ANSWERS[self._request.kind], Kind.REFUSED)
        self._inbox.expect(_caps({answer: NONCE_BYTES + IMAGE_BYTES[answer] for answer in answers}))
        image = self._request.image()
        signed = transcript(self._nonce, self._witness_id, self._key.public_key, self._request.kind, image)
        return encode_frame(self._request.kind, self._key.public_key + self._key.sign(signed) + image)

    def _conclude(self, kind: Kind, body: bytes) -> None:
        if self._state is _ClientState.DONE or body[:NONCE_BYTES] != self._nonce:
            raise WitnessProtocolError("the reply does not belong to this request")
        self._state = _ClientState.DONE
        self.reply = REPLIES[kind].parse(body[NONCE_BYTES:])
