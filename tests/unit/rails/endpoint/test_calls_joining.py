"""Live events and stored ones, joined (C13.5-07, C13.8-42, C13.2-59)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.rails.endpoint.calls_joining import Joint, Stored, checked_event, read_event
from sidecar.rails.endpoint.calls_types import Seen

TOPIC = "ev.com_acme_echo.counted"
I, J = "i2" * 13, "j3" * 13  # noqa: E741 - two instances


def payload(data: Any, ts: int = 1) -> dict[str, Any]:
    return {"v": 1, "topic": TOPIC, "ts": ts, "data": data}


def test_what_came_live_is_not_given_out_again_and_moves_the_place() -> None:
    joint = Joint(TOPIC, 0)
    seen = joint.live(I, 1, payload("a"))
    assert seen is not None
    assert (seen.sequence, seen.data) == (None, "a")
    joint.reading()
    fresh = joint.stored([Stored(3, I, 1, payload("a")), Stored(5, I, 1, payload("b"))])
    assert [(one.sequence, one.data) for one in fresh] == [(5, "b")]
    assert (joint.after, joint.unmet) == (5, 0)
    assert joint.live(I, 1, payload("b")) is None  # its frame was on the way
    assert joint.live(I, 1, payload("b")) is not None
    assert joint.stored([Stored(5, I, 1, payload("b"))]) == []


def test_what_two_readings_did_not_meet_is_not_waited_for() -> None:
    joint = Joint(TOPIC, 0)
    joint.live(I, 1, payload("never stored"))
    joint.reading()
    assert joint.unmet == 1
    joint.reading()
    assert joint.unmet == 0


@pytest.mark.req("C13.2-59")
def test_an_event_of_an_epoch_below_the_newest_known_one_is_stale() -> None:
    joint = Joint(TOPIC, 0)
    told = [joint.live(I, epoch, payload(at)) for at, epoch in enumerate((1, 2, 1, 2))]
    other = joint.live(J, 0, payload("other"))
    assert [one.stale for one in told if one is not None] == [False, False, True, False]
    assert other is not None
    assert not other.stale


@pytest.mark.req("C13.3-07", "C13.3-54")
@pytest.mark.parametrize(
    "wrong",
    [
        [],
        {**payload(1), "v": 2},
        {**payload(1), "v": True},
        {**payload(1), "topic": "ev.com_acme_echo.other"},
        {**payload(1), "ts": -1},
        {**payload(1), "ts": 1.5},
        {**payload(1), "ts": 2**53},
        {name: value for name, value in payload(1).items() if name != "data"},
    ],
)
def test_a_payload_that_is_no_event_of_the_topic_is_none(wrong: Any) -> None:
    assert read_event(json.dumps(wrong).encode(), TOPIC) is None
    assert checked_event(wrong, TOPIC) is None
    assert read_event(b'{"v":1,"v":1}', TOPIC) is None
    assert read_event(json.dumps({**payload(None), "more": 1}).encode(), TOPIC) == {**payload(None), "more": 1}


@pytest.mark.req("C13.5-07", "C13.8-42")
@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([I, J]), st.integers(0, 2), st.booleans(), st.booleans()), max_size=40),
)
def test_every_stored_event_comes_once_whatever_was_lost_live_and_whenever_the_stream_is_read(
    happened: list[tuple[str, int, bool, bool]],
) -> None:
    """Each event: instance, data (equal ones may follow each other), whether its live frame arrives, and whether the
    stream is read behind it, before its frame is taken."""
    joint, stream, given_out = Joint(TOPIC, 0), list[Stored](), list[Seen]()

    def read() -> None:
        joint.reading()
        given_out.extend(joint.stored([one for one in stream if one.sequence > joint.after]))

    for number, (instance, data, arrives, reads) in enumerate(happened):
        one = Stored(2 * number + 1, instance, 1, payload(data, ts=number // 3))
        stream.append(one)
        if reads:
            read()
        if arrives and (seen := joint.live(instance, 1, one.payload)) is not None:
            given_out.append(seen)
    read()
    assert joint.after == (stream[-1].sequence if stream else 0)
    told = sorted((one.instance, one.ts, str(one.data)) for one in given_out)
    assert told == sorted((one.instance, one.payload["ts"], str(one.payload["data"])) for one in stream)
