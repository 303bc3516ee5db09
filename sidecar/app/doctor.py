"""The doctor: looks at a broker, its spaces and their credentials, changes nothing, and says what is wrong.

Every look has its own bound in time; one that fails is a finding of its own and ends no other. What needs a login is
asked by users that are minted here, live for minutes and may read what the look needs.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import nats.errors
from nats.aio.client import Client

from sidecar.app import diagnosis, diagnosis_space
from sidecar.app.diagnosis import Finding, Level, unknown
from sidecar.app.diagnosis_space import Consumers
from sidecar.app.principal_records import Shelf, Stage, shelves
from sidecar.app.principals import BOUND
from sidecar.app.space_links import STEP_SECONDS, SpaceFailed, as_profile, connected
from sidecar.app.spaces import SpaceInfo, space_info, spaces
from sidecar.base.safefile import UnsafeFile, read_private
from sidecar.rails.connection import Connection, ConnectionFault, Credentials
from sidecar.rails.messaging.identity import Identity, NoIdentity
from sidecar.rails.messaging.liveness import probe
from sidecar.rails.names import api, buckets, inboxes
from sidecar.rails.names.limits import DEFAULT_PORT
from sidecar.rails.names.principals import LOCAL_OWNER, Lifecycle, Principal
from sidecar.rails.planes.delivery.lease import InvalidLease, LeaseRow
from sidecar.rails.planes.registration.census import servers_of
from sidecar.rails.planes.registration.eviction import ask_all
from sidecar.rails.space.asking import BrokerRefused, ask
from sidecar.rails.space.claims import MAX_ACCOUNT_BYTES, AccountClaims, InvalidToken, Token, decode
from sidecar.rails.space.creds import Creds, InvalidCreds, format_creds, read_creds
from sidecar.rails.space.holder import Holder, Profile
from sidecar.rails.space.reading import with_listing
from sidecar.rails.space.system import doctor_permissions
from sidecar.rails.space.trust import BrokerTrust, SpaceTrust, new_user

LOOK_SECONDS: Final = 8.0
"""The longest that one look takes."""
_ASK_SECONDS: Final = 4.0
_TRUST_FILES: Final = ("operator.nk", "operator-signing.nk", "system.nk", "system-signing.nk")
_GREETING_BYTES: Final = 64 * 1024
_MONITOR_BYTES: Final = 1 << 20
_NO_MESSAGE: Final = 10037
_EXPECTED: Final = (
    SpaceFailed,
    UnsafeFile,
    InvalidToken,
    BrokerRefused,
    ConnectionFault,
    nats.errors.Error,
    OSError,
    ValueError,
    TimeoutError,
)
"""What a look may end in; anything else is a fault of ours."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is examined. ``space`` None: every space of the directory. ``old_lease``: seconds."""

    root: Path
    url: str | None = None
    space: str | None = None
    creds: tuple[Path, ...] = ()
    monitor: str | None = None
    look_seconds: float = LOOK_SECONDS
    old_lease: float = diagnosis_space.OLD_LEASE_SECONDS


@dataclass(slots=True)
class _Seen:
    """What one look leaves for the next ones."""

    reachable: bool = False
    figures: dict[str, Any] | None = None
    findings: list[Finding] = field(default_factory=list)


async def examine(question: Question) -> list[Finding]:
    """All findings, in the order of the looks."""
    return await _Doctor(question).run()


