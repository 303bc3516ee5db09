"""The document of the admin socket: taken on the loop, and an answer in bounded time whatever the loop does."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from sidecar.coordinator import server
from sidecar.ops.admin import Unavailable
from tests.e2e.peer import Peer
from tests.unit.server.test_server import WORKLOAD_KEY, Rig, rigged


@rigged
async def test_a_look_is_taken_in_the_thread_of_the_loop(directory: Path) -> None:
    rig = Rig(directory)
    task = await rig.serving()
    looked_in: list[int] = []
    look = rig.engine.inspect

    def noted(now: object) -> object:
        looked_in.append(threading.get_ident())
        return look(now)  # type: ignore[arg-type]

    rig.engine.inspect = noted  # type: ignore[method-assign, assignment]
    with Peer(rig.path) as peer:
        await asyncio.to_thread(peer.login, WORKLOAD_KEY)
        document = await asyncio.to_thread(rig.server.describe)
    assert looked_in == [threading.get_ident()]
    (conn,) = document["connections"]
    assert (conn["pid"], conn["uid"]) == (os.getpid(), os.geteuid())
    assert document["counters"]["handshakes"] == {"ok": 1}
    assert 0 < document["authority"]["lease_seconds"] <= 60
    rig.stop.set()
    await task
    rig.store.close()


@rigged
async def test_before_and_after_serving_it_says_that_it_cannot(directory: Path) -> None:
    rig = Rig(directory)
    with pytest.raises(Unavailable, match="not serving yet"):
        await asyncio.to_thread(rig.server.describe)
    task = await rig.serving()
    rig.stop.set()
    await task
    loop = asyncio.new_event_loop()
    loop.close()
    rig.server._loop = loop
    with pytest.raises(Unavailable, match="has stopped"):
        await asyncio.to_thread(rig.server.describe)
    rig.store.close()


@rigged
async def test_a_loop_that_hangs_is_not_waited_for_and_does_not_look_later(directory: Path) -> None:
    rig = Rig(directory)
    task = await rig.serving()
    answered = threading.Event()
    said: list[str] = []
    looks: list[object] = []
    look = rig.engine.inspect
    rig.engine.inspect = lambda now: looks.append(now) or look(now)  # type: ignore[method-assign, func-returns-value]

    def ask() -> None:
        try:
            rig.server.describe()
        except Unavailable as error:
            said.append(str(error))
        answered.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "LOOK_SECONDS", 0.05)
        asking = threading.Thread(target=ask)
        asking.start()
        answered.wait()  # the loop hangs here
        asking.join()
    assert said == ["the event loop did not answer in 0.05 s"]
    await asyncio.sleep(0)
    assert looks == [], "nobody waits for it any more"
    assert (await asyncio.to_thread(rig.server.describe))["connections"] == []
    assert len(looks) == 1
    rig.stop.set()
    await task
    rig.store.close()


@rigged
async def test_a_failure_of_the_look_ends_nothing(directory: Path) -> None:
    rig = Rig(directory)
    task = await rig.serving()

    def broken(_now: object) -> object:
        raise RuntimeError("a bug")

    rig.engine.inspect = broken  # type: ignore[method-assign, assignment]
    with pytest.raises(Unavailable, match="an internal failure; the log has it"):
        await asyncio.to_thread(rig.server.describe)
    assert rig.events()[-1] == "internal_failure"
    assert rig.server.unready() == []
    rig.stop.set()
    assert await task is None
    rig.store.close()
