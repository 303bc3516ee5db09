"""One member of a space: everything that it does on the messaging plane, over one credential.

    async with await Peer.connect(["nats://127.0.0.1:4222"], "alice.creds", name="alice") as alice:
        await alice.join("team.backend")
        await alice.post("team.backend", "Can you review this?", mentions=["bob"])
        async for delivered in alice.deliveries():
            print(delivered.message.sender.name, delivered.meta.kind, delivered.message.parts)
            await delivered.handled()

The form of the space makes no difference to the caller. What comes is one stream: direct messages, work for its roles,
posts live, from history and from the backstop, each message once. What was not ``handled`` comes again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from functools import cache
from ssl import SSLContext
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

from sidecar.base.clock import Now, system_now
from sidecar.base.strictjson import JsonValue
from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, Credentials, Notice, Policy, Watch
from sidecar.rails.connection.connection import DEFAULT_POLICY
from sidecar.rails.endpoint.caller import Caller
from sidecar.rails.envelopes.message import EndpointRef
from sidecar.rails.envelopes.presence import Card
from sidecar.rails.envelopes.schema import EndpointKind
from sidecar.rails.envelopes.schema import Status as PresenceStatus
from sidecar.rails.messaging import liveness
from sidecar.rails.messaging.anycast import AnycastRequests, Status
from sidecar.rails.messaging.channel import Left, Past
from sidecar.rails.messaging.channels import Channels
from sidecar.rails.messaging.credsfile import CredsFile
from sidecar.rails.messaging.dm_reader import DmReader
from sidecar.rails.messaging.drafts import Channel, Content, Direct, Extras, Role, mentioned
from sidecar.rails.messaging.durables import Durable, From
from sidecar.rails.messaging.enrolment import Enrolment, SharedRegistry
from sidecar.rails.messaging.heartbeat import Heartbeat, OwnPresence
from sidecar.rails.messaging.history import Frames, History, MediatedHistory, RawHistory
from sidecar.rails.messaging.identity import Identity
from sidecar.rails.messaging.inbox import Delivered, Inbox, InboxClosed
from sidecar.rails.messaging.intake import Intake, RawIntake
from sidecar.rails.messaging.mediated_intake import MediatedIntake
from sidecar.rails.messaging.membership import Join, Standing
from sidecar.rails.messaging.notices import Notices, mediated_lease, raw_lease
from sidecar.rails.messaging.reads import Reading, Reads
from sidecar.rails.messaging.reads_mediated import MediatedReads
from sidecar.rails.messaging.reads_raw import RawReads
from sidecar.rails.messaging.registry import Registry
from sidecar.rails.messaging.replay import Replay
from sidecar.rails.messaging.roster import Roster
from sidecar.rails.messaging.runtime import current_process
from sidecar.rails.messaging.sending import Sender, Sent
from sidecar.rails.messaging.sources import Sources
from sidecar.rails.messaging.take_steps import check_name
from sidecar.rails.messaging.takes import MediatedEpoch, RawEpoch, TakeGate
from sidecar.rails.names import Principal
from sidecar.rails.names.principals import DOT
from sidecar.rails.names.tokens import GRAMMARS
from sidecar.rails.space.holder import Form

PROTOCOL_VERSION: Final = "0.4"
"""What the card advertises (C6-28, OPEN C11-a)."""
DRAIN_SECONDS: Final = 5.0
"""How long a closing member may still settle what it has."""

EVERYTHING: Final = frozenset(From)
"""Direct messages, backstop copies, and the queues of the roles."""

Minter: TypeAlias = Callable[[], Awaitable[Credentials]]


@cache
def _unseen() -> Metrics:
    """Metrics that nobody reads, for a process that gives none."""
    return Metrics()


class Peer:
    """A connected member. Made by :meth:`connect`, ended by :meth:`close`."""

    def __init__(
        self,
        connection: Connection,
        identity: Identity,
        own: OwnPresence,
        *,
        clock: Callable[[], Now],
        entropy: Callable[[int], bytes],
        metrics: Metrics,
        log: Log | None,
        sources: Collection[From] = EVERYTHING,
    ) -> None:
        self.connection = connection
        self.identity = identity
        self.card = card = own.card
        self.metrics = metrics
        self._clock, self._entropy, self._log = clock, entropy, log
        mediated = identity.form is Form.MEDIATED
        ref = EndpointRef(card.id, card.name, card.role)
        seen: dict[str, Any] = {"clock": clock, "metrics": metrics, "log": log}
        self._caller = Caller(
            connection, identity.space, identity.lifecycle, card.name, entropy=entropy, metrics=metrics
        )
        reading = Reading(clock, metrics, log)
        self._reads: Reads = (
            MediatedReads(self._caller, reading) if mediated else RawReads(connection, identity.space, reading)
        )
        self._history: History = (
            MediatedHistory(self._caller, identity) if mediated else RawHistory(connection, identity, entropy=entropy)
        )
        self._sender = Sender(connection, identity, ref, clock=clock, entropy=entropy, metrics=metrics)
        lease = mediated_lease(self._caller) if mediated else raw_lease(connection, identity.space)
        notices = Notices(lease, clock=clock, metrics=metrics)
        self._requests = AnycastRequests(self._caller)
        self._inbox = Inbox(mediated=mediated, notices=notices, **seen)
        registry = SharedRegistry(self._reads)
        self._enrolment = Enrolment(registry, self._history, self._caller, metrics)
        self._channels = Channels(
            connection,
            identity.space,
            self._history,
            self._enrolment,
            Replay(registry, self._history, self._inbox, **seen),
            self._inbox,
            **seen,
        )
        if From.BACKSTOP in sources:
            self._inbox.backed, self._inbox.own = self._channels.backed, identity.principal.dot
        durables = [one for one in self._durables() if one.source in sources]
        gate = self._new_gate() if any(one.source is From.ROLE for one in durables) else None
        self._sources = Sources(self._inbox, gate, durables, self._intake, **seen)
        self._heartbeat = Heartbeat(connection, identity.space, own, **seen)

    @classmethod
    async def connect(
        cls,
        urls: Sequence[str],
        creds: str | os.PathLike[str] | Minter,
        *,
        name: str,
        kind: EndpointKind = EndpointKind.AGENT,
        role: str | None = None,
        description: str | None = None,
        tags: Sequence[str] = (),
        meta: Mapping[str, JsonValue] | None = None,
        principal: Principal | None = None,
        space: str | None = None,
        sources: Collection[From] = EVERYTHING,
        present: bool = True,
        watch: Callable[[Notice], None] | None = None,
        policy: Policy = DEFAULT_POLICY,
        tls: SSLContext | None = None,
        clock: Callable[[], Now] = system_now,
        entropy: Callable[[int], bytes] = os.urandom,
        metrics: Metrics | None = None,
        log: Log | None = None,
    ) -> Peer:
        """Connect and, unless it is not to be ``present``, appear in the roster; bound it with ``asyncio.timeout``.

        A tool that acts for a member beside the member's own process is not present, and reads only those ``sources``
        that it shows: what it does not read stays for whoever reads next.

        ``creds`` is a creds file, read again when it was replaced, or a callable that mints. ``principal`` and
        ``space`` are what the caller takes itself for: OtherPrincipal, before anything is sent, when the credential
        says something else (C2-14). Raises InvalidCreds, UnsafeFile, InvalidName for a role that is none,
        EnvelopeError and BadTakerName for a name that cannot stand on the wire, Stopped, PermissionViolation.
        """
        seen = metrics or _unseen()
        mint: Minter = CredsFile(creds, clock) if isinstance(creds, str | os.PathLike) else creds
        first = [await mint()]
        identity = Identity.from_creds(first[0].text)
        identity.agree(principal=principal, space=space)
        card = Card(
            identity.principal.dot,
            name,
            kind,
            None if role is None else GRAMMARS["role"].check(role),
            description,
            tuple(tags),
            meta=meta or {},
            protocol_version=PROTOCOL_VERSION,
        )

        if identity.roles:
            check_name(name)
        runtime = current_process(entropy).runtime(identity.lifecycle)
        own = OwnPresence.begin(card, identity.lifecycle, runtime, int(clock().wall * 1000))

        async def next_credentials() -> Credentials:
            return first.pop() if first else await mint()

        connection = await Connection.open(
            urls, next_credentials, policy=policy, watch=Watch(seen, log, watch), tls=tls, clock=clock
        )
        try:
            peer = cls(connection, identity, own, clock=clock, entropy=entropy, metrics=seen, log=log, sources=sources)
            if present:
                await peer._heartbeat.start()
        except BaseException:
            await connection.close()
            raise
        return peer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _durables(self) -> list[Durable]:
        """What is read for the member: direct messages, backstop copies, and the queue of each role that it holds."""
        space, lifecycle = self.identity.space, self.identity.lifecycle
        roles = [Durable.of_role(space, role) for role in self.identity.roles]
        return [Durable.dm(space, lifecycle), Durable.backstop(space, lifecycle), *roles]

    def _new_gate(self) -> TakeGate:
        """What decides about work for a role, right before it is shown."""
        connection, identity = self.connection, self.identity
        mediated = identity.form is Form.MEDIATED
        return TakeGate(
            connection,
            identity.space,
            identity.lifecycle,
            self.card.name,
            epoch=MediatedEpoch(self._caller) if mediated else RawEpoch(connection, identity.space),
            caller=self._caller,
            offer=self._inbox.offer,
            entropy=self._entropy,
            clock=self._clock,
            metrics=self.metrics,
            log=self._log,
        )

    def _intake(self, durable: Durable) -> Intake:
        seen: dict[str, Any] = {"clock": self._clock, "metrics": self.metrics, "log": self._log}
        if self.identity.form is Form.MEDIATED:
            return MediatedIntake(self.connection, self._caller, durable, entropy=self._entropy, **seen)
        return RawIntake(self.connection, durable, **seen)

    def dm_reader(self) -> DmReader:
        """The direct messages of a holder that may read them and nothing else; it closes the reader (C8-36). Such a
        holder is not ``present``, and nothing else of it is read."""
        durable = Durable.dm(self.identity.space, self.identity.lifecycle)
        mediated = self.identity.form is Form.MEDIATED
        return DmReader(self._intake(durable), mediated=mediated, metrics=self.metrics, log=self._log)

    # ---- sending ----

    async def post(
        self,
        channel: str,
        content: Content,
        *,
        mentions: Sequence[str] = (),
        reply_to: str | None = None,
        context_id: str | None = None,
        message_id: str | None = None,
    ) -> Sent:
        """Post on a channel; being a member is not needed (C7-28). Raises what ``Sender.send`` raises."""
        extras = Extras(mentions, reply_to, context_id, message_id)
        return await self._sender.send(Channel(channel), content, extras)

    async def tell(
        self,
        to: Principal | str,
        content: Content,
        *,
        reply_to: str | None = None,
        context_id: str | None = None,
        message_id: str | None = None,
    ) -> Sent:
        """Send a direct message to a principal, in dot-form or not, or to the one live peer of a name.

        A principal gets it also while it is offline (C4-03). A name is looked up in the roster as it is now: raises
        NoSuchPeer, AmbiguousName, RosterUnreadable, and what ``Sender.send`` raises.
        """
        if isinstance(to, str):
            to = Principal.from_dot(to) if DOT.fits(to) else (await self.roster()).resolve(to)
        return await self._sender.send(Direct(to), content, Extras((), reply_to, context_id, message_id))

    async def ask_role(
        self,
        role: str,
        content: Content,
        *,
        reply_to: str | None = None,
        context_id: str | None = None,
        message_id: str | None = None,
    ) -> Sent:
        """Ask one holder of a role; ``Sent.sequence`` and ``Sent.id`` name the request for status and cancel (C8.1-55).
        Raises what ``Sender.send`` raises."""
        return await self._sender.send(Role(role), content, Extras((), reply_to, context_id, message_id))

    async def mentioned(self, names: Sequence[str]) -> dict[str, tuple[Principal, ...]]:
        """Whom a mention of each name reaches now, the names as they stand on the wire: exactly one live peer, or
        nobody durably (C4-15). Raises RosterUnreadable."""
        return mentioned(names, await self.roster())

    async def anycast_status(self, sequence: int, message_id: str) -> Status:
        """What became of a request for a role (C8.1-36). Raises CallRefused, CallFailed, BadStatus."""
        return await self._requests.status(sequence, message_id)

    async def anycast_cancel(self, sequence: int, message_id: str) -> Status:
        """Cancel a request for a role that nobody has taken; the answer is its status (C8.1-39). Raises as above."""
        return await self._requests.cancel(sequence, message_id)

    # ---- channels ----

    async def join(self, channel: str, past: Past | None = None) -> Join:
        """Join a channel or pattern, with the past that the registry says or the one given. See ``Channels.join``."""
        return await self._channels.join(channel, past)

    async def leave(self, channel: str) -> Left:
        """Leave it. See ``Channels.leave``."""
        return await self._channels.leave(channel)

    @property
    def joined(self) -> dict[str, Join]:
        """The channels that are joined, and how (C4-17)."""
        joins = ((name, self._channels.join_of(name)) for name in self._channels.standings)
        return {name: join for name, join in joins if join is not None}

    @property
    def standings(self) -> dict[str, Standing]:
        """Also the channels that are on their way in or out, or left and not closed yet."""
        return self._channels.standings

    async def memberships(self) -> dict[str, bool]:
        """The durable memberships of this lifecycle, those of earlier processes too, and whether each is active yet.
        Raises CallRefused, CallFailed."""
        return await self._enrolment.memberships()

    @property
    def readable(self) -> tuple[str, ...]:
        """What the member may read and is mention-reachable on, joined or not (C4-16, C4-17)."""
        return self.identity.readable

    async def history(self, channel: str, *, after: int = 0, since_ms: int | None = None) -> Frames:
        """What a channel holds now, as stored frames; ``contextlib.aclosing`` it. Raises HistoryNotGranted,
        HistoryUnreadable."""
        return self._history.read(channel, up_to=await self._history.frontier(), after=after, since_ms=since_ms)

    # ---- receiving ----

    async def next(self) -> Delivered:
        """The next delivery. Raises InboxClosed, Stopped. The first call begins to read the durables."""
        self._sources.start()
        return await self._inbox.next()

    async def deliveries(self) -> AsyncIterator[Delivered]:
        """Every delivery until the member is closed. Raises Stopped when the connection has ended for good."""
        while True:
            try:
                delivered = await self.next()
            except InboxClosed:
                return
            yield delivered

    @property
    def in_flight(self) -> tuple[int, ...]:
        """Keys of the deliveries that are handed out and to be settled (CD-15)."""
        return self._inbox.in_flight

    @property
    def source_faults(self) -> dict[str, str]:
        """Durables that cannot be read at the moment, and why; reading them is tried again and again."""
        return self._sources.faults

    # ---- the space ----

    async def roster(self) -> Roster:
        """Who is here, as of a read that came to its end. Raises RosterUnreadable (C6-47)."""
        return await self._reads.roster()

    async def registry(self) -> Registry:
        """What is said of channels. Raises RegistryUnreadable."""
        return await self._reads.registry()

    def set_status(self, status: PresenceStatus | None = None, activity: str | None = None) -> None:
        """Say what the member does; None leaves it, an empty activity is none. Raises ValueError for ``offline``,
        EnvelopeError."""
        self._heartbeat.update(lambda own, now: own.doing(now, status=status, activity=activity))

    @property
    def presence(self) -> Heartbeat:
        """The own presence, for what else can be said in it."""
        return self._heartbeat

    async def probe(self, plane: str) -> liveness.Liveness:
        """Whether a plane has a bound responder (C6.1). Raises InvalidName for a plane that there is none of."""
        return await liveness.probe(
            self.connection,
            self.identity.space,
            self.identity.principal,
            plane,
            entropy=self._entropy,
            metrics=self.metrics,
        )

    # ---- the end ----

    async def settled(self, seconds: float) -> bool:
        """Wait until the durable copies of the live posts that were handled are settled too, on channels that are
        joined durably: the next process would be shown such a post again. False when that takes longer."""
        return await self._inbox.settled(seconds)

    async def close(self, *, drain: float = DRAIN_SECONDS) -> None:
        """Leave the stage: no more deliveries, ``drain`` seconds for what is handed out and for the durable copies of
        what was handled live (:meth:`settled`), a last presence record. Nothing is waited for that is not owed.

        Memberships and unread messages stay where they are. May be called twice. Also when it is cancelled, the member
        is gone behind it: what goes on beating would keep it in the roster.
        """
        async with contextlib.AsyncExitStack() as ends:
            for end in (self.connection, self._caller, self._heartbeat, self._channels, self._sources):
                ends.push_async_callback(end.close)  # the last one first
            until = self._clock().mono + drain
            self._inbox.leave()
            if drain > 0 and self._inbox.owes:
                await self._sources.stop(but=From.BACKSTOP)
                await self.settled(drain)
            await self._sources.stop()
            await self._inbox.close(drain=max(0.0, until - self._clock().mono))
