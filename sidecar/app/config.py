"""The keys of `sidecar serve --config FILE`.

Bounds that the protocol sets come from its limits table. There is exactly one policy mode and exactly one transport, a
Unix socket; neither another mode nor another listener can be spelt here (W9-01..W9-04, P2-03, P2-04, P2-08, P2-09).
"""

import dataclasses
from pathlib import Path
from typing import Annotated

from sidecar.app.config_bounds import (
    DEFAULT_CONNECTION,
    DEFAULT_PRINCIPAL,
    DEFAULT_SERVER,
    DEFAULT_STORAGE,
    ConnectionQuotas,
    PrincipalQuotas,
    ServerQuotas,
    StorageSection,
    quotas_of,
)
from sidecar.coordinator.engine.policy import Policy
from sidecar.coordinator.wire.limits import FRAME_SLACK, HARD, RETENTION_FLOOR, Limits
from sidecar.ops.config import (
    DEFAULT_LOG,
    Address,
    Key,
    LogSection,
    boolean,
    choice,
    hex_bytes,
    integer,
    loopback,
    optional_path,
    path,
)

FREE_PORT = Address("127.0.0.1", 0)
_YEARS_100 = 100 * 366 * 86_400


@dataclasses.dataclass(frozen=True, slots=True)
class CoordinatorSection:
    """Where the coordinator keeps its material and how it is reached."""

    mode: Annotated[
        str,
        Key(
            choice("paired"),
            "Policy mode. Only `paired` exists: every client proves a registered key, also on the local socket.\n"
            "There is no default.",
            '"paired"',
        ),
    ]
    state_dir: Annotated[
        Path,
        Key(
            path,
            "Directory (0700) of the authority key `workload-authority.ed25519` and the registry `workload-keys`.\n"
            "Create the key with `sidecar workload authority --init`; nothing else creates it.",
            '"coordinator/state"',
        ),
    ]
    store_dir: Annotated[
        Path,
        Key(path, "Directory (0700) of the durable store. One process at a time holds it.", '"coordinator/store"'),
    ]
    socket: Annotated[
        Path,
        Key(
            path,
            "Unix socket of the endpoint. It is created 0600; its directory is created 0700, or must be 0700 already.",
            '"run/coordinator.sock"',
        ),
    ]
    max_sockets: Annotated[int, Key(integer(1, 65536), "Open sockets at most; one more is closed at once.")] = 1024
    max_unauthenticated: Annotated[
        int, Key(integer(1, 65536), "Of those, sockets at most that have not proved a key yet.")
    ] = 512
    result_retention_seconds: Annotated[
        int,
        Key(
            integer(RETENTION_FLOOR, _YEARS_100),
            "How long final operation results stay readable. The protocol's floor is 30 days.",
        ),
    ] = RETENTION_FLOOR


@dataclasses.dataclass(frozen=True, slots=True)
class WitnessSection:
    """The external activation witness that this coordinator trusts; copied from what the witness prints at start."""

    socket: Annotated[Path, Key(path, "Unix socket of the witness.", '"run/witness.sock"')]
    witness_id: Annotated[
        bytes, Key(hex_bytes(16), "Identity of the witness, pinned here, outside the store.", f'"{"0" * 31}1"')
    ]
    public_key: Annotated[
        bytes, Key(hex_bytes(32), "Ed25519 public key of the witness, pinned as well.", f'"{"d7" * 32}"')
    ]
    client_key_file: Annotated[
        Path,
        Key(
            path,
            "Key file (32-byte seed, 0600) with which this coordinator authenticates to the witness.",
            '"coordinator/witness-client.ed25519"',
        ),
    ]
    timeout_milliseconds: Annotated[
        int,
        Key(
            integer(10, 30_000),
            "How long one call to the witness may take before it counts as failed. A renewal has at most an\n"
            "eighth of the certificate's life, so that a witness that hangs is asked several times before that ends.",
        ),
    ] = 5_000
    wait_seconds: Annotated[
        int,
        Key(
            integer(0, 3600),
            "How long a start waits while the lease of a predecessor that did not stop cleanly runs out.",
        ),
    ] = 75


