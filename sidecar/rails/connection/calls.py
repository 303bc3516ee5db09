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

    __slots__ = ("answer", "key", "left", "subject")

    def __init__(self, subject: str, key: str) -> None:
        self.subject, self.key = subject, key
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.left: asyncio.Future[None] | None = None
        """Who waits for the end of the call makes it."""

    def take(self, answer: Any) -> None:
        """The answer, if none came before."""
        if not self.answer.done():
            self.answer.set_result(answer)

    def fail(self, error: Exception) -> None:
        """Give the call this outcome, if it has none."""
        if not self.answer.done():
            self.answer.set_exception(error)


class Calls:
    """The calls of one connection by their subject in lower case, in the order of their begin."""

    def __init__(self) -> None:
        self._calls: dict[str, dict[Call, None]] = {}

    @contextlib.asynccontextmanager
    async def under_way(self, subject: str) -> AsyncIterator[Call]:
        """A call for the time of the block."""
        while (call := self.begin(subject)) is None:
            others = self._calls[subject.lower()]
            for other in others:
                if other.left is None:
                    other.left = other.answer.get_loop().create_future()
            await asyncio.wait([other.left for other in others if other.left is not None])
        try:
            yield call
        finally:
            self.end(call)

    def begin(self, subject: str) -> Call | None:
        """A call until :meth:`end`; None while one to another spelling of the subject is on its way."""
        key = subject.lower()
        calls = self._calls.get(key)
        call = Call(subject, key)
        if calls is None:
            self._calls[key] = {call: None}
        elif next(iter(calls)).subject != subject:
            return None
        else:
            calls[call] = None
        return call

    def end(self, call: Call) -> None:
        """The call is over, whatever came of it."""
        calls = self._calls[call.key]
        del calls[call]
        if not calls:
            del self._calls[call.key]
        if call.left is not None:
            call.left.set_result(None)
        if call.answer.done() and not call.answer.cancelled():
            call.answer.exception()  # told to the caller or of no interest to anybody

    def denied(self, key: str) -> bool:
        """The broker refused a publish to this subject; False when no call is about it."""
        calls = self._calls.get(key, {})
        for call in calls:
            call.fail(PermissionViolation(Fault.PUBLISH_DENIED, call.subject))
        return bool(calls)

    def fail_all(self, error: Exception) -> None:
        """The link is gone: no call gets its answer."""
        for calls in self._calls.values():
            for call in calls:
                call.fail(error)
