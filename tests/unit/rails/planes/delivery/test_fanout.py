"""The parts of the fan-out that need no broker."""

from __future__ import annotations

import pytest

from sidecar.ops.catalogue import CATALOGUE
from sidecar.rails.envelopes.backstop import Why, decode
from sidecar.rails.envelopes.receive import Reason
from sidecar.rails.messaging.frames import Frame
from sidecar.rails.names import headers
from sidecar.rails.names.limits import ACK_WAIT_MS
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.names.subjects import CHAT
from sidecar.rails.planes.delivery.broker import StreamState, differences, durable
from sidecar.rails.planes.delivery.catchup import evicted
from sidecar.rails.planes.delivery.fanout import copies_of, label, readers

ALICE, BOB = (Lifecycle(Principal("local", name), name[0] * 26) for name in ("alice", "bob"))
SUBJECT = CHAT.build(space="main", owner="local", actor="alice", channel="team.a")


@pytest.mark.req("C8-40")
def test_the_author_gets_no_copy_under_any_lifecycle() -> None:
    second = Lifecycle(ALICE.principal, "z" * 26)
    assert readers("local.alice", [ALICE, BOB, second]) == [BOB]


def test_each_member_has_a_copy_of_its_own() -> None:
    first, second = copies_of("main", SUBJECT, 7, "m1", Why.CHANNEL, [ALICE, BOB])
    assert first.subject == f"cotal.main.dinbox.local.alice.{ALICE.uid}"
    assert second.subject == f"cotal.main.dinbox.local.bob.{BOB.uid}"
    assert first.headers[headers.MESSAGE_ID] != second.headers[headers.MESSAGE_ID]
    assert decode(first.headers, "main") == decode(second.headers, "main")
    assert (first.why, copies_of("main", SUBJECT, 7, "m1", Why.CHANNEL, [BOB], "catch_up")[0].why) == (
        "channel",
        "catch_up",
    )


def test_every_reason_to_drop_has_a_series() -> None:
    (metric,) = (one for one in CATALOGUE if one.name == "sidecar_delivery_dropped")
    reasons = metric.labels[1].values
    assert {label(reason) for reason in Reason} <= set(reasons)


def test_a_durable_of_another_shape_differs() -> None:
    wanted = durable("fanout", "cotal.main.chat.>", {"deliver_policy": "new"})
    assert (wanted["ack_wait"], wanted["ack_policy"]) == (ACK_WAIT_MS * 1_000_000, "explicit")
    assert differences(wanted, {**wanted, "deliver_policy": "by_start_sequence", "opt_start_seq": 5}) == []
    for change in ({"filter_subject": "x"}, {"ack_policy": "none"}, {"ack_wait": 1}, {"max_deliver": 3}):
        assert len(differences(wanted, {**wanted, **change})) == 1
    for field in ("deliver_subject", "inactive_threshold", "headers_only", "mem_storage"):
        assert len(differences(wanted, {**wanted, field: 1})) == 1


def frame(sequence: int, subject: str = SUBJECT) -> Frame:
    return Frame(subject, b"", {}, sequence, 1, 0, 0)


@pytest.mark.req("C4-10")
def test_a_window_that_the_chat_stream_has_cut_is_seen() -> None:
    whole = StreamState(first=5, last=20, last_ms=0, keeps=None)
    assert not evicted(whole, 10, [])
    assert not evicted(whole, 4, [frame(5)])
    assert evicted(whole, 3, [])
    assert not evicted(StreamState(21, 20, 0, None), 20, [])
    bounded = StreamState(first=1, last=20, last_ms=0, keeps=2)
    assert evicted(bounded, 10, [frame(11), frame(12)])
    assert not evicted(bounded, 10, [frame(11), frame(12, SUBJECT + "b")])
