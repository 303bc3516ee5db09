"""Registrations that are killed after any number of steps: the next run ends where an undisturbed one does."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from sidecar.app.endpoint_host import Hosted, deregister, retire
from sidecar.app.endpoint_records import EndpointShelf
from sidecar.rails.connection import Connection, State
from sidecar.rails.names import buckets
from sidecar.rails.names.principals import Lifecycle
from sidecar.rails.planes.registration.gates import CredentialRow, GateState, RowState
from sidecar.rails.planes.registration.govern import Head as Governance
from sidecar.rails.planes.registration.naming import Place
from sidecar.rails.space.lifecycles import read_head
from sidecar.rails.space.retire import subjects_of
from tests.e2e.registering import SPACE, Site, echo, site
from tests.e2e.space_broker import EVENT_SECONDS

pytestmark = pytest.mark.asyncio

KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from sidecar.app.endpoint_host import deregister, host, retire
from sidecar.base import safefile
from sidecar.ops.metrics import Metrics
from tests.e2e.registering import OWNER, SPACE, echo

def step():
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

sync, request, heard = safefile._sync_dir, Client.request, Subscription.next_msg

def synced(path):
    sync(path)
    step()

async def requested(self, *args, **more):
    answer = await request(self, *args, **more)
    step()
    return answer

async def hears(self, *args, **more):
    message = await heard(self, *args, **more)
    step()
    return message

safefile._sync_dir, Client.request, Subscription.next_msg = synced, requested, hears

async def main(command, name, instance):
    root, url = Path(sys.argv[1]), sys.argv[2]
    if command == "host":
        hosted = await host(root, SPACE, url, echo(name), owner=OWNER, instance=instance, metrics=metrics)
        await hosted.minter()
    else:
        await {"deregister": deregister, "retire": retire}[command](root, SPACE, url, name, instance, metrics=metrics)

metrics = Metrics()
for line in sys.stdin:
    count, command, name, instance = line.split()
    left = int(count)
    if (child := os.fork()) == 0:
        asyncio.run(main(command, name, instance))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest_asyncio.fixture
async def here(tmp_path: Path) -> AsyncIterator[Site]:
    async with site(tmp_path) as made:
        yield made


class Killer:
    """Runs commands that are killed after so many writes and answers, each in a process of its own."""

    def __init__(self, here: Site) -> None:
        command = [sys.executable, "-c", KILLED, str(here.root), here.broker.url]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    async def kill_after(self, steps: int, command: str, at: Place) -> bool:
        """False when the command was through before."""
        return await asyncio.to_thread(self._killed, f"{steps} {command} {at.endpoint} {at.instance}\n")

    def _killed(self, line: str) -> bool:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line)
        self.process.stdin.flush()
        code = int(self.process.stdout.readline())
        assert code in (0, -signal.SIGKILL)
        return code != 0


@contextlib.contextmanager
def killing(here: Site) -> Iterator[Killer]:
    killer = Killer(here)
    try:
        yield killer
    finally:
        killer.process.communicate(timeout=EVENT_SECONDS)


def numbered(steps: int) -> Place:
    """An endpoint for each run, so that none has to look at the records of those before."""
    return Place(SPACE, f"com.acme.echo{steps}", f"{steps:04x}" * 8)


async def rows_of(here: Site, place: Place) -> dict[str, RowState]:
    """The state of each credential of an instance, by its key."""
    found = {}
    async with here.hand() as hand:
        subjects = await subjects_of(hand.client, buckets.AUTH.stream(SPACE), place.credentials)
    for subject in subjects:
        row = CredentialRow.decode((await here.kept(buckets.AUTH, subject)).value or b"")
        found[row.credential_id] = row.state
    return found


async def settled(here: Site, hosted: Hosted, epochs: range) -> None:
    """That a registration stands as an undisturbed one does."""
    at = Place(SPACE, hosted.identity.endpoint, hosted.identity.instance)
    await hosted.minter()
    gate, (_, revision) = await here.gate(at.instance, at.endpoint), await here.record("spec", at.instance, at.endpoint)
    assert gate.state is GateState.OPEN
    assert gate.process_epoch == hosted.identity.epoch
    assert gate.process_epoch in epochs
    assert gate.registration_revision == revision == hosted.registered.registration_revision
    assert await head_epoch(here, hosted.identity.lifecycle) == gate.process_epoch
    assert await here.governance(at.endpoint) == Governance()
    assert list((await rows_of(here, at)).values()).count(RowState.ACTIVE) == 1
    record = EndpointShelf(here.root, SPACE, at.endpoint, at.instance).read()
    assert record is not None
    assert (record.progress, record.epoch, record.registered) == (None, gate.process_epoch, True)


async def head_epoch(here: Site, lifecycle: Lifecycle) -> int | None:
    async with here.hand() as hand:
        head, _ = await read_head(hand.client, SPACE, lifecycle.principal)
    return head.process_epoch if head is not None and head.current else None


@pytest.mark.req("C13.1-077", "C13.1-079", "C13.1-048", "C13.7-47", "C13.7-63")
@pytest.mark.parametrize("first", [1, 2])
async def test_a_first_registration_that_is_killed_anywhere_is_finished_by_the_next_run(here: Site, first: int) -> None:
    steps, killed = first - 2, True
    with killing(here) as killer:
        while killed:
            steps += 2
            at = numbered(steps)
            killed = await killer.kill_after(steps, "host", at)
            hosted = await here.host(echo(at.endpoint), instance=at.instance)
            # A kill behind the open gate leaves a registration; every other one is the first still.
            await settled(here, hosted, range(2))
            hosted.close()
    assert steps > 25


@pytest.mark.req("C13.1-031", "C13.1-033", "C13.1-032", "C13.1-077", "C13.1-015", "C13.1-062", "C13.1-048")
@pytest.mark.parametrize("first", [1, 2])
async def test_a_takeover_that_is_killed_anywhere_is_finished_by_the_next_run(here: Site, first: int) -> None:
    steps, killed = first - 2, True
    with killing(here) as killer:
        while killed:
            steps += 2
            at = numbered(steps)
            before = await here.host(echo(at.endpoint), instance=at.instance)
            async with await Connection.open([here.broker.url], before.minter) as old:
                before.close()
                killed = await killer.kill_after(steps, "host", at)
                gate = await here.gate(at.instance, at.endpoint)
                if gate.process_epoch:  # whoever may serve at the next epoch is alone
                    await ended(old)
                hosted = await here.host(echo(at.endpoint), instance=at.instance)
                await ended(old)
                await settled(here, hosted, range(1, 3))
            hosted.close()
    assert steps > 25


async def ended(connection: Connection) -> None:
    async with asyncio.timeout(EVENT_SECONDS):
        while connection.state is not State.STOPPED:  # noqa: ASYNC110 - its end has no event here
            await asyncio.sleep(0.005)


@pytest.mark.req("C13.1-077", "C13.1-084", "C13.1-060", "C13.1-093")
@pytest.mark.parametrize("command", ["deregister", "retire"])
async def test_an_end_that_is_killed_anywhere_is_finished_by_the_next_run(here: Site, command: str) -> None:
    steps, killed = 0, True
    with killing(here) as killer:
        while killed:
            steps += 1
            at = numbered(steps)
            hosted = await here.host(echo(at.endpoint), instance=at.instance)
            await hosted.minter()
            hosted.close()
            killed = await killer.kill_after(steps, command, at)
            end = deregister if command == "deregister" else retire
            await end(here.root, SPACE, here.broker.url, at.endpoint, at.instance, metrics=here.metrics)
            gate = await here.gate(at.instance, at.endpoint)
            assert gate.state is (GateState.OPEN if command == "deregister" else GateState.RETIRED)
            assert (await here.record("spec", at.instance, at.endpoint))[0] is None
            assert set((await rows_of(here, at)).values()) == {RowState.REVOKED}
            assert (await head_epoch(here, hosted.identity.lifecycle)) == (0 if command == "deregister" else None)
            record = EndpointShelf(here.root, SPACE, at.endpoint, at.instance).read()
            assert record is not None
            assert (record.progress, record.registered) == (None, False)
    assert steps > 15
