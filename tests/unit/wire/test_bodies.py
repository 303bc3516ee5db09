"""What a decoded or built body offers, and that misuse is told apart from a fault of the peer."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

from sidecar.coordinator.wire import frames, records
from sidecar.coordinator.wire.enums import ChannelBinding, ErrorCode, FrameType, GapReason
from sidecar.coordinator.wire.errors import (
    AuthenticationFailed,
    LocalProtocolError,
    MalformedMessage,
    ProtocolError,
    VersionIncompatible,
)
from sidecar.coordinator.wire.fields import Frame
from sidecar.coordinator.wire.hello import decode_hello
from tests.oracles.wire import join, split
from tests.unit.wire.samples import BODIES, FRAME_SAMPLES, RECORDS
from tests.vectors import expected_frames, expected_proofs
from tests.vectors import inputs as fix

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"request_id": 0},
        {"request_id": -1},
        {"request_id": 1 << 32},
        {"request_id": "7"},
        {"request_id": None},
        {"request_id": 7, "more": 1},
    ],
)
def test_a_wrong_value_is_local_misuse(values: dict[str, Any]) -> None:
    with pytest.raises(LocalProtocolError):
        frames.Ack.build(values)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (FrameType.COORD_COMMAND, {"operation_id": bytes(16)}),
        (FrameType.COORD_COMMAND, {"operation_id": b"short"}),
        (FrameType.COORD_COMMAND, {"authority_guard": b"x" * 64}),
        (FrameType.COORD_COMMAND, {"preconditions": None}),
        (FrameType.COORD_COMMAND, {"payload": "text"}),
        (FrameType.GAP, {"reason": 8}),
        (FrameType.COORD_ERROR, {"code": 15}),
        (FrameType.OPERATION_RESULT, {"operation": fix.guard()}),
        (FrameType.WORKLOAD_RESPONSE, {"requested_scope_bytes": 0x40}),
        (FrameType.WORKLOAD_CHALLENGE, {"service": b"phux-terminal"}),
        (FrameType.OPEN_SNAPSHOT, {"selector": 1}),
        (FrameType.OPEN_SNAPSHOT, {"reserve_subscription": 2}),
        (FrameType.COORD_EVENT, {"payload": b""}),
        (FrameType.SUBSCRIBED, {"next_delivery_sequence": 0}),
    ],
)
def test_a_value_that_has_no_image_is_local_misuse(kind: FrameType, values: dict[str, Any]) -> None:
    sample = FRAME_SAMPLES[kind]
    good = {item.name: getattr(sample, item.name) for item in sample.FIELDS}
    with pytest.raises(LocalProtocolError, match=sample.TITLE):
        type(sample).build({**good, **values})


def test_misuse_and_a_peers_fault_are_different_classes() -> None:
    assert not issubclass(LocalProtocolError, ProtocolError)
    assert not issubclass(ProtocolError, LocalProtocolError)


@pytest.mark.parametrize("body", [pytest.param(body, id=name) for name, body in BODIES.items()])
def test_a_body_never_changes(body: Any) -> None:
    decoded = type(body).decode(body.body())
    for each in (body, decoded):
        with pytest.raises(AttributeError):
            setattr(each, body.FIELDS[0].name, 1)


def test_a_record_never_changes() -> None:
    with pytest.raises(FrozenInstanceError):
        fix.guard().authority_epoch = fix.EPOCH  # type: ignore[misc]


@pytest.mark.parametrize("body", [pytest.param(body, id=name) for name, body in BODIES.items()])
def test_built_and_decoded_bodies_are_equal(body: Any) -> None:
    decoded = type(body).decode(memoryview(body.body()))
    assert decoded == body
    assert hash(decoded) == hash(body)
    assert decoded != object()
    for item in body.FIELDS:
        assert decoded.raw(item.name) == body.raw(item.name) == dict(split(body.body()))[item.id]
    assert decoded.unknown() == body.unknown() == b""


SECRETS = (
    fix.TOKEN,
    fix.CLIENT_NONCE,
    fix.SERVER_NONCE,
    fix.DOCUMENT,
    expected_proofs.workload_proof(),
    expected_proofs.authority_proof(ChannelBinding.UDS_PEER, expected_proofs.uds_binding()),
)


@pytest.mark.req("P13-03")
def test_representations_and_refusals_show_no_secret() -> None:
    shown = [repr(each) + str(each) for each in (*BODIES.values(), *RECORDS)]
    for body in BODIES.values():
        image = body.body()
        for size in range(0, len(image), 7):
            try:
                type(body).decode(image[:size] + b"\xff")
            except ProtocolError as error:
                shown.append(error.message + repr(error))
    text = "\n".join(shown)
    for secret in SECRETS:
        assert secret.hex() not in text
        assert repr(secret)[2:-1] not in text
        assert secret.decode("latin-1") not in text


def test_a_representation_shows_numbers_and_ids() -> None:
    assert repr(fix.guard()).startswith(
        "AuthorityGuard(coordinator_id=11111111111111111111111111111111, authority_epoch=5"
    )
    assert repr(FRAME_SAMPLES[FrameType.ACK]) == "<ACK 7 bytes>"


@pytest.mark.req("E-13", "P3-12")
def test_a_refusal_names_its_field_and_its_request() -> None:
    fields = split(FRAME_SAMPLES[FrameType.COORD_COMMAND].body())
    with pytest.raises(MalformedMessage, match="field 3 operation_id: width") as caught:
        frames.CoordCommand.decode(join([(key, b"x" if key == 3 else value) for key, value in fields]))
    assert caught.value.request_id is None
    bad_guard = join([(key, bytes(64) if key == 2 else value) for key, value in fields])
    with pytest.raises(MalformedMessage) as caught:
        frames.CoordCommand.decode(bad_guard)
    assert caught.value.request_id == 7


def with_fields(images: dict[int, bytes | None]) -> bytes:
    """The golden HELLO with other images; ``None`` leaves a field out."""
    fields = {**dict(split(expected_frames.hello().body())), **images}
    return join([(key, value) for key, value in fields.items() if value is not None])


@pytest.mark.req("P1-10", "P5-03", "W3-03", "W3-04")
@pytest.mark.parametrize(("major", "minor"), [(1, 1), (0, 0), (0, 2), (0xFFFF, 1)])
@pytest.mark.parametrize("offer", [None, b"", b"garbage", expected_proofs.offer().encode()])
def test_another_version_is_told_before_anything_else(major: int, minor: int, offer: bytes | None) -> None:
    body = with_fields({1: major.to_bytes(2, "big"), 2: minor.to_bytes(2, "big"), 13: offer, 4: b"\xff\xff"})
    with pytest.raises(VersionIncompatible) as caught:
        decode_hello(body)
    assert caught.value.fatal


@pytest.mark.req("P5-04")
@pytest.mark.parametrize("patch", [0, 9, 0xFFFF])
def test_another_patch_is_taken(patch: int) -> None:
    assert decode_hello(with_fields({3: patch.to_bytes(2, "big")})).protocol_patch == patch


@pytest.mark.req("W3-17", "P5-05")
def test_an_offer_that_is_absent_or_of_another_profile_fails_authentication() -> None:
    other = expected_proofs.offer().encode().replace(b"workload/v1", b"workload/v2")
    for offer in (None, other):
        with pytest.raises(AuthenticationFailed) as caught:
            decode_hello(with_fields({13: offer}))
        assert caught.value.fatal


@pytest.mark.req("W3-08", "W3-17")
@pytest.mark.parametrize("change", [slice(0, 51), slice(1, 52), slice(0, 0)])
def test_an_offer_of_another_shape_is_malformed(change: slice) -> None:
    image = expected_proofs.offer().encode()
    other = image.replace(b"workload/v1", b"workload/v2")
    for offer in (image[change], image + b"\x00", image[:20] + bytes(32), other[change], other + b"\x00"):
        with pytest.raises(MalformedMessage):
            decode_hello(with_fields({13: offer}))


@pytest.mark.req("P5-06")
def test_a_hello_without_its_version_is_malformed() -> None:
    for field in (1, 2):
        with pytest.raises(MalformedMessage):
            decode_hello(with_fields({field: None}))
    assert decode_hello(expected_frames.hello().body()) == expected_frames.hello()
    assert decode_hello(expected_frames.hello().body()).limits().frame == 524_288


def test_selected_limits_are_read_from_hello_ok() -> None:
    assert expected_frames.hello_ok().limits() == expected_frames.hello().limits()


def test_a_frame_above_the_hard_cap_can_not_be_encoded() -> None:
    command = FRAME_SAMPLES[FrameType.COORD_COMMAND]
    huge = frames.CoordCommand.decode(command.body() + join([(99, bytes(1_048_576 - len(command.body())))]))
    with pytest.raises(LocalProtocolError):
        huge.encode()


def test_a_closed_set_of_the_client_is_closed() -> None:
    gap = FRAME_SAMPLES[FrameType.GAP]
    assert isinstance(gap, frames.Gap)
    assert gap.reason is GapReason.RETENTION
    error = FRAME_SAMPLES[FrameType.COORD_ERROR]
    assert isinstance(error, frames.CoordErrorFrame)
    assert error.code is ErrorCode.SCOPE_DENIED


def test_the_guard_of_a_request_is_decoded_once() -> None:
    body = FRAME_SAMPLES[FrameType.GET_OPERATION_RESULT].body()
    first, second = frames.GetOperationResult.decode(body), frames.GetOperationResult.decode(body)
    assert first.authority_guard is second.authority_guard
    assert first.raw("authority_guard") == records.AuthorityGuard.encode(first.authority_guard)


def test_frames_of_one_image_and_another_type_differ() -> None:
    ping: Frame = frames.CoordPing(nonce=1)
    assert ping.body() == frames.CoordPong(nonce=1).body()
    assert ping != frames.CoordPong(nonce=1)
