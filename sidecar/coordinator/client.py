"""The coordinator client for asyncio (uvloop or the standard loop): ``CoordinatorClient``.

    client = await CoordinatorClient.connect(socket, key, pins=PinFile(path), witness=WitnessPin(id, public_key))
    outcome = await client.create_objective(b'{"title":"ship it"}')

Lost replies follow one rule (P8-37..39): the same operation id is looked up, and if the server does not know it the
very same command is sent again under the same id. Nothing else is ever sent because an outcome is unknown.

Connect after any change of uid or gid and keep to one process: the proof is bound to the ids at connect (OPEN W5-b).
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from sidecar.base.clock import Now, system_now
from sidecar.base.ed25519 import SigningKey
from sidecar.coordinator import client_events as ev
from sidecar.coordinator.authority.certificate import WitnessPin
from sidecar.coordinator.authority.proof import uds_binding
from sidecar.coordinator.client_core import ClientSession
from sidecar.coordinator.client_errors import (
    CannotConnect,
    ClientError,
    ConnectionLost,
    OutcomeUnknown,
)
from sidecar.coordinator.client_handshake import DEFAULT_LIFETIME, REPLAY_BOUND, ClientConfig, ReplayBound
from sidecar.coordinator.client_link import Link, Subscription
from sidecar.coordinator.client_stream import Projection
from sidecar.coordinator.client_trust import Pins
from sidecar.coordinator.client_work import WorkCommands
from sidecar.coordinator.wire.enums import Capability, CommandKind, Scope
from sidecar.coordinator.wire.errors import ProtocolError
from sidecar.coordinator.wire.ids import (
    EventCut,
    ObjectiveId,
    OperationId,
    SubscriptionId,
    fresh_id,
    objective_id,
    operation_id,
)
from sidecar.coordinator.wire.limits import REFERENCE, REFERENCE_REQUESTS, SCHEMA, Limits
from sidecar.coordinator.wire.payloads import CreateObjective, UpdateObjective
from sidecar.coordinator.wire.records import OperationResult, Precondition, Unknown

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReconnectPolicy:
    """How often a lost connection is made again, and how long to wait before each try (seconds, doubling).

    Reconnecting never creates work: see the module text. The default makes no attempt.
    """

    attempts: int = 0
    first_delay: float = 0.05
    max_delay: float = 2.0

    @classmethod
    def lasting(cls, seconds: float, step: float = 0.25) -> ReconnectPolicy:
        """Attempts every ``step`` seconds for so many seconds."""
        return cls(math.ceil(seconds / step), step, step)

    def delays(self) -> Iterator[float]:
        """Seconds to wait before each attempt."""
        delay = self.first_delay
        for _ in range(self.attempts):
            yield delay
            delay = min(2 * delay, self.max_delay)


@dataclass(frozen=True, slots=True)
class Command:
    """One semantic command: what is sent again, unchanged, when its reply was lost (P8-38)."""

    operation_id: OperationId
    kind: CommandKind
    payload: bytes
    preconditions: tuple[Precondition, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to a command. ``recovered``: the reply was lost and the result came from a lookup or a resend."""

    operation_id: OperationId
    result: OperationResult
    recovered: bool = False


