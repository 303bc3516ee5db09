"""The rails on NATS: names, trust, the connection, messaging and typed endpoints.

``from sidecar.rails import Endpoint, Caller`` is all that an author of an endpoint or of a caller needs; the two are
imported when they are asked for, so that a client of the messaging plane does not pay for them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sidecar.rails.endpoint.app import Endpoint
    from sidecar.rails.endpoint.caller import Caller

__all__ = ["Caller", "Endpoint"]

_WHERE: Final = {"Endpoint": "sidecar.rails.endpoint.app", "Caller": "sidecar.rails.endpoint.caller"}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)
