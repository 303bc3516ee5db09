"""The order of a watch over its consumers."""

from __future__ import annotations

from sidecar.rails.connection.ordered import Ordered


def test_deliveries_are_taken_in_order_and_nothing_else_is() -> None:
    order = Ordered()
    assert order.idle(0)
    assert order.take(7, 1)
    assert order.take(9, 2)
    assert order.last == 9
    assert not order.take(12, 4)  # one is missing
    assert not order.take(9, 3)  # it goes back
    assert order.last == 9
    assert order.idle(2)
    assert not order.idle(3)
    assert not order.idle(1)


def test_the_next_consumer_counts_anew_behind_the_last_message() -> None:
    order = Ordered()
    assert order.take(7, 1)
    order.restarted()
    assert (order.last, order.idle(0)) == (7, True)
    assert not order.take(7, 1)
    assert order.take(8, 1)
