"""Positional records and payloads by their rows: exact images, closed sets, payloads that fit their kinds."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.coordinator.wire import frames, records, results, terminal
from sidecar.coordinator.wire.digests import effect_digest_of, operation_digest_of, precondition_images
from sidecar.coordinator.wire.enums import (
    AdminKind,
    CommandKind,
    EffectKind,
    EffectState,
    ErrorCode,
    EventKind,
    FrameType,
    ObjectKind,
    ResultKind,
    Scope,
    SourceFactKind,
)
from sidecar.coordinator.wire.errors import CapabilityRequired, LocalProtocolError, MalformedMessage
from sidecar.coordinator.wire.events import EVENT_OBJECTS, decode_event_payload
from sidecar.coordinator.wire.ids import ObjectRevision, event_sequence, object_revision
from sidecar.coordinator.wire.images import Record
from sidecar.coordinator.wire.limits import MAX_RESOURCE_ID
from sidecar.coordinator.wire.payloads import (
    COMMANDS,
    AdminRecord,
    ChangeRetention,
    CreateObjective,
    decode_command,
    decode_record_payload,
)
from sidecar.coordinator.wire.records import Precondition, ReplayEvent, SnapshotRecord
from tests.oracles.wire import join, split
from tests.unit.wire.samples import (
    COMMAND_SAMPLES,
    FACT_SAMPLES,
    FRAME_SAMPLES,
    PAYLOAD_SAMPLES,
    RESULTS,
    fact,
    record,
    replay_event,
)
from tests.vectors import expected_images, expected_proofs
from tests.vectors import inputs as fix

WIDTHS: dict[type[Record], int] = {
    records.AuthorityGuard: 64,
    records.ActivationCertificate: 209,
    records.WorkloadOffer: 52,
    records.WorkloadGrant: 84,
    results.ObjectRef: 18,
    records.Precondition: 26,
    records.TerminalSourceRef: 72,
    records.SourceGap: 33,
    terminal.InputOutcome: 17,
    terminal.SignalOutcome: 17,
    terminal.OutputRange: 56,
}


@pytest.mark.req("P4-10", "P7-13", "P7-23", "P11-02", "P11-07", "P11-08", "P11-09", "P12-06", "W7-05")
def test_exact_widths() -> None:
    assert {kind: kind.CODEC.width for kind in WIDTHS} == {kind: (size, size) for kind, size in WIDTHS.items()}


@pytest.mark.req("P7-15", "P10-26", "P11-01", "P11-03")
def test_header_widths() -> None:
    assert SnapshotRecord.CODEC.width[0] == 32
    assert ReplayEvent.CODEC.width[0] == 58
    assert records.TerminalSourceFact.CODEC.width[0] == 80
    assert records.TerminalBindingRef.CODEC.width[0] == 84 + 5


@pytest.mark.req("P12-06", "P12-07")
def test_a_certificate_is_what_is_signed_and_its_signature() -> None:
    certificate = expected_proofs.certificate()
    image = certificate.encode()
    assert image[0] == 1
    assert certificate.body() == image[:145]
    assert certificate.signature == image[145:]
    assert certificate.guard() == fix.guard()
    for version in (0, 2):
        with pytest.raises(MalformedMessage):
            records.ActivationCertificate.decode(bytes([version]) + image[1:])


@pytest.mark.req("P7-13")
def test_references_and_preconditions() -> None:
    subject = fix.ref(ObjectKind.RUN, fix.RUN)
    assert subject.encode() == b"\x00\x02" + fix.RUN
    assert Precondition(subject, 0).encode() == subject.encode() + bytes(8)


@pytest.mark.req("P7-14")
@pytest.mark.parametrize("selector", ["01", "ff", "0000", ""])
def test_the_selector_is_one_zero_byte(selector: str) -> None:
    fields = split(FRAME_SAMPLES[FrameType.OPEN_SNAPSHOT].body())
    body = join([(key, bytes.fromhex(selector) if key == 3 else old) for key, old in fields])
    with pytest.raises(MalformedMessage):
        frames.OpenSnapshot.decode(body)


@pytest.mark.req("P7-15", "P7-20")
@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in ObjectKind])
def test_a_snapshot_record_is_header_and_payload(kind: ObjectKind) -> None:
    made = record(kind)
    payload = PAYLOAD_SAMPLES[kind].body()
    image = made.encode()
    assert image[:2] == kind.to_bytes(2, "big")
    assert image[18:28] == (3).to_bytes(8, "big") + b"\x00\x01"
    assert image[28:] == len(payload).to_bytes(4, "big") + payload
    assert made.encode() is image
    assert made.key() == image[:18] == made.ref().encode()
    assert SnapshotRecord.decode(image) == made
    assert decode_record_payload(kind, payload) == PAYLOAD_SAMPLES[kind]


def page(*items: SnapshotRecord | bytes) -> bytes:
    """Body of a SNAPSHOT_PAGE with these records, whatever their state."""
    images = [item if isinstance(item, bytes) else item.encode() for item in items]
    value = len(images).to_bytes(2, "big") + b"".join(images)
    return join(
        [(key, value if key == 5 else old) for key, old in split(FRAME_SAMPLES[FrameType.SNAPSHOT_PAGE].body())]
    )


@pytest.mark.req("P7-20", "P7-27")
@pytest.mark.parametrize(
    ("kind", "field", "image"),
    [
        (ObjectKind.OBJECTIVE, 3, b"\x03"),
        (ObjectKind.RUN, 3, b"\x06"),
        (ObjectKind.WORK_SESSION, 2, b"\x02"),
        (ObjectKind.BINDING, 2, b"\x02"),
        (ObjectKind.BINDING, 3, b"\x04"),
        (ObjectKind.SIGNAL, 2, b"\x00\x05"),
        (ObjectKind.SIGNAL, 2, b"\x00\x00"),
        (ObjectKind.SIGNAL, 3, b"\x04"),
        (ObjectKind.ADMIN, 1, b"\x00\x04"),
        (ObjectKind.OPERATION, 2, b"\x06"),
        (ObjectKind.OPERATION, 2, b"\x03\x03\x00"),
    ],
)
def test_a_page_with_a_value_outside_a_closed_set_is_refused(kind: ObjectKind, field: int, image: bytes) -> None:
    good = record(kind)
    assert frames.SnapshotPage.decode(page(good)).records == (good,)
    payload = join([(key, image if key == field else old) for key, old in split(good.payload)])
    bad = SnapshotRecord(good.kind, good.id, good.revision, 1, payload)
    with pytest.raises(MalformedMessage) as caught:
        frames.SnapshotPage.decode(page(record(ObjectKind.RUN), bad))
    assert caught.value.request_id == 7


@pytest.mark.req("P7-20", "P7-24")
@pytest.mark.parametrize("schema", [0, 2, 0xFFFF])
def test_records_events_and_facts_have_schema_1(schema: int) -> None:
    number = schema.to_bytes(2, "big")
    image = record(ObjectKind.RUN).encode()
    with pytest.raises(MalformedMessage):
        SnapshotRecord.decode(image[:26] + number + image[28:])
    event = expected_images.EVENT_10.encode()
    with pytest.raises(MalformedMessage):
        ReplayEvent.decode(event[:52] + number + event[54:])
    source = expected_images.FACT.encode()
    with pytest.raises(MalformedMessage):
        records.TerminalSourceFact.decode(source[:74] + number + source[76:])
    body = join([(key, number if key == 8 else old) for key, old in split(FRAME_SAMPLES[FrameType.COORD_EVENT].body())])
    with pytest.raises(MalformedMessage):
        frames.CoordEvent.decode(body)


@pytest.mark.req("P7-24", "P7-26")
@pytest.mark.parametrize("kind", [CommandKind.CREATE_OBJECTIVE, CommandKind.UPDATE_OBJECTIVE])
@pytest.mark.parametrize("schema", [0, 2])
def test_an_objective_of_another_schema_is_gated(kind: CommandKind, schema: int) -> None:
    body = COMMANDS[kind].build({"objective_id": fix.OBJECTIVE, "schema": schema, "document": b""}).body()
    with pytest.raises(CapabilityRequired) as caught:
        decode_command(kind, body)
    assert not caught.value.fatal


@pytest.mark.req("P7-26", "W1-05")
@pytest.mark.parametrize("kind", [0, 12, 255, 0xFFFF])
def test_an_unknown_command_kind_decodes_and_is_gated(kind: int) -> None:
    fields = split(FRAME_SAMPLES[FrameType.COORD_COMMAND].body())
    body = join([(key, kind.to_bytes(2, "big") if key == 4 else old) for key, old in fields])
    command = frames.CoordCommand.decode(body)
    assert command.command_kind == kind
    for attempt in (lambda: decode_command(kind, command.payload), lambda: operation_digest_of(command)):
        with pytest.raises(CapabilityRequired) as caught:
            attempt()
        assert not caught.value.fatal


@pytest.mark.req("P7-16")
@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in CommandKind])
def test_a_command_decodes_by_its_kind(kind: CommandKind) -> None:
    body = COMMAND_SAMPLES[kind]
    decoded = decode_command(kind, body.body())
    assert decoded == body
    for item in body.FIELDS:
        image = join([field for field in split(body.body()) if field[0] != item.id])
        if item.required:
            with pytest.raises(MalformedMessage):
                decode_command(kind, image)


@pytest.mark.req("P7-18")
def test_end_binding_reasons() -> None:
    for reason in range(4):
        assert decode_command(CommandKind.END_BINDING, join([(1, fix.BINDING), (2, bytes([reason]))]))
    with pytest.raises(MalformedMessage):
        decode_command(CommandKind.END_BINDING, join([(1, fix.BINDING), (2, b"\x04")]))


def test_a_shorter_retention_is_out_of_range() -> None:
    with pytest.raises(LocalProtocolError):
        ChangeRetention(operation_result_secs=2_591_999, event_bytes=0, artifact_bytes=0)


@pytest.mark.req("P7-19", "P8-11")
@pytest.mark.parametrize("result", [pytest.param(result, id=f"{at}") for at, result in enumerate(RESULTS)])
def test_operation_results_round_trip(result: results.OperationResult) -> None:
    image = results.encode_operation(result)
    assert image[0] == result.TAG
    assert results.decode_operation(image) == result
    with pytest.raises(MalformedMessage):
        results.decode_operation(image + b"\x00")


@pytest.mark.req("P7-19")
@pytest.mark.parametrize("result", [result for result in RESULTS if isinstance(result, results.Succeeded)])
def test_a_result_payload_is_exact(result: results.Succeeded) -> None:
    assert results.RESULT_PAYLOADS[result.result_kind].decode(result.payload) == result.content()
    for payload in (result.payload + b"\x00", result.payload[:-1]):
        if payload == result.payload:
            continue
        image = results.encode_operation(result)[:11] + len(payload).to_bytes(4, "big") + payload
        with pytest.raises(MalformedMessage):
            results.decode_operation(image)
        with pytest.raises(LocalProtocolError):
            results.Succeeded(event_sequence(1), result.result_kind, payload).encode()
    wrong = next(kind for kind in (ResultKind.STARTED, ResultKind.OBJECT_REF) if kind is not result.result_kind)
    with pytest.raises(LocalProtocolError):
        results.Succeeded(event_sequence(1), wrong, result.payload).encode()


@pytest.mark.req("P8-11")
@pytest.mark.parametrize("state", [0, 4, 5, 255])
def test_a_tombstone_is_of_a_final_state(state: int) -> None:
    for final in (1, 2, 3):
        assert results.decode_operation(b"\x04" + bytes(32) + bytes([final]))
    with pytest.raises(MalformedMessage):
        results.decode_operation(b"\x04" + bytes(32) + bytes([state]))


@pytest.mark.req("P8-11", "P13-02")
def test_a_rejection_has_a_known_code() -> None:
    image = results.Rejected(event_sequence(1), ErrorCode.NOT_FOUND, "").encode()
    for code in (0, 15, 254, 256):
        with pytest.raises(MalformedMessage):
            results.decode_operation(image[:9] + code.to_bytes(2, "big") + image[11:])


def coord_event(event: ReplayEvent) -> bytes:
    """Body of a COORD_EVENT with the parts of an event, whatever they are."""
    sample = dict(split(FRAME_SAMPLES[FrameType.COORD_EVENT].body()))
    image = event.encode()
    parts = {3: image[:8], 4: image[8:24], 5: image[24:26], 6: image[26:44], 7: image[44:52], 8: image[52:54]}
    return join([(1, sample[1]), (2, sample[2]), *parts.items(), (9, image[54:])])


def replay_page(event: ReplayEvent) -> bytes:
    value = b"\x00\x01" + event.encode()
    return join([(key, value if key == 5 else old) for key, old in split(FRAME_SAMPLES[FrameType.REPLAY_PAGE].body())])


def changed(event: ReplayEvent, **parts: Any) -> ReplayEvent:
    values = {name: getattr(event, name) for name, _ in event.COLUMNS}
    return ReplayEvent(**{**values, **parts})


def refuse_event(event: ReplayEvent) -> None:
    with pytest.raises(MalformedMessage):
        frames.CoordEvent.decode(coord_event(event))
    with pytest.raises(MalformedMessage):
        frames.ReplayPage.decode(replay_page(event))


ABOUT = [(kind, family) for kind in EventKind for family in sorted(EVENT_OBJECTS[kind])]


@pytest.mark.req("P7-21", "P7-22", "P7-23")
@pytest.mark.parametrize(("kind", "family"), ABOUT)
def test_an_event_is_about_its_payload(kind: EventKind, family: ObjectKind) -> None:
    event = replay_event(kind, family)
    decoded = frames.CoordEvent.decode(coord_event(event))
    content = decode_event_payload(kind, decoded.payload)
    assert content.encode() == event.payload
    assert frames.ReplayPage.decode(replay_page(event)).events == (event,)
    refuse_event(changed(event, object=fix.ref(family, b"\x0f" * 16)))
    refuse_event(changed(event, payload=event.payload + b"\x00"))
    refuse_event(changed(event, payload=event.payload[:-1]))
    refuse_event(changed(event, payload=b""))
    for other in ObjectKind:
        if other not in EVENT_OBJECTS[kind]:
            refuse_event(changed(event, object=fix.ref(other, event.object.id)))


@pytest.mark.req("P7-21")
@pytest.mark.parametrize(
    ("kind", "family"),
    [pair for pair in ABOUT if pair[0] not in (EventKind.SOURCE_FACT_ADMITTED, EventKind.SOURCE_GAP)],
)
def test_a_record_event_has_the_revision_of_its_record(kind: EventKind, family: ObjectKind) -> None:
    event = replay_event(kind, family)
    refuse_event(changed(event, object_revision=ObjectRevision(event.object_revision + 1)))
    refuse_event(changed(event, payload=event.payload + event.payload))
    refuse_event(changed(event, payload=expected_images.FACT.encode()))


@pytest.mark.req("P7-23")
@pytest.mark.parametrize("reason", [3, 255])
def test_a_source_gap_has_a_known_reason(reason: int) -> None:
    image = expected_images.GAP.encode()
    assert len(image) == 33
    with pytest.raises(MalformedMessage):
        records.SourceGap.decode(image[:-1] + bytes([reason]))


@pytest.mark.req("P11-05", "P11-06", "P11-07", "P11-08", "P11-09", "P11-10", "P11-03")
@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in SourceFactKind])
def test_fact_payloads_are_exact(kind: SourceFactKind) -> None:
    made = fact(kind, FACT_SAMPLES[kind])
    assert made.content() == FACT_SAMPLES[kind]
    image = made.encode()
    assert records.TerminalSourceFact.decode(image) == made
    for payload in (made.payload + b"\x00", made.payload[:-1]):
        if payload != made.payload:
            with pytest.raises(MalformedMessage):
                records.TerminalSourceFact.decode(image[:76] + len(payload).to_bytes(4, "big") + payload)


@pytest.mark.req("P11-10")
@pytest.mark.parametrize("value", [0, 4])
def test_attention_is_closed(value: int) -> None:
    with pytest.raises(MalformedMessage):
        terminal.AttentionRaised.decode(value.to_bytes(2, "big"))


@pytest.mark.req("P11-01", "P11-12")
def test_a_binding_holds_one_bounded_canonical_resource() -> None:
    image = fix.BINDING_REF.encode()
    head = image[:80]
    assert image[80:84] == (5).to_bytes(4, "big")
    for resource in (b"\x02\x00\x00\x00\x01", b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x01\x00", b""):
        with pytest.raises(MalformedMessage):
            records.TerminalBindingRef.decode(head + len(resource).to_bytes(4, "big") + resource)
    huge = b"\x01" + (MAX_RESOURCE_ID - 8).to_bytes(4, "big") + b"h" * (MAX_RESOURCE_ID - 8) + bytes(4)
    assert len(huge) == MAX_RESOURCE_ID + 1
    with pytest.raises(MalformedMessage):
        records.TerminalBindingRef.decode(head + len(huge).to_bytes(4, "big") + huge)


@pytest.mark.req("P8-20", "P8-21", "P8-22", "P8-23", "P8-27")
def test_effect_attempts_fit_their_kind() -> None:
    target = terminal.ActiveBinding(fix.BINDING_REF)
    spawn = expected_images.SPAWN_TARGET

    def attempt(kind: EffectKind, at: terminal.EffectTarget, payload: bytes) -> records.EffectAttempt:
        return records.EffectAttempt(fix.ATTEMPT, fix.OPERATION, kind, at, bytes(32), payload, EffectState.READY)

    kill = attempt(EffectKind.KILL, target, b"")
    signal = attempt(EffectKind.PROCESS_SIGNAL, target, b"\x01")
    for made in (kill, signal, attempt(EffectKind.SPAWN, spawn, expected_images.SPAWN_PAYLOAD.encode())):
        assert records.EffectAttempt.decode(made.encode()) == made
        assert made.content().encode() == made.payload
        assert len(effect_digest_of(made)) == 32
    assert effect_digest_of(kill) != effect_digest_of(signal)
    wrong = (
        attempt(EffectKind.KILL, spawn, b""),
        attempt(EffectKind.SPAWN, target, expected_images.SPAWN_PAYLOAD.encode()),
        attempt(EffectKind.KILL, target, b"\x00"),
        attempt(EffectKind.PROCESS_SIGNAL, target, b"\x03"),
        attempt(EffectKind.PROCESS_SIGNAL, target, b""),
        attempt(EffectKind.SPAWN, spawn, b""),
    )
    for made in wrong:
        with pytest.raises(LocalProtocolError):
            made.encode()
    image = kill.encode()
    for state in (5, 255):
        with pytest.raises(MalformedMessage):
            records.EffectAttempt.decode(image[:-1] + bytes([state]))
    for number in (0, 4):
        with pytest.raises(MalformedMessage):
            records.EffectAttempt.decode(image[:32] + bytes([number]) + image[33:])


PRECONDITIONS = (
    Precondition(fix.ref(ObjectKind.RUN, b"\x01" * 16), 1),
    Precondition(fix.ref(ObjectKind.OBJECTIVE, b"\x02" * 16), 2),
    Precondition(fix.ref(ObjectKind.OBJECTIVE, b"\x01" * 16), 3),
    Precondition(fix.ref(ObjectKind.ARTIFACT_MANIFEST, b"\x01" * 16), 0),
)


def built(preconditions: tuple[Precondition, ...]) -> frames.CoordCommand:
    sample = FRAME_SAMPLES[FrameType.COORD_COMMAND]
    values = {item.name: getattr(sample, item.name) for item in sample.FIELDS}
    return frames.CoordCommand.build({**values, "preconditions": preconditions})


@pytest.mark.req("P8-03", "P4-03")
def test_preconditions_are_written_sorted_by_object() -> None:
    image = built(PRECONDITIONS).raw("preconditions")
    keys = [image[2 + at * 26 : 20 + at * 26] for at in range(4)]
    assert image[:2] == b"\x00\x04"
    assert keys == sorted(keys)
    assert precondition_images(PRECONDITIONS) == image[2:]


@pytest.mark.req("P8-03", "P8-04")
def test_preconditions_in_any_order_mean_the_same() -> None:
    sample = split(built(()).body())
    image = b"\x00\x04" + b"".join(each.encode() for each in PRECONDITIONS)
    decoded = frames.CoordCommand.decode(join([*sample, (6, image)]))
    assert decoded.preconditions == PRECONDITIONS
    assert operation_digest_of(decoded) == operation_digest_of(built(PRECONDITIONS))


@pytest.mark.req("P8-04")
@pytest.mark.parametrize("revision", [1, 9])
def test_two_preconditions_of_one_object_are_malformed(revision: int) -> None:
    again = Precondition(PRECONDITIONS[0].object, revision)
    image = b"\x00\x05" + b"".join(each.encode() for each in (*PRECONDITIONS, again))
    with pytest.raises(MalformedMessage) as caught:
        frames.CoordCommand.decode(join([*split(built(()).body()), (6, image)]))
    assert caught.value.request_id == 7
    assert caught.value.fatal
    with pytest.raises(LocalProtocolError):
        built((*PRECONDITIONS, again))


@pytest.mark.req("P8-05")
def test_absent_and_empty_preconditions_mean_the_same() -> None:
    absent = built(())
    assert [key for key, _ in split(absent.body())] == [1, 2, 3, 4, 5]
    empty = frames.CoordCommand.decode(absent.body() + b"\x06\x04\x02\x00\x00")
    assert absent.preconditions == empty.preconditions == ()
    assert operation_digest_of(absent) == operation_digest_of(empty)
    assert operation_digest_of(absent).hex() == fix.VECTORS["OP-A digest"]


@pytest.mark.req("P8-08")
def test_payload_fields_in_any_order_mean_the_same() -> None:
    fields = split(expected_images.CREATE.body())
    assert CreateObjective.decode(join(fields[::-1])).body() == expected_images.CREATE.body()
    turned = expected_images.command(join(fields[::-1]))
    assert operation_digest_of(turned).hex() == fix.VECTORS["OP-A digest"]


@pytest.mark.req("P8-09")
def test_request_guard_and_operation_id_are_not_in_the_digest() -> None:
    other = frames.CoordCommand(
        request_id=99,
        authority_guard=records.AuthorityGuard.decode(b"\x01" * 64),
        operation_id=fix.OPERATION,
        command_kind=CommandKind.CREATE_OBJECTIVE,
        payload=expected_images.CREATE.body(),
    )
    assert operation_digest_of(other).hex() == fix.VECTORS["OP-A digest"]


def scope_image(field: bytes) -> bytes:
    sample = split(FRAME_SAMPLES[FrameType.WORKLOAD_RESPONSE].body())
    return join([(key, field if key == 2 else old) for key, old in sample])


@pytest.mark.req("P6-01", "P6-03", "W3-05")
@pytest.mark.parametrize("size", [0, 1, 7, 9, 32_769])
def test_scope_bytes_are_one_u64(size: int) -> None:
    content = bytes(size)
    with pytest.raises(MalformedMessage):
        frames.WorkloadResponse.decode(scope_image(size.to_bytes(4, "big") + content))
    for image in (bytes(8), b"\x00\x00\x00\x08" + bytes(9), b"\x00\x00\x00\x07" + bytes(8)):
        with pytest.raises(MalformedMessage):
            frames.WorkloadResponse.decode(scope_image(image))


@pytest.mark.req("P6-02", "P6-03")
@pytest.mark.parametrize("bits", [0x40, 0x80, 1 << 63, 0xFFFFFFFFFFFFFFFF, 0x7F])
def test_an_unknown_scope_bit_is_malformed(bits: int) -> None:
    with pytest.raises(MalformedMessage) as caught:
        frames.WorkloadResponse.decode(scope_image(b"\x00\x00\x00\x08" + bits.to_bytes(8, "big")))
    assert caught.value.fatal
    image = expected_proofs.grant().encode()
    with pytest.raises(MalformedMessage):
        records.WorkloadGrant.decode(image[:-8] + bits.to_bytes(8, "big"))


@pytest.mark.req("P6-01", "P6-04")
def test_every_allocated_scope_passes() -> None:
    for bits in (0, 1, 0x3F):
        decoded = frames.WorkloadResponse.decode(scope_image(b"\x00\x00\x00\x08" + bits.to_bytes(8, "big")))
        assert decoded.requested_scope_bytes == Scope(bits)
        assert decoded.raw("requested_scope_bytes") == b"\x00\x00\x00\x08" + bits.to_bytes(8, "big")


@pytest.mark.req("W7-05")
def test_an_offer_is_profile_and_nonce() -> None:
    image = expected_proofs.offer().encode()
    assert image == b"\x00\x00\x00\x10phux-workload/v1" + fix.CLIENT_NONCE
    for wrong in (image[:-1], image + b"\x00", image[:20] + bytes(32), image.replace(b"/v1", b"/v2"), image[4:]):
        with pytest.raises(MalformedMessage):
            records.WorkloadOffer.decode(wrong)


def test_admin_payloads_fit_their_kind() -> None:
    made = AdminRecord(admin_kind=AdminKind.RETENTION, payload=records.AdminRetention(2_592_000, 1, 2).encode())
    assert made.content() == records.AdminRetention(2_592_000, 1, 2)
    with pytest.raises(LocalProtocolError):
        AdminRecord(admin_kind=AdminKind.ACTIVATION, payload=made.payload)


@pytest.mark.req("P4-04")
def test_a_record_with_a_zero_revision_can_not_be_written() -> None:
    base = record(ObjectKind.OBJECTIVE)
    with pytest.raises(LocalProtocolError):
        SnapshotRecord(base.kind, base.id, ObjectRevision(0), 1, base.payload).encode()
    assert SnapshotRecord(base.kind, base.id, object_revision(1), 1, base.payload).encode()
