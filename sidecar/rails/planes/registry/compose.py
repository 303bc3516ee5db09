"""The registry as an endpoint: its two clusters, and a description that everybody may read (C13.20-01, -02)."""

from __future__ import annotations

from collections.abc import Mapping

from sidecar.rails.endpoint.app import Endpoint
from sidecar.rails.endpoint.call import Handler
from sidecar.rails.endpoint.registry_contracts import (
    LISTING,
    LISTING_CLUSTER,
    PROTOCOL,
    RECORDS,
    RECORDS_CLUSTER,
    REGISTRY_ENDPOINT,
)


def registry_endpoint(handlers: Mapping[str, Handler]) -> Endpoint:
    """The endpoint that answers with these handlers, one for each command of its contracts."""
    made = Endpoint(REGISTRY_ENDPOINT, protocol=PROTOCOL, public=True)
    for cluster, contracts in ((LISTING_CLUSTER, LISTING), (RECORDS_CLUSTER, RECORDS)):
        for name, contract in contracts.items():
            declare = made.command(
                name,
                input=contract.input,
                output=contract.output,
                effect="read",
                capability=contract.capability or None,
                waits=contract.waits,
                cluster=cluster,
            )
            declare(handlers[name])
    return made
