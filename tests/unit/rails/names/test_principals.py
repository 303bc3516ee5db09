"""Principals, their forms, owners, and the derived owner token (C2)."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from sidecar.base.secret import Secret
from sidecar.rails.names import InvalidName, Lifecycle, Principal, principals
from sidecar.rails.names.principals import OwnerKind, check_mintable, derive_owner, owner_kind, surfaces
from tests.unit.rails.names.samples import UID, sample

DERIVED = "u_" + "abcdefghijklmnopqrstuvwxyz"
PLATFORM = "p_" + "a" * 26
NKEY = "UAQGWOEVJKMIO4WXSYOTLARXYOZTCXFK67JASEH6AFFFYK6FOPSKQCAD"
SECRET = Secret(bytes(range(32)))


@pytest.mark.req("C2-02", "C2-05")
@pytest.mark.parametrize(
    "owner",
    [
        "u_" + "a" * 25,
        "u_" + "a" * 27,
        "u_" + "A" * 26,
        *("u_" + "a" * 25 + digit for digit in "0189"),
        "u_" + "a" * 25 + "\n",
        "v_" + "a" * 26,
        "U_" + "a" * 26,
        "",
        "Local",
        "local ",
        "alice",
        NKEY,
        None,
        7,
    ],
)
def test_an_owner_that_no_credential_may_carry(owner: object) -> None:
    assert owner_kind(owner) is None
    assert not surfaces(owner)
    for platform in (False, True):
        with pytest.raises(InvalidName):
            check_mintable(owner, platform=platform)


@pytest.mark.req("C2-02", "C2-06")
def test_owners_that_a_credential_may_carry() -> None:
    for owner, kind in (
        ("local", OwnerKind.LOCAL),
        (DERIVED, OwnerKind.DERIVED),
        ("u_" + "234567" * 4 + "zz", OwnerKind.DERIVED),
    ):
        assert check_mintable(owner) == owner
        assert owner_kind(owner) is kind
        assert surfaces(owner)


@pytest.mark.req("C3-09")
def test_a_platform_owner_is_minted_where_it_is_asked_for_and_never_shown() -> None:
    assert owner_kind(PLATFORM) is OwnerKind.PLATFORM
    assert not surfaces(PLATFORM)
    assert check_mintable(PLATFORM, platform=True) == PLATFORM
    with pytest.raises(InvalidName):
        check_mintable(PLATFORM)


@pytest.mark.req("C2-03", "C2-02")
def test_the_derived_owner_is_a_function_of_the_identity() -> None:
    mac = hmac.new(bytes(range(32)), b"cotal-owner-v1:user@example", hashlib.sha256).digest()[:16]
    digits = "abcdefghijklmnopqrstuvwxyz234567"
    number = int.from_bytes(mac, "big") << 2
    expected = "u_" + "".join(digits[number >> shift & 31] for shift in range(125, -1, -5))
    assert derive_owner(SECRET, "user@example") == expected
    assert owner_kind(expected) is OwnerKind.DERIVED
    assert derive_owner(SECRET, "user@example ") != expected
    assert derive_owner(Secret(b"x" * 32), "user@example") != expected
    assert base64.b32decode(expected[2:].upper() + "=" * 6) == mac


def test_the_derivation_needs_a_whole_secret_and_an_identity() -> None:
    assert derive_owner(Secret(b"s" * 33), "a") != derive_owner(Secret(b"s" * 32), "a")
    for secret, identity in ((b"s" * 31, "a"), (b"s" * 32, "")):
        with pytest.raises(ValueError, match="32 bytes"):
            derive_owner(Secret(secret), identity)


@pytest.mark.req("C2-09")
def test_both_forms_of_a_principal() -> None:
    one = Principal(DERIVED, "build_bot")
    assert (one.dot, one.dash) == (f"{DERIVED}.build_bot", f"{DERIVED}-build_bot")
    assert Principal.from_dot(one.dot) == Principal.from_dash(one.dash) == one
    assert principals.DOT.build(owner=DERIVED, actor="build_bot") == one.dot
    assert principals.DASH.build(owner=DERIVED, actor="build_bot") == one.dash


@pytest.mark.req("C2-09")
@pytest.mark.parametrize("text", ["a", "a.b.c", ".b", "a.", "a..b", "", "a-b", "a.b-c", "a.b\n", None, "a." + "b" * 65])
def test_no_dot_form(text: object) -> None:
    with pytest.raises(InvalidName):
        Principal.from_dot(text)


@pytest.mark.req("C2-09")
@pytest.mark.parametrize("text", ["a", "a-b-c", "-b", "a-", "a--b", "", "a.b", "a-b.c", "a-b\n", None, "a-" + "b" * 65])
def test_no_dash_form(text: object) -> None:
    with pytest.raises(InvalidName):
        Principal.from_dash(text)


@pytest.mark.req("C2-08")
@pytest.mark.parametrize("value", ["a-b", "a.b", "*", ">", "", 5, None, "é", "a" * 65])
def test_a_principal_is_refused_and_never_rewritten(value: object) -> None:
    with pytest.raises(InvalidName):
        Principal("local", value)  # type: ignore[arg-type]
    with pytest.raises(InvalidName):
        Principal(value, "alice")  # type: ignore[arg-type]


@pytest.mark.req("C8-34", "C8-27")
def test_both_forms_of_a_lifecycle() -> None:
    one = Lifecycle(Principal("local", "alice"), UID)
    assert (one.dot, one.dash) == (f"local.alice.{UID}", f"local-alice-{UID}")
    assert Lifecycle.from_dot(one.dot) == Lifecycle.from_dash(one.dash) == one
    assert one.names == {"owner": "local", "actor": "alice", "uid": UID}
    for text in ("local.alice", f"local.alice.{UID}.x", f"local.alice.{UID[:-1]}", f"local-alice-{UID}"):
        with pytest.raises(InvalidName):
            Lifecycle.from_dot(text)
    for text in ("local-alice", f"local-alice-{UID}-x", f"local-alice-{UID.upper()}", f"local.alice.{UID}"):
        with pytest.raises(InvalidName):
            Lifecycle.from_dash(text)
    with pytest.raises(InvalidName):
        Lifecycle(Principal("local", "alice"), "x" * 33)


def test_a_credential_names_its_principal_by_a_tag() -> None:
    one = Principal("local", "alice")
    assert one.tags == ("owner:local", "actor:alice", "principal:local.alice")
    assert Principal.from_tags([*one.tags, "other:x", "principal:", "principal:local.a-b"]) == one
    for tags in ([], ["owner:local", "actor:alice"], [*one.tags, "principal:local.bob"], ["principal:local.a.b"]):
        with pytest.raises(InvalidName):
            Principal.from_tags(tags)


def test_actors_with_a_fixed_spelling_are_actors() -> None:
    expected = {
        principals.SUPERVISOR_ACTOR: f"manager_{UID}",
        principals.SERVING_ACTOR: f"manager_serve_{UID}",
        principals.CHAT_SESSION_ACTOR: "chat_abcdefghijklmnopqrstuvwxyz",
        principals.APPLIER_ACTOR: "epapl_0a1b",
        principals.RECONCILER_ACTOR: "eprec_0a1b",
        principals.CANCELLER_ACTOR: "epcan_0a1b",
        principals.EXECUTOR_ACTOR: "epexe_0a1b",
    }
    assert {one: one.build(**sample(one)) for one in expected} == expected
    for template, actor in expected.items():
        assert Principal("local", actor).actor == actor
        assert [other for other in expected if other.fits(actor)] == [template]
    assert (
        principals.ANYCAST_NOTICE_ID.build(epoch_token="20261201T0310Z", sequence=9, n=1)
        == "anycast.20261201T0310Z.9.1"
    )
