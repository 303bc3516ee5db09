"""The catalogue of metrics, what the observer counts, and the document made from it."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from cext.frame import encode_frame
from sidecar.coordinator.engine.quota import Resource
from sidecar.coordinator.wire.enums import CommandKind, ErrorCode, FrameType, GapReason
from sidecar.ops.catalogue import CATALOGUE
from sidecar.ops.metric import PREFIX, Kind
from sidecar.ops.metrics import Metrics, documentation

DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"


def frame_name(number: int) -> str:
    return FrameType(number).name.lower() if number in FrameType._value2member_map_ else "other"


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(frame_name)


def exposed(metrics: Metrics) -> dict[str, float]:
    text = generate_latest(metrics.registry).decode()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}


def test_the_document_is_generated_from_the_catalogue() -> None:
    assert DOCUMENT.read_text() == documentation(), "run: python -m sidecar.ops.metrics > docs/metrics.md"


def test_names_are_unique_prefixed_and_legal() -> None:
    names = [metric.name for metric in CATALOGUE]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"sidecar_[a-z]+(_[a-z]+)*", name) for name in names)
    assert all(metric.buckets for metric in CATALOGUE if metric.kind is Kind.HISTOGRAM)
    assert all(name.startswith(PREFIX) for name in names)


def test_no_label_could_carry_a_name_of_a_client_or_an_object() -> None:
    labels = {label.name for metric in CATALOGUE for label in metric.labels}
    assert labels == {
        "version", "python", "direction", "type", "outcome", "state", "reason", "kind", "code", "resource",
        "verb", "class",
    }  # fmt: skip


def test_everything_the_observer_reports_is_counted(metrics: Metrics) -> None:
    metrics.frame_in(FrameType.COORD_COMMAND, 100)
    metrics.frame_in(FrameType.COORD_COMMAND, 50)
    metrics.frame_in(0x02, 7)
    metrics.frame_in(0x03, 7)
    metrics.frames_out([encode_frame(FrameType.ACK, bytes(7)), encode_frame(FrameType.COORD_EVENT, bytes(95))] * 2)
    metrics.handshake("ok", 0.02)
    metrics.command(CommandKind.CREATE_OBJECTIVE, "succeeded")
    metrics.refused(ErrorCode.SCOPE_DENIED)
    metrics.gap(GapReason.GRANT_REVOKED)
    metrics.credit_stall()
    metrics.credit_stall_over(0.02)
    metrics.snapshot_page(512, 9000)
    metrics.events_sent(3, 600)
    metrics.batch(64, 0.003)
    metrics.quota("leases")
    metrics.gauge("authority_epoch").set(7)
    seen = exposed(metrics)
    assert seen['sidecar_frames_total{direction="in",type="coord_command"}'] == 2
    assert seen['sidecar_frame_bytes_total{direction="in",type="coord_command"}'] == 150
    assert seen['sidecar_frames_total{direction="in",type="other"}'] == 2
    assert seen['sidecar_frames_total{direction="out",type="ack"}'] == 2
    assert seen['sidecar_frame_bytes_total{direction="out",type="coord_event"}'] == 200
    assert seen['sidecar_handshakes_total{outcome="ok"}'] == 1
    assert seen['sidecar_handshake_seconds_bucket{le="0.02"}'] == 1
    assert seen['sidecar_handshake_seconds_bucket{le="0.01"}'] == 0
    assert seen['sidecar_commands_total{kind="create_objective",outcome="succeeded"}'] == 1
    assert seen['sidecar_refusals_total{code="scope_denied"}'] == 1
    assert seen['sidecar_gaps_total{reason="grant_revoked"}'] == 1
    assert seen["sidecar_credit_stalls_total"] == 1
    assert seen['sidecar_credit_stall_seconds_bucket{le="0.02"}'] == 1
    assert seen["sidecar_snapshot_pages_total"] == 1
    assert seen["sidecar_snapshot_records_total"] == 512
    assert seen["sidecar_snapshot_page_bytes_total"] == 9000
    assert seen["sidecar_events_sent_total"] == 3
    assert seen["sidecar_event_bytes_total"] == 600
    assert seen['sidecar_commit_batch_transactions_bucket{le="64.0"}'] == 1
    assert seen['sidecar_commit_batch_transactions_bucket{le="32.0"}'] == 0
    assert seen['sidecar_commit_seconds_bucket{le="0.005"}'] == 1
    assert seen['sidecar_quota_refusals_total{resource="leases"}'] == 1
    assert seen["sidecar_authority_epoch"] == 7
    assert any(name.startswith("sidecar_build_info{") and value == 1 for name, value in seen.items())


def test_every_metric_of_the_catalogue_is_exposed_under_its_documented_name(metrics: Metrics) -> None:
    text = generate_latest(metrics.registry).decode()
    for metric in CATALOGUE:
        assert f"# TYPE {metric.exposed} {metric.kind.value}\n" in text
        assert f"# HELP {metric.exposed} {metric.help}\n" in text


def test_every_series_is_there_at_0_before_anything_happens(metrics: Metrics) -> None:
    seen = exposed(metrics)
    for metric in CATALOGUE:
        if not metric.labels or metric.name == "sidecar_build_info":
            continue
        sets = [label.values or {frame_name(number) for number in range(256)} for label in metric.labels]
        for values in itertools.product(*sets):
            labels = zip((label.name for label in metric.labels), values, strict=True)
            series = ",".join(f'{name}="{value}"' for name, value in sorted(labels))  # as they are exposed
            sample = f"{metric.exposed}_count" if metric.kind is Kind.HISTOGRAM else metric.exposed
            assert seen[f"{sample}{{{series}}}"] == 0
    commands = [name for name in seen if name.startswith("sidecar_commands_total{")]
    assert len(commands) == len(CommandKind) * (2 + len(ErrorCode)) < 200


def test_no_event_adds_a_series(metrics: Metrics) -> None:
    before = set(exposed(metrics))
    for number in range(256):
        metrics.frame_in(number, 5)
        metrics.frames_out([encode_frame(number, b"")])
    for code in ErrorCode:
        metrics.refused(code)
        metrics.handshake(code.name.lower(), 0.02)
    for kind in CommandKind:
        metrics.command(kind, "succeeded")
        metrics.command(kind, "repeated")
        metrics.command(kind, ErrorCode.REVISION_CONFLICT.name.lower())
    for reason in GapReason:
        metrics.gap(reason)
    for resource in Resource:
        metrics.quota(resource.label)
    assert set(exposed(metrics)) == before


def test_two_processes_worth_of_metrics_do_not_share_state(metrics: Metrics) -> None:
    metrics.handshake("ok", 0.02)
    assert exposed(Metrics())['sidecar_handshakes_total{outcome="ok"}'] == 0
