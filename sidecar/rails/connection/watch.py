"""How a connection is seen: metrics, log lines, and notices to its owner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection.faults import Fault, Said
from sidecar.rails.connection.policy import State


class Happening(StrEnum):
    """What an owner is told; the first three are metric labels."""

    CONNECTED = "connected"
    RESTORED = "restored"
    RENEWED = "renewed"
    FAULT = "fault"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Notice:
    """One event of a connection, with the fault that it is about."""

    happening: Happening
    said: Said | None = None


class Watch:
    """Counts, logs and tells. The owner's callback is synchronous; what it raises is counted and goes no further."""

    def __init__(
        self,
        metrics: Metrics | None = None,
        log: Log | None = None,
        tell: Callable[[Notice], None] | None = None,
    ) -> None:
        self._metrics = metrics
        self._log = log
        self._tell = tell

    def entered(self, before: State | None, state: State) -> None:
        """The connection changed its state; an ended one is not counted any more."""
        if self._metrics is None:
            return
        for one, step in ((before, -1), (state, 1)):
            if one is not None and one is not State.CLOSED:
                self._metrics.gauge("nats_connections", one.value).inc(step)

    def fault(self, said: Said, *, noticed: bool = True) -> None:
        """A fault happened; ``noticed`` when no caller is told of it."""
        if self._metrics is not None:
            self._metrics.counter("nats_faults", said.fault.value).inc()
        if self._log is not None and said.fault is not Fault.NO_RESPONDERS:
            self._log.warning(f"nats_{said.fault.value}", text=said.text, subject=said.subject)
        if noticed and said.fault is not Fault.NO_RESPONDERS:
            self.notice(Notice(Happening.FAULT, said))

    def dropped(self) -> None:
        """A message was dropped because its reader was too slow."""
        if self._metrics is not None:
            self._metrics.counter("nats_messages_dropped").inc()

    def record_redirected(self) -> None:
        """Somebody's redirected read stood in the place of a record, or came to a watch; it was not believed."""
        if self._metrics is not None:
            self._metrics.counter("nats_records_redirected").inc()
        if self._log is not None:
            self._log.warning("nats_record_redirected")

    def store_refused(self, kind: str) -> None:
        """A stream did not take a message."""
        if self._metrics is not None:
            self._metrics.counter("nats_stores_refused", kind).inc()

    def notice(self, notice: Notice) -> None:
        """Tell the owner."""
        if notice.happening is not Happening.FAULT:
            if self._metrics is not None and notice.said is None:
                self._metrics.counter("nats_links", notice.happening.value).inc()
            if self._log is not None:
                line = self._log.info if notice.said is None else self._log.error
                line(
                    f"nats_{notice.happening.value}",
                    fault=None if notice.said is None else notice.said.fault.value,
                    text=None if notice.said is None else notice.said.text,
                )
        if self._tell is None:
            return
        try:
            self._tell(notice)
        except Exception as error:
            if self._metrics is not None:
                self._metrics.counter("nats_callback_failures").inc()
            if self._log is not None:
                self._log.error("nats_callback_failed", error=type(error).__name__)
