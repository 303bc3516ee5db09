"""Notices: only from who holds the delivery lease; and what tells of copies that may be gone."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.base.clock import Now
from sidecar.rails.envelopes.message import DataPart, EndpointRef, Message, Part, TextPart
from sidecar.rails.envelopes.receive import Meta, Received
from sidecar.rails.messaging.frames import Frame
from sidecar.rails.messaging.notices import (
    LEASE_SECONDS,
    UNREAD_SECONDS,
    AnycastNotice,
    Eviction,
    LeaseUnread,
    Notices,
    Turn,
    eviction_of,
    notice_of,
)

DAEMON = "local.delivery"
TAKER = {"id": "local.rev", "name": "Rev"}
GOOD: dict[str, Any] = {"seq": 17, "role": "reviewer", "event": "taken", "taker": TAKER}


def direct(*parts: Part, sender: str = DAEMON, kind: str = "dm") -> Received:
    message = Message("m", 1, "main", EndpointRef(sender, "d"), parts, to="local.bob")
    return Received(message, Meta(kind, "main", sender, "local.bob", historical=False, mismatched=False))


def notice(value: Any, **more: Any) -> Received:
    return direct(TextPart("taken"), DataPart({"cotalAnycastNotice": value}), **more)


class Lease:
    def __init__(self, holder: str | None) -> None:
        self.holder: str | Exception | None = holder
        self.reads = 0

    async def __call__(self) -> str | None:
        self.reads += 1
        if isinstance(self.holder, Exception):
            raise self.holder
        return self.holder


@pytest.mark.req("C8.1-44")
def test_what_a_notice_says() -> None:
    ref = EndpointRef("local.rev", "Rev")
    assert notice_of(notice(GOOD)) == AnycastNotice(17, "reviewer", Turn.TAKEN, ref, None)
    moved = {**GOOD, "event": "redelivered", "previous": {"id": "local.old", "name": "Old"}}
    assert notice_of(notice(moved)) == AnycastNotice(
        17, "reviewer", Turn.REDELIVERED, ref, EndpointRef("local.old", "Old")
    )


@pytest.mark.parametrize(
    "change",
    [
        {"seq": 0}, {"seq": "17"}, {"seq": True}, {"role": 1}, {"event": "done"}, {"event": None}, {"taker": None},
        {"taker": {"id": 1, "name": "x"}}, {"taker": {"id": "x"}}, {"previous": 1}, {"previous": None},
    ],
)  # fmt: skip
def test_what_is_no_notice_is_a_message(change: dict[str, Any]) -> None:
    assert notice_of(notice({**GOOD, **change})) is None


@pytest.mark.parametrize("value", [None, [], "x"])
def test_a_notice_is_an_object(value: Any) -> None:
    assert notice_of(notice(value)) is None
    assert notice_of(direct(DataPart(value), TextPart("x"))) is None


@pytest.mark.parametrize("kind", ["channel", "anycast"])
def test_only_a_direct_message_is_a_notice(kind: str) -> None:
    assert notice_of(notice(GOOD, kind=kind)) is None


@pytest.mark.req("C8.1-47", "C8.1-48")
@pytest.mark.asyncio
async def test_the_words_of_anybody_but_the_holder_of_the_lease_are_a_message() -> None:
    now = Now(0.0, 0.0)
    lease = Lease(DAEMON)
    notices = Notices(lease, clock=lambda: now)
    assert await notices.of(notice(GOOD)) is not None
    assert await notices.of(notice(GOOD, sender="local.eve")) is None
    assert await notices.of(direct(TextPart("hi"))) is None
    assert lease.reads == 1
    lease.holder = "local.other"
    now = Now(0.0, LEASE_SECONDS)
    assert await notices.of(notice(GOOD)) is None
    assert await notices.of(notice(GOOD, sender="local.other")) is not None
    assert lease.reads == 2


@pytest.mark.req("C8.1-47")
@pytest.mark.parametrize("holder", [None, LeaseUnread("x")])
@pytest.mark.asyncio
async def test_without_a_holder_there_are_no_notices(holder: Any) -> None:
    assert await Notices(Lease(holder)).of(notice(GOOD)) is None


@pytest.mark.req("C8.1-47")
@pytest.mark.asyncio
async def test_a_lease_that_cannot_be_read_is_not_asked_for_with_every_message() -> None:
    lease = Lease(None)
    lease.holder = LeaseUnread("x")
    now = Now(0.0, 0.0)

    async def slow() -> str | None:
        nonlocal now
        now = Now(0.0, now.mono + UNREAD_SECONDS)  # as long as a call that nobody answers
        return await lease()

    notices = Notices(slow, clock=lambda: now)
    for _ in range(3):
        assert await notices.of(notice(GOOD)) is None
    assert lease.reads == 1
    lease.holder = DAEMON
    now = Now(0.0, now.mono + UNREAD_SECONDS)
    assert await notices.of(notice(GOOD)) is not None


def copy(pending: int, **headers: str) -> Frame:
    return Frame("x", b"", {name.replace("_", "-"): value for name, value in headers.items()}, 1, 1, pending, 1)


@pytest.mark.req("C8-55", "C8-56")
@pytest.mark.parametrize(
    ("pending", "stamp", "shown"),
    [
        (999, "1000", True), (998, "1000", False), (5000, "none", False), (0, "1", True), (4, "5", True),
        (3, "5", False), (999, None, True), (998, None, False), (999, "many", True), (998, "-5", False),
    ],
)  # fmt: skip
def test_as_many_pending_as_the_store_keeps_tell_of_an_eviction(pending: int, stamp: str | None, shown: bool) -> None:
    frame = copy(pending) if stamp is None else copy(pending, Cotal_Delivery_Limit=stamp)
    limit = int(stamp) if stamp in ("1000", "1", "5") else 1000
    assert eviction_of(frame) == (Eviction(pending, limit) if shown else None)
    assert Notices(Lease(None)).eviction(frame) == eviction_of(frame)
