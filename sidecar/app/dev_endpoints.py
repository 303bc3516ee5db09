"""The endpoints of ``sidecar dev``: the registry of both spaces, and in space main the coordinator's bridge and two
instances of the sample, each in a process of its own.

Nothing waits for another but for what it needs: the processes start beside each other, and a warm start beside the
proof of the spaces too.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from sidecar.app.dev_spaces import SPACES
from sidecar.app.domains import claim
from sidecar.app.layout import Layout
from sidecar.app.principals import derived_owner
from sidecar.app.provision import Provisioned
from sidecar.app.supervisor import Child, Supervisor
from sidecar.base.safefile import write_private

SPACE: Final = "main"
DOMAIN: Final = "dev.sidecar"
OWNER: Final = "endpoints@dev.sidecar.invalid"
"""Who owns the domain of our own endpoints in space main."""
SAMPLE: Final = "sidecar.app.sample:endpoint"
SAMPLES: Final = ("sample-1", "sample-2")
_SIDECAR: Final = [sys.executable, "-m", "sidecar"]


@dataclass(slots=True)
class Endpoints:
    """The processes that serve them, by what each is called in the logs."""

    layout: Layout
    url: str
    children: dict[str, Child] = field(default_factory=dict)

    @classmethod
    def prepare(cls, layout: Layout, url: str) -> Endpoints:
        """Write the configurations; nothing is started, and nothing is asked of the broker."""
        made = cls(layout, url)
        registry = layout.conf / "registry.json"
        lanes = [{"space": name, "url": url, "root": os.fspath(layout.nats)} for name in SPACES]
        write_private(registry, json.dumps({"lanes": lanes}, indent=2).encode())
        made._child("registry", "registry", "--config", os.fspath(registry))
        return made

    def own(self, provisioned: Provisioned) -> None:
        """Claim the domain of the endpoints that are ours, and prepare who serves them; the space is there."""
        root = self.layout.nats
        owner = derived_owner(root, SPACE, OWNER)
        claim(root, SPACE, DOMAIN, owner)
        bridge = self.layout.conf / "bridge.json"
        write_private(bridge, json.dumps(_bridge(self.layout, provisioned, self.url, owner), indent=2).encode())
        self._child("bridge", "bridge", "--config", os.fspath(bridge))
        where = ("--root", os.fspath(root), "--space", SPACE, "--server", self.url, "--owner", owner)
        for name in SAMPLES:  # each takes up an instance of an earlier start that nobody serves, or makes one
            self._child(name, "ep", "serve", SAMPLE, *where)

    async def start(self, names: tuple[str, ...], supervisor: Supervisor, refreshed: Callable[[], None]) -> None:
        """Start these beside each other and keep them running; ``refreshed`` hears of each (again) ready one. Raises
        ChildFailed."""
        await asyncio.gather(*(supervisor.start(self.children[name], lambda _: refreshed()) for name in names))

    def _child(self, name: str, *arguments: str) -> None:
        self.children[name] = Child(name, [*_SIDECAR, *arguments], self.layout.log / f"{name}.log")


def endpoints_told(endpoints: Endpoints | None, delivery: dict[str, Any]) -> list[dict[str, Any]]:
    """What the ready line says of endpoints: each one of space main with its instances, at their newest epochs.
    ``delivery`` is the ready line of that process."""
    ready = {} if endpoints is None else {name: child.ready for name, child in endpoints.children.items()}
    listed = {
        "dev.sidecar.sample": [_served(ready[name]) for name in SAMPLES if name in ready],
        "registry": _lane(ready.get("registry", {})),
        "dev.sidecar.coordinator": [_served(ready["bridge"])] if "bridge" in ready else [],
        "delivery": _lane(delivery),
    }
    return [{"name": name, "instances": found} for name, found in listed.items() if found]


def _bridge(layout: Layout, provisioned: Provisioned, url: str, owner: str) -> dict[str, Any]:
    return {
        "space": SPACE,
        "url": url,
        "root": os.fspath(layout.nats),
        "owner": owner,
        "coordinator": {
            "socket": os.fspath(layout.run / "coordinator.sock"),
            # The key of the operator, so that what the operator does can be looked up; its login is for reading alone.
            "key": f"file:{provisioned.workloads['operator']['key_file']}",
            "pins": os.fspath(layout.root / "bridge" / "pins.json"),
            "witnessId": provisioned.witness_id.hex(),
            "witnessPublicKey": provisioned.witness_public_key.hex(),
            "artifacts": True,
        },
    }


def _served(ready: dict[str, Any]) -> dict[str, Any]:
    return {"instance_id": ready["instance_id"], "epoch": ready["epoch"]}


def _lane(ready: dict[str, Any]) -> list[dict[str, Any]]:
    """The instance of space main in the ready line of a process with lanes."""
    lanes = [one for one in ready.get("lanes", ()) if one["space"] == SPACE]
    return [{"instance_id": one["instance"], "epoch": one["epoch"]} for one in lanes]
