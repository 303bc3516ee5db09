"""The four coordinator digests (rows P8-06, P8-27, P9-14, P10-30).

Each preimage starts with an ASCII tag and one NUL.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from tests.interop.phux import records as r
from tests.interop.phux.enums import CommandKind, EffectKind
from tests.interop.phux.tlv import COUNTER, CUT, IDENT, U16, U64, closed, leaf


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def operation_preimage(
    kind: CommandKind, payload: bytes, preconditions: Sequence[r.Precondition] = (), extensions: bytes = b""
) -> bytes:
    """`payload` is the canonical payload, `extensions` the canonical unknown envelope fields in increasing id order."""
    return (
        b"phux-coordinator-operation/v1\0"
        + U16.write(0)
        + U16.write(1)
        + U16.write(kind)
        + leaf().write(payload)
        + r.PRECONDITIONS.write(preconditions)
        + leaf().write(extensions)
    )


def operation_digest(
    kind: CommandKind, payload: bytes, preconditions: Sequence[r.Precondition] = (), extensions: bytes = b""
) -> bytes:
    return sha256(operation_preimage(kind, payload, preconditions, extensions))


def effect_preimage(kind: EffectKind, target: r.PendingSpawn | r.ActiveBinding, payload: bytes) -> bytes:
    return (
        b"phux-coordinator-effect/v1\0"
        + closed(EffectKind, 1).write(kind)
        + r.within(r.EFFECT_TARGET).write(target)
        + leaf().write(payload)
    )


def _authority(guard: r.Guard) -> bytes:
    """Coordinator, epoch, activation: the guard without its token hash."""
    return (
        IDENT.write(guard.coordinator_id)
        + COUNTER.write(guard.authority_epoch)
        + COUNTER.write(guard.activation_sequence)
    )


def snapshot_preimage(guard: r.Guard, base_event_cut: int, records: Sequence[r.SnapshotRecord]) -> bytes:
    return (
        b"phux-coordinator-snapshot/v1\0"
        + _authority(guard)
        + CUT.write(base_event_cut)
        + U64.write(len(records))
        + b"".join(r.SNAPSHOT_RECORD.write(record) for record in records)
    )


def replay_preimage(
    guard: r.Guard, subscription_id: bytes, after: int, replay_cut: int, events: Sequence[r.ReplayEvent]
) -> bytes:
    return (
        b"phux-coordinator-replay/v1\0"
        + _authority(guard)
        + IDENT.write(subscription_id)
        + CUT.write(after)
        + CUT.write(replay_cut)
        + U64.write(len(events))
        + b"".join(r.REPLAY_EVENT.write(event) for event in events)
    )
