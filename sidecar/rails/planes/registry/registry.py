"""The endpoint ``registry`` of a space: its questions and the reads that it mediates (13.20, C13.9-049, -073).

Every refusal has one fixed message, which names nothing; what happened stands in our own log (C13.20-13). A caller that
may not know of an endpoint is answered as if there were none.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from sidecar.base.clock import Now, system_now
from sidecar.base.strictjson import JsonError, JsonValue, parse
from sidecar.ops.logging import Log, told
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection
from sidecar.rails.connection.kv import Unreadable
from sidecar.rails.endpoint.artifacts import ContractInvalid
from sidecar.rails.endpoint.call import Call, Handler
from sidecar.rails.endpoint.codes import Code, Refusal
from sidecar.rails.endpoint.registry_contracts import MAX_EVENTS, MAX_INSTANCES, MAX_ROWS
from sidecar.rails.names import headers
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.planes.registration.gates import Gate, GateState
from sidecar.rails.planes.registry.artifacts import Artifacts, State
from sidecar.rails.planes.registry.coverage import Coverage, Projection, parts
from sidecar.rails.planes.registry.disclosure import Ceilings, NotLive
from sidecar.rails.planes.registry.listing import OVERHEAD, Pages, RowTooLarge, Shown, declarations, row
from sidecar.rails.planes.registry.polls import Polls
from sidecar.rails.planes.registry.records import Broken, Records, Registered
from sidecar.rails.planes.registry.visibility import Visibility

INSTANCES_PAGE: Final = 128
"""Rows in one page of ``instances``."""
_MEMBERS: Final = 64
"""Members of an event."""
_SAID: Final = 4_096
RECORDED: Final = "recorded-ceiling"
OPEN: Final = "no-permission-system"

NOT_LIVE: Final = "the authority that the request is bound to is not live"
NO_CEILING: Final = "what the caller was granted cannot be read now"
NO_RECORDS: Final = "the records of the space cannot be read now"
UNBOUND: Final = "the request is bound to no issued authority"
TOO_LARGE: Final = "a single row does not fit into a message"
NOT_SERVING: Final = "the caller does not serve this endpoint"
NO_VIEW: Final = "no grants of this caller are recorded"
BAD_NAME: Final = "an argument is no name of its kind"


class Registry:
    """The handlers. ``permissions``: whether the space has a permission system, which every space of ours has."""

    def __init__(
        self,
        connection: Connection,
        space: str,
        metrics: Metrics,
        log: Log,
        *,
        permissions: bool = True,
        clock: Callable[[], Now] = system_now,
    ) -> None:
        self._connection, self._space = connection, space
        self._metrics, self._log, self._clock = metrics, log, clock
        self._permissions = permissions
        self._said: dict[tuple[str, str], str] = {}
        self.records = Records(connection, space)
        self._artifacts = Artifacts(self.records.reader, space, metrics)
        self._ceilings = Ceilings(self.records.reader, space, clock)
        self._visibility = Visibility(space, self.records, self._artifacts, self._ceilings)
        self._polls = Polls(self.records, metrics)

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """Command -> handler."""
        return {
            "endpoints": self.endpoints,
            "instances": self.instances,
            "artifacts": self.artifacts,
            "record": self.record,
            "events": self.events,
            "target": self.target,
            "caller-view": self.caller_view,
        }

    async def close(self) -> None:
        """End what runs for callers that wait."""
        await self._polls.close()

    # ---- the question (C13.20-03) ----

    async def endpoints(self, call: Call) -> JsonValue:
        """The endpoints on which the caller holds a command, page by page."""
        args = _args(call)
        begun = time.monotonic()
        coverage = await self._ceiling(call) if self._permissions else None
        with self._reading(call, NO_RECORDS):
            everything = await self.records.registered()
            pages = Pages(args.get("limit", MAX_ROWS), self._budget)
            full = False
            for endpoint, instances in everything.items():
                if endpoint <= args.get("after", ""):
                    continue
                found = await self._row(call, endpoint, instances, coverage)
                if found is not None and not self._taken(call, pages, endpoint, found):
                    full = True
                    break
        self._metrics.histogram("registry_listing_seconds").observe(time.monotonic() - begun)
        answer: dict[str, JsonValue] = {"rows": pages.rows, "source": RECORDED if self._permissions else OPEN}
        return {**answer, "next": pages.last} if full else answer

    async def _ceiling(self, call: Call) -> Coverage:
        """What is recorded for the generation that the broker pinned on the subject (C13.20-11)."""
        if call.generation is None:
            raise self._refused(call, Code.PERMISSION_DENIED, UNBOUND, "unbound", headers.DETAIL_UNBOUND_AUTHORITY)
        try:
            ceiling = await self._ceilings.of(call.caller, call.generation)
        except NotLive as error:
            raise self._refused(call, Code.PERMISSION_DENIED, NOT_LIVE, "not_live", why=error) from None
        except Unreadable as error:
            raise self._refused(call, Code.UNAVAILABLE, NO_CEILING, "ceiling", why=error) from None
        return Coverage(ceiling.publish, self._space, call.caller, call.generation)

    async def _row(
        self, call: Call, endpoint: str, instances: Mapping[str, Registered], coverage: Coverage | None
    ) -> dict[str, JsonValue] | None:
        declared = await self._visibility.declared(instances)
        for instance, one in declared.items():
            if one.state is not State.VERIFIED:
                self._say(endpoint, instance, one.why)
        listed = declarations(declared)
        projected: list[Projection] | None = None if coverage is None else []
        for piece in parts(listed):
            await asyncio.sleep(0)  # a long list is no reason for the others to wait
            if coverage is not None and projected is not None:
                projected.append(coverage.project(endpoint, piece))
        shown = {instance: Shown(_state(one), declared[instance]) for instance, one in instances.items()}
        found = row(endpoint, shown, listed, projected)
        if found is not None and len(shown) > MAX_INSTANCES:
            raise self._refused(call, Code.RESOURCE_EXHAUSTED, TOO_LARGE, "too_large", why=endpoint)
        return found

    # ---- reads for callers ----

    async def instances(self, call: Call) -> JsonValue:
        """Who serves an endpoint: registrations with the epoch of their gate, those of retired ones left out."""
        args = _args(call)
        with self._reading(call, NO_RECORDS):
            seen = await self._visibility.sees(args["endpoint"], call.caller, call.generation)
            left = [one for instance, one in seen.items() if instance > args.get("after", "")]
            pages = Pages(INSTANCES_PAGE, self._budget)
            for at in range(0, len(left), INSTANCES_PAGE):
                some = left[at : at + INSTANCES_PAGE]
                gates = await self.records.gates(args["endpoint"], [one.instance for one in some])
                for one, gate in zip(some, gates, strict=True):
                    found = self._instance(one, gate)
                    if found is not None and not self._taken(call, pages, one.instance, found):
                        return {"rows": pages.rows, "next": pages.last}
        return {"rows": pages.rows}

    def _instance(self, one: Registered, gate: Gate | Broken | None) -> dict[str, JsonValue] | None:
        if isinstance(gate, Broken) or one.spec is None:
            self._say(one.endpoint, one.instance, told(gate) if isinstance(gate, Broken) else one.why)
            return None
        if gate is None or gate.state is GateState.RETIRED or not gate.registered:
            return None
        return {
            "instanceId": one.instance,
            "owner": one.spec.owner,
            "registrationRevision": one.revision,
            "epoch": gate.process_epoch,
            "state": _state(one),
            "clusterDigests": list(one.spec.cluster_digests),
            "protocol": one.spec.protocol,
        }

    async def artifacts(self, call: Call) -> JsonValue:
        """Contract documents by digest, those that there are, as many as fit into one message."""
        pages = Pages(len(_args(call)["digests"]), self._budget)
        with self._reading(call, NO_RECORDS):
            for digest in _args(call)["digests"]:
                try:
                    data = await self._artifacts.document(digest)
                except ContractInvalid as error:
                    self._log.error("registry_artifact_invalid", digest=digest, why=told(error))
                    continue
                if data is None:
                    continue
                if not self._taken(call, pages, digest, {"digest": digest, "document": parse(data)}):
                    return {"documents": pages.rows, "more": True}
        return {"documents": pages.rows}

    async def record(self, call: Call) -> JsonValue:
        """The registration of one instance, both halves with their revisions (C13.4-08); with ``after`` and ``waitMs``
        as soon as one of them is another, or after that time as it is."""
        args = _args(call)
        endpoint, instance = args["endpoint"], args["instanceId"]
        with self._reading(call, NO_RECORDS):
            if instance not in await self._visibility.sees(endpoint, call.caller, call.generation):
                return {}
            found = await self.records.record(endpoint, instance)
            after, wait = args.get("after"), args.get("waitMs", 0) / 1000
            if after is not None and wait:
                known = int(after.get("spec", 0)), int(after.get("status", 0))
                if not found.changed(*known):
                    found = await self._polls.changed(endpoint, instance, known, min(wait, call.seconds_left))
                # The grants may be others by now (C13.9-049).
                if instance not in await self._visibility.sees(endpoint, call.caller, call.generation):
                    return {}
        return found.value()

    async def events(self, call: Call) -> JsonValue:
        """Stored events of one topic that the caller may hear, of all instances, in the order of the stream; with
        ``tail`` only where it ends.
        ``oldest`` is the first event of any topic that is stored behind ``after``: what was before it is gone."""
        args = _args(call)
        limit = args.get("limit", MAX_EVENTS)
        with self._reading(call, NO_RECORDS):
            if not await self._visibility.hears(args["endpoint"], args["topic"], call.caller, call.generation):
                return {"events": []}
            if "tail" in args:
                return {"events": [], "next": await self.records.newest_event(args["endpoint"], args["topic"])}
            after = args.get("after", 0)
            found = await self.records.events(args["endpoint"], args["topic"], after, limit)
            oldest = await self.records.stored_behind(after) if after else None
        pages = Pages(limit, self._budget)
        passed, more = 0, found.more
        for stored in found.rows:
            event = self._event(stored.subject, stored.data, stored.revision, stored.marker)
            if event is not None and not self._taken(call, pages, str(stored.revision), event):
                more = True
                break
            passed = stored.revision
        answer: dict[str, JsonValue] = {"events": pages.rows}
        if more:
            answer["next"] = passed
        return answer if oldest is None else {**answer, "oldest": oldest}

    def _event(self, subject: str, data: bytes, sequence: int, marker: bool) -> dict[str, JsonValue] | None:
        """One event; None for what is none, whoever published it."""
        try:
            names = self.records.event_names(subject)
            value = None if marker else parse(data, safe_integers=True)
        except (InvalidName, JsonError):
            value = None
        if not isinstance(value, dict) or len(value) > _MEMBERS:
            self._metrics.counter("registry_events_skipped").inc()
            return None
        return {
            "sequence": sequence,
            "instanceId": names["instance"],
            "epoch": int(names["epoch"]),
            "topic": names["topic"],
            "event": value,
        }

    async def target(self, call: Call) -> JsonValue:
        """The current lifecycle of a principal, read at the leader: an effect may hang on it (C13.9-074)."""
        args = _args(call)
        with self._reading(call, NO_RECORDS):
            try:
                found = await self.records.mapping(Principal(args["owner"], args["actor"]))
            except Broken as error:
                raise self._refused(call, Code.UNAVAILABLE, NO_RECORDS, "records", why=error) from None
        return {} if found is None else {"lifecycleUid": found[0], "mappingRevision": found[1]}

    async def caller_view(self, call: Call) -> JsonValue:
        """What a caller of an endpoint holds there; for who serves that endpoint alone (C13.7-66)."""
        args = _args(call)
        as_of = int(self._clock().wall * 1000)
        endpoint = args["endpoint"]
        with self._reading(call, NO_RECORDS):
            caller = Lifecycle(Principal(args["owner"], args["actor"]), args["uid"])
            instances = (await self.records.registered(endpoint)).get(endpoint, {})
            if not await self._visibility.serves(endpoint, instances, call.caller):
                raise self._refused(call, Code.PERMISSION_DENIED, NOT_SERVING, "not_serving")
            declared = declarations(await self._visibility.declared(instances))
        with self._reading(call, NO_CEILING):
            held = await self._visibility.held(endpoint, declared, caller, args.get("generation"))
        if held is None:
            raise self._refused(call, Code.UNAVAILABLE, NO_VIEW, "no_view")
        return {"commands": sorted(held), "asOfMs": as_of}

    # ---- what they share ----

    @property
    def _budget(self) -> int:
        """Bytes for the rows of one answer."""
        return self._connection.max_payload - OVERHEAD

    def _say(self, endpoint: str, instance: str, why: str) -> None:
        """What is wrong with an instance, once for each reason: whoever asks often fills no log."""
        if self._said.get((endpoint, instance)) == why:
            return
        if len(self._said) >= _SAID:
            self._said.clear()
        self._said[endpoint, instance] = why
        self._log.warning("registry_instance_unlisted", endpoint=endpoint, instance=instance, why=why)

    def _taken(self, call: Call, pages: Pages, key: str, value: JsonValue) -> bool:
        try:
            return pages.take(key, value)
        except RowTooLarge:
            raise self._refused(call, Code.RESOURCE_EXHAUSTED, TOO_LARGE, "too_large", why=key) from None

    @contextlib.contextmanager
    def _reading(self, call: Call, message: str) -> Iterator[None]:
        """A read that does not complete refuses with one message; so does a name that is none."""
        try:
            yield
        except Unreadable as error:
            kind = "records" if message == NO_RECORDS else "ceiling"
            raise self._refused(call, Code.UNAVAILABLE, message, kind, why=error) from None
        except InvalidName as error:
            raise self._refused(call, Code.BAD_REQUEST, BAD_NAME, "name", why=error) from None

    def _refused(self, call: Call, code: Code, message: str, kind: str, detail: str = "", why: object = "") -> Refusal:
        """The refusal to raise. The caller reads the message alone; the log has who and why."""
        self._metrics.counter("registry_refused", kind).inc()
        text = told(why) if isinstance(why, Exception) else str(why)
        self._log.warning("registry_refused", kind=kind, caller=call.caller.dot, why=text)
        return call.refuse(code, message, ({"kind": detail},) if detail else ())


def _args(call: Call) -> dict[str, Any]:
    """The arguments, which keep the contract."""
    return call.args if isinstance(call.args, dict) else {}


def _state(one: Registered) -> str | None:
    return None if one.status is None else one.status.state
