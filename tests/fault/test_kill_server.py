"""kill -9 of the server at random moments under a stream of commands: every operation id is accounted for.

Real witness, real server processes, real disk. A round: start the server, stream commands from one client, kill the
server at a random moment. After the last round everything that was ever sent is looked up and the whole event log and a
snapshot are read.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sidecar.app.layout import Layout
from sidecar.app.provision import Provisioned, provision
from sidecar.base.keysource import load_seed_file
from sidecar.coordinator.authority.certificate import WitnessPin
from sidecar.coordinator.client import CoordinatorClient, ReconnectPolicy
from sidecar.coordinator.client_errors import CannotConnect, ConnectionLost, OutcomeUnknown
from sidecar.coordinator.client_events import WorkEvent
from sidecar.coordinator.pins import PinFile
from sidecar.coordinator.wire.enums import EventKind, ObjectKind
from sidecar.coordinator.wire.ids import (
    ObjectiveId,
    OperationId,
    event_cut,
    fresh_id,
    object_id,
    objective_id,
    operation_id,
)
from sidecar.coordinator.wire.records import OperationResult, Succeeded, Unknown

ROUNDS = 50
IN_FLIGHT = 16
CERTIFICATE_SECONDS = 2


@dataclass
class Rig:
    """A provisioned directory, its witness, and what was sent and answered so far."""

    layout: Layout
    provisioned: Provisioned
    sent: dict[OperationId, ObjectiveId] = field(default_factory=dict)
    acknowledged: dict[OperationId, OperationResult] = field(default_factory=dict)

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Starts a program and waits for its ready line; the program again when authority is not yet free."""
        with (self.layout.log / f"{command[0]}.log").open("ab") as log:
            process = subprocess.Popen([sys.executable, "-m", "sidecar", *command], stdout=subprocess.PIPE, stderr=log)
        assert process.stdout is not None
        with process.stdout as lines:
            line = lines.readline()
        assert line, (self.layout.log / f"{command[0]}.log").read_text()[-2000:]
        assert json.loads(line)["ready"] is True
        return process

    def start_witness(self) -> subprocess.Popen[bytes]:
        return self.start("witness", "serve", "--config", str(self.provisioned.witness_config))

    def start_server(self) -> subprocess.Popen[bytes]:
        return self.start("serve", "--config", str(self.provisioned.serve_config))

    async def client(self, **options: Any) -> CoordinatorClient:
        return await CoordinatorClient.connect(
            self.layout.run / "coordinator.sock",
            load_seed_file(self.provisioned.workloads["operator"]["key_file"]),
            pins=PinFile(self.layout.root / "pins.json"),
            witness=WitnessPin(self.provisioned.witness_id, self.provisioned.witness_public_key),
            patience=60,
            **options,
        )

    async def create(self, client: CoordinatorClient) -> None:
        operation, objective = fresh_id(operation_id, os.urandom), fresh_id(objective_id, os.urandom)
        self.sent[operation] = objective
        outcome = await client.create_objective(b'{"t":1}', objective=objective, operation=operation)
        self.acknowledged[operation] = outcome.result

    async def stream(self, server: subprocess.Popen[bytes], seconds: float) -> None:
        """Commands without a pause until the server is killed after ``seconds``."""

        async def worker(client: CoordinatorClient) -> None:
            while True:
                await self.create(client)

        client = await self.client()
        workers = [asyncio.create_task(worker(client)) for _ in range(IN_FLIGHT)]
        asyncio.get_running_loop().call_later(seconds, server.send_signal, signal.SIGKILL)
        for outcome in await asyncio.gather(*workers, return_exceptions=True):
            assert isinstance(outcome, ConnectionLost | OutcomeUnknown | CannotConnect), repr(outcome)
        await client.close()


async def every_event(client: CoordinatorClient, head: int) -> list[WorkEvent]:
    subscription = await client.subscribe(event_cut(0))
    return [await anext(subscription) for _ in range(head)]


async def account(rig: Rig) -> Counter[str]:
    """Checks everything that was ever sent against lookups, the event log and a snapshot."""
    found: Counter[str] = Counter()
    async with await rig.client(reconnect=ReconnectPolicy(attempts=3)) as client:
        snapshot = await client.snapshot()
        events = await every_event(client, snapshot.base)
        assert [event.sequence for event in events] == list(range(1, snapshot.base + 1))
        finished = Counter(
            OperationId(event.object.id) for event in events if event.kind is EventKind.OPERATION_CHANGED
        )
        created = Counter(event.object.id for event in events if event.kind is EventKind.OBJECTIVE_CHANGED)
        records = {(record.kind, record.id): record for record in snapshot.records}
        for operation, minted in rig.sent.items():
            objective = object_id(minted)
            result = await client.operation(operation)
            if operation in rig.acknowledged:
                assert result == rig.acknowledged[operation]
                found["acknowledged"] += 1
            if isinstance(result, Unknown):
                assert finished[operation] == created[objective] == 0
                assert (ObjectKind.OBJECTIVE, objective) not in records
                found["absent"] += 1
                continue
            assert isinstance(result, Succeeded)
            assert finished[operation] == created[objective] == 1
            assert records[ObjectKind.OBJECTIVE, objective].revision == 1
            found["present"] += 1
        assert len(created) == found["present"]
        # A repeat of what is there creates nothing, a repeat of what is absent is an ordinary first time.
        some = rig.sent.popitem()
        await client.create_objective(b'{"t":1}', objective=some[1], operation=some[0])
    return found


@pytest.mark.timeout(900)
@pytest.mark.req("P8-13", "P8-17", "P4-07", "P14-06", "P12-24")
def test_fifty_kills_lose_nothing(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    moments = random.Random(seed)
    layout = Layout(tmp_path / "d")
    layout.create()
    rig = Rig(layout, provision(layout, certificate_seconds=CERTIFICATE_SECONDS))
    witness = rig.start_witness()
    try:
        for _ in range(ROUNDS):
            server = rig.start_server()
            asyncio.run(rig.stream(server, moments.uniform(0.0, 0.4)))
            assert server.wait(30) == -signal.SIGKILL
        assert len(rig.acknowledged) > ROUNDS
        server = rig.start_server()
        found = asyncio.run(account(rig))
        server.terminate()
        assert server.wait(30) == 0
    finally:
        witness.terminate()
        assert witness.wait(30) == 0
    print(f"{len(rig.sent)} sent: {dict(found)}")
    assert found["acknowledged"] == len(rig.acknowledged)
