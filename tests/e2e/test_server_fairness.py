"""One principal floods a real server: how many of its commands come before another's is counted, not timed.

The server is stopped (SIGSTOP) while the flood and the other command are sent, so that it finds all of it at once;
the event sequence of each result tells the order in which the commands were executed.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.coordinator.engine.policy import Policy
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode
from sidecar.coordinator.wire.limits import QUOTAS
from sidecar.coordinator.wire.records import Succeeded
from tests.e2e.cluster import Cluster
from tests.e2e.peer import Peer

CONNECTIONS = QUOTAS["connections"].principal or 0
REQUESTS = QUOTAS["requests"].principal or 0
BATCH = Policy().batch_events
EVENTS = 2
"""Of one CREATE_OBJECTIVE."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Cluster(tmp_path_factory.mktemp("fair"), certificate_seconds=60) as cluster:
        yield cluster


@contextlib.contextmanager
def flooders(cluster: Cluster) -> Iterator[list[Peer]]:
    """All the connections that one principal may have."""
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(Peer(Path(cluster.socket))) for _ in range(CONNECTIONS)]
        yield [peer.login(cluster.key("operator")) for peer in peers]


@contextlib.contextmanager
def stopped(cluster: Cluster) -> Iterator[None]:
    """The server does not run inside of this."""
    assert cluster.serve is not None
    os.kill(cluster.serve.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(cluster.serve.pid, signal.SIGCONT)


def executed(frame: fr.CoordCommandResult) -> int:
    assert isinstance(frame.operation, Succeeded)
    return frame.operation.completed_event_sequence


def answers(peer: Peer, count: int) -> list[fr.Frame]:
    """So many terminal replies, in the order in which they came."""
    found: list[fr.Frame] = []
    while len(found) < count:
        frame = peer.next()
        assert frame is not None
        if not isinstance(frame, fr.AuthorityRenewed):
            found.append(frame)
    return found


@pytest.mark.req("P14-14", "P3-42")
def test_single_commands_are_executed_among_a_flood_and_not_behind_it(cluster: Cluster) -> None:
    each = REQUESTS // CONNECTIONS
    with flooders(cluster) as crowd, Peer(cluster.socket) as modest:
        modest.login(cluster.key("admin"))
        for _ in range(5):
            images = [b"".join(peer.create().encode() for _ in range(each)) for peer in crowd]
            with stopped(cluster):
                for peer, image in zip(crowd, images, strict=True):
                    peer.send(image)
                modest.send(modest.create())
            mine = executed(modest.expect(fr.CoordCommandResult))
            theirs = sorted(
                executed(frame)
                for peer in crowd
                for frame in answers(peer, each)
                if isinstance(frame, fr.CoordCommandResult)
            )
            assert len(theirs) == REQUESTS, "the flood is within its quota"
            before = sum(sequence < mine for sequence in theirs)
            # At the most the batch that was on its way when the command was read, and its own.
            assert before * EVENTS <= 2 * BATCH
            assert before < len(theirs) - BATCH // EVENTS


@pytest.mark.req("P14-14", "P3-33", "P3-42", "P13-08")
def test_ten_thousand_pipelined_commands_are_each_answered_once_and_delay_nobody(cluster: Cluster) -> None:
    each = 10_000 // CONNECTIONS
    with flooders(cluster) as crowd, Peer(cluster.socket) as modest:
        modest.login(cluster.key("admin"))
        sent = [[peer.create() for _ in range(each)] for peer in crowd]
        with stopped(cluster):
            for peer, commands in zip(crowd, sent, strict=True):
                peer.send(*commands)
            modest.send(modest.create())
        mine = executed(modest.expect(fr.CoordCommandResult))
        done: list[int] = []
        for peer, commands in zip(crowd, sent, strict=True):
            found = answers(peer, each)
            assert sorted(getattr(frame, "request_id") for frame in found) == [  # noqa: B009
                command.request_id for command in commands
            ]
            done += [executed(frame) for frame in found if isinstance(frame, fr.CoordCommandResult)]
            refused = {frame.code for frame in found if isinstance(frame, fr.CoordErrorFrame)}
            assert refused <= {ErrorCode.RESOURCE_EXHAUSTED}
        assert sum(sequence < mine for sequence in done) * EVENTS <= 2 * BATCH
        assert len(done) >= REQUESTS
        # The connections are of use afterwards, and nothing is held any more.
        for peer in crowd:
            peer.send(peer.create())
            peer.expect(fr.CoordCommandResult)


def test_a_pipeline_that_is_held_back_by_its_size_goes_on_to_its_end(cluster: Cluster) -> None:
    """A connection is not read while a batch's worth of its payload waits; nothing but its own turns wakes it again."""
    size, count = 200_000, 64
    with Peer(cluster.socket) as greedy, Peer(cluster.socket) as modest:
        greedy.login(cluster.key("operator"))
        modest.login(cluster.key("admin"))
        for number in range(1, count + 1):
            greedy.send(greedy.create(bytes(size)))
            if number % 16 == 0:
                modest.send(modest.create())
                modest.expect(fr.CoordCommandResult)
        assert [type(frame) for frame in answers(greedy, count)] == [fr.CoordCommandResult] * count
