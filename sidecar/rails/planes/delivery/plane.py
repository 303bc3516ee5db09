"""What every part of one space's delivery plane is given: one lane, of which another space shares nothing (CB-82)."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from sidecar.base.clock import Now, system_now
from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection
from sidecar.rails.names.principals import Lifecycle
from sidecar.rails.planes.delivery.floors import Floors
from sidecar.rails.space.holder import Form


@dataclass(frozen=True, slots=True)
class Plane:
    """The context of a lane. ``lifecycle`` is the daemon's own: its principal is written into the rows that it makes.
    ``entropy`` gives that many random bytes; ``floors`` are what is known of its durables from before."""

    connection: Connection
    space: str
    form: Form
    lifecycle: Lifecycle
    metrics: Metrics = field(default_factory=Metrics)
    log: Log = field(default_factory=Log)
    clock: Callable[[], Now] = system_now
    entropy: Callable[[int], bytes] = os.urandom
    floors: Floors = field(default_factory=Floors)

    @property
    def mediated(self) -> bool:
        """Whether the agents of the space read nothing that is stored by themselves."""
        return self.form is Form.MEDIATED
