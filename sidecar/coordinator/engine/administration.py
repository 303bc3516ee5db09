"""Records of the ADMIN family: who holds the authority, which keys are enrolled, what is kept (OPEN P7-f, P7-g).

They are rows without an event, because there is no ADMIN event kind: who follows them takes a fresh snapshot. They tell
what is so and decide nothing: grants come from the registry, authority from the certificate. Like every change they
become durable through a batch alone, which needs a valid certificate and ends with the fencing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from sidecar.coordinator.authority.grants import EMPTY, KeyRecord, Registry
from sidecar.coordinator.engine.commands import record_of
from sidecar.coordinator.engine.runtime import Runtime
from sidecar.coordinator.engine.state import Record
from sidecar.coordinator.engine.transact import Transactions
from sidecar.coordinator.wire.enums import AdminKind, ObjectKind, Scope
from sidecar.coordinator.wire.ids import ID_SIZE, KeyId, advance
from sidecar.coordinator.wire.limits import SERVICE
from sidecar.coordinator.wire.payloads import AdminRecord
from sidecar.coordinator.wire.records import AdminActivation, AdminCredential, AdminPayload, SnapshotRecord

ACTIVATIONS_KEPT = 16
"""ACTIVATION records, the newest ones."""
CREDENTIALS_STEP = 256
"""CREDENTIAL records that change at once: a registry may have thousands of keys, and nobody waits for all of them."""


class Administration:
    """Keeps the ACTIVATION and CREDENTIAL records; the RETENTION record is CHANGE_RETENTION's."""

    def __init__(self, runtime: Runtime, transactions: Transactions) -> None:
        self._runtime = runtime
        self._transactions = transactions
        self._credentials: dict[bytes, AdminCredential] = {
            record.id: values for record, values in self._stored() if isinstance(values, AdminCredential)
        }
        """What the records tell now."""
        self._wanted: dict[bytes, AdminCredential] = {}
        """What they are to tell, by the newest registry."""
        self._due: deque[bytes] = deque()
        """Ids of records of which the two may differ."""

    def activated(self) -> None:
        """Note the activation of this engine and forget the oldest ones."""
        certificate = self._runtime.authority.certificate
        known = sorted(
            (values.activation_sequence, record)
            for record, values in self._stored()
            if isinstance(values, AdminActivation)
        )
        values = AdminActivation(
            certificate.authority_epoch,
            certificate.activation_sequence,
            certificate.incarnation_id,
            certificate.guard().fencing_token_sha256,
            certificate.issued_at,
        )
        record = _record(certificate.incarnation_id, 1, AdminKind.ACTIVATION, values)
        excess = max(0, len(known) + 1 - ACTIVATIONS_KEPT)
        self._transactions.administer([record], [old for _, old in known[:excess]])

    def registered(self, registry: Registry) -> None:
        """Bring the CREDENTIAL records to this generation of the registry; many changes take several ticks.

        A registry that cannot be used admits nobody, but it tells nothing about the keys: no record changes.
        """
        if registry.generation == EMPTY.generation:
            return
        self._wanted = self._all(registry)
        self._due = deque(self._credentials.keys() - self._wanted.keys())
        self._due += (id_ for id_, values in self._wanted.items() if self._credentials.get(id_) != values)
        self.catch_up()

    def catch_up(self) -> None:
        """Change a bounded number of the records that are due."""
        if not self._due:
            return
        head, puts, drops = self._transactions.head, [], []
        for id_ in [self._due.popleft() for _ in range(min(CREDENTIALS_STEP, len(self._due)))]:
            entry, values = head.get(ObjectKind.ADMIN, id_), self._wanted.get(id_)
            if values is not None:
                revision = 1 if entry is None else advance(entry.revision)
                puts.append(_record(id_, revision, AdminKind.CREDENTIAL, values))
                self._credentials[id_] = values
            else:
                assert isinstance(entry, Record)
                drops.append(entry)
                del self._credentials[id_]
        self._transactions.administer(puts, drops)

    def _all(self, registry: Registry) -> dict[bytes, AdminCredential]:
        """The record of each key by its id, which is only half a key id.

        Keys that share it cannot both be shown: the lowest key id is, in every process the same. A record of another
        kind is never replaced.
        """
        head, coordinator_id = self._transactions.head, self._runtime.authority.coordinator_id
        wanted: dict[bytes, AdminCredential] = {}
        for key in sorted(registry.records, key=lambda key: key.key_id):
            id_ = key.key_id[:ID_SIZE]
            foreign = id_ == coordinator_id or (
                id_ not in self._credentials and head.get(ObjectKind.ADMIN, id_) is not None
            )
            if key.service.encode() == SERVICE and id_ not in wanted and not foreign:
                wanted[id_] = _credential(key)
        return wanted

    def _stored(self) -> Iterator[tuple[Record, AdminPayload]]:
        for _, entry in self._transactions.head.family(ObjectKind.ADMIN).entries.items():
            assert isinstance(entry, Record)
            yield entry, AdminRecord.decode(SnapshotRecord.decode(entry.image).payload).content()


def _credential(key: KeyRecord) -> AdminCredential:
    return AdminCredential(KeyId(key.key_id), Scope(key.scopes), key.expires_at, key.revoked_at)


def _record(id_: bytes, revision: int, kind: AdminKind, values: AdminPayload) -> Record:
    return record_of(ObjectKind.ADMIN, id_, revision, AdminRecord(admin_kind=kind, payload=values.encode()))
