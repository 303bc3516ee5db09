"""The lease at a real broker, and the plane that lives and stops by it."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from sidecar.base.clock import Now, system_now
from sidecar.ops.logging import Log
from sidecar.rails.connection.kv import KeyValue
from sidecar.rails.messaging.liveness import Verdict
from sidecar.rails.names import buckets
from sidecar.rails.names.limits import DELIVERY_LEASE_SECONDS
from sidecar.rails.planes.delivery.daemon import DeliveryPlane, Lane, Loop
from sidecar.rails.planes.delivery.lease import Lease, LeaseRow
from sidecar.rails.planes.delivery.plane import Plane
from sidecar.rails.space.holder import Profile
from tests.e2e.durable_reads import Member, Town, soon, town
from tests.e2e.space_broker import EVENT_SECONDS
from tests.e2e.space_members import SPACE

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Clock:
    """The system's clock, which jumps on by what is slept."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self.slept: list[float] = []

    def __call__(self) -> Now:
        now = system_now()
        return Now(now.wall + self.ahead, now.mono + self.ahead)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.ahead += seconds
        await asyncio.sleep(0)


@dataclass
class Side:
    """One instance of the plane."""

    member: Member
    plane: Plane
    clock: Clock
    bucket: KeyValue

    def lease(self, instance: str, ended: tuple[str, ...] = ()) -> Lease:
        return Lease(self.plane, instance, ended=ended, sleep=self.clock.sleep)

    def events(self, kind: str) -> float:
        return self.plane.metrics.totals("delivery_lease").get((kind,), 0.0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Town]:
    async with town(tmp_path_factory.mktemp("lease")) as made:
        yield made


@contextlib.asynccontextmanager
async def opened(here: Town) -> AsyncIterator[Side]:
    async with here.member("delivery", Profile.DELIVERY) as member:
        clock = Clock()
        plane = Plane(
            member.connection, SPACE, here.space.form, member.lifecycle, member.metrics, Log(io.StringIO()), clock
        )
        bucket = KeyValue(member.connection, buckets.DELIVERY, SPACE)
        yield Side(member, plane, clock, bucket)


@pytest_asyncio.fixture(loop_scope="module")
async def side(here: Town) -> AsyncIterator[Side]:
    async with opened(here) as made:
        with contextlib.suppress(Exception):
            await made.bucket.delete("lease.0")
        yield made


async def within(awaited: Any) -> Any:
    async with asyncio.timeout(EVENT_SECONDS):
        return await awaited


async def row_of(side: Side) -> LeaseRow:
    entry = await side.bucket.get("lease.0")
    assert entry is not None
    return LeaseRow.decode(entry.value)


async def test_a_lease_is_taken_unready_and_then_ready(side: Side) -> None:
    lease = side.lease("a" * 32)
    await within(lease.acquire())
    row = await row_of(side)
    assert (row.holder, row.instance, row.ready) == ("local.delivery", "a" * 32, False)
    assert await lease.verdict() is Verdict.UNBOUND
    await within(lease.set_ready())
    assert lease.held
    assert (await row_of(side)).ready
    assert (await row_of(side)).since == row.since
    assert await lease.verdict() is Verdict.BOUND
    await lease.release()
    assert not lease.held
    assert await side.bucket.get("lease.0") is None


async def test_another_waits_until_the_row_was_silent_for_a_life(side: Side, here: Town) -> None:
    lease = side.lease("a" * 32)
    await within(lease.acquire())
    async with opened(here) as other:
        await within(other.lease("b" * 32).acquire())
        assert other.clock.ahead >= DELIVERY_LEASE_SECONDS
        assert (await row_of(other)).instance == "b" * 32
        assert other.events("stolen") == 1


async def test_the_row_of_a_dead_predecessor_is_taken_at_once(side: Side, here: Town) -> None:
    await within(side.lease("a" * 32).acquire())
    async with opened(here) as other:
        await within(other.lease("b" * 32, ended=("a" * 32,)).acquire())
        assert other.clock.slept == []


async def test_a_lease_that_was_given_up_is_taken_again_at_once_while_its_row_stands(side: Side) -> None:
    """As after a jump of the clock, or when the broker comes back in the last seconds of the row."""
    lease = side.lease("a" * 32)
    await within(lease.acquire())
    side.clock.ahead += DELIVERY_LEASE_SECONDS
    await within(lease.keep())
    assert not lease.held
    assert side.clock.slept == []
    await within(lease.acquire())
    assert (lease.held, side.clock.slept) == (True, [])


async def test_a_row_that_cannot_be_read_is_no_lease_of_anybody(side: Side) -> None:
    await side.bucket.put("lease.0", b"no row")
    await within(side.lease("a" * 32).acquire())
    assert side.clock.ahead >= DELIVERY_LEASE_SECONDS


