"""Users of the system account, each for one task. They are no principals of a space; their grants are here (CB-117)."""

from __future__ import annotations

from typing import Final

from sidecar.rails.names import api, inboxes
from sidecar.rails.space.claims import Access, Permissions

LONGEST_SECONDS: Final = 30 * 24 * 3600
"""Longest life of such a credential (CB-92)."""


def observer_permissions(account: str) -> Permissions:
    """Who is connected to one account: ask for the list, hear of comers and leavers; end no connection (CB-117)."""
    return Permissions(
        Access((api.CONNECTIONS.build(account=account),)),
        Access(
            (
                inboxes.MEMBERSHIP.subtree(),
                api.CONNECTED.build(account=account),
                api.DISCONNECTED.build(account=account),
            )
        ),
    )


def evictor_permissions() -> Permissions:
    """End connections of any server, and nothing else (CB-118)."""
    return Permissions(Access((api.KICK.filter(),)), Access((inboxes.SYSTEM.subtree(),)))
