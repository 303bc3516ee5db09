"""Command payloads, preconditions, digests and scope images by their rows."""

from __future__ import annotations

import pytest

from sidecar.coordinator.wire import frames, records
from sidecar.coordinator.wire.digests import operation_digest_of, precondition_images
from sidecar.coordinator.wire.enums import (
    CommandKind,
    FrameType,
    ObjectKind,
    Scope,
)
from sidecar.coordinator.wire.errors import CapabilityRequired, LocalProtocolError, MalformedMessage
from sidecar.coordinator.wire.payloads import (
    COMMANDS,
    ChangeRetention,
    CreateObjective,
    decode_command,
)
from sidecar.coordinator.wire.records import Precondition
from tests.oracles.wire import join, split
from tests.unit.wire.samples import (
    COMMAND_SAMPLES,
    FRAME_SAMPLES,
)
from tests.vectors import expected_images, expected_proofs
from tests.vectors import inputs as fix


@pytest.mark.req("P7-24", "P7-26")
@pytest.mark.parametrize("kind", [CommandKind.CREATE_OBJECTIVE, CommandKind.UPDATE_OBJECTIVE])
@pytest.mark.parametrize("schema", [0, 2])
def test_an_objective_of_another_schema_is_gated(kind: CommandKind, schema: int) -> None:
    body = COMMANDS[kind].build({"objective_id": fix.OBJECTIVE, "schema": schema, "document": b""}).body()
    with pytest.raises(CapabilityRequired) as caught:
        decode_command(kind, body)
    assert not caught.value.fatal


@pytest.mark.req("P7-25", "P7-26", "W1-05")
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