async def test_it_is_renewed_at_half_of_its_life(side: Side) -> None:
    lease = side.lease("a" * 32)
    await within(lease.acquire())
    keeping = asyncio.create_task(lease.keep())
    await soon(lambda: side.events("renewed") >= 5)
    keeping.cancel()
    assert set(side.clock.slept) == {DELIVERY_LEASE_SECONDS / 2}
    assert lease.held


async def test_it_is_lost_when_somebody_else_writes_the_row(side: Side) -> None:
    lease = side.lease("a" * 32)
    await within(lease.acquire())
    await side.bucket.put("lease.0", LeaseRow("local.delivery", "b" * 32, 1, ready=True).encode())
    await within(lease.keep())
    assert not lease.held
    assert side.events("lost") == 1
    assert (await row_of(side)).instance == "b" * 32, "the row of the other is left alone"
    await lease.release()
    assert (await row_of(side)).instance == "b" * 32


async def test_an_own_write_whose_answer_was_lost_is_no_loss(side: Side) -> None:
    lease = side.lease("a" * 32)
    await within(lease.acquire())
    await side.bucket.put("lease.0", LeaseRow("local.delivery", "a" * 32, 1).encode())
    keeping = asyncio.create_task(lease.keep())
    await soon(lambda: side.events("renewed") >= 1)
    keeping.cancel()
    assert lease.held


async def test_it_is_left_before_the_broker_forgets_it_when_no_write_goes_through(side: Side) -> None:
    lease = side.lease("a" * 32)
    await within(lease.acquire())
    begun = side.clock.ahead
    await side.member.connection.close()
    await within(lease.keep())
    assert side.clock.ahead - begun < DELIVERY_LEASE_SECONDS
    assert not lease.held
    assert side.events("trouble") > 1, "it was tried again"


@pytest.mark.req("C6.1-16")
async def test_what_cannot_be_read_is_unknown(side: Side) -> None:
    lease = side.lease("a" * 32)
    await side.bucket.put("lease.0", b"no row")
    assert await lease.verdict() is Verdict.UNKNOWN
    await side.member.connection.close()
    assert await lease.verdict() is Verdict.UNKNOWN


# ---- the plane ----


class Story:
    """Loops that tell when they begin and end."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def loop(self, name: str, dies: Callable[[], bool] = lambda: False) -> Loop:
        async def run(bound: asyncio.Event) -> None:
            self.told.append(f"{name} begins")
            try:
                if dies():
                    raise ValueError("a bug")
                bound.set()
                await asyncio.Event().wait()
            finally:
                self.told.append(f"{name} ends")

        return Loop(name, run)


async def test_loops_are_bound_in_order_run_under_the_lease_and_stop_with_it(side: Side) -> None:
    story = Story()
    made = DeliveryPlane(
        side.plane,
        side.lease("a" * 32),
        always=[story.loop("liveness")],
        held=[story.loop("backstop"), story.loop("endpoint")],
    )
    running = asyncio.create_task(made.run())
    await within(made.settle())
    assert made.health.lane is Lane.SERVING
    assert made.health.unready() == []
    assert story.told == ["liveness begins", "backstop begins", "endpoint begins"]
    assert (await row_of(side)).ready
    await side.bucket.put("lease.0", LeaseRow("local.delivery", "b" * 32, 1).encode())
    await soon(lambda: len(story.told) >= 5)
    assert sorted(story.told[3:5]) == ["backstop ends", "endpoint ends"]
    assert side.events("lost") == 1
    # The other is not heard of for a whole life: its row is taken over.
    await soon(lambda: side.events("stolen") == 1 and made.health.lane is Lane.SERVING)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert story.told.count("liveness begins") == 1
    assert story.told.count("backstop ends") == 2
    assert await side.bucket.get("lease.0") is None, "a clean stop gives it back"
    assert made.health.unready() == ["the lane is stopped"]


async def test_a_loop_that_dies_is_started_again_and_counted(side: Side) -> None:
    story, left = Story(), [2]

    def dies() -> bool:
        left[0] -= 1
        return left[0] >= 0

    lease = Lease(side.plane, "a" * 32)
    made = DeliveryPlane(side.plane, lease, always=[], held=[story.loop("takes", dies), story.loop("sweep")])
    running = asyncio.create_task(made.run())
    await soon(lambda: made.health.broken != {})
    lane, died = made.health.unready()
    assert lane == "the lane is binding"
    assert died.startswith("takes died: ValueError at test_delivery_lease.py:")
    await within(made.settle())
    assert made.health.unready() == []
    assert side.plane.metrics.totals("delivery_restarts") == {("takes",): 2.0}
    assert story.told[:3] == ["takes begins", "takes ends", "takes begins"]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
