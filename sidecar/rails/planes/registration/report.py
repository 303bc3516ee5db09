"""The serving side of its own record: an instance reports its status, and the record writer writes it (C13.9-M24)."""

from __future__ import annotations

from sidecar.rails.connection import Connection
from sidecar.rails.connection.publishing import store
from sidecar.rails.endpoint.identity import Identity
from sidecar.rails.names import planes
from sidecar.rails.planes.registration.naming import SERVICE_KIND
from sidecar.rails.planes.registration.record_status import Report


async def report_status(
    connection: Connection, identity: Identity, state: str, *, observed: int | None = None, note: str = ""
) -> int:
    """Report a status; the sequence at which the broker holds it. It is written by the record writer after that, unless
    the epoch has ended meanwhile. ``observed`` is the spec revision that the instance acts by, by default that of its
    own registration.

    Raises WriteRefused for a state that no instance reports, and what ``store`` raises.
    """
    token = identity.token
    subject = planes.RECORD_WRITE.build(
        space=identity.space,
        endpoint=token,
        instance=identity.instance,
        epoch=identity.epoch,
        kind=SERVICE_KIND,
        qualifier=f"{token}.{identity.instance}",
    )
    return (await store(connection, subject, Report(state, observed, note=note).encode())).sequence
