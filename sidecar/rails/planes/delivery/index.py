"""Who is a member of what, in memory: the rows of the members bucket, found by channel, by family and by lifecycle."""

from __future__ import annotations

from collections.abc import Iterator

from sidecar.rails.names.principals import Lifecycle
from sidecar.rails.planes.delivery.membership import Membership, families_of


class MemberIndex:
    """Rows by channel or family, and by lifecycle. Families are looked up by their prefixes, never scanned."""

    def __init__(self) -> None:
        self._by_channel: dict[str, dict[Lifecycle, Membership]] = {}
        self._by_lifecycle: dict[Lifecycle, dict[str, Membership]] = {}
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def put(self, row: Membership) -> None:
        """This is what the row is now."""
        self._rows += row.lifecycle not in self._by_channel.get(row.channel, ())
        self._by_channel.setdefault(row.channel, {})[row.lifecycle] = row
        self._by_lifecycle.setdefault(row.lifecycle, {})[row.channel] = row

    def remove(self, channel: str, lifecycle: Lifecycle) -> None:
        """The row is gone."""
        members = self._by_channel.get(channel, {})
        self._rows -= members.pop(lifecycle, None) is not None
        if not members:
            self._by_channel.pop(channel, None)
        channels = self._by_lifecycle.get(lifecycle, {})
        channels.pop(channel, None)
        if not channels:
            self._by_lifecycle.pop(lifecycle, None)

    def members(self, channel: str, sequence: int) -> Iterator[Lifecycle]:
        """Each lifecycle once that has a row which covers the channel and holds the sequence (C7-39, C7-43)."""
        tables = [rows for one in (*families_of(channel), channel) if (rows := self._by_channel.get(one))]
        if len(tables) == 1:
            return (member for member, row in tables[0].items() if row.holds(sequence))
        found = {member: None for rows in tables for member, row in rows.items() if row.holds(sequence)}
        return iter(found)

    def holds(self, lifecycle: Lifecycle, channel: str, sequence: int) -> bool:
        """Whether any covering row of the lifecycle holds the sequence (C7-43)."""
        rows = self._by_lifecycle.get(lifecycle)
        if rows is None:
            return False
        row = rows.get(channel)
        if row is not None and row.holds(sequence):
            return True
        covering = (rows.get(one) for one in families_of(channel))
        return any(row is not None and row.holds(sequence) for row in covering)

    def oldest(self) -> int | None:
        """The cursor behind which the oldest membership began that has not been left; None without one."""
        rows = (row for rows in self._by_channel.values() for row in rows.values())
        return min((row.interval.join for row in rows if row.open), default=None)

    def of(self, lifecycle: Lifecycle) -> list[Membership]:
        """Every row of a lifecycle, tombstones too, by channel."""
        rows = self._by_lifecycle.get(lifecycle, {})
        return [rows[channel] for channel in sorted(rows)]
