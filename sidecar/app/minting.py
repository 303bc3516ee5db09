"""The creds of a principal: minted from its record, with the listing rows when the broker can record what is granted.

What is recorded stands before the creds are written; a run that dies between them leaves rows that end by themselves.
"""

from __future__ import annotations

import os
from dataclasses import replace

from nats.aio.client import Client

from sidecar.app.principal_records import Record, Shelf
from sidecar.app.space_links import now
from sidecar.base.safefile import DirLock
from sidecar.rails.space.ceilings import ceiling_of
from sidecar.rails.space.creds import write_creds
from sidecar.rails.space.evidence import Reference, listing_token, new_generation
from sidecar.rails.space.grants import GrantRefused, permissions
from sidecar.rails.space.holder import Form, Holder, Profile
from sidecar.rails.space.issuance import NotIssued, issue, prove_stores, recorded, reusable
from sidecar.rails.space.nkeys import USER, KeyPair
from sidecar.rails.space.trust import SpaceTrust, kept_key

LISTED = (Profile.AGENT,)
"""Profiles whose credentials carry a listing generation (C13.15-28)."""


def key_of(shelf: Shelf) -> KeyPair:
    """The user key of a principal, made once."""
    with DirLock(shelf.directory) as lock:
        return kept_key(shelf.key_file, USER, os.urandom, lock)


def mint(account: SpaceTrust, form: Form, shelf: Shelf, record: Record, seconds: int | None = None) -> str:
    """Write the creds of a record, ended after ``seconds`` (default: as wanted), asking no broker; why they carry no
    listing rows, empty when they need none. Raises GrantRefused."""
    made = _Mint(account, form, shelf, record, seconds)
    made.write(made.token())
    return "no broker was asked to record what they grant" if record.wanted.profile in LISTED else ""


async def mint_listed(
    account: SpaceTrust, form: Form, shelf: Shelf, record: Record, issuer: Client, seconds: int | None = None
) -> str:
    """The same with listing rows; why they carry none, empty when they do or need none. ``issuer`` is a connection that
    may record what is issued. Raises GrantRefused, BrokerRefused, nats.errors.Error."""
    made = _Mint(account, form, shelf, record, seconds)
    token, why = made.token(), ""
    if record.wanted.profile in LISTED:
        try:
            token = await made.listed(issuer)
        except (NotIssued, GrantRefused) as error:
            why = str(error)  # a credential is never refused for them (C13.15-31)
    made.write(token)
    return why


class _Mint:
    """One credential on its way."""

    def __init__(self, account: SpaceTrust, form: Form, shelf: Shelf, record: Record, seconds: int | None) -> None:
        wanted, key = record.wanted, key_of(shelf)
        self._account, self._shelf, self._key, self._profile = account, shelf, key, wanted.profile
        self._holder = wanted.holder(account.space, form, record.uid, key.public)
        self._at, self._seconds = now(), wanted.seconds if seconds is None else seconds
        self._ends = self._at + self._seconds

    def token(self, holder: Holder | None = None) -> str:
        return self._account.issue(self._profile, holder or self._holder, self._key, self._at, self._seconds)

    def write(self, token: str) -> None:
        write_creds(self._shelf.creds_file, token, self._key)
        self._key.wipe()

    async def listed(self, issuer: Client) -> str:
        """The token with listing rows, after all of its grants were recorded (C13.15-05, C13.15-31). Raises NotIssued
        when they cannot be: the credential is then good without them."""
        space, lifecycle = self._account.space, self._holder.lifecycle
        await prove_stores(issuer, space)
        accepted = listing_token(self._key.public, self._ends)
        kept = await reusable(issuer, space, accepted, lifecycle, now=self._at)
        generation = kept or new_generation(self._ends, os.urandom)
        holder = replace(self._holder, listing=generation)
        token = self.token(holder)  # before anything is recorded: what is too large leaves nothing behind (C13.9-014)
        ceiling = ceiling_of(permissions(self._profile, holder))
        if kept is None:
            await issue(issuer, space, lifecycle, generation, ceiling, self._ends, accepted, now=self._at)
        elif not await recorded(issuer, Reference(space, lifecycle, kept), ceiling, self._ends):
            raise NotIssued("other grants are recorded for this connection and end")
        return token
