"""The record writer of kind ``svc``: statuses that instances report become their records (C13.2-70, C13.9-M25).

It alone reads the write stream. A message is settled only when its status is durable, or when it never may be: what a
crash leaves comes again. The epoch of a write is that of its subject and must be the current one of the instance's
lifecycle at that moment, so that a superseded process writes nothing (C13.8-10, C13.9-082).
"""

from __future__ import annotations

import asyncio
import math
from typing import Any, Final

from nats.aio.msg import Msg

from sidecar.base.strictjson import JsonError, parse
from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, NotConnected, Stopped
from sidecar.rails.connection.faults import ConnectionFault
from sidecar.rails.connection.kv import Entry, KeyValue, Unreadable, WrongRevision
from sidecar.rails.connection.publishing import StoreRefused
from sidecar.rails.connection.streams import BoundConsumer
from sidecar.rails.endpoint.codes import Code
from sidecar.rails.endpoint.service_record import read_spec
from sidecar.rails.names import api, buckets, consumers, headers, planes, streams
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.principals import Principal
from sidecar.rails.planes.delivery.broker import Unanswered, ask, create, durable, prove
from sidecar.rails.planes.registration.naming import SERVICE_KIND, serving_principal
from sidecar.rails.planes.registration.record_status import (
    MAX_STATUS_BYTES,
    Stored,
    Writer,
    WriteRefused,
    judge,
    read_report,
    writer_of,
)
from sidecar.rails.space.heads import Head, InvalidHead

__all__ = ["RecordWriter", "UnfitStore"]

AGAIN_SECONDS: Final = 0.5
"""After which delay a write comes again that could not be decided."""
_ATTEMPTS: Final = 8
_MILLION: Final = 1_000_000
_TROUBLE: Final = (ConnectionFault, StoreRefused, Unreadable, TimeoutError)
_POISON: Final = frozenset((Code.BAD_REQUEST, Code.PERMISSION_DENIED, Code.RESOURCE_EXHAUSTED))
"""Refusals that say something of the message itself: it is terminated, and the broker tells whoever listens."""


class UnfitStore(Exception):  # noqa: N818 - a state of the broker
    """The records bucket may lose what is written, or is no primary: nothing is served from it (C13.12-18)."""


