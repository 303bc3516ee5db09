"""Rows of the processes that keep the control surface: registry, record writer, publisher, registrar, issuer and the
writer of lifecycles (C13.9-M07, M22, M23, M25, M35, M36, M55, M67). None of them is an agent's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from sidecar.rails.names import api, buckets, consumers, planes, streams
from sidecar.rails.names.buckets import Bucket
from sidecar.rails.names.template import Template
from sidecar.rails.space.holder import Holder, Profile
from sidecar.rails.space.layout_control import WRITTEN
from sidecar.rails.space.rows import Row, Values, calls, constant, grant, keys_of, single, space_of

SERVICE_KIND = "svc"
"""The record kind of registrations."""


def _keys(row: str, held: tuple[Profile, ...], bucket: Bucket, *keys: Template, below: bool = False) -> Iterator[Row]:
    """Every key of exactly these forms: a wildcard for each token, never for several unless ``below``."""
    for key in keys:

        def values(holder: Holder, key: Template = key) -> Iterable[Values]:
            name = bucket.bucket(holder.space)
            return [{"bucket": name, "key": key.subtree() if below else key.filter()}]

        yield grant(row, held, "publish", buckets.KV_SUBJECT, values)


def _filtered(row: str, held: tuple[Profile, ...], name: streams.Stream | Bucket, pattern: Callable[[str], str]) -> Row:
    """Direct Get of the last message of each subject of a pattern, which is spelled in full (C13.9-039)."""

    def values(holder: Holder) -> Iterable[Values]:
        return [{"stream": name.stream(holder.space), "filter": pattern(holder.space)}]

    return grant(row, held, "publish", api.DIRECT_GET_LAST, values)


def _leader(row: str, held: tuple[Profile, ...], *names: streams.Stream | Bucket) -> Iterator[Row]:
    """Fencing reads: one message, served by the leader, and the proof of shape at bind (C13.9-074, C13.12-18)."""
    yield from calls(row, held, names, api.STREAM_INFO, api.MESSAGE_GET)


def _artifacts(space: str) -> str:
    return streams.EPC.subjects(space)[0]


def registry_rows() -> Iterator[Row]:
    """The read mediator of discovery: it reads, answers, and writes nothing."""
    held = (Profile.REGISTRY,)
    yield grant("C13.20-01", held, "publish", api.INFO, constant())
    yield from _leader("C13.9-M56", held, buckets.RECORDS)
    yield from _leader("C13.9-M36", held, buckets.AUTH)
    yield from _leader("C13.15-18", held, buckets.ISSUED)
    # Lists and replays fence nothing, so they ride Direct Get (C13.9-075); in batches, whose filter is in the body.
    yield from calls("C13.9-075", held, (buckets.RECORDS, streams.EPE), api.DIRECT_GET)
    yield _filtered("C13.9-075", held, buckets.RECORDS, buckets.RECORDS.everything)
    yield from calls("C13.9-M16", held, (streams.EPE, streams.EPC), api.STREAM_INFO)
    yield _filtered("C13.9-M23", held, streams.EPC, _artifacts)


def record_writer_rows() -> Iterator[Row]:
    """The writer of registrations: its durable on the write stream, and the records of its one kind (C13.9-M25)."""
    held = (Profile.RECORD_WRITER,)

    def durable(holder: Holder) -> dict[str, str]:
        name = consumers.RECORD_WRITER.build(space=holder.space, kind=SERVICE_KIND)
        return {"stream": streams.EPR.stream(holder.space), "consumer": name}

    def created(holder: Holder) -> dict[str, str]:
        pattern = planes.RECORD_WRITE.subtree(space=holder.space, kind=SERVICE_KIND)
        return {**durable(holder), "filter": pattern}

    yield grant("C13.9-M25", held, "publish", api.INFO, constant())
    yield grant("C13.9-M25", held, "publish", api.CONSUMER_CREATE_FILTERED, single(created))
    for template in (api.CONSUMER_INFO, api.CONSUMER_NEXT):
        yield grant("C13.9-M25", held, "publish", template, single(durable))
    yield grant("C13.9-M25", held, "publish", api.ACK, single(durable), below=True)
    yield from calls("C13.9-M25", held, (streams.EPR,), api.STREAM_INFO)
    yield from _keys("C13.9-M25", held, buckets.RECORDS, buckets.RECORD_SERVICE)
    yield from _leader("C13.9-M25", held, buckets.RECORDS)


def publisher_rows() -> Iterator[Row]:
    """Contract artifacts: published once, read back (C13.9-M22, M23)."""
    held = (Profile.PUBLISHER,)
    yield grant("C13.9-M22", held, "publish", api.INFO, constant())
    yield grant("C13.9-M22", held, "publish", planes.CONTRACT, single(space_of))
    yield from calls("C13.9-M22", held, (streams.EPC,), api.STREAM_INFO)
    yield _filtered("C13.9-M23", held, streams.EPC, _artifacts)


def registrar_rows() -> Iterator[Row]:
    """A registration: service record, governance head and policies, endpoint gate with its ledger (M35, M67)."""
    held = (Profile.REGISTRAR,)
    yield grant("C13.9-M67", held, "publish", api.INFO, constant())
    yield from _keys("C13.9-M66", held, buckets.RECORDS, buckets.RECORD_SERVICE)
    yield from _keys("C13.9-M67", held, buckets.RECORDS, buckets.RECORD_GOVERN, buckets.RECORD_POLICY)
    gates = (buckets.AUTH_ENDPOINT_GATE, buckets.AUTH_ENDPOINT_CREDENTIAL, buckets.AUTH_ENDPOINT_REPAIR)
    yield from _keys("C13.9-M35", held, buckets.AUTH, *gates)
    yield from _keys("C13.9-M35", held, buckets.AUTH, buckets.AUTH_STAGE, below=True)
    yield from _leader("C13.9-M67", held, buckets.RECORDS)
    yield from _leader("C13.9-M36", held, buckets.AUTH)
    yield _filtered("C13.9-M23", held, streams.EPC, _artifacts)
    # That no store is below the floors of an endpoint, before it is let serve.
    yield from calls("C13.8-49", held, WRITTEN, api.STREAM_INFO)


def issuer_rows() -> Iterator[Row]:
    """Issuance evidence; the accepted row is read at the leader too, where it decides what is minted (C13.9-M07)."""
    held = (Profile.ISSUER,)
    yield grant("C13.9-M07", held, "publish", api.INFO, constant())
    for bucket in (buckets.ISSUED, buckets.ACCEPTED):
        yield keys_of("C13.9-M07", held, bucket)
        yield from _leader("C13.9-M07", held, bucket)
    yield from calls("C13.9-M07", held, (buckets.AUTH,), api.MESSAGE_GET)


def lifecycle_rows() -> Iterator[Row]:
    """Which lifecycle is current: reservation, head, audit (C13.9-M55)."""
    held = (Profile.LIFECYCLES,)
    yield grant("C13.9-M55", held, "publish", api.INFO, constant())
    keys = (buckets.RECORD_UID, buckets.RECORD_LIFECYCLE, buckets.RECORD_LIFECYCLE_DETAIL)
    yield from _keys("C13.9-M55", held, buckets.RECORDS, *keys)
    yield from _leader("C13.9-M55", held, buckets.RECORDS)
