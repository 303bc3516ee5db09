"""The nats-server of ``sidecar dev``: JetStream on, loopback only, one user that proves an nkey."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from sidecar.base.ed25519 import SigningKey
from sidecar.base.safefile import write_private
from sidecar.base.secret import Secret
from sidecar.rails.space.nkeys import USER, public_nkey, seed_nkey

_CONFIG = """\
# Written by `sidecar dev` at every start. A loopback development broker; the user proves a key, no password exists.
listen: "{host}:{port}"
server_name: "sidecar-dev"
pid_file: "{directory}/nats.pid"
jetstream {{
  store_dir: "{directory}/jetstream"
  # Every acknowledged message is on disk, as for the coordinator; the default would be every two minutes.
  sync_interval: always
}}
authorization {{
  users: [ {{ nkey: "{user}" }} ]
}}
"""


@dataclass(frozen=True, slots=True)
class Broker:
    """How to start the broker and how to reach it."""

    url: str
    config: Path
    seed_file: Path
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
    """Writes the configuration, and the user's seed at the first call; ``port`` 0 takes a free one.

    The seed file (0600) is what ``nats --nkey FILE`` takes.
    """
    seed_file = directory / "admin.nk"
    public_file = directory / "admin.pub"
    if not (seed_file.exists() and public_file.exists()):
        seed = Secret(os.urandom(32))
        write_private(seed_file, seed_nkey(USER, seed))
        write_private(public_file, public_nkey(USER, SigningKey(seed).public_key).encode())
    port = port or free_port(host)
    config = directory / "nats-server.conf"
    text = _CONFIG.format(host=host, port=port, directory=directory, user=public_file.read_text())
    write_private(config, text.encode())
    return Broker(f"nats://{host}:{port}", config, seed_file, host, port)
