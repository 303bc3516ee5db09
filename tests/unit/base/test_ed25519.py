"""Strict Ed25519: published edge cases, crafted ones, and a plain-Python oracle."""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.base.ed25519 import (
    InvalidKey,
    InvalidSignature,
    SigningKey,
    check_public_key,
    digest_text,
    fingerprint,
    fresh_seed,
    parse_digest_text,
    verify,
)
from sidecar.base.secret import Secret
from tests.oracles import ed25519 as oracle

VECTORS = Path(__file__).parents[2] / "vectors"
GOLDEN = dict(
    line.split("\t") for line in (VECTORS / "coordinator.tsv").read_text(encoding="utf-8").splitlines() if "\t" in line
)
SPECCHECK: list[dict[str, Any]] = json.loads((VECTORS / "ed25519-speccheck.json").read_text())["cases"]
SMALL = [oracle.encode(point) for point in oracle.small_points()]
# y = 1 and y = -1 with the sign of x = 0 set, and y >= p: p, p + 1 (points of order 4 and 1), with either sign.
NON_CANONICAL = [
    (oracle.P - 1 | 1 << 255).to_bytes(32, "little"),
    (1 | 1 << 255).to_bytes(32, "little"),
    *((y | sign << 255).to_bytes(32, "little") for y in range(oracle.P, 2**255) for sign in (0, 1)),
]
OFF_CURVE = next(d for y in range(2, 99) if oracle.decode_leniently(d := y.to_bytes(32, "little")) is None)
PAYLOAD = b"payload"


def accepts(public_key: bytes, message: bytes, signature: bytes) -> bool:
    try:
        check_public_key(public_key)
        verify(public_key, message, signature)
    except (InvalidKey, InvalidSignature):
        return False
    return True


