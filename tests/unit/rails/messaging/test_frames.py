"""Frames: from deliveries of one's own consumer, and through the answers of commands unchanged."""

from __future__ import annotations

import json
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from sidecar.rails.messaging.frames import (
    BadFrame,
    Frame,
    frame_of,
    frame_value,
    most_in_answer,
    most_readable,
    read_frame,
)
from sidecar.rails.names import InvalidName
from sidecar.rails.names.limits import COPY_HEADROOM, MAX_SUBJECT
from sidecar.rails.planes.delivery.mediated import framed

FRAME = Frame("cotal.main.inst.a.b.c.d", b"\x00\xff{}", {"X": "1"}, 17, 2, 3, 1_795_000_000_123, "2.17.40.5.3")


def test_a_delivery_says_where_its_message_was_stored() -> None:
    reply = "$JS.ACK.DM_main.dm_x.2.17.40.1795000000123456789.3"
    message = Msg(Client(), "cotal.main.inst.a.b.c.d", reply, b"x", {"X": "1"})
    frame = frame_of(message, "DM_main", "dm_x")
    assert frame[3:7] == (17, 2, 3, 1_795_000_000_123)
    assert (frame.subject, frame.data, frame.headers, frame.token) == (message.subject, b"x", {"X": "1"}, reply[21:])
    with pytest.raises(InvalidName):
        frame_of(message, "DM_main", "dm_y")


@pytest.mark.parametrize("frame", [FRAME, FRAME._replace(token="", headers={}, data=b""), FRAME._replace(omitted=9)])
def test_a_frame_goes_through_an_answer_unchanged(frame: Frame) -> None:
    value = frame_value(frame)
    assert read_frame(value) == frame
    assert ("token" in value) is bool(frame.token)


@pytest.mark.parametrize(
    "change",
    [
        {"subject": 1}, {"subject": ...}, {"data": "§"}, {"data": "YQ"}, {"data": 1}, {"headers": []}, {"timeMs": None},
        {"headers": {"a": 1}}, {"sequence": -1}, {"sequence": 1.0}, {"delivered": True}, {"pending": "1"},
        {"timeMs": ...}, {"omitted": "1"}, {"token": 1}, {"token": ">"}, {"token": "1.2.3.4"},
    ],
)  # fmt: skip
def test_what_is_no_frame_is_refused(change: dict[str, Any]) -> None:
    value = {**frame_value(FRAME), **change}
    with pytest.raises(BadFrame):
        read_frame({name: one for name, one in value.items() if one is not ...})


@pytest.mark.parametrize("value", [None, [], "x", 1])
def test_only_an_object_is_a_frame(value: Any) -> None:
    with pytest.raises(BadFrame):
        read_frame(value)


@pytest.mark.req("C9-47")
@pytest.mark.parametrize("max_payload", [256 * 1024, 1 << 20, 8 << 20])
def test_what_may_be_sent_in_a_mediated_space_fits_into_an_answer(max_payload: int) -> None:
    headers = {"Cotal-Subject": "x" * (COPY_HEADROOM - 13 - 4)}
    largest = Frame("s" * MAX_SUBJECT, b"x" * most_readable(max_payload), headers, 17, 2, 3, 1, "2.17.40.5.3")
    answer = most_in_answer(max_payload)
    fitting = framed(largest, answer)
    assert "omitted" not in fitting.value
    assert len(json.dumps(fitting.value)) <= fitting.size <= answer
    assert most_readable(max_payload) > min(max_payload, 1 << 20) // 2
    assert most_readable(0) == 0
