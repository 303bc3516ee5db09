"""The end of a registration, and of an instance. Both run behind the same freeze as a registration does."""

from __future__ import annotations

from sidecar.rails.names import buckets
from sidecar.rails.planes.registration.barrier import Barrier, Standing
from sidecar.rails.planes.registration.cells import mark_deleted
from sidecar.rails.planes.registration.faults import Conflict, Corrupt
from sidecar.rails.planes.registration.gates import GateState, Intent
from sidecar.rails.planes.registration.heads import begin_end, finish_end
from sidecar.rails.space.keys import read_key


async def deregister(barrier: Barrier, now: int) -> bool:
    """Void the credentials of an instance and delete its record, status first; its gate stays, so that a later
    registration counts on (C13.7-63). False when there was nothing to do.

    Raises Unverified (the gate stays frozen), Conflict, Denied, Corrupt, BrokerRefused, nats.errors.Error.
    """
    standing = await _looked(barrier, now)
    if standing is None or standing.gate.state is GateState.RETIRED:
        return False
    standing = await barrier.freeze(Intent.REGISTRATION, now)
    assert standing.gate.op is not None
    await barrier.contain(now)
    found = await _remove_record(barrier)
    await barrier.reopen(standing, standing.gate.reopened(standing.gate.op))
    barrier.done()
    return found


async def retire(barrier: Barrier, now: int) -> bool:
    """End an instance for good: its id never comes back (C13.1-084). False when it was retired before.

    The lifecycle yields no epoch from the freeze on, and is retired after its gate (C13.1-093 R1..R4, R11, R12).
    Raises as :func:`deregister`.
    """
    standing = await _looked(barrier, now)
    if standing is None:
        return False
    if standing.gate.state is GateState.RETIRED:
        assert standing.gate.op is not None
        await finish_end(barrier.doors.heads, barrier.place.space, barrier.lifecycle, standing.gate.op.id)
        barrier.done()
        return False
    standing = await barrier.freeze(Intent.RETIREMENT, now)
    op = standing.gate.op
    assert op is not None
    await begin_end(barrier.doors.heads, barrier.place.space, barrier.lifecycle, op.id)
    await barrier.contain(now)
    await _remove_record(barrier)
    await barrier.reopen(standing, standing.gate.retired(op))
    await finish_end(barrier.doors.heads, barrier.place.space, barrier.lifecycle, op.id)
    barrier.done()
    return True


async def _looked(barrier: Barrier, now: int) -> Standing | None:
    """The gate. Behind one that cannot be read nothing is released any more; what was is void when this says so: an
    instance that spoilt its own gate stays no longer for it. Raises Corrupt, Unverified, Denied."""
    try:
        return await barrier.look()
    except Corrupt:
        await barrier.contain(now)
        raise


async def _remove_record(barrier: Barrier) -> bool:
    """Delete status, then spec, each at the revision that was read (C13.7-83)."""
    stream, place = buckets.RECORDS.stream(barrier.place.space), barrier.place
    removed = False
    for subject in (place.status, place.spec):
        for attempt in range(4):
            kept = await read_key(barrier.doors.registrar, stream, subject)
            if kept.value is None:
                break
            try:
                await mark_deleted(barrier.doors.registrar, subject, kept.revision)
            except Conflict:
                if attempt == 3:
                    raise
                continue  # a status that was on its way to the record writer
            removed = True
            break
    return removed
