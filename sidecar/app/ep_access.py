"""A caller of endpoints for one credential: its connection, and the generation with which it may ask what there is."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from typing import Final

from sidecar.app.access import Access, NoBroker
from sidecar.base.clock import Now, system_now
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, ConnectionFault, Notice, PermissionViolation, Watch
from sidecar.rails.connection.kv import Unreadable
from sidecar.rails.endpoint.caller import Caller
from sidecar.rails.messaging.credsfile import CredsFile
from sidecar.rails.messaging.identity import Identity
from sidecar.rails.names import api, buckets
from sidecar.rails.space.evidence import InvalidEvidence, accepted_subject, listing_token, read_accepted

READ_SECONDS: Final = 5.0
_STATUS: Final = "Status"
_NOT_FOUND: Final = "404"


class NoListing(Exception):  # noqa: N818 - what the credential is
    """The credential has no grant to ask the registry what there is; the message says who gives one."""


@contextlib.asynccontextmanager
async def calling(
    access: Access, seconds: float, *, listing: bool = False, watch: Callable[[Notice], None] | None = None
) -> AsyncIterator[Caller]:
    """A caller on a connection of its own. With ``listing`` it may ask the registry for the listing.

    Raises NoBroker, NoListing, Unreadable, and what opening a connection raises.
    """
    heard: list[str] = []

    def noted(notice: Notice) -> None:
        if notice.said is not None:
            heard[:] = [notice.said.text or notice.said.fault.value]
        if watch is not None:
            watch(notice)

    metrics = Metrics()
    try:
        async with asyncio.timeout(seconds):
            connection = await Connection.open(
                [access.url], CredsFile(access.creds, system_now), watch=Watch(metrics, None, noted), tls=access.tls
            )
    except TimeoutError:
        last = f": {heard[0]}" if heard else ""
        raise NoBroker(f"no connection to {access.url} within {seconds:g} s{last}") from None
    async with connection:
        generation = await listing_generation(connection, access.identity) if listing else None
        identity = access.identity
        caller = Caller(
            connection,
            identity.space,
            identity.lifecycle,
            access.name,
            entropy=os.urandom,
            metrics=metrics,
            listing=generation,
        )
        try:
            yield caller
        finally:
            await caller.close()


async def listing_generation(connection: Connection, identity: Identity, clock: Callable[[], Now] = system_now) -> str:
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


_UNGRANTED: Final = "this credential may not ask the registry what there is: its operator grants it with principal add"
