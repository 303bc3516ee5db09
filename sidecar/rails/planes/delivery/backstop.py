"""The durable half of a delivery plane as one thing: what it keeps in memory, its two loops, and its commands.

backstop = Backstop(plane)
server = EndpointServer(..., handlers={**backstop.handlers, ...}, ...)
await backstop.run()     # until an error of the connection, or cancelled
"""

from __future__ import annotations

from collections.abc import Mapping

from sidecar.rails.endpoint.call import Handler
from sidecar.rails.planes.delivery.acl import Acl
from sidecar.rails.planes.delivery.catchup import CatchUp
from sidecar.rails.planes.delivery.channels import Channels
from sidecar.rails.planes.delivery.fanout import FanOut
from sidecar.rails.planes.delivery.joins import MembershipDesk
from sidecar.rails.planes.delivery.loop import At, together
from sidecar.rails.planes.delivery.members import Members
from sidecar.rails.planes.delivery.mentions import Mentions
from sidecar.rails.planes.delivery.plane import Plane
from sidecar.rails.planes.delivery.reader import Reader


class Backstop:
    """``members``, ``acl`` and ``channels`` may be asked by other parts of the same lane. ``at`` and ``reader_at`` stop
    the loops at a point, for tests."""

    def __init__(self, plane: Plane, *, at: At | None = None, reader_at: At | None = None) -> None:
        self.members, self.acl, self.channels = Members(plane), Acl(plane), Channels(plane)
        self.mentions = Mentions(plane, self.acl.newest)
        self.fanout = FanOut(plane, self.members, self.channels, self.acl, self.mentions, at=at)
        self.reader = Reader(plane, self.members, self.acl, at=reader_at)
        catch_up = CatchUp(plane, self.channels)
        self._desk = MembershipDesk(plane, self.members, self.acl, catch_up, self.fanout.bound)

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """Commands of the delivery endpoint; they may be called as soon as ``run`` is under way."""
        return self._desk.handlers

    async def run(self) -> None:
        """Serve until the first part ends: by Stopped, PermissionViolation or DurableDiffers."""
        parts = (self.members, self.acl, self.channels, self.mentions, self.fanout, self.reader)
        await together(*(part.run() for part in parts))
