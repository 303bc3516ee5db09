"""The two proofs of the paired handshake, built and checked (W3-05..09, W3-19, W4, W5, W7-06, W7-07).

Both sides rebuild the signed transcripts from what they hold themselves; transcript bytes never travel (W4-05).
A server tells every failed login in one way (W4-08); a client names the check that failed, for its own user.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from cext.digest import client_transcript, server_transcript, sha256, tls_context, uds_peer_binding
from sidecar.base.ed25519 import InvalidKey, InvalidSignature, SigningKey, check_public_key, fingerprint, verify
from sidecar.base.secret import Secret
from sidecar.coordinator.authority.grants import Grant, KeyRecord, Registry
from sidecar.coordinator.wire.enums import ChannelBinding as BindingKind
from sidecar.coordinator.wire.enums import Scope
from sidecar.coordinator.wire.errors import AuthenticationFailed
from sidecar.coordinator.wire.frames import CoordHello, CoordHelloOk, WorkloadChallenge, WorkloadResponse
from sidecar.coordinator.wire.ids import Fingerprint, IncarnationId, KeyId
from sidecar.coordinator.wire.limits import PROFILE, PROTOCOL, SERVICE
from sidecar.coordinator.wire.records import WorkloadGrant

NONCE_BYTES: Final = 32
BINDING_BYTES: Final = 32
SCOPE_BYTES: Final = 8

MAJOR, MINOR, _ = PROTOCOL

# Verified against when the key id is unknown, so that an unknown key costs what a bad proof costs (W4-09). Its
# signature is never accepted, whoever knows the seed.
_DUMMY: Final = KeyRecord.of(
    SigningKey(Secret(sha256(b"sidecar: stands in for an unknown workload key"))).public_key, scopes=0, expires_at=0
)


class ProofRefused(ValueError):  # noqa: N818 - an answer, not a mishap
    """What a server sent failed a check of the client; ``check`` is its name in the order of W3-19."""

    def __init__(self, check: str, reason: str) -> None:
        super().__init__(reason)
        self.check = check


@dataclass(frozen=True, slots=True)
class ChannelBinding:
    """What ties a handshake to one transport connection: ``kind`` and 32 bytes (W5-01)."""

    kind: BindingKind
    value: bytes

    def __post_init__(self) -> None:
        # There is no empty binding and none that is text (W5-10).
        if len(self.value) != BINDING_BYTES:
            raise ValueError(f"a channel binding has {BINDING_BYTES} bytes")

    def matches(self, kind: int, value: bytes) -> bool:
        """Whether both parts are equal; the value is compared in constant time."""
        return hmac.compare_digest(self.value, value) and int(self.kind) == kind


def uds_binding(server_nonce: bytes, uid: int, gid: int, pid: int) -> ChannelBinding:
    """Binding of a Unix socket from the peer's effective ids (W5-06, W5-08).

    ValueError unless there are all three and a real nonce: a pid that the kernel could not name is 0 (W5-09, W5-10).
    """
    if uid < 0 or gid < 0 or pid < 1:
        raise ValueError("the peer's uid, gid and pid are not all known")
    check_nonce(server_nonce)
    return ChannelBinding(BindingKind.UDS_PEER, uds_peer_binding(server_nonce, uid, gid, pid))


def exporter_context() -> bytes:
    """Context of the TLS exporter that gives the binding of a QUIC connection (W5-03)."""
    return tls_context(SERVICE, MAJOR, MINOR)


def check_nonce(nonce: bytes) -> None:
    """ValueError unless 32 bytes, not all zero (W3-08)."""
    if len(nonce) != NONCE_BYTES or not any(nonce):
        raise ValueError(f"a nonce has {NONCE_BYTES} bytes, not all zero")


def make_challenge(
    hello: CoordHello, key: SigningKey, incarnation: bytes, server_nonce: bytes, binding: ChannelBinding
) -> WorkloadChallenge:
    """Answer a HELLO whose version and offer were accepted, with the authority's proof (W4-01, W4-02, W7-01).

    ``LocalProtocolError`` for a zero nonce or incarnation (W3-08).
    """
    client_nonce = hello.workload_offer.client_nonce
    transcript = server_transcript(
        SERVICE,
        MAJOR,
        MINOR,
        client_nonce,
        server_nonce,
        incarnation,
        binding.kind,
        binding.value,
        key.public_key,
    )
    return WorkloadChallenge(
        profile=PROFILE,
        service=SERVICE,
        negotiated_major=MAJOR,
        negotiated_minor=MINOR,
        client_nonce=client_nonce,
        server_nonce=server_nonce,
        server_incarnation=IncarnationId(incarnation),
        channel_binding_kind=binding.kind,
        channel_binding=binding.value,
        authority_public_key=key.public_key,
        authority_proof=key.sign(transcript),
    )


def verify_challenge(
    challenge: WorkloadChallenge,
    *,
    client_nonce: bytes,
    derive_binding: Callable[[bytes], ChannelBinding],
    check_pin: Callable[[bytes], None],
) -> bytes:
    """The client's checks in the order of W3-19; returns the authority's fingerprint (32 bytes).

    Profile, service, known binding kind, nonzero nonces and incarnation belong to the schema: ``decode`` refused them.
    ``derive_binding`` gives this side's own binding for the server's nonce (W5-07). ``check_pin`` gets the fingerprint
    and raises whatever the pins say of it (W2-09), before the proof is looked at. Everything else is
    :exc:`ProofRefused`; nothing may be sent after any of them.
    """
    if (challenge.negotiated_major, challenge.negotiated_minor) != (MAJOR, MINOR):
        raise ProofRefused("version", "the challenge names another protocol version")
    if not hmac.compare_digest(challenge.client_nonce, client_nonce):
        raise ProofRefused("nonce", "the challenge does not echo this client's nonce")
    _check_binding(challenge, derive_binding)
    authority_key = challenge.authority_public_key
    try:
        check_public_key(authority_key)
    except InvalidKey as error:
        raise ProofRefused("authority_key", f"the authority key is not acceptable: {error}") from None
    authority = fingerprint(authority_key)
    check_pin(authority)
    try:
        verify(authority_key, _server_transcript(challenge), challenge.authority_proof)
    except InvalidSignature:
        raise ProofRefused("proof", "the server does not hold the authority key that it names") from None
    return authority


def make_response(
    challenge: WorkloadChallenge, key: SigningKey, *, scopes: int, requested_expiry: int
) -> WorkloadResponse:
    """Answer a verified challenge with the workload's proof (W4-03, W4-04, W7-02).

    ``scopes`` are bits, ``requested_expiry`` is Unix seconds.
    """
    key_id = KeyId(fingerprint(key.public_key))
    proof = key.sign(_client_transcript(challenge, key_id, requested_expiry, scopes))
    return WorkloadResponse(
        key_id=key_id,
        requested_scope_bytes=Scope(scopes),
        requested_expiry=requested_expiry,
        workload_proof=proof,
    )


def verify_response(
    challenge: WorkloadChallenge,
    response: WorkloadResponse,
    *,
    live_incarnation: bytes,
    live_binding: ChannelBinding,
    registry: Callable[[], Registry],
    now: float,
) -> Grant:
    """The server's checks of the one response to its retained ``challenge``: the grant it earns (W3-06, W4-05..09).

    A response that exists was decoded, so its scope image is legal before any of this and before ``registry`` is asked
    (W3-06, P6-02). ``live_incarnation`` and ``live_binding`` are read anew from process and transport. ``now`` is Unix
    seconds. Every failure raises the same bare ``AuthenticationFailed``.
    """
    # Every check is made whatever the ones before it said, so that the time spent does not tell them apart.
    genuine = hmac.compare_digest(challenge.server_incarnation, live_incarnation)
    genuine &= live_binding.matches(challenge.channel_binding_kind, challenge.channel_binding)
    snapshot = registry()
    record = snapshot.lookup(response.key_id)
    genuine &= record is not None
    genuine &= _proves((record or _DUMMY).public_key, challenge, response)
    grant = snapshot.grant(response.key_id, response.requested_scope_bytes, response.requested_expiry, now)
    if not genuine or grant is None:
        raise AuthenticationFailed()
    return replace(
        grant,
        incarnation_id=live_incarnation,
        binding=live_binding.value,
        authority_fingerprint=fingerprint(challenge.authority_public_key),
    )


def grant_record(grant: Grant) -> WorkloadGrant:
    """What HELLO_OK tells the client of its grant (W7-05); it buys nothing anywhere else (W6-04)."""
    return WorkloadGrant(
        key_id=KeyId(grant.key_id),
        authority_fingerprint=Fingerprint(grant.authority_fingerprint),
        expires_at=grant.expires_at,
        scopes=Scope(grant.scopes),
    )


def check_grant(
    challenge: WorkloadChallenge, hello_ok: CoordHelloOk, response: WorkloadResponse, *, now: float
) -> None:
    """The client's checks of what it was granted (W7-06, W7-07): else :exc:`ProofRefused`. ``now``: Unix seconds."""
    grant, certificate = hello_ok.workload_grant, hello_ok.activation_certificate
    incarnation = challenge.server_incarnation
    if hello_ok.incarnation_id != incarnation or certificate.incarnation_id != incarnation:
        raise ProofRefused("incarnation", "challenge, HELLO_OK and certificate name different incarnations")
    if not hmac.compare_digest(grant.key_id, response.key_id):
        raise ProofRefused("grant", "the grant is for another key")
    if not hmac.compare_digest(grant.authority_fingerprint, fingerprint(challenge.authority_public_key)):
        raise ProofRefused("grant", "the grant is of another authority")
    if not grant.scopes or int(grant.scopes) & ~int(response.requested_scope_bytes):
        raise ProofRefused("grant", "the granted scopes are empty or wider than requested")
    if grant.expires_at > response.requested_expiry or grant.expires_at <= now:
        raise ProofRefused("grant", "the grant is expired or outlives the request")


