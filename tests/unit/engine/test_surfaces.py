"""One predicate, five surfaces: what a connection sees in one it sees in all of them (P6-09).

The expectation is table P6-t1 as ``test_visibility`` writes it down, applied to states with every family. ADMIN has no
event kind, so that live streams and replays have nothing of it to show.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.coordinator.engine.commands import record_of
from sidecar.coordinator.engine.state import Entry, Operation, Record, State
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire import payloads as pl
from sidecar.coordinator.wire.enums import Capability, ErrorCode, ObjectKind, Scope
from sidecar.coordinator.wire.ids import ObjectId
from sidecar.coordinator.wire.limits import LEASE_SECONDS
from sidecar.coordinator.wire.records import ObjectRef, Precondition, SnapshotRecord, Succeeded, Unknown
from tests.unit.engine.harness import Client, World, id16
from tests.unit.engine.replays import Replay, open_replay
from tests.unit.engine.test_visibility import EVENT_OF, OWNER, STRANGER, event, operation, payloads

Ref = tuple[int, bytes]
_ANY = Scope.WORK_READ | Scope.WORK_COMMAND | Scope.ADMIN
_NEEDS: dict[ObjectKind, tuple[Scope, Capability]] = {
    ObjectKind.OBJECTIVE: (Scope.WORK_READ, Capability(0)),
    ObjectKind.RUN: (Scope.WORK_READ, Capability(0)),
    ObjectKind.WORK_SESSION: (Scope.WORK_READ, Capability(0)),
    ObjectKind.BINDING: (Scope.WORK_READ, Capability.TERMINAL_BINDINGS),
    ObjectKind.ARTIFACT: (Scope.WORK_READ, Capability(0)),
    ObjectKind.ARTIFACT_MANIFEST: (Scope.ARTIFACT_READ, Capability.ARTIFACT_MANIFESTS),
    ObjectKind.EVIDENCE: (Scope.ARTIFACT_READ, Capability.ARTIFACT_MANIFESTS),
    ObjectKind.SIGNAL: (Scope.WORK_READ, Capability.SIGNALS),
    ObjectKind.ADMIN: (Scope.ADMIN, Capability.ADMINISTRATION),
}
"""Table P6-t1, written down once more."""


class Viewer(NamedTuple):
    """A random authority."""

    principal: int
    scopes: int
    capabilities: int

    def sees(self, entry: Entry) -> bool:
        if isinstance(entry, Operation):
            own = entry.principal[0] == self.principal and self.scopes & (Scope.WORK_READ | Scope.WORK_COMMAND)
            return bool(own or self.scopes & Scope.ADMIN)
        scope, capability = _NEEDS[ObjectKind(entry.kind)]
        return bool(self.scopes & scope) and not capability & ~self.capabilities


viewers = st.builds(Viewer, st.sampled_from((OWNER, STRANGER, 3)), st.integers(1, 0x3F), st.integers(0, 0x1F))


@st.composite
def entries(draw: st.DrawFn) -> list[Entry]:
    """Up to three objects of every family and up to three operations of each of two principals, in any order."""
    found: list[Entry] = []
    for kind, payload in payloads().items():
        found += [record_of(kind, id16(10 * kind + at), 1, payload) for at in range(draw(st.integers(0, 3)))]
    for principal in (OWNER, STRANGER):
        found += [operation(200 + 10 * principal + at, principal) for at in range(draw(st.integers(0, 3)))]
    return draw(st.permutations(found))


def refs(found: Iterable[Entry]) -> set[Ref]:
    return {(entry.kind, entry.id) for entry in found}


def world_of(held: list[Entry]) -> World:
    """Every object with its first event, except ADMIN."""
    told = [event(at, entry) for at, entry in enumerate((e for e in held if e.kind != ObjectKind.ADMIN), 1)]
    records = [entry for entry in held if isinstance(entry, Record)]
    operations = [entry for entry in held if isinstance(entry, Operation)]
    return World(state=State.build(records, operations, told, len(told)))


def change_all(world: World, held: list[Entry]) -> list[Entry]:
    """The second revision of every object as one batch: what commands, owners and recovery will make of them."""
    transactions = world.engine._transactions
    group = transactions._open_group()
    changed: list[Entry] = []
    for entry in held:
        payload = pl.decode_record_payload(ObjectKind(entry.kind), SnapshotRecord.decode(entry.image).payload)
        image = record_of(ObjectKind(entry.kind), entry.id, 2, payload).image
        changed.append(entry._replace(revision=2, image=image))
        if entry.kind == ObjectKind.ADMIN:
            transactions._keep(group, changed[-1])
        else:
            transactions._put(group, changed[-1], EVENT_OF[ObjectKind(entry.kind)])
    transactions._close_transaction(group)
    world.commit()
    return changed


def told(found: Iterable[fr.CoordEvent]) -> list[tuple[int, Ref, int]]:
    return [(e.event_sequence, (e.object.kind, e.object.id), int(e.object_revision)) for e in found]


def check_lookups(client: Client, viewer: Viewer, held: list[Entry]) -> None:
    """GET_OPERATION_RESULT: invisible is as absent, and neither is told to who may see no operation at all."""
    stored = {entry.id: entry for entry in held if isinstance(entry, Operation)}
    for wanted in [*stored, id16(999)]:
        frame = client.lookup(wanted)
        if not viewer.scopes & _ANY:
            client.refused(frame, ErrorCode.NOT_FOUND)
            continue
        found = client.one(frame, fr.OperationResultFrame).operation
        visible = wanted in stored and viewer.sees(stored[wanted])
        assert isinstance(found, Succeeded if visible else Unknown)


def check_preconditions(client: Client, viewer: Viewer, held: list[Entry]) -> None:
    """A command sees the revision of a visible object, and 0 of any other (OPEN P8-d)."""
    number = itertools.count(5_000)
    for entry in held:
        ref = ObjectRef(ObjectKind(entry.kind), ObjectId(entry.id))
        true = entry.revision if viewer.sees(entry) else 0
        for expected in (0, 1, 2):
            frame = client.create(next(number), preconditions=[Precondition(ref, expected)])
            if not viewer.scopes & Scope.WORK_COMMAND:
                client.refused(frame, ErrorCode.SCOPE_DENIED)
            elif expected == true:
                assert isinstance(client.done(frame).operation, Succeeded)
            else:
                client.refused(frame, ErrorCode.REVISION_CONFLICT)


def check_repeats(world: World, client: Client, viewer: Viewer) -> None:
    """COORD_COMMAND_RESULT of a stored operation: its principal must still be allowed to see it (P6-15)."""
    first = world.connect(viewer.principal, scopes=Scope.WORK_COMMAND)
    frame = first.create(9_000)
    expected = first.done(frame).operation
    again = client.create(9_000, operation=frame.operation_id)
    if viewer.scopes & _ANY:
        assert client.done(again).operation == expected
    else:
        client.refused(again, ErrorCode.NOT_FOUND)


@pytest.mark.req("P6-09", "P6-10", "P6-11", "P6-12", "P6-13", "P6-14", "P6-15", "P6-16", "P6-17", "P5-18", "P14-10")
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(held=entries(), viewer=viewers)
def test_five_surfaces_agree(held: list[Entry], viewer: Viewer) -> None:
    world = world_of(held)
    client = world.connect(viewer.principal, scopes=viewer.scopes, capabilities=viewer.capabilities)
    visible = [entry for entry in held if viewer.sees(entry)]
    streamed = refs(entry for entry in visible if entry.kind != ObjectKind.ADMIN)

    snapshot = client.snapshot(reserve=True)
    assert {(record.kind, record.id) for record in snapshot} == refs(visible)
    client.live(0)
    history = told(client.events())
    assert {ref for _, ref, _ in history} == streamed

    # The reservation lapses, then every object changes once: the live stream and the replay both tell of it.
    world.advance(LEASE_SECONDS)
    client.pull()
    paused = snapshot.begin.subscription_id
    assert paused is not None
    assert [gap.subscription_id for gap in client.gaps()] == [paused]
    changed = change_all(world, held)
    client.pull()
    live = told(client.events())[len(history) :]
    assert {(ref, revision) for _, ref, revision in live} == {(ref, 2) for ref in streamed}

    base = snapshot.begin.base_event_sequence
    if viewer.capabilities & Capability.EVENT_REPLAY:
        replay = Replay(client, paused, base)
        replayed = [(e.event_sequence, (e.object.kind, e.object.id), int(e.object_revision)) for e in replay.events]
        assert replayed == live
    else:
        client.refused(open_replay(client, paused, base), ErrorCode.CAPABILITY_REQUIRED)
    fresh = client.snapshot()
    assert {(record.kind, record.id, int(record.revision)) for record in fresh} == {
        (kind, id_, 2) for kind, id_ in refs(visible)
    }
    check_lookups(client, viewer, changed)
    check_repeats(world, client, viewer)
    check_preconditions(client, viewer, changed)
