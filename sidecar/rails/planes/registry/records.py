"""What the registry reads of a space: registrations, gates, mappings and events (13.7, 13.20).

Lists and replays ride Direct Get, whatever decides about an authority is read at the leader (C13.9-074, -075).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sidecar.base.strictjson import JsonError, JsonValue, parse
from sidecar.rails.connection import Connection
from sidecar.rails.connection.kv import Unreadable
from sidecar.rails.endpoint.service_record import ServiceSpec, ServiceStatus, read_spec, read_status
from sidecar.rails.names import buckets, planes, streams
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.principals import Principal
from sidecar.rails.names.tokens import endpoint_name, endpoint_token
from sidecar.rails.planes.registration.gates import Gate, InvalidGate
from sidecar.rails.planes.registration.merged import MAX_REREADS, Half, Merged, Pair, merge
from sidecar.rails.planes.registry.reads import (
    ARTIFACTS,
    AUTH,
    EVENTS,
    ISSUED,
    RECORDS,
    Misshapen,
    Page,
    Reader,
    Stored,
    shape_faults,
)
from sidecar.rails.space.heads import Head, InvalidHead

MAX_ROW: Final = 64 * 1024
"""Bytes of one half of a service record."""
AT_ONCE: Final = 32
"""Gates that are read at a time."""
REREAD_SECONDS: Final = 0.05
SPEC, STATUS = "spec", "status"


class Row(NamedTuple):
    """One key of a split record: its revision and its value, None for bytes that are no JSON."""

    revision: int
    value: JsonValue


@dataclass(slots=True)
class Registered:
    """One registered instance. ``spec`` is None when its row is no service record of this place, or of a version that
    is not implemented (C13.7-19); ``status`` when there is none that can be read."""

    endpoint: str
    instance: str
    halves: dict[str, Row] = field(default_factory=dict)
    spec: ServiceSpec | None = None
    status: ServiceStatus | None = None
    why: str = ""

    @property
    def revision(self) -> int:
        """Of the spec, which is the number of the registration."""
        return self.halves[SPEC].revision

    def judge(self) -> None:
        """Read both halves; what is none is said in ``why``."""
        try:
            spec = read_spec(self.halves[SPEC].value)
            if spec.endpoint == self.endpoint:
                self.spec = spec
            else:
                self.why = "its spec names another endpoint"
        except ValueError as error:
            self.why = f"its spec: {error}"
        if STATUS in self.halves:
            try:
                self.status = read_status(self.halves[STATUS].value)
            except ValueError as error:
                self.why = self.why or f"its status: {error}"


class Broken(Exception):  # noqa: N818 - a state
    """A row that is never deleted and cannot be what it must be; it authorizes nothing."""


class Records:
    """The stores of one space. Everything raises Unreadable when a read did not complete."""

    def __init__(self, connection: Connection, space: str) -> None:
        self.reader = Reader(connection)
        self._space = space
        self._records = buckets.RECORDS.stream(space)
        self._auth = buckets.AUTH.stream(space)
        self._events = streams.EPE.stream(space)
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def prove(self) -> None:
        """That every store is the primary and loses nothing, or Misshapen (C13.12-18)."""
        wanted = {
            self._records: RECORDS,
            self._auth: AUTH,
            buckets.ISSUED.stream(self._space): ISSUED,
            streams.EPC.stream(self._space): ARTIFACTS,
            self._events: EVENTS,
        }
        for stream, shape in wanted.items():
            if wrong := shape_faults(await self.reader.configuration(stream), shape):
                raise Misshapen(f"{stream} is not served from: {', '.join(wrong)}")

    # ---- registrations ----

    async def registered(self, endpoint: str | None = None) -> dict[str, dict[str, Registered]]:
        """Dotted name -> instance id -> registration, both in order. An instance whose spec is deleted is not there
        (C13.20-05); an endpoint without an instance is not either."""
        given = {} if endpoint is None else {"endpoint": endpoint_token(endpoint)}
        pattern = buckets.RECORDS.filter(self._space, buckets.RECORD_SERVICE, **given)
        found: dict[tuple[str, str], Registered] = {}
        for subject, row in (await self.reader.everything(self._records, pattern)).items():
            try:
                names = buckets.RECORDS.parse(self._space, buckets.RECORD_SERVICE, subject)
            except InvalidName:
                continue  # no key of a registration, whoever wrote it
            key = (endpoint_name(names["endpoint"]), names["instance"])
            found.setdefault(key, Registered(*key)).halves[names["half"]] = _row(row)
        listed: dict[str, dict[str, Registered]] = {}
        for (name, instance), one in sorted(found.items()):
            if SPEC in one.halves:
                one.judge()
                listed.setdefault(name, {})[instance] = one
        return listed

    async def record(self, endpoint: str, instance: str) -> Merged:
        """Both keys of one registration as they are now. A spec that is older than what its status has observed comes
        from a replica that lags: it is read again, and the pair never used (C13.4-10)."""
        status = await self._half(endpoint, instance, STATUS)
        for _ in range(MAX_REREADS):
            found = merge(await self._half(endpoint, instance, SPEC), status)
            if not isinstance(found, Pair):
                return found
            await asyncio.sleep(REREAD_SECONDS)
        raise Unreadable(f"the spec of {endpoint} {instance} stays behind its status")

    async def _half(self, endpoint: str, instance: str, half: str) -> Half | None:
        """One key; None when it has no value, or one that is no record at all."""
        names = {"endpoint": endpoint_token(endpoint), "instance": instance, "half": half}
        subject = buckets.RECORDS.subject(self._space, buckets.RECORD_SERVICE, **names)
        stored = await self.reader.direct(self._records, subject)
        row = None if stored is None or stored.marker else _row(stored)
        return Half(row.revision, row.value) if row is not None and isinstance(row.value, dict) else None

    # ---- authority ----

    async def gate(self, endpoint: str, instance: str) -> Gate | None:
        """The gate of an instance; None when there never was one. Raises Broken."""
        names = {"endpoint": endpoint_token(endpoint), "instance": instance}
        row = await self._never_deleted(
            self._auth, buckets.AUTH.subject(self._space, buckets.AUTH_ENDPOINT_GATE, **names)
        )
        try:
            return None if row is None else Gate.decode(row.data)
        except InvalidGate as error:
            raise Broken(f"the gate of {endpoint} {instance}: {error}") from None

    async def gates(self, endpoint: str, instances: Sequence[str]) -> list[Gate | Broken | None]:
        """The gates of several instances, in order; what cannot be one stands in its place."""

        async def one(instance: str) -> Gate | Broken | None:
            async with self._turns:
                try:
                    return await self.gate(endpoint, instance)
                except Broken as error:
                    return error

        return list(await asyncio.gather(*map(one, instances)))

    async def mapping(self, principal: Principal) -> tuple[str, int] | None:
        """The current lifecycle of a principal and the revision that says so; None without an active one (C13.1-017).
        Raises Broken."""
        names = {"owner": principal.owner, "actor": principal.actor}
        subject = buckets.RECORDS.subject(self._space, buckets.RECORD_LIFECYCLE, **names)
        row = await self._never_deleted(self._records, subject)
        if row is None:
            return None
        try:
            head = Head.decode(row.data, principal)
        except InvalidHead as error:
            raise Broken(f"the head of {principal.dot}: {error}") from None
        return (head.uid, row.revision) if head.current else None

    async def _never_deleted(self, stream: str, subject: str) -> Stored | None:
        row = await self.reader.last(stream, subject)
        if row is not None and row.marker:
            raise Broken(f"{subject} holds a marker (C13.7-43)")
        return row

    # ---- events ----

    async def events(self, endpoint: str, topic: str, after: int, at_most: int) -> Page:
        """Stored events of one topic of all instances, behind a sequence (C13.12-29)."""
        pattern = planes.EVENT.filter(space=self._space, endpoint=endpoint_token(endpoint), topic=topic)
        return await self.reader.page(self._events, pattern, after, at_most)

    async def newest_event(self, endpoint: str, topic: str) -> int:
        """The sequence of the newest event of one topic, 0 when there is none."""
        pattern = planes.EVENT.filter(space=self._space, endpoint=endpoint_token(endpoint), topic=topic)
        return await self.reader.newest(self._events, pattern)

    async def stored_behind(self, after: int) -> int | None:
        """The sequence of the first event of whatever topic that is still stored behind one; None without any. Nothing
        takes events out but their age: a sequence that does not follow says that some are gone."""
        found = await self.reader.page(self._events, ">", after, 1)
        return found.rows[0].revision if found.rows else None

    def event_names(self, subject: str) -> Mapping[str, Any]:
        """The fields of an event's subject. Raises InvalidName."""
        return planes.EVENT.parse(subject)


def _row(row: Stored) -> Row:
    try:
        return Row(row.revision, parse(row.data, limit=MAX_ROW, safe_integers=True))
    except JsonError:
        return Row(row.revision, None)
