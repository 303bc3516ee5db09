"""Work in few tasks: the order, who has a task, and that nothing of one piece of work reaches another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any

from sidecar.rails.endpoint.serve_turns import Turn, Turns

WORD: ContextVar[str] = ContextVar("word", default="none")


class One(Turn):
    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class Stage:
    """Turns whose work is looked up by name, and what they told."""

    def __init__(self, **works: Callable[[One], Coroutine[Any, Any, None]]) -> None:
        self.works = works
        self.ran: list[str] = []
        self.waited: list[str] = []
        self.lost: list[str] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.turns: Turns[One] = Turns(
            self._work, lambda one: self.waited.append(one.name), lambda one: self.lost.append(one.name), self.tasks
        )

    async def _work(self, one: One) -> None:
        name = one.name.rstrip("0123456789")
        if name in self.works:
            await self.works[name](one)
        self.ran.append(one.name)

    def put(self, *names: str) -> list[One]:
        made = [One(name) for name in names]
        for one in made:
            self.turns.put(one)
        return made

    async def done(self) -> None:
        while self.tasks:
            await asyncio.wait(set(self.tasks))


def test_what_does_not_wait_runs_in_one_task_in_its_order() -> None:
    async def run() -> None:
        stage = Stage()
        ones = stage.put("a", "b", "c")
        assert len(stage.tasks) == 1
        assert not stage.ran
        await asyncio.sleep(0)
        assert stage.ran == ["a", "b", "c"]
        assert len({one.task for one in ones}) == 1
        assert not stage.waited
        stage.put("d")
        await stage.done()
        assert stage.ran[-1] == "d"
        assert not stage.lost

    asyncio.run(run())


def test_what_waits_has_a_task_of_its_own_and_holds_nobody_up() -> None:
    async def run() -> None:
        gate = asyncio.Event()

        async def wait(one: One) -> None:
            await gate.wait()

        stage = Stage(wait=wait)
        ones = stage.put("a", "wait1", "b", "wait2", "c")
        for _ in range(3):
            await asyncio.sleep(0)
        assert stage.ran == ["a", "b", "c"]
        assert stage.waited == ["wait1", "wait2"]
        assert len(stage.tasks) == 2
        assert ones[1].task is not ones[3].task
        stage.put("d")
        await asyncio.sleep(0)
        assert stage.ran[-1] == "d"
        gate.set()
        await stage.done()
        assert stage.ran[-2:] == ["wait1", "wait2"]

    asyncio.run(run())


def test_many_that_wait_all_begin_at_once() -> None:
    async def run() -> None:
        async def wait(one: One) -> None:
            await asyncio.sleep(3600)

        stage = Stage(wait=wait)
        stage.put(*(f"wait{number}" for number in range(500)))
        for _ in range(2):
            await asyncio.sleep(0)
        assert len(stage.waited) == len(stage.tasks) == 500
        for task in set(stage.tasks):
            task.cancel()
        await stage.done()

    asyncio.run(run())


def test_each_has_a_context_of_its_own_through_all_its_waits() -> None:
    async def run() -> None:
        found: dict[str, list[str]] = {}

        async def mark(one: One) -> None:
            found[one.name] = [WORD.get()]
            token = WORD.set(one.name)
            await asyncio.sleep(0)
            found[one.name].append(WORD.get())
            inner = asyncio.create_task(asyncio.sleep(0, WORD.get()))
            assert await inner == one.name
            WORD.reset(token)

        async def hurry(one: One) -> None:
            found[one.name] = [WORD.get()]
            WORD.set(one.name)

        stage = Stage(mark=mark, hurry=hurry)
        stage.put("hurry1", "hurry2", "mark1", "hurry3", "mark2")
        await stage.done()
        assert found.pop("mark1") == ["none", "mark1"]
        assert found.pop("mark2") == ["none", "mark2"]
        assert set(map(tuple, found.values())) == {("none",)}
        assert WORD.get() == "none"

    asyncio.run(run())


def test_a_cancellation_and_a_timeout_reach_who_waits_alone() -> None:
    async def run() -> None:
        ended: list[str] = []

        async def late(one: One) -> None:
            try:
                async with asyncio.timeout(0.001):
                    await asyncio.sleep(3600)
            except TimeoutError:
                ended.append(one.name)
            await asyncio.sleep(0)

        async def stays(one: One) -> None:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                ended.append(one.name)
                await asyncio.sleep(0)  # it may still wait, to clean up

        stage = Stage(late=late, stays=stays)
        _, stays1, _, stays2 = stage.put("late1", "stays1", "late2", "stays2")
        for _ in range(2):
            await asyncio.sleep(0)
        stays1.task.cancel()
        await asyncio.wait({stays1.task})
        assert not stays2.task.done()
        stays2.task.cancel()
        await stage.done()
        assert sorted(ended) == ["late1", "late2", "stays1", "stays2"]
        assert sorted(stage.ran) == sorted(ended)

    asyncio.run(run())


def test_what_cancels_its_own_task_takes_nobody_along() -> None:
    async def run() -> None:
        async def suicide(one: One) -> None:
            one.task.cancel()

        async def wait(one: One) -> None:
            await asyncio.sleep(0)

        stage = Stage(suicide=suicide, wait=wait)
        stage.put("suicide", "wait1", "b")
        await stage.done()
        assert sorted(stage.ran) == ["b", "suicide", "wait1"]

    asyncio.run(run())


def test_what_has_not_begun_when_its_task_is_cancelled_is_lost_and_told_so() -> None:
    async def run() -> None:
        stage = Stage()
        stage.put("a", "b")
        for task in set(stage.tasks):
            task.cancel()
        stage.put("c")
        await stage.done()
        assert stage.ran == []
        assert stage.lost == ["a", "b", "c"]
        stage.put("d")
        await stage.done()
        assert stage.ran == ["d"]

    asyncio.run(run())


def test_a_fault_ends_one_piece_of_work_alone() -> None:
    async def run() -> list[object]:
        told: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

        async def fault(one: One) -> None:
            raise ZeroDivisionError

        stage = Stage(fault=fault)
        (one, *_) = stage.put("fault", "a", "b")
        await stage.done()
        assert isinstance(one.task.exception(), ZeroDivisionError)
        assert stage.ran == ["a", "b"]
        return told

    assert asyncio.run(run()) == []
