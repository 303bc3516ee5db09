"""Durable memberships as values: rows, cursors, what a join, an activation and a leave make of them (C7-28..45).

A row is one lifecycle's membership of one channel or family. It is a tombstone once it has a leave cursor, and a rejoin
opens it again behind a new join cursor. What was posted in an earlier membership and is still on its way stays
deliverable (C7-33), so that a row keeps its last few closed intervals.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from sidecar.base.strictjson import SAFE_INTEGER, JsonError, JsonValue, canonical, parse
from sidecar.rails.names.buckets import member_channel, member_key, parse_member_key
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.principals import Lifecycle

MAX_EARLIER: Final = 8
"""Closed intervals that a row keeps; the oldest is forgotten, and with it copies that have waited through that many
leaves and joins."""
MAX_ROW_BYTES: Final = 16 * 1024
_JOINED, _ACTIVE = "live-confirmed", "durable-active"
_FAMILY: Final = ".>"


class InvalidRow(ValueError):  # noqa: N818 - a state of the value
    """Bytes that are no membership row; the message says which field, and nothing of the value."""


class Interval(NamedTuple):
    """CHAT sequences of one membership: behind ``join`` up to ``leave``, without an end while that is None (C7-32)."""

    join: int
    leave: int | None = None

    def holds(self, sequence: int) -> bool:
        return self.join < sequence and (self.leave is None or sequence <= self.leave)


@dataclass(frozen=True, slots=True)
class Membership:
    """One row. ``generation`` is another one for each join of a channel by a lifecycle; ``activated``: what was posted
    while the row was written has been copied too; ``writer`` is the daemon's principal, ``updated_at`` in milliseconds.
    """

    channel: str
    lifecycle: Lifecycle
    interval: Interval
    generation: int
    activated: bool = False
    earlier: tuple[Interval, ...] = ()
    writer: str = ""
    updated_at: int = 0

    @property
    def key(self) -> str:
        return member_key(self.channel, self.lifecycle)

    @property
    def state(self) -> str:
        """The row's own word for it (Data D7)."""
        return _ACTIVE if self.activated else _JOINED

    @property
    def open(self) -> bool:
        """Whether it has not been left."""
        return self.interval.leave is None

    def holds(self, sequence: int) -> bool:
        """Whether a post of this CHAT sequence is in it, or in an earlier membership that the row still knows."""
        return self.interval.holds(sequence) or any(one.holds(sequence) for one in self.earlier)

    def encode(self) -> bytes:
        """The stored value (Data D3), in canonical JSON."""
        value: dict[str, JsonValue] = {
            "channel": self.channel,
            "owner": self.lifecycle.principal.dot,
            "lifecycleUid": self.lifecycle.uid,
            "state": self.state,
            "joinCursor": self.interval.join,
            "activated": self.activated,
            "generation": self.generation,
            "writerIdentity": self.writer,
            "updatedAt": self.updated_at,
        }
        if self.interval.leave is not None:
            value["leaveCursor"] = self.interval.leave
        if self.earlier:
            value["earlier"] = [list(one) for one in self.earlier]
        return canonical(value)


def decode(key: str, data: bytes) -> Membership:
    """The row that stands under a key; InvalidRow for anything else. The key alone says whose it is, and of what."""
    try:
        channel, lifecycle = parse_member_key(key)
    except InvalidName as error:
        raise InvalidRow(f"its key: {error.reason}") from None
    try:
        value = parse(data, limit=MAX_ROW_BYTES, safe_integers=True)
    except JsonError as error:
        raise InvalidRow(f"it is no JSON: {error}") from None
    if not isinstance(value, Mapping):
        raise InvalidRow("it is no object")
    leave = None if value.get("leaveCursor") is None else _whole(value, "leaveCursor")
    writer = value.get("writerIdentity")
    return Membership(
        channel,
        lifecycle,
        Interval(_whole(value, "joinCursor"), leave),
        _whole(value, "generation"),
        value.get("activated") is True,
        tuple(_intervals(value.get("earlier", []))),
        writer if isinstance(writer, str) else "",
        _whole(value, "updatedAt"),
    )


def _whole(value: Mapping[str, JsonValue], name: str) -> int:
    number = value.get(name)
    if type(number) is not int or not 0 <= number <= SAFE_INTEGER:
        raise InvalidRow(f"{name} is no whole number")
    return number


def _intervals(value: JsonValue) -> Iterator[Interval]:
    if not isinstance(value, list) or len(value) > MAX_EARLIER:
        raise InvalidRow(f"earlier is no list of at most {MAX_EARLIER} intervals")
    for one in value:
        if not isinstance(one, list) or len(one) != 2:
            raise InvalidRow("earlier holds something that is no interval")
        pair = {"join": one[0], "leave": one[1]}
        yield Interval(_whole(pair, "join"), _whole(pair, "leave"))


def check_channel(channel: object) -> str:
    """A concrete channel or a family, the only patterns that a membership may name (C7-38); InvalidName otherwise."""
    if not isinstance(channel, str):
        raise InvalidName("channel", "it is not text", "C7-38")
    member_channel(channel)
    return channel


def families_of(channel: str) -> Iterator[str]:
    """The families that cover a channel, nearest last (C7-39): ``team.>`` covers ``team.a`` and not ``team``."""
    tokens = channel.split(".")
    return (".".join(tokens[:length]) + _FAMILY for length in range(1, len(tokens)))


@dataclass(frozen=True, slots=True)
class Writer:
    """Who changes a row, and when (milliseconds)."""

    identity: str
    now_ms: int


def joined(row: Membership | None, channel: str, lifecycle: Lifecycle, cursor: int, writer: Writer) -> Membership:
    """The row after a join at a cursor. One that is open already stays as it is: its member never left (C7-34)."""
    if row is not None and row.open:
        return row
    generation = writer.now_ms if row is None else max(writer.now_ms, row.generation + 1)
    earlier = () if row is None else (*row.earlier, row.interval)[-MAX_EARLIER:]
    return Membership(channel, lifecycle, Interval(cursor), generation, False, earlier, writer.identity, writer.now_ms)


def join_cursor(asked: int, frontier: int) -> int:
    """Where a membership begins: an older cursor than the frontier does no harm, a newer one would lose posts (OPEN
    C7-b)."""
    return min(asked, frontier)


def activated(row: Membership, writer: Writer) -> Membership:
    """The row once everything up to its frontier was copied."""
    return replace(row, activated=True, writer=writer.identity, updated_at=writer.now_ms)


def left(row: Membership | None, generation: int, frontier: int, writer: Writer) -> Membership | None:
    """The tombstone that a leave of a generation makes (C7-31); None when that generation has ended already."""
    if row is None or not row.open or row.generation > generation:
        return None
    interval = Interval(row.interval.join, max(frontier, row.interval.join))
    return replace(row, interval=interval, writer=writer.identity, updated_at=writer.now_ms)
