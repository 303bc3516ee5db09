"""A server process to measure, and peers that take little of the machine while they check what they get."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from cext.frame import MAX_LENGTH, Splitter
from sidecar.base.ed25519 import SigningKey
from sidecar.base.secret import Secret
from sidecar.coordinator.authority.registry import add_key
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import FrameType, Scope
from sidecar.coordinator.wire.events import EVENT_HEAD_BYTES
from sidecar.coordinator.wire.ids import SubscriptionId
from sidecar.coordinator.wire.limits import HARD
from tests.e2e.cluster import Cluster
from tests.e2e.peer import Peer

IN_FLIGHT = 64
ALL_SCOPES = int(sum(Scope))
DAY = 86_400
DELIVERY_AND_EVENT = struct.Struct(">22xQ3xQ")
"""Where a COORD_EVENT body has its delivery sequence and its event sequence."""
assert DELIVERY_AND_EVENT.size - 8 - 3 + 5 == EVENT_HEAD_BYTES


@contextlib.contextmanager
def server(directory: Path, principals: int) -> Iterator[tuple[Cluster, list[SigningKey]]]:
    """A cluster that runs, and the keys of so many more principals that may do everything."""
    cluster = Cluster(directory, certificate_seconds=30, serve={"log": {"level": "warning"}})
    keys = [SigningKey(Secret(os.urandom(32))) for _ in range(principals)]
    now = time.time()
    for key in keys:
        add_key(cluster.state_dir, key.public_key, ALL_SCOPES, int(now) + DAY, now=now)
    with cluster:
        yield cluster, keys


def server_pid(cluster: Cluster) -> int:
    """The process that is measured."""
    assert cluster.serve is not None
    return cluster.serve.pid


class Lane:
    """One connection that is logged in and read without blocking, frame by frame."""

    def __init__(self, cluster: Cluster, key: SigningKey, scopes: int = ALL_SCOPES) -> None:
        self.peer = Peer(cluster.socket).login(key, scopes)
        self.splitter = Splitter([MAX_LENGTH] * 256)

    @property
    def sock(self) -> socket.socket:
        return self.peer.sock

    def go(self) -> None:
        """From now on nothing blocks."""
        self.sock.setblocking(False)

    def close(self) -> None:
        self.peer.close()

    def readable(self) -> None:
        """Take what has arrived."""
        splitter = self.splitter
        with contextlib.suppress(BlockingIOError):
            while True:
                buffer = splitter.get_buffer(-1)
                room = len(buffer)
                count = self.sock.recv_into(buffer)
                assert count, "the server hung up"
                splitter.buffer_updated(count)
                self.frames()
                if count < room:
                    return

    def frames(self) -> None:
        """Look at every frame that is complete."""
        raise NotImplementedError


class Commander(Lane):
    """Sends commands that are ready, a fixed number of them in flight."""

    def __init__(self, cluster: Cluster, key: SigningKey, scopes: int = ALL_SCOPES) -> None:
        super().__init__(cluster, key, scopes)
        self._ready: deque[bytes] = deque()
        self.open = 0

    def load(self, count: int, document: bytes) -> None:
        """Make the frames of the next commands."""
        self._ready.extend(self.peer.create(document).encode() for _ in range(count))

    def fill(self) -> None:
        """Send as many as may be in flight."""
        wanted = min(IN_FLIGHT - self.open, len(self._ready))
        if wanted:
            self.open += wanted
            data = b"".join(self._ready.popleft() for _ in range(wanted))
            assert self.sock.send(data) == len(data)

    def run(self) -> None:
        """Send everything that was loaded and wait for the answers."""
        self.go()
        self.fill()
        while not self.done:
            assert select.select([self.sock], [], [], 30)[0], "nothing comes any more"
            self.readable()

    @property
    def done(self) -> bool:
        """Everything that was loaded is answered."""
        return not self.open and not self._ready

    def frames(self) -> None:
        """A result makes room for the next command."""
        while (found := self.splitter.next_frame()) is not None:
            if found[0] != FrameType.COORD_AUTHORITY_RENEWED:
                assert found[0] == FrameType.COORD_COMMAND_RESULT, found[0]
                self.open -= 1
        self.fill()


class Listener(Lane):
    """One subscription whose every delivery and event sequence is checked; gives back the credit it used."""

    def __init__(self, cluster: Cluster, key: SigningKey, after: int) -> None:
        super().__init__(cluster, key)
        self.subscription = SubscriptionId(self.peer.subscribe(after, HARD.credit_count, HARD.credit_bytes))
        self.seen = 0
        self.nbytes = 0
        self._event = after
        self._owed = 0
        self._owed_bytes = 0

    def frames(self) -> None:
        """Count events: no delivery and no event may be missing, repeated or out of order."""
        following, unpack = self.splitter.next_frame, DELIVERY_AND_EVENT.unpack_from
        seen, event, nbytes = self.seen, self._event, 0
        while (found := following()) is not None:
            kind, body = found
            if kind == FrameType.COORD_AUTHORITY_RENEWED:
                continue
            assert kind == FrameType.COORD_EVENT, kind
            seen += 1
            event += 1
            assert unpack(body) == (seen, event)
            nbytes += len(body) + 5
        self._owed += seen - self.seen
        self._owed_bytes += nbytes
        self.nbytes += nbytes
        self.seen, self._event = seen, event
        if self._owed >= HARD.credit_count // 4:
            frame = fr.CreditFrame(
                subscription_id=self.subscription, add_count=self._owed, add_bytes=self._owed_bytes
            ).encode()
            assert self.sock.send(frame) == len(frame)
            self._owed = self._owed_bytes = 0
