"""Revocations in an account's token: bounded, and nothing that lives is ever good again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.base.safefile import UnsafeFile
from sidecar.rails.space.claims import AccountClaims, decode
from sidecar.rails.space.trust import BrokerTrust, SpaceTrust, TooManyRevocations, new_user

NOW = 1_800_000_000
HOUR = 3600
FOR_GOOD = 2**53 - 1


class Account:
    def __init__(self, directory: Path) -> None:
        self.trust = BrokerTrust.open(directory / "trust", os.urandom)
        self.space = SpaceTrust.open(directory / "main", "main", os.urandom)

    def void(self, token: str) -> dict[str, int]:
        claims = decode(token, "account").claims
        assert isinstance(claims, AccountClaims)
        return dict(claims.revocations)

    def revoke(self, users: str | list[str], now: int, **more: int) -> dict[str, int]:
        return self.void(self.space.revoke(self.trust, users, now, **more))


def user() -> str:
    return new_user(os.urandom).public


@pytest.mark.req("C13.1-034")
def test_a_revocation_goes_an_hour_after_its_last_token_and_not_before(tmp_path: Path) -> None:
    account = Account(tmp_path)
    one, two, three = user(), user(), user()
    assert account.revoke(one, NOW, upto=FOR_GOOD, ends=NOW + 60) == {one: FOR_GOOD}
    assert account.revoke(two, NOW + 60 + HOUR, upto=FOR_GOOD, ends=NOW + 2 * HOUR) == {one: FOR_GOOD, two: FOR_GOOD}
    assert account.revoke(three, NOW + 61 + HOUR, ends=NOW + 2 * HOUR) == {two: FOR_GOOD, three: NOW + 61 + HOUR}


@pytest.mark.req("C13.1-043")
def test_a_revocation_for_good_stays_for_good_whatever_is_said_of_it_later(tmp_path: Path) -> None:
    account = Account(tmp_path)
    kept, other = user(), user()
    account.revoke(kept, NOW, upto=FOR_GOOD)
    account.revoke(kept, NOW, upto=FOR_GOOD, ends=NOW + 1)
    assert kept in account.revoke(other, NOW + 100 * HOUR, ends=NOW + 100 * HOUR)
    account.revoke(other, NOW + 100 * HOUR)
    assert {kept, other} <= account.revoke(user(), NOW + 1000 * HOUR).keys()


def test_many_users_are_voided_by_one_token_and_a_longer_end_wins(tmp_path: Path) -> None:
    account = Account(tmp_path)
    users = [user() for _ in range(5)]
    assert account.revoke(users, NOW, ends=NOW + 10) == dict.fromkeys(users, NOW)
    account.revoke(users[0], NOW, ends=NOW + 10 * HOUR)
    account.revoke(users[0], NOW, ends=NOW + 5)
    assert account.revoke([], NOW + 2 * HOUR) == {users[0]: NOW}


def test_the_second_of_a_token_is_that_of_the_clock_also_for_a_revocation_for_good(tmp_path: Path) -> None:
    account = Account(tmp_path)
    token = account.space.revoke(account.trust, user(), NOW, upto=FOR_GOOD)
    assert decode(token, "account").issued_at == NOW
    assert decode(account.space.revoke(account.trust, user(), NOW, upto=FOR_GOOD), "account").issued_at == NOW + 1


def test_a_file_that_cannot_be_read_ends_no_revocation(tmp_path: Path) -> None:
    account = Account(tmp_path)
    one = user()
    account.revoke(one, NOW, ends=NOW)
    path = tmp_path / "main" / "revocations.json"
    for text in ("{", "[]", '{"U": "soon"}'):
        path.write_text(text)
        path.chmod(0o600)
        with pytest.raises(UnsafeFile):
            account.revoke(user(), NOW + 100 * HOUR)
    path.unlink()
    assert one in account.revoke(user(), NOW + 100 * HOUR)


@settings(max_examples=40)  # each is up to twelve tokens on disk
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10 * HOUR), st.integers(0, 5 * HOUR)), max_size=12))
def test_no_key_with_a_token_that_lives_is_ever_good_again(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int, int]]
) -> None:
    account = Account(tmp_path_factory.mktemp("account"))
    users = [user() for _ in range(4)]
    ends: dict[str, int] = {}
    now = NOW
    for which, later, life in steps:
        now += later
        ends[users[which]] = max(ends.get(users[which], 0), now + life)
        void = account.revoke(users[which], now, upto=FOR_GOOD, ends=now + life)
        assert all(one in void for one, end in ends.items() if end >= now)


def test_a_token_that_nobody_could_read_again_is_never_written(tmp_path: Path) -> None:
    account = Account(tmp_path)
    users = [user() for _ in range(7_000)]
    assert len(account.revoke(users[:5_000], NOW, upto=FOR_GOOD, ends=NOW)) == 5_000
    path = tmp_path / "main" / "account.jwt"
    before = path.read_bytes()
    with pytest.raises(TooManyRevocations):
        account.revoke(users[5_000:], NOW, upto=FOR_GOOD, ends=NOW)
    assert path.read_bytes() == before
    assert account.revoke(users[5_000:], NOW + 2 * HOUR, ends=NOW).keys() == set(users[5_000:])


def copied(account: Account, directory: Path) -> Account:
    """The same space in another directory, as an operator copies it to a second host."""
    for part in ("trust", "main"):
        shutil.copytree(account.trust.root.parent / part, directory / part)
    return Account(directory)


@pytest.mark.req("C13.1-034", "C13.1-043")
def test_what_another_copy_of_the_directory_has_voided_stays_void(tmp_path: Path) -> None:
    here = Account(tmp_path)
    old, ended, principal, instance = user(), user(), user(), user()
    here.revoke(old, NOW - 10 * HOUR, upto=NOW - 9 * HOUR, ends=NOW - 9 * HOUR)
    there = copied(here, tmp_path / "copy")
    there.revoke(principal, NOW, upto=FOR_GOOD)
    known = there.space.revoke(there.trust, instance, NOW, upto=NOW + HOUR, ends=NOW + HOUR)
    assert here.space.adopt(here.trust, known, NOW)
    token = here.space.account_token(here.trust, NOW)
    assert {principal: FOR_GOOD, instance: NOW + HOUR}.items() <= here.void(token).items()
    assert decode(token, "account").issued_at > decode(known, "account").issued_at
    assert not here.space.adopt(here.trust, known, NOW)  # it knows all of it now
    # What ends by itself goes at its time here too, and does not come back from whoever has it still.
    later = here.revoke(ended, NOW + 3 * HOUR, upto=NOW + 4 * HOUR, ends=NOW + 4 * HOUR)
    assert later == {principal: FOR_GOOD, ended: NOW + 4 * HOUR}
    assert not here.space.adopt(here.trust, known, NOW + 3 * HOUR)


def test_nothing_is_adopted_of_a_token_that_is_not_ours(tmp_path: Path) -> None:
    here, other = Account(tmp_path / "here"), Account(tmp_path / "other")
    theirs = other.space.revoke(other.trust, user(), NOW, upto=FOR_GOOD)
    forged = other.trust.sign_account(
        AccountClaims("main", here.space.account, (), revocations={user(): FOR_GOOD}), NOW
    )
    operator = here.trust.operator_token(NOW)
    for known in ("", "no token", theirs, forged, operator, theirs[:-4]):
        assert not here.space.adopt(here.trust, known, NOW)
    assert here.void(here.space.account_token(here.trust, NOW)) == {}


def test_more_than_a_token_holds_is_not_adopted_in_part(tmp_path: Path) -> None:
    here = Account(tmp_path)
    there = copied(here, tmp_path / "copy")
    users = [user() for _ in range(9_000)]
    mine = here.revoke(users[:4_500], NOW, upto=FOR_GOOD)
    known = there.space.revoke(there.trust, users[4_500:], NOW, upto=FOR_GOOD)
    with pytest.raises(TooManyRevocations):
        here.space.adopt(here.trust, known, NOW)
    assert here.void(here.space.account_token(here.trust, NOW)) == mine
