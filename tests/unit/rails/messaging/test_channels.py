"""Joins, leaves, late refusals and the end of a member at the same time: nothing of a channel runs on behind them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from sidecar.base.clock import system_now
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Fault, PermissionViolation, Stopped, Subscription
from sidecar.rails.endpoint.codes import CallFailed, Code, Outcome
from sidecar.rails.messaging import channels as module
from sidecar.rails.messaging.channel import Channel
from sidecar.rails.messaging.channels import Channels, TooManyChannels
from sidecar.rails.messaging.enrolment import Enrolment
from sidecar.rails.messaging.inbox import Inbox
from sidecar.rails.messaging.membership import SHOWN, Standing, State
from sidecar.rails.messaging.registry import NOTHING_SAID, Registry, RegistryUnreadable

pytestmark = pytest.mark.asyncio


class Broker:
    """As much of a connection as channels look at."""

    def __init__(self) -> None:
        self.placed: list[Subscription] = []
        self.open: set[Subscription] = set()
        self.takes = asyncio.Event()
        self.takes.set()

    async def subscribe(self, subject: str) -> Subscription:
        await self.takes.wait()
        one = Subscription(subject, "", self._remove, lambda *_: None, 64, 1 << 20)
        self.placed.append(one)
        self.open.add(one)
        return one

    async def _remove(self, one: Subscription) -> None:
        self.open.discard(one)


class Plane:
    """Answers every command as it is told to, when it is told to."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.answers.set()
        self.asked: list[str] = []
        self.open: set[str] = set()
        self.up = True

    async def call(self, endpoint: str, command: str, args: Any = None, *, seconds: float = 5.0) -> Any:
        self.asked.append(command)
        await self.answers.wait()
        if not self.up:
            raise CallFailed(Code.UNAVAILABLE, "nobody is there", Outcome.NOT_EXECUTED)
        if command == "durable-join":
            self.open.add(args["channel"])
            return {"durable": True, "generation": 1}
        if command == "durable-leave":
            self.open.discard(args["channel"])
            return {"channel": args["channel"]}
        return {"memberships": [{"channel": one, "generation": 1, "activated": True} for one in self.open]}


class Nothing:
    """A registry without a word, and a history without a post."""

    fails: Exception | None = None
    runs = 0

    unreadable = False

    async def read(self) -> Registry:
        if self.unreadable:
            raise RegistryUnreadable("nobody is there")
        return Registry(NOTHING_SAID, {})

    async def frontier(self) -> int:
        return 7

    async def run(self, channel: Channel) -> bool:
        self.runs += 1
        if self.fails is not None:
            error, self.fails = self.fails, None
            raise error
        channel.backfilled, channel.marks.gap = True, None
        return True


class World:
    def __init__(self) -> None:
        self.broker, self.plane, self.nothing, self.metrics = Broker(), Plane(), Nothing(), Metrics()
        self.inbox = Inbox(mediated=False, clock=system_now, metrics=self.metrics)
        self.before = asyncio.all_tasks()
        anything: Any = self.nothing
        connection: Any = self.broker
        self.channels = Channels(
            connection,
            "main",
            anything,
            Enrolment(anything, anything, self.plane, self.metrics),
            anything,
            self.inbox,
            clock=system_now,
            metrics=self.metrics,
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0)

    async def at_rest(self) -> None:
        """Nothing of the channels runs on, and no subscription is left."""
        await self.until(lambda: asyncio.all_tasks() <= self.before)
        assert self.broker.open == set()


def denied() -> PermissionViolation:
    return PermissionViolation(Fault.SUBSCRIBE_DENIED, "x")


@pytest.mark.req("C7-13", "C7-18", "C7-36")
async def test_a_join_that_the_broker_takes_back_while_the_plane_answers_is_refused_and_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FIRST_RETRY", 0.01)
    world = World()
    world.plane.answers.clear()
    joining = asyncio.create_task(world.channels.join("general"))
    await world.until(lambda: world.plane.asked == ["durable-join"])
    world.broker.placed[0].fail(denied())
    await world.until(lambda: world.channels.standings["general"] == Standing(State.APART, owed=True))
    world.plane.answers.set()
    with pytest.raises(PermissionViolation):
        await joining
    await world.until(lambda: world.channels.standings == {})
    assert world.plane.open == set(), "what the plane wrote for it was closed"
    assert world.plane.asked[-1] == "durable-leave"
    await world.channels.close()
    await world.at_rest()


