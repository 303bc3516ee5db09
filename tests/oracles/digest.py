"""Plain-Python preimages, straight from the rows: the tests compare ``cext.digest`` with them."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable


def v16(data: bytes) -> bytes:
    return struct.pack(">H", len(data)) + data


def v32(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def operation_preimage(command_kind: int, payload: bytes, preconditions: bytes, count: int, extensions: bytes) -> bytes:
    return (
        b"phux-coordinator-operation/v1\0"
        + struct.pack(">HHH", 0, 1, command_kind)
        + v32(payload)
        + struct.pack(">H", count)
        + preconditions
        + v32(extensions)
    )


def effect_preimage(kind: int, target: bytes, payload: bytes) -> bytes:
    return b"phux-coordinator-effect/v1\0" + bytes([kind]) + v32(target) + v32(payload)


def snapshot_preimage(
    coordinator_id: bytes, epoch: int, activation: int, base_event_cut: int, records: Iterable[bytes]
) -> bytes:
    images = list(records)
    header = struct.pack(">16sQQQQ", coordinator_id, epoch, activation, base_event_cut, len(images))
    return b"phux-coordinator-snapshot/v1\0" + header + b"".join(images)


def replay_preimage(
    coordinator_id: bytes,
    epoch: int,
    activation: int,
    subscription_id: bytes,
    after: int,
    replay_cut: int,
    events: Iterable[bytes],
) -> bytes:
    images = list(events)
    header = struct.pack(
        ">16sQQ16sQQQ", coordinator_id, epoch, activation, subscription_id, after, replay_cut, len(images)
    )
    return b"phux-coordinator-replay/v1\0" + header + b"".join(images)


def certificate_preimage(body: bytes) -> bytes:
    return b"phux-coordinator-activation/v1\0" + body


def binding_fields(
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
    return (
        v16(service)
        + struct.pack(">HH", major, minor)
        + client_nonce
        + server_nonce
        + incarnation
        + bytes([binding_kind])
        + binding
        + authority_key
    )


def server_transcript(*fields: object) -> bytes:
    return b"phux-workload/v1\0server-proof\0" + binding_fields(*fields)  # type: ignore[arg-type]


def client_transcript(*fields: object) -> bytes:
    proof, key_id, expiry, scope = fields[9:]
    assert isinstance(proof, bytes)
    assert isinstance(key_id, bytes)
    assert isinstance(scope, bytes)
    shared = binding_fields(*fields[:9])  # type: ignore[arg-type]
    return b"phux-workload/v1\0client-proof\0" + shared + proof + key_id + struct.pack(">Q", expiry) + v32(scope)


def uds_peer_preimage(server_nonce: bytes, uid: int, gid: int, pid: int) -> bytes:
    return b"phux-workload/v1\0uds-peer\0" + server_nonce + struct.pack(">QQQ", uid, gid, pid)


def tls_context_preimage(service: bytes, major: int, minor: int) -> bytes:
    return b"phux-workload/v1\0tls-context\0" + v16(service) + struct.pack(">HH", major, minor)
