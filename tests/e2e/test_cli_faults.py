"""``sidecar coordinator`` as a process against servers that lose replies, break streams, split or lie."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sidecar.base.keysource import create_seed_file
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import Capability
from sidecar.coordinator.wire.records import Indeterminate, Rejected, Tombstoned
from tests.oracles.fake_endpoint import FakeEndpoint
from tests.oracles.fake_server import World, altered, objective
from tests.unit.client.rig import WORKLOAD, changing

OP = "88" * 16


@pytest_asyncio.fixture
async def endpoint(tmp_path: Path) -> AsyncIterator[FakeEndpoint]:
    world = World()
    world.admit(WORKLOAD)
    async with FakeEndpoint(tmp_path / "coordinator.sock", world) as serving:
        yield serving


class Running:
    """One command with everything it needs to reach the endpoint."""

    def __init__(self, endpoint: FakeEndpoint) -> None:
        directory = endpoint.path.parent
        self.key = directory / "key"
        if not self.key.exists():
            create_seed_file(self.key, lambda size: b"\xa2" * size)
        world = endpoint.world
        self.pins = directory / "client" / "pins.json"
        self.options = [
            *("--socket", str(endpoint.path), "--pins", str(self.pins), "--key-file", str(self.key)),
            *("--witness-id", world.witness_id.hex(), "--witness-key", world.witness.public_key.hex()),
        ]

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sidecar", "coordinator", *arguments, *self.options),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(os.environ),
        )

    async def to_end(self, *arguments: str) -> tuple[int, str, str]:
        process = await self.start(*arguments)
        output, errors = await process.communicate()
        assert process.returncode is not None
        lines = [line for line in errors.decode().splitlines(keepends=True) if "first use" not in line]
        return process.returncode, output.decode(), "".join(lines)


def mute(endpoint: FakeEndpoint, *shapes: type[fr.Frame]) -> None:
    """Replies of these kinds are lost together with the connection."""

    def behave(number: int) -> Any:
        def rewrite(frame: fr.Frame) -> fr.Frame | None:
            if isinstance(frame, shapes):
                endpoint.servers[number - 1].closed = True
                return None
            return frame

        return rewrite

    endpoint.behave = behave


@pytest.mark.req("P8-37", "P8-38")
@pytest.mark.asyncio
async def test_a_lost_reply_is_recovered_and_told(endpoint: FakeEndpoint) -> None:
    def behave(number: int) -> Any:
        def die(reply: fr.CoordCommandResult) -> None:
            endpoint.servers[0].closed = True

        return changing(fr.CoordCommandResult, die) if number == 1 else None

    endpoint.behave = behave
    code, output, errors = await Running(endpoint).to_end("objective", "create", "{}", "--operation-id", OP)
    assert (code, errors) == (0, "")
    assert "recovered" in output
    assert len(endpoint.world.commands) == 1


@pytest.mark.req("P8-37", "P8-39", "P13-07")
@pytest.mark.asyncio
async def test_an_outcome_that_stays_unknown_ends_with_5_and_names_the_operation(endpoint: FakeEndpoint) -> None:
    mute(endpoint, fr.CoordCommandResult, fr.OperationResultFrame)
    running = Running(endpoint)
    options = ("--operation-id", OP, "--recover", "0.5")
    code, output, errors = await running.to_end("objective", "create", "{}", "--json", *options)
    assert code == 5
    assert f"sidecar coordinator operation get {OP}" in errors
    assert errors.count("\n") == 1
    document = json.loads(output)
    assert document["error"]["name"] == "OUTCOME_UNKNOWN"
    assert document["operation_id"] == OP
    assert len(endpoint.world.commands) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (Indeterminate.decode(b"\x03\x01\x00"), 5),
        (Rejected.decode(b"\x02" + (9).to_bytes(8, "big") + b"\0\x0b\0\0\0\x02no"), 1),
        (Tombstoned.decode(b"\x04" + bytes(32) + b"\x01"), 0),
        (Tombstoned.decode(b"\x04" + bytes(32) + b"\x02"), 1),
        (Tombstoned.decode(b"\x04" + bytes(32) + b"\x03"), 5),
    ],
    ids=["indeterminate", "rejected", "tombstoned done", "tombstoned rejected", "tombstoned indeterminate"],
)
@pytest.mark.req("P8-39")
async def test_every_outcome_has_its_exit_code(endpoint: FakeEndpoint, result: Any, expected: int) -> None:
    endpoint.world.operations[bytes.fromhex(OP)] = result
    running = Running(endpoint)
    for arguments in (("operation", "get", OP), ("objective", "create", "{}", "--operation-id", OP)):
        code, output, errors = await running.to_end(*arguments)
        assert (code, errors) == (expected, "")
        assert type(result).__name__.upper() in output
    assert len(endpoint.world.commands) == 1
    assert endpoint.world.events == []


@pytest.mark.req("P12-29", "P12-30")
@pytest.mark.asyncio
async def test_a_split_brain_ends_with_4_until_the_pin_is_cleared(endpoint: FakeEndpoint) -> None:
    running = Running(endpoint)
    assert (await running.to_end("ping"))[0] == 0
    held = endpoint.world.token
    for token in (b"\xd1" * 32, held):  # the other side, then the first side again
        endpoint.world.token = token
        code, output, errors = await running.to_end("ping", "--json")
        assert code == 4
        assert "authority_conflict" in errors
        assert json.loads(output)["error"]["name"] == "AUTHORITY_CONFLICT"
    forget = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sidecar", "coordinator", "pins", "forget", "--pins", str(running.pins)),
        next(iter(json.loads(running.pins.read_bytes())["authorities"])),
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert await forget.wait() == 0
    assert (await running.to_end("ping"))[0] == 0


@pytest.mark.req("W3-19", "P12-19")
@pytest.mark.asyncio
async def test_a_server_that_can_not_prove_itself_ends_with_4(endpoint: FakeEndpoint) -> None:
    endpoint.behave = lambda number: changing(
        fr.WorkloadChallenge, lambda challenge: altered(challenge, authority_proof=bytes(64))
    )
    running = Running(endpoint)
    code, _, errors = await running.to_end("objective", "create", "{}")
    assert code == 4
    assert "check: proof" in errors
    assert not running.pins.exists()
    assert endpoint.world.commands == []


@pytest.mark.req("P9-16")
@pytest.mark.asyncio
async def test_a_snapshot_that_does_not_verify_shows_nothing(endpoint: FakeEndpoint) -> None:
    endpoint.world.put(objective(1))
    endpoint.behave = lambda number: changing(fr.SnapshotEnd, lambda end: altered(end, canonical_sha256=bytes(32)))
    code, output, errors = await Running(endpoint).to_end("snapshot")
    assert (code, output) == (4, "")
    assert len(endpoint.servers) == 1
    assert "digest" in errors


@pytest.mark.req("P10-21", "P10-36")
@pytest.mark.asyncio
async def test_a_watch_shows_a_gap_and_what_its_healing_changed(endpoint: FakeEndpoint) -> None:
    endpoint.world.put(objective(1))
    endpoint.world.put(objective(2))
    process = await Running(endpoint).start("watch")
    assert process.stdout is not None
    try:
        assert b"cut 2" in await process.stdout.readline()
        shown = [await process.stdout.readline(), await process.stdout.readline()]
        assert [b" r1 " in line for line in shown] == [True, True]
        server = endpoint.servers[0]
        await endpoint.received(fr.SnapshotApplied)
        endpoint.world.put(objective(1, 2, b'"changed"'))
        del endpoint.world.records[objective(2).key()]
        (stream,) = server.streams.values()
        server.gap(stream)
        endpoint.flush()
        assert (await process.stdout.readline()).startswith(b"GAP after event 2: GAP QUEUE_OVERFLOW")
        healed = await process.stdout.readline()
        assert b"cut 3" in healed
        assert healed.endswith(b"healed: 1 changed, 1 gone\n")
        assert b'r2  ACTIVE  "changed"' in await process.stdout.readline()
        assert b"gone OBJECTIVE" in await process.stdout.readline()
        assert len(endpoint.servers) == 1
    finally:
        process.terminate()
        await process.communicate()


@pytest.mark.req("P10-32", "P10-22")
@pytest.mark.asyncio
@pytest.mark.parametrize("as_json", [False, True])
async def test_a_watch_shows_the_events_that_a_replay_brings(endpoint: FakeEndpoint, as_json: bool) -> None:
    endpoint.world.capabilities = int(Capability.EVENT_REPLAY)
    process = await Running(endpoint).start("watch", *(["--json"] if as_json else []))
    assert process.stdout is not None
    try:
        await process.stdout.readline()
        await endpoint.received(fr.SnapshotApplied)
        (stream,) = endpoint.servers[0].streams.values()
        endpoint.servers[0].gap(stream)
        endpoint.world.put(objective(1))
        endpoint.world.put(objective(1, 2))
        endpoint.flush()
        shown = [(await process.stdout.readline()).decode() for _ in range(4)]
        await endpoint.received(fr.ReplayApplied)
        endpoint.world.put(objective(1, 3))
        endpoint.flush()
        shown.append((await process.stdout.readline()).decode())
    finally:
        process.terminate()
        await process.communicate()
    if as_json:
        lines = [json.loads(line) for line in shown]
        assert [line["type"] for line in lines] == ["gap", "replay", "event", "event", "event"]
        assert (lines[0]["reason"], lines[0]["last_event"], lines[0]["last_delivery"]) == ("QUEUE_OVERFLOW", 0, 0)
        assert (lines[1]["why"], lines[1]["through"], lines[1]["event_count"]) == ("heal", 2, 2)
        assert [(line["event"], line["revision"], line["delivery"]) for line in lines[2:]] == [
            (1, 1, None),
            (2, 2, None),
            (3, 3, 1),
        ]
    else:
        assert shown[0].startswith("GAP after event 0")
        assert shown[0].endswith("; healing\n")
        assert shown[1] == "healed by replay  events recovered 2  whole through event 2\n"
        assert [line.split()[:2] for line in shown[2:]] == [["event", "1"], ["event", "2"], ["event", "3"]]


@pytest.mark.req("P10-12", "P10-15")
@pytest.mark.asyncio
async def test_a_watch_leaves_a_server_whose_deliveries_do_not_follow(endpoint: FakeEndpoint) -> None:
    def behave(number: int) -> Any:
        if number > 1:
            return None
        return changing(fr.CoordEvent, lambda event: altered(event, delivery_sequence=event.delivery_sequence + 1))

    endpoint.behave = behave
    process = await Running(endpoint).start("watch", "--json")
    assert process.stdout is not None
    try:
        assert b'"cut": 0' in await process.stdout.readline()
        await endpoint.received(fr.SnapshotApplied)
        endpoint.world.put(objective(1))
        endpoint.flush()
        gap = json.loads(await process.stdout.readline())
        assert (gap["type"], gap["connection"], gap["reason"]) == ("gap", None, None)
        assert json.loads(await process.stdout.readline())["type"] == "reconnected"
        healed = json.loads(await process.stdout.readline())
        assert [record["kind"] for record in healed["changed"]] == ["OBJECTIVE"]
        assert len(endpoint.servers) == 2
    finally:
        process.terminate()
        await process.communicate()
