"""Values of the golden vectors, computed by the product: certificate, channel bindings, transcripts, proofs."""

from __future__ import annotations

import hashlib
import hmac

from cext import digest
from sidecar.base.ed25519 import SigningKey, digest_text
from sidecar.base.secret import Secret
from sidecar.coordinator.wire import ids
from sidecar.coordinator.wire.enums import ChannelBinding, Scope
from sidecar.coordinator.wire.ids import Fingerprint, KeyId
from sidecar.coordinator.wire.limits import PROFILE, PROTOCOL, SERVICE
from sidecar.coordinator.wire.records import ActivationCertificate, WorkloadGrant, WorkloadOffer
from tests.vectors import inputs as fix
from tests.vectors.expected_images import Expected

WITNESS_KEY = SigningKey(Secret(fix.WITNESS_SEED))
AUTHORITY_KEY = SigningKey(Secret(fix.AUTHORITY_SEED))
WORKLOAD_KEY = SigningKey(Secret(fix.WORKLOAD_SEED))
EXPORTER_MASTER_SECRET = b"\xc3" * 32

WITNESS_PUBLIC = WITNESS_KEY.public_key
AUTHORITY_PUBLIC = AUTHORITY_KEY.public_key
WORKLOAD_PUBLIC = WORKLOAD_KEY.public_key
FINGERPRINT = digest.sha256(AUTHORITY_PUBLIC)
KEY_ID = digest.sha256(WORKLOAD_PUBLIC)
SCOPE_BYTES = fix.SCOPES.to_bytes(8, "big")


def certificate() -> ActivationCertificate:
    """The witness-signed certificate of epoch 5, activation 7."""
    unsigned = ActivationCertificate(
        fix.WITNESS,
        fix.COORDINATOR,
        fix.ACTIVATION,
        fix.EPOCH,
        fix.INCARNATION,
        fix.TOKEN,
        fix.ISSUED,
        fix.EXPIRES,
        KeyId(digest.sha256(WITNESS_PUBLIC)),
        bytes(64),
    )
    signature = WITNESS_KEY.sign(digest.certificate_preimage(unsigned.body()))
    return ActivationCertificate.decode(unsigned.body() + signature)


def uds_binding() -> bytes:
    return digest.uds_peer_binding(fix.SERVER_NONCE, fix.UID, fix.GID, fix.PID)


def _expand_label(secret: bytes, label: bytes, context: bytes) -> bytes:
    """HKDF-Expand-Label of TLS 1.3 for one block of SHA-256 (RFC 8446 7.1)."""
    full = b"tls13 " + label
    info = (32).to_bytes(2, "big") + bytes([len(full)]) + full + bytes([len(context)]) + context
    return hmac.new(secret, info + b"\x01", hashlib.sha256).digest()


def tls_binding() -> bytes:
    """TLS-Exporter with the profile as label and the product's context (W5-04)."""
    secret = _expand_label(EXPORTER_MASTER_SECRET, PROFILE, hashlib.sha256(b"").digest())
    context = hashlib.sha256(digest.tls_context(SERVICE, *PROTOCOL[:2])).digest()
    return _expand_label(secret, b"exporter", context)


def server_transcript(kind: ChannelBinding, binding: bytes) -> bytes:
    return digest.server_transcript(
        SERVICE,
        *PROTOCOL[:2],
        fix.CLIENT_NONCE,
        fix.SERVER_NONCE,
        fix.INCARNATION,
        kind,
        binding,
        AUTHORITY_PUBLIC,
    )


def authority_proof(kind: ChannelBinding, binding: bytes) -> bytes:
    return AUTHORITY_KEY.sign(server_transcript(kind, binding))


def client_transcript() -> bytes:
    return digest.client_transcript(
        SERVICE,
        *PROTOCOL[:2],
        fix.CLIENT_NONCE,
        fix.SERVER_NONCE,
        fix.INCARNATION,
        ChannelBinding.UDS_PEER,
        uds_binding(),
        AUTHORITY_PUBLIC,
        authority_proof(ChannelBinding.UDS_PEER, uds_binding()),
        KEY_ID,
        fix.REQUESTED_EXPIRY,
        SCOPE_BYTES,
    )


