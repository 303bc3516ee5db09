"""Records of the ADMIN family: who holds the authority, which keys are enrolled, what is kept (OPEN P7-f, P7-g).

They are rows without an event, because there is no ADMIN event kind: who follows them takes a fresh snapshot. They tell
what is so and decide nothing: grants come from the registry, authority from the certificate. Like every change they
become durable through a batch alone, which needs a valid certificate and ends with the fencing.
"""

from __future__ import annotations

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


class Administration:
    """Keeps the ACTIVATION and CREDENTIAL records; the RETENTION record is CHANGE_RETENTION's."""

    def __init__(self, runtime: Runtime, transactions: Transactions) -> None:
        self._runtime = runtime
        self._transactions = transactions
        self._credentials: dict[bytes, AdminCredential] = {
            record.id: values for record, values in self._stored() if isinstance(values, AdminCredential)
        }

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
        """Bring the CREDENTIAL records to this generation of the registry.

        A registry that cannot be used admits nobody, but it tells nothing about the keys: no record changes.
        """
        if registry.generation == EMPTY.generation:
            return
        wanted = self._wanted(registry)
        before, head = self._credentials, self._transactions.head
        drops = [entry for id_ in before.keys() - wanted.keys() if (entry := head.get(ObjectKind.ADMIN, id_))]
        puts = []
        for id_, values in wanted.items():
            if before.get(id_) != values:
                entry = head.get(ObjectKind.ADMIN, id_)
                revision = 1 if entry is None else advance(entry.revision)
                puts.append(_record(id_, revision, AdminKind.CREDENTIAL, values))
        if puts or drops:
            self._transactions.administer(puts, [entry for entry in drops if isinstance(entry, Record)])
        self._credentials = wanted

    def _wanted(self, registry: Registry) -> dict[bytes, AdminCredential]:
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
