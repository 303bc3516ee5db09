"""How much work a schema can make (13.7)."""

from __future__ import annotations

from sidecar.rails.endpoint.schema_walk import Bundle


def work_of(bundle: Bundle) -> int:
    """Evaluations of one part of a value, at most."""
    return 1