class _Doctor:
    def __init__(self, question: Question) -> None:
        self._question = question
        self._seen = _Seen()
        self._root = question.root

    async def run(self) -> list[Finding]:
        await self._look("broker", self._greet)
        # Opening a trust makes what is missing of it, and a doctor makes nothing.
        trusted = all((self._root / "trust" / name).exists() for name in _TRUST_FILES)
        infos = self._spaces()
        if not trusted:
            do = "give --root, or make the trust: sidecar space trust"
            self._add(Finding("trust", Level.WARN, f"{self._root} holds no trust", "nothing can be asked", do))
        elif self._seen.reachable:
            await self._look("trust", partial(self._server, infos))
        await self._look("acknowledgement", self._acknowledgement)
        for info in infos:
            if self._seen.reachable:
                await self._space(info)
            await self._look("creds", partial(self._shelves, info), info.name)
        for path in self._question.creds:
            await self._look("creds", partial(self._file, path))
        return self._seen.findings

    def _add(self, *findings: Finding) -> None:
        self._seen.findings += findings

    async def _look(self, check: str, work: Callable[[], Awaitable[None]], space: str = "") -> None:
        """One look, bounded, with its failure as a finding."""
        try:
            async with asyncio.timeout(self._question.look_seconds):
                await work()
        except _EXPECTED as error:
            reason = str(error) or f"no answer in {self._question.look_seconds:g} s"
            self._add(unknown(check, reason, space))
        except (KeyError, TypeError, AttributeError):  # what a broker says is not ours to trust
            self._add(unknown(check, "an answer has another form than a nats-server's", space))

    def _spaces(self) -> list[SpaceInfo]:
        try:
            found = spaces(self._root)
            wanted = self._question.space
            return found if wanted is None else [space_info(self._root, wanted)]
        except _EXPECTED as error:
            self._add(Finding("space", Level.FAIL, str(error), "it cannot be examined"))
            return []

    # ---- the broker ----

    async def _greet(self) -> None:
        """The broker's greeting, without a login."""
        url = self._question.url
        if url is None:
            self._add(unknown("broker", "no --server was given", do="give --server nats://HOST:PORT"))
            return
        parts = urlsplit(url)
        try:
            async with asyncio.timeout(self._question.look_seconds / 2):
                line = await _greeting(parts.hostname or "", parts.port or DEFAULT_PORT)
        except (OSError, TimeoutError) as error:
            why, do = "nobody can reach the space", "start the broker, or see whether the address is right"
            reason = "it does not greet" if isinstance(error, TimeoutError) else error.strerror or type(error).__name__
            self._add(Finding("broker", Level.FAIL, f"{url} cannot be reached: {reason}", why, do))
            return
        word, _, text = line.partition(b" ")
        info = json.loads(text) if word == b"INFO" else None
        if not isinstance(info, dict):
            why, do = "clients expect a nats-server there", "see what listens there"
            self._add(Finding("broker", Level.FAIL, f"what answers at {url} is no nats-server", why, do))
            return
        self._seen.reachable = True
        self._add(*diagnosis.judge_greeting(url, info))

    @contextlib.asynccontextmanager
    async def _system(self, accounts: list[str]) -> AsyncIterator[Client]:
        """A user of the system account that may ask and nothing else."""
        trust = BrokerTrust.open(self._root / "trust", os.urandom)
        key = new_user(os.urandom)
        granted = doctor_permissions(inboxes.INBOX.subtree(connection=key.public), accounts)
        token = trust.system_user("doctor", granted, key, int(time.time()), STEP_SECONDS)
        async with connected(self._url, token, key) as client:
            yield client

    @property
    def _url(self) -> str:
        assert self._question.url is not None
        return self._question.url

    async def _server(self, infos: list[SpaceInfo]) -> None:
        """Clock and figures of the server, and the accounts that it knows."""
        async with self._system([info.account for info in infos]) as system:
            self._add(Finding("trust", Level.OK, "the broker trusts this directory"))
            self._add(*diagnosis.judge_servers(*await _every_server(system)))
            before = time.time()
            varz = await _figures(system, api.PING_VARZ.build(), None)
            after = time.time()
            self._add(diagnosis.judge_clock(datetime.fromisoformat(varz["now"]).timestamp(), before, after))
            config = (varz.get("jetstream") or {}).get("config")
            self._seen.figures = config if isinstance(config, dict) else None
            self._add(diagnosis.judge_disk(await _figures(system, api.PING_JSZ.build(), {})))
            for info in infos:
                self._add(diagnosis_space.judge_account(info.name, self._kept(info), await _known(system, info)))

    async def _acknowledgement(self) -> None:
        config = self._seen.figures
        if config is None and self._question.monitor is not None:
            varz = await asyncio.to_thread(_monitored, self._question.monitor, self._question.look_seconds)
            jetstream = varz.get("jetstream")
            found = jetstream.get("config") if isinstance(jetstream, dict) else None
            config = found if isinstance(found, dict) else None
        self._add(diagnosis.judge_sync(config))

    # ---- one space ----

    def _directory(self, info: SpaceInfo) -> Path:
        return self._root / "spaces" / info.name

    def _kept(self, info: SpaceInfo) -> Token:
        """The account's token on disk."""
        return decode(read_private(self._directory(info) / "account.jwt", MAX_ACCOUNT_BYTES).decode("ascii"), "account")

    def _trust(self, info: SpaceInfo) -> SpaceTrust:
        return SpaceTrust.open(self._directory(info), info.name, os.urandom)

    def _members(self, info: SpaceInfo) -> list[tuple[Lifecycle, tuple[str, ...]]]:
        """Active members with durables: lifecycle and roles."""
        records = [shelf.read() for shelf in shelves(self._directory(info) / "principals")]
        return [
            (record.lifecycle, record.wanted.roles)
            for record in records
            if record is not None and record.stage is Stage.ACTIVE and record.wanted.profile in BOUND
        ]

    async def _space(self, info: SpaceInfo) -> None:
        await self._look("streams", partial(self._stored, info), info.name)
        await self._look("lease", partial(self._lease, info), info.name)
        await self._look("feed", partial(self._feed, info), info.name)
        await self._look("liveness", partial(self._liveness, info), info.name)

    async def _stored(self, info: SpaceInfo) -> None:
        """Streams and consumers of the account, in one answer of the server."""
        async with self._system([]) as system:
            body = {"account": info.account, "streams": True, "consumer": True, "config": True}
            figures = await _figures(system, api.PING_JSZ.build(), body)
        details = [one for one in figures.get("account_details") or [] if one.get("id") == info.account]
        streams = {one["name"]: one for detail in details for one in detail.get("stream_detail") or []}
        known: Consumers = {
            name: {consumer["name"]: consumer for consumer in one.get("consumer_detail") or []}
            for name, one in streams.items()
        }
        members = self._members(info)
        claims = self._kept(info).claims
        assert isinstance(claims, AccountClaims)
        configs = {name: one.get("config") or {} for name, one in streams.items()}
        default = (figures.get("limits") or {}).get("default_max_consumers")
        self._add(
            *diagnosis_space.judge_streams(info.name, configs),
            diagnosis_space.judge_room(info.name, configs, known, default),
            *diagnosis_space.judge_durables(info.name, members, known),
            diagnosis_space.judge_leftovers(info.name, members, known),
            *diagnosis_space.judge_lag(info.name, known),
            *diagnosis.judge_account_disk(
                info.name, details[0].get("storage") if details else None, claims.limits.disk_bytes
            ),
        )

    async def _lease(self, info: SpaceInfo) -> None:
        """The lease row, which observers may read."""
        subject = buckets.DELIVERY.subject(info.name, buckets.DELIVERY_LEASE, shard=0)
        data, age = await self._kept_row(info, buckets.DELIVERY, subject)
        try:
            row = LeaseRow.decode(data)
        except InvalidLease:
            row = None  # given back, or no row: nobody holds it
        self._add(diagnosis_space.judge_lease(info.name, row, age, self._question.old_lease))

    async def _feed(self, info: SpaceInfo) -> None:
        """The heartbeat of the membership feed."""
        subject = buckets.MEMBERSHIP.subject(info.name, buckets.MEMBERSHIP_FEED)
        data, age = await self._kept_row(info, buckets.MEMBERSHIP, subject)
        value = json.loads(data) if data else None
        complete = value.get("complete") is True if isinstance(value, dict) else None
        self._add(diagnosis_space.judge_feed(info.name, complete, age))

    async def _kept_row(self, info: SpaceInfo, bucket: buckets.Bucket, subject: str) -> tuple[bytes, float]:
        """A value and its age in seconds, as observers may read it; no bytes for a key without one."""
        async with as_profile(self._trust(info), info.form, self._url, Profile.OBSERVER) as client:
            request = api.MESSAGE_GET.build(stream=bucket.stream(info.name))
            try:
                answer = await ask(client, request, {"last_by_subj": subject}, seconds=_ASK_SECONDS)
            except BrokerRefused as error:
                if error.code != _NO_MESSAGE:
                    raise
                return b"", 0.0
        message = answer["message"]
        age = max(0.0, time.time() - datetime.fromisoformat(message["time"]).timestamp())
        return base64.b64decode(message.get("data") or ""), age

    async def _liveness(self, info: SpaceInfo) -> None:
        """Asks the plane as a member would, under a name that is nobody's."""
        key, account = new_user(os.urandom), self._trust(info)
        lifecycle = Lifecycle(Principal(LOCAL_OWNER, "doctor"), os.urandom(16).hex())
        holder = Holder(info.name, lifecycle, key.public, info.form)

        async def mint() -> Credentials:
            now = int(time.time())
            token = account.issue(Profile.AGENT, holder, key, now, STEP_SECONDS)
            return Credentials(format_creds(token, key), now + STEP_SECONDS)

        async with await Connection.open([self._url], mint) as connection:
            found = await probe(connection, info.name, lifecycle.principal, "delivery")
        self._add(diagnosis_space.judge_liveness(info.name, found))

    # ---- credentials ----

    async def _shelves(self, info: SpaceInfo) -> None:
        """The creds file of every active principal of the space."""
        account = self._kept(info).claims
        assert isinstance(account, AccountClaims)
        for shelf in shelves(self._directory(info) / "principals"):
            self._shelf(info, shelf, account)

    def _shelf(self, info: SpaceInfo, shelf: Shelf, account: AccountClaims) -> None:
        name = shelf.directory.name
        try:
            record = shelf.read()
            if record is None or record.stage is not Stage.ACTIVE:
                return
            creds = read_creds(shelf.creds_file)
            holder = record.wanted.holder(info.name, info.form, record.uid, creds.user.subject)
            holder = with_listing(holder, creds.user.permissions)
        except _EXPECTED as error:
            self._add(_unusable(name, error, info.name))
            return
        profiles = [(record.wanted.profile, holder)]
        self._add(*diagnosis_space.judge_creds(name, creds.token, account, profiles, time.time(), info.name))

    async def _file(self, path: Path) -> None:
        """A creds file that may be of anybody."""
        try:
            creds = read_creds(path)
        except _EXPECTED as error:
            self._add(_unusable(str(path), error))
            return
        identity = _identity(creds)
        account, profiles, space = None, [], ""
        if identity is not None:
            space = identity.space
            account = self._account_of(space)
            profiles = diagnosis_space.candidates(
                space, identity.form, identity.lifecycle, identity.connection, identity.roles, creds.user
            )
        self._add(*diagnosis_space.judge_creds(str(path), creds.token, account, profiles, time.time(), space))

    def _account_of(self, space: str) -> AccountClaims | None:
        """The claims of a space of this directory; None for any other."""
        try:
            claims = self._kept(space_info(self._root, space)).claims
        except _EXPECTED:
            return None
        return claims if isinstance(claims, AccountClaims) else None


