"""Void credentials at the broker, and see on every server that it is so and that nobody who held them is left.

Static spaces have no list of live credentials that each login asks: the account's token, which names the void keys, is
pushed, looked up on every server, and all connections are listed until the holders are gone (OPEN C13.1-f). What cannot
be seen raises Unverified: then nothing may be concluded, and the gate stays frozen (C13.1-034).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Final

import nats.errors
from nats.aio.client import Client

from sidecar.rails.names import api
from sidecar.rails.names.principals import Principal
from sidecar.rails.planes.registration.census import Census, enforced, servers_of
from sidecar.rails.planes.registration.faults import Unverified
from sidecar.rails.space.resolver import ResolverRefused, push_newest

SECONDS: Final = 15.0
"""How long the holders may take to be gone from all servers."""
_ANSWER_SECONDS: Final = 2.0
_AGAIN_SECONDS: Final = 0.05


async def evict(
    system: Client,
    account: str,
    token: str,
    users: Collection[str],
    principals: Collection[Principal],
    *,
    newest: Callable[[], str] | None = None,
    adopt: Callable[[str], object] | None = None,
    seconds: float = SECONDS,
) -> None:
    """Push the token in which ``users`` are void; return when every server has it and no connection of those users or
    principals is left. ``system`` has the barrier's permissions; ``newest`` reads the account's token, which others may
    have written meanwhile; ``adopt`` takes over what another copy of the directory has revoked. Raises Unverified."""
    deadline = time.monotonic() + seconds
    try:
        await push_newest(system, (lambda: token) if newest is None else newest, account=account, adopt=adopt)
        while True:
            why = await _look(system, account, token, set(users), set(principals))
            if not why:
                return
            if time.monotonic() >= deadline:
                raise Unverified(f"eviction could not be verified: {why}")
            await asyncio.sleep(_AGAIN_SECONDS)
    except (nats.errors.Error, ResolverRefused) as error:
        raise Unverified(f"revocation could not be enforced: {error or type(error).__name__}") from None


async def _look(system: Client, account: str, token: str, users: set[str], principals: set[Principal]) -> str:
    """Why it is not done; empty when it is."""
    servers = servers_of(await ask_all(system, api.PING_STATSZ.build(), b"", 0))
    if servers == 0:
        return "the servers do not say how many they are"
    known = await ask_all(system, api.CLAIMS_LOOKUP.build(account=account), b"", servers)
    if not enforced(known, token, users, servers):
        return "not every server knows the revocation"
    census = Census(servers)
    while True:
        for answer in await ask_all(system, api.CONNECTIONS.build(account=account), census.request(), servers):
            census.take(answer)
        if not census.turn():
            break
    if not census.complete:
        return "the list of connections is not complete"
    left = len(census.users & users) + len(census.principals & principals)
    return f"{left} of the holders are still connected" if left else ""


async def ask_all(system: Client, subject: str, body: bytes, servers: int) -> list[bytes]:
    """The answers of all servers: of ``servers`` many, or of as many as the first one says that there are (0)."""
    subscription = await system.subscribe(system.new_inbox())
    answers: list[bytes] = []
    try:
        await system.publish(subject, body, reply=subscription.subject)
        async with asyncio.timeout(_ANSWER_SECONDS):
            while not answers or len(answers) < (servers or servers_of(answers)):
                answers.append((await subscription.next_msg(timeout=_ANSWER_SECONDS)).data)
    except (TimeoutError, nats.errors.TimeoutError):
        pass  # whoever asks sees that some are missing
    finally:
        await subscription.unsubscribe()
    return answers
