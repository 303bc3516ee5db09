"""`sidecar delivery`: the delivery planes of one or more spaces in one process, beside the coordinator and not in it.

A coordinator that fences itself must not take deliveries down, so that this is a process of its own. Every space is a
lane that shares nothing with the others (CB-81, CB-82).
"""

from __future__ import annotations

from sidecar.app.delivery_config import DeliveryConfig
from sidecar.app.delivery_lane import DeliveryLane
from sidecar.app.lanes import run_lanes


def deliver(config: DeliveryConfig) -> None:
    """Run until SIGTERM or SIGINT; prints one JSON line on stdout when every lane serves, or waits for another holder.

    Returns after a clean stop, in which every lease is given back. Raises CannotStart. Runs in the main thread only.
    """
    run_lanes(
        config.metrics,
        config.log,
        lambda metrics, log: [DeliveryLane(lane, config.credential_seconds, metrics, log) for lane in config.lanes],
    )
