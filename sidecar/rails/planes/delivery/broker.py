"""What the delivery plane asks the broker about streams, and the durables of its own that it makes (Data D2)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

import orjson

from sidecar.rails.connection import Connection
from sidecar.rails.connection.faults import ConnectionFault
from sidecar.rails.names import api
from sidecar.rails.names.limits import ACK_WAIT_MS, READER_MAX_ACK_PENDING

ASK_SECONDS: Final = 5.0
_MILLION: Final = 1_000_000
_NO_MESSAGE: Final = 10037
_NO_CONSUMER: Final = 10014
_EXISTS: Final = 10148


class Unanswered(Exception):  # noqa: N818 - a state
    """The broker did not answer, or with an error; asking again may help."""


class DurableDiffers(Exception):  # noqa: N818 - a state of the broker
    """A durable of ours that is not what it must be. It is never repaired in silence (C8-69)."""


class StreamState(NamedTuple):
    """A stream at one moment. ``last_ms``: when its newest message was stored, 0 before the first; ``keeps``: how many
    messages of one subject, None for all; ``created``: when it was made, as the broker spells it."""

    first: int
    last: int
    last_ms: int
    keeps: int | None
    created: str = ""


async def ask(connection: Connection, subject: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The answer of one API request, which may be an error object. Raises Unanswered."""
    try:
        reply = await connection.request(subject, orjson.dumps(body) if body else b"", seconds=ASK_SECONDS)
        answer = orjson.loads(reply.data)
    except (ConnectionFault, TimeoutError, orjson.JSONDecodeError) as error:
        raise Unanswered(f"{subject}: {error or 'no answer'}") from error
    if type(answer) is not dict:
        raise Unanswered(f"{subject}: the answer is no object")
    return answer


def _code(answer: Mapping[str, Any]) -> int | None:
    error = answer.get("error")
    return error.get("err_code", 0) if isinstance(error, dict) else None


async def stream_state(connection: Connection, stream: str) -> StreamState:
    """What a stream holds now, served by its leader. Raises Unanswered."""
    answer = await ask(connection, api.STREAM_INFO.build(stream=stream))
    try:
        state, count = answer["state"], answer["config"]["max_msgs_per_subject"]
        last = int(state["last_seq"])
        last_ms = int(datetime.fromisoformat(state["last_ts"]).timestamp() * 1000) if last else 0
        keeps = count if count > 0 else None
        return StreamState(int(state["first_seq"]), last, last_ms, keeps, str(answer["created"]))
    except (KeyError, TypeError, ValueError) as error:
        raise Unanswered(f"{stream}: the broker's answer has another form") from error


async def newest(connection: Connection, stream: str, pattern: str) -> int:
    """The sequence of the newest message of a pattern that is still there, served by the leader; 0 without one. Raises
    Unanswered."""
    answer = await ask(connection, api.MESSAGE_GET.build(stream=stream), {"last_by_subj": pattern})
    code = _code(answer)
    if code == _NO_MESSAGE:
        return 0
    try:
        return int(answer["message"]["seq"])
    except (KeyError, TypeError, ValueError) as error:
        raise Unanswered(f"{stream}: the broker refuses the read ({code})") from error


# ---- durables ----


def durable(name: str, pattern: str, start: Mapping[str, Any]) -> dict[str, Any]:
    """Configuration of a durable of the delivery plane; ``start`` says where it begins, if it is made."""
    return {
        "durable_name": name,
        "name": name,
        "filter_subject": pattern,
        "ack_policy": "explicit",
        "ack_wait": ACK_WAIT_MS * _MILLION,
        "max_deliver": -1,
        "max_ack_pending": READER_MAX_ACK_PENDING,
        "replay_policy": "instant",
        **start,
    }


_UNSET: Final = ("deliver_subject", "inactive_threshold", "headers_only", "filter_subjects", "mem_storage")
_START: Final = frozenset({"deliver_policy", "opt_start_seq", "opt_start_time"})


def differences(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """How a durable differs from what it must be. Where it began is its own history."""
    wrong = [
        f"{field} is {found.get(field)!r}, must be {value!r}"
        for field, value in wanted.items()
        if field not in _START and found.get(field) != value
    ]
    return wrong + [f"{field} must not be set" for field in _UNSET if found.get(field)]


async def consumer_info(connection: Connection, stream: str, name: str) -> dict[str, Any] | None:
    """A consumer; None without one. Raises Unanswered."""
    answer = await ask(connection, api.CONSUMER_INFO.build(stream=stream, consumer=name))
    code = _code(answer)
    if code == _NO_CONSUMER:
        return None
    if code is not None:
        raise Unanswered(f"{name}: the broker refuses ({code})")
    return answer


async def prove(connection: Connection, stream: str, wanted: Mapping[str, Any]) -> bool:
    """Whether a durable exists; DurableDiffers for one of another shape. Raises Unanswered."""
    name = wanted["durable_name"]
    found = await consumer_info(connection, stream, name)
    if found is None:
        return False
    if wrong := differences(wanted, found.get("config") or {}):
        raise DurableDiffers(f"{name} on {stream}: {'; '.join(wrong)}")
    return True


async def create(connection: Connection, stream: str, config: Mapping[str, Any]) -> None:
    """Make a consumer of one filter. One that was made in between is left as it is. Raises Unanswered."""
    name, pattern = config["name"], config["filter_subject"]
    subject = api.CONSUMER_CREATE_FILTERED.build(stream=stream, consumer=name, filter=pattern)
    body = {"stream_name": stream, "config": dict(config), "action": "create"}
    code = _code(await ask(connection, subject, body))
    if code not in (None, _EXISTS):
        raise Unanswered(f"{name}: the broker does not make it ({code})")
