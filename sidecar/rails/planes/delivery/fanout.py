"""The fan-out writer: a copy of each post for every member of a durable channel, and for who is mentioned on a live one
(C4-08, C4-13, C8-40).

Memberships and the registry are made current after a post was read and before it is decided: a join whose row was
stored before the post is seen, whoever wrote it. That is why an acknowledged join misses nothing: what was posted
before its row is copied by the join itself, up to a frontier that was read behind the row (OPEN C7-d).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

from sidecar.rails.envelopes.backstop import Why, encode
from sidecar.rails.envelopes.message import Message
from sidecar.rails.envelopes.receive import Reason, Rejected, Source, receive
from sidecar.rails.names import consumers, streams, subjects
from sidecar.rails.names.principals import Lifecycle
from sidecar.rails.names.subjects import Delivery, delivery_of
from sidecar.rails.planes.delivery.acl import Acl
from sidecar.rails.planes.delivery.broker import stream_state
from sidecar.rails.planes.delivery.channels import Channels
from sidecar.rails.planes.delivery.loop import At, CopyLoop, Drop, Held, Outgoing, Send, Verdict
from sidecar.rails.planes.delivery.members import Members
from sidecar.rails.planes.delivery.mentions import Mentions
from sidecar.rails.planes.delivery.plane import Plane

LOOK_BACK_MS: Final = 300_000
"""How far behind the newest copy a fan-out begins whose durable somebody deleted, when its floor was not kept."""


def label(reason: Reason) -> str:
    """A reason as a metric label."""
    return reason.value.replace("-", "_")


def readers(sender: str, lifecycles: Iterable[Lifecycle]) -> list[Lifecycle]:
    """Those of them who get a copy: each but the author, under whatever lifecycle (OPEN C4-b)."""
    return [one for one in lifecycles if one.principal.dot != sender]


@lru_cache(maxsize=65_536)
def inbox_of(space: str, member: Lifecycle) -> str:
    """The subject of a lifecycle's copies before they are judged again."""
    return subjects.DINBOX.build(space=space, **member.names)


def copies_of(
    space: str, subject: str, sequence: int, message_id: str, why: Why, members: Iterable[Lifecycle], counted: str = ""
) -> list[Outgoing]:
    """One copy of a post for each of these lifecycles."""
    return [
        Outgoing(inbox_of(space, one), encode(subject, sequence, why, message_id, one), counted or why.value)
        for one in members
    ]


class FanOut(CopyLoop):
    """The durable ``fanout`` on CHAT."""

    def __init__(
        self, plane: Plane, members: Members, channels: Channels, acl: Acl, mentions: Mentions, *, at: At | None = None
    ) -> None:
        pattern = subjects.CHAT.subtree(space=plane.space)
        super().__init__(plane, "fanout", streams.CHAT.stream(plane.space), consumers.FANOUT.build(), pattern, at)
        self._members, self._channels, self._acl, self._mentions = members, channels, acl, mentions

    async def start(self) -> dict[str, Any]:
        """A first fan-out begins with the next post. One whose durable is gone goes on where the newest copy was made,
        or where the oldest membership began: copies that exist are duplicates, and none is missing."""
        copies = await stream_state(self.plane.connection, streams.INBOX.stream(self.plane.space))
        if copies.last:
            at = datetime.fromtimestamp((copies.last_ms - LOOK_BACK_MS) / 1000, UTC)
            return {"deliver_policy": "by_start_time", "opt_start_time": at.isoformat().replace("+00:00", "Z")}
        await self._members.current()
        oldest = self._members.oldest()
        if oldest is None:
            return {"deliver_policy": "new"}
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": oldest + 1}

    async def ready(self) -> None:
        await self._mentions.primed.wait()
        await asyncio.gather(self._members.current(), self._channels.current(), self._acl.current())

    def stored(self, held: Held) -> None:
        """What is stored is counted where it ends."""

    def judge(self, held: Held) -> Verdict:
        post = held.message
        delivery = delivery_of(post.subject)
        try:
            received = receive(
                post.data,
                delivery,
                Source.DURABLE,
                header_names=post.headers or (),
                mediated=self.plane.mediated,
                limit=self.plane.connection.max_payload,
            )
        except Rejected as rejected:
            return Drop(label(rejected.reason))
        assert delivery is not None
        why, members = self._wanted(delivery, held.tail.sequence, received.message)
        sequence, message_id = held.tail.sequence, received.message.id
        members = readers(delivery.sender, members)
        return Send(copies_of(self.plane.space, post.subject, sequence, message_id, why, members))

    def _wanted(self, delivery: Delivery, sequence: int, message: Message) -> tuple[Why, Iterable[Lifecycle]]:
        if self._channels.durable(delivery.rest):
            return Why.CHANNEL, self._members.members(delivery.rest, sequence)
        if not message.mentions:
            return Why.MENTION, ()
        return Why.MENTION, self._mentions.resolved(message.mentions, delivery.rest, delivery.sender)
