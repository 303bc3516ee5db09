"""Trace Context of calls (C13.3-32)."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.rails.endpoint import calls_trace as trace

VALID = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
DRAWN = "a" * 32 + "b" * 16
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
HEX = st.text("0123456789abcdef", min_size=48, max_size=48)


@pytest.mark.req("C13.3-32")
def test_a_new_trace_is_of_version_00_and_a_child_keeps_trace_and_flags() -> None:
    assert trace.begun(DRAWN) == f"00-{'a' * 32}-{'b' * 16}-01"
    assert trace.child(PARENT, DRAWN) == f"00-0af7651916cd43dd8448eb211c80319c-{'b' * 16}-00"
    later = PARENT.replace("00-", "01-", 1) + "-more"
    assert trace.child(later, DRAWN) == f"00-0af7651916cd43dd8448eb211c80319c-{'b' * 16}-00"


@pytest.mark.req("C13.3-32")
@pytest.mark.parametrize("parent", [None, "", "x", "ff" + PARENT[2:], PARENT.upper(), f"00-{'0' * 32}-{'1' * 16}-01"])
def test_a_parent_that_is_none_begins_a_trace(parent: str | None) -> None:
    assert trace.child(parent, DRAWN) == trace.begun(DRAWN)


@pytest.mark.req("C13.3-32")
def test_state_and_baggage_are_carried_on_and_state_only_with_its_parent() -> None:
    given_on = {"traceparent": PARENT, "tracestate": "a=1", "baggage": "k=v", "other": "x"}
    assert trace.carried_on(given_on, DRAWN) == {
        "traceparent": trace.child(PARENT, DRAWN),
        "tracestate": "a=1",
        "baggage": "k=v",
    }
    assert trace.carried_on({"tracestate": "a=1", "baggage": "k=v"}, DRAWN) == {
        "traceparent": trace.begun(DRAWN),
        "baggage": "k=v",
    }
    for bad in ("x" * 8_193, "a\nb", "\x7f"):
        assert "baggage" not in trace.carried_on({**given_on, "baggage": bad}, DRAWN)
    assert "tracestate" not in trace.carried_on({**given_on, "tracestate": "ü" * 257}, DRAWN)
    assert trace.carried_on({}, DRAWN) == {"traceparent": trace.begun(DRAWN)}


@pytest.mark.req("C13.3-32")
@given(HEX, HEX)
def test_every_traceparent_is_valid_and_a_chain_stays_in_its_trace(first: str, second: str) -> None:
    begun = trace.begun(first)
    below = trace.child(begun, second)
    assert VALID.fullmatch(begun)
    assert VALID.fullmatch(below)
    assert len(begun) == 55
    assert begun[:36] == below[:36]
    assert VALID.fullmatch(trace.begun("0" * 48))
