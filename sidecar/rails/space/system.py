"""Users of the system account, each for one task. They are no principals of a space; their grants are here (CB-117)."""

from __future__ import annotations

from collections.abc import Iterable
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


def doctor_permissions(inbox: str, accounts: Iterable[str]) -> Permissions:
    """Ask what the server is and holds, and which tokens of these accounts it has; change nothing. ``inbox`` is the
    filter of its reply inbox."""
    asked = (api.PING_VARZ.build(), api.PING_JSZ.build(), api.PING_STATSZ.build())
    return Permissions(Access((*asked, *(api.CLAIMS_LOOKUP.build(account=one) for one in accounts))), Access((inbox,)))


def evictor_permissions() -> Permissions:
    """End connections of any server, and nothing else (CB-118)."""
    return Permissions(Access((api.KICK.filter(),)), Access((inboxes.SYSTEM.subtree(),)))


def barrier_permissions(account: str, inbox: str) -> Permissions:
    """Void the credentials of one account and see that it is so at every server: push the account's token, look it up,
    and list the account's connections (C13.1-035, OPEN C13.1-f). ``inbox`` is the filter of its reply inbox."""
    asked = (
        api.CLAIMS_UPDATE.build(),
        api.CLAIMS_LOOKUP.build(account=account),
        api.CONNECTIONS.build(account=account),
        api.PING_STATSZ.build(),
    )
    return Permissions(Access(asked), Access((inbox,)))
