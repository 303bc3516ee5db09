"""What the servers say of the connections of an account: only a complete answer proves that somebody is gone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from sidecar.rails.names.principals import Principal
from sidecar.rails.planes.registration.census import PAGE, Census, enforced, servers_of
from sidecar.rails.space.trust import BrokerTrust, SpaceTrust, new_user

ANN = Principal("local", "ann")


def statistics(server: str, count: int) -> bytes:
    return json.dumps({"server": {"id": server}, "statsz": {"active_servers": count}}).encode()


def page(server: str, cids: range, total: int, offset: int = 0, **row: Any) -> bytes:
    rows = [{"cid": cid, **row} for cid in cids]
    return json.dumps(
        {"server": {"id": server}, "data": {"total": total, "offset": offset, "connections": rows}}
    ).encode()


@pytest.mark.req("C13.1-031", "C13.1-034")
def test_the_servers_say_how_many_they_are_and_must_agree() -> None:
    assert servers_of([statistics("a", 2)]) == 2
    assert servers_of([statistics("a", 2), statistics("b", 2)]) == 2
    assert servers_of([]) == 0
    assert servers_of([statistics("a", 2), statistics("b", 3)]) == 0
    assert servers_of([statistics("a", 1), statistics("b", 1)]) == 0
    assert servers_of([b"{", statistics("a", 1)]) == 0


@pytest.mark.req("C13.1-031", "C13.14-01")
def test_a_revocation_holds_when_every_server_knows_it(tmp_path: Path) -> None:
    trust, account = BrokerTrust.open(tmp_path / "t", os.urandom), SpaceTrust.open(tmp_path / "a", "main", os.urandom)
    ann, bob = new_user(os.urandom).public, new_user(os.urandom).public
    before = account.account_token(trust, 100).encode()
    token = account.revoke(trust, ann, 100, upto=2_000)
    this, later = token.encode(), account.revoke(trust, bob, 101).encode()
    assert enforced([this, this], token, [ann], 2)
    assert enforced([later, this], token, [ann], 2), "what another operation has added is in it too"
    assert not enforced([this], token, [ann], 2)
    assert not enforced([this, before], token, [ann], 2)
    assert not enforced([this, b"", b"no token"], token, [ann], 2)
    assert not enforced([this], later.decode(), [ann, bob], 1)
    shorter = SpaceTrust.open(tmp_path / "b", "main", os.urandom).revoke(trust, ann, 100, upto=1_999)
    assert not enforced([shorter.encode()], token, [ann], 1)


@pytest.mark.req("C13.1-031", "C13.1-051", "C13.14-01")
def test_a_census_over_pages_and_servers_sees_everybody() -> None:
    census = Census(2)
    census.take(page("a", range(PAGE), PAGE + 2))
    census.take(page("b", range(1), 1, authorized_user="UB", tags=list(ANN.tags)))
    assert census.turn()
    assert not census.complete
    assert json.loads(census.request())["offset"] == PAGE
    census.take(page("a", range(PAGE, PAGE + 2), PAGE + 2, PAGE, authorized_user="UA"))
    census.take(page("b", range(0), 1, PAGE))
    assert not census.turn()
    assert census.complete
    assert census.users == {"UA", "UB"}
    assert census.principals == {ANN}


@pytest.mark.req("C13.1-034")
@pytest.mark.parametrize(
    "answers",
    [
        [],
        [page("a", range(2), 2)],  # the other server is silent
        [page("a", range(1), 2), page("b", range(0), 0)],  # a connection is missing
        [page("a", range(0), 0), page("b", range(0), 0, 7)],  # another page
        [page("a", range(0), 0), page("a", range(0), 0)],  # one server twice
        [page("a", range(0), 0), b"{}"],
        [page("a", range(0), 0), b"no json"],
    ],
)
def test_a_census_that_misses_something_is_not_complete(answers: list[bytes]) -> None:
    census = Census(2)
    for answer in answers:
        census.take(answer)
    census.turn()
    assert not census.complete


@pytest.mark.req("C13.1-034")
def test_a_total_that_moves_between_pages_makes_a_census_incomplete() -> None:
    census = Census(1)
    census.take(page("a", range(PAGE), PAGE + 1))
    assert census.turn()
    census.take(page("a", range(PAGE, PAGE + 2), PAGE + 2, PAGE))
    assert not census.turn()
    assert not census.complete
