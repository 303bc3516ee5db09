"""Positional records and record payloads by their rows: exact images, closed sets, payloads that fit."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.coordinator.wire import frames, records, results, terminal
from sidecar.coordinator.wire.digests import effect_digest_of
from sidecar.coordinator.wire.enums import (
    AdminKind,
    EffectKind,
    EffectState,
    ErrorCode,
    FrameType,
    ObjectKind,
    ResultKind,
    SourceFactKind,
)
from sidecar.coordinator.wire.errors import LocalProtocolError, MalformedMessage
from sidecar.coordinator.wire.ids import ObjectRevision, event_sequence, object_revision
from sidecar.coordinator.wire.images import Record
from sidecar.coordinator.wire.limits import MAX_RESOURCE_ID
from sidecar.coordinator.wire.payloads import (
    AdminRecord,
    decode_record_payload,
)
from sidecar.coordinator.wire.records import Precondition, ReplayEvent, SnapshotRecord
from tests.oracles.wire import join, split
from tests.unit.wire.samples import (
    FACT_SAMPLES,
    FRAME_SAMPLES,
    PAYLOAD_SAMPLES,
    RESULTS,
    fact,
    record,
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


@pytest.mark.req("P8-20", "P8-21", "P8-22", "P8-23", "P8-26", "P8-27")
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


@pytest.mark.req("W7-05")
def test_an_offer_is_profile_and_nonce() -> None:
    image = expected_proofs.offer().encode()
    assert image == b"\x00\x00\x00\x10phux-workload/v1" + fix.CLIENT_NONCE
    for wrong in (image[:-1], image + b"\x00", image[:20] + bytes(32), image.replace(b"/v1", b"/v2"), image[4:]):
        with pytest.raises(MalformedMessage):
            records.WorkloadOffer.decode(wrong)


@pytest.mark.req("E-21")
@pytest.mark.parametrize("result", [pytest.param(result, id=f"{at}") for at, result in enumerate(RESULTS)])
def test_a_member_of_a_union_has_its_own_tag(result: results.OperationResult) -> None:
    image = results.encode_operation(result)
    with pytest.raises(MalformedMessage):
        type(result).decode(bytes([image[0] ^ 1]) + image[1:])


@pytest.mark.parametrize("value", ["1", None, 1 << 32, -1])
def test_a_column_without_an_image_is_local_misuse(value: Any) -> None:
    with pytest.raises(LocalProtocolError):
        records.GroupId(value).encode()


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