class RecordWriter:
    """One writer of one space, on its own connection (profile ``record-writer``)."""

    def __init__(self, connection: Connection, space: str, *, metrics: Metrics, log: Log) -> None:
        self._connection, self._space = connection, space
        self._metrics, self._log = metrics, log
        self._records = KeyValue(connection, buckets.RECORDS, space)
        self._stream = streams.EPR.stream(space)
        self._name = consumers.RECORD_WRITER.build(space=space, kind=SERVICE_KIND)

    async def run(self, bound: asyncio.Event | None = None) -> None:
        """Write until cancelled; ``bound`` is set once the durable is there. Raises Stopped, PermissionViolation,
        UnfitStore, DurableDiffers, Unanswered, ConsumerGone."""
        await self._prove()
        config = durable(self._name, self._pattern, {"deliver_policy": "all"})
        if not await prove(self._connection, self._stream, config):
            await create(self._connection, self._stream, config)
            await prove(self._connection, self._stream, config)
        reader = BoundConsumer(self._connection, self._stream, self._name)
        if bound is not None:
            bound.set()
        try:
            while True:
                await self.take(await reader.next())
        finally:
            await reader.close()

    @property
    def _pattern(self) -> str:
        return planes.RECORD_WRITE.subtree(space=self._space, kind=SERVICE_KIND)

    async def _prove(self) -> None:
        answer = await ask(self._connection, api.STREAM_INFO.build(stream=buckets.RECORDS.stream(self._space)))
        config: Any = answer.get("config")
        if not isinstance(config, dict):
            raise Unanswered("the records bucket does not say its configuration")
        wrong = [name for name in ("mirror", "sources", "max_age") if config.get(name)]
        wrong += [name for name in ("max_msgs", "max_bytes") if config.get(name, -1) > 0]
        if wrong:
            raise UnfitStore(f"the records bucket must not have: {', '.join(wrong)}")

    async def take(self, message: Msg) -> None:
        """Decide one message, write, and settle it. Raises Stopped."""
        try:
            result = await self._decided(message)
            settled = headers.ACK
        except WriteRefused as error:
            result = str(error.code)
            settled = headers.TERM if error.code in _POISON else headers.ACK
            self._log.warning("record_write_refused", space=self._space, code=result, why=str(error))
        except Stopped:
            raise
        except _TROUBLE as error:
            result = "retried"
            settled = headers.NAK + b' {"delay": %d}' % math.ceil(AGAIN_SECONDS * 1000 * _MILLION)
            self._log.warning("record_write_retried", space=self._space, error=type(error).__name__)
        self._metrics.counter("registration_record_writes", result).inc()
        try:
            await self._connection.send(message.reply, settled)
        except NotConnected:
            return  # it comes again

    async def _decided(self, message: Msg) -> str:
        """What became of a write: ``written``, or ``unchanged`` when it stands already. Raises WriteRefused."""
        if headers.carries_provenance(message.headers or ()):
            raise WriteRefused(Code.BAD_REQUEST, "it is a stored message that a read has put there")
        writer = writer_of(self._space, message.subject)
        report = read_report(message.data)
        for _ in range(_ATTEMPTS):
            stored, value, key = await self._stored(writer)
            judge(writer, report, stored)
            wanted = report.status(writer.epoch, stored.spec_revision)
            if value == wanted:
                return "unchanged"
            try:
                await self._records.update(key, wanted, stored.status_revision)
            except WrongRevision:
                continue  # whoever lost reads again and decides anew (C13.8-11)
            return "written"
        raise TimeoutError

    async def _stored(self, writer: Writer) -> tuple[Stored, bytes | None, str]:
        """What stands in the records now, as their leader has it, the value of the status and its key."""
        names = {"endpoint": writer.endpoint, "instance": writer.instance}
        spec = await self._records.get(buckets.RECORD_SERVICE.build(**names, half="spec"))
        key = buckets.RECORD_SERVICE.build(**names, half="status")
        status = await self._records.newest(key)
        revision = 0 if status is None else status.revision
        value = None if status is None or status.deleted else status.value
        if spec is None:
            return Stored(None, 0, None, revision), value, key
        epoch = await self._head_epoch(_principal(spec, writer))
        return Stored(epoch, spec.revision, _epoch_of(value), revision), value, key

    async def _head_epoch(self, principal: Principal | None) -> int | None:
        """The epoch of the current lifecycle of a principal; None when it has none (C13.1-020)."""
        if principal is None:
            return None
        names = {"owner": principal.owner, "actor": principal.actor}
        entry = await self._records.get(buckets.RECORD_LIFECYCLE.build(**names))
        try:
            head = None if entry is None else Head.decode(entry.value, principal)
        except InvalidHead:
            return None
        return head.process_epoch if head is not None and head.current else None


def _principal(spec: Entry, writer: Writer) -> Principal | None:
    """The serving principal by the instance's own spec."""
    try:
        owner = read_spec(parse(spec.value, limit=MAX_STATUS_BYTES, safe_integers=True)).owner
        return serving_principal(owner, writer.instance)
    except (JsonError, InvalidName, ValueError):
        return None


def _epoch_of(value: bytes | None) -> int | None:
    """The epoch of a stored status. One that cannot be read fences nobody: only this writer wrote it."""
    if value is None:
        return None
    try:
        found = parse(value, limit=2 * MAX_STATUS_BYTES, safe_integers=True)
    except JsonError:
        return None
    epoch = found.get("epoch") if isinstance(found, dict) else None
    return epoch if type(epoch) is int else None
