"""Copies of one message are one delivery; its durable copies are settled once, by what the member does with it."""

from __future__ import annotations

import pytest

from sidecar.rails.envelopes.message import EndpointRef, Message, TextPart
from sidecar.rails.envelopes.receive import Meta, Received
from sidecar.rails.messaging.desk import Delivery, Desk, Place, Stage, Via

BACKSTOP = Place("dlv_x", 7)


def received(message_id: str = "m1", sender: str = "local.alice", text: str = "hi") -> Received:
    message = Message(message_id, 1, "main", EndpointRef(sender, "a"), (TextPart(text),), channel="general")
    return Received(message, Meta("channel", "main", sender, "general", False, False))


def new(desk: Desk[str], came: Received, via: Via = Via.LIVE) -> Delivery[str]:
    delivery, fresh = desk.take(came, via)
    assert fresh
    assert delivery is not None
    return delivery


@pytest.mark.req("C4-18", "C7-25", "C12-12")
@pytest.mark.parametrize("order", [(Via.LIVE, Via.HISTORY), (Via.HISTORY, Via.LIVE)])
def test_copies_of_one_message_are_one_delivery(order: tuple[Via, Via]) -> None:
    desk: Desk[str] = Desk()
    delivery = new(desk, received(), order[0])
    assert desk.take(received(), order[1]) == (delivery, False)
    desk.take(received(), order[1])
    assert delivery.ways == list(order)
    desk.hand_out(delivery)
    assert desk.take(received(), Via.LIVE) == (delivery, False)
    assert desk.close(delivery) == []
    assert desk.take(received(), Via.HISTORY) == (None, False)


@pytest.mark.req("C4-19", "C8-62")
def test_the_durable_copy_owns_the_ack_whichever_was_shown() -> None:
    desk: Desk[str] = Desk()
    delivery = new(desk, received())
    assert desk.take_durable(received(), Via.BACKSTOP, BACKSTOP, "copy") == (delivery, False)
    desk.hand_out(delivery)
    assert desk.bound == [delivery]
    assert desk.close(delivery) == ["copy"]
    assert (delivery.stage, desk.close(delivery), desk.out) == (Stage.DONE, [], 0)


@pytest.mark.req("C4-19")
def test_a_copy_that_comes_while_the_member_has_the_message_waits_for_it() -> None:
    desk: Desk[str] = Desk()
    delivery = new(desk, received())
    desk.hand_out(delivery)
    assert desk.bound == []
    desk.take_durable(received(), Via.BACKSTOP, BACKSTOP, "copy")
    assert desk.bound == [delivery]
    assert desk.close(delivery) == ["copy"]
    # Afterwards there is no delivery: the caller acks at once.
    assert desk.take_durable(received(), Via.BACKSTOP, Place("dlv_x", 8), "late") == (None, False)


def test_a_copy_that_is_delivered_again_takes_the_place_of_the_first() -> None:
    desk: Desk[str] = Desk()
    delivery, fresh = desk.take_durable(received(), Via.BACKSTOP, BACKSTOP, "first")
    assert fresh
    assert desk.take_durable(received(), Via.BACKSTOP, BACKSTOP, "second") == (delivery, False)
    assert delivery is not None
    desk.hand_out(delivery)
    assert desk.close(delivery) == ["second"]


@pytest.mark.req("C4-21", "C4-22", "C4-23", "C8-58", "CD-15")
def test_messages_without_an_id_are_deliveries_of_their_own() -> None:
    desk: Desk[str] = Desk()
    first, second = new(desk, received("")), new(desk, received(""))
    third, _ = desk.take_durable(received(""), Via.BACKSTOP, BACKSTOP, "copy")
    fourth, _ = desk.take_durable(received(""), Via.BACKSTOP, Place("dlv_x", 8), "other")
    assert third is not None
    assert fourth is not None
    assert len({first.key, second.key, third.key, fourth.key}) == 4
    for one in (third, fourth):
        desk.hand_out(one)
    assert (desk.close(third), desk.close(fourth)) == (["copy"], ["other"])
    # The broker delivers one of them again: that is another delivery.
    assert desk.take_durable(received(""), Via.BACKSTOP, BACKSTOP, "again")[1]


def test_nobody_else_can_take_the_place_of_a_message_with_its_id() -> None:
    desk: Desk[str] = Desk()
    mine = new(desk, received(sender="local.alice"))
    other = new(desk, received(sender="local.mallory"))
    assert mine is not other
    desk.close(other)
    assert new(desk, received("m2"))
    assert desk.take(received(sender="local.alice"), Via.LIVE) == (mine, False)


@pytest.mark.req("C8-63")
def test_what_is_put_back_is_shown_again() -> None:
    desk: Desk[str] = Desk()
    delivery, _ = desk.take_durable(received(), Via.BACKSTOP, BACKSTOP, "copy")
    assert delivery is not None
    desk.hand_out(delivery)
    assert desk.close(delivery, again=True) == ["copy"]
    assert desk.take_durable(received(), Via.BACKSTOP, BACKSTOP, "again")[1]


def test_what_is_open_has_a_bound() -> None:
    desk: Desk[str] = Desk(most_open=2)
    loose = [new(desk, received(f"l{one}")) for one in range(4)]
    for one in loose:
        desk.hand_out(one)
    assert [one.stage for one in loose] == [Stage.DONE, Stage.DONE, Stage.OUT, Stage.OUT]
    for number in range(2):
        delivery, _ = desk.take_durable(received(f"b{number}"), Via.BACKSTOP, Place("dlv_x", number), "copy")
        assert delivery is not None
        assert not desk.full
        desk.hand_out(delivery)
    assert desk.full
    assert desk.out == 4
    desk.close(desk.bound[0])
    assert not desk.full


@pytest.mark.req("C8-62", "C4-19")
def test_a_copy_of_a_stream_that_was_made_anew_is_another_message() -> None:
    desk = Desk[str]()
    old, _ = desk.take_durable(received("a"), Via.DURABLE, Place("dm", 1), "old")
    assert old is not None
    desk.hand_out(old)
    other, new = desk.take_durable(received("b"), Via.DURABLE, Place("dm", 1), "new")
    assert new
    assert other is not None
    assert other is not old
    assert desk.close(old) == ["old"], "nobody acks what nobody was shown"
    assert desk.take_durable(received("b"), Via.DURABLE, Place("dm", 1), "newer") == (other, False)
