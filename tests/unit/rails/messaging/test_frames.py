"""Frames: from deliveries of one's own consumer, and through the answers of commands unchanged."""

from __future__ import annotations

from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from sidecar.rails.messaging.frames import BadFrame, Frame, frame_of, frame_value, read_frame
from sidecar.rails.names import InvalidName

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
