"""All state machines, in the order of the documentation."""

from __future__ import annotations

from typing import Any, Final

from sidecar.coordinator.machines.authority import AUTHORITY
from sidecar.coordinator.machines.connection import CONNECTION
from sidecar.coordinator.machines.lease import LEASE
from sidecar.coordinator.machines.machine import Machine
from sidecar.coordinator.machines.operation import OPERATION
from sidecar.coordinator.machines.request import REQUEST
from sidecar.coordinator.machines.subscription import SUBSCRIPTION

MACHINES: Final[tuple[Machine[Any, Any], ...]] = (CONNECTION, REQUEST, SUBSCRIPTION, LEASE, OPERATION, AUTHORITY)
