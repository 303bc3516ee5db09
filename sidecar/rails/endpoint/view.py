"""What a serving instance asks of the trusted side: what a caller may call (C13.7-66), and who a target is (C13.2-38).

Both are read at each use and kept nowhere: the answer decides what is told and what is done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from sidecar.base.clock import Now, system_now
from sidecar.base.strictjson import JsonValue
from sidecar.rails.endpoint.codes import CallError
from sidecar.rails.names.principals import Lifecycle, Principal

REGISTRY: Final = "registry"
STALE_SECONDS: Final = 2.0
"""How old a view may be before nothing is told by it (C13.7-67)."""
READ_SECONDS: Final = 5.0


class Unavailable(Exception):  # noqa: N818 - what the trusted side is
    """The trusted view or store cannot be read, or what it says is too old."""


class Mapping(NamedTuple):
    """The lifecycle that an alias means now, and the store revision that says so (C13.7-42)."""

    uid: str
    revision: int


class View(Protocol):
    """Who may call what."""

    async def held(self, caller: Lifecycle, generation: str | None) -> frozenset[str]:
        """The commands of this endpoint that the caller may call. Raises Unavailable."""


class Mappings(Protocol):
    """Which lifecycle a principal has."""

    async def current(self, principal: Principal) -> Mapping | None:
        """The current mapping; None without one. Raises Unavailable."""


class Asks(Protocol):
    """The one thing of a caller that is needed here."""

    async def call(
        self, endpoint: str, command: str, args: dict[str, JsonValue] | None = None, *, seconds: float = ...
    ) -> JsonValue:
        """The data of the answer; CallError without one."""


class RegistryView:
    """The view of the space's registry. An answer from further than ``stale_seconds`` ago, or from the future, by the
    clock of this host counts as none."""

    def __init__(
        self,
        caller: Asks,
        endpoint: str,
        stale_seconds: float = STALE_SECONDS,
        *,
        clock: Callable[[], Now] = system_now,
    ) -> None:
        """``endpoint`` is the dotted name that is served."""
        self._caller, self._endpoint, self._stale, self._clock = caller, endpoint, stale_seconds, clock

    async def held(self, caller: Lifecycle, generation: str | None) -> frozenset[str]:
        """As of within ``stale_seconds``."""
        args: dict[str, JsonValue] = {"endpoint": self._endpoint, **caller.names}
        if generation is not None:
            args["generation"] = generation
        found = await _asked(self._caller, "caller-view", args)
        commands, as_of = found.get("commands"), found.get("asOfMs")
        if type(commands) is not list or type(as_of) is not int:
            raise Unavailable("the registry gave no view")
        if abs(self._clock().wall - as_of / 1000) > self._stale:
            raise Unavailable("the view of the registry is too old")
        return frozenset(one for one in commands if type(one) is str)


class RegistryMappings:
    """The mappings of the space, read by its registry."""

    def __init__(self, caller: Asks) -> None:
        self._caller = caller

    async def current(self, principal: Principal) -> Mapping | None:
        """As the registry reads it at its leader."""
        found = await _asked(self._caller, "target", {"owner": principal.owner, "actor": principal.actor})
        uid, revision = found.get("lifecycleUid"), found.get("mappingRevision")
        if uid is None and revision is None:
            return None
        if type(uid) is not str or type(revision) is not int:
            raise Unavailable("the registry gave no mapping")
        return Mapping(uid, revision)


async def _asked(caller: Asks, command: str, args: dict[str, JsonValue]) -> dict[str, JsonValue]:
    try:
        found = await caller.call(REGISTRY, command, args, seconds=READ_SECONDS)
    except CallError as error:
        raise Unavailable(f"the registry did not answer {command}: {error.code}") from None
    if type(found) is not dict:
        raise Unavailable(f"the registry gave nothing for {command}")
    return found
