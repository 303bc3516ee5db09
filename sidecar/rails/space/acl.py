"""The read-ACL row of a lifecycle: what a member may read now, as the delivery plane asks it (Data D3, C9-44).

``AclRow`` is the pure value and its codec. The functions below it change a row by compare-and-set, on the caller's
connection: :func:`grant` at activation, :func:`fence` when a lifecycle ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from nats.aio.client import Client

from sidecar.base.strictjson import JsonError, JsonValue, canonical, parse
from sidecar.rails.names import buckets
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.principals import Lifecycle
from sidecar.rails.names.tokens import GRAMMARS, policy_channel
from sidecar.rails.space.holder import within
from sidecar.rails.space.keys import Changed, read_key, write_key

MAX_ROW_BYTES: Final = 64 * 1024
MAX_ENTRIES: Final = 1024
"""Entries of one list; a credential with more would not pass the grant bound either (C13.9-013)."""
_ATTEMPTS: Final = 8


class InvalidRow(ValueError):  # noqa: N818 - a state of the value
    """Bytes that are no ACL row; the message says which field, and nothing of the value."""


class RowRefused(Exception):  # noqa: N818 - what was decided
    """A change of a row that is not made: it is gone, or others keep changing it."""


@dataclass(frozen=True, slots=True)
class AclRow:
    """What one lifecycle may read, in the form of its credential (C9-06, C9-44).

    ``issued`` is the ceiling that its credential was made with; None in rows that do not say it. ``revision`` counts
    the changes of the row, ``updated_at`` is the Unix time of the last one in milliseconds.
    """

    allow_subscribe: tuple[str, ...]
    roles: tuple[str, ...] = ()
    issued: tuple[str, ...] | None = None
    revision: int = 1
    updated_at: int = 0

    def reads(self, channel: str) -> bool:
        """Whether one entry contains the channel or family entirely (C7-42, C9-07)."""
        return any(within(channel, entry) for entry in self.allow_subscribe)

    def holds(self, role: str) -> bool:
        """Whether the lifecycle serves a role."""
        return role in self.roles

    def changed(self, readable: tuple[str, ...], roles: tuple[str, ...], now_ms: int) -> AclRow:
        """The row of a credential that was made anew."""
        return AclRow(readable, roles, readable, self.revision + 1, now_ms)

    def fenced(self, now_ms: int) -> AclRow:
        """The row that reads nothing and serves nothing; the ceiling stays (CB-76)."""
        ceiling = self.allow_subscribe if self.issued is None else self.issued
        revision = self.revision + 1
        return replace(self, allow_subscribe=(), roles=(), issued=ceiling, revision=revision, updated_at=now_ms)

    def encode(self) -> bytes:
        """The stored bytes, in canonical JSON."""
        value: dict[str, JsonValue] = {
            "allowSubscribe": list(self.allow_subscribe),
            "roles": list(self.roles),
            "revision": self.revision,
            "updatedAt": self.updated_at,
        }
        if self.issued is not None:
            value["issuedAllowSubscribe"] = list(self.issued)
        return canonical(value)

    @classmethod
    def decode(cls, data: bytes) -> AclRow:
        """The row in stored bytes; InvalidRow for anything that is not one. Fields that we do not know are passed by,
        ``roles`` may be absent."""
        try:
            value = parse(data, limit=MAX_ROW_BYTES, safe_integers=True)
        except JsonError as error:
            raise InvalidRow(f"it is no JSON: {error}") from None
        if not isinstance(value, Mapping):
            raise InvalidRow("it is no object")
        issued = value.get("issuedAllowSubscribe")
        return cls(
            _entries(value, "allowSubscribe", policy_channel),
            _entries(value, "roles", GRAMMARS["role"].check) if "roles" in value else (),
            None if issued is None else _entries(value, "issuedAllowSubscribe", policy_channel),
            _count(value, "revision"),
            _count(value, "updatedAt"),
        )


def _entries(value: Mapping[str, JsonValue], name: str, check: Callable[[object], str]) -> tuple[str, ...]:
    entries = value.get(name)
    if not isinstance(entries, list) or len(entries) > MAX_ENTRIES:
        raise InvalidRow(f"{name} is no list of at most {MAX_ENTRIES} entries")
    try:
        return tuple(check(entry) for entry in entries)
    except InvalidName as error:
        raise InvalidRow(f"{name}: {error.reason}") from None


def _count(value: Mapping[str, JsonValue], name: str) -> int:
    count = value.get(name)
    if type(count) is not int or count < 0:
        raise InvalidRow(f"{name} is no whole number")
    return count


# ---- rows at the broker ----


async def read_row(client: Client, space: str, lifecycle: Lifecycle) -> tuple[AclRow | None, int]:
    """The row and the revision that the next write names; None for one that is not there.

    Raises InvalidRow, BrokerRefused, nats.errors.Error.
    """
    kept = await read_key(client, buckets.ACL.stream(space), _subject(space, lifecycle))
    return None if kept.value is None else AclRow.decode(kept.value), kept.revision


async def write_row(client: Client, space: str, lifecycle: Lifecycle, row: AclRow, revision: int) -> int:
    """Write the row over exactly ``revision`` (0: create it). Raises Changed, BrokerRefused, nats.errors.Error."""
    return await write_key(client, _subject(space, lifecycle), row.encode(), revision)


def _subject(space: str, lifecycle: Lifecycle) -> str:
    return buckets.ACL.subject(space, buckets.ACL_KEY, **lifecycle.names)


async def grant(
    client: Client, space: str, lifecycle: Lifecycle, readable: tuple[str, ...], roles: tuple[str, ...], now_ms: int
) -> bool:
    """Make the row say this; False when it does already. Raises RowRefused, InvalidRow and as :func:`write_row`."""
    for _ in range(_ATTEMPTS):
        row, revision = await read_row(client, space, lifecycle)
        if row is not None and (row.allow_subscribe, row.roles, row.issued) == (readable, roles, readable):
            return False
        wanted = AclRow(readable, roles, readable, 1, now_ms) if row is None else row.changed(readable, roles, now_ms)
        try:
            await write_row(client, space, lifecycle, wanted, revision)
        except Changed:
            continue
        return True
    raise RowRefused("others keep changing the row")


async def fence(reader: Client, writer: Client, space: str, lifecycle: Lifecycle, now_ms: int) -> bool:
    """Make the row read nothing; False when there is none, or when it does already. A row is never made here (CB-76).

    ``reader`` may read the bucket; ``writer`` is the deprovisioner of exactly this lifecycle, which may not. Raises as
    :func:`grant`.
    """
    for _ in range(_ATTEMPTS):
        row, revision = await read_row(reader, space, lifecycle)
        if row is None or not (row.allow_subscribe or row.roles):
            return False
        try:
            await write_row(writer, space, lifecycle, row.fenced(now_ms), revision)
        except Changed:
            continue
        return True
    raise RowRefused("others keep changing the row")
