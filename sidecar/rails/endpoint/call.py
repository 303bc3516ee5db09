"""One request as its handler sees it: who calls, what is asked, how long there is, and what may be said of the effect.

async def transfer(call: Call) -> JsonValue:
    if not enough(call.args):
        raise call.refuse(Code.FAILED_PRECONDITION, "not enough")   # outcome not-executed: nothing was begun
    call.effect()                                                   # from here on a refusal does not say so
    ...
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, Protocol

from sidecar.base.strictjson import JsonValue
from sidecar.rails.endpoint.codes import Code, Details, Outcome, Refusal, unsent
from sidecar.rails.endpoint.events import Event
from sidecar.rails.names.endpoint import UNTARGETED
from sidecar.rails.names.principals import Lifecycle

LEAST_SECONDS: Final = 0.001
"""The shortest deadline of a request."""
NO_CORRELATION: Final[Mapping[str, str]] = {}


class Emits(Protocol):
    """What publishes events of an incarnation."""

    async def emit(self, event: Event, data: JsonValue, correlation: Mapping[str, str] | None = None) -> int:
        """The sequence under which the event stands in the stream."""


class Asking(Protocol):
    """What calls other endpoints."""

    async def call(
        self,
        endpoint: str,
        command: str,
        args: dict[str, JsonValue] | None = None,
        *,
        seconds: float = ...,
        correlation: Mapping[str, str] | None = ...,
    ) -> JsonValue:
        """The data of the answer; CallError without one."""


class CallTarget(NamedTuple):
    """Whom a targeted command is about: checked to be current right before the handler ran (C13.2-38)."""

    lifecycle: Lifecycle
    mapping_revision: int | None = None


class Call:
    """What a handler is given. ``caller`` is authenticated by the broker; ``args`` keep the contract.

    ``name`` is what the caller calls itself, ``id`` its key for this request, ``deadline_ms`` how long it waits,
    ``route`` one of ``one``, ``all``, ``inst``; ``generation`` is that of an issued caller.
    """

    __slots__ = (
        "_deadline",
        "_emits",
        "args",
        "begun",
        "caller",
        "correlation",
        "deadline_ms",
        "generation",
        "id",
        "mode",
        "name",
        "route",
        "target",
    )

    def __init__(
        self,
        caller: Lifecycle,
        name: str,
        args: JsonValue,
        id: str,
        deadline_ms: int | None = None,
        *,
        route: str = "one",
        mode: str = UNTARGETED,
        target: CallTarget | None = None,
        correlation: Mapping[str, str] = NO_CORRELATION,
        generation: str | None = None,
        deadline: float | None = None,
        emits: Emits | None = None,
    ) -> None:
        self.caller, self.name, self.args, self.id, self.deadline_ms = caller, name, args, id, deadline_ms
        self.route, self.mode, self.target = route, mode, target
        self.correlation, self.generation = correlation, generation
        self.begun = False
        """Whether an effect may have begun."""
        self._deadline, self._emits = deadline, emits

    @property
    def seconds_left(self) -> float:
        """Until the handler is cancelled; never negative, infinite without a bound."""
        if self._deadline is None:
            return float("inf")
        return max(0.0, self._deadline - asyncio.get_running_loop().time())

    def effect(self) -> None:
        """From here on an effect may have begun: no refusal says ``not-executed`` any more (C13.3-45)."""
        self.begun = True

    def refuse(self, code: str, message: str, details: Details = ()) -> Refusal:
        """A refusal to raise, with what is known of the effect: none before :meth:`effect`, unknown behind it
        (C13.3-42, C13.3-44)."""
        return Refusal(code, message, Outcome.UNKNOWN if self.begun else Outcome.NOT_EXECUTED, details)

    async def emit(self, event: Event, data: JsonValue) -> int:
        """Publish an event of this endpoint, which is an effect; it carries the correlation of the request (C13.3-32).

        The sequence under which it is stored. Raises EventInvalid before the effect, and what ``store`` raises.
        """
        if self._emits is None:
            raise RuntimeError("this call has no stream of events")
        self.effect()
        return await self._emits.emit(event, data, self.correlation)

    async def ask(
        self,
        caller: Asking,
        endpoint: str,
        command: str,
        args: dict[str, JsonValue] | None = None,
        *,
        seconds: float = 15.0,
    ) -> JsonValue:
        """Call another endpoint on behalf of this request: with its correlation, and within the time that is left.

        Raises CallError: deadline-exceeded when nothing was sent because no time is left. Whether the call is an effect
        of this command is for the handler to say.
        """
        within = min(seconds, self.seconds_left)
        if within < LEAST_SECONDS:
            raise unsent(Code.DEADLINE_EXCEEDED, "there was no time left to send")
        return await caller.call(endpoint, command, args, seconds=within, correlation=self.correlation or None)


Handler = Callable[[Call], Awaitable[JsonValue]]
"""Gives the data of the answer, or raises Refusal with what it knows of the effect."""
Authorize = Callable[[Call], Awaitable[bool]]
"""Whether the caller stands in the relation to the target that the mode asks for, read freshly (C13.2-34, -35)."""
