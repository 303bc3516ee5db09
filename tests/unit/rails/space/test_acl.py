from __future__ import annotations

import json
from typing import Any

import pytest

from sidecar.rails.space.acl import MAX_ENTRIES, AclRow, InvalidRow

ROW = AclRow(("team.>", "general"), ("reviewer",), ("team.>", "general", "old"), 3, 1_796_000_000_123)


def stored(**more: Any) -> bytes:
    value = {"allowSubscribe": ["general"], "revision": 1, "updatedAt": 5, **more}
    return json.dumps({name: one for name, one in value.items() if one is not ...}).encode()


def test_a_row_is_read_as_it_was_written() -> None:
    assert AclRow.decode(ROW.encode()) == ROW
    assert json.loads(ROW.encode()) == {
        "allowSubscribe": ["team.>", "general"],
        "issuedAllowSubscribe": ["team.>", "general", "old"],
        "roles": ["reviewer"],
        "revision": 3,
        "updatedAt": 1_796_000_000_123,
    }
    assert b"issued" not in AclRow(("general",)).encode()


def test_a_row_of_another_provisioner_needs_no_roles_and_may_say_more() -> None:
    assert AclRow.decode(stored(more={"x": 1})) == AclRow(("general",), (), None, 1, 5)
    assert AclRow.decode(stored(allowSubscribe=[])).allow_subscribe == ()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"7",
        b'{"allowSubscribe":["a"],"allowSubscribe":["b"],"revision":1,"updatedAt":5}',
        stored(allowSubscribe=...),
        stored(allowSubscribe="general"),
        stored(allowSubscribe=None),
        stored(allowSubscribe=[7]),
        stored(allowSubscribe=["a..b"]),
        stored(allowSubscribe=["a b"]),
        stored(allowSubscribe=["a.>.b"]),
        stored(allowSubscribe=["a"] * (MAX_ENTRIES + 1)),
        stored(issuedAllowSubscribe=["a", {}]),
        stored(roles=["pro.be"]),
        stored(roles=None),
        stored(roles={"a": 1}),
        stored(revision=-1),
        stored(revision=True),
        stored(revision="1"),
        stored(revision=2**53),
        stored(updatedAt=...),
        stored(updatedAt=1.5),
    ],
)
def test_bytes_that_are_no_row_are_refused_by_one_error(data: bytes) -> None:
    with pytest.raises(InvalidRow):
        AclRow.decode(data)


@pytest.mark.req("C9-07", "C7-42")
def test_a_channel_or_family_is_read_when_one_entry_contains_it() -> None:
    row = AclRow(("team.>", "perm.*", "a.b"))
    for inside in ("team.x", "team.x.y", "team.>", "perm.x", "perm.*", "a.b"):
        assert row.reads(inside), inside
    for outside in ("team", "perm.>", "perm.x.y", "a", "a.b.c", ">", "other"):
        assert not row.reads(outside), outside
    assert AclRow((), ("reviewer",)).holds("reviewer")
    assert not AclRow((), ("reviewer",)).holds("Reviewer")


@pytest.mark.req("CB-76", "CD-04")
def test_a_fenced_row_reads_nothing_and_keeps_its_ceiling() -> None:
    fenced = ROW.fenced(9)
    assert fenced == AclRow((), (), ROW.issued, 4, 9)
    assert AclRow(("general",), ("r",)).fenced(9).issued == ("general",)
    assert fenced.fenced(10).issued == ROW.issued


def test_a_row_made_anew_has_the_new_ceiling() -> None:
    assert ROW.fenced(9).changed(("x",), ("y",), 10) == AclRow(("x",), ("y",), ("x",), 5, 10)
