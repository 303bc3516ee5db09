"""Hypothesis strategies for every frame, payload and record, found by the name that a codec gives its image."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from hypothesis import strategies as st

from sidecar.coordinator.wire import enums, limits, records, results, terminal
from sidecar.coordinator.wire.enums import AdminKind, EventKind, ObjectKind, OperationTag, Scope
from sidecar.coordinator.wire.events import EVENT_OBJECTS
from sidecar.coordinator.wire.fields import Body
from sidecar.coordinator.wire.frames import CoordEvent
from sidecar.coordinator.wire.ids import ObjectId, ObjectRevision
from sidecar.coordinator.wire.images import Record
from sidecar.coordinator.wire.payloads import RECORD_PAYLOADS, AdminRecord
from sidecar.coordinator.wire.records import ReplayEvent

Values = st.SearchStrategy[Any]

U64 = (1 << 64) - 1
SMALL = 40
"""Longest generated content: images, not volume, are what is generated."""


def _nonzero(width: int) -> Values:
    return st.binary(min_size=width, max_size=width).filter(any)


PLAIN: dict[str, Values] = {
    "u8": st.integers(0, 255),
    "u16": st.integers(0, 0xFFFF),
    "u32": st.integers(0, 0xFFFFFFFF),
    "u64": st.integers(0, U64),
    "u64 s": st.integers(0, U64),
    "u64 cut": st.integers(0, U64),
    "u64 ≠ 0": st.integers(1, U64),
    "u32 ≠ 0": st.integers(1, 0xFFFFFFFF),
    "u16 = 1": st.just(1),
    "u8 = 0": st.just(0),
    f"u64 ≥ {limits.RETENTION_FLOOR}": st.integers(limits.RETENTION_FLOOR, U64),
    "i32": st.integers(-(1 << 31), (1 << 31) - 1),
    "bool": st.booleans(),
    "id16": _nonzero(16),
    "nonce32": _nonzero(32),
    "bytes32": st.binary(min_size=32, max_size=32),
    "bytes64": st.binary(min_size=64, max_size=64),
    "u64 Scope set": st.integers(0, 0x3F).map(Scope),
    "u8 OperationTag [1, 2, 3]": st.sampled_from(
        [OperationTag.SUCCEEDED, OperationTag.REJECTED, OperationTag.INDETERMINATE]
    ),
    f'"{limits.PROFILE.decode()}"': st.just(limits.PROFILE),
    f'"{limits.SERVICE.decode()}"': st.just(limits.SERVICE),
}
ENUMS = {
    value.__name__: value for value in vars(enums).values() if isinstance(value, type) and issubclass(value, IntEnum)
}
CLASSES: dict[str, type[Record]] = {
    value.__name__: value
    for module in (records, results, terminal)
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, Record) and value is not Record
}
UNIONS: dict[str, tuple[type[Record], ...]] = {
    "OperationResult": (
        results.Pending,
        results.Succeeded,
        results.Rejected,
        results.Indeterminate,
        results.Tombstoned,
        results.Unknown,
    ),
    "ResourceId": (terminal.LocalResource, terminal.SatelliteResource),
    "EffectTarget": (terminal.PendingSpawn, terminal.ActiveBinding),
}
HOSTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=SMALL)


def values_of(doc: str) -> Values:
    """Values of the image that a codec's documentation names."""
    if doc in PLAIN:
        return PLAIN[doc]
    if doc.startswith("bytes ≤ "):
        return st.binary(max_size=SMALL)
    if doc.startswith("str ≤ "):
        return st.text(st.characters(exclude_categories=["Cs"]), max_size=SMALL)
    if doc.startswith("u32 length ‖ "):
        return values_of(doc.removeprefix("u32 length ‖ "))
    if found := re.fullmatch(r"optional<(.*)>", doc):
        return st.none() | values_of(found[1])
    if found := re.fullmatch(r"list<(.*)> ≤ \d+", doc):
        return _lists(found[1])
    if doc in UNIONS:
        return st.one_of([records_of(kind) for kind in UNIONS[doc]])
    if doc in CLASSES:
        return records_of(CLASSES[doc])
    return st.sampled_from(list(ENUMS[doc.split()[1]]))


def _lists(element: str) -> Values:
    if element == "Precondition":
        by_object = st.lists(values_of(element), max_size=5, unique_by=records.Precondition.key)
        return by_object.map(lambda found: tuple(sorted(found, key=records.Precondition.key)))
    return st.lists(values_of(element), max_size=3).map(tuple)


def _columns(kind: type[Record]) -> dict[str, Values]:
    return {name: values_of(codec.doc) for name, codec in kind.COLUMNS}


def records_of(kind: type[Record]) -> Values:
    """Records of a class; payloads fit their kinds."""
    special = SPECIAL.get(kind)
    if special is not None:
        return special()
    columns = _columns(kind)
    if kind is terminal.SatelliteResource:
        columns["host"] = HOSTS
    return st.builds(kind, **columns)


