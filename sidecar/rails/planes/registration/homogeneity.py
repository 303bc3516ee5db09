"""Whether a surface may join the class of an endpoint: every instance that is registered must fit to it (C13.7-72)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from nats.aio.client import Client

from sidecar.base.strictjson import JsonError, parse
from sidecar.rails.endpoint.artifacts import ContractInvalid, MissingArtifact
from sidecar.rails.endpoint.clusters import PROTOCOLS, Surface, compatibility, load_cluster, needed
from sidecar.rails.endpoint.codes import Code
from sidecar.rails.endpoint.service_record import ServiceSpec, read_spec
from sidecar.rails.names import buckets
from sidecar.rails.planes.registration.faults import Corrupt, RegistrationRefused
from sidecar.rails.planes.registration.naming import Place
from sidecar.rails.planes.registration.publisher import read_artifact
from sidecar.rails.space.keys import read_key
from sidecar.rails.space.retire import subjects_of

MAX_SPEC_BYTES: Final = 64 * 1024
AT_ONCE: Final = 64
"""Records that are read at the same time."""
Form = tuple[tuple[str, ...], int]
"""What instances of one generation have in common: cluster digests in order, and the protocol version."""


class MixedContracts(RegistrationRefused):
    """The surface contradicts one that an instance of the endpoint is registered with."""

    code = Code.CONTRACT_MISMATCH


async def registered(registrar: Client, place: Place) -> dict[str, ServiceSpec]:
    """The specs of every registered instance of the endpoint. Raises Corrupt, BrokerRefused, nats.errors.Error."""
    stream = buckets.RECORDS.stream(place.space)
    subjects = sorted(await subjects_of(registrar, stream, place.specs))
    found = {}
    for at in range(0, len(subjects), AT_ONCE):
        some = subjects[at : at + AT_ONCE]
        # Those that are deregistered have left a marker each, so that there may be many to look at.
        for subject, kept in zip(
            some, await asyncio.gather(*(read_key(registrar, stream, one) for one in some)), strict=True
        ):
            if kept.value is not None:
                instance = buckets.RECORDS.parse(place.space, buckets.RECORD_SERVICE, subject)["instance"]
                found[instance] = spec_of(kept.value, subject)
    return found


def spec_of(data: bytes, subject: str) -> ServiceSpec:
    """The spec in stored bytes. Raises Corrupt: only the registration path writes it."""
    try:
        return read_spec(parse(data, limit=MAX_SPEC_BYTES, safe_integers=True))
    except (JsonError, ValueError) as error:
        raise Corrupt(f"{subject} is no service record: {error}") from None


async def check_forms(publisher: Client, space: str, surface: Surface, others: Iterable[Form]) -> None:
    """That a surface and each other generation of its class can serve together: one of the two only adds to the other.
    Raises MixedContracts, Corrupt for a generation that cannot be read, nats.errors.Error."""
    for digests, protocol in dict.fromkeys(others):
        if digests == surface.digests:
            continue
        other = await _surface(publisher, space, digests, protocol)
        faults = compatibility(other, surface)
        if faults and compatibility(surface, other):
            raise MixedContracts(
                f"another generation is registered: {faults[0]}; register this one under another name, or a new version"
            )


async def _surface(publisher: Client, space: str, digests: tuple[str, ...], protocol: int) -> Surface:
    if protocol not in PROTOCOLS:
        raise Corrupt(f"an instance is registered under protocol {protocol}, which is not implemented")
    documents: dict[str, bytes] = {}
    try:
        for digest in digests:
            while missing := needed(digest, documents):
                for one in missing:
                    stored = await read_artifact(publisher, space, one)
                    if stored is None:
                        raise MissingArtifact(one)
                    documents[one] = stored
        return Surface(tuple(load_cluster(digest, documents, protocol) for digest in digests), protocol)
    except (ContractInvalid, MissingArtifact) as error:
        raise Corrupt(f"the contract of a registered instance cannot be read: {error}") from None
