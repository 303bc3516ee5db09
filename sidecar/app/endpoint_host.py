"""Endpoint instances of this host: registered, given credentials of one epoch, ended. Every step may be run again.

``host`` is for a process that serves: it registers an instance and gives what a connection asks for credentials.
``register`` writes a creds file for a process elsewhere. Both take over: whoever served the instance before is evicted.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sidecar.app.domains import authority, confirm
from sidecar.app.endpoint_records import EndpointRecord, EndpointShelf, Stage, shelves
from sidecar.app.space_links import SpaceFailed, as_profile, connected, now, told
from sidecar.app.spaces import space_info
from sidecar.base.safefile import DirLock, UnsafeFile, ensure_private_dir
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, Credentials, CredentialsRefused, Watch
from sidecar.rails.endpoint.app import Endpoint
from sidecar.rails.endpoint.clusters import EPHEMERAL
from sidecar.rails.endpoint.identity import Identity
from sidecar.rails.endpoint.service_record import ServiceSpec
from sidecar.rails.names import inboxes
from sidecar.rails.names.principals import Principal, check_mintable
from sidecar.rails.names.tokens import GRAMMARS
from sidecar.rails.planes.registration import endings
from sidecar.rails.planes.registration.barrier import Barrier, Doors, Progress
from sidecar.rails.planes.registration.eviction import evict
from sidecar.rails.planes.registration.faults import Denied, RegistrationRefused, Superseded, Unverified
from sidecar.rails.planes.registration.minting import release, withdraw
from sidecar.rails.planes.registration.naming import Place
from sidecar.rails.planes.registration.register import Registered, Wanted
from sidecar.rails.planes.registration.register import register as _register
from sidecar.rails.space.creds import format_creds, write_creds
from sidecar.rails.space.holder import Holder, Profile, Service
from sidecar.rails.space.nkeys import KeyPair
from sidecar.rails.space.provision import WrongShape, check_floors
from sidecar.rails.space.system import barrier_permissions
from sidecar.rails.space.trust import BrokerTrust, SpaceTrust, TooManyRevocations, new_user

CREDENTIAL_SECONDS: Final = 3600
"""Life of the credential of a process that mints its own again."""
FILE_SECONDS: Final = 24 * 3600
"""Life of a creds file: the longest of the profile. The next one is a registration again."""
_BARRIER_SECONDS: Final = 300
GIVE_UP_SECONDS: Final = 3.0
"""How long the end of a process may be held up by what only makes its next start shorter."""
_LOCK_SECONDS: Final = 60.0
_LOCK_POLL_SECONDS: Final = 0.05
_SERVING: Final = "serving"
Minter = Callable[[], Awaitable[Credentials]]


class InstanceSuperseded(CredentialsRefused):
    """A later registration has taken over: there are no more credentials at this epoch (C13.1-029)."""


@dataclass
class Hosted:
    """A registered instance of this process. ``close`` gives the instance back, so that another process of this host
    may take it up; it ends no registration. ``give_up`` destroys the key of ``minter`` for good, if it is ours."""

    identity: Identity
    registered: Registered
    minter: Minter
    _lock: contextlib.ExitStack
    give_up: Callable[[], Awaitable[None]] | None = None

    def close(self) -> None:
        self._lock.close()

    @contextlib.asynccontextmanager
    async def connected(self, url: str, watch: Watch) -> AsyncIterator[Connection]:
        """The connection of the instance, for the block. A credential that has come to rest with it is given up, so
        that the next start has nobody to evict. Raises what ``Connection.open`` raises."""
        quiet = False
        try:
            async with await Connection.open([url], self.minter, watch=watch) as connection:
                try:
                    yield connection
                finally:
                    quiet = await connection.settled()
        finally:
            if quiet and self.give_up is not None:
                await self.give_up()


async def host(
    root: Path,
    space: str,
    url: str,
    endpoint: Endpoint,
    *,
    owner: str,
    instance: str | None = None,
    seconds: int = CREDENTIAL_SECONDS,
    metrics: Metrics | None = None,
) -> Hosted:
    """Register an instance of an endpoint for this process. Without ``instance`` it is a kept one that no process of
    this host serves and no creds file was made for, or a new one.

    Raises RegistrationRefused (Denied, Conflict, Unverified, ...), SpaceFailed, UnsafeFile, InvalidName, GrantRefused.
    """
    site = _Site(root, space, url, metrics)
    with contextlib.ExitStack() as stack:
        shelf = _claimed(site, endpoint.name, owner, instance, stack)
        record, done = await _registered(site, shelf, endpoint, owner, lent=False)
        key = new_user(os.urandom)
        identity = Identity(site.name, endpoint.name, done.instance, done.epoch, record.lifecycle, owner)
        minter = _Minter(site, endpoint, identity, key, seconds)
        give_up = functools.partial(_give_up, site, shelf, identity, minter)
        return Hosted(identity, done, minter, stack.pop_all(), give_up)


async def register(
    root: Path,
    space: str,
    url: str,
    endpoint: Endpoint,
    *,
    owner: str,
    out: Path,
    instance: str | None = None,
    seconds: int = FILE_SECONDS,
    metrics: Metrics | None = None,
) -> Registered:
    """Register an instance and write its creds file, for a process that has no directory of the space. Raises as
    :func:`host`."""
    site = _Site(root, space, url, metrics)
    with contextlib.ExitStack() as stack:
        shelf = _claimed(site, endpoint.name, owner, instance, stack)
        record, done = await _registered(site, shelf, endpoint, owner, lent=True)
    key = new_user(os.urandom)
    identity = Identity(site.name, endpoint.name, done.instance, done.epoch, record.lifecycle, owner)
    token, _ = await _Minter(site, endpoint, identity, key, seconds).token()
    write_creds(out, token, key)
    key.wipe()
    return done


async def deregister(
    root: Path, space: str, url: str, endpoint: str, instance: str, *, metrics: Metrics | None = None
) -> bool:
    """End the registration of an instance; its id may be registered again. False when there was none. Raises as
    :func:`host`."""
    site = _Site(root, space, url, metrics)
    async with _held(site, endpoint, instance) as (shelf, record, lock):
        async with _doors(site, record) as doors:
            found = await endings.deregister(_barrier(site, shelf, record, doors, lock), now())
        shelf.write(replace(_kept(shelf), registered=False, progress=None), lock)
    return found


async def retire(
    root: Path, space: str, url: str, endpoint: str, instance: str, *, metrics: Metrics | None = None
) -> bool:
    """End an instance for good: its id never comes back (C13.1-084). Raises as :func:`host`."""
    site = _Site(root, space, url, metrics)
    async with _held(site, endpoint, instance) as (shelf, record, lock):
        async with _doors(site, record) as doors:
            found = await endings.retire(_barrier(site, shelf, record, doors, lock), now())
        shelf.write(replace(_kept(shelf), stage=Stage.RETIRED, registered=False, progress=None), lock)
        shelf.creds_file.unlink(missing_ok=True)
    return found


def instances(root: Path, space: str) -> list[EndpointRecord]:
    """Every instance of this host in a space, retired ones too, by endpoint and id. Raises SpaceFailed, UnsafeFile."""
    found = (shelf.read() for shelf in shelves(root, space_info(root, space).name))
    return [record for record in found if record is not None]


# ---- what every one of them needs ----


class _Site:
    """A space on this host and its broker."""

    def __init__(self, root: Path, space: str, url: str, metrics: Metrics | None) -> None:
        info = space_info(root, space)
        self.root, self.name, self.form, self.url = root, info.name, info.form, url
        self.account = SpaceTrust.open(root / "spaces" / info.name, info.name, os.urandom)
        self.metrics = metrics or Metrics()

    @property
    def trust(self) -> BrokerTrust:
        if not (self.root / "trust").is_dir():  # to open it would be to make another one
            raise SpaceFailed(f"{self.root} has no trust of a broker; registration needs it to evict")
        return BrokerTrust.open(self.root / "trust", os.urandom)


@contextlib.asynccontextmanager
async def _locked(directory: Path) -> AsyncIterator[DirLock]:
    """Hold a directory; whoever holds it is waited for without stopping the loop. Raises UnsafeFile."""
    lock = DirLock(directory, seconds=0)
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            lock.__enter__()
            break
        except UnsafeFile:
            if time.monotonic() >= deadline:
                raise
            await asyncio.sleep(_LOCK_POLL_SECONDS)
    try:
        yield lock
    finally:
        lock.__exit__(None, None, None)


def _claimed(
    site: _Site, endpoint: str, owner: str, instance: str | None, stack: contextlib.ExitStack
) -> EndpointShelf:
    """The shelf of the instance that is to be registered, held as the one that this process serves."""
    check_mintable(owner)
    authority(site.root, site.name, endpoint, owner)
    if instance is not None:
        shelf = EndpointShelf(site.root, site.name, endpoint, GRAMMARS["instance"].check(instance))
        with contextlib.suppress(UnsafeFile):  # who holds it is about to be superseded
            _serves(shelf, stack)
        return shelf
    for shelf in shelves(site.root, site.name):
        record = shelf.read()
        if record is None or (record.endpoint, record.owner) != (endpoint, owner) or record.stage is Stage.RETIRED:
            continue
        if record.lent and record.registered:
            continue  # whoever has its creds file may serve it, anywhere, and holds nothing here
        with contextlib.suppress(UnsafeFile):
            _serves(shelf, stack)
            return shelf
    shelf = EndpointShelf(site.root, site.name, endpoint, os.urandom(16).hex())
    _serves(shelf, stack)
    return shelf


def _serves(shelf: EndpointShelf, stack: contextlib.ExitStack) -> None:
    """Raises UnsafeFile when another process serves it."""
    shelf.open()
    ensure_private_dir(shelf.directory / _SERVING)
    stack.enter_context(DirLock(shelf.directory / _SERVING, seconds=0))


async def _registered(
    site: _Site, shelf: EndpointShelf, endpoint: Endpoint, owner: str, *, lent: bool
) -> tuple[EndpointRecord, Registered]:
    shelf.open()
    async with _locked(shelf.directory) as lock:
        record = _begun(shelf, endpoint.name, owner, lock)
        wanted = Wanted(
            record.place(site.name),
            record.lifecycle,
            ServiceSpec(endpoint.name, owner, endpoint.surface.digests, endpoint.protocol, endpoint.endpoint_type),
            endpoint.surface,
            endpoint.artifacts,
            authority(site.root, site.name, endpoint.name, owner),
            endpoint.reserved,
        )
        try:
            async with _doors(site, record) as doors:
                await _kept_long_enough(doors, site.name)
                keep = _keep_claimed(site, shelf, lock, wanted.authority)
                done = await _register(doors, wanted, record.progress, keep, _new_id, now())
        except RegistrationRefused as error:
            if (kept := _kept(shelf)).progress is None:
                shelf.write(replace(kept, registered=record.registered), lock)
            site.metrics.counter("registration_registrations", _label(error)).inc()
            raise
        except BaseException:
            site.metrics.counter("registration_registrations", "failed").inc()
            raise
        site.metrics.counter("registration_registrations", "first" if done.first else "takeover").inc()
        record = shelf.write(_kept(shelf).completed(done.epoch, done.registration_revision, lent=lent), lock)
    return record, done


async def _kept_long_enough(doors: Doors, space: str) -> None:
    """Nothing serves over a store that forgets what it writes too early (C13.8-49)."""
    try:
        await check_floors(doors.registrar, space)
    except WrongShape as error:
        raise SpaceFailed(f"the stores of {space} are below the floors of an endpoint: {error}") from None


_LABELS: Final = frozenset(
    ("permission-denied", "conflict", "contract-invalid", "contract-mismatch", "resource-exhausted", "unavailable")
)


def _label(error: RegistrationRefused) -> str:
    return str(error.code) if error.code in _LABELS else "internal"


def _begun(shelf: EndpointShelf, endpoint: str, owner: str, lock: DirLock) -> EndpointRecord:
    """The record of the instance, on disk before anything is made at the broker."""
    record = shelf.read()
    if record is None:
        record = EndpointRecord(endpoint, shelf.directory.name, owner, os.urandom(16).hex())
        return shelf.write(record, lock)
    if record.owner != owner:
        raise Denied(f"instance {record.instance} is one of another owner")
    if record.stage is Stage.RETIRED:
        raise Denied(f"instance {record.instance} is retired and never comes back")
    return record


def _kept(shelf: EndpointShelf) -> EndpointRecord:
    record = shelf.read()
    assert record is not None
    return record


def _keep(shelf: EndpointShelf, lock: DirLock) -> Callable[[Progress | None], None]:
    def keep(progress: Progress | None) -> None:
        shelf.write(replace(_kept(shelf), progress=progress), lock)

    return keep


def _keep_claimed(site: _Site, shelf: EndpointShelf, lock: DirLock, revision: int) -> Callable[[Progress | None], None]:
    """Keeps what a registration does; its intent only while its claim stands. Until it is refused it counts as
    registered, so that nobody gives the claim up between its last step and the record that says so."""

    def keep(progress: Progress | None) -> None:
        before = _kept(shelf)
        record = shelf.write(replace(before, progress=progress, registered=True), lock)
        if progress is None or progress.frozen:
            return
        try:
            confirm(site.root, site.name, record.endpoint, record.owner, revision)
        except RegistrationRefused:
            shelf.write(replace(before, progress=None), lock)  # nothing is frozen yet
            raise

    return keep


def _new_id() -> str:
    return os.urandom(16).hex()


@contextlib.asynccontextmanager
async def _held(
    site: _Site, endpoint: str, instance: str
) -> AsyncIterator[tuple[EndpointShelf, EndpointRecord, DirLock]]:
    shelf = EndpointShelf(site.root, site.name, endpoint, GRAMMARS["instance"].check(instance))
    if not shelf.directory.is_dir():
        raise SpaceFailed(f"there is no instance {instance} of {endpoint} on this host")
    async with _locked(shelf.directory) as lock:
        record = shelf.read()
        if record is None:
            raise SpaceFailed(f"there is no instance {instance} of {endpoint} on this host")
        yield shelf, record, lock


def _barrier(site: _Site, shelf: EndpointShelf, record: EndpointRecord, doors: Doors, lock: DirLock) -> Barrier:
    return Barrier(doors, record.place(site.name), record.lifecycle, record.progress, _keep(shelf, lock), _new_id)


@contextlib.asynccontextmanager
async def _doors(site: _Site, record: EndpointRecord) -> AsyncIterator[Doors]:
    """The connections of one operation; what the broker says becomes one error of ours."""
    async with (
        told(),
        as_profile(site.account, site.form, site.url, Profile.REGISTRAR) as registrar,
        as_profile(site.account, site.form, site.url, Profile.PUBLISHER) as publisher,
        as_profile(site.account, site.form, site.url, Profile.LIFECYCLES) as heads,
    ):

        async def gone(users: Mapping[str, int], principal: Principal) -> None:
            await _evict(site, users, principal)

        yield Doors(registrar, publisher, heads, gone, frozenset(record.given_up))


async def _evict(site: _Site, users: Mapping[str, int], principal: Principal) -> None:
    """Void the keys in the account's token, on disk first, and see that their holders are gone (C13.1-031 T3..T5)."""
    trust, ends = site.trust, max(users.values())

    def adopt(known: str) -> None:
        site.account.adopt(trust, known, now())

    key = new_user(os.urandom)
    permissions = barrier_permissions(site.account.account, inboxes.INBOX.subtree(connection=key.public))
    system_token = trust.system_user("endpoint-barrier", permissions, key, now(), _BARRIER_SECONDS)
    newest = functools.partial(site.account.account_token, trust, now())
    try:
        # No token of a key was made behind the end of its last one.
        token = site.account.revoke(trust, tuple(users), now(), upto=ends, ends=ends)
        async with connected(site.url, system_token, key) as system:
            await evict(system, site.account.account, token, users, (principal,), newest=newest, adopt=adopt)
    except TooManyRevocations as error:
        raise Unverified(str(error)) from None
    site.metrics.counter("registration_evictions").inc(len(users))


