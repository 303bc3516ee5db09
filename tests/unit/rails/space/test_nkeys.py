"""Our nkey text form against the nkeys package, and every text that is none."""

from __future__ import annotations

import base64
import os
import traceback

import nkeys
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.base.ed25519 import SigningKey, verify
from sidecar.base.secret import Secret
from sidecar.rails.space.nkeys import (
    ACCOUNT,
    OPERATOR,
    USER,
    InvalidNkey,
    KeyPair,
    crc16,
    decode_public,
    decode_seed,
    public_nkey,
    seed_nkey,
)

ROLES = {OPERATOR: "O", ACCOUNT: "A", USER: "U"}
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"


@given(st.sampled_from(sorted(ROLES)), st.binary(min_size=32, max_size=32))
def test_seed_and_public_key_are_read_by_the_nkeys_package(role: int, seed: bytes) -> None:
    pair = nkeys.from_seed(bytearray(seed_nkey(role, Secret(seed)).reveal()))
    ours = KeyPair(role, Secret(seed))
    assert pair.public_key.decode() == ours.public == public_nkey(role, SigningKey(Secret(seed)).public_key)
    assert ours.public[0] == ROLES[role]
    assert pair.sign(b"text") == ours.sign(b"text")


@given(st.sampled_from(sorted(ROLES)), st.binary(min_size=32, max_size=32))
def test_what_is_written_is_read_back(role: int, seed: bytes) -> None:
    key = KeyPair(role, Secret(seed))
    again = KeyPair.from_seed_text(role, key.seed_text())
    assert again.public == key.public
    assert decode_seed(role, key.seed_text()) == Secret(seed)
    verify(decode_public(role, key.public), b"text", again.sign(b"text"))


def test_crc_of_the_check_string() -> None:
    assert crc16(b"123456789") == 0x31C3


@pytest.mark.parametrize("size", [0, 31, 33])
def test_other_lengths_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match="32"):
        public_nkey(USER, bytes(size))
    with pytest.raises(ValueError, match="32"):
        seed_nkey(USER, Secret(bytes(size)))


@pytest.mark.req("C2-11")
@pytest.mark.parametrize("role", sorted(ROLES))
def test_a_public_key_has_one_role_and_one_spelling(role: int) -> None:
    good = KeyPair.generate(role, os.urandom).public
    assert len(good) == 56
    for other in ROLES.keys() - {role}:
        with pytest.raises(InvalidNkey):
            decode_public(other, good)
    wrong = [good[:-1], good + "A", "", good.lower(), good[:-1] + "=", f" {good}"[:56], good[:20] + "1" + good[21:]]
    for text in [*wrong, good[:30] + "\ud800" + good[31:], good[:30] + "é" + good[31:]]:
        with pytest.raises(InvalidNkey):
            decode_public(role, text)


@given(st.integers(0, 55), st.sampled_from(ALPHABET))
def test_every_changed_letter_of_a_public_key_is_found(at: int, letter: str) -> None:
    good = KeyPair(USER, Secret(bytes(range(32)))).public
    text = good[:at] + letter + good[at + 1 :]
    if text == good:
        assert decode_public(USER, text)
    else:
        with pytest.raises(InvalidNkey):
            decode_public(USER, text)


@given(st.integers(0, 57), st.sampled_from(ALPHABET))
def test_every_changed_letter_of_a_seed_is_found(at: int, letter: str) -> None:
    good = seed_nkey(ACCOUNT, Secret(bytes(range(32)))).reveal().decode()
    text = good[:at] + letter + good[at + 1 :]
    if text == good:
        assert decode_seed(ACCOUNT, Secret(text.encode()))
    else:
        with pytest.raises(InvalidNkey):
            decode_seed(ACCOUNT, Secret(text.encode()))


def test_bits_that_base32_would_drop_make_another_text() -> None:
    good = seed_nkey(USER, Secret(bytes(32))).reveal()
    spare = bytes([good[-1]]).decode()
    twin = good[:-1] + ALPHABET[ALPHABET.index(spare) | 1].encode()
    assert twin != good
    assert base64.b32decode(twin + b"======") == base64.b32decode(good + b"======")
    with pytest.raises(InvalidNkey):
        decode_seed(USER, Secret(twin))


@pytest.mark.parametrize("size", [31, 33])
def test_a_longer_or_shorter_key_with_a_right_checksum_is_none(size: int) -> None:
    def text(prefix: bytes) -> bytes:
        data = prefix + bytes(range(size))
        return base64.b32encode(data + crc16(data).to_bytes(2, "little")).rstrip(b"=")

    with pytest.raises(InvalidNkey):
        decode_seed(USER, Secret(text(bytes([18 << 3 | USER >> 5, (USER & 31) << 3]))))
    with pytest.raises(InvalidNkey):
        decode_public(USER, text(bytes([USER])).decode())


def test_a_key_of_small_order_is_no_public_key() -> None:
    with pytest.raises(InvalidNkey, match="small order"):
        decode_public(USER, public_nkey(USER, bytes(32)))


def test_a_seed_of_another_role_is_refused_and_nothing_shows_it() -> None:
    text = seed_nkey(USER, Secret(bytes(range(32))))
    shown = ""
    for wrong, role in ((text, ACCOUNT), (Secret(text.reveal()[:-1] + b"1"), USER), (Secret(text.reveal()[:-1]), USER)):
        with pytest.raises(InvalidNkey) as caught:
            decode_seed(role, wrong)
        shown += "".join(traceback.format_exception(caught.value)) + repr(wrong)
    assert text.reveal().decode()[:20] not in shown
    key = KeyPair.from_seed_text(USER, text)
    assert text.reveal().decode()[2:] not in repr(key)


def test_a_wiped_pair_signs_nothing() -> None:
    key = KeyPair.generate(USER, os.urandom)
    key.wipe()
    with pytest.raises(ValueError, match="wiped"):
        key.sign(b"")
    with pytest.raises(ValueError, match="wiped"):
        key.seed_text()
