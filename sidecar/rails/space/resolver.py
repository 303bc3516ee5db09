"""Accounts at a running broker: push and delete over the system account (full resolver).

The connection is the caller's, made with :func:`push_permissions`; every request has its own deadline.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from nats.aio.client import Client

from sidecar.rails.names import api
from sidecar.rails.space.claims import Access, Permissions

_UPDATE: Final = api.CLAIMS_UPDATE.build()
_DELETE: Final = api.CLAIMS_DELETE.build()
_LOOKUP: Final = api.CLAIMS_LOOKUP.filter()


class ResolverRefused(Exception):  # noqa: N818 - what the broker said
    """The broker did not take the request; the message is the broker's own."""


def push_permissions(inbox: str) -> Permissions:
    """All that a user needs who pushes and deletes accounts, and sees what stands there; ``inbox`` is the filter of its
    reply inbox."""
    return Permissions(Access((_UPDATE, _DELETE, _LOOKUP)), Access((inbox,)))


async def push_account(client: Client, token: str, *, seconds: float = 5.0) -> None:
    """Make the broker know (or replace) an account. Raises ResolverRefused, or nats.errors.TimeoutError."""
    await _ask(client, _UPDATE, token, seconds)


async def known_account(client: Client, account: str, *, seconds: float = 5.0) -> str:
    """The token of an account that the broker holds, empty when it knows none. Raises nats.errors.TimeoutError."""
    reply = await client.request(api.CLAIMS_LOOKUP.build(account=account), b"", timeout=seconds)
    return reply.data.decode("ascii", "replace")


async def push_newest(
    client: Client,
    newest: Callable[[], str],
    *,
    account: str = "",
    adopt: Callable[[str], object] | None = None,
    seconds: float = 5.0,
) -> None:
    """Push the newest token of an account until it still is the newest one, as ``newest`` reads it.

    Others write and push as well: whoever writes a token before this has looked again is seen here, and whoever writes
    it after that pushes it after this. So no push takes back what a newer token has revoked. Those who write in another
    copy of the directory are seen at the broker: ``adopt`` takes over what ``account`` has there, before each push.
    Raises as :func:`push_account`, and what the two raise.
    """
    pushed = None
    while True:
        if adopt is not None:
            adopt(await known_account(client, account, seconds=seconds))
        if (token := newest()) == pushed:
            return
        await push_account(client, token, seconds=seconds)
        pushed = token


async def delete_account(client: Client, request: str, *, seconds: float = 5.0) -> None:
    """Make the broker forget the accounts that a signed request names. Raises as :func:`push_account`."""
    await _ask(client, _DELETE, request, seconds)


async def _ask(client: Client, subject: str, token: str, seconds: float) -> None:
    reply = await client.request(subject, token.encode("ascii"), timeout=seconds)
    try:
        answer: Any = json.loads(reply.data)
    except ValueError:
        raise ResolverRefused("the broker's answer is not JSON") from None
    data = answer.get("data") if isinstance(answer, dict) else None
    if isinstance(data, dict) and data.get("code") == 200:
        return
    error = answer.get("error") if isinstance(answer, dict) else None
    description = error.get("description") if isinstance(error, dict) else None
    raise ResolverRefused(description if isinstance(description, str) else "the broker did not say that it is done")
