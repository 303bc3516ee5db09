"""cext.digest against its plain-Python oracle on arbitrary input."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cext import digest
from tests.oracles import digest as oracle

u8, u16, u64 = st.integers(0, 2**8 - 1), st.integers(0, 2**16 - 1), st.integers(0, 2**64 - 1)
id16, bytes32 = st.binary(min_size=16, max_size=16), st.binary(min_size=32, max_size=32)
data = st.binary(max_size=300)
preconditions = st.dictionaries(st.tuples(u16, id16), u64, max_size=8)
pages = st.lists(st.binary(max_size=200) | st.binary(min_size=4000, max_size=9000), max_size=8)


@pytest.mark.req("P8-06")
@given(kind=u16, payload=data, objects=preconditions, extensions=data)
@settings(max_examples=200, deadline=None)
def test_operation(kind: int, payload: bytes, objects: dict[tuple[int, bytes], int], extensions: bytes) -> None:
    images = b"".join(sorted(struct.pack(">H16sQ", *key, revision) for key, revision in objects.items()))
    fields = (kind, payload, images, len(objects), extensions)
    assert digest.operation_preimage(*fields) == oracle.operation_preimage(*fields)
    assert digest.operation_digest(*fields) == oracle.sha256(oracle.operation_preimage(*fields))


@pytest.mark.req("P8-27")
@given(kind=u8, target=data, payload=data)
@settings(max_examples=100, deadline=None)
def test_effect(kind: int, target: bytes, payload: bytes) -> None:
    assert digest.effect_preimage(kind, target, payload) == oracle.effect_preimage(kind, target, payload)
    assert digest.effect_digest(kind, target, payload) == oracle.sha256(oracle.effect_preimage(kind, target, payload))


@pytest.mark.req("P9-14")
@given(coordinator=id16, counters=st.tuples(u64, u64, u64), records=pages)
@settings(max_examples=100, deadline=None)
def test_snapshot(coordinator: bytes, counters: tuple[int, int, int], records: list[bytes]) -> None:
    fold = digest.SnapshotDigest(coordinator, *counters, len(records))
    for record in records:
        fold.update(record)
    assert fold.digest() == oracle.sha256(oracle.snapshot_preimage(coordinator, *counters, records))


@pytest.mark.req("P10-30")
@given(ids=st.tuples(id16, id16), domain=st.tuples(u64, u64), cuts=st.tuples(u64, u64), events=pages)
@settings(max_examples=100, deadline=None)
def test_replay(ids: tuple[bytes, bytes], domain: tuple[int, int], cuts: tuple[int, int], events: list[bytes]) -> None:
    fold = digest.ReplayDigest(ids[0], *domain, ids[1], *cuts, len(events))
    for event in events:
        fold.update(event)
    assert fold.digest() == oracle.sha256(oracle.replay_preimage(ids[0], *domain, ids[1], *cuts, events))


shared = st.tuples(data, u16, u16, bytes32, bytes32, id16, u8, bytes32, bytes32)


@pytest.mark.req("W4-01", "W4-03")
@given(fields=shared, proof=st.binary(min_size=64, max_size=64), key_id=bytes32, expiry=u64, scope=data)
@settings(max_examples=100, deadline=None)
def test_transcripts(
    fields: tuple[bytes, int, int, bytes, bytes, bytes, int, bytes, bytes],
    proof: bytes,
    key_id: bytes,
    expiry: int,
    scope: bytes,
) -> None:
    assert digest.server_transcript(*fields) == oracle.server_transcript(*fields)
    rest = (proof, key_id, expiry, scope)
    assert digest.client_transcript(*fields, *rest) == oracle.client_transcript(*fields, *rest)


@pytest.mark.req("P12-07", "W5-03", "W5-08")
@given(body=st.binary(min_size=145, max_size=145), nonce=bytes32, peer=st.tuples(u64, u64, u64), service=data)
@settings(max_examples=100, deadline=None)
def test_the_other_preimages(body: bytes, nonce: bytes, peer: tuple[int, int, int], service: bytes) -> None:
    assert digest.certificate_preimage(body) == oracle.certificate_preimage(body)
    assert digest.uds_peer_binding(nonce, *peer) == oracle.sha256(oracle.uds_peer_preimage(nonce, *peer))
    assert digest.tls_context(service, 0, 1) == oracle.sha256(oracle.tls_context_preimage(service, 0, 1))
