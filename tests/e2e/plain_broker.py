"""A nats-server without accounts of ours: open, or with a token, a user and password, or TLS."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sidecar.app.broker import free_port
from sidecar.base.safefile import write_private
from tests.e2e.cluster import eventually
from tests.e2e.space_broker import EVENT_SECONDS, greets, run_broker


@contextlib.contextmanager
def plain_broker(directory: Path, section: str = "") -> Iterator[int]:
    """The port of a server with these lines in its configuration."""
    port = free_port("127.0.0.1")
    config = directory / "nats-server.conf"
    store = directory / "jetstream"
    write_private(config, f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{store}" }}\n{section}'.encode())
    log = directory / "nats-server.log"
    process = run_broker(config, log)
    try:

        def answers() -> bool:
            assert process.poll() is None, log.read_text()
            return greets(port)

        eventually(answers)
        yield port
    finally:
        process.terminate()
        process.wait(EVENT_SECONDS)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A self-signed certificate for 127.0.0.1, with its key."""

    certificate: Path
    key: Path

    @property
    def section(self) -> str:
        """The lines of a server that asks for TLS."""
        return f'tls {{ cert_file: "{self.certificate}", key_file: "{self.key}" }}\n'


def self_signed(directory: Path) -> Certificate:
    """Made now, good for an hour."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    hour = datetime.timedelta(hours=1)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - hour)
        .not_valid_after(now + hour)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    made = Certificate(directory / "tls.crt", directory / "tls.key")
    write_private(made.certificate, certificate.public_bytes(serialization.Encoding.PEM))
    write_private(
        made.key,
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
    return made
