"""Keys that are never deleted: read at the leader, written by compare-and-set, a marker is corruption (C13.7-43).

Every read here gates a write, so that none is a Direct Get (C13.8-12). The connection is the caller's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from nats.aio.client import Client

from sidecar.rails.names import api, headers
from sidecar.rails.names.buckets import Bucket
from sidecar.rails.planes.registration.faults import Conflict, Corrupt
from sidecar.rails.space.asking import SECONDS, BrokerRefused, ask
from sidecar.rails.space.keys import read_key
from sidecar.rails.space.layout_control import store_faults

_WRONG_LAST: Final = 10071


class Cell(NamedTuple):
    """The value of a key and the revision that the next write names; None and 0 for one that was never written."""

    value: bytes | None
    revision: int


async def read_cell(client: Client, bucket: Bucket, space: str, subject: str) -> Cell:
    """A key that is never deleted. Raises Corrupt for a marker, BrokerRefused, nats.errors.Error."""
    kept = await read_key(client, bucket.stream(space), subject)
    if kept.value is None and kept.revision > 0:
        raise Corrupt(f"{subject} holds a marker; keys of this kind are never deleted")
    return Cell(kept.value, kept.revision)


async def write_cell(client: Client, subject: str, value: bytes, revision: int, *, ttl: int | None = None) -> int:
    """Write over exactly ``revision`` (0: create it, which loses over any earlier message, OPEN C13.12-b); the new
    revision. ``ttl``: seconds after which the broker forgets it. After a lost answer it may have been written.
    Raises Conflict, BrokerRefused, nats.errors.Error."""
    more = {} if ttl is None else {headers.TTL: f"{ttl}s"}
    return await _compared(client, subject, value, revision, more)


async def mark_deleted(client: Client, subject: str, revision: int) -> None:
    """Put a marker on a key of a kind that may end, if it stands at ``revision``. Raises Conflict, BrokerRefused."""
    await _compared(client, subject, b"", revision, {headers.KV_OPERATION: headers.KV_DELETE})


async def _compared(client: Client, subject: str, value: bytes, revision: int, more: Mapping[str, str]) -> int:
    told = {headers.EXPECTED_LAST_SEQUENCE: str(revision), **more}
    try:
        answer = await ask(client, subject, value, headers=told)
    except BrokerRefused as error:
        if error.code == _WRONG_LAST:
            raise Conflict(f"{subject} was changed by somebody else") from None
        raise
    return int(answer["seq"])


async def prove_authority(client: Client, bucket: Bucket, space: str, *, seconds: float = SECONDS) -> None:
    """That the stream behind a bucket loses nothing and is the primary (C13.12-18). Raises Corrupt, BrokerRefused."""
    answer = await ask(client, api.STREAM_INFO.build(stream=bucket.stream(space)), seconds=seconds)
    config = answer.get("config")
    faults = store_faults(bucket, config) if isinstance(config, dict) else ["it has no configuration"]
    if faults:
        raise Corrupt(f"{bucket.stream(space)} must not be served from: {'; '.join(faults)}")
