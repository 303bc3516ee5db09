"""Ack subjects: taken apart only for the reader's own consumer, built again from five numbers and nothing else."""

from __future__ import annotations

import pytest

from sidecar.rails.names import InvalidName
from sidecar.rails.names.acks import AckTail, ack_subject, is_ack, parse_tail, tail_of

TAIL = "2.17.40.1795000000000000000.3"
SUBJECT = f"$JS.ACK.DM_main.dm_x.{TAIL}"


def test_a_tail_says_what_the_broker_knows_of_the_copy() -> None:
    tail = tail_of(SUBJECT, "DM_main", "dm_x")
    assert tail == AckTail(2, 17, 40, 1_795_000_000_000_000_000, 3)
    assert ack_subject("DM_main", "dm_x", tail.text) == SUBJECT


@pytest.mark.parametrize(
    "reply",
    [
        "", "x", f"$JS.ACK.DM_main.dm_y.{TAIL}", f"$JS.ACK.DLV_main.dm_x.{TAIL}", f"$JS.ACK._.h.DM_main.dm_x.{TAIL}.r",
        SUBJECT + ".1", "$JS.ACK.DM_main.dm_x.1.2.3.4", "$JS.ACK.DM_main.dm_x", f"$JS.ACK.DM_main.dm_xx.{TAIL}",
    ],
)  # fmt: skip
def test_the_copy_of_another_consumer_is_not_taken_apart(reply: str) -> None:
    with pytest.raises(InvalidName):
        tail_of(reply, "DM_main", "dm_x")


@pytest.mark.parametrize(
    "tail",
    [
        "", "1.2.3.4", "1.2.3.4.5.6", "1.2.3.4.x", "1.2.3.4.-5", "01.2.3.4.5", ">.2.3.4.5", "1.2.3.4." + "9" * 20, 7,
        "1.2.3.4.5\n", "\uff11.2.3.4.5",
    ],
)  # fmt: skip
def test_nothing_but_five_numbers_gets_into_an_ack_subject(tail: object) -> None:
    with pytest.raises(InvalidName):
        parse_tail(tail)
    with pytest.raises(InvalidName):
        ack_subject("DM_main", "dm_x", tail)  # type: ignore[arg-type]


def test_a_stored_frame_shows_by_its_reply() -> None:
    assert is_ack(SUBJECT)
    assert not any(map(is_ack, ("_INBOX_x.s.1", "$JS.FC.x", "")))
