"""What a terminal is told on a credential that reads direct messages and nothing else (C8-36..C8-39)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from sidecar.app.conversation import LOOK_SECONDS, Event, Notices, Said, Told
from sidecar.base.clock import system_now
from sidecar.rails.messaging.desk import Via
from sidecar.rails.messaging.dm_reader import Direct
from sidecar.rails.messaging.peer import Peer


async def directs(
    peer: Peer, notices: Notices, stop: asyncio.Event, *, idle: float | None = None
) -> AsyncIterator[Event]:
    """Until it is stopped, or nothing was said for ``idle`` seconds. What was not shown comes again.

    Raises what ends such a reader: ConsumerGone without a durable, IntakeRefused, PermissionViolation, Stopped.
    """
    reader = peer.dm_reader()
    refused: dict[str, float] = {}
    last = system_now().mono
    reading: asyncio.Task[Direct] | None = None
    try:
        while not stop.is_set():
            while (told := notices.take()) is not None:
                yield told
            for (_, reason), total in peer.metrics.totals("messaging_copies_refused").items():
                if total > refused.get(reason, 0.0):
                    refused[reason] = total
                    yield Told("refused", f"{int(total)} messages were refused so far: {reason}", {"reason": reason})
            reading = reading or asyncio.create_task(reader.next())
            stopped = asyncio.create_task(stop.wait())
            await asyncio.wait((reading, stopped), timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            if not reading.done():
                if idle is not None and system_now().mono - last >= idle:
                    return
                continue
            direct, reading = reading.result(), None
            last = system_now().mono
            yield Said(direct.received.message, direct.received.meta, (Via.DURABLE,), handled=direct.handled)
    finally:
        if reading is not None:
            reading.cancel()
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await (await reading).later()
        await reader.close()
