"""Work that mostly does not wait, in as few tasks as it allows: most handlers give their answer at once.

What is put until a task begins is a batch, and the task takes it, one piece after the other, for as long as nothing
waits. What waits for something keeps the task for itself, as if it had been made for it alone, and each of the rest of
the batch gets one. So each piece of work has a task of its own while it waits, to be cancelled or bounded by, and a
context of its own always.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import copy_context
from functools import partial
from types import coroutine
from typing import Any, Generic, TypeVar

Work = Coroutine[Any, Any, None]


class Turn:
    """One piece of work. ``task`` is where it runs; it is its own from the moment in which it waits."""

    __slots__ = ("task",)

    task: asyncio.Task[None]


T = TypeVar("T", bound=Turn)


class Turns(Generic[T]):
    """Runs ``work`` of each turn in the order in which they are put. ``waits`` hears, once, that one waits; ``lost`` of
    one that will not begin, because the task that was to take it was cancelled before. No callable may raise.

    ``tasks`` is where every task stands while it runs: to end them, cancel them.
    """

    def __init__(
        self,
        work: Callable[[T], Work],
        waits: Callable[[T], None],
        lost: Callable[[T], None],
        tasks: set[asyncio.Task[None]],
    ) -> None:
        self._work, self._waits, self._lost, self._tasks = work, waits, lost, tasks
        self._batch: deque[T] | None = None
        """What may still be added to."""

    def put(self, turn: T) -> None:
        """Have the work done in a moment."""
        if self._batch is None:
            self._batch = deque()
            self._begin(self._batch)
        self._batch.append(turn)

    def _begin(self, batch: deque[T]) -> None:
        task = asyncio.get_running_loop().create_task(self._take(batch))
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, batch))

    async def _take(self, batch: deque[T]) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            # Work that cancelled the task it runs in has cancelled itself, and nothing that comes behind it.
            while batch and not task.cancelling():
                turn = batch.popleft()
                turn.task = task
                await self._turn(turn, batch)
        finally:
            self._leave(batch)

    def _leave(self, batch: deque[T]) -> None:
        """The task of a batch takes no more of it."""
        if self._batch is batch:
            self._batch = None
        while batch:
            self._begin(deque((batch.popleft(),)))

    @coroutine
    def _turn(self, turn: T, batch: deque[T]) -> Generator[Any, None, None]:
        """The work, step by step; what it waits for is what this waits for."""
        work, context = self._work(turn), copy_context()
        step: Callable[[Any], Any] = work.send
        value: BaseException | None = None
        first = True
        while True:
            try:
                awaited = context.run(step, value)
            except StopIteration:
                return
            if first:
                first = False
                self._leave(batch)
                self._waits(turn)
            try:
                yield awaited
            except BaseException as error:  # above all cancellation: it is for the work
                step, value = work.throw, error
            else:
                step, value = work.send, None

    def _ended(self, batch: deque[T], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if batch:  # cancelled before it began
            if self._batch is batch:
                self._batch = None
            while batch:
                self._lost(batch.popleft())
