"""The encoding rules one by one, on the smallest message that shows each (E-01..E-30, P3-12, P3-60..62)."""

from __future__ import annotations

import tracemalloc

import pytest

from cext.tlv import encode_varint
from sidecar.coordinator.wire import frames, records, results, terminal
from sidecar.coordinator.wire.codecs import U8, decode_image, encode_image, framed, leaf, listing, optional
from sidecar.coordinator.wire.enums import CommandKind, ErrorCode, FrameType, ObjectKind, ResourceKind, WireType
from sidecar.coordinator.wire.errors import LocalProtocolError, MalformedMessage, RevisionConflict
from sidecar.coordinator.wire.ids import event_sequence, object_revision
from sidecar.coordinator.wire.limits import HARD, MAX_GROUP_ID, MAX_HOST
from sidecar.coordinator.wire.payloads import StartRun
from tests.oracles.wire import join, split
from tests.unit.wire.samples import COMMAND_SAMPLES, FRAME_SAMPLES
from tests.vectors import expected_images
from tests.vectors import inputs as fix


def patched(kind: FrameType, field_id: int, value: bytes) -> bytes:
    """The sample body of a type with another image in one field."""
    return join([(key, value if key == field_id else old) for key, old in split(FRAME_SAMPLES[kind].body())])


def refuse(kind: FrameType, body: bytes) -> None:
    with pytest.raises(MalformedMessage):
        frames.decode_frame(kind, body)


@pytest.mark.req("E-02", "E-09")
def test_a_field_is_id_wire_type_length_value() -> None:
    assert frames.Ack(request_id=7).body() == bytes([1, WireType.BYTES, 4, 0, 0, 0, 7])


@pytest.mark.req("E-01", "P3-01")
def test_a_message_is_length_type_body() -> None:
    assert frames.Ack(request_id=7).encode() == bytes.fromhex("000000088201040400000007")


@pytest.mark.req("E-06", "P3-12")
def test_unknown_field_99_of_a_command_is_accepted() -> None:
    command = FRAME_SAMPLES[FrameType.COORD_COMMAND]
    decoded = frames.CoordCommand.decode(command.body() + b"\x63\x04\x01x")
    assert decoded.unknown() == b"\x63\x04\x01x"


@pytest.mark.req("E-12", "P13-01")
def test_an_absent_optional_field_is_not_written() -> None:
    absent = frames.CoordErrorFrame(code=ErrorCode.NOT_FOUND, message="")
    assert absent.body().startswith(b"\x02\x04\x02")
    assert frames.CoordErrorFrame.decode(absent.body()).request_id is None
    with pytest.raises(LocalProtocolError):
        absent.raw("request_id")


@pytest.mark.req("E-14", "P3-13")
@pytest.mark.parametrize("width", [0, 1, 2, 3, 5, 8])
def test_a_u32_has_four_bytes(width: int) -> None:
    refuse(FrameType.ACK, patched(FrameType.ACK, 1, b"\x01" * width))


@pytest.mark.req("E-15", "P11-06")
def test_a_negative_exit_status_is_twos_complement() -> None:
    assert terminal.Closed(-1).encode() == bytes.fromhex("01ffffffff")
    assert terminal.Closed.decode(bytes.fromhex("0180000000")).exit_status == -(1 << 31)


@pytest.mark.req("E-16")
def test_a_leaf_has_a_u32_length() -> None:
    rejected = results.Rejected(event_sequence(1), ErrorCode.NOT_FOUND, "no")
    assert rejected.encode()[-6:] == b"\x00\x00\x00\x02no"
    empty = results.Rejected(event_sequence(1), ErrorCode.NOT_FOUND, "")
    assert empty.encode()[-4:] == bytes(4)


@pytest.mark.req("E-17")
@pytest.mark.parametrize("length", [0xFFFFFFFF, 0x7FFFFFFF, 7, 5])
def test_a_leaf_length_beyond_its_value_is_malformed(length: int) -> None:
    value = length.to_bytes(4, "big") + b"123456"
    tracemalloc.start()
    try:
        refuse(FrameType.SNAPSHOT_NEXT, patched(FrameType.SNAPSHOT_NEXT, 3, value))
        with pytest.raises(MalformedMessage):
            results.Document.decode(b"\x00\x01" + value)
        assert tracemalloc.get_traced_memory()[1] < 262_144
    finally:
        tracemalloc.stop()


