"""Lifecycles at the broker: reserved, made current, retired (C13.1-002..027). The connection is the caller's, with the
grants of the ``lifecycle-writer`` profile.

Heads and reservations are never deleted: a marker is corruption, and true absence alone is a free name. Every step may
be run again by the one who began it.
"""

from __future__ import annotations

from typing import Final

from nats.aio.client import Client

from sidecar.rails.names import buckets
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.space.heads import Head as Head
from sidecar.rails.space.heads import HeadOp as HeadOp
from sidecar.rails.space.heads import HeadState as HeadState
from sidecar.rails.space.heads import InvalidHead as InvalidHead
from sidecar.rails.space.heads import head_subject as head_subject
from sidecar.rails.space.heads import reservation, uid_subject
from sidecar.rails.space.keys import Changed as Changed
from sidecar.rails.space.keys import Kept, read_key, write_key

PROVISIONER: Final = "provisioner"
"""Who mints operator credentials and endpoint daemons (C13.1-003)."""
FIRST_EPOCH: Final = 0


class UidTaken(Exception):  # noqa: N818 - a state of the broker
    """Somebody else has reserved this UID: it is burned, draw another one (C13.1-006)."""


class HeadRefused(Exception):  # noqa: N818 - what was decided
    """A change of a head that is not made: another lifecycle is current, or another operation is under way."""


async def reserve(client: Client, space: str, uid: str, principal: Principal, minted_by: str = PROVISIONER) -> None:
    """Reserve a UID for good: the first durable act of a lifecycle (C13.1-004..006). One's own reservation stands.

    Raises UidTaken, InvalidHead for a marker, BrokerRefused, nats.errors.Error.
    """
    subject, value = uid_subject(space, uid), reservation(principal, minted_by)
    try:
        await write_key(client, subject, value, 0)
    except Changed:
        kept = _present(await read_key(client, buckets.RECORDS.stream(space), subject))
        if kept.value != value:
            raise UidTaken(uid) from None


async def read_head(client: Client, space: str, principal: Principal) -> tuple[Head | None, int]:
    """The head of a principal and its revision, at the leader; None and 0 for a name that never had one.

    Raises InvalidHead for a marker or a row that is none, BrokerRefused, nats.errors.Error.
    """
    kept = _present(await read_key(client, buckets.RECORDS.stream(space), head_subject(space, principal)))
    return (None if kept.value is None else Head.decode(kept.value, principal)), kept.revision


async def write_head(client: Client, space: str, head: Head, revision: int) -> int:
    """Write a head over exactly ``revision`` (0: create it); the new revision. Raises Changed, BrokerRefused."""
    return await write_key(client, head_subject(space, head.principal), head.encode(), revision)


def _present(kept: Kept) -> Kept:
    if kept.value is None and kept.revision:
        raise InvalidHead("a marker stands where nothing is ever deleted (C13.1-007, C13.1-027)")
    return kept


async def activate(client: Client, space: str, lifecycle: Lifecycle, manager_instance: str) -> tuple[Head, int]:
    """Make a reserved lifecycle the current one of its name, which is free or whose last one is retired (C13.1-021).

    Raises HeadRefused, InvalidHead, Changed when somebody else was faster, BrokerRefused, nats.errors.Error.
    """
    head, revision = await read_head(client, space, lifecycle.principal)
    if head is not None and head.uid == lifecycle.uid:
        if not head.current:
            raise HeadRefused(f"this lifecycle is {head.state} and never comes back (C13.1-026)")
        return head, revision
    if head is not None and head.state is not HeadState.RETIRED:
        raise HeadRefused(f"another lifecycle of {lifecycle.principal.dot} is {head.state} (C13.1-019)")
    made = Head(lifecycle.principal, lifecycle.uid, manager_instance, FIRST_EPOCH, HeadState.ACTIVE)
    return made, await write_head(client, space, made, revision)


async def begin_retirement(client: Client, space: str, lifecycle: Lifecycle, op_id: str) -> None:
    """Make a lifecycle non-current, bound to one operation; nothing to do where it has no head, or is over.

    Raises HeadRefused for another operation, InvalidHead, Changed, BrokerRefused, nats.errors.Error.
    """
    head, revision = await read_head(client, space, lifecycle.principal)
    if head is None or head.uid != lifecycle.uid or head.state is HeadState.RETIRED:
        return
    if head.state is HeadState.RETIRING:
        if head.op != HeadOp(op_id):
            raise HeadRefused(f"another operation ends {lifecycle.dot} (C13.1-019)")
        return
    await write_head(client, space, head.retiring(op_id), revision)


async def finish_retirement(client: Client, space: str, lifecycle: Lifecycle, op_id: str) -> None:
    """Free the name of a lifecycle whose end is complete. Raises as :func:`begin_retirement`, and HeadRefused for a
    lifecycle whose retirement was not begun."""
    head, revision = await read_head(client, space, lifecycle.principal)
    if head is None or head.uid != lifecycle.uid or head.state is HeadState.RETIRED:
        return
    if head.op != HeadOp(op_id):
        raise HeadRefused(f"no such operation ends {lifecycle.dot} (C13.1-019)")
    await write_head(client, space, head.retired(op_id), revision)
