"""Connections of our own to a provisioned space, of every profile."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, Credentials, Policy, Watch
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.space.creds import format_creds
from sidecar.rails.space.holder import Holder, Profile
from sidecar.rails.space.trust import new_user
from tests.e2e.space_broker import EVENT_SECONDS
from tests.e2e.space_members import SPACE, Space, clock, uid_of

QUICK = Policy(first_wait=0.05, longest_wait=0.4, ping_every=0.2, ping_within=1)


@contextlib.asynccontextmanager
async def dialled(
    space: Space,
    profile: Profile,
    actor: str,
    *,
    metrics: Metrics | None = None,
    watch: Watch | None = None,
    **more: Any,
) -> AsyncIterator[tuple[Connection, Holder]]:
    """A connection with the grants of a profile; `more` are fields of its holder."""
    key = new_user(os.urandom)
    holder = Holder(SPACE, Lifecycle(Principal("local", actor), uid_of(actor)), key.public, space.form)
    holder = replace(holder, **more)

    async def mint() -> Credentials:
        token = space.trust.issue(profile, holder, key, clock(), 300)
        return Credentials(format_creds(token, key), clock() + 300)

    async with asyncio.timeout(EVENT_SECONDS):
        connection = await Connection.open([space.broker.url], mint, policy=QUICK, watch=watch or Watch(metrics))
    async with connection:
        yield connection, holder
