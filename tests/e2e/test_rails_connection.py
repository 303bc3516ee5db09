"""The connection layer at a real nats-server: what it classifies, what it ties to a call, and what it heals."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import (
    Connection,
    Credentials,
    CredentialsRefused,
    Fault,
    Happening,
    NoResponders,
    NotConnected,
    Notice,
    PermissionViolation,
    Policy,
    State,
    Stopped,
    Watch,
)
from sidecar.rails.space.claims import Access, Permissions
from sidecar.rails.space.creds import format_creds
from sidecar.rails.space.trust import SpaceTrust, new_user
from tests.e2e.cluster import hold
from tests.e2e.space_broker import EVENT_SECONDS, SpaceBroker

pytestmark = pytest.mark.asyncio

QUICK = Policy(first_wait=0.05, longest_wait=0.4, ping_every=0.2, ping_within=1)
PUBLISH = Access(("ok.>", "$JS.API.>", "$JS.ACK.>", "js.>"))
SUBSCRIBE = Access(("ok.>", "js.>"))


class Owner:
    """Who holds a connection: mints, and remembers what it was told."""

    def __init__(self, trust: SpaceTrust, publish: Access, subscribe: Access, seconds: int) -> None:
        self.trust, self.publish, self.seconds = trust, publish, seconds
        self.key = new_user(os.urandom)
        self.inbox = f"_INBOX_{self.key.public}"
        self.subscribe = Access((f"{self.inbox}.>", *subscribe.allow), subscribe.deny)
        self.minted = 0
        self.notices: list[Notice] = []
        self.metrics = Metrics()
        self.log = io.StringIO()
        self._changed = asyncio.Event()
        self.refuse: Exception | None = None
        self.raises = False

    async def mint(self) -> Credentials:
        self.minted += 1
        if self.refuse is not None:
            raise self.refuse
        now = int(time.time())
        token = self.trust.mint("local-alice", Permissions(self.publish, self.subscribe), self.key, now, self.seconds)
        return Credentials(format_creds(token, self.key), now + self.seconds)

    def tell(self, notice: Notice) -> None:
        self.notices.append(notice)
        self._changed.set()
        if self.raises:
            raise RuntimeError("the owner is broken")

    async def until(self, met: Callable[[], bool]) -> None:
        """Wait for notices until the condition holds."""
        async with asyncio.timeout(EVENT_SECONDS):
            while not met():
                self._changed.clear()
                await self._changed.wait()

    def count(self, happening: Happening) -> int:
        return sum(notice.happening is happening for notice in self.notices)

    def faults(self) -> list[Fault]:
        return [notice.said.fault for notice in self.notices if notice.said is not None]

    async def connect(self, broker: SpaceBroker, policy: Policy = QUICK) -> Connection:
        watch = Watch(self.metrics, Log(self.log), self.tell)
        async with asyncio.timeout(EVENT_SECONDS):
            return await Connection.open([broker.url], self.mint, policy=policy, watch=watch)


class Room:
    """A broker with one account."""

    def __init__(self, broker: SpaceBroker) -> None:
        self.broker = broker
        self.trust = SpaceTrust.open(broker.directory / "main", "main", os.urandom)

    def owner(self, publish: Access = PUBLISH, subscribe: Access = SUBSCRIBE, seconds: int = 300) -> Owner:
        return Owner(self.trust, publish, subscribe, seconds)


@contextlib.asynccontextmanager
async def room(directory: Path) -> AsyncIterator[Room]:
    async with SpaceBroker(directory) as broker:
        made = Room(broker)
        await broker.push(made.trust.account_token(broker.trust, int(time.time())))
        yield made


async def got(subscription: Any) -> bytes:
    async with asyncio.timeout(EVENT_SECONDS):
        return bytes((await subscription.next()).data)


async def test_what_the_broker_refuses_is_told_to_who_asked(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        owner = here.owner(Access(("ok.>",), ("ok.Secret",)), Access(("ok.>",), ("ok.hidden.>",)))
        async with await owner.connect(here.broker) as connection:
            # Two spellings at once: the broker names one of them, the library loses the case.
            outcomes = await asyncio.gather(
                connection.publish("ok.secret"),
                connection.publish("ok.Secret"),
                connection.publish("ok.secret"),
                connection.publish("no.way"),
                return_exceptions=True,
            )
            refused = [outcome for outcome in outcomes if isinstance(outcome, PermissionViolation)]
            assert [outcome is None for outcome in outcomes] == [True, False, True, False]
            assert [(one.fault, one.subject) for one in refused] == [
                (Fault.PUBLISH_DENIED, "ok.Secret"),
                (Fault.PUBLISH_DENIED, "no.way"),
            ]
            with pytest.raises(PermissionViolation) as violation:
                await connection.request("no.way", seconds=600)
            assert violation.value.subject == "no.way"
            with pytest.raises(NoResponders):
                await connection.request("ok.nobody", seconds=600)
            for subject, queue in (("no.Way", ""), ("ok.hidden.x", ""), ("no.way", "workers")):
                with pytest.raises(PermissionViolation) as violation:
                    await connection.subscribe(subject, queue)
                assert (violation.value.fault, violation.value.subject) == (Fault.SUBSCRIBE_DENIED, subject)
            kept = await connection.subscribe("ok.a")
            await connection.publish("ok.a", b"still here")
            assert await got(kept) == b"still here"
            # A violation that no caller waits for is noticed.
            await connection.send("no.way")
            await owner.until(lambda: owner.faults() == [Fault.PUBLISH_DENIED])
            totals = owner.metrics.totals("nats_faults")
            assert totals == {("publish_denied",): 4.0, ("subscribe_denied",): 3.0, ("no_responders",): 1.0}


@pytest.mark.req("C10-08", "C10-09")
async def test_the_inbox_is_named_by_the_key_of_the_credential(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        owner, asker = here.owner(), here.owner()
        async with await owner.connect(here.broker) as serving, await asker.connect(here.broker) as asking:
            served = await serving.subscribe("ok.service")

            async def serve() -> str:
                request = await served.next()
                await serving.publish("ok.seen", request.reply.encode())
                return str(request.reply)

            seen = asyncio.create_task(serve())
            with pytest.raises(TimeoutError):
                await asking.request("ok.service", seconds=1)
            assert (await seen).startswith(f"{asker.inbox}.")
            assert asking.inbox == asker.inbox
            assert asking.new_inbox().startswith(f"{asker.inbox}.")
            assert asking.new_inbox() != asking.new_inbox()


async def test_credentials_that_end_every_few_seconds_are_replaced_and_nothing_is_missed(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        short, steady = here.owner(seconds=2), here.owner()
        async with await short.connect(here.broker) as reading, await steady.connect(here.broker) as writing:
            subscription = await reading.subscribe("ok.count")
            sent = 0
            while short.count(Happening.RENEWED) < 4:
                await writing.publish("ok.count", str(sent).encode())
                sent += 1
                if sent % 50 == 0:
                    await reading.publish("ok.other")
            received = [int(await got(subscription)) for _ in range(sent)]
            assert received == list(range(sent))
            await writing.publish("ok.count", b"end")
            assert await got(subscription) == b"end"
            assert subscription.interruptions == 0
            assert short.count(Happening.RESTORED) == 0
            assert short.minted >= 5


async def test_a_minter_that_fails_lets_them_expire_and_then_heals(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        owner, steady = here.owner(seconds=2), here.owner()
        owner.raises = True  # nor does an owner that raises stop anything
        async with await owner.connect(here.broker) as connection, await steady.connect(here.broker) as writing:
            subscription = await connection.subscribe("ok.a")
            owner.refuse = RuntimeError("SUAM-this-would-be-a-seed")
            await owner.until(lambda: Fault.EXPIRED in owner.faults())
            owner.refuse = None
            await owner.until(lambda: owner.count(Happening.RESTORED) > 0)
            await writing.publish("ok.a", b"again")
            assert await got(subscription) == b"again"
            assert subscription.interruptions >= 1
        assert Fault.CREDENTIALS in owner.faults()
        assert owner.metrics.totals("nats_callback_failures")[()] == len(owner.notices)
        assert "seed" not in owner.log.getvalue()
        assert owner.key.seed_text().reveal().decode() not in owner.log.getvalue()


async def test_a_revoked_user_is_told_and_stops(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        owner, other = here.owner(), here.owner()
        async with await owner.connect(here.broker) as connection, await other.connect(here.broker) as stays:
            subscription = await connection.subscribe("ok.a")
            owner.refuse = CredentialsRefused("revoked")
            await here.broker.push(here.trust.revoke(here.broker.trust, owner.key.public, int(time.time())))
            await owner.until(lambda: owner.count(Happening.STOPPED) == 1)
            assert connection.state is State.STOPPED
            for work in (connection.publish("ok.a"), connection.request("ok.a"), subscription.next()):
                with pytest.raises(Stopped) as stopped:
                    await work
                assert stopped.value.fault is Fault.REVOKED
            await stays.publish("ok.a")
        assert owner.metrics.totals("nats_faults")["revoked",] == 1


async def test_who_is_refused_with_every_fresh_credential_stops_after_a_few(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        owner = here.owner()
        await here.broker.push(here.trust.revoke(here.broker.trust, owner.key.public, int(time.time()) + 3600))
        with pytest.raises(Stopped) as stopped:
            await owner.connect(here.broker)
        assert stopped.value.fault is Fault.AUTHORIZATION
        assert owner.minted == QUICK.refusals


async def test_a_deleted_account_stops_its_connections(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        owner = here.owner()
        async with await owner.connect(here.broker) as connection:
            await here.broker.delete(here.trust.account)
            await owner.until(lambda: owner.count(Happening.STOPPED) == 1)
            with pytest.raises(Stopped) as stopped:
                await connection.publish("ok.a")
            assert stopped.value.fault is Fault.ACCOUNT


async def test_a_killed_broker_under_load_comes_back_with_each_subscription_once(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        owner, other = here.owner(), here.owner()
        owner.raises = True
        async with await owner.connect(here.broker) as connection, await other.connect(here.broker) as writing:
            subscriptions = [await connection.subscribe(f"ok.{n}") for n in range(20)]
            gone = await connection.subscribe("ok.gone")
            await gone.close()
            failures: list[Exception] = []
            stop = asyncio.Event()

            async def load() -> None:
                while not stop.is_set():
                    try:
                        await connection.publish("ok.load", bytes(100))
                    except NotConnected as error:
                        failures.append(error)

            loads = [asyncio.create_task(load()) for _ in range(8)]
            served = await writing.subscribe("ok.served")
            waiting = asyncio.create_task(connection.request("ok.served", b"", seconds=600))
            await got(served)
            for round_ in range(1, 3):
                here.broker.kill()
                await owner.until(lambda: owner.faults().count(Fault.LOST) >= round_)  # noqa: B023
                here.broker.start()
                for one in (owner, other):
                    await one.until(lambda: one.count(Happening.RESTORED) == round_)  # noqa: B023
            stop.set()
            await asyncio.gather(*loads)
            with pytest.raises(NotConnected):
                await asyncio.wait_for(waiting, EVENT_SECONDS)
            for n, subscription in enumerate(subscriptions):
                await writing.publish(f"ok.{n}", b"once")
                await writing.publish(f"ok.{n}", b"end")
                assert [await got(subscription), await got(subscription)] == [b"once", b"end"]
                assert subscription.interruptions >= 2
            assert failures
            assert connection.state is State.CONNECTED


async def test_a_broker_that_hangs_is_taken_as_lost(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        owner = here.owner()
        async with await owner.connect(here.broker) as connection:
            assert here.broker.process is not None
            hold(here.broker.process.pid)
            try:
                await owner.until(lambda: Fault.STALE in owner.faults())
            finally:
                here.broker.process.send_signal(signal.SIGCONT)
            await owner.until(lambda: owner.count(Happening.RESTORED) == 1)
            await connection.publish("ok.a")


async def test_a_slow_reader_loses_the_newest_and_is_told(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        owner = here.owner()
        async with await owner.connect(here.broker) as connection:
            by_count = await connection.subscribe("ok.a", max_messages=2)
            by_bytes = await connection.subscribe("ok.a", max_bytes=3)
            for n in range(4):
                await connection.publish("ok.a", str(n).encode())
            assert [await got(by_count), await got(by_count)] == [b"0", b"1"]
            assert [await got(by_bytes) for _ in range(3)] == [b"0", b"1", b"2"]
            assert (by_count.dropped, by_bytes.dropped) == (2, 1)
            assert owner.faults() == [Fault.SLOW_CONSUMER] * 2
            assert owner.metrics.totals("nats_messages_dropped")[()] == 3


async def test_a_restored_subscription_that_is_refused_now_ends_for_its_owner_alone(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        owner = here.owner(subscribe=Access(("ok.>", "was.>")), seconds=2)
        async with await owner.connect(here.broker) as connection:
            kept, lost = await connection.subscribe("ok.a"), await connection.subscribe("was.a")
            owner.subscribe = Access((f"{owner.inbox}.>", "ok.>"))
            with pytest.raises(PermissionViolation):
                await asyncio.wait_for(lost.next(), EVENT_SECONDS)
            await connection.publish("ok.a", b"kept")
            assert await got(kept) == b"kept"


@pytest.mark.req("C10-08")
async def test_credentials_of_another_user_key_end_the_connection(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        owner = here.owner(seconds=2)
        async with await owner.connect(here.broker) as connection:
            owner.key = new_user(os.urandom)
            await owner.until(lambda: owner.count(Happening.STOPPED) == 1)
            with pytest.raises(Stopped):
                await connection.publish("ok.a")
            assert Fault.CREDENTIALS_REFUSED in owner.faults()


async def test_a_login_that_swallows_its_cancellation_does_not_outlive_the_close(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        owner = here.owner()
        asked, ended = asyncio.Event(), asyncio.Event()

        async def stubborn() -> Credentials:
            asked.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:  # as `wait_for` does when its result comes at that moment
                ended.set()
            return await owner.mint()

        opening = asyncio.create_task(Connection.open([here.broker.url], stubborn, policy=QUICK))
        await asked.wait()
        opening.cancel()
        async with asyncio.timeout(EVENT_SECONDS):
            with pytest.raises(asyncio.CancelledError):
                await opening
        assert ended.is_set()


async def test_a_first_request_cancelled_before_its_inbox_is_placed_costs_the_next_nothing(tmp_path: Path) -> None:
    async with room(tmp_path) as here, await here.owner().connect(here.broker) as connection:
        async with connection._subscriptions.placing:
            first = asyncio.create_task(connection.request("$JS.API.INFO"))
            for _ in range(10):  # turns, until it waits for its place
                await asyncio.sleep(0)
            assert connection._mux is not None
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
        assert b"account_info" in (await connection.request("$JS.API.INFO")).data


async def test_a_subscription_that_is_cancelled_on_its_way_does_not_stay_at_the_broker(tmp_path: Path) -> None:
    """In a queue group it would take what others are to be given."""
    async with room(tmp_path) as here, await here.owner().connect(here.broker) as connection:
        assert connection._link is not None
        placed = connection._link._client._subs
        before = len(placed)
        for steps in range(24):
            task = asyncio.create_task(connection.subscribe("work", "group"))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await (await task).close()
            async with asyncio.timeout(EVENT_SECONDS):
                while len(placed) > before:  # noqa: ASYNC110 - its end has no event
                    await asyncio.sleep(0.001)
        assert not connection._subscriptions.placed
