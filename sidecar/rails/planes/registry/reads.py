"""How the registry reads the stores of a space: at the leader where the answer decides, by Direct Get else (C13.9-074,
-075), and the proof of a store's shape before it is believed at all (C13.12-18)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson
from nats.aio.msg import Msg

from sidecar.rails.connection import Connection
from sidecar.rails.connection.faults import ConnectionFault
from sidecar.rails.connection.kv import Unreadable
from sidecar.rails.names import api, headers

SECONDS: Final = 5.0
"""For one read."""
PAGE: Final = 256
PAGE_BYTES: Final = 4 * 1024 * 1024
MAX_PAGES: Final = 1_024
_NO_MESSAGE: Final = 10037
_END, _NOT_FOUND = "204", "404"
_STREAM: Final = headers.STREAM.lower()


class Stored(NamedTuple):
    """One stored message. ``marker``: it stands where a value was deleted, or a redirected read was stored (which is
    the value of nobody)."""

    subject: str
    data: bytes
    revision: int
    marker: bool


class Page(NamedTuple):
    """Messages in the order of their stream, and whether there are more behind them."""

    rows: list[Stored]
    more: bool


class Misshapen(Exception):  # noqa: N818 - a state of the broker
    """A store that may lose what stands in it, or that is not the primary: nothing is served from it (C13.12-18)."""


class Reader:
    """Reads of one connection. Every read raises Unreadable when it did not complete."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    # ---- one message ----

    async def last(self, stream: str, subject: str) -> Stored | None:
        """The newest message of a subject, served by the leader."""
        return await self._leader(stream, {"last_by_subj": subject})

    async def first(self, stream: str, subject: str) -> Stored | None:
        """The oldest message of a subject, served by the leader (C13.15-08)."""
        return await self._leader(stream, {"seq": 1, "next_by_subj": subject})

    async def _leader(self, stream: str, body: Mapping[str, Any]) -> Stored | None:
        answer = await self._ask(api.MESSAGE_GET.build(stream=stream), body)
        if (error := answer.get("error")) is not None:
            if isinstance(error, dict) and error.get("err_code") == _NO_MESSAGE:
                return None
            raise Unreadable(f"{stream}: the broker refuses the read")
        try:
            message = answer["message"]
            said = base64.b64decode(message.get("hdrs") or "", validate=True).decode("utf-8", "replace")
            data = base64.b64decode(message.get("data") or "", validate=True)
            return self._judged(str(message["subject"]), data, int(message["seq"]), _lines(said))
        except (KeyError, TypeError, ValueError, AttributeError, binascii.Error) as error:
            raise Unreadable(f"{stream}: the broker's answer has another form") from error

    async def direct(self, stream: str, subject: str) -> Stored | None:
        """The newest message of a subject by Direct Get: any replica may serve it."""
        request = api.DIRECT_GET_LAST.build(stream=stream, filter=subject)
        try:
            message = await self._connection.request(request, seconds=SECONDS)
        except (ConnectionFault, TimeoutError) as error:
            raise Unreadable(f"{stream} could not be read: {error or 'no answer'}") from error
        said = message.headers or {}
        if headers.SUBJECT not in said and said.get(headers.STATUS) == _NOT_FOUND:
            return None
        return self._direct(stream, message)

    def _direct(self, stream: str, message: Msg) -> Stored:
        said = message.headers or {}
        try:
            found = self._judged(
                said[headers.SUBJECT],
                message.data,
                int(said[headers.SEQUENCE]),
                {name: value for name, value in said.items() if name != headers.STREAM},
            )
        except (KeyError, ValueError) as error:
            raise Unreadable(f"{stream}: the broker's answer has another form") from error
        return found if said.get(headers.STREAM) == stream else found._replace(data=b"", marker=True)

    def _judged(self, subject: str, data: bytes, revision: int, said: Mapping[str, str]) -> Stored:
        redirected = any(name.lower() == _STREAM for name in said)
        if redirected:
            self._connection.record_redirected()
        gone = redirected or said.get(headers.KV_OPERATION) in headers.KV_MARKERS or headers.MARKER_REASON in said
        return Stored(subject, b"" if gone else data, revision, gone)

    # ---- many ----

    async def page(self, stream: str, pattern: str, after: int, at_most: int = PAGE) -> Page:
        """Messages of a pattern behind a sequence."""
        body = {"seq": after + 1, "next_by_subj": pattern, "batch": at_most, "max_bytes": PAGE_BYTES}
        request = api.DIRECT_GET.build(stream=stream)
        try:
            answers = await self._connection.request_until(
                request, orjson.dumps(body), _is_status, at_most=at_most + 1, seconds=SECONDS
            )
        except (ConnectionFault, TimeoutError) as error:
            raise Unreadable(f"{stream} could not be read: {error or 'the answer is not complete'}") from error
        *messages, end = answers
        return self._whole(stream, after, messages, end.headers or {})

    def _whole(self, stream: str, after: int, messages: list[Msg], end: Mapping[str, str]) -> Page:
        """The page, when nothing of it is missing: each answer names the one before it."""
        rows, last = [], 0
        try:
            for message in messages:
                said = message.headers or {}
                row = self._direct(stream, message)
                if row.revision <= after or int(said[headers.LAST_SEQUENCE]) != last:
                    raise Unreadable(f"{stream}: an answer is missing")
                rows.append(row)
                last = row.revision
            if end.get(headers.STATUS) == _NOT_FOUND and not rows:
                return Page([], False)
            if end.get(headers.STATUS) != _END or (rows and int(end[headers.LAST_SEQUENCE]) != last):
                raise Unreadable(f"{stream}: the broker ended the read with {end.get(headers.STATUS)}")
            more = int(end[headers.PENDING]) > 0
        except (KeyError, ValueError) as error:
            raise Unreadable(f"{stream}: the broker's answer has another form") from error
        if more and not rows:
            raise Unreadable(f"{stream}: a page without an answer")
        return Page(rows, more)

    async def newest(self, stream: str, pattern: str) -> int:
        """The sequence of the newest message of a pattern, 0 when there is none."""
        body = orjson.dumps({"last_by_subj": pattern})
        try:
            message = await self._connection.request(api.DIRECT_GET.build(stream=stream), body, seconds=SECONDS)
        except (ConnectionFault, TimeoutError) as error:
            raise Unreadable(f"{stream} could not be read: {error or 'no answer'}") from error
        said = message.headers or {}
        if headers.SUBJECT not in said and said.get(headers.STATUS) == _NOT_FOUND:
            return 0
        return self._direct(stream, message).revision

    async def everything(self, stream: str, pattern: str) -> dict[str, Stored]:
        """The newest message of every subject of a pattern that has a value. What was there from the begin of the read
        to its end is in it."""
        found: dict[str, Stored] = {}
        after = 0
        for _ in range(MAX_PAGES):
            page = await self.page(stream, pattern, after)
            for row in page.rows:
                found[row.subject] = row
                after = row.revision
            if not page.more:
                return {subject: row for subject, row in found.items() if not row.marker}
        raise Unreadable(f"{stream} has more than {MAX_PAGES} pages")

    # ---- streams ----

    async def subjects(self, stream: str, pattern: str) -> list[str]:
        """The subjects of a pattern that have a message, as the leader knows them."""
        answer = await self._info(stream, {"subjects_filter": pattern})
        state = answer.get("state")
        found = state.get("subjects") if isinstance(state, dict) else None
        return sorted(found) if isinstance(found, dict) else []

    async def configuration(self, stream: str) -> Mapping[str, Any]:
        """The configuration of a stream."""
        found = (await self._info(stream, {})).get("config")
        if not isinstance(found, dict):
            raise Unreadable(f"{stream}: the broker's answer has another form")
        return found

    async def _info(self, stream: str, body: Mapping[str, Any]) -> dict[str, Any]:
        answer = await self._ask(api.STREAM_INFO.build(stream=stream), body)
        if answer.get("error") is not None:
            raise Unreadable(f"{stream}: the broker does not describe it")
        return answer

    async def _ask(self, subject: str, body: Mapping[str, Any]) -> dict[str, Any]:
        try:
            message = await self._connection.request(subject, orjson.dumps(body) if body else b"", seconds=SECONDS)
            answer = orjson.loads(message.data)
        except (ConnectionFault, TimeoutError, orjson.JSONDecodeError) as error:
            raise Unreadable(f"{subject}: {error or 'no answer'}") from error
        if not isinstance(answer, dict):
            raise Unreadable(f"{subject}: the answer is no object")
        return answer


