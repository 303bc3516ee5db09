"""A caller of endpoints for the credential that a command runs with."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from sidecar.app.access import Access, NoBroker
from sidecar.rails.connection import Notice
from sidecar.rails.endpoint.caller import Caller


@contextlib.asynccontextmanager
async def calling(
    access: Access, seconds: float, *, watch: Callable[[Notice], None] | None = None
) -> AsyncIterator[Caller]:
    """A caller on a connection of its own. Raises NoBroker when there is none within ``seconds``, and what
    ``Caller.connect`` raises."""
    heard: list[str] = []

    def noted(notice: Notice) -> None:
        if notice.said is not None:
            heard[:] = [notice.said.text or notice.said.fault.value]
        if watch is not None:
            watch(notice)

    async with contextlib.AsyncExitStack() as stack:
        connecting = Caller.connect(access.url, access.creds, name=access.name, tls=access.tls, watch=noted)
        try:
            async with asyncio.timeout(seconds):
                caller = await stack.enter_async_context(connecting)
        except TimeoutError:
            last = f": {heard[0]}" if heard else ""
            raise NoBroker(f"no connection to {access.url} within {seconds:g} s{last}") from None
        yield caller
