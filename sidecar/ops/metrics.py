"""Every metric of the process, declared once as data.

`CATALOGUE` is the only place that names a metric: the registry, the documentation (`docs/metrics.md`) and its test are
derived from it. Labels take values of closed sets alone; none ever carries a client, key, object, connection or path.
Every series exists from the first scrape on, at 0, so that rates and alerts see the first event.
"""

from __future__ import annotations

import itertools
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

from sidecar import __version__
from sidecar.coordinator.wire.enums import CommandKind, ErrorCode, GapReason
from sidecar.coordinator.wire.limits import QUOTAS

PREFIX = "sidecar_"

# A creation time beside every series doubles the exposition and serves nothing here.
disable_created_metrics()  # type: ignore[no-untyped-call]

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Kind(Enum):
    """The Prometheus type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Label:
    """A label and its closed set: what the documentation says of it, and the values.

    No values stand here where only the process knows them: the build, and the names of frames.
    """

    name: str
    meaning: str
    values: tuple[str, ...] = ()


def _one_of(name: str, *values: str) -> Label:
    return Label(name, ", ".join(f"`{value}`" for value in values), values)


def _names(kind: type[Enum]) -> tuple[str, ...]:
    return tuple(member.name.lower() for member in kind)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its full name (without the `_total` that counters get), what it means, and its bounded labels."""

    name: str
    kind: Kind
    help: str
    labels: tuple[Label, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def exposed(self) -> str:
        """The name of the samples as queries write it."""
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name


_WAYS = ("in", "out")
_FRAME_LABELS = (_one_of("direction", *_WAYS), Label("type", "frame names, `other` for unknown types"))


def _or_code(*values: str) -> Label:
    """An outcome that is one of these, or the code of the error that was sent."""
    meaning = ", ".join(f"`{value}`" for value in values)
    return Label("outcome", f"{meaning}, or the error code sent", (*values, *_names(ErrorCode)))


CATALOGUE = (
    Metric(
        "sidecar_build_info",
        Kind.GAUGE,
        "Always 1; the labels name the build.",
        (Label("version", "release"), Label("python", "x.y.z")),
    ),
    Metric("sidecar_frames", Kind.COUNTER, "Frames received and sent.", _FRAME_LABELS),
    Metric("sidecar_frame_bytes", Kind.COUNTER, "Bytes of those frames, header included.", _FRAME_LABELS),
    Metric(
        "sidecar_handshakes",
        Kind.COUNTER,
        "Handshakes that ended, by how.",
        (_or_code("ok", "timeout", "closed", "peer_error"),),
    ),
    Metric(
        "sidecar_handshake_seconds",
        Kind.HISTOGRAM,
        "Seconds from taking a connection until its handshake ended, failed ones included.",
        buckets=(*SECONDS, 5.0, 10.0, 15.0),
    ),
    Metric(
        "sidecar_sockets",
        Kind.GAUGE,
        "Open sockets.",
        (_one_of("state", "handshake", "active"),),
    ),
    Metric(
        "sidecar_sockets_refused",
        Kind.COUNTER,
        "Sockets closed before a byte was read.",
        (_one_of("reason", "limit", "unauthenticated_limit", "peer_uid", "peer_unknown", "stopping"),),
    ),
    Metric(
        "sidecar_commands",
        Kind.COUNTER,
        "Commands by kind and how they were answered.",
        (Label("kind", "command kinds", _names(CommandKind)), _or_code("succeeded", "repeated")),
    ),
    Metric(
        "sidecar_refusals",
        Kind.COUNTER,
        "COORD_ERROR frames sent.",
        (Label("code", "error codes", _names(ErrorCode)),),
    ),
    Metric(
        "sidecar_gaps",
        Kind.COUNTER,
        "GAP frames: subscriptions that lost continuity.",
        (Label("reason", "gap reasons", _names(GapReason)),),
    ),
    Metric(
        "sidecar_quota_refusals",
        Kind.COUNTER,
        "Actions refused because a quota was full.",
        (
            Label(
                "resource",
                "quota names of the limits table, `storage_bytes`, `artifact_bytes`",
                (*QUOTAS, "storage_bytes", "artifact_bytes"),
            ),
        ),
    ),
    Metric("sidecar_commit_batch_transactions", Kind.HISTOGRAM, "Transactions in one durable batch.", buckets=SIZES),
    Metric(
        "sidecar_commit_seconds", Kind.HISTOGRAM, "Seconds from taking a batch until it is durable.", buckets=SECONDS
    ),
    Metric("sidecar_commit_failures", Kind.COUNTER, "Batches that failed; each fences the server."),
    Metric("sidecar_credit_stalls", Kind.COUNTER, "Times a subscription had an event and too little credit for it."),
    Metric("sidecar_credit_stall_seconds", Kind.HISTOGRAM, "Seconds until such a stall was over.", buckets=SECONDS),
    Metric("sidecar_events_dropped", Kind.COUNTER, "Oldest events that left the retained log."),
    Metric("sidecar_events_sent", Kind.COUNTER, "COORD_EVENT frames sent."),
    Metric("sidecar_event_bytes", Kind.COUNTER, "Bytes of those frames."),
    Metric("sidecar_snapshot_pages", Kind.COUNTER, "Snapshot pages sent."),
    Metric("sidecar_snapshot_records", Kind.COUNTER, "Records in those pages."),
    Metric("sidecar_snapshot_page_bytes", Kind.COUNTER, "Bytes of those pages."),
    Metric("sidecar_replay_pages", Kind.COUNTER, "Replay pages sent."),
    Metric("sidecar_replay_events", Kind.COUNTER, "Events in those pages."),
    Metric("sidecar_replay_page_bytes", Kind.COUNTER, "Bytes of those pages."),
    Metric(
        "sidecar_leases_expired",
        Kind.COUNTER,
        "Snapshots and replays that their client did not finish within 60 seconds.",
        (Label("kind", "what was leased", ("snapshot", "replay")),),
    ),
    Metric("sidecar_subscriptions", Kind.GAUGE, "Subscriptions that exist."),
    Metric(
        "sidecar_subscription_queue_frames",
        Kind.GAUGE,
        "Events queued for subscriptions and not yet sent, all together.",
    ),
    Metric("sidecar_leases", Kind.GAUGE, "Snapshot and replay leases held."),
    Metric("sidecar_pinned_bytes", Kind.GAUGE, "Bytes held by snapshot cuts and replays."),
    Metric("sidecar_pending_operations", Kind.GAUGE, "Operations that wait to become durable."),
    Metric(
        "sidecar_command_queue",
        Kind.GAUGE,
        "Commands and lookups that wait for their turn; principals take turns.",
    ),
    Metric(
        "sidecar_command_wait_seconds",
        Kind.HISTOGRAM,
        "Seconds from the arrival of a command or lookup until it is executed.",
        buckets=SECONDS,
    ),
    Metric("sidecar_event_head", Kind.GAUGE, "Sequence of the newest event, durable or not."),
    Metric("sidecar_event_retained_from", Kind.GAUGE, "Sequence of the oldest event that a subscription can start at."),
    Metric("sidecar_event_durable", Kind.GAUGE, "Sequence of the newest durable event."),
    Metric("sidecar_authority_epoch", Kind.GAUGE, "Authority epoch of this activation."),
    Metric(
        "sidecar_authority_lease_seconds",
        Kind.GAUGE,
        "Seconds until the activation certificate expires; 0 when it has.",
    ),
    Metric("sidecar_authority_fenced", Kind.GAUGE, "1 once this process has fenced itself."),
    Metric(
        "sidecar_authority_renewals",
        Kind.COUNTER,
        "Renewals of the certificate.",
        (_one_of("outcome", "ok", "refused", "unavailable", "invalid"),),
    ),
    Metric(
        "sidecar_authority_renewal_seconds",
        Kind.HISTOGRAM,
        "Seconds that a renewal took, failed ones included: the wait for the witness.",
        buckets=SECONDS,
    ),
    Metric(
        "sidecar_registry_reloads",
        Kind.COUNTER,
        "Times the key registry changed on disk.",
        (_one_of("outcome", "ok", "malformed"),),
    ),
    Metric("sidecar_registry_keys", Kind.GAUGE, "Keys in the registry in force; 0 also while it is malformed."),
    Metric(
        "sidecar_admin_requests",
        Kind.COUNTER,
        "Requests on the admin socket, by how they ended.",
        (
            _one_of(
                "outcome",
                "ok",
                "busy",
                "peer_uid",
                "timeout",
                "too_large",
                "bad_request",
                "method",
                "not_found",
                "unavailable",
            ),
        ),
    ),
    Metric(
        "sidecar_nats_connections",
        Kind.GAUGE,
        "Connections to the broker that their owners hold open.",
        (_one_of("state", "connecting", "connected", "renewing", "waiting", "stopped"),),
    ),
    Metric(
        "sidecar_nats_links",
        Kind.COUNTER,
        "Logins at the broker: the first of a connection, after a loss, and with fresh credentials ahead of their end.",
        (_one_of("kind", "connected", "restored", "renewed"),),
    ),
    Metric(
        "sidecar_nats_faults",
        Kind.COUNTER,
        "What went wrong with connections to the broker, calls and subscriptions.",
        (
            _one_of(
                "kind",
                "publish_denied",
                "subscribe_denied",
                "no_responders",
                "slow_consumer",
                "watch_silent",
                "expired",
                "revoked",
                "authorization",
                "account",
                "credentials",
                "credentials_refused",
                "auth_timeout",
                "max_connections",
                "max_subscriptions",
                "max_payload",
                "max_control_line",
                "dropped",
                "stale",
                "lost",
                "unreachable",
                "old_broker",
                "protocol",
                "unknown",
            ),
        ),
    ),
    Metric("sidecar_nats_messages_dropped", Kind.COUNTER, "Messages that a reader was too slow for."),
    Metric("sidecar_nats_callback_failures", Kind.COUNTER, "Notices of a connection whose receiver raised."),
    Metric("sidecar_loop_lag_seconds", Kind.HISTOGRAM, "How late the periodic tick ran.", buckets=SECONDS),
)

_FRAMES = ("sidecar_frames", "sidecar_frame_bytes")
_TYPE_AT = 4
"""Where a frame has its type, behind the length (P3-01)."""


class _FrameCollector(Collector):
    """Frame counts as plain arrays: they change with every frame, where a locked counter would show in the profile."""

    def __init__(self, metrics: tuple[Metric, Metric], type_name: Callable[[int], str]) -> None:
        self._metrics = metrics
        self._names = [type_name(number) for number in range(256)]
        self.cells = {(metric.name, way): [0] * 256 for metric in metrics for way in _WAYS}

    def collect(self) -> Iterable[CounterMetricFamily]:
        for metric in self._metrics:
            family = CounterMetricFamily(metric.name, metric.help, labels=["direction", "type"])
            for way in _WAYS:
                totals = dict.fromkeys(self._names, 0)
                for name, value in zip(self._names, self.cells[metric.name, way], strict=True):
                    totals[name] += value
                for name, value in totals.items():
                    family.add_metric([way, name], value)
            yield family


class Metrics:
    """The metrics of one process, and the observer that the engine and the sessions report to.

    `frame_name` names a frame type; unknown numbers must come back as "other", so that the label stays bounded.
    """

    def __init__(self, frame_name: Callable[[int], str] = lambda _number: "other") -> None:
        self.registry = CollectorRegistry()
        self._by_name: dict[str, MetricWrapperBase] = {}
        table = {metric.name: metric for metric in CATALOGUE}
        frames = _FrameCollector((table[_FRAMES[0]], table[_FRAMES[1]]), frame_name)
        self.registry.register(frames)
        for metric in CATALOGUE:
            if metric.name not in _FRAMES:
                self._by_name[metric.name] = _build(metric, self.registry)
        ProcessCollector(registry=self.registry)
        self._in, self._in_bytes = frames.cells[_FRAMES[0], "in"], frames.cells[_FRAMES[1], "in"]
        self._out, self._out_bytes = frames.cells[_FRAMES[0], "out"], frames.cells[_FRAMES[1], "out"]
        self._command_wait = self.histogram("command_wait_seconds")
        self._children: dict[tuple[str, tuple[str, ...]], Counter] = {}
        self.gauge("build_info", __version__, platform.python_version()).set(1)

    # ---- access by name (without the prefix) ----

    def counter(self, name: str, *labels: str) -> Counter:
        """One counter; its label values in the order of the catalogue."""
        child = self._children.get((name, labels))
        if child is None:
            metric = self._by_name[PREFIX + name]
            assert isinstance(metric, Counter)
            child = self._children[name, labels] = metric.labels(*labels) if labels else metric
        return child

    def gauge(self, name: str, *labels: str) -> Gauge:
        """One gauge; its label values in the order of the catalogue."""
        metric = self._by_name[PREFIX + name]
        assert isinstance(metric, Gauge)
        return metric.labels(*labels) if labels else metric

    def histogram(self, name: str) -> Histogram:
        """One histogram."""
        metric = self._by_name[PREFIX + name]
        assert isinstance(metric, Histogram)
        return metric

    def totals(self, name: str) -> dict[tuple[str, ...], float]:
        """What a counter of this name holds, by its label values; series that are still at 0 are left out."""
        metric = self._by_name[PREFIX + name]
        assert isinstance(metric, Counter)
        samples = (sample for family in metric.collect() for sample in family.samples)
        return {tuple(sample.labels.values()): sample.value for sample in samples if sample.value}

    def frame_totals(self) -> dict[str, int]:
        """Frames and bytes, in and out."""
        return {
            "frames_in": sum(self._in),
            "frames_out": sum(self._out),
            "bytes_in": sum(self._in_bytes),
            "bytes_out": sum(self._out_bytes),
        }

    # ---- the observer ----

    def frame_in(self, frame_type: int, nbytes: int) -> None:
        """A whole frame arrived."""
        self._in[frame_type] += 1
        self._in_bytes[frame_type] += nbytes

    def frames_out(self, frames: Sequence[bytes]) -> None:
        """Whole frames were handed to the transport."""
        counts, nbytes = self._out, self._out_bytes
        for frame in frames:
            kind = frame[_TYPE_AT]
            counts[kind] += 1
            nbytes[kind] += len(frame)

    def handshake(self, outcome: str, seconds: float) -> None:
        """A handshake ended, so many seconds after the connection was taken."""
        self.counter("handshakes", outcome).inc()
        self.histogram("handshake_seconds").observe(seconds)

    def command(self, kind: Enum, outcome: str) -> None:
        """A command was answered."""
        self.counter("commands", kind.name.lower(), outcome).inc()

    def refused(self, code: Enum) -> None:
        """A COORD_ERROR was produced."""
        self.counter("refusals", code.name.lower()).inc()

    def gap(self, reason: Enum) -> None:
        """A GAP was produced."""
        self.counter("gaps", reason.name.lower()).inc()

    def credit_stall(self) -> None:
        """A subscription stopped for want of credit."""
        self.counter("credit_stalls").inc()

    def credit_stall_over(self, seconds: float) -> None:
        """It goes on, or was paused or closed."""
        self.histogram("credit_stall_seconds").observe(seconds)

    def snapshot_page(self, records: int, nbytes: int) -> None:
        """A snapshot page was produced."""
        self.counter("snapshot_pages").inc()
        self.counter("snapshot_records").inc(records)
        self.counter("snapshot_page_bytes").inc(nbytes)

    def replay_page(self, events: int, nbytes: int) -> None:
        """A replay page was produced."""
        self.counter("replay_pages").inc()
        self.counter("replay_events").inc(events)
        self.counter("replay_page_bytes").inc(nbytes)

    def lease_expired(self, kind: str) -> None:
        """A lease ran out."""
        self.counter("leases_expired", kind).inc()

    def events_sent(self, count: int, nbytes: int) -> None:
        """COORD_EVENTs were produced."""
        self.counter("events_sent").inc(count)
        self.counter("event_bytes").inc(nbytes)

    def command_wait(self, seconds: float) -> None:
        """A command or lookup had its turn."""
        self._command_wait.observe(seconds)

    def batch(self, size: int, seconds: float) -> None:
        """A batch became durable."""
        self.histogram("commit_batch_transactions").observe(size)
        self.histogram("commit_seconds").observe(seconds)

    def events_dropped(self, count: int) -> None:
        """Old events left the retained log."""
        self.counter("events_dropped").inc(count)

    def quota(self, resource: str) -> None:
        """A quota refused an action."""
        self.counter("quota_refusals", resource).inc()


def _build(metric: Metric, registry: CollectorRegistry) -> MetricWrapperBase:
    """The metric with all series that its labels allow; without values of a label there are none yet."""
    labels = [label.name for label in metric.labels]
    if metric.kind is Kind.HISTOGRAM:
        return Histogram(metric.name, metric.help, labels, buckets=metric.buckets, registry=registry)
    made: Counter | Gauge
    if metric.kind is Kind.COUNTER:
        made = Counter(metric.name, metric.help, labels, registry=registry)
    else:
        made = Gauge(metric.name, metric.help, labels, registry=registry)
    if labels:
        for values in itertools.product(*(label.values for label in metric.labels)):
            made.labels(*values)
    return made


def documentation() -> str:
    """The text of docs/metrics.md."""
    lines = [
        "# Metrics",
        "",
        "Generated from the catalogue in `sidecar/ops/metrics.py` by `python -m sidecar.ops.metrics`; a test keeps",
        "the two equal. Besides these, the usual `process_*` metrics of the Prometheus client are exposed. Labels take",
        "values of closed sets only, and every series is there from the first scrape on, at 0.",
        "",
        "| metric | type | labels | meaning |",
        "|---|---|---|---|",
    ]
    for metric in CATALOGUE:
        labels = "; ".join(f"`{label.name}`: {label.meaning}" for label in metric.labels) or "none"
        lines.append(f"| `{metric.exposed}` | {metric.kind.value} | {labels} | {metric.help} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(documentation(), end="")
