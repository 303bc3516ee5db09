"""Writing and closing a member's durable memberships, on the delivery endpoint (C7-16, C7-19, C7-35..37).

The registry is read before the class of a channel is resolved, each time (C4-06, C7-11). A request whose outcome nobody
knows may have had its effect: the membership is then owed, and looked up before it is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

from sidecar.base.strictjson import JsonValue
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import ConnectionFault
from sidecar.rails.endpoint.caller import Calls
from sidecar.rails.endpoint.calls_types import DELIVERY_SECONDS
from sidecar.rails.endpoint.codes import CallError, CallRefused, Code, Outcome
from sidecar.rails.endpoint.contracts import DELIVERY_ENDPOINT
from sidecar.rails.messaging.channel import Channel
from sidecar.rails.messaging.history import History, HistoryNotGranted, HistoryUnreadable
from sidecar.rails.messaging.membership import UNAVAILABLE, Event, Scope, wants_membership
from sidecar.rails.messaging.reads import Reads
from sidecar.rails.messaging.registry import Registry, RegistryUnreadable

_PASSING: Final = frozenset(
    {Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.RESOURCE_EXHAUSTED, Code.INTERNAL, Code.CONFLICT, Code.CANCELLED}
)
"""Refusals that another attempt may not meet."""


class SharedRegistry:
    """Reads of the registry: those that are asked for while one is under way share the next one (CD-10)."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads
        self._running: asyncio.Task[Registry] | None = None
        self._next: asyncio.Task[Registry] | None = None

    async def read(self) -> Registry:
        """The registry as of a read that began after this call. Raises RegistryUnreadable."""
        if self._next is None:
            self._next = asyncio.create_task(self._read_after(self._running))
            # Whoever asked may have been cancelled: then nobody takes what it ends with.
            self._next.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._next)

    async def _read_after(self, running: asyncio.Task[Registry] | None) -> Registry:
        if running is not None:
            await asyncio.wait([running])
        self._running, self._next = self._next, None
        try:
            return await self._reads.registry()
        except (ConnectionFault, TimeoutError) as error:
            raise RegistryUnreadable(str(error) or "no answer") from error


class Enrolment:
    """The memberships of one lifecycle."""

    def __init__(self, registry: SharedRegistry, history: History, caller: Calls, metrics: Metrics) -> None:
        self._registry = registry
        self._history = history
        self._caller = caller
        self._metrics = metrics

    # ---- join ----

    async def write(self, channel: Channel) -> None:
        """One attempt to have the membership that the channel is to have; ``channel.enrolled`` when that is decided."""
        if channel.scope is Scope.PATTERN:
            channel.enrolled = True
            return
        if channel.scope is Scope.CONCRETE:
            try:
                effective = (await self._registry.read()).effective(channel.name)
            except RegistryUnreadable as error:
                channel.shortfall = f"{UNAVAILABLE}: the class of the channel is not known ({error})"
                return
            if not wants_membership(channel.name, effective.delivery_class):
                channel.enrolled, channel.shortfall = True, None
                return
        try:
            cursor = await self._cursor(channel)
        except (HistoryUnreadable, HistoryNotGranted, ConnectionFault) as error:
            channel.shortfall = f"{UNAVAILABLE}: the end of the channel is not known ({error})"
            return
        await self._request(channel, cursor)

    async def _cursor(self, channel: Channel) -> int:
        """The watermark of the join; the end of CHAT, when none could be read before the subscription."""
        if channel.marks.watermark is None:
            channel.marks.begin(await self._history.frontier())
        assert channel.marks.watermark is not None
        return channel.marks.watermark

    async def _request(self, channel: Channel, cursor: int) -> None:
        owed = channel.standing.owed
        channel.move(Event.ASKED)
        try:
            answer = await self._call("durable-join", {"channel": channel.name, "joinCursor": cursor})
        except CallError as error:
            self._count("join", error)
            if not channel.standing.joined:
                return
            if error.outcome is Outcome.NOT_EXECUTED and not owed:
                channel.move(Event.NOT_WRITTEN)
            channel.shortfall = f"{UNAVAILABLE}: {error.message}"
            channel.enrolled = isinstance(error, CallRefused) and error.code not in _PASSING
            return
        if not channel.standing.joined:
            return  # the broker refused it meanwhile: the membership is owed, and closed
        generation = answer.get("generation")
        channel.generation = generation if type(generation) is int else None
        channel.enrolled = True
        if answer.get("durable") is True:
            channel.move(Event.WRITTEN)
            channel.shortfall = None
            self._count("join", None)
            return
        channel.move(Event.NOT_WRITTEN)
        reason = answer.get("reason")
        channel.shortfall = f"{UNAVAILABLE}: {reason}" if isinstance(reason, str) else UNAVAILABLE
        self._metrics.counter("messaging_membership_requests", "join", "refused").inc()

    # ---- leave ----

    async def leave(self, channel: Channel) -> bool:
        """Close the membership of a channel that is left; whether nothing is open any more. One that this process has
        not asked for may be there from an earlier one, if the channel is durable now (C7-11)."""
        if not channel.standing.owed and channel.scope is Scope.CONCRETE:
            with contextlib.suppress(RegistryUnreadable):  # then there may be one
                effective = (await self._registry.read()).effective(channel.name)
                if not wants_membership(channel.name, effective.delivery_class):
                    return True
        return await self.close(channel)

    async def close(self, channel: Channel) -> bool:
        """One attempt to close what may be open; whether nothing is open any more."""
        if channel.scope is Scope.PATTERN:
            return True
        try:
            if channel.generation is None:
                channel.generation = await self._open(channel.name)
            if channel.generation is not None:
                await self._call("durable-leave", {"channel": channel.name, "generation": channel.generation})
        except CallError as error:
            self._count("leave", error)
            if error.code != Code.NOT_FOUND:
                # It may be of another generation by now: the next attempt looks.
                channel.generation = None
                return False
        else:
            self._count("leave", None)
        channel.generation = None
        return True

    async def _open(self, name: str) -> int | None:
        """The generation of the open membership; None: there is none."""
        for one in await self._listed():
            if one.get("channel") == name and type(one.get("generation")) is int:
                return int(one["generation"])
        return None

    async def memberships(self) -> dict[str, bool]:
        """The open memberships by channel, and whether each is active yet. Raises CallRefused, CallFailed."""
        named = ((one.get("channel"), one.get("activated") is True) for one in await self._listed())
        return {channel: active for channel, active in named if isinstance(channel, str)}

    async def _listed(self) -> list[dict[str, Any]]:
        listed = (await self._call("list-memberships", None)).get("memberships")
        return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []

    async def _call(self, command: str, args: dict[str, JsonValue] | None) -> dict[str, JsonValue]:
        answer = await self._caller.call(DELIVERY_ENDPOINT, command, args, seconds=DELIVERY_SECONDS)
        return answer if isinstance(answer, dict) else {}

    def _count(self, command: str, error: CallError | None) -> None:
        outcome = "done" if error is None else "refused" if isinstance(error, CallRefused) else "unavailable"
        self._metrics.counter("messaging_membership_requests", command, outcome).inc()
