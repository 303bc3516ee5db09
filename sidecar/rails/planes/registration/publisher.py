"""The contract publisher: artifacts of a closure are created once under their digest, and never changed (C13.7-34).

Its connection may create on the contract stream and read it back, and nothing else (C13.9-M22). What is there already
is read and compared: other bytes under a digest are a fault that no registration passes over.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from typing import Final

import nats.errors
from nats.aio.client import Client

from sidecar.base.strictjson import JsonError, canonical_text
from sidecar.rails.endpoint.codes import Code
from sidecar.rails.names import api, headers, planes, streams
from sidecar.rails.planes.registration.faults import RegistrationRefused
from sidecar.rails.space.asking import SECONDS, BrokerRefused, ask

PREFIX: Final = "sha256:"
MAX_ARTIFACTS: Final = 4_096
"""Artifacts of one registration: 64 clusters, each with closures of at most 64 documents for its schemas."""
HEADROOM: Final = 512
"""Bytes that the headers of a publish may take beside an artifact."""
_AT_ONCE: Final = 16
_WRONG_LAST: Final = 10071
_NOT_FOUND: Final = "404"


class ArtifactClash(RegistrationRefused):
    """An artifact that is not what its digest says, in hand or in the store (C13.7-36)."""


class ArtifactTooLarge(RegistrationRefused):
    """An artifact that fits into no message of this broker."""

    code = Code.RESOURCE_EXHAUSTED


async def publish(client: Client, space: str, artifacts: Mapping[str, bytes]) -> int:
    """Create every artifact that is missing; how many were created. ``artifacts`` maps digests to canonical bytes.

    All of them are checked before the first one is written. Raises ArtifactClash, ArtifactTooLarge, BrokerRefused,
    nats.errors.Error; after an error some may stand, and the call is made again.
    """
    check_artifacts(artifacts, client.max_payload)
    created = 0
    wanted = list(artifacts.items())
    for at in range(0, len(wanted), _AT_ONCE):
        batch = wanted[at : at + _AT_ONCE]
        # Each is awaited, whatever another one comes to: nothing is written behind a call that has failed.
        results = await asyncio.gather(*(_create(client, space, *one) for one in batch), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
            created += result
    return created


def check_artifacts(artifacts: Mapping[str, bytes], most: int) -> None:
    """That each document is its digest's and fits into a message of ``most`` bytes. Raises ArtifactClash,
    ArtifactTooLarge."""
    if len(artifacts) > MAX_ARTIFACTS:
        raise ArtifactTooLarge(f"{len(artifacts)} artifacts are more than {MAX_ARTIFACTS}")
    for digest, document in artifacts.items():
        if len(document) > most - HEADROOM:
            raise ArtifactTooLarge(f"{digest} has {len(document)} bytes; a message of this broker holds {most}")
        if not genuine(digest, document):
            raise ArtifactClash(f"{digest} is not the digest of its document")


def genuine(digest: str, document: bytes) -> bool:
    """Whether these are the canonical bytes of the document that a digest names (C13.7-27, OPEN C13.7-d)."""
    if PREFIX + hashlib.sha256(document).hexdigest() != digest:
        return False
    try:
        return canonical_text(document, limit=max(len(document), 1)) == document
    except JsonError:
        return False


async def _create(client: Client, space: str, digest: str, document: bytes) -> bool:
    subject = planes.CONTRACT.build(space=space, digest=digest.removeprefix(PREFIX))
    try:
        await ask(client, subject, document, headers={headers.EXPECTED_LAST_SEQUENCE: "0"})
    except BrokerRefused as error:
        if error.code != _WRONG_LAST:
            raise
    else:
        return True
    if await read_artifact(client, space, digest) != document:
        raise ArtifactClash(f"another document stands under {digest}; nothing was overwritten")
    return False


async def read_artifact(client: Client, space: str, digest: str, *, seconds: float = SECONDS) -> bytes | None:
    """The stored bytes under a digest, verified; None when there are none (C13.7-35, C13.7-36). An artifact never
    changes, so that any replica may serve it. Raises ArtifactClash, nats.errors.Error."""
    subject = planes.CONTRACT.build(space=space, digest=digest.removeprefix(PREFIX))
    request = api.DIRECT_GET_LAST.build(stream=streams.EPC.stream(space), filter=subject)
    reply = await client.request(request, b"", timeout=seconds)
    said = reply.headers or {}
    if said.get(headers.STATUS) == _NOT_FOUND:
        return None
    if said.get(headers.SUBJECT) != subject or headers.STATUS in said:
        raise nats.errors.Error(f"the broker did not answer what stands on {subject}")
    if not genuine(digest, reply.data):
        raise ArtifactClash(f"what stands under {digest} is not its document")
    return bytes(reply.data)
