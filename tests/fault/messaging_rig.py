"""Peers of a real space under faults, and what an operator counts at the broker."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Self

import orjson

from sidecar.rails.messaging.inbox import Delivered
from sidecar.rails.messaging.peer import Peer
from sidecar.rails.names import api
from sidecar.rails.space.holder import Form
from tests.e2e.delivery_rig import Rig, root
from tests.e2e.durable_reads import Town
from tests.e2e.peers import Society
from tests.e2e.space_broker import SpaceBroker
from tests.e2e.space_members import Space

_WATCH = re.compile(r"^oc_[0-9a-f]{16}_[0-9]+$")
LONG_SECONDS = 40.0
"""Bound of a wait over a fault."""


class Listener:
    """Reads a peer to its end and handles everything; how often each message was shown, by its id."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.shown: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self._task: asyncio.Task[None] | None = None

    async def _listen(self) -> None:
        async for delivered in self.peer.deliveries():
            if delivered.notice is None:
                self._saw(delivered)
            await delivered.handled()

    def _saw(self, delivered: Delivered) -> None:
        self.shown[delivered.message.id] += 1
        self.kinds[delivered.meta.kind] += 1

    async def has(self, *ids: str, seconds: float = LONG_SECONDS) -> None:
        """Until all of these were shown."""
        try:
            async with asyncio.timeout(seconds):
                while not self.shown.keys() >= set(ids):
                    assert self._task is not None
                    if self._task.done():
                        self._task.result()
                    await asyncio.sleep(0.02)
        except TimeoutError:
            missing = set(ids) - self.shown.keys()
            raise AssertionError(f"{len(missing)} of {len(ids)} did not come: {sorted(missing)[:5]}") from None

    @property
    def twice(self) -> list[str]:
        return [one for one, count in self.shown.items() if count > 1]

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._listen())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def consumers(here: Society) -> dict[str, tuple[str, ...]]:
    """The consumers of every stream, as an operator sees them. A watch, which has another name after each loss, stands
    without it."""
    found = {}
    async with root(Rig(here.town)) as operator:
        listed = orjson.loads((await operator.request(api.STREAM_NAMES.build())).data)
        for stream in listed["streams"]:
            answer = orjson.loads((await operator.request(api.CONSUMER_NAMES.build(stream=stream))).data)
            found[stream] = tuple(sorted(_WATCH.sub("a watch", one) for one in answer["consumers"] or ()))
    return found


async def at_baseline(here: Society, before: dict[str, tuple[str, ...]]) -> None:
    """Until the consumers are exactly those of before."""
    now: dict[str, tuple[str, ...]] = {}
    try:
        async with asyncio.timeout(LONG_SECONDS):
            while (now := await consumers(here)) != before:  # noqa: ASYNC110 - it is at the broker
                await asyncio.sleep(0.1)
    except TimeoutError:
        pass
    changed = {stream: (before.get(stream), now.get(stream)) for stream in before | now}
    assert now == before, {stream: both for stream, both in changed.items() if both[0] != both[1]}


@contextlib.asynccontextmanager
async def limited(directory: Path, form: Form, store: str) -> AsyncIterator[Society]:
    """A space at a broker that stores so much and no more."""
    broker = SpaceBroker(directory)
    text = broker.config.read_text()
    broker.config.write_text(text.replace("jetstream { ", f"jetstream {{ max_file_store: {store}, ", 1))
    async with broker:
        space = Space(broker, form)
        await space.open()
        yield Society(Town(space))
