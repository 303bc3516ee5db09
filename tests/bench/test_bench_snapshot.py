"""Bytes per second of whole snapshots of 1 KiB records through a real server process, with the digest checked.

The floors are one SHA-256 over as many bytes in one call, and pages of the same size asked for and sent by a process
that does nothing else. Rounds take turns.
"""

from __future__ import annotations

import hashlib
import os
import socket
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cext.digest import snapshot_header
from sidecar.base.ed25519 import SigningKey
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import FrameType, Scope
from sidecar.coordinator.wire.limits import HARD
from tests.bench.lean import Commander, Lane, server, server_pid
from tests.bench.measure import cpu_seconds, show
from tests.e2e.cluster import Cluster

ROUNDS = 9
RECORDS = 24_000
"""As many as stay below the 32 MiB that the snapshots of one principal may pin."""
RECORD = 1_024
DOCUMENT = b'{"title":"' + b"x" * 963 + b'"}'
"""What makes the image of its objective one of RECORD bytes."""
COUNT = 2
"""Bytes of the count in front of the records of a page."""


class Reader(Lane):
    """Reads whole snapshots: it asks for the next page first and then hashes the one that came."""

    def __init__(self, cluster: Cluster, key: SigningKey) -> None:
        super().__init__(cluster, key, Scope.WORK_READ)
        self._arrived: list[tuple[int, memoryview]] = []

    def frames(self) -> None:
        """Keep what has arrived."""
        while (found := self.splitter.next_frame()) is not None:
            if found[0] != FrameType.COORD_AUTHORITY_RENEWED:
                self._arrived.append(found)

    def next(self) -> tuple[int, memoryview]:
        """The next frame; blocks."""
        while not self._arrived:
            self.splitter.buffer_updated(self.sock.recv_into(self.splitter.get_buffer(-1)))
            self.frames()
        return self._arrived.pop(0)

    def ask(self, frame: fr.Frame) -> None:
        """Send one request."""
        self.sock.sendall(frame.encode())

    def snapshot(self) -> float:
        """Seconds from OPEN_SNAPSHOT until the digest of all that came is compared with that of the server."""
        began = time.perf_counter()
        request = self.peer.request_id
        self.ask(
            fr.OpenSnapshot(
                request_id=request(), authority_guard=self.peer.guard, selector=0, reserve_subscription=False
            )
        )
        kind, body = self.next()
        assert kind == FrameType.SNAPSHOT_BEGIN, kind
        begin = fr.SnapshotBegin.decode(body)
        guard = begin.authority_guard
        header = snapshot_header(
            guard.coordinator_id,
            guard.authority_epoch,
            guard.activation_sequence,
            begin.base_event_sequence,
            RECORDS,
        )
        folded, nbytes, cursor = hashlib.sha256(header), 0, begin.first_cursor
        self.ask_page(begin, cursor)
        while cursor is not None:
            kind, body = self.next()
            assert kind == FrameType.SNAPSHOT_PAGE, kind
            page = fr.SnapshotPage.SCHEMA.scan(body)
            following = fr.SnapshotPage.next_cursor.id
            cursor = page.leaf(following) if page.has(following) else None
            self.ask_page(begin, cursor)
            images = page.view(fr.SnapshotPage.records.id)[COUNT:]
            folded.update(images)
            nbytes += len(images)
        kind, body = self.next()
        assert kind == FrameType.SNAPSHOT_END, kind
        end = fr.SnapshotEnd.decode(body)
        assert end.record_count == RECORDS
        assert nbytes == RECORDS * RECORD
        assert end.canonical_sha256 == folded.digest()
        spent = time.perf_counter() - began
        self.ask(
            fr.SnapshotApplied(
                request_id=request(), snapshot_id=begin.snapshot_id, initial_credit_count=0, initial_credit_bytes=0
            )
        )
        assert self.next()[0] == FrameType.ACK
        return spent

    def ask_page(self, begin: fr.SnapshotBegin, cursor: bytes | None) -> None:
        """Ask for the page at the cursor, if there is one more."""
        if cursor is not None:
            request = self.peer.request_id()
            self.ask(fr.SnapshotNext(request_id=request, snapshot_id=begin.snapshot_id, cursor=cursor))


def pages_alone() -> float:
    """Seconds for as many bytes of pages, each asked for with one byte, from a process that does nothing else."""
    ours, theirs = socket.socketpair()
    page, count = bytes(HARD.page_bytes), RECORDS * RECORD // HARD.page_bytes
    child = os.fork()
    if child == 0:
        for _ in range(count):
            theirs.recv(1)
            theirs.sendall(page)
        os._exit(0)
    storage = bytearray(HARD.page_bytes)
    began = time.perf_counter()
    for _ in range(count):
        ours.sendall(b"n")
        left = memoryview(storage)
        while left:
            left = left[ours.recv_into(left) :]
    spent = time.perf_counter() - began
    os.waitpid(child, 0)
    ours.close()
    theirs.close()
    return spent


def fill(cluster: Cluster, key: SigningKey) -> None:
    """Make the records."""
    commander = Commander(cluster, key)
    commander.load(RECORDS, DOCUMENT)
    commander.run()
    commander.close()


@pytest.mark.timeout(600)
def test_snapshot_stream(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    nbytes = RECORDS * RECORD
    whole = bytes(nbytes)
    costs: list[float] = []
    with server(tmp_path, 2) as (cluster, keys):
        fill(cluster, keys[0])
        reader = Reader(cluster, keys[1])
        pid = server_pid(cluster)

        def timed(way: Callable[[], object]) -> float:
            began = time.perf_counter()
            way()
            return time.perf_counter() - began

        reader.snapshot()
        rates: dict[str, list[float]] = {"stream": [], "sha256": [], "pages": []}
        for _ in range(ROUNDS):
            before = cpu_seconds(pid)
            rates["stream"].append(nbytes / reader.snapshot())
            costs.append((cpu_seconds(pid) - before) / nbytes)
            rates["sha256"].append(nbytes / timed(lambda: hashlib.sha256(whole).digest()))
            rates["pages"].append(nbytes / pages_alone())
        reader.close()
    stream, sha256, pages = (statistics.median(values) for values in rates.values())
    cost = statistics.median(costs)
    show(
        capsys,
        f"snapshot: {RECORDS} records of {RECORD} bytes, pages of at most {HARD.page_bytes} bytes",
        {
            "snapshot, digest checked": (stream / 1e6, "MB/s"),
            "floor: one SHA-256 over all of it": (sha256 / 1e6, "MB/s"),
            "floor: pages alone over a socket": (pages / 1e6, "MB/s"),
            "processor time of the server for a MB": (cost * 1e9, "ms"),
        },
        f"{stream / sha256:.2f} of the rate of one SHA-256",
        f"{stream / pages:.2f} of the rate of pages alone",
    )
