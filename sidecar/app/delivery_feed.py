"""The membership feed of a lane: two connections of its own, and nothing that the rest of the lane waits for.

It is for display alone (C8-74): whatever ends it is tried again by the lane and holds up no delivery.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Final

from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, Credentials, CredentialsRefused, Stopped, Watch
from sidecar.rails.names import Lifecycle, Principal
from sidecar.rails.names.principals import LOCAL_OWNER
from sidecar.rails.planes.delivery.daemon import Loop
from sidecar.rails.planes.delivery.feed import MembershipFeed
from sidecar.rails.planes.delivery.plane import Plane
from sidecar.rails.space.creds import format_creds
from sidecar.rails.space.holder import Form, Holder, Profile
from sidecar.rails.space.system import observer_permissions
from sidecar.rails.space.trust import BrokerTrust, SpaceTrust, new_user

NAME: Final = "feed"
_ACTOR: Final = "membership"


class FeedEnded(Exception):  # noqa: N818 - a state
    """One of the feed's own connections has ended for good; the lane goes on and begins it anew."""


def feed_loop(
    root: Path, url: str, account: SpaceTrust, form: Form, uid: str, seconds: int, metrics: Metrics, log: Log
) -> Loop:
    """The loop. ``root`` holds the broker's trust, which makes the observer's credentials; ``uid`` is the lane's."""
    feed = _Feed(root, url, account, form, Lifecycle(Principal(LOCAL_OWNER, _ACTOR), uid), seconds, metrics, log)
    return Loop(NAME, feed.run, awaited=False)


class _Feed:
    def __init__(
        self,
        root: Path,
        url: str,
        account: SpaceTrust,
        form: Form,
        lifecycle: Lifecycle,
        seconds: int,
        metrics: Metrics,
        log: Log,
    ) -> None:
        self._root, self._url, self._account, self._form = root, url, account, form
        self._lifecycle, self._seconds, self._metrics, self._log = lifecycle, seconds, metrics, log
        # One key for each connection, for as long as the process lives.
        self._writer, self._observer = new_user(os.urandom), new_user(os.urandom)

    async def run(self, bound: asyncio.Event) -> None:
        """Feed until cancelled. The lane does not wait for a look: it is ready without one."""
        bound.set()
        watch = Watch(self._metrics, self._log)
        try:
            async with (
                await Connection.open([self._url], self._writes, watch=watch) as writer,
                await Connection.open([self._url], self._observes, watch=watch) as observer,
            ):
                plane = Plane(writer, self._account.space, self._form, self._lifecycle, self._metrics, self._log)
                await MembershipFeed(plane, observer, self._account.account).run()
        except Stopped as error:
            raise FeedEnded(str(error)) from None

    async def _writes(self) -> Credentials:
        now = int(time.time())
        holder = Holder(self._account.space, self._lifecycle, self._writer.public, self._form)
        token = self._account.issue(Profile.MEMBERSHIP_RW, holder, self._writer, now, self._seconds)
        return Credentials(format_creds(token, self._writer), now + self._seconds)

    async def _observes(self) -> Credentials:
        now = int(time.time())
        if not (self._root / "trust").is_dir():  # to open it would be to make another one
            raise CredentialsRefused("the keys of the system account are not at hand")
        trust = BrokerTrust.open(self._root / "trust", os.urandom)
        granted = observer_permissions(self._account.account)
        token = trust.system_user("membership-observer", granted, self._observer, now, self._seconds)
        return Credentials(format_creds(token, self._observer), now + self._seconds)
