"""Our nkey text form against the nkeys package."""

from __future__ import annotations

import nkeys
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.base.ed25519 import SigningKey
from sidecar.base.secret import Secret
from sidecar.rails.space.nkeys import USER, crc16, public_nkey, seed_nkey


@given(st.binary(min_size=32, max_size=32))
def test_seed_and_public_key_are_read_by_the_nkeys_package(seed: bytes) -> None:
    pair = nkeys.from_seed(bytearray(seed_nkey(USER, Secret(seed)).reveal()))
    assert pair.public_key.decode() == public_nkey(USER, SigningKey(Secret(seed)).public_key)
    assert pair.public_key.startswith(b"U")


def test_crc_of_the_check_string() -> None:
    assert crc16(b"123456789") == 0x31C3


@pytest.mark.parametrize("size", [0, 31, 33])
def test_other_lengths_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match="32"):
        public_nkey(USER, bytes(size))
    with pytest.raises(ValueError, match="32"):
        seed_nkey(USER, Secret(bytes(size)))
