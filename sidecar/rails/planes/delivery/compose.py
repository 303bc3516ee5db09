"""What the delivery plane of a space is made of: its loops in the order in which they are bound, and its commands."""

from __future__ import annotations

from typing import Final

from sidecar.rails.planes.delivery.anycast_desk import AnycastDesk
from sidecar.rails.planes.delivery.daemon import DeliveryPlane, Loop
from sidecar.rails.planes.delivery.lease import Lease
from sidecar.rails.planes.delivery.plane import Plane
from sidecar.rails.space.holder import Form, Service
from sidecar.rails.space.matrix import DELIVERY_COMMANDS, READ_COMMANDS

INVENTORY: Final = "lifecycle-memberships"
"""What the operator asks of a lifecycle that ends (CB-75)."""


def served(form: Form) -> tuple[str, ...]:
    """The commands that the endpoint has in spaces of a form. Members of a compatible space read by themselves."""
    return (*DELIVERY_COMMANDS, INVENTORY, *(READ_COMMANDS if form is Form.MEDIATED else ()))


def compose(plane: Plane, lease: Lease, service: Service) -> DeliveryPlane:
    """The plane, ready to run."""
    desk = AnycastDesk(plane)
    held = [
        Loop("takes", desk.serve),
        Loop("notices", desk.tell),
        Loop("sweep", desk.sweep_for_ever),
    ]
    return DeliveryPlane(plane, lease, always=[], held=held)
