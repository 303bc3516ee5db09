"""Principals of a space: given an identity, a lifecycle and credentials; renewed; ended. Every step may be run again.

``add`` writes the record, reserves the lifecycle and makes it current, then the ACL row, then the durables, then what
is issued, then the creds. ``revoke`` makes the lifecycle non-current and voids the tokens at the broker first; then it
fences, records and removes what the lifecycle had, and frees the alias for another one.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from nats.aio.client import Client

from sidecar.app.minting import key_of, mint, mint_listed
from sidecar.app.principal_records import Record, Shelf, Stage, Wanted, shelves
from sidecar.app.space_links import BrokerAway, SpaceFailed, as_profile, now, told
from sidecar.app.spaces import OpenSpace, check_name, space_info
from sidecar.base.safefile import DirLock, UnsafeFile, ensure_private_dir, read_secret, write_private
from sidecar.base.secret import Secret
from sidecar.rails.names import streams
from sidecar.rails.names.principals import LOCAL_OWNER, Principal
from sidecar.rails.space import lifecycles, retire
from sidecar.rails.space.acl import fence, grant
from sidecar.rails.space.creds import InvalidCreds, read_creds
from sidecar.rails.space.grants import check_life, permissions
from sidecar.rails.space.holder import LONGEST_SECONDS, Ending, Form, Profile
from sidecar.rails.space.owners import keyed, owner_of
from sidecar.rails.space.provision import activate, dm_frontier
from sidecar.rails.space.trust import FOR_GOOD, SpaceTrust, new_user

_MONTH: Final = 30 * 24 * 3600
MINTED: Final = (
    Profile.AGENT,
    Profile.OBSERVER,
    Profile.ADMIN,
    Profile.MEMBERSHIP_RW,
    Profile.OPERATOR,
    Profile.CHANNEL_WRITER,
    Profile.PURGER,
    Profile.PROBE,
    Profile.DM_READER,
)
"""Profiles of principals. The others are minted for a step, or by the process that is one."""
BOUND: Final = (Profile.AGENT, Profile.DM_READER)
"""Profiles whose lifecycle binds durables."""
_SECRET_BYTES: Final = 32
_CANDIDATES: Final = 4
"""UIDs that are drawn before one gives up: a second one is a mishap, a fourth a fault of the random source."""


@dataclass(frozen=True, slots=True)
class PrincipalInfo:
    """A principal as commands show it; ``expires_at`` is None without a creds file. ``unlisted`` is why creds that were
    written now carry no rows to list the endpoints of the space."""

    record: Record
    creds: Path
    user: str | None
    expires_at: int | None
    unlisted: str = ""


def default_seconds(profile: Profile) -> int:
    """Life of a credential when nobody says one: thirty days, or as long as the profile allows."""
    return min(_MONTH, LONGEST_SECONDS[profile])


def derived_owner(root: Path, space: str, identity: str) -> str:
    """The owner token of an identity in this space (C2-03), under a secret that is made once."""
    path = root / "spaces" / space_info(root, space).name / "owners.key"
    with contextlib.suppress(FileExistsError):
        write_private(path, Secret(os.urandom(_SECRET_BYTES)), replace=False)
    return owner_of(identity, keyed(read_secret(path, _SECRET_BYTES)))


# ---- what there is ----


def principals(root: Path, space: str) -> list[PrincipalInfo]:
    """Every principal of a space, ended ones too, by name."""
    found = []
    for shelf in shelves(_directory(root, space)):
        if (record := shelf.read()) is not None:
            found.append(_info(shelf, record))
    return found


def principal_info(root: Path, space: str, principal: Principal) -> PrincipalInfo:
    """One principal. Raises SpaceFailed when there is none of that name."""
    shelf = Shelf(_directory(root, space), principal)
    record = shelf.read()
    if record is None:
        raise SpaceFailed(f"there is no principal {principal.dot} in {space}; make it with: sidecar principal add")
    return _info(shelf, record)


def _info(shelf: Shelf, record: Record) -> PrincipalInfo:
    try:
        creds = read_creds(shelf.creds_file)
    except (FileNotFoundError, InvalidCreds):
        return PrincipalInfo(record, shelf.creds_file, None, None)
    return PrincipalInfo(record, shelf.creds_file, creds.key.public, creds.token.expires_at)


def _directory(root: Path, space: str) -> Path:
    return root / "spaces" / check_name(space) / "principals"


@contextlib.contextmanager
def _only(directory: Path) -> Iterator[None]:
    """One command at a time changes the principals of a space."""
    ensure_private_dir(directory)
    with DirLock(directory):
        yield


# ---- add and renew ----


async def add(space: OpenSpace, wanted: Wanted) -> PrincipalInfo:
    """Make a principal, finish one, or give a living one other lists and roles. Raises SpaceFailed, GrantRefused,
    InvalidName before anything is written for what may not be granted."""
    directory = space.directory / "principals"
    _check(space.name, space.form, wanted)
    with _only(directory):
        shelf = Shelf(directory, wanted.principal)
        record = await _current(space, shelf, _begun(shelf, wanted))
        holder = wanted.holder(space.name, space.form, record.uid, new_user(os.urandom).public)
        if wanted.profile is Profile.AGENT:
            async with told():
                await grant(space.client, space.name, record.lifecycle, holder.readable, wanted.roles, _now_ms())
        if wanted.profile in BOUND:
            async with told():
                known = record.frontiers.get(streams.DM.stream(space.name))
                await activate(space.client, space.name, record.lifecycle, wanted.roles, known=known)
                begin = await dm_frontier(space.client, space.name, record.lifecycle)
            record = replace(record, frontiers={streams.DM.stream(space.name): begin})
        async with told():
            why = await mint_listed(space.account, space.form, shelf, record, await space.as_(Profile.ISSUER))
        return replace(_info(shelf, shelf.write(replace(record, stage=Stage.ACTIVE))), unlisted=why)


async def _current(space: OpenSpace, shelf: Shelf, record: Record) -> Record:
    """The record with a lifecycle that is reserved and the current one of its name (C13.1-004..006, C13.1-021)."""
    client = await space.as_(Profile.LIFECYCLES)
    for _ in range(_CANDIDATES):
        async with told():
            try:
                await lifecycles.reserve(client, space.name, record.uid, record.wanted.principal)
            except lifecycles.UidTaken:
                record = shelf.write(replace(record, uid=os.urandom(16).hex(), frontiers={}))
                continue
            await lifecycles.activate(client, space.name, record.lifecycle, manager_of(space.account))
            return record
    raise SpaceFailed("no UID that was drawn is free; the random source of this host repeats itself")


def manager_of(account: SpaceTrust) -> str:
    """Who made a lifecycle, as its head names it: the provisioner of the account, which has no process."""
    return account.account.lower()[:32]


def _check(space: str, form: Form, wanted: Wanted) -> None:
    if wanted.profile not in MINTED:
        raise SpaceFailed(f"profile {wanted.profile} is not one of a principal; a command or process mints its own")
    check_life(wanted.profile, wanted.seconds)
    permissions(wanted.profile, wanted.holder(space, form, "0" * 26, new_user(os.urandom).public))


def _begun(shelf: Shelf, wanted: Wanted) -> Record:
    """The record of the lifecycle to work on, written: a new one, or the living one with what is wanted now."""
    kept = shelf.read()
    if kept is None or kept.stage is Stage.ENDED:
        past = () if kept is None else kept.past
        return shelf.write(Record(wanted, os.urandom(16).hex(), Stage.PENDING, past=past))
    if kept.stage is Stage.ENDING:
        raise SpaceFailed(f"{wanted.principal.dot} is being revoked; finish that first with: sidecar principal revoke")
    if kept.wanted.profile is not wanted.profile:
        raise SpaceFailed(f"{wanted.principal.dot} has profile {kept.wanted.profile}; revoke it to give it another")
    # An active one that is changed is pending again: a run that dies is finished with what is wanted now.
    return kept if kept.wanted == wanted else shelf.write(replace(kept, wanted=wanted, stage=Stage.PENDING))


def renew(root: Path, space: str, principal: Principal, seconds: int | None = None) -> PrincipalInfo:
    """Mint the creds again: same key and lifecycle, another end. It asks no broker, so that they carry no listing rows.
    Raises SpaceFailed, GrantRefused."""
    info = space_info(root, space)
    directory = _directory(root, info.name)
    shelf = Shelf(directory, principal)
    with _only(directory):
        record = _renewable(root, info.name, principal)
        account = SpaceTrust.open(root / "spaces" / info.name, info.name, os.urandom)
        why = mint(account, info.form, shelf, record, seconds)
    return replace(_info(shelf, record), unlisted=why)


async def renew_listed(space: OpenSpace, principal: Principal, seconds: int | None = None) -> PrincipalInfo:
    """The same with listing rows, after its broker has recorded what they grant; a lifecycle of before there were heads
    is made the current one. Raises SpaceFailed, GrantRefused."""
    directory = space.directory / "principals"
    with _only(directory):
        shelf = Shelf(directory, principal)
        record = await _current(space, shelf, _renewable(space.root, space.name, principal))
        async with told():
            issuer = await space.as_(Profile.ISSUER)
            why = await mint_listed(space.account, space.form, shelf, record, issuer, seconds)
    return replace(_info(shelf, record), unlisted=why)


def _renewable(root: Path, space: str, principal: Principal) -> Record:
    record = principal_info(root, space, principal).record
    if record.stage is not Stage.ACTIVE:
        text = f"{principal.dot} is {record.stage}; it has no creds to renew; make some: sidecar principal add"
        raise SpaceFailed(text)
    return record


# ---- the end ----


async def revoke(space: OpenSpace, principal: Principal) -> PrincipalInfo:
    """End a principal: its tokens are void at the broker, its ACL row reads nothing, its durables and memberships are
    gone, and where it ended is recorded before its alias is free (C8-33). Raises SpaceFailed."""
    directory = space.directory / "principals"
    with _only(directory):
        shelf = Shelf(directory, principal)
        record = principal_info(space.root, space.name, principal).record
        if record.stage is Stage.ENDED:
            return _info(shelf, record)
        record = shelf.write(replace(record, stage=Stage.ENDING))
        heads, operation = await space.as_(Profile.LIFECYCLES), f"retire-{record.uid}"
        async with told():
            # A head that cannot be read keeps its alias, which the end of this says; nobody keeps his tokens by it.
            with contextlib.suppress(lifecycles.InvalidHead):
                await lifecycles.begin_retirement(heads, space.name, record.lifecycle, operation)
        if shelf.key_file.exists():
            async with told():
                space.account.revoke(space.trust, key_of(shelf).public, now(), upto=FOR_GOOD)
            await space.push()
        if record.wanted.profile in BOUND:
            record = await _retire(space, shelf, record)
        for path in (shelf.creds_file, shelf.key_file):
            path.unlink(missing_ok=True)
        async with told():
            await lifecycles.finish_retirement(heads, space.name, record.lifecycle, operation)
        return _info(shelf, shelf.write(record.ended(now())))


async def _retire(space: OpenSpace, shelf: Shelf, record: Record) -> Record:
    """Fence first, then look what is left, then remove it by exact names (CB-74..CB-76)."""
    life = record.lifecycle

    def ender(channels: tuple[str, ...] = ()) -> contextlib.AbstractAsyncContextManager[Client]:
        return as_profile(space.account, space.form, space.url, Profile.DEPROVISIONER, Ending(life, channels))

    async with told(), ender() as client:
        await fence(space.client, client, space.name, life, _now_ms())
        if record.retired is None:
            record = shelf.write(replace(record, retired=await retire.frontiers(space.client, space.name)))
        await retire.unbind(client, space.name, life)
    channels = await retire.memberships(space.client, space.name, life)
    for part in retire.batches(channels):
        if part:
            async with told(), ender(part) as client:
                await retire.leave(client, space.name, life, part)
    return record


def local(actor: str) -> Principal:
    """A principal of the static path without an identity behind it (C2-06)."""
    return Principal(LOCAL_OWNER, actor)


def _now_ms() -> int:
    return int(time.time() * 1000)


__all__ = [
    "BrokerAway",
    "PrincipalInfo",
    "UnsafeFile",
    "Wanted",
    "add",
    "derived_owner",
    "principals",
    "renew",
    "renew_listed",
    "revoke",
]
