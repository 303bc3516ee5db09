"""The registry of the metrics that the catalogue declares, and the observer that counts them.

`CATALOGUE` (`sidecar/ops/catalogue`, one file per part of the project) is the only place that names a metric: the
registry, the documentation (`docs/metrics.md`) and its test are derived from it. Labels take values of closed sets
alone; none ever carries a client, key, object, connection or path. Every series exists from the first scrape on, at 0,
so that rates and alerts see the first event.
"""

from __future__ import annotations

import itertools
import platform
from collections.abc import Callable, Iterable, Sequence
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
from sidecar.ops.catalogue import CATALOGUE
from sidecar.ops.catalogue.coordinator import WAYS
from sidecar.ops.metric import PREFIX, Kind, Metric

# A creation time beside every series doubles the exposition and serves nothing here.
disable_created_metrics()  # type: ignore[no-untyped-call]

_FRAMES = ("sidecar_frames", "sidecar_frame_bytes")
_TYPE_AT = 4
"""Where a frame has its type, behind the length (P3-01)."""


class _FrameCollector(Collector):
    """Frame counts as plain arrays: they change with every frame, where a locked counter would show in the profile."""

    def __init__(self, metrics: tuple[Metric, Metric], type_name: Callable[[int], str]) -> None:
        self._metrics = metrics
        self._names = [type_name(number) for number in range(256)]
        self.cells = {(metric.name, way): [0] * 256 for metric in metrics for way in WAYS}

    def collect(self) -> Iterable[CounterMetricFamily]:
        for metric in self._metrics:
            family = CounterMetricFamily(metric.name, metric.help, labels=["direction", "type"])
            for way in WAYS:
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

    def histogram(self, name: str, *labels: str) -> Histogram:
        """One histogram; its label values in the order of the catalogue."""
        metric = self._by_name[PREFIX + name]
        assert isinstance(metric, Histogram)
        return metric.labels(*labels) if labels else metric

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
    made: Counter | Gauge | Histogram
    if metric.kind is Kind.HISTOGRAM:
        made = Histogram(metric.name, metric.help, labels, buckets=metric.buckets, registry=registry)
    elif metric.kind is Kind.COUNTER:
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
        "Generated from the catalogue in `sidecar/ops/catalogue` by `python -m sidecar.ops.metrics`; a test keeps",
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
