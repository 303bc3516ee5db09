"""KV buckets: compare-and-set writes, reads that say when they are not complete, and a watch.

A value is gone when its newest message is a marker (a delete, a purge, or the broker's own for an aged value). Reads
of one key are served by the stream's leader. ``read_all`` is a paged, batched Direct Get without a consumer (C6-45,
C7-10): any replica may serve it, so that on a replicated bucket it may be a moment behind.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

import orjson
from nats.aio.msg import Msg

from sidecar.rails.connection.connection import Connection
from sidecar.rails.connection.faults import ConnectionFault
from sidecar.rails.connection.publishing import WrongSequence, store
from sidecar.rails.connection.streams import OrderedWatch
from sidecar.rails.names import api, consumers, headers
from sidecar.rails.names.buckets import KV_ALL, KV_SUBJECT, Bucket

PAGE: Final = 256
"""Keys asked for at a time."""
PAGE_BYTES: Final = 4 * 1024 * 1024
"""Bytes after which the broker ends a page early."""
MAX_PAGES: Final = 4_096
READ_SECONDS: Final = 5.0
"""For one page, and for one key."""
_NO_MESSAGE: Final = 10037
_END, _NOTHING_FOUND = "204", "404"
_CREATE_ATTEMPTS: Final = 4


class Entry(NamedTuple):
    """The newest message of one key. ``time_ms`` is when the broker stored it, in milliseconds since 1970; ``deleted``:
    it is a marker, and the key has no value."""

    key: str
    value: bytes
    revision: int
    deleted: bool
    time_ms: int


class KeyExists(Exception):  # noqa: N818 - a state
    """``create`` of a key that has a value."""


class WrongRevision(Exception):  # noqa: N818 - a state
    """The key has another revision than the caller expected."""


class Unreadable(Exception):  # noqa: N818 - a state
    """A read did not complete: nothing may be concluded from what is missing (C6-47)."""


class KeyValue:
    """One bucket of a space. Writes raise what ``store`` raises."""

    def __init__(self, connection: Connection, bucket: Bucket, space: str) -> None:
        self._connection = connection
        self._name = bucket.bucket(space)
        self._stream = bucket.stream(space)
        self._everything = bucket.everything(space)
        self._prefix = f"{KV_ALL.build(bucket=self._name)}."

    # ---- one key ----

    async def get(self, key: str) -> Entry | None:
        """The value; None when the key never had one or is deleted. Raises Unreadable."""
        entry = await self.newest(key)
        return None if entry is None or entry.deleted else entry

    async def newest(self, key: str) -> Entry | None:
        """What stands at a key, a marker too, whose revision the next write names; None for one that was never written.
        Raises Unreadable."""
        subject = api.MESSAGE_GET.build(stream=self._stream)
        body = orjson.dumps({"last_by_subj": self._subject(key)})
        try:
            message = await self._connection.request(subject, body, seconds=READ_SECONDS)
            return self._leader_entry(key, orjson.loads(message.data))
        except (ConnectionFault, TimeoutError) as error:
            raise Unreadable(f"{self._name} could not be read: {error or 'no answer'}") from error
        except (ValueError, TypeError, KeyError, AttributeError, binascii.Error) as error:
            raise Unreadable(f"{self._name}: the broker's answer has another form") from error

    def _leader_entry(self, key: str, answer: Any) -> Entry | None:
        if "error" in answer:
            if answer["error"].get("err_code") == _NO_MESSAGE:
                return None
            raise Unreadable(f"{key}: {answer['error'].get('description', '')}")
        message = answer["message"]
        said = _header_lines(base64.b64decode(message.get("hdrs") or "", validate=True))
        value = base64.b64decode(message.get("data") or "", validate=True)
        gone = _marks(said)
        if _stored(said):
            self._connection.record_redirected()
            gone = True
        return Entry(key, value, int(message["seq"]), gone, _milliseconds(message["time"]))

    async def create(self, key: str, value: bytes) -> int:
        """The revision of a key that had no value. Raises KeyExists, Unreadable."""
        revision = 0
        for _ in range(_CREATE_ATTEMPTS):
            try:
                return await self._write(key, value, {headers.EXPECTED_LAST_SEQUENCE: str(revision)})
            except WrongSequence:
                last = await self.newest(key)
                if last is not None and not last.deleted:
                    break
                revision = 0 if last is None else last.revision
        raise KeyExists(f"{key} has a value in {self._name}")

    async def update(self, key: str, value: bytes, revision: int) -> int:
        """The new revision of a key whose newest revision is ``revision``. Raises WrongRevision."""
        return await self._compared(key, value, {}, revision)

    async def put(self, key: str, value: bytes) -> int:
        """The new revision of a key, whatever it had."""
        return await self._write(key, value, None)

    async def delete(self, key: str, revision: int | None = None) -> None:
        """Put a marker on a key, if it has ``revision`` where one is given. Raises WrongRevision."""
        marker = {headers.KV_OPERATION: headers.KV_DELETE}
        if revision is None:
            await self._write(key, b"", marker)
        else:
            await self._compared(key, b"", marker, revision)

    async def _compared(self, key: str, value: bytes, more: Mapping[str, str], revision: int) -> int:
        try:
            return await self._write(key, value, {**more, headers.EXPECTED_LAST_SEQUENCE: str(revision)})
        except WrongSequence as error:
            raise WrongRevision(f"{key} in {self._name} is not at {revision}: {error.text}") from error

    async def _write(self, key: str, value: bytes, more: Mapping[str, str] | None) -> int:
        return (await store(self._connection, self._subject(key), value, more)).sequence

    def _subject(self, key: str) -> str:
        return KV_SUBJECT.build(bucket=self._name, key=key)

    # ---- all keys ----

    async def read_all(self) -> dict[str, Entry]:
        """Every key that has a value, read in pages. A key that was there from the begin of the read to its end is in
        it. Raises Unreadable; a read that did not complete gives nothing."""
        found: dict[str, Entry] = {}
        after = 0
        for _ in range(MAX_PAGES):
            page, more = await self._page(after + 1)
            for entry in page:
                after = entry.revision
                found[entry.key] = entry
            if not more:
                return {key: entry for key, entry in found.items() if not entry.deleted}
        raise Unreadable(f"{self._name} has more than {MAX_PAGES} pages")

    async def _page(self, sequence: int) -> tuple[list[Entry], bool]:
        """Entries from a sequence on, and whether there are more."""
        subject = api.DIRECT_GET.build(stream=self._stream)
        body = {"seq": sequence, "next_by_subj": self._everything, "batch": PAGE, "max_bytes": PAGE_BYTES}
        try:
            answers = await self._connection.request_until(
                subject, orjson.dumps(body), _is_status, at_most=PAGE + 1, seconds=READ_SECONDS
            )
        except (ConnectionFault, TimeoutError) as error:
            raise Unreadable(f"{self._name} could not be read: {error or 'the answer is not complete'}") from error
        try:
            return self._judged(sequence, answers)
        except (ValueError, KeyError) as error:
            raise Unreadable(f"{self._name}: the broker's answer has another form") from error

    def _judged(self, sequence: int, answers: list[Msg]) -> tuple[list[Entry], bool]:
        """A page, when it is whole: each answer names the one before it."""
        *messages, end = answers
        page, last = [], 0
        for message in messages:
            said = message.headers or {}
            revision = int(said[headers.SEQUENCE])
            if revision < sequence or int(said[headers.LAST_SEQUENCE]) != last:
                raise Unreadable(f"{self._name}: an answer is missing")
            page.append(self._entry(message, said, revision))
            last = revision
        said = end.headers or {}
        if said.get(headers.STATUS) == _NOTHING_FOUND and not page:
            return [], False
        if said.get(headers.STATUS) != _END or (page and int(said[headers.LAST_SEQUENCE]) != last):
            raise Unreadable(f"{self._name}: the broker ended the read with {said.get(headers.STATUS)}")
        more = int(said[headers.PENDING]) > 0
        if more and not page:
            raise Unreadable(f"{self._name}: a page without an answer")
        return page, more

    def _entry(self, message: Msg, said: Mapping[str, str], revision: int) -> Entry:
        subject = said[headers.SUBJECT]
        if not subject.startswith(self._prefix):
            raise ValueError("another bucket")
        gone = _marks(said)
        foreign = said.keys() != _DIRECT and _stored(name for name in said if name != headers.STREAM)
        if foreign or said[headers.STREAM] != self._stream:
            self._connection.record_redirected()
            gone = True
        return Entry(subject[len(self._prefix) :], message.data, revision, gone, _milliseconds(said[headers.TIMESTAMP]))

    # ---- watching ----

    def watch(self, watcher: str) -> KeyWatch:
        """The current values of all keys, then every change. ``watcher`` names the consumers: one word, unique among
        the watchers of the bucket."""

        def name(serial: int) -> str:
            return consumers.WATCHER.build(watcher=watcher, serial=serial)

        ordered = OrderedWatch(self._connection, self._stream, self._everything, name)
        return KeyWatch(ordered, self._prefix, self._connection)


class KeyWatch:
    """Entries as they change, markers included. Values that age out of a bucket say nothing: who watches a bucket with
    a lifetime looks at the clock as well."""

    def __init__(self, watch: OrderedWatch, prefix: str, connection: Connection) -> None:
        self._watch = watch
        self._connection = connection
        self._prefix = prefix
        self.primed = watch.caught_up
        """Set when the values that were there at the begin have been handed out."""

    async def next(self) -> Entry:
        """The next change. A lost link or a silent consumer is healed inside; raises what OrderedWatch raises.

        A redirected read in the place of a value comes as a marker, as reads of the bucket have it: whoever waits for
        the newest revision gets there."""
        message = await self._watch.next()
        said, meta = message.headers or {}, message.metadata
        redirected = _stored(said)
        if redirected:
            self._connection.record_redirected()
        return Entry(
            message.subject[len(self._prefix) :],
            b"" if redirected else message.data,
            meta.sequence.stream,
            redirected or _marks(said),
            int(meta.timestamp.timestamp() * 1000),
        )

    async def close(self) -> None:
        """Stop watching."""
        await self._watch.close()


def _is_status(message: Msg) -> bool:
    """The end of a page, or a refusal of the whole. A stored message may have such a header too, but the broker adds
    the subject to it."""
    said = message.headers or {}
    return headers.STATUS in said and headers.SUBJECT not in said


def _stored(names: Iterable[str]) -> bool:
    """Whether a record is the answer to somebody's Direct Get, which the broker was made to publish on a key: then it
    names the stream that it was stored in, and is no record of the key's owner. The value in whose place it stands is
    gone, so that it counts as a marker. The other headers of such answers cannot be told from the broker's own."""
    return any(name.lower() == _STREAM for name in names)


_STREAM: Final = headers.STREAM.lower()
_DIRECT: Final = frozenset(
    (
        *(headers.STREAM, headers.SUBJECT, headers.SEQUENCE, headers.TIMESTAMP),
        *(headers.LAST_SEQUENCE, headers.PENDING),
    )
)
"""The headers of one answer to a batched Direct Get whose stored message has none."""


def _marks(said: Mapping[str, str]) -> bool:
    return said.get(headers.KV_OPERATION) in headers.KV_MARKERS or headers.MARKER_REASON in said


def _milliseconds(text: str) -> int:
    """An RFC 3339 time of the broker, which has up to nine digits of a second."""
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def _header_lines(data: bytes) -> dict[str, str]:
    """The headers of a stored message; the first line is the protocol's version."""
    lines = data.decode("utf-8", "replace").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if ":" in line)
    return {name: value.strip() for name, _, value in pairs}
