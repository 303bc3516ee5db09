"""Bytes beside a message."""

from __future__ import annotations

import pytest

from sidecar.rails.envelopes.artifacts import digest_of, refer_to, verified
from sidecar.rails.envelopes.errors import EnvelopeError
from sidecar.rails.envelopes.message import ArtifactPart, decode, encode
from tests.unit.rails.envelopes.samples import UNICAST

EMPTY = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.mark.req("C5-10")
def test_the_digest_is_over_the_raw_bytes() -> None:
    assert digest_of(b"") == EMPTY
    assert digest_of(b"abc") == "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert refer_to(memoryview(b"xabc")[1:], "n", "m") == ArtifactPart("n", "m", digest_of(b"abc"), 3)
    message = UNICAST._replace(parts=(refer_to(b"", "empty", "text/plain"),))
    assert decode(encode(message, max_payload=1000)) == message


@pytest.mark.req("C5-13")
@pytest.mark.parametrize("data", [b"", b"ab", b"abd", b"abc\0", b"ABC"])
def test_altered_bytes_are_refused(data: bytes) -> None:
    part = refer_to(b"abc", "n", "m")
    assert verified(part, b"abc") == b"abc"
    with pytest.raises(EnvelopeError, match="digest"):
        verified(part, data)


@pytest.mark.req("C5-12")
def test_the_size_is_a_claim() -> None:
    part = refer_to(b"abc", "n", "m")
    for size in (0, 2, 10**15):
        assert verified(part._replace(size=size), b"abc") == b"abc"