def verifies(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """``verify`` alone: it must be strict without the help of ``check_public_key``."""
    try:
        verify(public_key, message, signature)
    except InvalidSignature:
        return False
    return True


@pytest.mark.req("W1-09", "W1-10", "W1-11", "W1-12", "W1-13", "W1-14", "W10-05")
def test_speccheck_verdicts() -> None:
    verdicts = [
        verifies(*(bytes.fromhex(case[part]) for part in ("public_key", "message", "signature"))) for case in SPECCHECK
    ]
    assert "".join("XV"[verdict] for verdict in verdicts) == "XXXVXXXXXXXX"


def test_speccheck_is_the_published_table() -> None:
    """Guards the vectors themselves: the permissive equation holds exactly where the paper says so."""
    cases = [[bytes.fromhex(case[part]) for part in ("public_key", "message", "signature")] for case in SPECCHECK]
    assert [oracle.cofactored(*case) for case in cases] == [True] * 8 + [False, True, True, True]
    assert [oracle.cofactored(*case, reencode=True) for case in cases] == [True] * 9 + [False, True, True]
    assert [oracle.strict(*case) for case in cases] == [case["strict"] for case in SPECCHECK]


@pytest.mark.req("W1-08", "W1-14", "W10-05")
def test_wycheproof() -> None:
    document = json.loads((VECTORS / "wycheproof" / "ed25519_test.json").read_text())
    checked = 0
    for group in document["testGroups"]:
        key = bytes.fromhex(group["publicKey"]["pk"])
        for case in group["tests"]:
            expected = case["result"] == "valid"
            got = accepts(key, bytes.fromhex(case["msg"]), bytes.fromhex(case["sig"]))
            assert got == expected, f"case {case['tcId']}: {case['comment']}"
            checked += 1
    assert checked == document["numberOfTests"]


@pytest.mark.req("W1-11", "W2-19")
@pytest.mark.parametrize("point", SMALL, ids=bytes.hex)
def test_small_order_keys_are_refused(point: bytes) -> None:
    with pytest.raises(InvalidKey, match="small order"):
        check_public_key(point)


@pytest.mark.req("W1-11")
@pytest.mark.parametrize("point", SMALL, ids=bytes.hex)
def test_a_signature_under_a_small_order_key_is_refused(point: bytes) -> None:
    # With A small, S = k * 0 + r satisfies the equation for some r as soon as k * A cancels: try until it does.
    small = oracle.decode(point)
    assert small is not None
    for r in range(1, 200):
        public_key, signature = oracle.sign_with(0, r, PAYLOAD, torsion_a=small)
        if oracle.multiply(oracle.challenge(signature[:32], public_key, PAYLOAD), small) == oracle.IDENTITY:
            break
    else:
        pytest.fail("no case found")
    assert not verifies(public_key, PAYLOAD, signature)


@pytest.mark.req("W1-12", "W10-05")
def test_a_small_order_r_is_refused_even_when_the_equation_holds() -> None:
    # r = 0: R is the torsion point alone. With the identity the cofactorless equation holds as well.
    for torsion in oracle.small_points():
        public_key, signature = oracle.sign_with(7, 0, PAYLOAD, torsion_r=torsion)
        assert oracle.cofactored(public_key, PAYLOAD, signature)
        assert not verifies(public_key, PAYLOAD, signature)


@pytest.mark.req("W1-09", "W2-19")
@pytest.mark.parametrize("key", NON_CANONICAL, ids=bytes.hex)
def test_non_canonical_keys_are_refused(key: bytes) -> None:
    with pytest.raises(InvalidKey, match="canonically"):
        check_public_key(key)
    assert not verifies(key, PAYLOAD, bytes(64))


@pytest.mark.req("W1-10")
@pytest.mark.parametrize("r_bytes", NON_CANONICAL, ids=bytes.hex)
def test_non_canonical_r_is_refused(r_bytes: bytes) -> None:
    r_point = oracle.decode_leniently(r_bytes)
    if r_point is None:
        assert not verifies(SigningKey(Secret(bytes([5]) * 32)).public_key, PAYLOAD, r_bytes + bytes(32))
        return
    # Every non-canonical encoding on the curve names a point of small order, or one whose logarithm nobody knows; for
    # the small ones S is computable: S = k * a, hashed over the bytes as received.
    public_key = oracle.encode(oracle.multiply(7, oracle.BASE))
    k = oracle.challenge(r_bytes, public_key, PAYLOAD)
    signature = r_bytes + (k * 7 % oracle.L).to_bytes(32, "little")
    assert oracle.cofactored(public_key, PAYLOAD, signature) == oracle.is_small(r_point)
    assert not verifies(public_key, PAYLOAD, signature)


@pytest.mark.req("W1-13", "W10-05")
def test_s_outside_its_range_is_refused() -> None:
    key = SigningKey(Secret(bytes([9]) * 32))
    signature = key.sign(PAYLOAD)
    s = int.from_bytes(signature[32:], "little")
    for multiple in range(1, 16):
        shifted = s + multiple * oracle.L
        if shifted < 2**256:
            assert not verifies(key.public_key, PAYLOAD, signature[:32] + shifted.to_bytes(32, "little"))
    assert verifies(key.public_key, PAYLOAD, signature)


@pytest.mark.req("W2-19")
def test_off_curve_and_wrong_length_keys_are_refused() -> None:
    with pytest.raises(InvalidKey, match="not a point"):
        check_public_key(OFF_CURVE)
    for length in (0, 31, 33, 64):
        with pytest.raises(InvalidKey, match="32 bytes"):
            check_public_key(bytes(length))


@pytest.mark.req("W1-14")
@pytest.mark.parametrize("torsion", oracle.small_points()[1:], ids=lambda point: oracle.encode(point).hex()[:8])
def test_mixed_order_keys_are_acceptable_points(torsion: oracle.Point) -> None:
    check_public_key(oracle.encode(oracle.add(oracle.multiply(12345, oracle.BASE), torsion)))


@pytest.mark.req("W1-14")
@settings(max_examples=60, deadline=None)
@given(
    a=st.integers(0, oracle.L - 1),
    r=st.integers(0, oracle.L - 1),
    torsion_a=st.integers(0, 7),
    torsion_r=st.integers(0, 7),
    message=st.binary(max_size=40),
    extra=st.integers(0, 8),
)
def test_acceptance_equals_the_oracle(
    a: int, r: int, torsion_a: int, torsion_r: int, message: bytes, extra: int
) -> None:
    small = oracle.small_points()
    public_key, signature = oracle.sign_with(a, r, message, torsion_a=small[torsion_a], torsion_r=small[torsion_r])
    s = int.from_bytes(signature[32:], "little") + extra * oracle.L * (extra > 4)
    signature = signature[:32] + s.to_bytes(32, "little")
    assert verifies(public_key, message, signature) == oracle.strict(public_key, message, signature)


@settings(max_examples=100, deadline=None)
@given(data=st.one_of(st.binary(min_size=32, max_size=32), st.sampled_from([*SMALL, *NON_CANONICAL, OFF_CURVE])))
def test_acceptable_keys_equal_the_oracle(data: bytes) -> None:
    point = oracle.decode(data)
    expected = point is not None and not oracle.is_small(point)
    try:
        check_public_key(data)
    except InvalidKey:
        assert not expected
    else:
        assert expected


@pytest.mark.req("W1-08")
def test_signatures_are_pure_ed25519_over_the_exact_bytes() -> None:
    key = SigningKey(Secret(bytes([0xA1]) * 32))
    message = bytes.fromhex(GOLDEN["SERVER_TRANSCRIPT (UDS)"])
    signature = key.sign(message)
    assert key.public_key.hex() == GOLDEN["authority public key (seed a1*32)"]
    assert signature.hex() == GOLDEN["authority_proof"]
    assert not verifies(key.public_key, hashlib.sha512(message).digest(), signature)
    assert not verifies(key.public_key, message + b"\0", signature)


@pytest.mark.parametrize("length", [0, 63, 65, 96])
def test_wrong_signature_lengths_are_refused(length: int) -> None:
    key = SigningKey(Secret(bytes([1]) * 32))
    assert not verifies(key.public_key, PAYLOAD, (key.sign(PAYLOAD) + bytes(64))[:length])


def test_every_refusal_reads_alike() -> None:
    key = SigningKey(Secret(bytes([1]) * 32))
    texts = set()
    for public_key, signature in [
        (key.public_key, bytes(64)),
        (key.public_key, bytes(3)),
        (SMALL[0], key.sign(PAYLOAD)),
        (key.public_key, key.sign(b"other")),
        (key.public_key, key.sign(PAYLOAD)[:32] + b"\xff" * 32),
    ]:
        with pytest.raises(InvalidSignature) as refused:
            verify(public_key, PAYLOAD, signature)
        texts.add((str(refused.value), refused.value.__suppress_context__))
    assert len(texts) == 1


@pytest.mark.req("W1-15")
def test_no_signature_primitive_of_our_own() -> None:
    """The product's module computes with bytes and comparisons only: no modular powers, no hash into a scalar."""
    tree = ast.parse(Path("sidecar/base/ed25519.py").read_text())
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert "pow" not in called
    assert not attributes & {"sha512", "blake2b", "crypto_scalarmult_ed25519_base_noclamp", "crypto_scalarmult_ed25519"}
    assert {"crypto_sign", "crypto_sign_open", "crypto_sign_seed_keypair"} <= attributes


@pytest.mark.req("W1-07", "W2-01", "W2-04")
def test_fingerprint_is_raw_sha256() -> None:
    authority = bytes.fromhex(GOLDEN["authority public key (seed a1*32)"])
    workload = bytes.fromhex(GOLDEN["workload public key (seed a2*32)"])
    assert fingerprint(authority).hex() == GOLDEN["authority fingerprint"]
    assert fingerprint(workload).hex() == GOLDEN["workload key_id"]
    assert len(fingerprint(authority)) == 32


@pytest.mark.req("W2-02")
def test_digest_text() -> None:
    digest = bytes.fromhex(GOLDEN["authority fingerprint"])
    assert digest_text(digest) == GOLDEN["authority fingerprint text"]
    assert digest_text(bytes(32)) == "sha256:" + "0" * 64
    with pytest.raises(ValueError, match="32 bytes"):
        digest_text(bytes(31))


@pytest.mark.req("W2-02")
@given(digest=st.binary(min_size=32, max_size=32))
def test_digest_text_round_trip(digest: bytes) -> None:
    assert parse_digest_text(digest_text(digest)) == digest


GOOD_TEXT = "sha256:" + "ab" * 32


@pytest.mark.req("W2-03")
@pytest.mark.parametrize(
    "text",
    [
        GOOD_TEXT.upper(),
        "sha256:" + "AB" * 32,
        "SHA256:" + "ab" * 32,
        "sha256:" + "ab" * 31 + "a",
        "sha256:" + "ab" * 33,
        "ab" * 32,
        "sha256:" + base64.b64encode(bytes(32)).decode(),
        GOOD_TEXT + " ",
        " " + GOOD_TEXT,
        GOOD_TEXT + "\n",
        "sha256:0x" + "ab" * 31,
        "sha512:" + "ab" * 32,
        "sha256-" + "ab" * 32,
        "sha256:" + "\uff41" * 64,
        "",
    ],
)
def test_other_digest_spellings_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="64 lowercase hex digits"):
        parse_digest_text(text)


