"""The delivery endpoint of a lane as the registry knows it: its contracts published, its instance registered, its epoch
that of the gate.

Delivery does not hang on that. What fences one delivery plane from the next is its lease; a lane that cannot register
(a host without the broker's trust, say) serves all the same, as an instance that nobody has ever been, and goes on
trying.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from sidecar.app.endpoint_host import Hosted, host
from sidecar.app.space_links import BrokerAway, SpaceFailed
from sidecar.base.safefile import UnsafeFile
from sidecar.base.strictjson import JsonValue
from sidecar.ops.logging import Log, told
from sidecar.ops.metrics import Metrics
from sidecar.rails.endpoint.call import Call
from sidecar.rails.names.principals import LOCAL_OWNER
from sidecar.rails.planes.delivery.compose import delivery_endpoint, served
from sidecar.rails.planes.delivery.daemon import wait_after
from sidecar.rails.planes.registration.faults import Conflict, RegistrationRefused, Unverified
from sidecar.rails.space.grants import GrantRefused
from sidecar.rails.space.holder import Form

TRIES: Final = 5
"""Failures in a row, with growing waits between them, after which a lane serves without."""
AGAIN_SECONDS: Final = 0.5
REGISTER_SECONDS: Final = 20.0
"""How long one try may take, an eviction included."""
LATE_SECONDS: Final = 5.0
LONGEST_LATE_SECONDS: Final = 300.0
"""Between the tries of a lane that serves: twice as long after each."""


async def registered(
    root: Path, space: str, url: str, form: Form, instance: str, metrics: Metrics, log: Log, *, tries: int = TRIES
) -> Hosted | None:
    """The registration of the lane's instance; None when it was refused or failed ``tries`` times in a row, which is
    logged and counted. A broker that is away is waited for."""
    endpoint = delivery_endpoint(dict.fromkeys(served(form), _elsewhere))
    failures = 0
    while True:
        try:
            async with asyncio.timeout(REGISTER_SECONDS):
                return await host(root, space, url, endpoint, owner=LOCAL_OWNER, instance=instance, metrics=metrics)
        except BrokerAway:
            await asyncio.sleep(AGAIN_SECONDS)
            continue
        except (SpaceFailed, TimeoutError, Unverified, Conflict) as error:
            problem: Exception = error
            failures += 1
            if failures >= tries:
                break
            await asyncio.sleep(wait_after(failures))
        except (RegistrationRefused, GrantRefused, UnsafeFile) as error:
            problem = error
            break
    metrics.counter("delivery_unregistered").inc()
    log.error("delivery_unregistered", space=space, problem=told(problem))
    return None


async def registered_late(
    root: Path, space: str, url: str, form: Form, instance: str, metrics: Metrics, log: Log
) -> Hosted:
    """The registration of an instance whose lane serves already, however long that takes."""
    wait = LATE_SECONDS
    while True:
        await asyncio.sleep(wait)
        if (hosted := await registered(root, space, url, form, instance, metrics, log, tries=1)) is not None:
            return hosted
        wait = min(2 * wait, LONGEST_LATE_SECONDS)


async def _elsewhere(call: Call) -> JsonValue:
    """What is registered is the surface; the handlers are those of the plane."""
    raise AssertionError(call.id)
