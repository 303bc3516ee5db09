"""The nats-server of ``sidecar dev``: JetStream on, loopback only, admitting whom the trust of its directory signs."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from sidecar.app.spaces import trust_lines
from sidecar.base.safefile import write_private

_CONFIG = """\
# Written by `sidecar dev` at every start. A loopback development broker; users prove keys, no password exists.
listen: "{host}:{port}"
server_name: "sidecar-dev"
pid_file: "{directory}/nats.pid"
jetstream {{
  store_dir: "{directory}/jetstream"
  # Every acknowledged message is on disk, as for the coordinator; the default would be every two minutes.
  sync_interval: always
}}
"""


@dataclass(frozen=True, slots=True)
class Broker:
    """How to start the broker and how to reach it."""

    url: str
    config: Path
    host: str
    port: int

    def answers(self) -> bool:
        """True when something accepts connections at the broker's address and greets as a nats-server does."""
        try:
            with socket.create_connection((self.host, self.port), timeout=0.2) as peer:
                return peer.recv(5) == b"INFO "
        except OSError:
            return False


def free_port(host: str) -> int:
    """A TCP port that is free at this moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def prepare_broker(directory: Path, *, port: int = 0, host: str = "127.0.0.1") -> Broker:
    """Writes the configuration, with the trust that ``directory`` holds; ``port`` 0 takes a free one.

    The trust is made at the first call. Nothing in the configuration is secret.
    """
    port = port or free_port(host)
    config = directory / "nats-server.conf"
    text = _CONFIG.format(host=host, port=port, directory=directory) + trust_lines(directory)
    write_private(config, text.encode())
    return Broker(f"nats://{host}:{port}", config, host, port)
