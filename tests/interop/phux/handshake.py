"""COORD_HELLO, WORKLOAD_CHALLENGE, WORKLOAD_RESPONSE, COORD_HELLO_OK by the client (parts W3, W4, W7, P5)."""

from __future__ import annotations

import hmac
import os
import secrets
import time
from dataclasses import dataclass, field

from tests.interop.phux import enums as e
from tests.interop.phux import proof
from tests.interop.phux import records as r
from tests.interop.phux.connection import Connection, Fatal
from tests.interop.phux.digests import sha256
from tests.interop.phux.frames import Frame, State, Type
from tests.interop.phux.proof import NotTrusted, Pins

REFERENCE_LIMITS = {
    "max_frame_bytes": 524_288,
    "max_page_bytes": 262_144,
    "max_page_records": 512,
    "max_typed_payload_bytes": 131_072,
    "max_event_credit_count": 1_024,
    "max_event_credit_bytes": 4_194_304,
}
VERSION = dict(zip(("protocol_major", "protocol_minor", "protocol_patch"), e.PROTOCOL, strict=True))


@dataclass(frozen=True)
class Offer:
    """What a client asks for; `limits` overrides the reference offers."""

    client_name: str = "interop"
    scopes: int = e.Scope.WORK_READ | e.Scope.WORK_COMMAND
    capabilities: int = e.Capability.EVENT_REPLAY
    required: int = 0
    limits: dict[str, int] = field(default_factory=dict)
    life_seconds: int = 3_600


@dataclass(frozen=True)
class Session:
    """What the handshake gave."""

    certificate: r.Certificate
    grant: r.WorkloadGrant
    capabilities: int
    hello_ok: Frame


def hello(connection: Connection, offer: Offer, client_nonce: bytes) -> None:
    """Send COORD_HELLO with the workload offer."""
    connection.send(
        Type.COORD_HELLO,
        **VERSION,
        client_name=offer.client_name,
        offered_capabilities=offer.capabilities,
        required_capabilities=offer.required,
        **{**REFERENCE_LIMITS, **offer.limits},
        workload_offer=r.WorkloadOffer(e.PROFILE, client_nonce),
    )


def expect(connection: Connection, wanted: Type) -> Frame:
    """The next frame, which must be this one. Raises Fatal for an error, Violation for another (W3-16)."""
    frame = connection.receive()
    if frame.type is Type.COORD_ERROR:
        raise Fatal(frame["code"], frame["request_id"])
    if frame.type is not wanted:
        connection.refuse(e.ErrorCode.PROTOCOL_ERROR, f"{frame.type.name} instead of {wanted.name}")
    return frame


def check_challenge(challenge: Frame, client_nonce: bytes, pins: Pins) -> proof.Session:
    """What W3-19 lists, in its order; profile, service and a nonzero incarnation are held by the codec."""
    if (challenge["negotiated_major"], challenge["negotiated_minor"]) != e.PROTOCOL[:2]:
        raise NotTrusted("another version")
    if not hmac.compare_digest(challenge["client_nonce"], client_nonce):
        raise NotTrusted("another client nonce")
    session = proof.Session.of(challenge)
    if session.binding_kind is not e.ChannelBinding.UDS_PEER:
        raise NotTrusted("another kind of channel binding")
    own = proof.uds_preimage(session.server_nonce, os.geteuid(), os.getegid(), os.getpid())
    if not hmac.compare_digest(session.binding, sha256(own)):
        raise NotTrusted("the channel is bound to another peer")
    if not hmac.compare_digest(sha256(session.authority_public_key), pins.authority_fingerprint):
        raise NotTrusted("authority_changed")
    if not proof.verifies(session.authority_public_key, challenge["authority_proof"], session.server_transcript()):
        raise NotTrusted("the authority proof does not hold")
    return session


def respond(
    connection: Connection, seed: bytes, session: proof.Session, challenge: Frame, scopes: int, expiry: int
) -> bytes:
    """Send WORKLOAD_RESPONSE; the own key id."""
    key_id = sha256(proof.public_key(seed))
    transcript = session.client_transcript(challenge["authority_proof"], key_id, expiry, scopes)
    connection.send(
        Type.WORKLOAD_RESPONSE,
        key_id=key_id,
        scope=scopes,
        requested_expiry=expiry,
        workload_proof=proof.sign(seed, transcript),
    )
    return key_id


def check_hello_ok(ok: Frame, session: proof.Session, pins: Pins) -> None:
    """Certificate against the pins and the fields 5 to 7 (P12-19), incarnation against the challenge (W7-06)."""
    certificate: r.Certificate = ok["activation_certificate"]
    if (ok["protocol_major"], ok["protocol_minor"]) != e.PROTOCOL[:2]:
        raise NotTrusted("another version")
    proof.check_certificate(certificate, pins, time.time())
    if (ok["coordinator_id"], ok["authority_epoch"], ok["incarnation_id"]) != (
        certificate.coordinator_id,
        certificate.authority_epoch,
        certificate.incarnation_id,
    ):
        raise NotTrusted("the certificate is of another activation")
    if ok["incarnation_id"] != session.server_incarnation:
        raise NotTrusted("the challenge was of another incarnation")
    if ok["operation_result_retention_secs"] < 2_592_000:
        raise NotTrusted("results are kept too short")


def check_terms(ok: Frame, offer: Offer, key_id: bytes, expiry: int, pins: Pins) -> None:
    """The grant (W7-07), and that nothing selected exceeds what was offered (P3-20, P5-12)."""
    grant: r.WorkloadGrant = ok["workload_grant"]
    if grant.key_id != key_id or grant.authority_fingerprint != pins.authority_fingerprint:
        raise NotTrusted("a grant for another key or authority")
    if not grant.scopes or grant.scopes & ~offer.scopes:
        raise NotTrusted("a grant of nothing or of more than asked")
    if not time.time() < grant.expires_at <= expiry:
        raise NotTrusted("a grant of an illegal life")
    if ok["negotiated_capabilities"] & ~offer.capabilities or offer.required & ~ok["negotiated_capabilities"]:
        raise NotTrusted("capabilities that were not offered, or not those required")
    for name, offered in {**REFERENCE_LIMITS, **offer.limits}.items():
        if not 0 < ok[name] <= offered:
            raise NotTrusted(f"{name} {ok[name]} of {offered}")


def log_in(connection: Connection, seed: bytes, pins: Pins, offer: Offer) -> Session:
    """The whole handshake. Raises NotTrusted, Fatal, Violation, Closed; the connection is closed then."""
    try:
        client_nonce = secrets.token_bytes(32)
        hello(connection, offer, client_nonce)
        challenge = expect(connection, Type.WORKLOAD_CHALLENGE)
        session = check_challenge(challenge, client_nonce, pins)
        connection.state = State.CHAL
        expiry = int(time.time()) + offer.life_seconds
        key_id = respond(connection, seed, session, challenge, offer.scopes, expiry)
        ok = expect(connection, Type.COORD_HELLO_OK)
        check_hello_ok(ok, session, pins)
        check_terms(ok, offer, key_id, expiry, pins)
    except BaseException:
        connection.close()
        raise
    connection.limits = {name: ok[name] for name in REFERENCE_LIMITS}
    connection.state = State.ACT
    return Session(ok["activation_certificate"], ok["workload_grant"], ok["negotiated_capabilities"], ok)
