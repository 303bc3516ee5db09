"""Revocations in an account's token: bounded, and nothing that lives is ever good again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
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
