"""The channel registry in memory: which class a channel has when a post is fanned out (C7-07, C7-09, C4-06)."""

from __future__ import annotations

from sidecar.rails.connection.kv import Entry
from sidecar.rails.messaging.registry import (
    DEFAULTS_KEY,
    NOTHING_SAID,
    ChannelConfig,
    DeliveryClass,
    Registry,
    read_config,
)
from sidecar.rails.names import buckets
from sidecar.rails.planes.delivery.mirror import Mirror
from sidecar.rails.planes.delivery.plane import Plane

_LABEL = "channels"


class Channels:
    """``run`` feeds the registry; ``current`` makes it as current as the bucket, or raises Behind."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._channels: dict[str, ChannelConfig] = {}
        self._registry = Registry(NOTHING_SAID, self._channels)
        self._mirror = Mirror(plane, buckets.CHANNELS, _LABEL, self._take)
        self.run, self.current = self._mirror.run, self._mirror.current

    def durable(self, channel: str) -> bool:
        """Whether members have copies of what is posted there."""
        return self._registry.effective(channel).delivery_class is DeliveryClass.DURABLE

    def _take(self, entry: Entry) -> None:
        config, faults = (NOTHING_SAID, []) if entry.deleted else read_config(entry.key, entry.value)
        if faults:
            self._plane.metrics.counter("delivery_bad_rows", _LABEL).inc()
        if entry.key == DEFAULTS_KEY:
            self._registry = Registry(config, self._channels)
        elif entry.deleted:
            self._channels.pop(entry.key, None)
        else:
            self._channels[entry.key] = config
