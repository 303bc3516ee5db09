"""What has come in for a member and is not done with: several copies of one message are one delivery (C4-18..23). Pure.

The durable copies of a delivery own its ack: they are acked when the member has handled it, whichever copy was shown
(C4-19), and never before (C8-62). A copy that comes after that is acked at once. Live copies are never acked (C8-65).

Ids are compared for each sender: an id is unique for its author alone, and nobody else's message with the same id can
take the place of it. Messages without an id are never compared (C4-21); each delivery has a key of its own, by which
it is tracked and nothing is decided (CD-15).
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum, StrEnum
from typing import Final, Generic, NamedTuple, TypeVar

from sidecar.rails.envelopes.coalesce import DEFAULT_CAPACITY, Coalescer
from sidecar.rails.envelopes.message import Message
from sidecar.rails.envelopes.receive import Meta, Received
from sidecar.rails.messaging.notices import AnycastNotice, Eviction

MOST_OPEN: Final = 1_024
"""Deliveries that were handed out and not settled: of those without a durable copy the oldest are then taken as done,
and no more with one are handed out."""


class Via(StrEnum):
    """By which way a copy came; the values are metric labels."""

    LIVE = "live"
    HISTORY = "history"
    DURABLE = "durable"
    """Direct messages and work for a role, from their own consumer."""
    BACKSTOP = "backstop"


class Stage(Enum):
    """Where a delivery is."""

    WAITING = "it waits to be handed out"
    OUT = "the member has it"
    DONE = "nothing more happens with it"


# Members by name once: looking one up in its class is slow, and this is done for each message.
_WAITING, _OUT, _DONE = Stage.WAITING, Stage.OUT, Stage.DONE


def identity_of(received: Received) -> str:
    """By which the copies of one message are known; empty for one without an id, which has none."""
    message_id = received.message.id
    return f"{received.meta.sender} {message_id}" if message_id else ""


class Place(NamedTuple):
    """Which durable a copy is of, and its sequence there: a copy that is delivered again has the same."""

    durable: str
    sequence: int


Held = TypeVar("Held")
"""A durable copy, as whoever settles it has it."""


class Delivery(Generic[Held]):
    """One logical delivery. ``key`` tells it from all others of this member, also without an id (CD-15)."""

    __slots__ = (
        "arrival",
        "copies",
        "eviction",
        "identity",
        "key",
        "message",
        "meta",
        "notice",
        "out_since",
        "stage",
        "ways",
    )

    def __init__(self, key: int, identity: str, received: Received, via: Via) -> None:
        self.key = key
        self.arrival = key
        """Its place among all deliveries."""
        self.identity = identity
        self.message: Message = received.message
        self.meta: Meta = received.meta
        self.notice: AnycastNotice | None = None
        self.eviction: Eviction | None = None
        self.ways: list[Via] = [via]
        self.copies: dict[Place, Held] = {}
        self.stage = _WAITING
        self.out_since = 0.0
        """When it was first seen with the member; for whoever minds the time."""


class Desk(Generic[Held]):
    """The deliveries of one member, over all ways in which they come."""

    def __init__(self, *, most_open: int = MOST_OPEN, remembered: int = DEFAULT_CAPACITY) -> None:
        self._most_open = most_open
        self._shown = Coalescer(remembered)
        self._by_identity: dict[str, Delivery[Held]] = {}
        self._by_place: dict[Place, Delivery[Held]] = {}
        self._loose: OrderedDict[int, Delivery[Held]] = OrderedDict()
        self._bound: dict[int, Delivery[Held]] = {}
        self._serial = 0

    @property
    def out(self) -> int:
        """Deliveries that the member has."""
        return len(self._loose) + len(self._bound)

    @property
    def full(self) -> bool:
        """Whether no more with a durable copy are to be handed out for now."""
        return len(self._bound) >= self._most_open

    @property
    def bound(self) -> list[Delivery[Held]]:
        """Deliveries that the member has, and whose copies it has to settle; the oldest first."""
        return list(self._bound.values())

    def take(self, received: Received, via: Via) -> tuple[Delivery[Held] | None, bool]:
        """A copy came that is never acked. The delivery that it belongs to, None when that is done with; and whether
        it is a new one, to be handed out."""
        identity = identity_of(received)
        if identity and (delivery := self._by_identity.get(identity)) is not None:
            if via not in delivery.ways:
                delivery.ways.append(via)
            return delivery, False
        if not self._shown.first(identity):
            return None, False
        self._serial += 1
        delivery = Delivery(self._serial, identity, received, via)
        if identity:
            self._by_identity[identity] = delivery
        return delivery, True

    def take_durable(
        self, received: Received, via: Via, place: Place, held: Held
    ) -> tuple[Delivery[Held] | None, bool]:
        """A durable copy came. Without a delivery it is acked at once; with one that is out it counts as shown. A copy
        that is delivered again takes the place of the earlier one."""
        delivery, new = self._by_place.get(place), False
        if delivery is None or delivery.message != received.message:  # the stream may have been made anew
            delivery, new = self.take(received, via)
        if delivery is not None:
            delivery.copies[place] = held
            self._by_place[place] = delivery
            if self._loose.pop(delivery.key, None) is not None:
                self._bound[delivery.key] = delivery
        return delivery, new

    def hand_out(self, delivery: Delivery[Held]) -> None:
        """The member gets it: it counts as shown, and so do its copies."""
        delivery.stage = _OUT
        if delivery.copies:
            self._bound[delivery.key] = delivery
            return
        self._loose[delivery.key] = delivery
        if len(self._loose) > self._most_open:
            self.close(next(iter(self._loose.values())))

    def close(self, delivery: Delivery[Held], *, again: bool = False) -> list[Held]:
        """Nothing more happens with it: the copies to settle, none the second time. ``again``: the next copy of its
        message is shown."""
        if delivery.stage is _DONE:
            return []
        delivery.stage = _DONE
        self._loose.pop(delivery.key, None)
        self._bound.pop(delivery.key, None)
        self._by_identity.pop(delivery.identity, None)
        for place in delivery.copies:
            if self._by_place.get(place) is delivery:
                del self._by_place[place]
        if again:
            self._shown.forget(delivery.identity)
        return list(delivery.copies.values())