@dataclass(slots=True)
class _Dial:
    """How to make a connection."""

    socket_path: Path
    config: ClientConfig
    clock: Callable[[], Now]
    entropy: Callable[[int], bytes]
    notice: Callable[[ev.Event], None]
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class CoordinatorClient(WorkCommands):
    """A client of one coordinator over its Unix socket. Make one with ``connect``; use it as an async context manager.

    Errors: ``CannotConnect``, ``VerificationFailed`` and its kinds, ``ConnectionLost``, ``PeerFault``,
    ``OutcomeUnknown`` from this side; ``ProtocolError`` for what the server refused; ``LocalProtocolError`` for misuse.
    """

    def __init__(self, dial: _Dial, reconnect: ReconnectPolicy, patience: float, max_in_flight: int) -> None:
        self._dial = dial
        self._reconnect = reconnect
        self._patience = patience
        self._in_flight = asyncio.Semaphore(max_in_flight)
        self._link: Link | None = None
        self._finished = False

    @classmethod
    async def connect(
        cls,
        socket_path: str | os.PathLike[str],
        key: SigningKey,
        *,
        pins: Pins,
        witness: WitnessPin | None = None,
        authority: bytes | None = None,
        scopes: int = int(Scope.WORK_READ | Scope.WORK_COMMAND),
        capabilities: int = int(Capability.EVENT_REPLAY),
        required: int = 0,
        client_name: str = "sidecar",
        limits: Limits = REFERENCE,
        lifetime: int = DEFAULT_LIFETIME,
        replay: ReplayBound = REPLAY_BOUND,
        patience: float = 10.0,
        reconnect: ReconnectPolicy = ReconnectPolicy(),
        first: ReconnectPolicy | None = None,
        max_in_flight: int = REFERENCE_REQUESTS,
        notice: Callable[[ev.Event], None] = lambda event: None,
        clock: Callable[[], Now] = system_now,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> Self:
        """Connect and complete the verified handshake, the first time by the policy ``first`` (default ``reconnect``).

        ``witness`` (id and public key) is needed until the authority is in ``pins``. ``authority`` is the only
        fingerprint to accept. ``scopes`` and ``capabilities`` are bit sets; ``required`` must be granted or the
        connection is refused (P1-08). ``lifetime`` is how many seconds the login is asked to last, ``patience`` bounds
        the handshake and every request, in seconds, and ``replay`` what one replay may stage. ``notice`` sees every
        verified event, for example ``RenewalRefused``.
        """
        config = ClientConfig(
            key=key,
            pins=pins,
            derive_binding=lambda nonce: uds_binding(nonce, os.geteuid(), os.getegid(), os.getpid()),
            witness=witness,
            authority=authority,
            scopes=scopes,
            capabilities=capabilities,
            required=required,
            client_name=client_name,
            limits=limits,
            lifetime=lifetime,
            handshake_seconds=patience,
            replay=replay,
        )
        client = cls(_Dial(Path(socket_path), config, clock, entropy, notice), reconnect, patience, max_in_flight)
        await client._retrying(client._connected, reconnect if first is None else first)
        return client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def welcome(self) -> ev.Welcome:
        """The verified handshake of the latest connection."""
        if self._link is None:
            raise ConnectionLost("the client is not connected")
        return self._link.session.welcome

    async def close(self) -> None:
        """Close the connection; unfinished calls raise ``ConnectionLost`` or ``OutcomeUnknown``."""
        self._finished = True
        if self._link is not None:
            self._link.close()
            await self._link.closed

    # -- work -------------------------------------------------------------------------------------------------------

    async def create_objective(
        self,
        document: bytes,
        *,
        objective: ObjectiveId | None = None,
        operation: OperationId | None = None,
        preconditions: Iterable[Precondition] = (),
    ) -> Outcome:
        """Create an objective; ids that are not given are minted from the operating system's random source."""
        chosen = fresh_id(objective_id, self._dial.entropy) if objective is None else objective
        payload = CreateObjective(objective_id=chosen, schema=SCHEMA, document=document).body()
        return await self.command(CommandKind.CREATE_OBJECTIVE, payload, operation, preconditions)

    async def update_objective(
        self,
        objective: ObjectiveId,
        document: bytes,
        *,
        operation: OperationId | None = None,
        preconditions: Iterable[Precondition] = (),
    ) -> Outcome:
        """Replace the document of an objective."""
        payload = UpdateObjective(objective_id=objective, schema=SCHEMA, document=document).body()
        return await self.command(CommandKind.UPDATE_OBJECTIVE, payload, operation, preconditions)

    async def command(
        self,
        kind: CommandKind,
        payload: bytes,
        operation: OperationId | None = None,
        preconditions: Iterable[Precondition] = (),
    ) -> Outcome:
        """Run one command to its answer (P8-01), recovering a lost reply by its operation id (P8-37, P8-38).

        PENDING, REJECTED, INDETERMINATE and TOMBSTONED are answers like SUCCEEDED: they are returned and start nothing
        (P8-39). Raises ``OutcomeUnknown`` when the reply is lost and the policy's attempts are used up.
        """
        chosen = fresh_id(operation_id, self._dial.entropy) if operation is None else operation
        command = Command(chosen, kind, payload, tuple(preconditions))
        async with self._in_flight:
            link = await self._retrying(self._current, self._reconnect)
            try:
                return Outcome(chosen, await self._send(link, command))
            except ConnectionLost as error:
                return Outcome(chosen, await self._recover(command, error), recovered=True)

    async def operation(self, operation: OperationId) -> OperationResult:
        """The stored result of an operation (P8-02); UNKNOWN is an answer, not a reason to start work (P8-39)."""
        return await self._read(lambda link: link.operation(lambda session: session.lookup(operation)))

    async def snapshot(self, *, keep: bool = True) -> ev.Snapshot:
        """A complete verified snapshot; with ``keep=False`` it is verified and its records are dropped."""
        return await self._read(lambda link: link.snapshot(keep=keep))

    async def follow(
        self, *, replaces: SubscriptionId | None = None, credit: tuple[int, int] | None = None
    ) -> tuple[ev.Snapshot, Subscription]:
        """A snapshot and the live events after it, without a hole; ``replaces`` heals a paused subscription."""
        return await self._read(lambda link: link.follow(replaces, credit))

    async def subscribe(
        self, after: EventCut, *, credit: tuple[int, int] | None = None, projection: Projection | None = None
    ) -> Subscription:
        """The events after a cut (0 = from the first event on)."""
        return await self._read(lambda link: link.subscribe(after, credit, projection), current=True)

    async def replay(self, subscription: Subscription, *, credit: tuple[int, int] | None = None) -> ev.Replay:
        """What a paused subscription missed, verified (P10-32); the same subscription goes on behind it.

        ``subscription.replayable`` says whether to ask. A refusal (``CursorInvalid``: not retained or overflowed again,
        ``ResourceExhausted``) or ``ReplayTooLarge`` leaves the subscription broken: then ``follow`` heals. Asked once;
        when the connection ends, so does the subscription. A caller that is cancelled meanwhile has to ``follow`` too.
        """
        return await self._bounded(subscription.link, subscription.link.replay(subscription, credit))

    async def ping(self) -> float:
        """Seconds that a round trip takes."""
        link = await self._retrying(self._connected, self._reconnect)
        nonce = int.from_bytes(self._dial.entropy(8), "big")
        before = self._dial.clock().mono
        await self._bounded(link, link.ping(nonce))
        return self._dial.clock().mono - before

    @property
    def down(self) -> Exception | None:
        """Why the latest connection ended; None while it is up."""
        link = self._link
        return link.closed.result() if link is not None and link.closed.done() else None

    def disconnect(self) -> None:
        """Drop the connection; the next call makes a new one. For a stream whose server is not to be believed."""
        if self._link is not None:
            self._link.close()

    # -- connections ------------------------------------------------------------------------------------------------

    async def _send(self, link: Link, command: Command) -> OperationResult:
        return await self._bounded(
            link,
            link.operation(
                lambda session: session.command(
                    command.operation_id, command.kind, command.payload, command.preconditions
                )
            ),
        )

    async def _recover(self, command: Command, lost: Exception) -> OperationResult:
        """Look the operation up; send the same command again only when this authority does not know its id."""
        cause = lost
        for delay in self._reconnect.delays():
            await asyncio.sleep(delay)
            try:
                link = await self._current()
                result = await self._bounded(link, link.operation(lambda session: session.lookup(command.operation_id)))
            except (CannotConnect, ConnectionLost) as error:
                cause = error
                if self._finished:
                    break
                continue
            except (ClientError, ProtocolError) as error:
                raise OutcomeUnknown(command.operation_id, error) from error
            if not isinstance(result, Unknown):
                return result
            try:
                return await self._send(link, command)
            except ConnectionLost as error:
                cause = error
        raise OutcomeUnknown(command.operation_id, cause) from cause

    async def _read(self, ask: Callable[[Link], Awaitable[T]], *, current: bool = False) -> T:
        """A request without an effect: asked again on a new connection as often as the policy allows."""

        async def attempt() -> T:
            link = await (self._current() if current else self._connected())
            return await self._bounded(link, ask(link))

        return await self._retrying(attempt, self._reconnect)

    async def _retrying(self, attempt: Callable[[], Awaitable[T]], policy: ReconnectPolicy) -> T:
        """Try until it works, the policy is used up, or the client is closed. Only for what has no effect."""
        delays = policy.delays()
        while True:
            try:
                return await attempt()
            except (CannotConnect, ConnectionLost):
                delay = next(delays, None)
                if delay is None or self._finished:
                    raise
                await asyncio.sleep(delay)

    async def _bounded(self, link: Link, answer: Awaitable[T]) -> T:
        """Wait for an answer; a server that does not give it in time is left, and what it did is unknown."""
        try:
            async with asyncio.timeout(self._patience):
                return await answer
        except TimeoutError:
            link.close()
            raise ConnectionLost(f"the server did not answer within {self._patience:g} s") from None

    async def _current(self) -> Link:
        """A connection whose authority is current: a later one is adopted by a complete snapshot first (P12-31)."""
        link = await self._connected()
        if link.session.adopting:
            async with self._dial.lock:
                if link.session.adopting:
                    await self._bounded(link, link.snapshot(keep=False))
        return link

    async def _connected(self) -> Link:
        if self._finished:
            raise ConnectionLost("the client was closed")
        link = self._link
        if link is not None and not link.session.closing:
            return link
        async with self._dial.lock:
            if self._link is None or self._link.session.closing:
                self._link = await self._connect_once()
            return self._link

    async def _connect_once(self) -> Link:
        dial = self._dial
        session = ClientSession(dial.config, dial.entropy)
        try:
            async with asyncio.timeout(self._patience):
                _, link = await asyncio.get_running_loop().create_unix_connection(
                    lambda: Link(session, dial.clock, dial.notice), os.fspath(dial.socket_path)
                )
        except (OSError, TimeoutError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else "no answer in time"
            raise CannotConnect(
                f"cannot connect to {dial.socket_path}: {reason}; is the coordinator running on this socket?"
            ) from error
        try:
            await link.ready
        except BaseException:
            link.close()
            raise
        return link
