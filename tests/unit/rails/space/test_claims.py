"""Tokens: what we write, what we read, and what we refuse to make or to read."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from typing import Any

import nkeys
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.base.secret import Secret
from sidecar.rails.space.claims import (
    MAX_TOKEN_BYTES,
    NOTHING,
    Access,
    AccountClaims,
    AccountLimits,
    InvalidToken,
    OperatorClaims,
    Permissions,
    UserClaims,
    decode,
    encode_account,
    encode_account_deletion,
    encode_operator,
    encode_user,
    trusted_user,
)
from sidecar.rails.space.nkeys import ACCOUNT, OPERATOR, USER, KeyPair


def pair(role: int, number: int) -> KeyPair:
    return KeyPair(role, Secret(bytes([number]) * 32))


OP, OP_SIGN = pair(OPERATOR, 1), pair(OPERATOR, 2)
SYS, ACC, ACC_SIGN = pair(ACCOUNT, 3), pair(ACCOUNT, 4), pair(ACCOUNT, 5)
BOB = pair(USER, 6)

OPERATOR_CLAIMS = OperatorClaims("sidecar", OP.public, SYS.public, (OP_SIGN.public,))
ACCOUNT_CLAIMS = AccountClaims("main", ACC.public, (ACC_SIGN.public,), AccountLimits(disk_bytes=-1), {BOB.public: 99})
GRANTS = Permissions(Access(("a.>",), ("a.b",)), Access(("c.*",), ("c.*.>",)))
USER_CLAIMS = UserClaims("local-bob", BOB.public, ACC.public, GRANTS, ("owner:local", "principal:local.bob"))


def user_token(claims: UserClaims = USER_CLAIMS, key: KeyPair = ACC_SIGN, at: int = 1000, until: int = 1300) -> str:
    return encode_user(claims, key, at, until)


def payload(token: str) -> dict[str, Any]:
    part = token.split(".")[1]
    value: dict[str, Any] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return value


def signed(body: object, key: KeyPair, header: object = None) -> str:
    """A token with any content, properly signed."""

    def part(value: object) -> str:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    text = f"{part(header or {'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{part(body)}"
    return f"{text}.{part(key.sign(text.encode()))}"


def test_all_three_kinds_are_read_back() -> None:
    operator = decode(encode_operator(OPERATOR_CLAIMS, OP, 1), "operator")
    account = decode(encode_account(ACCOUNT_CLAIMS, OP_SIGN, 2), "account")
    user = decode(user_token(), "user")
    assert (operator.claims, account.claims, user.claims) == (OPERATOR_CLAIMS, ACCOUNT_CLAIMS, USER_CLAIMS)
    assert (operator.issued_at, account.issued_at, user.issued_at) == (1, 2, 1000)
    assert (operator.expires_at, account.expires_at, user.expires_at) == (None, None, 1300)
    assert (operator.issuer, account.issuer, user.issuer) == (OP.public, OP_SIGN.public, ACC_SIGN.public)


def test_fields_have_the_names_and_places_that_nats_uses() -> None:
    body = payload(user_token())
    assert list(body) == ["jti", "exp", "iat", "iss", "name", "sub", "nats"]
    assert body["nats"] == {
        "pub": {"allow": ["a.>"], "deny": ["a.b"]},
        "sub": {"allow": ["c.*"], "deny": ["c.*.>"]},
        "subs": -1,
        "data": -1,
        "payload": -1,
        "issuer_account": ACC.public,
        "tags": ["owner:local", "principal:local.bob"],
        "type": "user",
        "version": 2,
    }
    account = payload(encode_account(ACCOUNT_CLAIMS, OP_SIGN, 2))["nats"]
    assert account["signing_keys"] == [ACC_SIGN.public]
    assert account["revocations"] == {BOB.public: 99}
    assert account["limits"]["disk_storage"] == -1
    assert account["limits"]["disallow_bearer"] is True
    assert (account["limits"]["imports"], account["limits"]["exports"]) == (0, 0)
    operator = payload(encode_operator(OPERATOR_CLAIMS, OP, 1))["nats"]
    assert operator["system_account"] == SYS.public
    assert operator["strict_signing_key_usage"] is True
    assert payload(encode_account_deletion([ACC.public], OP, 3))["nats"]["accounts"] == [ACC.public]


def test_the_identifier_is_the_hash_of_the_registered_claims() -> None:
    # Worked out by hand from the rule of nats-io/jwt, with its escapes of < > &.
    token = user_token(UserClaims("<b&b>", BOB.public, ACC.public, GRANTS))
    text = (
        f'{{"exp":1300,"iat":1000,"iss":"{ACC_SIGN.public}","name":"\\u003cb\\u0026b\\u003e","sub":"{BOB.public}"}}'
    ).encode()
    expected = base64.b32encode(hashlib.new("sha512_256", text).digest()).rstrip(b"=").decode()
    assert payload(token)["jti"] == expected == decode(token, "user").token_id


def test_the_signature_is_one_that_the_nkeys_package_accepts() -> None:
    text, _, signature = user_token().rpartition(".")
    raw = base64.urlsafe_b64decode(signature + "==")
    assert nkeys.from_seed(bytearray(ACC_SIGN.seed_text().reveal())).verify(text.encode(), raw)


@pytest.mark.req("C13.12-05")
def test_equal_input_gives_equal_bytes() -> None:
    assert user_token() == user_token()


@pytest.mark.req("C9-02", "C9-03")
def test_trust_goes_from_the_operator_over_a_signing_key_to_the_user() -> None:
    operator = decode(encode_operator(OPERATOR_CLAIMS, OP, 1), "operator")
    account = decode(encode_account(ACCOUNT_CLAIMS, OP_SIGN, 2), "account")
    assert trusted_user(decode(user_token(), "user"), account, operator)
    assert not trusted_user(decode(user_token(key=ACC), "user"), account, operator), "the identity key signs no users"
    assert not trusted_user(decode(user_token(key=pair(ACCOUNT, 9)), "user"), account, operator)
    foreign = decode(encode_account(ACCOUNT_CLAIMS, pair(OPERATOR, 9), 2), "account")
    assert not trusted_user(decode(user_token(), "user"), foreign, operator)
    by_identity = decode(encode_account(ACCOUNT_CLAIMS, OP, 2), "account")
    assert not trusted_user(decode(user_token(), "user"), by_identity, operator), "only signing keys sign accounts"
    elsewhere = decode(encode_account(AccountClaims("x", SYS.public, (ACC_SIGN.public,)), OP_SIGN, 2), "account")
    assert not trusted_user(decode(user_token(), "user"), elsewhere, operator)
    assert not trusted_user(account, account, operator)
    assert not trusted_user(decode(user_token(), "user"), operator, operator)
    assert not trusted_user(decode(user_token(), "user"), account, account)


@pytest.mark.req("C9-13")
@pytest.mark.parametrize("access", [Access(), Access(deny=("a",))])
def test_a_user_without_limits_is_never_made(access: Access) -> None:
    for permissions in (Permissions(access, NOTHING), Permissions(NOTHING, access)):
        with pytest.raises(ValueError, match="without limits"):
            user_token(UserClaims("x", BOB.public, ACC.public, permissions))
    assert Permissions() == Permissions(NOTHING, NOTHING)


def test_a_user_without_an_end_is_never_made() -> None:
    for until in (999, 1000):
        with pytest.raises(ValueError, match="ends after"):
            user_token(until=until)
    assert decode(user_token(until=1001), "user").expires_at == 1001


def test_only_the_right_kind_of_key_signs() -> None:
    with pytest.raises(ValueError, match="sign"):
        user_token(key=OP)
    with pytest.raises(ValueError, match="sign"):
        encode_account(ACCOUNT_CLAIMS, ACC, 1)
    with pytest.raises(ValueError, match="sign"):
        encode_account_deletion([ACC.public], ACC, 1)
    with pytest.raises(ValueError, match="own claims"):
        encode_operator(OPERATOR_CLAIMS, OP_SIGN, 1)
    with pytest.raises(ValueError):
        encode_account(AccountClaims("x", BOB.public), OP, 1)


@pytest.mark.parametrize("name", ["", "a\nb", "a" * 257, "é"])
def test_a_name_is_short_printable_ascii(name: str) -> None:
    with pytest.raises(ValueError, match="printable"):
        user_token(UserClaims(name, BOB.public, ACC.public, GRANTS))
    assert decode(user_token(UserClaims("a" * 256, BOB.public, ACC.public, GRANTS)), "user")


@given(st.integers(0, 2000), st.integers(0, 255))
def test_every_changed_byte_is_found(at: int, byte: int) -> None:
    token = user_token()
    at %= len(token)
    changed = token[:at] + chr(byte) + token[at + 1 :]
    if changed == token:
        assert decode(changed, "user")
    else:
        with pytest.raises(InvalidToken):
            decode(changed, "user")


def test_another_spelling_of_the_same_bytes_is_refused() -> None:
    good = user_token()
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    twin = good[:-1] + alphabet[alphabet.index(good[-1]) | 1]
    assert twin != good
    assert base64.urlsafe_b64decode(twin[-86:] + "==") == base64.urlsafe_b64decode(good[-86:] + "==")
    with pytest.raises(InvalidToken, match="spelling"):
        decode(twin, "user")


@pytest.mark.parametrize("more", [b',"iat":1000}', b',"x":NaN}', b',"x":Infinity}', b',"x":{"a":1,"a":1}}'])
def test_json_that_others_read_otherwise_is_refused(more: bytes) -> None:
    body = json.dumps(good_user()).encode()[:-1]
    assert decode(signed(body + b',"x":1}', ACC_SIGN), "user")
    with pytest.raises(InvalidToken, match="JSON"):
        decode(signed(body + more, ACC_SIGN), "user")


def test_another_kind_is_refused() -> None:
    account = encode_account(ACCOUNT_CLAIMS, OP_SIGN, 2)
    for text, kind in (
        (account, "user"),
        (user_token(), "account"),
        (encode_operator(OPERATOR_CLAIMS, OP, 1), "account"),
    ):
        with pytest.raises(InvalidToken, match="kind"):
            decode(text, kind)  # type: ignore[arg-type]


def good_user() -> dict[str, Any]:
    return payload(user_token())


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("iat", "1"), ("iat", True), ("iat", 1.5), ("exp", "x"), ("jti", None), ("name", 7), ("sub", ACC.public),
        ("sub", None), ("iss", OP.public), ("iss", 5), ("iss", None), ("nats", []), ("nats", None),
    ],
)  # fmt: skip
def test_wrong_types_and_roles_of_registered_claims_are_refused(member: str, value: object) -> None:
    key = OP if value == OP.public else ACC_SIGN
    with pytest.raises(InvalidToken):
        decode(signed({**good_user(), member: value}, key), "user")


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("version", 1), ("type", "account"), ("pub", []), ("pub", {"allow": "a"}), ("sub", {"deny": [1]}),
        ("tags", "x"), ("tags", [None]), ("issuer_account", BOB.public), ("issuer_account", 1),
    ],
)  # fmt: skip
def test_wrong_user_claims_are_refused(member: str, value: object) -> None:
    body = good_user()
    body["nats"][member] = value
    with pytest.raises(InvalidToken):
        decode(signed(body, ACC_SIGN), "user")


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("limits", 3), ("limits", {"conn": "1"}), ("signing_keys", [{"kind": "user_scope", "key": ACC_SIGN.public}]),
        ("signing_keys", [BOB.public]), ("revocations", {"*": 1}), ("revocations", {BOB.public: None}),
        ("default_permissions", 1),
    ],
)  # fmt: skip
def test_wrong_account_claims_are_refused(member: str, value: object) -> None:
    body = payload(encode_account(ACCOUNT_CLAIMS, OP_SIGN, 2))
    body["nats"][member] = value
    with pytest.raises(InvalidToken):
        decode(signed(body, OP_SIGN), "account")


def test_an_operator_that_another_key_signed_is_refused() -> None:
    body = payload(encode_operator(OPERATOR_CLAIMS, OP, 1)) | {"iss": OP_SIGN.public}
    with pytest.raises(InvalidToken, match="own claims"):
        decode(signed(body, OP_SIGN), "operator")


def test_text_that_is_no_token_is_refused() -> None:
    good = user_token()
    header, body, signature = good.split(".")
    texts = [
        "",
        "a.b",
        f"{good}.x",
        f"{header}.{body}.",
        f"{header}.{body}.{signature}=",
        f"{header}.{body} .{signature}",
    ]
    texts += [
        signed(b"[]", ACC_SIGN),
        signed(b"\xff", ACC_SIGN),
        signed(b"[" * 5000, ACC_SIGN),
        signed(b"NaN", ACC_SIGN),
    ]
    texts += [signed(good_user(), ACC_SIGN, {"typ": "JWT", "alg": "none"}), signed(good_user(), pair(ACCOUNT, 77))]
    double = json.dumps(good_user())[:-1] + ',"sub":"x"}'
    texts += [signed(double.encode(), ACC_SIGN), signed(b'{"iss": NaN}', ACC_SIGN), "é.a.a", "A" * 5 + ".AAAA.AAAA"]
    for text in texts:
        with pytest.raises(InvalidToken):
            decode(text, "user")


def test_the_longest_token_is_read_and_one_byte_more_is_not() -> None:
    def of_length(name: int) -> str:
        return signed({**good_user(), "name": "x" * name}, ACC_SIGN)

    room = next(n for n in range(47000, 50000) if len(of_length(n)) > MAX_TOKEN_BYTES)
    assert decode(of_length(room - 1), "user")
    with pytest.raises(InvalidToken, match="at most"):
        decode(of_length(room), "user")


def test_a_user_that_the_account_itself_signed_names_no_account() -> None:
    body = good_user() | {"iss": ACC.public}
    del body["nats"]["issuer_account"]
    claims = decode(signed(body, ACC), "user").claims
    assert isinstance(claims, UserClaims)
    assert claims.issuer_account == ACC.public


def test_fresh_keys_differ() -> None:
    assert KeyPair.generate(USER, os.urandom).public != KeyPair.generate(USER, os.urandom).public
