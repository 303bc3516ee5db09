"""The frames of a login one by one, so that a test can spoil any of them."""

from __future__ import annotations

import secrets
import time
from typing import Any

from tests.interop.phux import enums as e
from tests.interop.phux import proof
from tests.interop.phux import records as r
from tests.interop.phux.connection import Connection
from tests.interop.phux.digests import sha256
from tests.interop.phux.frames import Frame, State, Type, message
from tests.interop.phux.handshake import REFERENCE_LIMITS, VERSION
from tests.interop.phux.tlv import U32, U64
from tests.interop.raw import Fields, answer, body_of, fields_of
from tests.interop.server import Server


def hello(**values: Any) -> Fields:
    """A legal COORD_HELLO."""
    given = {
        **VERSION,
        "client_name": "interop",
        "offered_capabilities": 0,
        "required_capabilities": 0,
        **REFERENCE_LIMITS,
        "workload_offer": r.WorkloadOffer(e.PROFILE, secrets.token_bytes(32)),
        **values,
    }
    return fields_of(Type.COORD_HELLO, **given)


def send(fields: Fields) -> bytes:
    return message(Type.COORD_HELLO, body_of(dict(sorted(fields.items()))))


def challenged(connection: Connection, **values: Any) -> Frame:
    """The challenge to a legal HELLO."""
    frame = answer(connection, send(hello(**values)))
    assert frame.type is Type.WORKLOAD_CHALLENGE
    connection.state = State.CHAL
    return frame


class Answer:
    """A response under construction: what it proves and what it says may differ."""

    def __init__(self, challenge: Frame, seed: bytes) -> None:
        self.session = proof.Session.of(challenge)
        self.authority_proof: bytes = challenge["authority_proof"]
        self.seed = seed
        self.key_id = sha256(proof.public_key(seed))
        self.expiry = int(time.time()) + 600
        self.scopes: int = e.Scope.WORK_READ | e.Scope.WORK_COMMAND

    def transcript(self) -> bytes:
        return self.session.client_transcript(self.authority_proof, self.key_id, self.expiry, self.scopes)

    def fields(self, transcript: bytes | None = None) -> Fields:
        signature = proof.sign(self.seed, self.transcript() if transcript is None else transcript)
        return {
            1: self.key_id,
            2: U32.write(8) + U64.write(self.scopes),
            3: U64.write(self.expiry),
            4: signature,
        }

    def bytes(self, transcript: bytes | None = None) -> bytes:
        return message(Type.WORKLOAD_RESPONSE, body_of(self.fields(transcript)))


def answered(server: Server, connection: Connection, name: str = "operator") -> Answer:
    return Answer(challenged(connection), server.seed(name))
