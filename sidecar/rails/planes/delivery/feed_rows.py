"""Rows of the membership feed: who listens to what, for display alone (C8-72..C8-74, CB-70).

Pure. Nothing else in the tree reads these rows: no delivery, no grant and no authorization depends on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import orjson

from sidecar.base.strictjson import canonical
from sidecar.rails.names.buckets import MEMBERSHIP_FEED, MEMBERSHIP_KEY
from sidecar.rails.names.limits import MAX_MEMBERSHIP_VALUE
from sidecar.rails.names.principals import Principal
from sidecar.rails.planes.delivery.connections import bounded
from sidecar.rails.planes.delivery.membership import Membership

HEARTBEAT: Final = MEMBERSHIP_FEED.build()


class Row(NamedTuple):
    """What one agent listens to, each list in order. ``omitted``: entries that had no room."""

    live: tuple[str, ...]
    durable: tuple[str, ...]
    omitted: int = 0


class Plan(NamedTuple):
    """What has to be written and removed so that the bucket says ``wanted``."""

    puts: dict[str, bytes]
    deletes: list[str]


def key_of(principal: Principal) -> str:
    """The row's key: the agent's card id."""
    return MEMBERSHIP_KEY.build(owner=principal.owner, actor=principal.actor)


def fold(live: Mapping[Principal, Iterable[str]], memberships: Iterable[Membership]) -> dict[str, Row]:
    """One row for each agent that listens to something: subscriptions with their wildcards, and durable memberships,
    a family as it is recorded (``team.>``). A membership that was left is none."""
    durable: dict[Principal, set[str]] = {}
    for one in memberships:
        if one.open:
            durable.setdefault(one.lifecycle.principal, set()).add(one.channel)
    rows = {}
    for principal in sorted({*live, *durable}):
        heard, left_out = bounded(live.get(principal, ()))
        kept, more = bounded(durable.get(principal, ()))
        if heard or kept:
            rows[key_of(principal)] = Row(tuple(heard), tuple(kept), left_out + more)
    return rows


def encode(row: Row, now_ms: int) -> bytes:
    """The stored value. Above the bucket's bound the last entries of the longer list go, half of it at a time, and
    ``omitted`` says how many: a shortened row is better than one that is old."""
    live, durable, omitted = row.live, row.durable, row.omitted
    while True:
        value: dict[str, object] = {"live": list(live), "durable": list(durable), "observedAt": now_ms}
        if omitted:
            value["omitted"] = omitted
        data = canonical(value)  # type: ignore[arg-type]  # lists of text and numbers
        if len(data) <= MAX_MEMBERSHIP_VALUE:
            return data
        cut = max(len(live), len(durable)) // 2
        omitted += max(0, len(live) - cut) + max(0, len(durable) - cut)
        live, durable = live[:cut], durable[:cut]


def heartbeat(now_ms: int, rows: int, *, complete: bool) -> bytes:
    """The value of ``=feed``: when the feed was looked at last, and whether it saw everything then."""
    return canonical({"observedAt": now_ms, "rows": rows, "complete": complete})


def content(data: bytes) -> tuple[object, ...] | None:
    """What a stored row says, without its time; None for bytes that are no row of ours."""
    try:
        value = orjson.loads(data)
        return tuple(value["live"]), tuple(value["durable"]), value.get("omitted", 0)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def plan(rows: Mapping[str, Row], stored: Mapping[str, bytes], now_ms: int, *, complete: bool) -> Plan:
    """What to write: rows whose content is another than the stored one. Rows of agents that listen to nothing any more
    are removed, and rows are narrowed, only after a complete view."""
    puts = {}
    for key, row in rows.items():
        before = content(stored[key]) if key in stored else None
        if not complete and before is not None:
            row = _widened(row, before)
        data = encode(row, now_ms)
        if content(data) != before:
            puts[key] = data
    gone = [key for key in sorted(stored) if key not in rows and key != HEARTBEAT] if complete else []
    return Plan(puts, gone)


def _widened(row: Row, before: tuple[object, ...]) -> Row:
    """The row with everything that was there: what was not seen may only have been missed. Durable memberships do not
    come from the view, so they are as they are."""
    live = before[0]
    known = [one for one in live if isinstance(one, str)] if isinstance(live, tuple) else []
    heard, omitted = bounded({*row.live, *known})
    return Row(tuple(heard), row.durable, max(row.omitted, omitted))
