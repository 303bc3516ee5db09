"""Domain-separated preimages and their SHA-256.

Every argument named here as an id, nonce, key, proof or binding has a fixed width; a wrong width, or a variable
part that its length prefix cannot hold, raises ``ValueError``. Integers outside their field raise ``OverflowError``.
"""

from typing import final

from typing_extensions import Buffer

def sha256(data: Buffer) -> bytes:
    """SHA-256 of one buffer, 32 bytes."""

def operation_preimage(command_kind: int, payload: bytes, preconditions: bytes, count: int, extensions: bytes) -> bytes:
    """What names a command: kind, canonical payload, precondition images, unknown envelope fields (P8-06).

    ``preconditions`` are ``count`` images of 26 bytes, strictly ascending by (kind, id): ``ValueError`` otherwise.
    ``payload`` and ``extensions`` are canonical already (P8-07, P8-08). Nothing of the request, the guard or the
    operation id can enter (P8-09).
    """

def operation_digest(command_kind: int, payload: bytes, preconditions: bytes, count: int, extensions: bytes) -> bytes:
    """SHA-256 of ``operation_preimage`` (P8-06)."""

def effect_preimage(kind: int, target: bytes, payload: bytes) -> bytes:
    """What names a delegated effect: kind, target image, payload image (P8-27)."""

def effect_digest(kind: int, target: bytes, payload: bytes) -> bytes:
    """SHA-256 of ``effect_preimage`` (P8-27)."""

def snapshot_header(
    coordinator_id: bytes, epoch: int, activation: int, base_event_cut: int, record_count: int
) -> bytes:
    """What a snapshot digest begins with; an empty snapshot is this alone (P9-14, P9-15)."""

def replay_header(
    coordinator_id: bytes,
    epoch: int,
    activation: int,
    subscription_id: bytes,
    after: int,
    replay_cut: int,
    event_count: int,
) -> bytes:
    """What a replay digest begins with; an empty replay is this alone (P10-30, P10-31)."""

@final
class SnapshotDigest:
    """canonical_sha256 of a snapshot: fold its SnapshotRecord images in order, in constant memory (P9-14, P9-15)."""

    def __init__(
        self, coordinator_id: bytes, epoch: int, activation: int, base_event_cut: int, record_count: int
    ) -> None: ...
    def update(self, data: Buffer, /) -> None:
        """Fold the next record or page; where pages are cut does not matter."""
    def digest(self) -> bytes:
        """SHA-256 of everything folded so far; folding may go on."""

@final
class ReplayDigest:
    """Digest of a replay: fold its ReplayEvent images in order, in constant memory (P10-30, P10-31)."""

    def __init__(
        self,
        coordinator_id: bytes,
        epoch: int,
        activation: int,
        subscription_id: bytes,
        after: int,
        replay_cut: int,
        event_count: int,
    ) -> None: ...
    def update(self, data: Buffer, /) -> None:
        """Fold the next event or page; where pages are cut does not matter."""
    def digest(self) -> bytes:
        """SHA-256 of everything folded so far; folding may go on."""

def certificate_preimage(body: bytes) -> bytes:
    """The 176 bytes that the witness signs, from the first 145 of a certificate (P12-07)."""

def server_transcript(
    service: bytes,
    major: int,
    minor: int,
    client_nonce: bytes,
    server_nonce: bytes,
    incarnation: bytes,
    binding_kind: int,
    binding: bytes,
    authority_key: bytes,
) -> bytes:
    """SERVER_TRANSCRIPT, the message that the authority key signs (W4-01)."""

def client_transcript(
    service: bytes,
    major: int,
    minor: int,
    client_nonce: bytes,
    server_nonce: bytes,
    incarnation: bytes,
    binding_kind: int,
    binding: bytes,
    authority_key: bytes,
    authority_proof: bytes,
    key_id: bytes,
    requested_expiry: int,
    scope: bytes,
) -> bytes:
    """CLIENT_TRANSCRIPT, the message that the workload key signs (W4-03)."""

def uds_peer_preimage(server_nonce: bytes, uid: int, gid: int, pid: int) -> bytes:
    """Preimage of the channel binding of a Unix socket (W5-08)."""

def uds_peer_binding(server_nonce: bytes, uid: int, gid: int, pid: int) -> bytes:
    """Channel binding of a Unix socket: SHA-256 over nonce and peer credentials (W5-08)."""

def tls_context_preimage(service: bytes, major: int, minor: int) -> bytes:
    """Preimage of the TLS exporter context (W5-03)."""

def tls_context(service: bytes, major: int, minor: int) -> bytes:
    """Context of the TLS exporter, 32 bytes (W5-03)."""