@pytest.mark.req("C7-18")
async def test_a_refusal_behind_the_join_leaves_no_subscription() -> None:
    world = World()
    world.plane.up = False
    await world.channels.join("general")
    world.broker.placed[0].fail(denied())
    await world.until(lambda: world.broker.open == set())
    await world.channels.close()
    await world.at_rest()


@pytest.mark.parametrize("where", ["subscribing", "enrolling", "leaving"])
async def test_the_end_of_the_member_leaves_nothing_of_what_is_under_way(where: str) -> None:
    world = World()
    if where == "leaving":
        await world.channels.join("general")
    stopper = world.broker.takes if where == "subscribing" else world.plane.answers
    stopper.clear()
    doing = asyncio.create_task(
        world.channels.leave("general") if where == "leaving" else world.channels.join("general")
    )
    asked = len(world.plane.asked)
    await world.until(lambda: where == "subscribing" or len(world.plane.asked) > asked - (where == "enrolling"))
    for _ in range(10):
        await asyncio.sleep(0)
    waiting = asyncio.create_task(world.channels.join("general"))
    await asyncio.sleep(0)
    await world.channels.close()
    stopper.set()
    await asyncio.gather(doing, return_exceptions=True)
    for late in (waiting, world.channels.join("other"), world.channels.leave("general")):
        with pytest.raises(Stopped):
            await late
    world.before.discard(waiting)
    assert world.channels.standings == {}
    await world.at_rest()
    assert not any(world.metrics.gauge("messaging_channels", shown)._value.get() for shown in SHOWN)


async def test_of_joins_that_meet_a_leave_one_subscription_remains() -> None:
    world = World()
    await world.channels.join("general")
    world.plane.answers.clear()
    leaving = asyncio.create_task(world.channels.leave("general"))
    await asyncio.sleep(0)
    first = asyncio.create_task(world.channels.join("general"))
    await asyncio.sleep(0)
    leaving.add_done_callback(lambda _: others.append(asyncio.create_task(world.channels.join("general"))))
    others: list[asyncio.Task[Any]] = []
    world.plane.answers.set()
    await leaving
    await first
    await asyncio.gather(*others)
    assert len(world.broker.open) == 1
    await world.channels.close()
    await world.at_rest()


async def test_a_cancelled_join_or_leave_leaves_no_subscription() -> None:
    world = World()
    world.broker.takes.clear()
    joining = asyncio.create_task(world.channels.join("general"))
    for _ in range(10):
        await asyncio.sleep(0)
    joining.cancel()
    await asyncio.gather(joining, return_exceptions=True)
    assert world.channels.standings == {}
    world.broker.takes.set()
    await world.channels.join("general")
    leaving = asyncio.create_task(world.channels.leave("general"))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    assert world.broker.open == set()
    assert world.channels.standings["general"].state is State.APART
    await world.channels.close()
    await world.at_rest()


async def test_a_fault_of_ours_in_a_read_of_history_ends_no_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_READ_RETRY", 0.01)
    world = World()
    world.nothing.fails = RuntimeError("a bug")
    await world.channels.join("general")
    await world.until(lambda: world.nothing.runs == 2)
    assert world.metrics.totals("messaging_channel_faults") == {(): 1}
    text = b'{"id":"m1","ts":1,"space":"main","from":{"id":"local.ann","name":"ann"},"channel":"general","parts":[]}'
    subscription = world.broker.placed[0]
    subscription.take(Msg(Client(), "cotal.main.chat.local.ann.general", "", text), None)  # type: ignore[arg-type]
    async with asyncio.timeout(5):
        assert (await world.inbox.next()).message.id == "m1"
    await world.channels.close()
    await world.inbox.close()
    await world.at_rest()


async def test_a_leave_of_what_was_never_joined_counts_against_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CHANNELS", 2)
    world = World()
    world.plane.up = False
    for number in range(2):
        assert not (await world.channels.leave(f"x{number}")).closed
    with pytest.raises(TooManyChannels):
        await world.channels.leave("x2")
    await world.channels.close()
    await world.at_rest()


@pytest.mark.req("C7-19", "C7-36")
async def test_a_leave_while_nobody_knows_the_class_is_closed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier process of the lifecycle may have asked for the membership."""
    monkeypatch.setattr(module, "FIRST_RETRY", 0.01)
    world = World()
    world.plane.open.add("general")
    world.plane.up, world.nothing.unreadable = False, True
    assert (await world.channels.join("general")).state is State.LIVE
    assert not (await world.channels.leave("general")).closed
    assert world.channels.standings["general"] == Standing(State.APART, owed=True)
    world.plane.up = True
    await world.until(lambda: world.channels.standings == {})
    assert world.plane.open == set()
    await world.channels.close()
    await world.at_rest()