@pytest.mark.req("E-18", "P3-12")
@pytest.mark.parametrize("content", ["c0af", "eda080", "ff", "e282", "f4908080", "f08282ac"])
def test_text_is_strict_utf8(content: str) -> None:
    raw = bytes.fromhex(content)
    value = len(raw).to_bytes(4, "big") + raw
    refuse(FrameType.COORD_HELLO, patched(FrameType.COORD_HELLO, 4, value))
    refuse(FrameType.COORD_ERROR, patched(FrameType.COORD_ERROR, 3, value))
    with pytest.raises(MalformedMessage):
        results.Rejected.decode(b"\x02" + bytes(7) + b"\x01\x00\x0e" + value)


@pytest.mark.req("E-18")
def test_text_that_has_no_utf8_is_local_misuse() -> None:
    with pytest.raises(LocalProtocolError):
        frames.CoordErrorFrame(code=ErrorCode.NOT_FOUND, message="\ud800")


@pytest.mark.req("E-19", "P3-12")
@pytest.mark.parametrize("value", [b"\x02", b"\xff", b"", b"\x00\x00"])
def test_a_bool_is_0_or_1(value: bytes) -> None:
    refuse(FrameType.OPEN_SNAPSHOT, patched(FrameType.OPEN_SNAPSHOT, 4, value))


@pytest.mark.req("E-20", "P3-62", "P11-06")
def test_a_nested_optional_has_a_presence_byte() -> None:
    assert terminal.Closed.decode(b"\x00") == terminal.Closed(None)
    assert terminal.Closed.decode(b"\x01\x00\x00\x00\x01") == terminal.Closed(1)
    for image in (b"\x02\x00\x00\x00\x01", b"\xff", b"\x01", b""):
        with pytest.raises(MalformedMessage):
            terminal.Closed.decode(image)
    assert encode_image(optional(U8), None) == b"\x00"


@pytest.mark.req("E-21", "P3-61", "P8-11")
@pytest.mark.parametrize("tag", [6, 7, 128, 255])
def test_an_unallocated_union_tag_is_malformed(tag: int) -> None:
    refuse(FrameType.OPERATION_RESULT, patched(FrameType.OPERATION_RESULT, 2, bytes([tag])))
    with pytest.raises(MalformedMessage):
        records.decode_operation(bytes([tag]) + bytes(40))


@pytest.mark.req("E-22", "P3-60")
def test_a_list_count_beyond_its_data_fails_without_reservation() -> None:
    one = b"\xff\xff" + next(iter(expected_images.RECORDS.values())).encode()
    short = b"\x03\xff" + one[2:]
    tracemalloc.start()
    try:
        refuse(FrameType.SNAPSHOT_PAGE, patched(FrameType.SNAPSHOT_PAGE, 5, one))
        refuse(FrameType.SNAPSHOT_PAGE, patched(FrameType.SNAPSHOT_PAGE, 5, short))
        assert tracemalloc.get_traced_memory()[1] < 262_144
    finally:
        tracemalloc.stop()


@pytest.mark.req("E-22", "P3-60")
def test_a_list_is_count_and_elements() -> None:
    codec = listing(U8, cap=3)
    assert encode_image(codec, (1, 2, 3)) == bytes.fromhex("0003010203")
    assert decode_image(codec, bytes.fromhex("0000")) == ()
    for image in ("0004010203", "00040102030405", "000201", "00020102ff"):
        with pytest.raises(MalformedMessage):
            decode_image(codec, bytes.fromhex(image))
    with pytest.raises(LocalProtocolError):
        encode_image(codec, (1, 2, 3, 4))


@pytest.mark.req("E-17", "E-23")
def test_a_framed_image_is_bounded_by_its_length_and_its_cap() -> None:
    codec = framed(leaf(10), cap=6)
    assert decode_image(codec, encode_image(codec, b"ab")) == b"ab"
    with pytest.raises(LocalProtocolError):
        encode_image(codec, b"abc")
    for image in ("00000007" + "00000003616263", "00000006" + "000000036162", "00000006" + "0000000161" + "00"):
        with pytest.raises(MalformedMessage):
            decode_image(codec, bytes.fromhex(image))


@pytest.mark.req("E-23", "P4-10")
def test_a_guard_of_another_size_is_malformed() -> None:
    image = fix.guard().encode()
    for wrong in (image[:-1], image + b"\x00"):
        refuse(FrameType.COORD_COMMAND, patched(FrameType.COORD_COMMAND, 2, wrong))


@pytest.mark.req("E-24", "P4-01")
@pytest.mark.parametrize("size", [0, 15, 17, 32])
def test_an_id_has_sixteen_bytes(size: int) -> None:
    refuse(FrameType.COORD_COMMAND, patched(FrameType.COORD_COMMAND, 3, b"\x01" * size))


