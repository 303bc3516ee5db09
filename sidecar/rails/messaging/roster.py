"""Who is here: the roster as one value, made from presence records of which none is trusted (C6-30..47).

A record is dropped for the reasons that the envelope names, and reported; the others stand. A peer is live while its
last heartbeat is young enough. A peer whose record has vanished from the bucket is offline: its absence says so, but
only in a read that completed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from sidecar.base.strictjson import JsonError
from sidecar.rails.envelopes.errors import EnvelopeError
from sidecar.rails.envelopes.presence import Presence, decode_presence
from sidecar.rails.envelopes.schema import Status
from sidecar.rails.names import InvalidName, Principal
from sidecar.rails.names.limits import LIVENESS_WINDOW_MS
from sidecar.rails.names.principals import DOT

MAX_CANDIDATES: Final = 8
"""Principals that the error of an ambiguous name shows."""


class RosterUnreadable(Exception):  # noqa: N818 - a state
    """The roster was not read to its end: nothing may be said of who is absent (C6-47)."""


class NoSuchPeer(LookupError):  # noqa: N818 - a state
    """A roster that was read whole has no peer of this name or principal."""


class AmbiguousName(LookupError):  # noqa: N818 - a state
    """Several live peers have this name; ``candidates`` are some of their principals."""

    def __init__(self, name: str, candidates: tuple[Principal, ...]) -> None:
        super().__init__(f"{name!r} is the name of several peers: {', '.join(one.dot for one in candidates)}")
        self.candidates = candidates


class Row(NamedTuple):
    """One peer. ``presence`` is what it said, with the status that it has for a reader: see ``derived``."""

    principal: Principal
    presence: Presence

    @property
    def live(self) -> bool:
        """Whether it is there."""
        return self.presence.status is not Status.OFFLINE

    def uptime_ms(self, now: int) -> int | None:
        """Age of its process; None for one that is offline or does not say it in a form that is known (C6-18, -19)."""
        runtime = self.presence.runtime
        if not self.live or runtime is None or not runtime.supported:
            return None
        return max(0, int(now - runtime.started_at))


class Dropped(NamedTuple):
    """A record that was dropped, without anything of what it said (C6-43). ``key`` is the bucket's."""

    key: str
    why: str


def derived(presence: Presence) -> Presence:
    """The same, offline: since no time, and with no wish for attention (C6-08, C6-12); its runtime stays (C6-19)."""
    return presence._replace(status=Status.OFFLINE, status_since=None, attention=None)


def is_stale(presence: Presence, now: int, window: int = LIVENESS_WINDOW_MS) -> bool:
    """Whether its last heartbeat is older than the liveness window, all in milliseconds (C6-30)."""
    return now - presence.ts > window


@functools.lru_cache(maxsize=16_384)
def _principal(key: str) -> Principal:
    """The same keys are read again and again; a cache that is smaller than a roster helps none of them."""
    return Principal.from_dot(key)


def read_row(key: str, value: bytes, now: int, window: int = LIVENESS_WINDOW_MS) -> Row | Dropped:
    """The row of one record, offline when it is stale."""
    try:
        principal = _principal(key)
        presence = decode_presence(key, value)
    except InvalidName:
        return Dropped(key, "the key is no principal")
    except EnvelopeError as error:
        return Dropped(key, str(error))
    except JsonError:
        return Dropped(key, "the record is no JSON")
    offline = presence.status is Status.OFFLINE or is_stale(presence, now, window)
    return Row(principal, derived(presence) if offline else presence)


@dataclass(frozen=True, slots=True)
class Roster:
    """Everybody whose record was there, by principal in dot-form, at ``read_at`` (milliseconds since 1970)."""

    rows: Mapping[str, Row]
    dropped: tuple[Dropped, ...]
    read_at: int

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows.values())

    def __len__(self) -> int:
        return len(self.rows)

    def get(self, principal: Principal) -> Row | None:
        """The row of a principal; None: it is not there."""
        return self.rows.get(principal.dot)

    @property
    def live(self) -> list[Row]:
        """The rows of those who are there."""
        return [row for row in self if row.live]

    def resolve(self, text: str) -> Principal:
        """Whom a person means: a principal in dot-form, or the display name of exactly one live peer. Text in dot-form
        is never taken as a name, which anybody may choose. Raises NoSuchPeer, AmbiguousName."""
        if DOT.fits(text):
            row = self.rows.get(text)
            if row is None:
                raise NoSuchPeer(f"{text} is not in the roster")
            return row.principal
        found = tuple(row.principal for row in self.live if row.presence.card.name == text)
        if not found:
            raise NoSuchPeer(f"no live peer is called {text[:MAX_SHOWN]!r}")
        if len(found) > 1:
            raise AmbiguousName(text[:MAX_SHOWN], tuple(sorted(found)[:MAX_CANDIDATES]))
        return found[0]


MAX_SHOWN: Final = 128
"""Characters of a name in an error."""


def read_roster(records: Iterable[tuple[str, bytes]], now: int, window: int = LIVENESS_WINDOW_MS) -> Roster:
    """The roster of a read that completed: keys with their records, at ``now``."""
    return roster_of([(key, read_row(key, value, now, window)) for key, value in records], now)


def roster_of(read: Sequence[tuple[str, Row | Dropped]], now: int) -> Roster:
    """The roster of the rows of a read that completed, by their keys."""
    rows = {key: row for key, row in read if isinstance(row, Row)}
    return Roster(rows, tuple(row for _, row in read if isinstance(row, Dropped)), now)