@dataclasses.dataclass(frozen=True, slots=True)
class LimitsSection:
    """What the server accepts at most; each connection gets the smaller of this and the client's offer."""

    frame: Annotated[int, Key(integer(2 * FRAME_SLACK, HARD.frame), "Bytes of one frame (type and payload).")] = (
        HARD.frame
    )
    page_bytes: Annotated[
        int, Key(integer(FRAME_SLACK, HARD.page_bytes), "Payload bytes of one snapshot or replay page.")
    ] = HARD.page_bytes
    page_records: Annotated[int, Key(integer(1, HARD.page_records), "Records or events in one page.")] = (
        HARD.page_records
    )
    typed_payload: Annotated[int, Key(integer(1, HARD.typed_payload), "Bytes of one command or event payload.")] = (
        HARD.typed_payload
    )
    credit_count: Annotated[int, Key(integer(1, HARD.credit_count), "Event credit of one subscription.")] = (
        HARD.credit_count
    )
    credit_bytes: Annotated[int, Key(integer(1, HARD.credit_bytes), "Byte credit of one subscription.")] = (
        HARD.credit_bytes
    )

    def limits(self) -> Limits:
        """The same as the protocol's value."""
        return Limits(**{field.name: getattr(self, field.name) for field in dataclasses.fields(self)})


@dataclasses.dataclass(frozen=True, slots=True)
class MetricsSection:
    """HTTP for /metrics, /healthz and /readyz. It says nothing about work, clients or keys."""

    listen: Annotated[
        Address,
        Key(
            loopback,
            "Loopback address and port, such as 127.0.0.1:9400; port 0 takes a free one (the ready line names it).",
            '"127.0.0.1:0"',
        ),
    ] = FREE_PORT


@dataclasses.dataclass(frozen=True, slots=True)
class AdminSection:
    """The admin socket that `sidecar coordinator top` and `quota` ask. Only the user that runs the server gets in."""

    enabled: Annotated[bool, Key(boolean, "Whether it is served at all.")] = True
    socket: Annotated[
        Path | None,
        Key(
            optional_path,
            "Unix socket (0600, its directory 0700). Empty: `admin.sock` beside the coordinator's socket;\n"
            "coordinators that share a directory need one each.",
            '""',
        ),
    ] = None


@dataclasses.dataclass(frozen=True, slots=True)
class ServeConfig:
    """`sidecar serve --config FILE`: one coordinator beside one nats-server."""

    coordinator: CoordinatorSection
    witness: WitnessSection
    limits: LimitsSection = LimitsSection()
    storage: StorageSection = DEFAULT_STORAGE
    connection_quotas: ConnectionQuotas = DEFAULT_CONNECTION
    principal_quotas: PrincipalQuotas = DEFAULT_PRINCIPAL
    server_quotas: ServerQuotas = DEFAULT_SERVER
    metrics: MetricsSection = MetricsSection()
    admin: AdminSection = AdminSection()
    log: LogSection = DEFAULT_LOG

    def policy(self) -> Policy:
        """What the engine is bound by."""
        return Policy(
            limits=self.limits.limits(),
            quotas=quotas_of(self.connection_quotas, self.principal_quotas, self.server_quotas),
            retention_seconds=self.coordinator.result_retention_seconds,
            event_bytes=self.storage.event_bytes,
            event_count=self.storage.event_count,
            storage_bytes=self.storage.record_bytes,
        )

    @property
    def admin_socket(self) -> Path | None:
        """Where the admin socket is; None when there is none."""
        if not self.admin.enabled:
            return None
        return self.admin.socket or self.coordinator.socket.parent / "admin.sock"
