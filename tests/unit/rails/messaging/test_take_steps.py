"""A held request in every state with every event, and the words of a take."""

from __future__ import annotations

import itertools
import json

import pytest

from sidecar.rails.messaging.take_steps import (
    ADVICE,
    STEPS,
    BadTakerName,
    Came,
    Do,
    Event,
    Place,
    after,
    check_name,
    read_answer,
    take_body,
)
from sidecar.rails.names import Principal

TABLE = {
    Place.OFFERED: {
        "READ": "ASKED ASK", "PUT_OFF": "LATER NOTHING", "LOST": "DOWN NOTHING", "STALE": "FORGOTTEN FORGET",
    },
    Place.ASKED: {
        "OK": "SHOWN SHOW", "REFUSED": "FORGOTTEN FORGET", "MISMATCH": "REREAD REREAD", "UNDECIDED": "LATER WAIT",
        "LOST": "DOWN NOTHING", "STALE": "FORGOTTEN FORGET",
    },
    Place.REREAD: {
        "MOVED": "FORGOTTEN NAK", "SAME": "FORGOTTEN FORGET", "UNREAD": "LATER WAIT", "LOST": "DOWN NOTHING",
        "STALE": "FORGOTTEN FORGET",
    },
    Place.LATER: {
        "DUE": "OFFERED OFFER", "BACK": "OFFERED OFFER", "LOST": "DOWN NOTHING", "STALE": "FORGOTTEN FORGET",
    },
    Place.DOWN: {"BACK": "OFFERED OFFER", "LOST": "DOWN NOTHING", "STALE": "FORGOTTEN FORGET"},
    Place.SHOWN: dict.fromkeys(("LOST", "BACK", "DUE", "STALE"), "SHOWN NOTHING"),
    Place.FORGOTTEN: dict.fromkeys(("LOST", "BACK", "DUE", "STALE"), "FORGOTTEN NOTHING"),
}  # fmt: skip
"""Written from the specification, not from the code."""


@pytest.mark.req("C8.1-12", "C8.1-14", "C8.1-15", "C8.1-17", "C8.1-18", "C8.1-20", "C8.1-49")
@pytest.mark.parametrize(("place", "event"), list(itertools.product(Place, Event)))
def test_every_place_with_every_event(place: Place, event: Event) -> None:
    wanted = TABLE[place].get(event.name)
    if wanted is None:
        with pytest.raises(ValueError, match="cannot happen"):
            after(place, event)
        assert (place, event) not in STEPS
        return
    to, do = wanted.split()
    assert after(place, event) == (Place[to], Do[do])


@pytest.mark.req("C8.1-12", "C4-12")
def test_there_is_one_way_to_a_shown_request_and_it_is_an_ok() -> None:
    shown = [pair for pair, (place, _) in STEPS.items() if place is Place.SHOWN and pair[0] is not Place.SHOWN]
    assert shown == [(Place.ASKED, Event.OK)]
    assert [pair for pair, (_, do) in STEPS.items() if do is Do.ASK] == [(Place.OFFERED, Event.READ)]


@pytest.mark.req("C8.1-11", "C8.1-14", "C8.1-49")
@pytest.mark.parametrize(
    ("answer", "came", "event"),
    [
        ('{"ok":true}', Came.OK, Event.OK),
        ('{"ok":true,"more":1}', Came.OK, Event.OK),
        ('{"ok":false,"code":"cancelled","error":"x"}', Came.CANCELLED, Event.REFUSED),
        ('{"ok":false,"code":"taken","error":"x"}', Came.TAKEN, Event.REFUSED),
        ('{"ok":false,"code":"gone","error":"x"}', Came.GONE, Event.REFUSED),
        ('{"ok":false,"code":"mismatch","error":"x"}', Came.MISMATCH, Event.MISMATCH),
        ('{"ok":false,"code":"busy","error":"x"}', Came.BUSY, Event.UNDECIDED),
    ],
)
def test_what_each_code_means(answer: str, came: Came, event: Event) -> None:
    assert read_answer(answer.encode()) is came
    assert came.event is event


@pytest.mark.parametrize(
    "answer", ["", "{", "[]", "1", "{}", '{"ok":1}', '{"ok":"true"}', '{"code":"taken"}', '{"ok":false,"code":5}',
               '{"ok":false,"code":"ok"}', '{"ok":false,"code":"silent"}', '{"ok":true,"ok":true}', "x" * 5000],
)  # fmt: skip
def test_an_answer_that_cannot_be_read_decides_nothing(answer: str) -> None:
    assert read_answer(answer.encode()) is Came.BUSY


@pytest.mark.req("C8.1-49", "C8.1-50")
def test_what_is_no_decision_keeps_the_request_and_three_causes_are_told() -> None:
    undecided = {came for came in Came if came.event is Event.UNDECIDED}
    assert undecided == {Came.BUSY, Came.SILENT, Came.OLD_DAEMON, Came.DENIED, Came.NO_DAEMON}
    assert Came.INTERRUPTED.event is Event.LOST
    assert "restart" in ADVICE[Came.OLD_DAEMON]
    assert "respawn" in ADVICE[Came.DENIED]
    assert "no delivery daemon" in ADVICE[Came.NO_DAEMON]
    assert len(set(ADVICE.values())) == 3


@pytest.mark.req("C8.1-05", "C8.1-06")
def test_a_take_says_which_copy_of_which_stream() -> None:
    epoch = "2026-10-30T12:00:00.123456789Z"
    body = json.loads(take_body(Principal("local", "bob"), "Bob", 17, "m1", 2, epoch))
    sender = {"id": "local.bob", "name": "Bob"}
    assert body == {"from": sender, "seq": 17, "id": "m1", "count": 2, "epoch": epoch}


@pytest.mark.req("C8.1-07")
@pytest.mark.parametrize("name", ["Bob", "a b", "x" * 128, "\U0001f600" * 64, "é\u0301"])
def test_a_name_that_may_stand_in_a_take(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.req("C8.1-07")
@pytest.mark.parametrize(
    "name", ["", "x" * 129, "\U0001f600" * 64 + "x", "a\nb", "a\rb", "a\u2028b", "a\x85b", " a", "a ", "\ta", "a\ufeff",
             "\u3000a", "a/b", "a\\b", "\ud800"],
)  # fmt: skip
def test_a_name_that_may_not(name: str) -> None:
    with pytest.raises(BadTakerName):
        check_name(name)