async def _give_up(site: _Site, shelf: EndpointShelf, identity: Identity, minter: _Minter) -> None:
    """Destroy the key of a connection that has come to rest, mark its ledger row, and only then write down that nobody
    has to be evicted for it. What does not get so far is evicted by the next start."""
    user = minter.destroy()
    outcome = "failed"
    try:
        async with asyncio.timeout(GIVE_UP_SECONDS), _locked(shelf.directory) as lock:
            place = Place(site.name, identity.endpoint, identity.instance)
            async with told(), as_profile(site.account, site.form, site.url, Profile.REGISTRAR) as registrar:
                ends = await withdraw(registrar, place, user, now())
            if ends is not None:
                shelf.write(_kept(shelf).gave_up(user, ends, now()), lock)
            outcome = "kept"
    except (SpaceFailed, UnsafeFile, RegistrationRefused, TimeoutError, OSError):
        pass  # counted; the row says the rest
    finally:
        site.metrics.counter("registration_given_up", outcome).inc()


class _Minter:
    """Credentials of one user key at one epoch, for as long as the gate stays at it (C13.1-074)."""

    def __init__(self, site: _Site, endpoint: Endpoint, identity: Identity, key: KeyPair, seconds: int) -> None:
        commands = endpoint.surface.commands
        served = tuple(name for name, command in commands.items() if command.contract_class == EPHEMERAL)
        service = Service(identity.instance, identity.epoch, served, endpoint.name)
        self._holder = Holder(site.name, identity.lifecycle, key.public, site.form, service=service)
        self._site, self._identity, self._key, self._seconds = site, identity, key, seconds
        self._destroyed = False

    def destroy(self) -> str:
        """No more credentials: the key is gone. Its public half."""
        self._destroyed = True
        self._key.wipe()
        return self._key.public

    async def __call__(self) -> Credentials:
        """The next credentials. Raises InstanceSuperseded when there are none any more, SpaceFailed."""
        try:
            token, expires = await self.token()
        except Superseded as error:
            raise InstanceSuperseded(str(error)) from error
        return Credentials(format_creds(token, self._key), expires)

    async def token(self) -> tuple[str, int]:
        """A token and its Unix end, signed after the gate has let it out. Raises Superseded, SpaceFailed."""
        site, identity = self._site, self._identity
        if self._destroyed:
            raise Superseded("the credential was given up")
        place = Place(site.name, identity.endpoint, identity.instance)
        issued = now()
        async with told(), as_profile(site.account, site.form, site.url, Profile.REGISTRAR) as registrar:
            try:
                await release(
                    registrar,
                    place,
                    identity.lifecycle,
                    self._key.public,
                    identity.epoch,
                    issued + self._seconds,
                    issued,
                )
            except Superseded:
                site.metrics.counter("registration_fences").inc()
                raise
        token = site.account.issue(Profile.ENDPOINT, self._holder, self._key, issued, self._seconds)
        return token, issued + self._seconds


__all__ = ["Hosted", "InstanceSuperseded", "deregister", "host", "instances", "register", "retire"]
