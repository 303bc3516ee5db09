"""`sidecar registry`: what endpoints there are in one or more spaces, and the reads that discovery needs.

A process of its own beside delivery: it holds other keys and fails for other reasons. Every space is a lane that shares
nothing with the others. Two processes of one space serve it together.
"""

from __future__ import annotations

from sidecar.app.lanes import run_lanes
from sidecar.app.registry_config import RegistryConfig
from sidecar.app.registry_lane import RegistryLane


def registry(config: RegistryConfig) -> None:
    """Run until SIGTERM or SIGINT; prints one JSON line on stdout when every lane serves.

    Returns after a clean stop, in which what is asked already is answered. Raises CannotStart. Runs in the main thread
    only.
    """
    run_lanes(
        config.metrics,
        config.log,
        lambda metrics, log: [RegistryLane(lane, config.credential_seconds, metrics, log) for lane in config.lanes],
    )