@pytest.mark.req("W2-16")
def test_a_failing_random_source_is_fatal() -> None:
    def broken(_: int) -> bytes:
        raise OSError("no entropy")

    with pytest.raises(OSError, match="no entropy"):
        SigningKey.generate(broken)
    for bad in (lambda n: bytes(n), lambda n: os.urandom(n - 1), lambda n: b""):
        with pytest.raises(ValueError, match="random source"):
            fresh_seed(bad)


@pytest.mark.req("W2-16")
def test_the_seed_is_what_the_source_gives() -> None:
    asked: list[int] = []

    def entropy(size: int) -> bytes:
        asked.append(size)
        return bytes([0xA1]) * size

    assert SigningKey.generate(entropy).public_key.hex() == GOLDEN["authority public key (seed a1*32)"]
    assert asked == [32]
    assert SigningKey.generate(os.urandom).public_key != SigningKey.generate(os.urandom).public_key


def test_a_wrong_seed_length_is_refused() -> None:
    for length in (0, 31, 33, 64):
        with pytest.raises(InvalidKey, match="32 bytes"):
            SigningKey(Secret(b"x" * length))


def test_a_wiped_key_signs_nothing() -> None:
    key = SigningKey(Secret(bytes([1]) * 32))
    key.wipe()
    with pytest.raises(ValueError, match="wiped"):
        key.sign(PAYLOAD)
