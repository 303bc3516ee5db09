"""The coordinator as the bridge reads it: verified, under one activation each time, and never from memory alone.

Every answer is confirmed by the coordinator after it was asked for. What it says is told together with the activation
under which it was read; nothing is kept from one activation to the next. The login asks for scopes that read and for no
other, so that nothing here can have an effect, whatever the key may do elsewhere.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, NamedTuple, TypeVar

from sidecar.base.clock import Now, system_now
from sidecar.base.safefile import UnsafeFile
from sidecar.bridge.pages import Token
from sidecar.coordinator.client import CoordinatorClient
from sidecar.coordinator.client_errors import ClientError, PeerFault, VerificationFailed
from sidecar.coordinator.client_events import Snapshot, Welcome
from sidecar.coordinator.wire.enums import ErrorCode, Scope
from sidecar.coordinator.wire.errors import ProtocolError
from sidecar.coordinator.wire.ids import OperationId
from sidecar.coordinator.wire.records import OperationResult

T = TypeVar("T")

READING: Final = int(Scope.WORK_READ)
"""What the bridge asks for."""
READING_ARTIFACTS: Final = int(Scope.WORK_READ | Scope.ARTIFACT_READ)
"""What it asks for when it is to see manifests and evidence too; it never asks for more."""
KEPT_CUTS: Final = 4
KEPT_BYTES: Final = 64 * 1024 * 1024
"""Payload bytes of the cuts that are kept for their next page, all together."""
KEPT_SECONDS: Final = 60.0
"""How long a cut is kept after it was used."""
_TRIES: Final = 3
"""How often a read begins anew that met a change of the activation."""


class Why(StrEnum):
    """Why the coordinator cannot be read; the values are metric labels."""

    UNREACHABLE = "unreachable"
    FENCED = "fenced"
    UNTRUSTED = "untrusted"
    REFUSED = "refused"


class Unread(Exception):  # noqa: N818 - what happened
    """Nothing was read. The text is one line that may be shown to a caller; ``cause`` is for the log alone."""

    def __init__(self, why: Why, problem: str, cause: Exception | None = None) -> None:
        super().__init__(problem)
        self.why, self.cause = why, cause


class CutGone(Exception):  # noqa: N818 - what happened
    """The cut of a token is not the present one any more, and is not kept either."""


@dataclass(frozen=True, slots=True)
class Read(Generic[T]):
    """What was read, and the handshake of the activation under which it was."""

    welcome: Welcome
    value: T


class _Kept(NamedTuple):
    snapshot: Snapshot
    begun: float
    used: float


class _Failed(NamedTuple):
    """An attempt that failed, and when it began."""

    begun: float
    error: Unread | None

    def tell(self, asked: float) -> None:
        """Whoever asked before it began and waited behind it has its answer: one after the other would wait for a
        coordinator that hangs as many times as they are."""
        if self.error is not None and self.begun >= asked:
            raise Unread(self.error.why, str(self.error), self.error.cause)


class Source:
    """One coordinator. ``connect`` makes a connection that asks for scopes that read alone."""

    def __init__(
        self, connect: Callable[[], Awaitable[CoordinatorClient]], *, clock: Callable[[], Now] = system_now
    ) -> None:
        self._connect, self._clock = connect, clock
        self._client: CoordinatorClient | None = None
        self._dialling = asyncio.Lock()
        self._cutting = asyncio.Lock()
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        self._undialled = self._uncut = _Failed(-math.inf, None)

    @property
    def connected(self) -> bool:
        """Whether there is a connection at the moment."""
        return self._client is not None and self._client.down is None

    @property
    def kept(self) -> int:
        """How many cuts are kept."""
        return len(self._kept)

    async def close(self) -> None:
        """End the connection and forget everything."""
        self._kept.clear()
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def cut(self) -> Read[Snapshot]:
        """A verified snapshot that was begun after this was called. Callers that wait at the same time share one.
        Raises Unread."""
        asked = self._clock().mono
        async with self._cutting:
            for one in self._kept.values():
                if one.begun >= asked:
                    return await self._confirmed(one.snapshot)
            self._uncut.tell(asked)
            begun = self._clock().mono
            try:
                read = await self._read(lambda client: client.snapshot())
            except Unread as error:
                self._uncut = _Failed(begun, error)
                raise
            self._keep(read.value, begun)
            return read

    async def again(self, token: Token) -> Read[Snapshot]:
        """The very cut of a token. Raises Unread, CutGone."""
        kept = self._kept.get(token.digest)
        if kept is not None and token.within(kept.snapshot):
            read = await self._confirmed(kept.snapshot)
        else:
            read = await self.cut()
        if not token.within(read.value):
            raise CutGone
        return read

    async def alive(self) -> Welcome:
        """The handshake of the activation that answers now. Raises Unread."""
        return (await self._read(lambda client: client.ping())).welcome

    async def operation(self, operation: OperationId) -> Read[OperationResult]:
        """What became of a command of this key. Raises Unread."""
        return await self._read(lambda client: client.operation(operation))

    # ---- the connection ----

    async def _confirmed(self, snapshot: Snapshot) -> Read[Snapshot]:
        """A cut that is kept, when the coordinator answers under the activation of it; else a cut of now."""
        alive = await self._read(lambda client: client.ping())
        if alive.welcome.standing != snapshot.standing:
            return await self._read(lambda client: client.snapshot())
        self._used(snapshot)
        return Read(alive.welcome, snapshot)

    async def _read(self, ask: Callable[[CoordinatorClient], Awaitable[T]]) -> Read[T]:
        """Ask, and know the activation that has answered."""
        for _ in range(_TRIES):
            client = await self._connected()
            try:
                before = client.welcome
                value = await ask(client)
                after = client.welcome
            except (ClientError, ProtocolError) as error:
                raise _unread(error) from None
            if before.standing == after.standing:
                self._forget_others(after)
                return Read(after, value)
        raise Unread(Why.UNREACHABLE, "the activation of the coordinator changes all the time")

    async def _connected(self) -> CoordinatorClient:
        asked = self._clock().mono
        async with self._dialling:
            client = self._client
            if client is not None and client.down is None:
                return client
            self._undialled.tell(asked)
            self._client = None
            if client is not None:
                await client.close()
            begun = self._clock().mono
            try:
                self._client = await self._connect()
            except (ClientError, ProtocolError, UnsafeFile, OSError) as error:
                unread = _unread(error)
                self._undialled = _Failed(begun, unread)
                raise unread from None
            return self._client

    # ---- what is kept ----

    def _keep(self, snapshot: Snapshot, begun: float) -> None:
        self._kept[snapshot.digest] = _Kept(snapshot, begun, self._clock().mono)
        self._kept.move_to_end(snapshot.digest)
        self._prune()

    def _used(self, snapshot: Snapshot) -> None:
        if (kept := self._kept.get(snapshot.digest)) is not None:
            self._kept[snapshot.digest] = kept._replace(used=self._clock().mono)
            self._kept.move_to_end(snapshot.digest)
        self._prune()

    def _prune(self) -> None:
        oldest = self._clock().mono - KEPT_SECONDS
        for digest in [digest for digest, one in self._kept.items() if one.used < oldest]:
            del self._kept[digest]
        while len(self._kept) > KEPT_CUTS or sum(map(_size, self._kept.values())) > KEPT_BYTES:
            self._kept.popitem(last=False)

    def _forget_others(self, welcome: Welcome) -> None:
        """Nothing is kept from one activation to the next."""
        for digest in [digest for digest, one in self._kept.items() if one.snapshot.standing != welcome.standing]:
            del self._kept[digest]


def _size(kept: _Kept) -> int:
    return sum(len(record.payload) for record in kept.snapshot.records)


def _unread(error: Exception) -> Unread:
    """What an error of the client means here, decided by types and codes."""
    match error:
        case ProtocolError(code=ErrorCode.AUTHORITY_FENCED | ErrorCode.STALE_AUTHORITY):
            return Unread(Why.FENCED, "the coordinator has lost its authority", error)
        case ProtocolError():
            return Unread(Why.REFUSED, f"the coordinator refuses to be read: {error.code.name}", error)
        case VerificationFailed() | PeerFault():
            return Unread(Why.UNTRUSTED, "the coordinator did not prove what it must prove", error)
        case UnsafeFile():
            return Unread(Why.REFUSED, "the bridge may not use its own files as they are", error)
        case _:
            return Unread(Why.UNREACHABLE, "the coordinator does not answer", error)
