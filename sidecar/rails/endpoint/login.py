"""The creds of a caller: what its connection logs in with, who they make it, and by which generation it may ask what
there is (C13.15)."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from sidecar.base.clock import Now
from sidecar.base.secret import Secret
from sidecar.rails.connection import Connection, ConnectionFault, Credentials, PermissionViolation
from sidecar.rails.connection.kv import Unreadable
from sidecar.rails.messaging.credsfile import Source, source
from sidecar.rails.messaging.identity import Identity
from sidecar.rails.names import api, buckets
from sidecar.rails.space.evidence import InvalidEvidence, accepted_subject, listing_token, read_accepted

READ_SECONDS: Final = 5.0
_STATUS: Final = "Status"
_NOT_FOUND: Final = "404"
_UNGRANTED: Final = "this credential may not ask the registry what there is: its operator grants it with principal add"


class NoListing(Exception):  # noqa: N818 - what the credential is
    """The credential has no grant to ask the registry what there is; the message says who gives one."""


class Login:
    """Called by a connection for credentials; ``identity`` is that of the newest ones."""

    def __init__(self, creds: str | os.PathLike[str] | Secret | bytes | Source, clock: Callable[[], Now]) -> None:
        """``creds`` is the path of a creds file, which is read again when it was replaced, the content of one, or what
        is called for credentials."""
        self._source, self._clock = source(creds, clock), clock
        self._identity: Identity | None = None
        self._first: Credentials | None = None
        self._bound: tuple[int, str] | None = None

    async def read(self) -> Identity:
        """Who the creds make their holder, before anybody connects. Raises InvalidCreds, UnsafeFile."""
        self._first = await self()
        return self.identity

    @property
    def identity(self) -> Identity:
        assert self._identity is not None
        return self._identity

    async def __call__(self) -> Credentials:
        """The next credentials. Raises InvalidCreds, UnsafeFile, and what else a source raises."""
        found, self._first = self._first, None
        if found is None:
            found = await self._source()
            self._identity = Identity.from_creds(found.text)
        return found

    async def generation(self, connection: Connection) -> str:
        """The listing generation of the newest credentials: a renewed credential has another one. Raises NoListing,
        Unreadable."""
        ends = self.identity.expires_at
        if self._bound is None or self._bound[0] != ends:
            self._bound = ends, await listing_generation(connection, self.identity, self._clock)
        return self._bound[1]


async def listing_generation(connection: Connection, identity: Identity, clock: Callable[[], Now]) -> str:
    """The listing generation of a credential, from its accepted row alone (C13.15-11, -28..30): the key is derived from
    the connection and the end of the credential, and a row that names somebody else is refused.

    Raises NoListing, and Unreadable when nobody can tell.
    """
    token = listing_token(identity.connection, identity.expires_at)
    subject = accepted_subject(identity.space, token)
    request = api.DIRECT_GET_LAST.build(stream=buckets.ACCEPTED.stream(identity.space), filter=subject)
    try:
        message = await connection.request(request, b"", seconds=READ_SECONDS)
    except PermissionViolation:
        raise NoListing(_UNGRANTED) from None
    except (ConnectionFault, TimeoutError) as error:
        raise Unreadable(f"the accepted row could not be read: {error or 'no answer'}") from error
    status = (message.headers or {}).get(_STATUS)
    if status == _NOT_FOUND:
        raise NoListing(_UNGRANTED)
    if status is not None:
        raise Unreadable(f"the accepted row could not be read: status {status}")
    try:
        ref = read_accepted(message.data)
    except InvalidEvidence as error:
        raise Unreadable(f"the accepted row: {error}") from None
    if (ref.space, ref.lifecycle) != (identity.space, identity.lifecycle) or not ref.lives(clock().wall):
        raise NoListing("the accepted row of this credential is somebody else's, or has ended; renew the creds")
    return ref.generation