@pytest.mark.req("E-26", "P11-12")
def test_resource_ids_have_one_image_each() -> None:
    assert records.decode_resource(bytes.fromhex("0000000001")) == terminal.LocalResource(1)
    satellite = terminal.SatelliteResource("edge-1", 7)
    assert records.decode_resource(satellite.encode()) == satellite
    for image in ("0200000001", "00000001", "000000000100", "ff", "", "0100000000" + "00000007", "01ffffffff"):
        with pytest.raises(MalformedMessage):
            records.decode_resource(bytes.fromhex(image))
    with pytest.raises(MalformedMessage):
        records.decode_resource(satellite.encode() + b"\x00")


@pytest.mark.req("E-26")
@pytest.mark.parametrize("host", ["", "a\x00b", "a\nb", "\x7f", "\x85", "é" * 128])
def test_a_host_is_bounded_text_without_control_characters(host: str) -> None:
    raw = host.encode()
    with pytest.raises(MalformedMessage):
        records.decode_resource(b"\x01" + len(raw).to_bytes(4, "big") + raw + bytes(4))
    with pytest.raises(LocalProtocolError):
        terminal.SatelliteResource(host, 1).encode()


@pytest.mark.req("E-26")
def test_the_longest_host_is_taken() -> None:
    longest = terminal.SatelliteResource("h" * MAX_HOST, 1)
    assert records.decode_resource(longest.encode()) == longest


@pytest.mark.req("E-27")
@pytest.mark.parametrize("image", ["", "000001", "0000000001", "00" * (MAX_GROUP_ID + 1)])
def test_a_group_has_four_bytes(image: str) -> None:
    raw = bytes.fromhex(image)
    assert records.GroupId.decode(bytes.fromhex("00000001")) == fix.GROUP
    with pytest.raises(MalformedMessage):
        records.GroupId.decode(raw)
    start = COMMAND_SAMPLES[CommandKind.START_RUN]
    value = len(raw).to_bytes(4, "big") + raw
    body = join([(key, value if key == 9 else old) for key, old in split(start.body())])
    with pytest.raises(MalformedMessage):
        StartRun.decode(body)


@pytest.mark.req("E-28")
def test_only_a_terminal_is_bound() -> None:
    records.check_terminal_kind(ResourceKind.TERMINAL)
    for kind in (ResourceKind.AGENT_SESSION, 2, 255):
        with pytest.raises(RevisionConflict):
            records.check_terminal_kind(kind)
    assert len(terminal.LocalResource(1).encode()) == 5


@pytest.mark.req("E-29")
def test_satellite_ids_decode_but_a_plain_owner_refuses_them() -> None:
    decoded = records.TerminalBindingRef.decode(expected_images.SATELLITE_REF.encode())
    assert decoded.resource == terminal.SatelliteResource("edge-1", 7)
    with pytest.raises(RevisionConflict):
        records.check_local(decoded.resource)
    records.check_local(fix.BINDING_REF.resource)


@pytest.mark.req("E-11")
def test_field_ids_start_at_1_and_have_no_holes() -> None:
    for shape in frames.FRAMES.values():
        assert [item.id for item in shape.FIELDS] == list(range(1, len(shape.FIELDS) + 1))


@pytest.mark.req("E-30")
def test_a_length_of_2_to_the_40_reserves_nothing() -> None:
    body = b"\x63\x04" + encode_varint(1 << 40) + bytes(30)
    tracemalloc.start()
    try:
        refuse(FrameType.CREDIT, body)
        assert tracemalloc.get_traced_memory()[1] < 65_536
    finally:
        tracemalloc.stop()


@pytest.mark.req("P3-51")
def test_a_record_larger_than_what_encloses_it_can_not_be_sent() -> None:
    event = FRAME_SAMPLES[FrameType.COORD_EVENT]
    values = {item.name: getattr(event, item.name) for item in event.FIELDS}
    with pytest.raises(LocalProtocolError):
        frames.CoordEvent.build({**values, "payload": bytes(HARD.typed_payload + 1)})
    subject = fix.ref(ObjectKind.RUN, fix.RUN)
    with pytest.raises(LocalProtocolError):
        records.SnapshotRecord(subject.kind, subject.id, object_revision(1), 1, bytes(HARD.page_bytes + 1)).encode()
    largest = records.SnapshotRecord(subject.kind, subject.id, object_revision(1), 1, bytes(HARD.page_bytes))
    page = {"request_id": 1, "snapshot_id": b"\x01" * 16, "cursor": b"", "page_index": 0}
    assert len(frames.SnapshotPage.build({**page, "records": (largest,)}).encode()) < HARD.frame
    with pytest.raises(LocalProtocolError):
        frames.SnapshotPage.build({**page, "records": (largest, largest)}).encode()
