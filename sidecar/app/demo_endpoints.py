"""The part of the tour in which an agent finds an endpoint, asks what it takes, and calls it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from sidecar.app import sample
from sidecar.app.access import Access
from sidecar.app.demo_messaging import by_hand
from sidecar.app.dev import Dev
from sidecar.app.dev_endpoints import SPACE
from sidecar.app.ep_access import calling
from sidecar.bridge.endpoint import NAME as COORDINATOR
from sidecar.rails.endpoint.caller import Caller
from sidecar.rails.endpoint.calls_types import To
from sidecar.rails.endpoint.codes import CallError, Outcome

Say = Callable[[str], None]
_SECONDS: Final = 20.0
"""The longest wait of a step."""


async def endpoints(dev: Dev, say: Say, first: int) -> None:
    """Steps ``first`` and ``first + 1``. Raises what fails: a failing tour is a failing product."""
    creds = dev.spaces[SPACE]["creds"]
    alice = Access.of(dev.broker.url, Path(creds["alice"]))
    async with calling(alice, _SECONDS) as caller:
        await _sample(dev, caller, say, first)
        await _coordinator(dev, caller, say, first + 1)


async def _sample(dev: Dev, caller: Caller, say: Say, step: int) -> None:
    listed = [str(row["endpoint"]) for row in (await caller.endpoints()).rows]
    say(f"{step}. An agent asked what there is, what it takes, and called it; it knew no contract before")
    say(f"   alice finds   {', '.join(listed)}")
    say(by_hand(dev, "alice", "ep", "list", space=SPACE))
    described = await caller.describe(sample.NAME, seconds=_SECONDS)
    commands = sorted(name for cluster in described.descriptor.clusters for name in cluster.commands)
    say(f"   it offers her {', '.join(commands)}")
    say(by_hand(dev, "alice", "ep", "describe", sample.NAME, space=SPACE))
    added: Any = await caller.invoke(sample.NAME, "add", {"a": 2, "b": 40}, seconds=_SECONDS)
    say(f"   2 + 40 is     {added.data['sum']}, says instance {added.instance[:8]} at epoch {added.epoch}")
    say(by_hand(dev, "alice", "ep", "call", sample.NAME, "add", "a=2", "b=40", space=SPACE))
    me: Any = await caller.call(sample.NAME, "whoami", seconds=_SECONDS, target=To("self"))
    say(f"   it knows her  as {me['owner']}.{me['actor']}: the broker says so, not she")
    try:
        await caller.call(sample.NAME, "fail", {"code": "conflict", "after": False}, seconds=_SECONDS)
    except CallError as refused:
        if refused.outcome is not Outcome.NOT_EXECUTED:
            raise
        say(f"   a refusal     says its code and what became of it: {refused.code}, {refused.outcome}")
    else:
        raise RuntimeError("a command that fails did not")


async def _coordinator(dev: Dev, caller: Caller, say: Say, step: int) -> None:
    status: Any = await caller.call(COORDINATOR, "status", seconds=_SECONDS)
    if not status["connected"]:
        raise RuntimeError(f"the bridge does not reach the coordinator: {status['problem']}")
    say(f"{step}. The coordinator answers on the rails too, for reading")
    told = f"at event {status['cut']} with {status['objects']} records, read at epoch {status['at']['epoch']}"
    say(f"   it stands     {told}")
    page: Any = await caller.call(COORDINATOR, "objects", {"kind": "OBJECTIVE", "limit": 1}, seconds=_SECONDS)
    for row in page["rows"]:
        say(f"   an objective  {row['id']}, revision {row['revision']}")
    say(by_hand(dev, "alice", "ep", "call", COORDINATOR, "status", space=SPACE))
