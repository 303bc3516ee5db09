"""The service record of one instance, watched (C13.5-07, C13.8-42).

    async for record in caller.watch_instance("dev.sidecar.sample", instance):
        print(record.status)

The registry is asked again and again, and answers when a revision is another one. Every answer is the whole record, so
nothing is ever put on top of something that was missed: what comes is the newest there is, not every step to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from sidecar.base.strictjson import JsonValue
from sidecar.rails.endpoint import calls_repeat as again
from sidecar.rails.endpoint.calls_desk import Desk
from sidecar.rails.endpoint.calls_types import Recorded
from sidecar.rails.endpoint.codes import CallError, Code

WAIT_MS: Final = 20_000
"""How long the registry holds a question for which there is no news."""
MARGIN_SECONDS: Final = 10.0
RE_READS: Final = 5
"""Readings of a record whose status is of a later spec than its spec (C13.8-42)."""
_PASSING: Final = frozenset((Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.RESOURCE_EXHAUSTED))


class InstanceWatch:
    """Iterate it: the current record first, then each change. Ends with CallError when it may not be read; a registry
    that does not answer is waited for."""

    def __init__(self, desk: Desk, endpoint: str, instance: str) -> None:
        self._desk, self._endpoint, self._instance = desk, endpoint, instance

    async def __aiter__(self) -> AsyncIterator[Recorded]:
        seen: Recorded | None = None
        failed = 0
        while True:
            try:
                found = await self._settled(await self._read(seen))
                failed = 0
            except CallError as error:
                if error.code not in _PASSING or self._desk.wire.over:
                    raise
                self._desk.missed("record")
                await asyncio.sleep(again.pause(failed, self._desk.chance))
                failed += 1
                continue
            if seen is None or found != seen:
                yield found
            seen = found

    async def _read(self, seen: Recorded | None) -> Recorded:
        """Both halves, when one of them is not what was seen, or the wait is over."""
        args: dict[str, JsonValue] = {"endpoint": self._endpoint, "instanceId": self._instance}
        if seen is not None:
            args |= {"after": {"spec": seen.spec_revision, "status": seen.status_revision}, "waitMs": WAIT_MS}
        until = asyncio.get_running_loop().time() + WAIT_MS / 1000 + MARGIN_SECONDS
        found = await self._desk.registry("record", args, until)
        spec, spec_revision = _half(found.get("spec"))
        status, status_revision = _half(found.get("status"))
        observed = None if status is None else status.get("observedSpecRevision")
        settled = type(observed) is not int or observed <= spec_revision
        return Recorded(spec, spec_revision, status, status_revision, settled)

    async def _settled(self, found: Recorded) -> Recorded:
        """The record, read again for as long as its status knows a later spec than was read, within a bound."""
        for attempt in range(RE_READS):
            if found.settled:
                break
            await asyncio.sleep(again.pause(attempt, self._desk.chance))
            found = await self._read(None)
        return found


def _half(value: Any) -> tuple[Mapping[str, JsonValue] | None, int]:
    """Value and revision of a half; revision 0 is that of one that does not exist."""
    return (None, 0) if value is None else (value["value"], value["revision"])
