"""Which brokers are good enough."""

from __future__ import annotations

import pytest

from sidecar.rails.space.floor import MIN_PAYLOAD, floor_faults


@pytest.mark.req("C13.12-01", "C13.12-02", "C13.12-06")
@pytest.mark.parametrize(
    ("version", "payload", "faults"),
    [
        ("2.12.0", MIN_PAYLOAD, 0), ("2.15.1", 1 << 20, 0), ("3.0.0", 1 << 20, 0), ("2.12.0-beta.1", 1 << 20, 0),
        ("2.11.9", 1 << 20, 1), ("1.99.0", 1 << 20, 1), ("2.12.0", MIN_PAYLOAD - 1, 1), ("2.12", 1 << 20, 1),
        ("", 1 << 20, 1), (None, 1 << 20, 1), (212, 1 << 20, 1), ("v2.12.0", 1 << 20, 1), ("2.12.0", None, 1),
        ("2.12.0", True, 1), (None, None, 2),
    ],
)  # fmt: skip
def test_version_and_payload(version: object, payload: object, faults: int) -> None:
    assert len(floor_faults(version, payload)) == faults
