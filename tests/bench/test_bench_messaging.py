"""One post from one peer to another, beside raw nats-py, and what a received message costs beyond the client.

Both ways run in one process on one loop, with the same bytes, take turns in one run, and keep 64 posts in flight: each
is stored and acknowledged, and read by the other side from a live subscription.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop
from nats.aio.client import Client
from nats.aio.msg import Msg

from sidecar.base.clock import system_now
from sidecar.ops.metrics import Metrics
from sidecar.rails.envelopes.message import EndpointRef, Message, TextPart, encode, fresh_id
from sidecar.rails.messaging.inbox import Inbox
from sidecar.rails.messaging.peer import Peer
from sidecar.rails.names.headers import MESSAGE_ID
from sidecar.rails.names.subjects import CHAT
from sidecar.rails.space.holder import Form
from tests.bench.measure import show
from tests.e2e.peers import Society, society
from tests.e2e.space_members import SPACE

IN_FLIGHT = 64
POSTS = 3_000
ROUNDS = 7
TEXT = "Can you review this? " * 8
CHANNEL = "team.backend"
GOAL = 0.8
MICROSECONDS = 15.0
SUBJECT = CHAT.build(space=SPACE, owner="local", actor="alice", channel=CHANNEL)


def document(serial: int) -> tuple[str, bytes]:
    message_id = fresh_id(1_800_000_000_000, serial.to_bytes(10, "big"))
    sender = EndpointRef("local.alice", "alice")
    message = Message(message_id, 1_800_000_000_000, SPACE, sender, (TextPart(TEXT),), channel=CHANNEL)
    return message_id, encode(message, max_payload=1 << 20)


async def driven(send: Callable[[], Awaitable[object]], take: Callable[[], Awaitable[object]]) -> float:
    """Posts that were stored and read, per second."""
    left = itertools.repeat(None, POSTS)

    async def worker() -> None:
        for _ in left:
            await send()

    async def reader() -> None:
        for _ in range(POSTS):
            await take()

    begun = time.perf_counter()
    await asyncio.gather(reader(), *(worker() for _ in range(IN_FLIGHT)))
    return POSTS / (time.perf_counter() - begun)


async def of_peers(alice: Peer, bob: Peer) -> float:
    async def take() -> None:
        await (await bob.next()).handled()

    return await driven(lambda: alice.post(CHANNEL, TEXT), take)


async def of_clients(here: Society, serial: itertools.count[int]) -> float:
    """The same with the client library alone: encoded bytes go out, bytes come in."""
    sender, receiver = Client(), Client()
    creds = [str(here.creds(name)) for name in ("alice", "bob")]
    for client, path, name in ((sender, creds[0], "alice"), (receiver, creds[1], "bob")):
        inbox = f"_INBOX_{here.key(name).public}".encode()
        await client.connect(here.town.broker.url, user_credentials=path, inbox_prefix=inbox)
    try:
        stream = sender.jetstream()
        documents = iter([document(next(serial)) for _ in range(POSTS)])
        subscription = await receiver.subscribe(CHAT.filter(space=SPACE, channel=CHANNEL))
        for _ in range(2):  # the client writes a PING in front of what it has buffered
            await receiver.flush()

        async def send() -> None:
            message_id, data = next(documents)
            await stream.publish(SUBJECT, data, headers={MESSAGE_ID: message_id})

        async def take() -> None:
            await subscription.next_msg(timeout=30)

        return await driven(send, take)
    finally:
        await sender.close()
        await receiver.close()


def test_a_channel_from_one_to_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    async def run() -> tuple[list[float], list[float]]:
        serial = itertools.count(1)
        async with society(tmp_path, Form.COMPATIBLE) as here:
            await here.configure(CHANNEL, replay=False)
            async with here.peer("alice") as alice, here.peer("bob") as bob:
                await bob.join(CHANNEL)
                await of_peers(alice, bob)
                rounds = [(await of_peers(alice, bob), await of_clients(here, serial)) for _ in range(ROUNDS)]
        return [own for own, _ in rounds], [raw for _, raw in rounds]

    own, raw = uvloop.run(run())
    ratio = statistics.median(one / other for one, other in zip(own, raw, strict=True))
    show(
        capsys,
        f"messaging: a channel from one peer to another, {IN_FLIGHT} posts in flight, {len(document(1)[1])} bytes each",
        {
            "peers": (statistics.median(own), "posts/s"),
            "raw nats-py, JetStream publish and subscribe": (statistics.median(raw), "posts/s"),
            "peers as part of raw nats-py": (ratio, f"(goal {GOAL} or more)"),
        },
    )


def test_a_received_message(capsys: pytest.CaptureFixture[str]) -> None:
    """From the client's message to the member's hand: judged, coalesced, counted, handed out and settled."""
    count = 20_000
    frames = [
        Msg(_client=Client(), subject=SUBJECT, data=document(one)[1], reply="_INBOX_x.r.1") for one in range(count)
    ]

    async def seconds(metrics: Metrics | None) -> float:
        inbox = Inbox(mediated=False, clock=system_now, metrics=metrics)
        begun = time.process_time()
        for frame in frames:
            await inbox.live(frame)
            await (await inbox.next()).handled()
        spent = time.process_time() - begun
        await inbox.close()
        return spent / count * 1e6

    async def run() -> list[tuple[float, float]]:
        metrics = Metrics()
        return [(await seconds(None), await seconds(metrics)) for _ in range(ROUNDS)]

    spent = uvloop.run(run())
    show(
        capsys,
        "messaging: a received message, beyond the client library",
        {
            "without metrics": (statistics.median(one for one, _ in spent), "us"),
            "with metrics": (statistics.median(one for _, one in spent), f"us (goal {MICROSECONDS} or less)"),
        },
    )
