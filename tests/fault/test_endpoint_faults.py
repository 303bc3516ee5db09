"""Calls of an endpoint while its processes die, hang and take each other over, and while the broker does.

Whatever happens, each call ends once and what its caller is told of the effect is true: see ``Ledger.check``.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sidecar.ops.exitcodes import ExitCode
from sidecar.rails.endpoint.caller import Answer, Caller
from sidecar.rails.endpoint.calls_wire import AT_ONCE
from sidecar.rails.endpoint.codes import CallError, CallFailed, Code, Outcome
from sidecar.rails.space.holder import Capability
from tests.e2e.own_endpoints import Site, site
from tests.e2e.space_broker import EVENT_SECONDS
from tests.fault.chaos import OK, Child, Ledger, served, until
from tests.fault.chaos_endpoint import EFFECT, NAME, endpoint

pytestmark = pytest.mark.asyncio(loop_scope="module")
IN_FLIGHT = 64
SOON = 6.0
"""Deadline of calls that nobody will answer."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    async with site(tmp_path_factory.mktemp("chaos"), "com.acme") as made:
        yield made


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")


def caller_of(place: Site, actor: str = "alice") -> contextlib.AbstractAsyncContextManager[Caller]:
    return place.caller(endpoint, Capability(NAME, "*"), actor=actor)


def at_rest(caller: Caller) -> None:
    """Nothing of a call is left."""
    wire = caller._desk.wire
    assert not wire._waiting
    assert wire._open == 0
    assert not wire._connection._calls._calls


async def all_of(*calls: asyncio.Task[Answer | CallError]) -> list[Answer | CallError]:
    return list(await asyncio.gather(*calls))


# ---- a responder that dies or hangs ----


@pytest.mark.req("C13.3-39", "C13.3-42", "C13.3-46", "C13.3-49", "C13.3-50", "C13.5-03", "C13.14-01")
async def test_a_responder_that_is_killed_leaves_nobody_with_a_wrong_outcome(place: Site, ledger: Ledger) -> None:
    async with caller_of(place) as alice:
        async with served(place, ledger) as one:
            await ledger.call(alice, "count")
            calls = ledger.many(alice, "before", 16, seconds=SOON) + ledger.many(alice, "behind", 8, seconds=SOON)
            await until(lambda: ledger.began() == 25)
            # These are on their way to a process that takes nothing any more.
            one.signal(signal.SIGSTOP)
            calls += ledger.many(alice, "count", 16, seconds=SOON)
            await until(lambda: alice._desk.wire._open == 40)
            await one.kill()
            found = await all_of(*calls)
            assert {one.code for one in found if isinstance(one, CallError)} == {Code.DEADLINE_EXCEEDED}
            gone = await ledger.call(alice, "count")
            assert isinstance(gone, CallFailed)
            assert (gone.code, gone.outcome, gone.nobody) == (Code.UNAVAILABLE, Outcome.NOT_EXECUTED, True)
        async with served(place, ledger, one.instance) as again:
            assert again.epoch == one.epoch + 1
            answer = await ledger.call(alice, "count")
            assert isinstance(answer, Answer)
            assert (answer.instance, answer.epoch) == (again.instance, again.epoch)
        assert ledger.check() == {OK: 2, Outcome.UNKNOWN: 40, Outcome.NOT_EXECUTED: 1}
        assert len(ledger.lines(EFFECT)) == 2 + 8
        at_rest(alice)


@pytest.mark.req("C13.3-42", "C13.8-01", "C13.8-50")
async def test_what_a_hanging_responder_does_late_is_of_unknown_outcome_and_done_once(
    place: Site, ledger: Ledger
) -> None:
    async with caller_of(place) as alice, served(place, ledger) as one:
        await ledger.call(alice, "count")
        one.signal(signal.SIGSTOP)
        calls = ledger.many(alice, "once", 8, seconds=2.0)
        found = await all_of(*calls)
        assert all(isinstance(each, CallError) and each.outcome is Outcome.UNKNOWN for each in found)
        late = [identity for identity, outcome in ledger.ended.items() if outcome == Outcome.UNKNOWN]
        one.signal(signal.SIGCONT)
        await until(lambda: len(ledger.lines(EFFECT)) == 9)
        # Who asks again by the same id is told what became of it, and it is not done a second time.
        for identity in late:
            assert (await alice.invoke(NAME, "once", id=identity)).id == identity
        assert ledger.check() == {OK: 1, Outcome.UNKNOWN: 8}
        at_rest(alice)


# ---- takeover ----


