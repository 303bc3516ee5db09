"""Every golden vector is reproduced byte for byte, and every golden frame decodes to the values that built it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sidecar.coordinator.wire.events import event_frames, event_tail
from sidecar.coordinator.wire.fields import Frame
from sidecar.coordinator.wire.frames import CoordEvent, decode_frame
from sidecar.coordinator.wire.limits import HARD
from tests.vectors import expected_frames, expected_images, expected_proofs
from tests.vectors import inputs as fix
from tests.vectors.expected_images import Expected

EXPECTED: Expected = {
    **expected_images.varints(),
    **expected_images.encodings(),
    **expected_images.operations(),
    **expected_images.effects(),
    **expected_images.snapshots(),
    **expected_images.replays(),
    **expected_proofs.certificates(),
    **expected_proofs.proofs(),
    **expected_frames.frames(),
}


def test_every_line_of_the_file_is_computed() -> None:
    assert set(EXPECTED) == set(fix.VECTORS)


@pytest.mark.parametrize(
    ("name", "compute"),
    [pytest.param(name, compute, id=name, marks=pytest.mark.req(*rows)) for name, (rows, compute) in EXPECTED.items()],
)
def test_vector(name: str, compute: Callable[[], str]) -> None:
    assert compute() == fix.VECTORS[name]


GOLDEN = [pytest.param(name, build, id=name) for name, (_, build) in expected_frames.GOLDEN.items()]


@pytest.mark.req("E-01", "E-06", "P7-05")
@pytest.mark.parametrize(("name", "build"), GOLDEN)
def test_golden_frame_decodes_to_its_values(name: str, build: Callable[[], Frame]) -> None:
    message = bytes.fromhex(fix.VECTORS[name])
    decoded = decode_frame(message[4], message[5:], HARD)
    built = build()
    assert type(decoded) is type(built)
    for item in built.FIELDS:
        assert getattr(decoded, item.name) == getattr(built, item.name)
    assert decoded == built
    assert decoded.encode() == message


@pytest.mark.req("P8-06", "P14-07")
def test_digests_that_must_differ_differ() -> None:
    names = "ABCDEFGHIJ"
    digests = {value for key, value in fix.VECTORS.items() if key[:3] == "OP-" and key[3] in names and " digest" in key}
    assert len(digests - {fix.VECTORS["OP-A-raw digest"]}) == len(names)


def test_fan_out_bytes_equal_the_frame() -> None:
    message = bytes.fromhex(fix.VECTORS["COORD_EVENT delivery 1"])
    event = CoordEvent.decode(message[5:])
    built = event_frames(event.subscription_id, event.delivery_sequence, [event_tail(expected_images.EVENT_10)])[0]
    assert built == event.encode() == message