async def _greeting(host: str, port: int) -> bytes:
    reader, writer = await asyncio.open_connection(host, port, limit=_GREETING_BYTES)
    try:
        return await reader.readline()
    finally:
        writer.close()


def _identity(creds: Creds) -> Identity | None:
    try:
        return Identity.of(creds)
    except NoIdentity:
        return None


def _unusable(name: str, error: Exception, space: str = "") -> Finding:
    if isinstance(error, UnsafeFile):
        why, do = "whoever reads it can act as its holder", "make it owner-only, and renew what others may have read"
        return Finding("creds-file", Level.FAIL, f"{name}: {error}", why, do, space)
    what = str(error) if isinstance(error, InvalidCreds) else f"it cannot be read: {getattr(error, 'strerror', error)}"
    why, do = "its holder cannot log in", "renew it: sidecar principal renew"
    return Finding("creds-file", Level.FAIL, f"{name}: {what}", why, do, space)


async def _figures(system: Client, subject: str, body: dict[str, Any] | None) -> dict[str, Any]:
    """The first server's answer; with several servers it is one of them."""
    data = (await ask(system, subject, body, seconds=_ASK_SECONDS)).get("data")
    if not isinstance(data, dict):
        raise SpaceFailed("the broker's figures have another form")
    return data


async def _every_server(system: Client) -> tuple[int, list[dict[str, Any]]]:
    """How many servers there are, as they count each other, and the figures of those that told them in time."""
    expected = servers_of(await ask_all(system, api.PING_STATSZ.build(), b"", 0))
    told = await ask_all(system, api.PING_VARZ.build(), b"", expected or 1)
    parsed = [json.loads(one) for one in told]
    figures = [one.get("data") for one in parsed if isinstance(one, dict)]
    return expected, [one for one in figures if isinstance(one, dict)]


async def _known(system: Client, info: SpaceInfo) -> Token | None:
    """The account's token at the broker; None when it has none."""
    reply = await system.request(api.CLAIMS_LOOKUP.build(account=info.account), b"", timeout=_ASK_SECONDS)
    try:
        return decode(reply.data.decode("ascii"), "account")
    except (InvalidToken, UnicodeDecodeError):
        return None


def _monitored(address: str, seconds: float) -> dict[str, Any]:
    """The figures that a monitoring endpoint gives to anybody."""
    parts = urlsplit(address)
    if parts.scheme != "http" or not parts.hostname or parts.username is not None:
        raise ValueError("a monitoring address is http://HOST:PORT, without user or password")
    connection = http.client.HTTPConnection(parts.hostname, parts.port or 8222, timeout=seconds)
    try:
        connection.request("GET", "/varz")
        value = json.loads(connection.getresponse().read(_MONITOR_BYTES))
    except http.client.HTTPException as error:
        raise ValueError(f"the monitoring address does not answer: {type(error).__name__}") from None
    finally:
        connection.close()
    if not isinstance(value, dict):
        raise ValueError("the monitoring address gives no figures")
    return value
