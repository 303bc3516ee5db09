"""Digests of decoded messages: what identifies a command and an effect (P8-06..09, P8-27)."""

from __future__ import annotations

from cext import digest
from sidecar.coordinator.wire.frames import CoordCommand
from sidecar.coordinator.wire.payloads import decode_command
from sidecar.coordinator.wire.records import EffectAttempt, Precondition, encode_target


def canonical_command(payload: bytes | memoryview, kind: int) -> bytes:
    """``payload`` re-encoded canonically, its unknown fields kept (P8-08); raises like ``decode_command``."""
    return decode_command(kind, payload).body()


def precondition_images(preconditions: tuple[Precondition, ...]) -> bytes:
    """Concatenated images of 26 bytes, sorted by object: however they were sent, they mean the same (P8-03)."""
    return b"".join(sorted(precondition.encode() for precondition in preconditions))


def operation_digest_of(command: CoordCommand) -> bytes:
    """The digest that makes a command idempotent: kind, payload, preconditions, unknown fields (P8-06, P8-07).

    Request id, guard and operation id do not enter (P8-09). Raises like ``decode_command``.
    """
    return digest.operation_digest(
        command.command_kind,
        canonical_command(command.payload, command.command_kind),
        precondition_images(command.preconditions),
        len(command.preconditions),
        command.unknown(),
    )


def effect_digest_of(attempt: EffectAttempt) -> bytes:
    """The digest by which a target recognises a repeated effect (P8-27)."""
    return digest.effect_digest(attempt.kind, encode_target(attempt.target), attempt.payload)
