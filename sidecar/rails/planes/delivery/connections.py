"""Who listens to which channels, as the broker's lists of connections say it (C8-72, CB-117, OPEN C2-b).

Pure: pages of a list come in, a view comes out. Only a complete view may take anything away from what was known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.principals import DASH, Principal, surfaces
from sidecar.rails.names.subjects import CHAT
from sidecar.rails.names.tokens import policy_channel

LIMIT: Final = 1_024
"""Connections of one page."""
MAX_PAGES: Final = 64
MAX_PATTERNS: Final = 8_192
"""Channels and patterns of one principal; those beyond it are counted and left out."""


class Sweep:
    """One reading of all pages of all servers.

    ``live`` holds the patterns of each principal; ``complete`` says whether nothing is missing; ``unattributed`` counts
    connections that no principal could be read from.
    """

    def __init__(self, space: str) -> None:
        self.live: dict[Principal, set[str]] = {}
        self.unattributed = 0
        self.offset = 0
        self._prefix = CHAT.filter(space=space).removesuffix(">")
        self._servers: dict[str, int] = {}
        self._answered: set[str] = set()
        self._pages = 0
        self._broken = False
        self._ended = False

    @property
    def complete(self) -> bool:
        """Whether every server that answered once gave all of its pages."""
        return self._ended and not self._broken

    def request(self) -> bytes:
        """The body that asks for the next page."""
        return orjson.dumps({"subscriptions": True, "auth": True, "offset": self.offset, "limit": LIMIT})

    def take(self, data: bytes) -> None:
        """One server's answer to it. What cannot be read makes the sweep incomplete."""
        try:
            answer = orjson.loads(data)
            server, page = answer["server"]["id"], answer["data"]
            total, rows = page["total"], page["connections"]
            if page["offset"] != self.offset or server in self._answered:
                raise ValueError
            if type(total) is not int or not isinstance(server, str) or (self._pages and server not in self._servers):
                raise ValueError
            self._answered.add(server)
            self._servers[server] = total
            for row in rows or ():
                self._connection(row)
        except (KeyError, TypeError, ValueError, AttributeError):
            self._broken = True

    def turn(self) -> bool:
        """Every answer to this page is in. True: ask for the next one."""
        self._pages += 1
        if self._answered != self._servers.keys() or not self._servers:
            self._broken = True
        self._answered.clear()
        self.offset += LIMIT
        more = not self._broken and any(total > self.offset for total in self._servers.values())
        if more and self._pages >= MAX_PAGES:
            self._broken, more = True, False
        self._ended = not more
        return more

    def _connection(self, row: Mapping[str, Any]) -> None:
        principal = principal_of(row)
        if principal is None:
            self.unattributed += 1
            return
        found = self.live.setdefault(principal, set())
        for subject in row.get("subscriptions_list") or ():
            channel = self._channel(subject)
            if channel is not None:
                found.add(channel)

    def _channel(self, subject: object) -> str | None:
        """The channel or pattern of a member's own subscription; a tap of the whole kind is none."""
        if not isinstance(subject, str) or not subject.startswith(self._prefix):
            return None
        try:
            return policy_channel(subject[len(self._prefix) :])
        except InvalidName:
            return None


def principal_of(row: Mapping[str, Any]) -> Principal | None:
    """Whose connection it is: by its tag when the credential is static, else by the name of its token. None for anyone
    else, above all for users whose owner may not be shown."""
    tags = row.get("tags")
    found: Principal | None = None
    try:
        found = Principal.from_tags([tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else [])
    except InvalidName:
        try:
            found = Principal(**DASH.parse(row.get("authorized_user")))
        except InvalidName:
            return None
    return found if surfaces(found.owner) else None


def bounded(patterns: Iterable[str]) -> tuple[list[str], int]:
    """Patterns in order, at most ``MAX_PATTERNS``, and how many were left out."""
    ordered = sorted(patterns)
    return ordered[:MAX_PATTERNS], max(0, len(ordered) - MAX_PATTERNS)
