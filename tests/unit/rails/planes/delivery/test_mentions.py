"""Who is meant by a mentioned name."""

from __future__ import annotations

import pytest

from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.planes.delivery.mentions import MAX_NAMES, Names, Outcome, resolve
from sidecar.rails.space.acl import AclRow

BOB = Lifecycle(Principal("local", "bob"), "b" * 26)
EVE = Lifecycle(Principal("local", "eve"), "e" * 26)
ROWS = {"local.bob": (BOB, AclRow(("team.>",))), "local.eve": (EVE, AclRow(("other",)))}


def names(*pairs: tuple[str, str]) -> Names:
    made = Names()
    for principal, name in pairs:
        made.put(principal, name)
    return made


def outcomes(known: Names, *mentioned: str, author: str = "local.alice") -> list[tuple[Outcome, Lifecycle | None]]:
    return list(resolve(known, mentioned, "team.a", author, ROWS.get))


@pytest.mark.req("C4-13", "C4-15", "C4-16")
@pytest.mark.parametrize("spelled", ["bob", "Bob", " BOB "])
def test_one_live_peer_of_the_name_is_meant(spelled: str) -> None:
    assert outcomes(names(("local.bob", "Bob")), spelled) == [(Outcome.RESOLVED, BOB)]


@pytest.mark.req("C4-15")
def test_nobody_is_meant_by_a_name_of_none_or_of_several() -> None:
    assert outcomes(names(), "bob") == [(Outcome.UNKNOWN, None)]
    assert outcomes(names(("local.bob", "bob"), ("local.eve", "BOB")), "bob") == [(Outcome.AMBIGUOUS, None)]


@pytest.mark.req("C4-14", "C9-43")
def test_who_may_not_read_the_channel_is_not_reached() -> None:
    known = names(("local.eve", "eve"), ("local.ghost", "ghost"))
    assert outcomes(known, "eve", "ghost") == [(Outcome.UNREADABLE, None)] * 2


@pytest.mark.req("C4-14")
def test_the_resolved_instance_is_asked_and_not_the_name() -> None:
    assert outcomes(names(("local.eve", "bob")), "bob") == [(Outcome.UNREADABLE, None)]


@pytest.mark.req("C8-40")
def test_an_author_that_mentions_itself_has_no_copy() -> None:
    assert outcomes(names(("local.bob", "bob")), "bob", author="local.bob") == [(Outcome.AUTHOR, None)]


def test_a_name_counts_once_and_their_number_is_bounded() -> None:
    known = names(("local.bob", "bob"))
    assert outcomes(known, "bob", "Bob", "bob ") == [(Outcome.RESOLVED, BOB)]
    many = [f"n{number}" for number in range(MAX_NAMES)]
    assert len(outcomes(known, *many, "bob")) == MAX_NAMES
    assert all(outcome is Outcome.UNKNOWN for outcome, _ in outcomes(known, *many, "bob"))


def test_names_follow_their_peers() -> None:
    known = names(("local.bob", "bob"), ("local.eve", "bob"))
    known.put("local.eve", "eve")
    assert known.called("bob") == {"local.bob"}
    known.remove("local.bob")
    known.remove("local.bob")
    assert known.called("bob") == frozenset()
    assert known.called("EVE") == {"local.eve"}
