"""Which kept floors a durable made anew may begin behind, and what the broker says of one."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.rails.planes.delivery.broker import StreamState
from sidecar.rails.planes.delivery.floors import Floor, Floors, settled

MADE = "2026-01-01T00:00:00.1Z"


@pytest.mark.req("C4-08")
@pytest.mark.parametrize(
    ("floor", "created", "last", "found"),
    [
        (7, MADE, 20, 7),
        (0, MADE, 20, 0),
        (20, MADE, 20, 20),
        (21, MADE, 20, None),  # the stream was set back: what has these numbers now is something else
        (7, "2026-02-01T00:00:00Z", 20, None),  # a stream made anew
    ],
)
def test_a_floor_counts_in_the_stream_that_it_was_read_of(
    floor: int, created: str, last: int, found: int | None
) -> None:
    floors = Floors({"reader": Floor(MADE, floor)})
    stream = StreamState(1, last, 0, None, created)
    assert (floors.of("reader", stream), floors.of("fanout", stream)) == (found, None)


@pytest.mark.parametrize(
    ("info", "found"),
    [
        (None, None), ({}, None), ({"ack_floor": None}, None), ({"ack_floor": {"stream_seq": "7"}}, None),
        ({"ack_floor": {"stream_seq": True}}, None), ({"ack_floor": {"stream_seq": -1}}, None),
        ({"ack_floor": {"consumer_seq": 3, "stream_seq": 7}}, 7), ({"ack_floor": {"stream_seq": 0}}, 0),
    ],
)  # fmt: skip
def test_what_the_broker_says_of_a_consumer(info: dict[str, Any] | None, found: int | None) -> None:
    assert settled(info) == found
