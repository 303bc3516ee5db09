"""The tour: a new user's main job on the running parts, a few lines per step."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from sidecar.app.demo_endpoints import endpoints
from sidecar.app.demo_messaging import command_line, talk
from sidecar.app.dev import Dev
from sidecar.base.keysource import load_seed_file
from sidecar.coordinator.authority.certificate import WitnessPin
from sidecar.coordinator.client import CoordinatorClient, ReconnectPolicy
from sidecar.coordinator.client_events import Snapshot
from sidecar.coordinator.pins import PinFile
from sidecar.coordinator.wire.enums import ObjectKind
from sidecar.coordinator.wire.errors import ProtocolError
from sidecar.coordinator.wire.ids import fresh_id, object_id, objective_id
from sidecar.coordinator.wire.records import ObjectRef, Precondition, Succeeded

Say = Callable[[str], None]
_DOCUMENT = b'{"title":"Ship the release","owner":"you"}'
_SECOND = b'{"title":"Ship the release","owner":"you","state":"tested"}'
# A killed coordinator's successor waits for the rest of its certificate, so the tour must be more patient than that.
_PATIENCE = ReconnectPolicy(attempts=150, first_delay=0.1, max_delay=0.5)


async def tour(dev: Dev, say: Say) -> None:
    """Runs the tour and ends when it is through. Raises what a step raises: a failing tour is a failing product."""
    coordinator = dev.ready["coordinator"]
    say("1. The parts are up, all on loopback, all under one directory")
    say(f"   directory     {dev.layout.root}")
    say(f"   coordinator   {coordinator['socket']}")
    say(f"   identity      {coordinator['coordinator_id']}, epoch {coordinator['epoch']}")
    say(f"   nats-server   {dev.broker.url} (JetStream on, spaces {', '.join(dev.spaces)})")
    say(f"   metrics       {dev.ready['metrics_url']}")
    operator = dev.ready["workloads"]["operator"]
    client = await CoordinatorClient.connect(
        coordinator["socket"],
        load_seed_file(operator["key_file"]),
        pins=PinFile(Path(dev.layout.root / "pins.json")),
        witness=WitnessPin(bytes.fromhex(coordinator["witness_id"]), bytes.fromhex(coordinator["witness_public_key"])),
        reconnect=_PATIENCE,
        client_name="tour",
    )
    async with client:
        by_hand = _ByHand(dev, say)
        say("2. You proved who you are, and the server proved who it is")
        say(f"   your key      {operator['key_id']}")
        say(f"   its authority {coordinator['authority_fingerprint']} (pinned in {dev.layout.root / 'pins.json'})")
        by_hand("hello")
        await _steps(dev, client, say, by_hand)


class _ByHand:
    """Says what to type for the same as a step did."""

    def __init__(self, dev: Dev, say: Say) -> None:
        self._root = dev.layout.root
        self._say = say

    def __call__(self, command: str, *arguments: str) -> None:
        self._say(f"   by hand:      {cli_command(self._root, command, *arguments)}")


def cli_command(root: Path, command: str, *arguments: str) -> str:
    """A ``sidecar coordinator`` command line for the shell, with the program as it was called here."""
    program = sys.argv[0] if Path(sys.argv[0]).name == "sidecar" else "sidecar"
    return shlex.join([program, "coordinator", *command.split(), "--dev", str(root), *arguments])


async def _steps(dev: Dev, client: CoordinatorClient, say: Say, by_hand: _ByHand) -> None:
    objective = fresh_id(objective_id, os.urandom)
    created = await client.create_objective(_DOCUMENT, objective=objective)
    say("3. You created durable work; the answer came after it was on disk")
    say(f"   objective     {objective.hex()}")
    say(f"   operation     {created.operation_id.hex()}: {_describe(created.result)}")
    by_hand("objective create", '{"title":"mine"}')

    again = await client.create_objective(_DOCUMENT, objective=objective, operation=created.operation_id)
    if again.result != created.result:
        raise RuntimeError("the same operation gave two results")
    say("4. You sent the same operation again: one result, nothing done twice")
    by_hand("operation get", created.operation_id.hex())

    reference = ObjectRef(kind=ObjectKind.OBJECTIVE, id=object_id(objective))
    stale = Precondition(object=reference, expected_revision=7)
    try:
        await client.update_objective(objective, _SECOND, preconditions=[stale])
    except ProtocolError as refusal:
        say(f"5. An update that expected a revision that is not there was refused: {refusal.code.name}")
        by_hand("objective update", objective.hex(), '{"title":"stale"}', "--revision", "7")
    else:
        raise RuntimeError("a stale precondition was accepted")

    before = dev.ready["coordinator"]["epoch"]
    os.kill(dev.ready["coordinator"]["pid"], signal.SIGKILL)
    say("6. The coordinator was killed with SIGKILL; its successor waits until the old certificate has run out ...")
    found = await client.operation(created.operation_id)
    if found != created.result:
        raise RuntimeError("an acknowledged operation was lost")
    epoch = client.welcome.standing.epoch
    say(f"   it is back at epoch {epoch} (was {before}), and your operation still has its result")
    await dev.restarted.wait()  # the client may be faster than the ready line

    snapshot, events = await client.follow()
    say(f"7. A verified snapshot: {_summary(snapshot)}")
    by_hand("snapshot")
    await client.update_objective(objective, _SECOND)
    async for event in events:
        say(f"   event         {event.sequence}: {event.kind.name} {event.object.kind.name} revision {event.revision}")
        if event.object.kind is ObjectKind.OBJECTIVE:
            break
    say("8. You followed live events from exactly that cut on, under credit")
    by_hand("watch")
    await talk(dev, say, first=9)
    if dev.endpoints is not None:
        await endpoints(dev, say, first=11)


def _describe(result: object) -> str:
    if isinstance(result, Succeeded):
        return f"SUCCEEDED at event {result.completed_event_sequence}"
    return type(result).__name__.upper()


def _summary(snapshot: Snapshot) -> str:
    return f"{snapshot.record_count} records at event {snapshot.base}, SHA-256 {snapshot.digest.hex()[:16]}..."


def next_steps(dev: Dev) -> str:
    """What to type next, while everything stays up."""
    root = dev.layout.root
    create = cli_command(root, "objective create", '{"title":"mine"}')
    return "\n".join(
        [
            "Everything stays up until Ctrl-C. In another terminal, begin with:",
            f"   {cli_command(root, 'watch')}",
            "and in a third one, while it runs:",
            f"   {create}",
            f"   kill -9 {dev.ready['coordinator']['pid']}   # the coordinator: it comes back, and the watch heals",
            "Two terminals that talk:",
            f"   {command_line(dev, 'bob', 'channel', 'tail', 'general')}",
            f"   {command_line(dev, 'alice', 'channel', 'send', 'general', 'hello')}",
            *_endpoints(dev),
            "Who is connected, what lags and which limit is near, live:",
            f"   {cli_command(root, 'top')}",
        ]
    )


def _endpoints(dev: Dev) -> list[str]:
    if dev.endpoints is None:
        return []
    commands = (("ep", "list"), ("ep", "call", "dev.sidecar.sample", "count"))
    typed = [f"   {command_line(dev, 'alice', *one, space='main')}" for one in commands]
    return ["Endpoints that answer:", *typed]
