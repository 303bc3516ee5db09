"""From an endpoint name to contracts that can be called: describe, verify, compile, keep (C13.7-18, -27..36, -65..70).

``describe`` is the authority: what the caller may call, and by which closures, is read there and nowhere else
(C13.7-70). Documents that it does not hold are fetched by digest through the registry, and each one is verified.
What is kept is bounded in number and in age; a refusal that shows that it is outdated drops it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sidecar.base.strictjson import JsonValue
from sidecar.rails.endpoint.artifacts import ContractInvalid, Documents
from sidecar.rails.endpoint.artifacts import needed as needed_artifacts
from sidecar.rails.endpoint.calls_kept import Kept
from sidecar.rails.endpoint.calls_types import Described
from sidecar.rails.endpoint.clusters import Cluster, Command, load_cluster, read_cluster
from sidecar.rails.endpoint.codes import CallError, CallFailed, Code, unsent
from sidecar.rails.endpoint.contracts import Contract
from sidecar.rails.endpoint.envelope import Bind
from sidecar.rails.endpoint.schemas import VOID_SCHEMA, Schema, load, needed

AGE_SECONDS: Final = 60.0
"""How long a description is used before it is asked for again."""
MOST_ENDPOINTS: Final = 256
MOST_CLUSTERS: Final = 256
PAGE: Final = 64
"""Digests that the registry is asked for at once."""

Describe = Callable[[str, float], Awaitable[Described]]
Fetch = Callable[[Sequence[str], float], Awaitable[Mapping[str, JsonValue]]]
"""Documents by their digest, those that exist; unverified. The number is the deadline, on the loop's clock."""


@dataclass(slots=True)
class _Known:
    """A description and what was made of it so far."""

    described: Described
    until: float
    contracts: dict[str, Contract] = field(default_factory=dict)


