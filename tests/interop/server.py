"""A real server for the independent client. Only this file knows how one is started."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.e2e.cluster import Cluster, short_directory
from tests.interop.phux.client import Client
from tests.interop.phux.handshake import Offer
from tests.interop.phux.proof import Pins

CERTIFICATE_SECONDS = 10


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


@contextlib.contextmanager
def running(**options: Any) -> Iterator[Server]:
    """A fresh server with an empty store; processes end with the context."""
    with (
        short_directory() as directory,
        Cluster(Path(directory), certificate_seconds=CERTIFICATE_SECONDS, **options) as cluster,
    ):
        yield Server(cluster)
