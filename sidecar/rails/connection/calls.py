"""Calls that the broker has not answered yet, so that its violations find the call that they are about.

The broker names the subject, the client library lower-cases it: of two subjects that differ in case alone only one is
on its way at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from sidecar.rails.connection.faults import Fault, PermissionViolation


class Call:
    """One publish or request on its way; ``answer`` may have an exception before there is anything to read."""

    __slots__ = ("answer", "left", "subject")

    def __init__(self, subject: str) -> None:
        loop = asyncio.get_running_loop()
        self.subject = subject
        self.answer: asyncio.Future[Any] = loop.create_future()
        self.left: asyncio.Future[None] = loop.create_future()

    def take(self, answer: Any) -> None:
        """The answer, if none came before."""
        if not self.answer.done():
            self.answer.set_result(answer)

    def fail(self, error: Exception) -> None:
        """Give the call this outcome, if it has none."""
        if not self.answer.done():
            self.answer.set_exception(error)


class Calls:
    """The calls of one connection by their subject in lower case."""

    def __init__(self) -> None:
        self._calls: dict[str, list[Call]] = {}

    @contextlib.asynccontextmanager
    async def under_way(self, subject: str) -> AsyncIterator[Call]:
        """A call for the time of the block."""
        key = subject.lower()
        while (others := self._calls.get(key)) and others[0].subject != subject:
            await asyncio.wait([other.left for other in others])
        call = Call(subject)
        self._calls.setdefault(key, []).append(call)
        try:
            yield call
        finally:
            calls = self._calls[key]
            calls.remove(call)
            if not calls:
                del self._calls[key]
            call.left.set_result(None)
            if call.answer.done() and not call.answer.cancelled():
                call.answer.exception()  # told to the caller or of no interest to anybody

    def denied(self, key: str) -> bool:
        """The broker refused a publish to this subject; False when no call is about it."""
        calls = self._calls.get(key, [])
        for call in calls:
            call.fail(PermissionViolation(Fault.PUBLISH_DENIED, call.subject))
        return bool(calls)

    def fail_all(self, error: Exception) -> None:
        """The link is gone: no call gets its answer."""
        for calls in self._calls.values():
            for call in calls:
                call.fail(error)