def _is_status(message: Msg) -> bool:
    """The end of a page, or a refusal of the whole; the broker adds the subject to a stored message."""
    said = message.headers or {}
    return headers.STATUS in said and headers.SUBJECT not in said


def _lines(text: str) -> dict[str, str]:
    """The headers of a stored message; the first line is the protocol's version."""
    pairs = (line.partition(":") for line in text.split("\r\n")[1:] if ":" in line)
    return {name: value.strip() for name, _, value in pairs}


# ---- shape ----

Shape = Mapping[str, bool]
"""Fields of a configuration that must be on or off, beside what holds for every store."""
RECORDS: Final[Shape] = {}
AUTH: Final[Shape] = {"allow_direct": False}
ISSUED: Final[Shape] = {
    "allow_direct": False,
    "allow_msg_ttl": True,
    "allow_rollup_hdrs": False,
    "deny_delete": True,
    "deny_purge": True,
}
"""C13.15-09."""
ARTIFACTS: Final[Shape] = {"allow_rollup_hdrs": False, "deny_delete": True, "deny_purge": True}
"""C13.12-15."""
EVENTS: Final[Shape | None] = None
"""Events may end: only the primary is asked for."""


def shape_faults(found: Mapping[str, Any], shape: Shape | None) -> list[str]:
    """Why nothing may be served from a store of this configuration; empty when it is right. A server leaves out what is
    false, empty or zero."""
    wrong = [f"{field} is set" for field in ("mirror", "sources") if found.get(field)]
    if shape is None:
        return wrong
    wrong += ["max_age is set"] * bool(found.get("max_age"))
    wrong += [f"{field} is finite" for field in ("max_msgs", "max_bytes") if found.get(field, -1) != -1]
    return wrong + [
        f"{field} must be {'on' if wanted else 'off'}"
        for field, wanted in shape.items()
        if bool(found.get(field)) is not wanted
    ]
