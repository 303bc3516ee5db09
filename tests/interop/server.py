"""A real server for the independent client. Only this file knows how one is started."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sidecar.base.ed25519 import fingerprint
from sidecar.coordinator.authority.registry import revoke_key
from tests.e2e.cluster import Cluster, short_directory
from tests.interop.phux.client import Client
from tests.interop.phux.handshake import Offer
from tests.interop.phux.proof import Pins

CERTIFICATE_SECONDS = 60


class Server:
    """A witness and a coordinator, with what a client is told of them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.path: Path = cluster.socket
        self.pins = Pins(
            authority_fingerprint=bytes.fromhex(cluster.ready["authority_fingerprint"].removeprefix("sha256:")),
            coordinator_id=bytes.fromhex(cluster.ready["coordinator_id"]),
            witness_id=cluster.provisioned.witness_id,
            witness_public_key=cluster.provisioned.witness_public_key,
        )

    def seed(self, name: str = "operator") -> bytes:
        """The private key of a workload: a file of 32 bytes."""
        return self.cluster.key_file(name).read_bytes()

    def client(self, name: str = "operator", **offer: Any) -> Client:
        """A logged-in client."""
        return Client.connect(self.path, self.seed(name), self.pins, Offer(**offer))

    def revoke(self, name: str) -> None:
        """Revoke a workload's key in the registry that the server watches."""
        revoke_key(self.cluster.state_dir, fingerprint(self.cluster.key(name).public_key), now=time.time())

    def crash_and_restart(self) -> None:
        """Kill the server as the system would, and start it on the same store."""
        self.cluster.kill()
        self.cluster.start_serve()


@contextlib.contextmanager
def running(certificate_seconds: int = CERTIFICATE_SECONDS) -> Iterator[Server]:
    """A fresh server with an empty store; processes end with the context."""
    with (
        short_directory() as directory,
        Cluster(Path(directory), certificate_seconds=certificate_seconds) as cluster,
    ):
        yield Server(cluster)
