"""Pages of one verified cut of a coordinator: where a page goes on, what is on it, and how it is bounded.

A token names the activation, the cut and the digest of the snapshot that its page was read out of, and the last object
on it. The digest covers the activation and every record (P9-16), so that whoever holds the very same cut may answer the
next page, and nobody else.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from sidecar.base.strictjson import SAFE_INTEGER, canonical
from sidecar.coordinator.client_events import Snapshot
from sidecar.coordinator.values import body_of
from sidecar.coordinator.wire.enums import ObjectKind
from sidecar.coordinator.wire.payloads import decode_record_payload
from sidecar.coordinator.wire.records import SnapshotRecord

KINDS: Final = tuple(kind.name for kind in ObjectKind)
MOST_ROWS: Final = 100
DEFAULT_ROWS: Final = 50
PAGE_BYTES: Final = 512 * 1024
"""Bytes of the rows of one page, canonical JSON; a row that alone has more is shown without its content."""
KEY_BYTES: Final = 18
_HEX16: Final = "[0-9a-f]{32}"
_NUMBER: Final = "(0|[1-9][0-9]{0,19})"
TOKEN: Final = rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}\.({_HEX16}{_HEX16})\.([0-9a-f]{{{2 * KEY_BYTES}}})"
MAX_TOKEN: Final = 3 * 20 + 64 + 2 * KEY_BYTES + 4


class Token(NamedTuple):
    """Where the next page begins: behind the object with this key, in the cut with this digest."""

    epoch: int
    activation: int
    cut: int
    digest: bytes
    key: bytes

    def __str__(self) -> str:
        return f"{self.epoch}.{self.activation}.{self.cut}.{self.digest.hex()}.{self.key.hex()}"

    def within(self, snapshot: Snapshot) -> bool:
        """Whether this snapshot is the cut that the token is of."""
        standing = snapshot.standing
        told = (standing.epoch, standing.activation, snapshot.base, snapshot.digest)
        return told == (self.epoch, self.activation, self.cut, self.digest)


def read_token(text: str) -> Token:
    """The token that a text says. Raises ValueError for every other text."""
    found = re.fullmatch(TOKEN, text) if len(text) <= MAX_TOKEN else None
    if found is None:
        raise ValueError("is no token of a page")
    epoch, activation, cut, digest, key = found.groups()
    return Token(int(epoch), int(activation), int(cut), bytes.fromhex(digest), bytes.fromhex(key))


class Page(NamedTuple):
    """Rows of one cut, and the token of the next page; None when there is none."""

    rows: list[dict[str, Any]]
    next: Token | None


def page(snapshot: Snapshot, kind: ObjectKind | None, after: Token | None, limit: int) -> Page:
    """At most ``limit`` objects behind ``after``, ascending by kind and id, as many as fit into PAGE_BYTES."""
    records = snapshot.records
    begin, end = _range(records, kind)
    if after is not None:
        begin = max(begin, bisect_right(records, after.key, key=SnapshotRecord.key))
    rows: list[dict[str, Any]] = []
    room, at = PAGE_BYTES, begin
    while at < end and len(rows) < limit:
        row = row_of(records[at])
        size = len(canonical(row))
        if size > room and rows:
            break
        rows.append(row)
        room -= size
        at += 1
    if not rows or at >= end:
        return Page(rows, None)
    standing = snapshot.standing
    key = records[at - 1].key()
    return Page(rows, Token(standing.epoch, standing.activation, snapshot.base, snapshot.digest, key))


def _range(records: Sequence[SnapshotRecord], kind: ObjectKind | None) -> tuple[int, int]:
    """Where the objects of a kind stand: keys begin with it, and records ascend by key."""
    if kind is None:
        return 0, len(records)
    first, beyond = (number.to_bytes(2, "big") for number in (kind, kind + 1))
    return (
        bisect_left(records, first, key=SnapshotRecord.key),
        bisect_left(records, beyond, key=SnapshotRecord.key),
    )


def row_of(record: SnapshotRecord) -> dict[str, Any]:
    """One object: ``kind``, ``id``, ``revision`` and its ``content``; ``omittedBytes`` instead of one that is too
    large for any page."""
    head = {"kind": record.kind.name, "id": record.id.hex(), "revision": plain(record.revision)}
    row = {**head, "content": plain(body_of(decode_record_payload(record.kind, record.payload)))}
    if len(canonical(row)) > PAGE_BYTES:
        return {**head, "omittedBytes": len(record.payload)}
    return row


def plain(value: Any) -> Any:
    """The value with its whole numbers in the range that every JSON reader keeps; a larger one is its digits as text.

    Counters of the coordinator have 64 bits.
    """
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if type(value) is int and abs(value) > SAFE_INTEGER:
        return str(value)
    return value
