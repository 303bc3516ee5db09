"""What the trusted reader decides, and on which copies."""

from __future__ import annotations

import itertools

import pytest

from sidecar.rails.envelopes.backstop import Copy, Why
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.names.subjects import CHAT, delivery_of
from sidecar.rails.planes.delivery.loop import Defer, Drop, header_bytes
from sidecar.rails.planes.delivery.reader import LONGEST_WAIT, MOST_TRIES, judged, member_of, store_of
from sidecar.rails.space.acl import AclRow

BOB = Lifecycle(Principal("local", "bob"), "b" * 26)
SUBJECT = CHAT.build(space="main", owner="local", actor="alice", channel="team.a")
READS, ELSEWHERE, NOTHING = AclRow(("team.>",)), AclRow(("other",)), AclRow(())


def copy(why: Why) -> Copy:
    delivery = delivery_of(SUBJECT)
    assert delivery is not None
    return Copy(SUBJECT, delivery, 7, why)


@pytest.mark.req("C8-42", "C8-46", "C8-47", "C9-42")
def test_the_read_list_counts_always_and_the_interval_for_channel_copies() -> None:
    for row, member, why in itertools.product((READS, ELSEWHERE, NOTHING), (True, False), Why):
        decision = judged(row, member, copy(why), 1)
        if row is not READS:
            assert decision == Drop("acl")
        elif why is Why.CHANNEL and not member:
            assert decision == Drop("membership")
        else:
            assert decision is None


@pytest.mark.req("C8-42")
def test_a_lifecycle_that_nobody_knows_waits_for_a_bounded_number_of_times() -> None:
    waits = []
    for delivered in range(1, MOST_TRIES):
        decision = judged(None, True, copy(Why.CHANNEL), delivered)
        assert isinstance(decision, Defer)
        waits.append(decision.seconds)
    assert waits[:5] == [2, 4, 8, 16, 32]
    assert max(waits) == LONGEST_WAIT
    assert judged(None, True, copy(Why.MENTION), MOST_TRIES) == Drop("unknown_lifecycle")
    assert judged(None, True, copy(Why.MENTION), MOST_TRIES + 5) == Drop("unknown_lifecycle")


def test_a_copy_is_of_the_member_that_its_subject_names() -> None:
    assert member_of(f"cotal.main.dinbox.local.bob.{BOB.uid}") == BOB
    for subject in ("cotal.main.dinbox.local.bob", "cotal.main.dinbox.local.bob.x", "x", ""):
        assert member_of(subject) is None
    assert store_of("main", BOB) == f"cotal.main.dlv.local.bob.{BOB.uid}"


def test_headers_are_counted_as_the_broker_counts_them() -> None:
    block = b"NATS/1.0\r\nA: b\r\nName: value\r\n\r\n"
    assert header_bytes({"A": "b", "Name": "value"}) == len(block)