def workload_proof() -> bytes:
    return WORKLOAD_KEY.sign(client_transcript())


def offer() -> WorkloadOffer:
    return WorkloadOffer(fix.CLIENT_NONCE)


def grant() -> WorkloadGrant:
    return WorkloadGrant(ids.KeyId(KEY_ID), Fingerprint(FINGERPRINT), fix.GRANT_EXPIRY, Scope(fix.SCOPES))


def certificates() -> Expected:
    def preimage() -> bytes:
        return digest.certificate_preimage(certificate().body())

    return {
        "witness public key (seed a0*32)": (("P12-07",), WITNESS_PUBLIC.hex),
        "witness_key_id = SHA-256(pub)": (("P12-06",), lambda: certificate().witness_key_id.hex()),
        "AC preimage": (("P12-07",), lambda: preimage().hex()),
        "AC preimage SHA-256": (("P12-07",), lambda: digest.sha256(preimage()).hex()),
        "AC signature": (("P12-07",), lambda: certificate().signature.hex()),
        "AC certificate length": (("P12-06",), lambda: str(len(certificate().encode()))),
        "AC certificate SHA-256": (("P12-06",), lambda: digest.sha256(certificate().encode()).hex()),
    }


def proofs() -> Expected:
    uds, tls = ChannelBinding.UDS_PEER, ChannelBinding.TLS_EXPORTER
    return {
        "uds-peer preimage (uid 1000 gid 1000 pid 4242)": (
            ("W5-08",),
            lambda: digest.uds_peer_preimage(fix.SERVER_NONCE, fix.UID, fix.GID, fix.PID).hex(),
        ),
        "uds-peer channel_binding": (("W5-08",), lambda: uds_binding().hex()),
        "tls-context": (("W5-03",), lambda: digest.tls_context(SERVICE, *PROTOCOL[:2]).hex()),
        "TLS-Exporter over exporter_master_secret c3*32 (SHA-256 suite)": ((), lambda: tls_binding().hex()),
        "authority public key (seed a1*32)": (("W1-08",), AUTHORITY_PUBLIC.hex),
        "authority fingerprint": (("W1-07",), FINGERPRINT.hex),
        "authority fingerprint text": (("W2-02",), lambda: digest_text(FINGERPRINT)),
        "SERVER_TRANSCRIPT (UDS)": (("W4-01",), lambda: server_transcript(uds, uds_binding()).hex()),
        "SERVER_TRANSCRIPT SHA-256": (("W4-01",), lambda: digest.sha256(server_transcript(uds, uds_binding())).hex()),
        "SERVER_TRANSCRIPT length": (("W4-01",), lambda: str(len(server_transcript(uds, uds_binding())))),
        "authority_proof": (("W4-02", "W1-08"), lambda: authority_proof(uds, uds_binding()).hex()),
        "workload public key (seed a2*32)": (("W1-08",), WORKLOAD_PUBLIC.hex),
        "workload key_id": (("W1-07",), KEY_ID.hex),
        "CLIENT_TRANSCRIPT (UDS, scope 3, expiry 2000000000)": (("W4-03",), lambda: client_transcript().hex()),
        "CLIENT_TRANSCRIPT SHA-256": (("W4-03",), lambda: digest.sha256(client_transcript()).hex()),
        "CLIENT_TRANSCRIPT length": (("W4-03",), lambda: str(len(client_transcript()))),
        "workload_proof": (("W4-04", "W1-08"), lambda: workload_proof().hex()),
        "SERVER_TRANSCRIPT (TLS) SHA-256": (
            ("W4-01",),
            lambda: digest.sha256(server_transcript(tls, tls_binding())).hex(),
        ),
        "authority_proof (TLS)": (("W4-02",), lambda: authority_proof(tls, tls_binding()).hex()),
        "WorkloadOffer image": (("W7-05",), lambda: offer().encode().hex()),
        "WorkloadGrant image": (("W7-05",), lambda: grant().encode().hex()),
        "WorkloadOffer/WorkloadGrant lengths": (
            ("W7-05",),
            lambda: f"{len(offer().encode())}/{len(grant().encode())}",
        ),
    }
