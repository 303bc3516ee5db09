"""Connections for one step of an operator's command. Each proves a key of its own, lives for minutes and holds the
grants of that step alone; the keys never leave the process."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator
from typing import Any, Final, Self

import nats.errors
from nats.aio.client import Client

from sidecar.rails.names import api, inboxes
from sidecar.rails.names.principals import LOCAL_OWNER, Lifecycle, Principal
from sidecar.rails.space.acl import InvalidRow, RowRefused
from sidecar.rails.space.asking import BrokerRefused
from sidecar.rails.space.floor import floor_faults
from sidecar.rails.space.heads import InvalidHead
from sidecar.rails.space.holder import Ending, Form, Holder, Profile, Service
from sidecar.rails.space.issuance import NotIssued
from sidecar.rails.space.keys import Changed
from sidecar.rails.space.lifecycles import HeadRefused
from sidecar.rails.space.nkeys import KeyPair
from sidecar.rails.space.resolver import ResolverRefused, push_permissions
from sidecar.rails.space.trust import BrokerTrust, SpaceTrust, TooManyRevocations, new_user

STEP_SECONDS: Final = 300
_FRESH_SECONDS: Final = 240.0
"""How long a connection of a step is used again: its credential ends a minute later."""
_CONNECT_SECONDS: Final = 5


class SpaceFailed(Exception):  # noqa: N818 - what happened
    """A step at the broker did not succeed; run it again when the reason is gone. The message shows no key."""


class BrokerAway(SpaceFailed):
    """No broker answers at the address; nothing was done."""


def now() -> int:
    """Unix time in whole seconds, as tokens have it."""
    return int(time.time())


@contextlib.asynccontextmanager
async def told() -> AsyncIterator[None]:
    """What the broker says becomes one error of ours."""
    try:
        yield
    except nats.errors.TimeoutError:
        raise SpaceFailed("the broker did not answer in time") from None
    except (nats.errors.Error, ResolverRefused, BrokerRefused, RowRefused, InvalidRow) as error:
        raise SpaceFailed(f"the broker: {error}") from None
    except Changed:
        raise SpaceFailed("somebody else changed the same record at the same time; run it again") from None
    except (HeadRefused, InvalidHead, NotIssued, TooManyRevocations) as error:
        raise SpaceFailed(str(error)) from None


@contextlib.asynccontextmanager
async def system_user(trust: BrokerTrust, url: str) -> AsyncIterator[Client]:
    key = new_user(os.urandom)
    inbox = inboxes.INBOX.subtree(connection=key.public)
    token = trust.system_user("account-pusher", push_permissions(inbox), key, now(), STEP_SECONDS)
    async with connected(url, token, key) as client:
        yield client


@contextlib.asynccontextmanager
async def as_profile(
    account: SpaceTrust,
    form: Form,
    url: str,
    profile: Profile = Profile.PROVISIONER,
    ends: Ending | None = None,
    service: Service | None = None,
) -> AsyncIterator[Client]:
    """A connection with the grants of one task, which proves a key that nothing else ever has."""
    key = new_user(os.urandom)
    lifecycle = Lifecycle(Principal(LOCAL_OWNER, profile.replace("-", "_")), os.urandom(16).hex())
    holder = Holder(account.space, lifecycle, key.public, form, ends=ends, service=service)
    token = account.issue(profile, holder, key, now(), STEP_SECONDS)
    async with connected(url, token, key) as client:
        if profile is Profile.PROVISIONER:
            await _proved(client, key.public, account.account)
        yield client


class Links:
    """Connections of the steps of one command, one for each profile, made when they are first needed and used again
    while their credentials live. They end with the block."""

    def __init__(self, account: SpaceTrust, form: Form, url: str) -> None:
        self._account, self._form, self._url = account, form, url
        self._stack = contextlib.AsyncExitStack()
        self._made: dict[Profile, tuple[Client, float]] = {}
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._stack.aclose()

    async def of(self, profile: Profile) -> Client:
        """The connection of a profile. Raises SpaceFailed."""
        async with self._lock:
            kept = self._made.get(profile)
            if kept is not None and kept[0].is_connected and time.monotonic() < kept[1]:
                return kept[0]
            client = await self._stack.enter_async_context(as_profile(self._account, self._form, self._url, profile))
            self._made[profile] = (client, time.monotonic() + _FRESH_SECONDS)
            return client


async def _proved(client: Client, user: str, account: str) -> None:
    """That this connection is the provisioner of exactly this account, as the broker itself confirms (C13.9-M01)."""
    reply = await client.request(api.USER_INFO.build(), timeout=_CONNECT_SECONDS)
    known = json.loads(reply.data).get("data", {})
    if (known.get("user"), known.get("account")) != (user, account):
        raise SpaceFailed("the broker takes this connection for another user or account")


@contextlib.asynccontextmanager
async def connected(url: str, token: str, key: KeyPair) -> AsyncIterator[Client]:
    def sign(nonce: str) -> bytes:
        return base64.b64encode(key.sign(nonce.encode()))

    async def heard(error: Exception) -> None:
        refused.append(str(error))

    refused: list[str] = []
    client = Client()
    options: dict[str, Any] = {
        "user_jwt_cb": lambda: token.encode("ascii"),
        "signature_cb": sign,
        "inbox_prefix": inboxes.INBOX.build(connection=key.public),
        "error_cb": heard,
        "allow_reconnect": False,
        # Otherwise even the first connection is tried for minutes; 0 would be for ever.
        "max_reconnect_attempts": 1,
        "reconnect_time_wait": 0,
        "connect_timeout": _CONNECT_SECONDS,
    }
    try:
        await client.connect(url, **options)
    except nats.errors.NoServersError:
        raise BrokerAway(f"no connection to {url}: no broker answers there") from None
    except nats.errors.Error as error:
        await client.close()
        raise SpaceFailed(f"no connection to {url}: {error}; does the broker trust this directory?") from None
    except OSError as error:
        why = "the broker does not answer" if isinstance(error, TimeoutError) else error.strerror or error
        raise BrokerAway(f"no connection to {url}: {why}") from None
    try:
        said: dict[str, Any] = client._server_info  # the client shows the version only in parts
        if faults := floor_faults(said.get("version"), said.get("max_payload")):
            raise SpaceFailed(f"the broker cannot be used: {'; '.join(faults)}")
        yield client
    except nats.errors.TimeoutError:
        # A refused request is not answered; the refusal comes beside it.
        raise SpaceFailed(f"the broker: {refused[0]}" if refused else "the broker did not answer in time") from None
    finally:
        await client.close()
        key.wipe()
