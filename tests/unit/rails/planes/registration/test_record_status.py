"""What an instance may say of itself: bodies and subjects of record writes, and what stands against them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.rails.endpoint.codes import Code
from sidecar.rails.planes.registration.record_status import (
    MAX_STATUS_BYTES,
    Report,
    Stored,
    Writer,
    WriteRefused,
    judge,
    read_report,
    writer_of,
)

ME = "i0123456789abcdefghijklmno"
OTHER = "z0123456789abcdefghijklmno"
SUBJECT = f"cotal.main.epr.com_acme_echo.{ME}.3.svc.com_acme_echo.{ME}"
WRITER = Writer("com_acme_echo", ME, 3)
STORED = Stored(head_epoch=3, spec_revision=40, status_epoch=2, status_revision=41)


def refused(call: Any, *args: Any) -> Code:
    with pytest.raises(WriteRefused) as caught:
        call(*args)
    return caught.value.code


@pytest.mark.req("C13.2-70", "C13.9-082")
def test_the_writer_is_who_the_subject_says_and_writes_its_own_record_alone() -> None:
    assert writer_of("main", SUBJECT) == WRITER
    assert refused(writer_of, "other", SUBJECT) == Code.BAD_REQUEST
    assert refused(writer_of, "main", SUBJECT.replace(".svc.", ".goal.")) == Code.BAD_REQUEST
    assert refused(writer_of, "main", SUBJECT.replace(".3.", ".03.")) == Code.BAD_REQUEST
    for qualifier in (f"com_acme_echo.{OTHER}", f"com_acme_other.{ME}", ME, f"com_acme_echo.{ME}.x"):
        hostile = f"cotal.main.epr.com_acme_echo.{ME}.3.svc.{qualifier}"
        assert refused(writer_of, "main", hostile) == Code.PERMISSION_DENIED


@pytest.mark.req("C13.7-61", "C13.2-70")
def test_a_status_is_stored_with_the_epoch_of_the_subject_and_what_it_observed() -> None:
    report = read_report(b'{"state":"ready","observedSpecRevision":40,"note":"up"}')
    assert report == Report("ready", 40, None, "up")
    assert report.status(3, 40) == b'{"epoch":3,"note":"up","observedSpecRevision":40,"state":"ready"}'
    assert Report("ready").status(0, 7) == b'{"epoch":0,"observedSpecRevision":7,"state":"ready"}'
    assert read_report(report.encode()) == report
    assert read_report(Report("ready", base=4).encode()).base == 4


@pytest.mark.req("C13.2-70", "C13.9-082", "C13.7-61")
@pytest.mark.parametrize(
    "value",
    [
        {},
        {"state": "ready", "incarnation": 9},
        {"state": "ready", "more": 1},
        {"state": "escalated"},
        {"state": "Ready"},
        {"state": "r" * 33},
        {"state": ""},
        {"state": 1},
        {"state": None},
        {"state": "ready", "observedSpecRevision": True},
        {"state": "ready", "observedSpecRevision": -1},
        {"state": "ready", "observedSpecRevision": "1"},
        {"state": "ready", "observedSpecRevision": None},
        {"state": "ready", "baseRevision": 1.5},
        {"state": "ready", "baseRevision": -1},
        {"state": "ready", "note": 1},
        {"state": "ready", "note": "x" * 513},
        [],
        "ready",
    ],
)
def test_no_other_body_is_a_status(value: Any) -> None:
    assert refused(read_report, json.dumps(value).encode()) == Code.BAD_REQUEST


@pytest.mark.req("C13.4-13")
def test_a_status_that_is_too_large_is_refused_as_such() -> None:
    assert (
        refused(read_report, b'{"state":"ready","note":"' + b"x" * MAX_STATUS_BYTES + b'"}') == Code.RESOURCE_EXHAUSTED
    )
    assert refused(read_report, b'{"state":') == Code.BAD_REQUEST
    assert refused(read_report, b'{"state":"ready","state":"ready"}') == Code.BAD_REQUEST


def test_what_a_supervisor_says_is_left_out_of_what_an_instance_says() -> None:
    report = read_report(b'{"state":"ready","restarts":0,"supervisor":"me","epoch":9}')
    assert b"restarts" not in report.status(1, 1)


@pytest.mark.req("C13.8-10", "C13.9-082", "C13.4-07", "C13.1-020")
@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"spec_revision": 0}, Code.NOT_FOUND),
        ({"head_epoch": None}, Code.EXPIRED),
        ({"head_epoch": 4}, Code.EXPIRED),
        ({"head_epoch": 2}, Code.EXPIRED),
        ({"status_epoch": 4}, Code.CONFLICT),
        ({"spec_revision": 39}, Code.CONFLICT),
        ({"status_revision": 50}, Code.CONFLICT),
    ],
)
def test_what_stands_in_the_records_decides(change: dict[str, Any], code: Code) -> None:
    report = Report("ready", 40, 41)
    judge(WRITER, report, STORED)
    judge(WRITER, report, replace(STORED, status_epoch=None))
    assert refused(judge, WRITER, report, replace(STORED, **change)) == code


@pytest.mark.req("C13.7-64")
def test_epoch_zero_is_an_epoch() -> None:
    first = Writer("com_acme_echo", ME, 0)
    judge(first, Report("ready"), Stored(0, 1, None, 0))
    assert refused(judge, first, Report("ready"), Stored(None, 1, None, 0)) == Code.EXPIRED
    assert refused(judge, WRITER, Report("ready"), Stored(0, 1, 0, 2)) == Code.EXPIRED


@given(st.binary(max_size=60), st.text(max_size=60))
def test_bytes_and_subjects_of_strangers_raise_nothing_else(data: bytes, subject: str) -> None:
    for call, args in ((read_report, (data,)), (writer_of, ("main", subject))):
        try:
            call(*args)
        except WriteRefused:
            continue
