"""Contract artifacts as the registry reads them: each verified against its digest, the ones used last kept (C13.7-35,
-36, C13.20-05). An artifact never changes, so that what is kept is never outdated; what is missing is asked for again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from sidecar.base.strictjson import JsonError, canonical_text
from sidecar.ops.metrics import Metrics
from sidecar.rails.endpoint.artifacts import MAX_DOCUMENT, ContractInvalid, MissingArtifact, digest_of
from sidecar.rails.endpoint.clusters import Cluster, Command, UnsupportedProtocol, load_cluster, needed
from sidecar.rails.names import planes, streams
from sidecar.rails.planes.registry.reads import Reader

KEPT_BYTES: Final = 16 * 1024 * 1024
KEPT_COMMANDS: Final = 65_536
"""Commands of the clusters that are kept."""
AT_ONCE: Final = 32
"""Reads of the contract store at a time."""
_PREFIX: Final = "sha256:"


class State(StrEnum):
    """What became of the closures of an instance (C13.20-05)."""

    VERIFIED = "verified"
    MISSING = "missing"
    INVALID = "invalid"


class Declares(NamedTuple):
    """What an instance declares: its commands by name, none unless everything is verified; ``why`` is for our log."""

    state: State
    commands: Mapping[str, Command]
    why: str = ""


class Artifacts:
    """The contract store of one space."""

    def __init__(self, reader: Reader, space: str, metrics: Metrics) -> None:
        self._reader, self._space = reader, space
        self._stream = streams.EPC.stream(space)
        outcomes = ("kept", "read", "missing", "invalid")
        self._reads = {how: metrics.counter("registry_artifacts", how) for how in outcomes}
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = self._commands = 0
        self._clusters: OrderedDict[tuple[str, int], Cluster] = OrderedDict()
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def document(self, digest: str) -> bytes | None:
        """The canonical bytes under a digest; None when nothing is stored there. Raises ContractInvalid for what is not
        its document, Unreadable."""
        if (kept := self._kept.get(digest)) is not None:
            self._kept.move_to_end(digest)
            self._reads["kept"].inc()
            return kept
        subject = planes.CONTRACT.build(space=self._space, digest=digest.removeprefix(_PREFIX))
        async with self._turns:
            row = await self._reader.direct(self._stream, subject)
        if row is None or row.marker:
            self._reads["missing"].inc()
            return None
        if not _genuine(digest, row.data):
            self._reads["invalid"].inc()
            raise ContractInvalid(digest, "is not the digest of what is stored under it")
        self._reads["read"].inc()
        self._keep(digest, row.data)
        return row.data

    def _keep(self, digest: str, data: bytes) -> None:
        if digest not in self._kept:
            self._kept[digest] = data
            self._bytes += len(data)
        while self._bytes > KEPT_BYTES:
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= len(dropped)

    async def cluster(self, closure: str, protocol: int) -> Cluster:
        """A cluster, its closure read and verified. Raises MissingArtifact, ContractInvalid, UnsupportedProtocol,
        Unreadable."""
        key = (closure, protocol)
        if (kept := self._clusters.get(key)) is not None:
            self._clusters.move_to_end(key)
            return kept
        have: dict[str, bytes] = {}
        while missing := needed(closure, have):
            for digest in missing:
                if (document := await self.document(digest)) is None:
                    raise MissingArtifact(digest)
                have[digest] = document
        found = load_cluster(closure, have, protocol)
        if key not in self._clusters:  # two may have read it at the same time
            self._clusters[key] = found
            self._commands += len(found.commands)
        while self._commands > KEPT_COMMANDS:
            _, dropped = self._clusters.popitem(last=False)
            self._commands -= len(dropped.commands)
        return found

    async def declares(self, clusters: Sequence[str], protocol: int) -> Declares:
        """What an instance with these clusters declares. Raises Unreadable alone: a bad instance fails no answer."""
        found: dict[str, Command] = {}
        try:
            for closure in clusters:
                for command in (await self.cluster(closure, protocol)).commands:
                    if command.name in found:
                        return Declares(State.INVALID, {}, f"two clusters declare {command.name}")
                    found[command.name] = command
        except MissingArtifact as error:
            return Declares(State.MISSING, {}, str(error))
        except (ContractInvalid, UnsupportedProtocol) as error:
            return Declares(State.INVALID, {}, str(error))
        return Declares(State.VERIFIED, found)


def _genuine(digest: str, data: bytes) -> bool:
    """Whether these are the canonical bytes of the document that a digest names (C13.7-27)."""
    if digest_of(data) != digest:
        return False
    try:
        return canonical_text(data, limit=MAX_DOCUMENT) == data
    except JsonError:
        return False
