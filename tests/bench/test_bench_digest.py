"""Digests beside their oracle and the hash alone, over a preimage that is ready."""

from __future__ import annotations

import hashlib

import pytest

from cext import digest
from tests.bench.measure import report
from tests.oracles import digest as oracle


@pytest.mark.parametrize("size", [40, 1024, 131_072])
def test_operation_digest(capsys: pytest.CaptureFixture[str], size: int) -> None:
    payload = bytes(size)
    preimage = digest.operation_preimage(1, payload, b"", 0, b"")
    report(
        capsys,
        f"operation digest, payload of {size} bytes",
        {
            "cext.digest": lambda: digest.operation_digest(1, payload, b"", 0, b""),
            "plain Python": lambda: oracle.sha256(oracle.operation_preimage(1, payload, b"", 0, b"")),
            "floor: hashlib over the preimage": lambda: hashlib.sha256(preimage).digest(),
            "preimage alone": lambda: digest.operation_preimage(1, payload, b"", 0, b""),
        },
    )
    assert digest.operation_digest(1, payload, b"", 0, b"") == hashlib.sha256(preimage).digest()


@pytest.mark.parametrize(("records", "size"), [(1000, 60), (1000, 600), (8, 262_144)])
def test_snapshot_digest(capsys: pytest.CaptureFixture[str], records: int, size: int) -> None:
    domain = (b"\x11" * 16, 5, 7, 9)
    images = [bytes([index % 256]) * size for index in range(records)]
    joined = digest.snapshot_header(*domain, records) + b"".join(images)

    def fold() -> bytes:
        folded = digest.SnapshotDigest(*domain, records)
        for image in images:
            folded.update(image)
        return folded.digest()

    def plain() -> bytes:
        folded = hashlib.sha256(digest.snapshot_header(*domain, records))
        for image in images:
            folded.update(image)
        return folded.digest()

    report(
        capsys,
        f"snapshot digest, {records} records of {size} bytes",
        {
            "cext.digest": fold,
            "plain Python, hashlib per record": plain,
            "plain Python, joined": lambda: oracle.sha256(oracle.snapshot_preimage(*domain, images)),
            "floor: hashlib over the preimage": lambda: hashlib.sha256(joined).digest(),
        },
    )
    assert fold() == plain()


def test_transcript(capsys: pytest.CaptureFixture[str]) -> None:
    key = b"\xb1" * 32
    fields = (b"phux-coordinator", 0, 1, key, key, b"\x55" * 16, 1, key, key)
    report(
        capsys,
        "server transcript",
        {
            "cext.digest": lambda: digest.server_transcript(*fields),
            "plain Python": lambda: oracle.server_transcript(*fields),
            "floor: one copy of its size": lambda: bytearray(197),
        },
    )
