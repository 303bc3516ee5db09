"""`explain` and the decoder give one verdict on all bytes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.coordinator.explain import explain
from tests.fuzz.targets import explained
from tests.vectors import inputs as fix
from tests.vectors.expected_frames import GOLDEN

MESSAGES = [bytes.fromhex(fix.VECTORS[name]) for name in GOLDEN]


@pytest.mark.req("E-04", "E-05", "E-08", "E-10", "E-13", "E-14", "E-23", "P3-02", "P3-12", "P7-02")
@given(seed=st.integers(0, 2**64 - 1))
@settings(max_examples=400)
def test_the_verdict_on_damaged_frames_is_that_of_the_decoder(seed: int) -> None:
    explained(random.Random(seed))


@given(data=st.binary(max_size=200))
@settings(max_examples=300)
def test_any_bytes_are_taken_apart_to_the_last(data: bytes) -> None:
    found = list(explain(data))
    assert sum(one.length for one in found) == len(data)
    for one in found:
        assert one.fault is None or 0 <= one.fault.offset <= len(data)


@given(first=st.sampled_from(MESSAGES), second=st.sampled_from(MESSAGES))
def test_a_capture_is_its_frames(first: bytes, second: bytes) -> None:
    assert [found.offset for found in explain(first + second)] == [0, len(first)]
