"""Who is connected to an account, and what the servers know of it: answers of all servers, judged (C13.1-031 T4, T5).

Pure. Only a complete answer proves that somebody is gone: every server has to answer, and its pages have to hold
as many connections as it says that there are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import orjson

from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.principals import Principal
from sidecar.rails.space.claims import AccountClaims, InvalidToken, decode

PAGE: Final = 256
"""Connections of one page; each comes with its token."""
MAX_PAGES: Final = 512


def servers_of(answers: Iterable[bytes]) -> int:
    """How many servers there are, as those say that answered; 0 when that cannot be told."""
    counted, named = set(), set()
    try:
        for data in answers:
            answer = orjson.loads(data)
            counted.add(answer["statsz"]["active_servers"])
            named.add(answer["server"]["id"])
    except (KeyError, TypeError, ValueError):
        return 0
    if len(counted) != 1:
        return 0  # they do not see the same cluster
    (count,) = counted
    return count if type(count) is int and len(named) <= count else 0


def enforced(answers: Collection[bytes], token: str, users: Collection[str], servers: int) -> bool:
    """Whether every server knows this token of the account, or one in which the tokens of ``users`` are void for as
    long: another operation has followed it."""
    if len(answers) < servers:
        return False
    return all(answer == token.encode("ascii") or _as_void(answer, token, users) for answer in answers)


def _as_void(answer: bytes, token: str, users: Collection[str]) -> bool:
    try:
        known, wanted = (_revocations(text) for text in (answer.decode("ascii"), token))
    except (InvalidToken, UnicodeDecodeError):
        return False
    return all(user in wanted and known.get(user, -1) >= wanted[user] for user in users)


def _revocations(token: str) -> Mapping[str, int]:
    claims = decode(token, "account").claims
    return claims.revocations if isinstance(claims, AccountClaims) else {}


class Census:
    """One reading of the connections of an account, page after page.

    ``users`` are the public keys and ``principals`` the tagged principals that were seen.
    """

    def __init__(self, servers: int) -> None:
        self.users: set[str] = set()
        self.principals: set[Principal] = set()
        self.offset = 0
        self._servers = servers
        self._totals: dict[str, int] = {}
        self._seen: dict[str, set[int]] = {}
        self._answered: set[str] = set()
        self._pages = 0
        self._broken = False

    @property
    def complete(self) -> bool:
        """Whether every connection of every server was seen."""
        whole = all(len(self._seen[server]) == total for server, total in self._totals.items())
        return not self._broken and len(self._totals) >= self._servers > 0 and whole

    def request(self) -> bytes:
        """The body that asks for the next page."""
        return orjson.dumps({"auth": True, "offset": self.offset, "limit": PAGE})

    def take(self, data: bytes) -> None:
        """One server's answer. What cannot be read, and a total that moved, make the census incomplete."""
        try:
            answer = orjson.loads(data)
            server, page = answer["server"]["id"], answer["data"]
            total, rows = page["total"], page["connections"]
            if page["offset"] != self.offset or server in self._answered or type(total) is not int:
                raise ValueError
            if self._totals.setdefault(server, total) != total:
                raise ValueError
            self._answered.add(server)
            seen = self._seen.setdefault(server, set())
            for row in rows or ():
                seen.add(row["cid"])
                self._connection(row)
        except (KeyError, TypeError, ValueError):
            self._broken = True

    def turn(self) -> bool:
        """Every answer to this page is in. True: ask for the next one."""
        self._pages += 1
        self._broken |= self._answered != self._totals.keys()
        self._answered.clear()
        self.offset += PAGE
        more = not self._broken and any(total > self.offset for total in self._totals.values())
        self._broken |= more and self._pages >= MAX_PAGES
        return more and not self._broken

    def _connection(self, row: Mapping[str, Any]) -> None:
        user, tags = row.get("authorized_user"), row.get("tags")
        if isinstance(user, str):
            self.users.add(user)
        try:
            named = [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []
            self.principals.add(Principal.from_tags(named))
        except InvalidName:
            return
