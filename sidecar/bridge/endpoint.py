"""``dev.sidecar.coordinator``: a coordinator, asked over the rails. Reads alone, each with the activation that it was
read under.

``status`` always answers. ``objects`` and ``operation`` are refused as ``unavailable`` when the coordinator cannot be
read, and a page of a cut that is not to be had any more as ``expired``; nothing is ever answered out of memory alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NoReturn, TypeVar

from sidecar.base.ed25519 import digest_text
from sidecar.base.strictjson import JsonValue
from sidecar.bridge.pages import DEFAULT_ROWS, KINDS, MAX_TOKEN, MOST_ROWS, Token, page, plain, read_token
from sidecar.bridge.source import CutGone, Read, Source, Unread
from sidecar.coordinator.client_events import Welcome
from sidecar.coordinator.values import result_of
from sidecar.coordinator.wire.enums import ObjectKind
from sidecar.coordinator.wire.ids import OperationId
from sidecar.ops.logging import Log, told
from sidecar.ops.metrics import Metrics
from sidecar.rails.endpoint.app import Endpoint
from sidecar.rails.endpoint.call import Call
from sidecar.rails.endpoint.codes import Code

T = TypeVar("T")

NAME: Final = "dev.sidecar.coordinator"
UNREAD: Final = "dev.sidecar.coordinator.unread"
"""Detail of a refusal because the coordinator cannot be read; ``why`` is one word of a closed set."""
CUT_GONE: Final = "dev.sidecar.coordinator.cut-gone"
"""Detail of a refusal of a page whose cut is gone."""


def _object(required: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> Any:
    members = {**required, **(optional or {})}
    return {"type": "object", "properties": members, "required": sorted(required), "additionalProperties": False}


def _or_null(schema: Any) -> Any:
    return {"anyOf": [schema, {"type": "null"}]}


_HEX16: Final = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
_DIGEST: Final = {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}
_COUNTER: Final = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^[0-9]{16,20}$"}]}
"""A number of 64 bits; as text when a JSON reader could lose it."""
_AT: Final = _object({"coordinatorId": _HEX16, "epoch": _COUNTER, "incarnationId": _HEX16})
_TOKEN: Final = {"type": "string", "maxLength": MAX_TOKEN}
_ROW: Final = _object(
    {"kind": {"enum": list(KINDS)}, "id": _HEX16, "revision": _COUNTER},
    {"content": {"type": "object"}, "omittedBytes": {"type": "integer", "minimum": 0}},
)
_STATUS: Final = _object(
    {
        "connected": {"type": "boolean"},
        "at": _or_null(_AT),
        "authority": _or_null(_DIGEST),
        "cut": _or_null(_COUNTER),
        "objects": _or_null({"type": "integer", "minimum": 0}),
        "digest": _or_null(_DIGEST),
        "problem": _or_null({"type": "string", "maxLength": 200}),
    }
)
_ASK_OBJECTS: Final = _object(
    {},
    {
        "kind": {"enum": list(KINDS)},
        "after": _TOKEN,
        "limit": {"type": "integer", "minimum": 1, "maximum": MOST_ROWS},
    },
)
_OBJECTS: Final = _object(
    {"at": _AT, "cut": _COUNTER, "digest": _DIGEST, "rows": {"type": "array", "maxItems": MOST_ROWS, "items": _ROW}},
    {"next": _TOKEN},
)
_ASK_OPERATION: Final = _object({"operationId": _HEX16})
_OPERATION: Final = _object({"at": _AT, "operationId": _HEX16, "result": {"type": "object"}})


def coordinator_endpoint(source: Source, metrics: Metrics, log: Log) -> Endpoint:
    """The endpoint of one coordinator."""
    asked = _Asked(source, metrics, log)
    endpoint = Endpoint(NAME, protocol=2)
    endpoint.command("status", output=_STATUS, effect="read")(asked.status)
    endpoint.command("objects", input=_ASK_OBJECTS, output=_OBJECTS, effect="read")(asked.objects)
    endpoint.command("operation", input=_ASK_OPERATION, output=_OPERATION, effect="read")(asked.operation)
    return endpoint


class _Asked:
    """The handlers."""

    def __init__(self, source: Source, metrics: Metrics, log: Log) -> None:
        self._source, self._metrics, self._log = source, metrics, log

    async def status(self, call: Call) -> JsonValue:
        """Who the coordinator is and where it stands, or that it cannot be read."""
        try:
            read = await self._counted("status", self._source.cut)
        except Unread as error:
            nothing = dict.fromkeys(("at", "authority", "cut", "objects", "digest"))
            return {"connected": False, **nothing, "problem": str(error)}
        snapshot = read.value
        return {
            "connected": True,
            "at": _at(read.welcome),
            "authority": digest_text(read.welcome.fingerprint),
            "cut": plain(snapshot.base),
            "objects": snapshot.record_count,
            "digest": digest_text(snapshot.digest),
            "problem": None,
        }

    async def objects(self, call: Call) -> JsonValue:
        """One page of a verified cut; ``next`` is the ``after`` of the page that follows in the same cut."""
        args: Any = call.args
        after = _after(call, args.get("after"))
        kind = ObjectKind[args["kind"]] if "kind" in args else None

        async def read_cut() -> Read[Any]:
            return await (self._source.cut() if after is None else self._source.again(after))

        try:
            read = await self._counted("objects", read_cut)
        except Unread as error:
            self._refuse(call, error)
        except CutGone:
            message = "the cut of this page is gone; begin with the first page"
            raise call.refuse(Code.EXPIRED, message, [{"kind": CUT_GONE}]) from None
        found = page(read.value, kind, after, args.get("limit", DEFAULT_ROWS))
        more: dict[str, JsonValue] = {} if found.next is None else {"next": str(found.next)}
        return {
            "at": _at(read.welcome),
            "cut": plain(read.value.base),
            "digest": digest_text(read.value.digest),
            "rows": found.rows,
            **more,
        }

    async def operation(self, call: Call) -> JsonValue:
        """What became of a command; the state ``UNKNOWN`` when this coordinator does not know the id."""
        args: Any = call.args
        wanted = bytes.fromhex(args["operationId"])
        if not any(wanted):
            raise call.refuse(Code.BAD_REQUEST, "an operation id is not all zero")
        try:
            read = await self._counted("operation", lambda: self._source.operation(OperationId(wanted)))
        except Unread as error:
            self._refuse(call, error)
        return {"at": _at(read.welcome), "operationId": wanted.hex(), "result": plain(result_of(read.value))}

    async def _counted(self, command: str, read: Callable[[], Awaitable[Read[T]]]) -> Read[T]:
        outcome = "ok"
        try:
            return await read()
        except Unread as error:
            outcome = error.why.value
            cause = None if error.cause is None else told(error.cause)
            self._log.warning("bridge_unread", command=command, why=outcome, problem=cause)
            raise
        except CutGone:
            outcome = "expired"
            raise
        finally:
            self._metrics.counter("bridge_reads", command, outcome).inc()
            self._metrics.gauge("bridge_connected").set(int(self._source.connected))
            self._metrics.gauge("bridge_cuts").set(self._source.kept)

    def _refuse(self, call: Call, error: Unread) -> NoReturn:
        raise call.refuse(Code.UNAVAILABLE, str(error), [{"kind": UNREAD, "why": error.why.value}]) from None


def _after(call: Call, text: str | None) -> Token | None:
    if text is None:
        return None
    try:
        return read_token(text)
    except ValueError as error:
        raise call.refuse(Code.BAD_REQUEST, f"after {error}") from None


def _at(welcome: Welcome) -> dict[str, JsonValue]:
    """Under which activation it was read."""
    standing = welcome.standing
    return {
        "coordinatorId": welcome.coordinator_id.hex(),
        "epoch": plain(standing.epoch),
        "incarnationId": standing.incarnation.hex(),
    }
