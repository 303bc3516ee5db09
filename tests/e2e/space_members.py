"""A provisioned space at a real broker, and users of every profile with what their credentials allow."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.space.grants import permissions
from sidecar.rails.space.holder import Form, Holder, Profile, Service
from sidecar.rails.space.provision import provision
from sidecar.rails.space.trust import SpaceTrust, new_user
from tests.e2e.space_broker import SpaceBroker, User

SPACE = "main"
INSTANCE = "d4" * 13


def clock() -> int:
    return int(time.time())


def uid_of(actor: str) -> str:
    """A lifecycle UID that says whose it is."""
    return (actor * 26)[:26]


class Space:
    """The space `main` in one form."""

    def __init__(self, broker: SpaceBroker, form: Form) -> None:
        self.broker = broker
        self.form = form
        self.trust = SpaceTrust.open(broker.directory / SPACE, SPACE, os.urandom)

    async def open(self) -> None:
        """Account, streams and buckets."""
        await self.broker.push(self.trust.account_token(self.broker.trust, clock()))
        async with self.member(Profile.PROVISIONER, "provisioner") as (user, _):
            await provision(user.client, SPACE)

    @contextlib.asynccontextmanager
    async def member(self, profile: Profile, actor: str, **more: Any) -> AsyncIterator[tuple[User, Holder]]:
        """A connected user of a profile, with its holder."""
        key = new_user(os.urandom)
        holder = Holder(SPACE, Lifecycle(Principal("local", actor), uid_of(actor)), key.public, self.form)
        if profile is Profile.DELIVERY:
            holder = replace(holder, service=Service(INSTANCE, 1, ("durable-join",)))
        holder = replace(holder, **more)
        token = self.trust.issue(profile, holder, key, clock(), 300)
        async with self.broker.user(self.broker.creds(token, key), f"_INBOX_{key.public}.>") as user:
            yield user, holder


def samples(profile: Profile, holder: Holder) -> tuple[list[str], list[tuple[str, str]]]:
    """One concrete publish subject for each granted row, and each granted subscription with its queue group."""
    granted = permissions(profile, holder)
    subjects = [row.replace("*", "x").replace(">", "x") for row in granted.publish.allow]
    filters = [row.partition(" ") for row in granted.subscribe.allow]
    return subjects, [(subject, queue) for subject, _, queue in filters]
