"""The release of a serving credential, fenced by the gate (C13.1-074).

The row is written first and the gate is compared and set to itself after: a freeze that came in between makes that
fail, and one that comes later finds the row. Only what won is released.
"""

from __future__ import annotations

import contextlib

from nats.aio.client import Client

from sidecar.rails.names import buckets
from sidecar.rails.names.principals import Lifecycle
from sidecar.rails.planes.registration.barrier import gate_of, row_of
from sidecar.rails.planes.registration.cells import read_cell, write_cell
from sidecar.rails.planes.registration.faults import Conflict, Superseded
from sidecar.rails.planes.registration.gates import CredentialRow, Gate, RowState
from sidecar.rails.planes.registration.naming import Place


async def release(
    registrar: Client, place: Place, lifecycle: Lifecycle, user: str, epoch: int, expires: int, now: int
) -> Gate:
    """Enter a credential of ``user`` that ends at ``expires`` (Unix seconds) and prove that it may be handed out at
    ``epoch``; the gate that proved it. A credential that is minted anew keeps its row.

    Raises Superseded when the gate is not open at that epoch for this lifecycle, or the credential is revoked; Corrupt;
    Conflict when others keep moving the gate; BrokerRefused; nats.errors.Error. Then nothing may be released.
    """
    cell = await read_cell(registrar, buckets.AUTH, place.space, place.gate)
    gate = None if cell.value is None else gate_of(cell.value, place.gate)
    if gate is None or not gate.mintable or gate.process_epoch != epoch or gate.principal != lifecycle.principal:
        raise Superseded(f"instance {place.instance} is not open at epoch {epoch}")
    row = CredentialRow(place.endpoint, user, lifecycle.principal, lifecycle.uid, RowState.ACTIVE, expires)
    await _enter(registrar, place, row, now)
    try:
        await write_cell(registrar, place.gate, gate.encode(), cell.revision)
    except Conflict:
        await withdraw(registrar, place, user, now)
        raise Superseded(f"the gate of instance {place.instance} moved while a credential was made") from None
    return gate


async def _enter(registrar: Client, place: Place, row: CredentialRow, now: int) -> None:
    subject = place.credential(row.credential_id)
    cell = await read_cell(registrar, buckets.AUTH, place.space, subject)
    if cell.value is not None and row_of(cell.value, subject).state is RowState.REVOKED:
        raise Superseded("the credential is revoked")
    try:
        await _write(registrar, subject, row, cell.revision, now)
    except Conflict:
        raise Superseded("the credential was changed by somebody else") from None


async def withdraw(registrar: Client, place: Place, user: str, now: int) -> int | None:
    """Mark the row of a credential revoked that nobody has, or has any more; its Unix end, and None when there is no
    row. Whoever moved the gate meanwhile has found it. Raises Corrupt, BrokerRefused, nats.errors.Error."""
    subject = place.credential(user)
    cell = await read_cell(registrar, buckets.AUTH, place.space, subject)
    if cell.value is None:
        return None
    row = row_of(cell.value, subject)
    if row.state is RowState.ACTIVE:
        with contextlib.suppress(Conflict):  # revoked by the one who froze
            await _write(registrar, subject, row.revoked(), cell.revision, now)
    return row.expires


async def _write(registrar: Client, subject: str, row: CredentialRow, revision: int, now: int) -> None:
    """The row lives no longer than its credential (C13.12-20)."""
    await write_cell(registrar, subject, row.encode(), revision, ttl=row.left(now))
