"""The lifecycle head of an instance's serving principal, whose epoch fences what the instance reports (OPEN C13.9-e).

It moves together with the gate, and before it: the epoch of the head is that of the gate once a registration is over.
Nothing else advances it (C13.1-077).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from nats.aio.client import Client

from sidecar.rails.names.principals import Lifecycle
from sidecar.rails.planes.registration.faults import Conflict, Corrupt, Denied
from sidecar.rails.planes.registration.naming import Place
from sidecar.rails.space.lifecycles import (
    Changed,
    HeadRefused,
    InvalidHead,
    UidTaken,
    activate,
    begin_retirement,
    finish_retirement,
    read_head,
    reserve,
    write_head,
)

MINTED_BY: Final = "registrar"


@contextlib.contextmanager
def _told(lifecycle: Lifecycle) -> Iterator[None]:
    name = lifecycle.principal.dot
    try:
        yield
    except InvalidHead as error:
        raise Corrupt(f"the lifecycle of {name} cannot be read: {error}") from None
    except UidTaken:
        raise Denied(f"the lifecycle uid of {name} is reserved by somebody else") from None
    except (Changed, HeadRefused) as error:
        raise Conflict(f"the lifecycle of {name} was moved by somebody else: {error}") from None


async def check_identity(heads: Client, space: str, lifecycle: Lifecycle) -> None:
    """That the instance's principal is of this lifecycle, or of none yet: an instance id that somebody else has drawn
    is refused before anything is changed (C13.1-083). Raises Denied, Corrupt, BrokerRefused, nats.errors.Error."""
    with _told(lifecycle):
        head, _ = await read_head(heads, space, lifecycle.principal)
    if head is not None and head.uid != lifecycle.uid:
        raise Denied(f"{lifecycle.principal.dot} is another lifecycle: the instance id is taken")
    if head is not None and not head.current:
        raise Denied(f"the lifecycle of {lifecycle.principal.dot} is {head.state} and never comes back")


async def advance(heads: Client, place: Place, lifecycle: Lifecycle, epoch: int, op_id: str) -> None:
    """The head at the epoch of a registration: created by the first one, moved on by exactly one by each later one, by
    this operation alone (C13.1-015, C13.1-028, C13.1-032). Raises Conflict, Denied, Corrupt, BrokerRefused,
    nats.errors.Error."""
    with _told(lifecycle):
        if epoch == 0:
            await reserve(heads, place.space, lifecycle.uid, lifecycle.principal, MINTED_BY)
            head, _ = await activate(heads, place.space, lifecycle, place.instance)
            if head.process_epoch:
                raise Conflict(f"the lifecycle of {lifecycle.principal.dot} is ahead of its gate")
            return
        head_now, revision = await read_head(heads, place.space, lifecycle.principal)
        if head_now is None or head_now.lifecycle != lifecycle or not head_now.current:
            raise Conflict(f"the lifecycle of {lifecycle.principal.dot} is not current")
        if (head_now.process_epoch, head_now.last_takeover_op_id) == (epoch, op_id):
            return  # an earlier run of this operation has done it
        if head_now.process_epoch + 1 != epoch:
            raise Conflict(f"the epoch of {lifecycle.principal.dot} was moved by another operation")
        await write_head(
            heads, place.space, replace(head_now, process_epoch=epoch, last_takeover_op_id=op_id), revision
        )


async def begin_end(heads: Client, space: str, lifecycle: Lifecycle, op_id: str) -> None:
    """From here on the lifecycle has no epoch any more (C13.1-093 R2). Raises Conflict, Corrupt, BrokerRefused."""
    with _told(lifecycle):
        await begin_retirement(heads, space, lifecycle, op_id)


async def finish_end(heads: Client, space: str, lifecycle: Lifecycle, op_id: str) -> None:
    """The lifecycle is over, after its gate (C13.1-093 R12). Raises Conflict, Corrupt, BrokerRefused."""
    with _told(lifecycle):
        await finish_retirement(heads, space, lifecycle, op_id)
