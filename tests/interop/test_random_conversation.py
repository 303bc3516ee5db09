"""Random legal conversations: whatever the order of pages, credit, gaps and cures, every view ends as the authority is.

The documents are large, so that a subscription overflows by bytes after a few dozen events (P3-36).
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.interop.phux import enums as e
from tests.interop.phux import records as r
from tests.interop.phux.client import Client, Scoped
from tests.interop.phux.stream import Phase, Replay, Snapshot, Stream
from tests.interop.scenes import PLENTY, create, head, same_view, update
from tests.interop.server import Server

DOCUMENT_BYTES = 120_000  # about 35 of them fill a queue
STEPS = 400
LIMITS = {"max_page_bytes": 200_000, "max_page_records": 7}
PASSING = {e.ErrorCode.CURSOR_INVALID, e.ErrorCode.RESOURCE_EXHAUSTED}  # overtaken by a gap, or no room now


class Follower:
    """One subscription of one client, driven by chance through every phase that it may have."""

    def __init__(self, client: Client, chance: random.Random) -> None:
        self.client = client
        self.chance = chance
        self.stream: Stream | None = None
        self.snapshot: Snapshot | None = None
        self.replay: Replay | None = None
        self.cures: set[str] = set()

    def step(self) -> None:
        """One action that is legal by all that this side knows; a gap on its way may make it late."""
        try:
            self._action()()
        except Scoped as refusal:
            if refusal.code not in PASSING:
                raise
            self.client.ping()
            self.snapshot = self.replay = None

    def _action(self) -> Callable[[], None]:
        if self.snapshot is not None:
            return self._apply if self.snapshot.pages.ended else self._turn
        if self.stream is None:
            return self.chance.choice((self._subscribe, self._reserve))
        if self.stream.phase is Phase.LIVE:
            return self.chance.choice((self._credit, self.client.ping))
        if self.replay is not None and self.stream.phase is Phase.REPLAYING:
            return self._resume if self.replay.pages.ended else self._turn_replay
        return self.chance.choice((self._replay, self._replay, self._replay, self._reserve))

    def _subscribe(self) -> None:
        self.stream = self.client.subscribe(*head(self.client))

    def _reserve(self) -> None:
        paused = self.stream
        self.snapshot = self.client.open_snapshot(reserve=True, replace=paused)
        self.stream = self.snapshot.stream
        if paused is not None:
            self.cures.add("replacement")

    def _turn(self) -> None:
        assert self.snapshot
        self.client.next_page(self.snapshot)

    def _apply(self) -> None:
        assert self.snapshot
        self.client.apply_snapshot(self.snapshot, self.chance.randrange(4), self.chance.randrange(300_000))
        self.snapshot = None

    def _credit(self) -> None:
        assert self.stream
        count, size = self.chance.randrange(3), self.chance.randrange(200_000)
        if self.stream.credit[0] + count <= PLENTY[0] and self.stream.credit[1] + size <= PLENTY[1]:
            self.client.give_credit(self.stream, count, size)

    def _replay(self) -> None:
        assert self.stream
        self.replay = self.client.open_replay(self.stream)

    def _turn_replay(self) -> None:
        assert self.replay
        self.client.next_replay_page(self.replay)

    def _resume(self) -> None:
        assert self.replay
        self.client.apply_replay(self.replay, self.chance.randrange(4), self.chance.randrange(300_000))
        self.cures.add("replay")
        self.replay = None

    def settle(self) -> None:
        """Nobody writes any more: heal what is paused, take all that is owed, and compare with a fresh snapshot."""
        while self.snapshot or not self.stream or self.stream.phase is not Phase.LIVE:
            self.step()
        stream, view = self.stream, head(self.client)[1]
        while not same_view(stream, view):
            self.client.give_credit(stream, PLENTY[0] - stream.credit[0], PLENTY[1] - stream.credit[1])
            self.client.ping()


@pytest.mark.req(
    "P10-17", "P10-18", "P10-25", "P10-34", "P10-35", "P10-36", "P9-25", "P9-26", "P13-08", "P14-13", "P3-36"
)
@pytest.mark.parametrize("seed", [1, 2])
def test_every_view_ends_as_the_authority_is(server: Server, seed: int) -> None:
    chance = random.Random(seed)
    with server.client() as writer, server.client(limits=LIMITS) as one, server.client("reader", limits=LIMITS) as two:
        objectives = [create(writer) for _ in range(4)]
        followers = [Follower(client, chance) for client in (one, one, two)]
        for _ in range(STEPS):
            if chance.random() < 0.5:
                document = chance.randbytes(chance.choice((10, DOCUMENT_BYTES, DOCUMENT_BYTES)))
                assert isinstance(update(writer, chance.choice(objectives), document), r.Succeeded)
            else:
                chance.choice(followers).step()
        for follower in followers:
            follower.settle()
        assert any(follower.cures for follower in followers)
