"""The spaces of ``sidecar dev``: one that agents read themselves and one that is read for them, with who is in both."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sidecar.app.principal_records import Wanted
from sidecar.app.principals import PrincipalInfo, add, default_seconds, derived_owner, renew
from sidecar.app.space_links import SpaceFailed
from sidecar.app.spaces import create_space, open_space, spaces
from sidecar.base.safefile import UnsafeFile, write_private
from sidecar.rails.names import inboxes
from sidecar.rails.names.principals import Principal
from sidecar.rails.space.holder import LONGEST_SECONDS, Form, Profile
from sidecar.rails.space.may import parse_hears, parse_may

SPACES: Final = {"main": Form.COMPATIBLE, "guarded": Form.MEDIATED}
RENEW_SECONDS: Final = 1200
"""How often the credentials that live for an hour are minted again; they have most of it left then."""
_SHORT_SECONDS: Final = 3600
_DOMAIN: Final = "dev.sidecar.invalid"


@dataclass(frozen=True, slots=True)
class Member:
    """Somebody in each of the spaces."""

    profile: Profile
    channels: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    may: tuple[str, ...] = ()
    hears: tuple[str, ...] = ()


_TEAM: Final = ("general", "team.>")
_CALLS: Final = ("dev.sidecar.sample:*", "dev.sidecar.coordinator:*")
_HEARS: Final = ("dev.sidecar.sample:counted",)
MEMBERS: Final = {
    "alice": Member(Profile.AGENT, _TEAM, may=_CALLS, hears=_HEARS),
    "bob": Member(Profile.AGENT, (*_TEAM, "bob-only"), may=_CALLS, hears=_HEARS),
    "reviewer": Member(Profile.AGENT, _TEAM, ("reviewer",)),
    "observer": Member(Profile.OBSERVER),
    "operator": Member(Profile.OPERATOR),
}


async def make_spaces(root: Path, url: str) -> dict[str, Any]:
    """Make or finish the spaces and everybody in them; what the ready line says of each. Identities are kept from
    start to start, creds are fresh. Raises SpaceFailed, UnsafeFile, OSError."""
    made = await asyncio.gather(*(_make_space(root, name, form, url) for name, form in SPACES.items()))
    return dict(zip(SPACES, made, strict=True))


async def _make_space(root: Path, name: str, form: Form, url: str) -> dict[str, Any]:
    await create_space(root, name, form, url)
    found = {}
    async with open_space(root, name, url) as space:
        for actor, member in MEMBERS.items():
            found[actor] = _told(await add(space, _wanted(root, name, actor, member)))
    return {
        "form": form.value,
        "creds": {actor: one["creds"] for actor, one in found.items()},
        "principals": found,
    }


def _wanted(root: Path, space: str, actor: str, member: Member) -> Wanted:
    owner = derived_owner(root, space, f"{actor}@{_DOMAIN}")
    return Wanted(
        Principal(owner, actor),
        member.profile,
        default_seconds(member.profile),
        actor,
        subscribe=member.channels[:1],
        allow_subscribe=member.channels,
        allow_publish=member.channels,
        roles=member.roles,
        capabilities=tuple(one for text in member.may for one in parse_may(text, owner)),
        hears=tuple(map(parse_hears, member.hears)),
    )


def _told(info: PrincipalInfo) -> dict[str, str]:
    principal = info.record.wanted.principal
    return {
        "owner": principal.owner,
        "actor": principal.actor,
        "lifecycle_uid": info.record.uid,
        "creds": os.fspath(info.creds),
        "inbox_prefix": inboxes.INBOX.build(connection=str(info.user)),
    }


def spaces_stand(root: Path) -> bool:
    """Whether an earlier start has made every space: what delivers in them need not wait until they are proved."""
    return {info.name for info in spaces(root)} >= SPACES.keys()


def write_delivery_config(path: Path, root: Path, url: str) -> None:
    """The configuration of the delivery process: a lane for each space."""
    lanes = [{"space": name, "form": form.value, "url": url, "root": os.fspath(root)} for name, form in SPACES.items()]
    write_private(path, json.dumps({"lanes": lanes}, indent=2).encode())


async def keep_creds(root: Path, spaces: dict[str, Any], notice: Callable[[str], None]) -> None:
    """Renew what ends within the hour, until cancelled. A failure is told, and tried again with the next round."""
    while True:
        await asyncio.sleep(RENEW_SECONDS)
        renew_short(root, spaces, notice)


def renew_short(root: Path, spaces: dict[str, Any], notice: Callable[[str], None]) -> None:
    """One round of :func:`keep_creds`."""
    short = [actor for actor, member in MEMBERS.items() if LONGEST_SECONDS[member.profile] <= _SHORT_SECONDS]
    for name, space in spaces.items():
        for actor in short:
            try:
                renew(root, name, Principal(space["principals"][actor]["owner"], actor))
            except (SpaceFailed, UnsafeFile, OSError) as error:
                notice(f"the creds of {actor} in {name} were not renewed: {error}")