class _Turns:
    """One at a time for each key; nothing is kept of a key that nobody wants."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, list[None]]] = {}

    @contextlib.asynccontextmanager
    async def of(self, key: str) -> AsyncIterator[None]:
        lock, users = self._locks.setdefault(key, (asyncio.Lock(), []))
        users.append(None)
        try:
            async with lock:
                yield
        finally:
            users.pop()
            if not users:
                del self._locks[key]


class Resolver:
    """The contracts of one caller. ``describe`` asks an endpoint, ``fetch`` the registry."""

    def __init__(self, describe: Describe, fetch: Fetch, *, age: float = AGE_SECONDS) -> None:
        self._describe, self._fetch, self._age = describe, fetch, age
        self._known: Kept[str, _Known] = Kept(MOST_ENDPOINTS)
        self._clusters: Kept[tuple[str, int], Cluster] = Kept(MOST_CLUSTERS)
        self._asking = _Turns()

    def kept(self, endpoint: str, command: str, now: float) -> Contract | None:
        """A contract that is at hand."""
        known = self._known.get(endpoint)
        return None if known is None or known.until <= now else known.contracts.get(command)

    def forget(self, endpoint: str) -> None:
        """The description may be outdated: the next use asks again."""
        self._known.drop(endpoint)

    async def bind(self, endpoint: str, until: float) -> Bind:
        """The incarnation that described itself. Raises CallFailed: nothing was executed."""
        try:
            async with asyncio.timeout_at(until):
                return (await self._current(endpoint, until)).described.bind
        except TimeoutError:
            raise unsent(Code.DEADLINE_EXCEEDED, f"{endpoint} was not resolved in time") from None
        except CallError as error:
            raise _unresolved(endpoint, error) from None

    def learn(self, endpoint: str, described: Described, now: float) -> None:
        """A description that was asked for elsewhere."""
        self._known.put(endpoint, _Known(described, now + self._age))

    async def contract(self, endpoint: str, command: str, until: float) -> Contract:
        """The contract of a command, its closures fetched and verified. Raises CallFailed: nothing of the command was
        executed, whatever became of the questions."""
        try:
            async with asyncio.timeout_at(until):
                return await self._contract(endpoint, command, until)
        except TimeoutError:
            raise unsent(Code.DEADLINE_EXCEEDED, f"{endpoint} was not resolved in time") from None
        except CallError as error:
            if error.endpoint == "":
                raise  # found here, and about this endpoint already
            raise _unresolved(endpoint, error) from None

    async def _contract(self, endpoint: str, command: str, until: float) -> Contract:
        known = await self._current(endpoint, until)
        if (made := known.contracts.get(command)) is not None:
            return made
        try:
            declared = await self._declared(known.described, command, until)
            given = await self._schema(declared.input_digest, until)
            gives = await self._schema(declared.output_digest, until)
            made = Contract.of(declared, given, gives)
        except ContractInvalid as error:
            raise unsent(Code.CONTRACT_INVALID, f"{endpoint} {command}: {error}") from None
        known.contracts[command] = made
        return made

    async def _current(self, endpoint: str, until: float) -> _Known:
        """What is known of an endpoint; one question for all that want to know at the same time."""
        loop = asyncio.get_running_loop()
        async with self._asking.of(endpoint):
            known = self._known.get(endpoint)
            if known is None or known.until <= loop.time():
                described = await self._describe(endpoint, until)
                known = _Known(described, loop.time() + self._age)
                self._known.put(endpoint, known)
            return known

    async def _declared(self, described: Described, command: str, until: float) -> Command:
        """The command as its cluster declares it. A cluster of which only a part is visible is answered by digest
        alone, and its document is fetched (OPEN C13.7-h)."""
        descriptor = described.descriptor
        for one in descriptor.clusters:
            if command in one.commands:
                cluster = await self._cluster(one.digest, one.document, descriptor.protocol, until)
                found = next((each for each in cluster.commands if each.name == command), None)
                if found is None:
                    raise unsent(Code.CONTRACT_INVALID, f"cluster {one.digest} has no command {command}")
                return found
        raise unsent(Code.UNIMPLEMENTED, f"{descriptor.endpoint} describes no {command} to this caller")

    async def _cluster(self, closure: str, inline: JsonValue, protocol: int, until: float) -> Cluster:
        """A verified cluster document. Raises CallFailed, ContractInvalid."""
        if (made := self._clusters.get((closure, protocol))) is not None:
            return made
        if inline is None:
            made = load_cluster(closure, await self._documents(closure, needed_artifacts, until), protocol)
        else:
            made = read_cluster(inline, protocol)
            if made.closure != closure:
                raise ContractInvalid("", f"is a cluster that has not the digest {closure}")
        self._clusters.put((closure, protocol), made)
        return made

    async def _schema(self, closure: str, until: float) -> Schema:
        """A compiled schema. Raises CallFailed, ContractInvalid."""
        if closure == VOID_SCHEMA.closure:
            return VOID_SCHEMA
        return load(closure, await self._documents(closure, needed, until))

    async def _documents(
        self, closure: str, missing: Callable[[str, Documents], list[str]], until: float
    ) -> dict[str, JsonValue]:
        """Everything that a closure still needs, unverified but for what names more: the manifest (C13.7-35). Raises
        CallFailed for what the registry does not have, ContractInvalid for a manifest that is none."""
        have: dict[str, JsonValue] = {}
        while wanted := missing(closure, have):
            found = await self._fetch(wanted[:PAGE], until)
            new = {one: found[one] for one in wanted if one in found}
            if not new:
                raise unsent(Code.CONTRACT_INVALID, f"the contract store has no {wanted[0]}")
            have |= new
        return have


def _unresolved(endpoint: str, error: CallError) -> CallFailed:
    """A call was not sent, because what it needs to know could not be found out."""
    code = Code(error.code) if error.code in frozenset(Code) else Code.UNAVAILABLE
    return unsent(code, f"{endpoint} was not resolved: {error.message if code == error.code else error}")
