"""Contracts: a call's args and reply judged by compiled schemas, digests, and the dearest schemas of the profile."""

from __future__ import annotations

import hashlib
import random
import time
from typing import Any, Final

import pytest
import rfc8785

from sidecar.base.strictjson import JsonValue, canonical
from sidecar.rails.endpoint import schemas
from sidecar.rails.endpoint.artifacts import ContractInvalid, digest
from sidecar.rails.endpoint.contract import document
from sidecar.rails.endpoint.contracts import DELIVERY
from sidecar.rails.endpoint.schemas import COMPILED, schema
from tests.bench.measure import medians, report, show

VALIDATED: Final = 20e-6
"""Seconds that the args and the reply of one call may take."""
DIGESTED: Final = 25e-6
"""Seconds that the digest of a document of 1 KiB may take."""
ECHO_IN: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string", "maxLength": 65_536}},
    "required": ["text"],
    "additionalProperties": False,
}
ECHO_OUT = {**ECHO_IN, "properties": {"text": {"type": "string"}, "at": {"type": "integer", "minimum": 0}}}


def kilobyte(least: float) -> dict[str, JsonValue]:
    """A document of about 1 KiB, with numbers of one kind."""
    rows: list[JsonValue] = [
        {"name": f"item {at}", "value": at * 7 + least, "open": True, "text": "some words of it"} for at in range(15)
    ]
    return {"rows": rows, "next": None}


def test_validation(capsys: pytest.CaptureFixture[str]) -> None:
    takes, gives = schema(ECHO_IN).shape.check, schema(ECHO_OUT).shape.check
    args, reply = {"text": "hello"}, {"text": "hello", "at": 7}
    assert takes(args) is None
    assert gives(reply) is None

    def both() -> None:
        takes(args)
        gives(reply)

    fetch = DELIVERY["read-history"]
    compiled = schema(document(fetch.output)).shape.check
    frame = {"subject": "a.b", "data": "aGk=", "headers": {"Nats-Msg-Id": "m"}, "sequence": 1}
    frames = [{**frame, "delivered": 1, "pending": 0, "timeMs": 1} for _ in range(64)]
    page = {"frames": frames, "frontier": 1, "complete": True}
    assert compiled(page) is None
    report(
        capsys,
        "args and reply of echo; a page of 64 frames",
        {
            "compiled schemas": both,
            "page, compiled": lambda: compiled(page),
            "page, plain Python": lambda: fetch.output.check(page),
        },
    )
    took = medians({"args and reply": both})["args and reply"]
    show(capsys, f"the aim is {VALIDATED * 1e6:.0f} us", {"args and reply": (took * 1e6, "us")})


def test_digest(capsys: pytest.CaptureFixture[str]) -> None:
    whole, broken = kilobyte(1), kilobyte(0.125)
    assert 900 < len(canonical(whole)) < 1_200
    report(
        capsys,
        f"digest of a document of {len(canonical(whole))} bytes",
        {
            "whole numbers": lambda: digest(whole),
            "fractions": lambda: digest(broken),
            "plain Python, whole numbers": lambda: hashlib.sha256(rfc8785.dumps(whole)).hexdigest(),
            "plain Python, fractions": lambda: hashlib.sha256(rfc8785.dumps(broken)).hexdigest(),
        },
    )
    results = medians({"whole": lambda: digest(whole), "fractions": lambda: digest(broken)})
    show(capsys, f"the aim is {DIGESTED * 1e6:.0f} us", {name: (took * 1e6, "us") for name, took in results.items()})


def _ladder(rungs: int) -> JsonValue:
    steps = {f"a{at}": {"anyOf": [{"$ref": f"#/$defs/a{at + 1}"}] * 2} for at in range(rungs)}
    return {"$ref": "#/$defs/a0", "$defs": {**steps, f"a{rungs}": {"type": "string"}}}


def _wide(names: int, inner: int) -> JsonValue:
    properties = {f"q{at}": {"type": "string"} for at in range(inner)}
    return {"properties": {f"p{at}": {"type": "object", "properties": properties} for at in range(names)}}


DEAREST: dict[str, tuple[JsonValue, Any]] = {
    "ladder of 8 unions": (_ladder(8), 7),
    "1,023 branches on many items": (
        {"items": {"anyOf": [{"const": at} for at in range(1_000)]}},
        [-1] * (schemas.MAX_WORK // 1_001 // 3 - 1),
    ),
    "4,000 schemas": (_wide(39, 100), {"p1": {"q1": "a"}}),
    "union of 100 objects": (
        {"oneOf": [{"properties": {f"q{at}_{one}": {"type": "null"} for one in range(35)}} for at in range(100)]},
        {"q1_1": 1},
    ),
    "pattern of many states": (
        {"pattern": "[ab]*a[ab]{14}c"},
        "".join(random.Random(1).choice("ab") for _ in range(schemas.MAX_WORK // 32)),
    ),
}


@pytest.mark.parametrize("name", DEAREST)
def test_the_dearest_of_the_profile(capsys: pytest.CaptureFixture[str], name: str) -> None:
    """Budgets are held by the profile; this prints what it leaves (100 ms to compile, 10 ms to validate in mind)."""
    made, value = DEAREST[name]
    COMPILED._kept.clear()
    start = time.perf_counter()
    compiled = schema(made)
    compiling = time.perf_counter() - start
    start = time.perf_counter()
    fault = compiled.shape.check(value)
    judging = time.perf_counter() - start
    assert fault is None or "larger" not in fault.why
    rows = {"compile": (compiling * 1e3, "ms"), "validate": (judging * 1e3, "ms"), "work": (float(compiled.work), "")}
    show(capsys, name, rows)


def test_what_is_refused_is_refused_soon(capsys: pytest.CaptureFixture[str]) -> None:
    bombs: dict[str, JsonValue] = {
        "ladder of 24": _ladder(24),
        "100 ladders": {"$defs": {f"l{at}": {"properties": {"x": {"anyOf": [True] * 40}}} for at in range(100)}},
        "20,000 schemas": {"allOf": [{}] * 20_000},
        "long union of wide objects": {
            "oneOf": [{"properties": {f"q{one}": {"type": "null"} for one in range(60)}} for _ in range(60)]
        },
    }
    rows: dict[str, tuple[float, str]] = {}
    for name, bomb in bombs.items():
        start = time.perf_counter()
        try:
            schema(bomb)
        except ContractInvalid as error:
            name = f"{name}: {error.why[:40]}"
        rows[name] = ((time.perf_counter() - start) * 1e3, "ms")
    show(capsys, "schemas at or beyond the bounds", rows)
