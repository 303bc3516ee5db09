"""Invisible staging of a snapshot until its END proves it complete (P9-16).

Nothing leaves this module before guard, cursors, page indexes, key order, totals and digest were verified. The digest
covers the record count, which only END tells, so the record images are held and folded at the end.
"""

from __future__ import annotations

from typing import Final

from cext.digest import SnapshotDigest
from sidecar.coordinator.client_errors import VerificationFailed
from sidecar.coordinator.client_events import Snapshot
from sidecar.coordinator.client_trust import Standing
from sidecar.coordinator.wire.frames import SnapshotBegin, SnapshotEnd, SnapshotPage
from sidecar.coordinator.wire.ids import EventCut, SnapshotId, SubscriptionId
from sidecar.coordinator.wire.limits import QUOTAS
from sidecar.coordinator.wire.records import AuthorityGuard, SnapshotRecord

STAGING_BYTES: Final = QUOTAS["pinned_bytes"].server or 0
"""Most record bytes that are staged: no cut can be bigger than what a whole server may pin (P3-44)."""

_COUNT_BYTES: Final = 2


class SnapshotStaging:
    """One snapshot on its way in; what does not fit raises ``VerificationFailed``.

    With ``keep=False`` the snapshot is verified in full and its records are not returned. The frames were decoded
    completely before, the payload of every record included (P7-20, P7-27).
    """

    def __init__(self, begin: SnapshotBegin, guard: AuthorityGuard, standing: Standing, *, keep: bool) -> None:
        if begin.authority_guard != guard:
            raise VerificationFailed("guard", "the snapshot belongs to another activation than the connection")
        self.snapshot_id: SnapshotId = begin.snapshot_id
        self.subscription_id: SubscriptionId | None = begin.subscription_id
        self.cursor: bytes | None = begin.first_cursor
        self._base: EventCut = begin.base_event_sequence
        self._guard = guard
        self._standing = standing
        self._keep = keep
        self._records: list[SnapshotRecord] = []
        self._images: list[bytes] = []
        self._staged_bytes = 0
        self._record_count = 0
        self._last_key = b""

    def page(self, page: SnapshotPage) -> None:
        """Take the page that was asked for with ``cursor``; that is the next one afterwards, None after the last."""
        if page.snapshot_id != self.snapshot_id or page.cursor != self.cursor:
            raise VerificationFailed("cursor", "a snapshot page does not answer the request for it")
        if page.page_index != len(self._images):
            raise VerificationFailed(
                "page_index", f"snapshot page {page.page_index} came instead of {len(self._images)}"
            )
        records = page.records
        if not records:
            raise VerificationFailed("page_records", "a snapshot page is empty")
        for record in records:
            self._check(record)
        image = page.raw("records")[_COUNT_BYTES:]
        self._staged_bytes += len(image)
        if self._staged_bytes > STAGING_BYTES:
            raise VerificationFailed("size", f"the snapshot is bigger than {STAGING_BYTES} bytes")
        self._images.append(image)
        self._record_count += len(records)
        if self._keep:
            self._records.extend(records)
        self.cursor = page.next_cursor

    def _check(self, record: SnapshotRecord) -> None:
        key = record.key()
        if key <= self._last_key:
            raise VerificationFailed("order", "snapshot records are not unique and ascending by kind and id")
        self._last_key = key

    def end(self, end: SnapshotEnd) -> Snapshot:
        """Verify the whole after its last page and publish it."""
        if end.snapshot_id != self.snapshot_id:
            raise VerificationFailed("end", "the end of another snapshot")
        if (end.page_count, end.record_count) != (len(self._images), self._record_count):
            raise VerificationFailed("totals", "the totals of the snapshot are not what was received")
        guard = self._guard
        digest = SnapshotDigest(
            guard.coordinator_id, guard.authority_epoch, guard.activation_sequence, self._base, self._record_count
        )
        for image in self._images:
            digest.update(image)
        if digest.digest() != end.canonical_sha256:
            raise VerificationFailed("digest", "the digest of the snapshot does not match what was received")
        return Snapshot(
            self._base,
            self._standing,
            tuple(self._records),
            self._record_count,
            len(self._images),
            end.canonical_sha256,
            self.subscription_id,
        )