def bodies_of(shape: type[Body]) -> Values:
    """Frames and payloads of a class, with and without their optional fields."""
    if shape is CoordEvent:
        return _coord_events()
    fields: dict[str, Values] = {}
    for item in shape.FIELDS:
        values = values_of(item.codec.doc)
        fields[item.name] = values if item.required else st.just(item.default) | values
    if shape is AdminRecord:
        return st.sampled_from(list(AdminKind)).flatmap(_admin)
    return st.fixed_dictionaries(fields).map(shape.build)


def _admin(kind: AdminKind) -> Values:
    content = records_of(records.ADMIN_PAYLOADS[kind])
    return content.map(lambda found: AdminRecord(admin_kind=kind, payload=found.encode()))


def _succeeded() -> Values:
    content = st.one_of([records_of(kind) for kind in results.RESULT_PAYLOADS.values()])
    return st.builds(results.succeeded, PLAIN["u64 ≠ 0"], content)


def _facts() -> Values:
    def of(kind: enums.SourceFactKind) -> Values:
        payload = records_of(terminal.FACT_PAYLOADS[kind]).map(lambda found: found.encode())
        source = records_of(terminal.TerminalSourceRef)
        return st.builds(terminal.TerminalSourceFact, source, st.just(kind), st.just(1), payload)

    return st.sampled_from(list(enums.SourceFactKind)).flatmap(of)


def _attempts() -> Values:
    def of(kind: enums.EffectKind) -> Values:
        columns = _columns(terminal.EffectAttempt)
        columns["kind"] = st.just(kind)
        columns["target"] = records_of(terminal.EFFECT_TARGETS[kind])
        columns["payload"] = records_of(terminal.EFFECT_PAYLOADS[kind]).map(lambda found: found.encode())
        return st.builds(terminal.EffectAttempt, **columns)

    return st.sampled_from(list(enums.EffectKind)).flatmap(of)


def _snapshot_records(kind: ObjectKind | None = None) -> Values:
    def of(family: ObjectKind) -> Values:
        payload = bodies_of(RECORD_PAYLOADS[family]).map(lambda found: found.body())
        return st.builds(records.SnapshotRecord, st.just(family), PLAIN["id16"], PLAIN["u64 ≠ 0"], st.just(1), payload)

    return st.sampled_from(list(ObjectKind)).flatmap(of) if kind is None else of(kind)


def _replay_events() -> Values:
    def of(about: tuple[EventKind, ObjectKind]) -> Values:
        kind, family = about
        if kind is EventKind.SOURCE_FACT_ADMITTED:
            content = _facts()
        elif kind is EventKind.SOURCE_GAP:
            content = records_of(terminal.SourceGap)
        else:
            content = _snapshot_records(family)
        return st.builds(_event, st.just(kind), content, PLAIN["u64 ≠ 0"], PLAIN["id16"], PLAIN["u64 ≠ 0"])

    pairs = [(kind, family) for kind in EventKind for family in sorted(EVENT_OBJECTS[kind])]
    return st.sampled_from(pairs).flatmap(of)


def _event(kind: EventKind, content: Any, sequence: Any, identity: Any, revision: int) -> ReplayEvent:
    if isinstance(content, records.SnapshotRecord):
        subject, at = content.ref(), content.revision
    else:
        binding = content.source.binding_id if isinstance(content, terminal.TerminalSourceFact) else content.binding_id
        subject, at = records.ObjectRef(ObjectKind.BINDING, ObjectId(binding)), ObjectRevision(revision)
    return ReplayEvent(sequence, identity, kind, subject, at, 1, content.encode())


def _coord_events() -> Values:
    def build(event: ReplayEvent, subscription: Any, delivery: Any) -> CoordEvent:
        shared = {column.name: getattr(event, column.name) for column in dataclasses.fields(event) if column.init}
        return CoordEvent.build({**shared, "subscription_id": subscription, "delivery_sequence": delivery})

    return st.builds(build, _replay_events(), PLAIN["id16"], PLAIN["u64 ≠ 0"])


SPECIAL: dict[type[Record], Callable[[], Values]] = {
    results.Succeeded: _succeeded,
    terminal.TerminalSourceFact: _facts,
    terminal.EffectAttempt: _attempts,
    records.SnapshotRecord: _snapshot_records,
    records.ReplayEvent: _replay_events,
}


def plain(value: Any) -> Any:
    """A value as the oracle gives it: numbers, bytes, text and tuples."""
    if isinstance(value, Record):
        parts = tuple(plain(getattr(value, name)) for name, _ in value.COLUMNS)
        return (value.TAG, *parts) if value.TAG is not None else parts
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    return int(value) if isinstance(value, int) else value
