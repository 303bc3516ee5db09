"""The rails on NATS: names, trust, the connection, messaging and typed endpoints.

``from sidecar.rails import Endpoint, Call, Code, Caller`` is all that an author of an endpoint or of a caller needs;
they are imported when they are asked for, so that a client of the messaging plane does not pay for them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sidecar.rails.endpoint.app import Endpoint
    from sidecar.rails.endpoint.call import Call
    from sidecar.rails.endpoint.caller import Caller
    from sidecar.rails.endpoint.codes import Code

__all__ = ["Call", "Caller", "Code", "Endpoint"]

_WHERE: Final = {
    "Call": "sidecar.rails.endpoint.call",
    "Caller": "sidecar.rails.endpoint.caller",
    "Code": "sidecar.rails.endpoint.codes",
    "Endpoint": "sidecar.rails.endpoint.app",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)
