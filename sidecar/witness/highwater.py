"""The high-water file: what the database must at least contain (P12-09).

It is made durable before the commit that it announces and carries the record of that commit. So a database is either
level with it, or one commit behind because the process died in between (the record is then applied again), or it is an
older copy, and the witness refuses to serve.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Final

from sidecar.coordinator.wire.ids import (
    ActivationSequence,
    ActivationWitnessId,
    AuthorityEpoch,
    CoordinatorId,
    IncarnationId,
)
from sidecar.witness.state import Lease, Record

_MAGIC: Final = b"scwitn01"
_HEAD: Final = struct.Struct(">8s16sQ?")
_RECORD: Final = struct.Struct(">16s32sQQ16s32sQQ16sQ?")
_SUM_BYTES: Final = 32
MAX_BYTES: Final = _HEAD.size + _RECORD.size + _SUM_BYTES


@dataclass(frozen=True, slots=True)
class HighWater:
    """``generation`` counts the commits of this witness; ``pending`` is the record of the last one."""

    witness_id: ActivationWitnessId
    generation: int
    pending: Record | None = None

    def encode(self) -> bytes:
        """The file's content, closed by a checksum."""
        body = _HEAD.pack(_MAGIC, self.witness_id, self.generation, self.pending is not None)
        if self.pending is not None:
            body += _pack(self.pending)
        return body + hashlib.sha256(body).digest()

    @classmethod
    def decode(cls, data: bytes) -> HighWater:
        """Read the file's content; ValueError when it is not whole."""
        body, checksum = data[:-_SUM_BYTES], data[-_SUM_BYTES:]
        if hashlib.sha256(body).digest() != checksum or not body.startswith(_MAGIC):
            raise ValueError("is damaged")
        _, witness_id, generation, has_record = _HEAD.unpack_from(body)
        pending = _unpack(body[_HEAD.size :]) if has_record else None
        return cls(witness_id, generation, pending)


def _pack(record: Record) -> bytes:
    lease = record.lease
    return _RECORD.pack(
        record.coordinator_id,
        record.client_key,
        record.epoch,
        record.activation_sequence,
        lease.incarnation_id,
        lease.token_sha256,
        lease.issued_at,
        lease.expires_at,
        lease.boot_id,
        lease.boot_deadline_ns,
        lease.spent,
    )


def _unpack(image: bytes) -> Record:
    (
        coordinator_id,
        client_key,
        epoch,
        activation_sequence,
        incarnation_id,
        token_sha256,
        issued_at,
        expires_at,
        boot_id,
        boot_deadline_ns,
        spent,
    ) = _RECORD.unpack(image)
    lease = Lease(IncarnationId(incarnation_id), token_sha256, issued_at, expires_at, boot_id, boot_deadline_ns, spent)
    return Record(
        CoordinatorId(coordinator_id),
        client_key,
        AuthorityEpoch(epoch),
        ActivationSequence(activation_sequence),
        lease,
    )