def _check_binding(challenge: WorkloadChallenge, derive_binding: Callable[[bytes], ChannelBinding]) -> None:
    try:
        own = derive_binding(challenge.server_nonce)
    except ValueError as error:
        raise ProofRefused("binding", f"no channel binding: {error}") from None
    if not own.matches(challenge.channel_binding_kind, challenge.channel_binding):
        raise ProofRefused("binding", "the channel binding is not that of this connection")


def _proves(public_key: bytes, challenge: WorkloadChallenge, response: WorkloadResponse) -> bool:
    """W4-07: strict key, key id derived from it, strict signature over the rebuilt transcript."""
    try:
        check_public_key(public_key)
        same = hmac.compare_digest(fingerprint(public_key), response.key_id)
        transcript = _client_transcript(
            challenge, response.key_id, response.requested_expiry, response.requested_scope_bytes
        )
        verify(public_key, transcript, response.workload_proof)
    except (InvalidKey, InvalidSignature):
        return False
    return same


def _challenged(challenge: WorkloadChallenge) -> tuple[bytes, int, int, bytes, bytes, bytes, int, bytes, bytes]:
    """What both transcripts begin with, in their order."""
    return (
        challenge.service,
        challenge.negotiated_major,
        challenge.negotiated_minor,
        challenge.client_nonce,
        challenge.server_nonce,
        challenge.server_incarnation,
        challenge.channel_binding_kind,
        challenge.channel_binding,
        challenge.authority_public_key,
    )


def _server_transcript(challenge: WorkloadChallenge) -> bytes:
    return server_transcript(*_challenged(challenge))


def _client_transcript(challenge: WorkloadChallenge, key_id: bytes, requested_expiry: int, scopes: int) -> bytes:
    image = scopes.to_bytes(SCOPE_BYTES, "big")
    return client_transcript(*_challenged(challenge), challenge.authority_proof, key_id, requested_expiry, image)