@pytest.mark.req("C13.14-01", "C13.2-50", "C13.2-58", "C13.7-13")
async def test_a_takeover_under_load_doubles_no_effect_and_nobody_hears_the_superseded(
    place: Site, ledger: Ledger
) -> None:
    stop = asyncio.Event()

    async def keeps_calling(caller: Caller) -> None:
        while not stop.is_set():
            await ledger.call(caller, "count", seconds=SOON, repeat=True)

    async with caller_of(place) as alice, caller_of(place, "bob") as bob, served(place, ledger) as old:
        load = [asyncio.create_task(keeps_calling(caller)) for caller in (alice, bob) for _ in range(8)]
        await until(lambda: len(ledger.answers) > 200)
        async with served(place, ledger, old.instance) as new:
            assert await old.ended() == ExitCode.FENCED
            effects = len([pid for _, pid in ledger.lines(EFFECT) if pid == old.pid])
            served_before = len(ledger.answers)
            await until(lambda: len(ledger.answers) > served_before + 200)
            stop.set()
            await asyncio.gather(*load)
            told = ledger.check()
            for caller in (alice, bob):
                epochs = ledger.epochs(caller)
                assert epochs == sorted(epochs), "an answer of the superseded came behind one of its successor"
                assert set(epochs) == {old.epoch, new.epoch}
            assert len([pid for _, pid in ledger.lines(EFFECT) if pid == old.pid]) == effects
            assert told[OK] > 400
            at_rest(alice)
            at_rest(bob)


# ---- the broker ----


@pytest.mark.req("C13.3-46", "C13.3-50", "C13.8-50")
async def test_a_broker_that_is_killed_under_calls_ends_them_at_once_and_they_go_on_behind_it(
    place: Site, ledger: Ledger
) -> None:
    async with served(place, ledger) as one, served(place, ledger) as two:
        for actor in ("alice", "bob"):  # what hangs of the first keeps its places
            async with caller_of(place, actor) as caller:
                await restarted_under(place, ledger, caller, (one, two))
                at_rest(caller)
    ledger.check()


async def restarted_under(place: Site, ledger: Ledger, caller: Caller, serving: tuple[Child, ...]) -> None:
    """Kill the broker under calls, and start it again."""
    connection, known = caller._desk.connection, ledger.began()
    since = connection.interruptions
    hanging = ledger.many(caller, "before", 16, seconds=60) + ledger.many(caller, "behind", 16, seconds=60)
    await until(lambda: ledger.began() == known + 32)
    quick = ledger.many(caller, "count", IN_FLIGHT, seconds=60)
    await asyncio.sleep(0)
    place.broker.kill()
    found = await all_of(*hanging)
    assert {(each.code, each.outcome) for each in found if isinstance(each, CallError)} == {
        (Code.UNAVAILABLE, Outcome.UNKNOWN)
    }
    await asyncio.to_thread(place.broker.start)
    await all_of(*quick)
    async with asyncio.timeout(EVENT_SECONDS):
        await connection.restored(since)
        for child in serving:
            back = False
            while not back:
                back = isinstance(await ledger.call(caller, "count", instance=child.instance), Answer)


# ---- too much ----


@pytest.mark.req("C13.8-50", "C13.3-47")
async def test_ten_thousand_calls_of_one_caller_and_of_twenty_end_in_bounded_memory(
    place: Site, ledger: Ledger
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        one = await stack.enter_async_context(served(place, ledger))
        callers = [await stack.enter_async_context(caller_of(place, f"caller{number}")) for number in range(20)]
        await asyncio.gather(*(ledger.call(caller, "count") for caller in callers))
        before = one.resident()
        wires = [caller._desk.wire for caller in callers]
        most = 0
        for each in ([callers[0]] * 20, callers):
            calls = []
            for caller in each:
                calls += ledger.many(caller, "count", 500, seconds=60)
                await asyncio.sleep(0)  # the links of these callers live in this loop, and answer to pings
            while not all(call.done() for call in calls):
                most = max(most, *(len(wire._waiting) for wire in wires))
                await asyncio.sleep(0)
        told = ledger.check()
        assert most <= AT_ONCE
        assert told.keys() <= {OK, Outcome.NOT_EXECUTED}
        assert ledger.codes.keys() <= {Code.RESOURCE_EXHAUSTED}
        assert told[OK] >= 20 * 32
        assert one.resident() - before < 64 * 2**20
        for caller in callers:
            at_rest(caller)
            assert isinstance(await ledger.call(caller, "count"), Answer)


@pytest.mark.req("C13.3-37", "C13.3-40", "C13.3-45")
async def test_a_refusal_that_is_larger_than_a_message_keeps_its_outcome(place: Site, ledger: Ledger) -> None:
    async with caller_of(place) as alice, served(place, ledger):
        await all_of(*ledger.many(alice, "refuse", 32))
        told = ledger.check()
        assert told[Outcome.EXECUTED] + told[Outcome.NOT_EXECUTED] == 32
        assert ledger.codes.keys() == {Code.CONFLICT, Code.FAILED_PRECONDITION}
