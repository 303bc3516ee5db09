"""Keys and tokens on disk: made once, kept, made again when they were lost, never replaced."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from sidecar.base.safefile import UnsafeFile, write_private
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.space.audit import audit
from sidecar.rails.space.broker_config import MAX_CONTROL_LINE, MAX_PAYLOAD, trust_section
from sidecar.rails.space.claims import AccountClaims, OperatorClaims, UserClaims, decode, trusted_user
from sidecar.rails.space.grants import GrantRefused
from sidecar.rails.space.holder import Form, Holder, Profile
from sidecar.rails.space.nkeys import ACCOUNT, USER, KeyPair
from sidecar.rails.space.trust import BrokerTrust, SpaceTrust, new_user

NOW = 1_800_000_000


@pytest.fixture
def trust(tmp_path: Path) -> BrokerTrust:
    return BrokerTrust.open(tmp_path / "trust", os.urandom)


@pytest.fixture
def space(tmp_path: Path) -> SpaceTrust:
    return SpaceTrust.open(tmp_path / "main", "main", os.urandom)


def account(token: str) -> AccountClaims:
    claims = decode(token, "account").claims
    assert isinstance(claims, AccountClaims)
    return claims


def test_a_trust_is_made_once(tmp_path: Path, trust: BrokerTrust) -> None:
    again = BrokerTrust.open(tmp_path / "trust", os.urandom)
    assert (again.operator, again.system_account) == (trust.operator, trust.system_account)
    assert again.operator_token(NOW + 5) == trust.operator_token(NOW)
    assert again.system_account_token(NOW) == trust.system_account_token(NOW + 5)
    claims = decode(trust.operator_token(NOW), "operator").claims
    assert isinstance(claims, OperatorClaims)
    assert claims.system_account == trust.system_account
    assert claims.signing_keys == (trust.account_issuer,)
    assert trust.account_issuer != trust.operator
    for path in (tmp_path / "trust").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.req("C9-02")
def test_a_lost_token_is_made_again_from_the_kept_keys(tmp_path: Path, trust: BrokerTrust, space: SpaceTrust) -> None:
    before = account(space.account_token(trust, NOW))
    (tmp_path / "main" / "account.jwt").unlink()
    again = SpaceTrust.open(tmp_path / "main", "main", os.urandom)
    assert account(again.account_token(trust, NOW + 9)) == before
    assert before.subject not in before.signing_keys


@pytest.mark.parametrize("name", ["account.nk", "signing.nk"])
def test_a_key_file_of_another_content_is_refused_and_left(tmp_path: Path, space: SpaceTrust, name: str) -> None:
    path = tmp_path / "main" / name
    for content in (b"", KeyPair.generate(USER, os.urandom).seed_text().reveal(), path.read_bytes()[:-1] + b"1"):
        write_private(path, content)
        with pytest.raises(UnsafeFile) as caught:
            SpaceTrust.open(tmp_path / "main", "main", os.urandom)
        assert path.read_bytes() == content
        assert not content or content.decode()[4:] not in str(caught.value)


@pytest.mark.parametrize("name", ["account.nk", "signing.nk"])
def test_a_key_that_is_lost_is_not_made_again_once_its_account_has_a_token(
    tmp_path: Path, trust: BrokerTrust, space: SpaceTrust, name: str
) -> None:
    path = tmp_path / "main" / name
    kept = path.read_bytes()
    space.account_token(trust, NOW)
    path.unlink()
    with pytest.raises(UnsafeFile, match=f"{name} is missing"):
        SpaceTrust.open(tmp_path / "main", "main", os.urandom)
    assert not path.exists()
    write_private(path, kept)
    assert SpaceTrust.open(tmp_path / "main", "main", os.urandom).account == space.account


@pytest.mark.parametrize("name", ["operator.nk", "operator-signing.nk", "system.nk", "system-signing.nk"])
def test_a_key_that_is_lost_is_not_made_again_once_its_trust_has_made_tokens(tmp_path: Path, name: str) -> None:
    root = tmp_path / "lost"
    BrokerTrust.open(root, os.urandom)
    (root / name).unlink()
    trust = BrokerTrust.open(root, os.urandom)  # nothing was made with it yet
    trust.operator_token(NOW)
    (root / name).unlink()
    with pytest.raises(UnsafeFile, match=f"{name} is missing"):
        BrokerTrust.open(root, os.urandom)
    assert not (root / name).exists()


def test_a_token_file_of_another_content_is_refused_and_left(
    tmp_path: Path, trust: BrokerTrust, space: SpaceTrust
) -> None:
    path = tmp_path / "main" / "account.jwt"
    for content in (b"x", b"\xff", trust.operator_token(NOW).encode()):
        write_private(path, content)
        with pytest.raises(UnsafeFile, match="token"):
            space.account_token(trust, NOW)
        assert path.read_bytes() == content


@pytest.mark.req("C9-44")
def test_a_revocation_stays_and_only_grows(tmp_path: Path, trust: BrokerTrust, space: SpaceTrust) -> None:
    one, two = new_user(os.urandom).public, new_user(os.urandom).public
    assert account(space.revoke(trust, one, NOW)).revocations == {one: NOW}
    assert account(space.revoke(trust, two, NOW + 1)).revocations == {one: NOW, two: NOW + 1}
    assert account(space.revoke(trust, one, NOW - 100)).revocations == {one: NOW, two: NOW + 1}
    again = SpaceTrust.open(tmp_path / "main", "main", os.urandom)
    assert account(again.account_token(trust, NOW)).revocations == {one: NOW, two: NOW + 1}
    assert account(again.account_token(trust, NOW, fresh=True)).revocations == {one: NOW, two: NOW + 1}


def test_no_two_tokens_of_an_account_are_of_one_second(trust: BrokerTrust, space: SpaceTrust) -> None:
    tokens = [space.account_token(trust, NOW)]
    tokens += [space.revoke(trust, new_user(os.urandom).public, NOW) for _ in range(3)]
    tokens.append(space.account_token(trust, NOW, fresh=True))
    issued = [decode(token, "account").issued_at for token in tokens]
    assert issued == [NOW, NOW + 1, NOW + 2, NOW + 3, NOW + 4]
    assert len({decode(token, "account").token_id for token in tokens}) == 5
    assert space.account_token(trust, NOW) == tokens[-1]


def test_another_operator_signs_the_account_again(tmp_path: Path, trust: BrokerTrust, space: SpaceTrust) -> None:
    first = space.account_token(trust, NOW)
    other = BrokerTrust.open(tmp_path / "other", os.urandom)
    second = space.account_token(other, NOW)
    assert decode(second, "account").issuer == other.account_issuer
    assert account(second) == account(first)


@pytest.mark.req("C9-02", "CB-119", "C2-13")
@pytest.mark.parametrize("profile", Profile)
def test_an_issued_credential_says_who_it_is_and_stands_the_audit(
    trust: BrokerTrust, space: SpaceTrust, profile: Profile
) -> None:
    key = new_user(os.urandom)
    life = Lifecycle(Principal("local", "alice"), "a" * 26)
    holder = Holder("main", life, key.public, Form.COMPATIBLE, ("x",), roles=("reviewer", "Night_Shift"))
    token = decode(space.issue(profile, holder, key, NOW, 60), "user")
    assert isinstance(token.claims, UserClaims)
    assert (token.claims.name, token.expires_at) == ("local-alice", NOW + 60)
    assert Principal.from_tags(token.claims.tags) == holder.lifecycle.principal
    assert token.claims.tags == (
        "owner:local",
        "actor:alice",
        "principal:local.alice",
        "space:main",
        "form:compatible",
        f"lifecycle:local.alice.{'a' * 26}",
        "role:reviewer",
        "role:Night_Shift",
    )
    assert audit(profile, holder, token.claims.permissions) == []
    operator = decode(trust.operator_token(NOW), "operator")
    assert trusted_user(token, decode(space.account_token(trust, NOW), "account"), operator)


@pytest.mark.req("C9-12", "CB-92")
def test_what_may_not_be_issued_is_refused(space: SpaceTrust) -> None:
    key, other = new_user(os.urandom), new_user(os.urandom)

    def issue(seconds: int = 60, name: str = "main", connection: str = key.public) -> str:
        holder = Holder(name, Lifecycle(Principal("local", "alice"), "a" * 26), connection)
        return space.issue(Profile.PROVISIONER, holder, key, NOW, seconds)

    assert issue(600)
    for wrong in ({"seconds": 601}, {"name": "other"}, {"connection": other.public}):
        with pytest.raises(GrantRefused):
            issue(**wrong)
    with pytest.raises(InvalidName):
        issue(name="a.b")


def test_the_brokers_section_names_the_floors() -> None:
    text = trust_section("operator-token", "SYSTEM", "system-token", Path("/x/accounts"))
    assert 'operator: "operator-token"' in text
    assert 'SYSTEM: "system-token"' in text
    for line in ("type: full", "allow_delete: true", 'dir: "/x/accounts"', "max_control_line: 65536"):
        assert line in text
    assert MAX_CONTROL_LINE == 65536
    assert MAX_PAYLOAD >= 256 * 1024 + 65536


def test_the_system_account_is_never_deleted(trust: BrokerTrust) -> None:
    with pytest.raises(ValueError, match="system account"):
        trust.sign_deletion(trust.system_account, NOW)
    assert trust.sign_deletion(KeyPair.generate(ACCOUNT, os.urandom).public, NOW)
