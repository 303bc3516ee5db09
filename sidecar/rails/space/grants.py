"""Grants of one credential, derived from the ownership matrix (C9-14): exact allow rows, and the denies they need."""

from __future__ import annotations

import json
from typing import Final

from sidecar.rails.names.grants import check_row, create_denies, subscribe_denies
from sidecar.rails.space.audit import audit
from sidecar.rails.space.claims import NOTHING, Access, Permissions
from sidecar.rails.space.holder import LONGEST_SECONDS, Holder, Profile
from sidecar.rails.space.matrix import NO_CREATE, rows_of
from sidecar.rails.space.rows import Direction

MAX_GRANT_BYTES: Final = 16 * 1024
"""Longest JSON form of one credential's grants (C13.9-013); the broker's own limit is looser."""


class GrantRefused(ValueError):  # noqa: N818 - what was decided
    """A credential that is not made; the message says which rule it would break."""


def permissions(profile: Profile, holder: Holder, most: int = MAX_GRANT_BYTES) -> Permissions:
    """What a credential of ``profile`` may publish and subscribe; ``most`` bytes of grants pass the policy gate.

    Raises InvalidName for values that fit no row or rows that exclude each other, GrantRefused above the policy gate or
    when the audit finds anything in what was derived.
    """
    check_capabilities(profile, holder)
    publish = _allow(profile, holder, "publish")
    subscribe = _allow(profile, holder, "subscribe")
    denies = [deny for one in NO_CREATE.get(profile, ()) for deny in create_denies(one.stream(holder.space))]
    granted = Permissions(
        Access(tuple(publish), tuple(denies)) if publish else NOTHING,
        Access(tuple(subscribe), tuple(subscribe_denies(subscribe))) if subscribe else NOTHING,
    )
    size = grant_bytes(granted)
    if size > most:
        raise GrantRefused(f"the grants have {size} bytes, allowed are {most} (C13.9-013)")
    if found := audit(profile, holder, granted):
        raise GrantRefused(f"the grants break a rule: {found[0]}")
    return granted


def check_capabilities(profile: Profile, holder: Holder) -> None:
    """Which modes a standing credential may name (C13.2-30..33): ``handle`` and ``exact`` none, ``any`` an operator's
    alone, ``owner`` the holder's own. Raises GrantRefused."""
    own = holder.lifecycle.principal.owner
    for one in holder.capabilities:
        if one.mode in ("handle", "exact"):
            raise GrantRefused(f"{one.mode} is granted for one target and one use, never for good (C13.2-32, C13.2-33)")
        if one.mode == "any" and profile is not Profile.OPERATOR:
            raise GrantRefused("the mode any is for operators (C13.2-31)")
        if one.mode == "owner" and one.target != (own,):
            raise GrantRefused("the mode owner names the holder's own owner (C13.2-30)")


def grant_bytes(granted: Permissions) -> int:
    """Size of grants as the policy gate measures it: their JSON without spaces."""
    value = {"pub": granted.publish.payload(), "sub": granted.subscribe.payload()}
    return len(json.dumps(value, separators=(",", ":")))


def check_life(profile: Profile, seconds: int) -> int:
    """``seconds``, if a credential of ``profile`` may live that long (CB-92); GrantRefused otherwise."""
    longest = LONGEST_SECONDS[profile]
    if not 0 < seconds <= longest:
        raise GrantRefused(f"a credential of profile {profile} lives 1 to {longest} seconds (CB-92)")
    return seconds


def _allow(profile: Profile, holder: Holder, direction: Direction) -> list[str]:
    rows = rows_of(profile, holder.form, direction)
    return list(dict.fromkeys(check_row(subject) for row in rows for subject in row.subjects(holder)))


def without_history(holder: Holder) -> list[str]:
    """Entries of the read list whose history a compatible agent cannot read: those that end in ``*``."""
    return [channel for channel in holder.readable if channel.split(".")[-1] == "*"]
