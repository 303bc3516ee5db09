"""Every command that needs no terminal owner, through the client and the command line, on a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from sidecar.coordinator.client import CoordinatorClient, Outcome
from sidecar.coordinator.client_trust import Pins
from sidecar.coordinator.wire import payloads as pl
from sidecar.coordinator.wire.enums import (
    AdminKind,
    Capability,
    CommandKind,
    ObjectKind,
    RunState,
    Scope,
    SignalState,
    WorkSessionState,
)
from sidecar.coordinator.wire.errors import CapabilityRequired, ResourceExhausted, RevisionConflict
from sidecar.coordinator.wire.ids import ArtifactId, ObjectId
from sidecar.coordinator.wire.limits import RETENTION_FLOOR
from sidecar.coordinator.wire.records import AdminCredential, AdminRetention, ObjectRef, SnapshotRecord, Succeeded
from tests.e2e.clients import cli, connect, write_ready
from tests.e2e.cluster import Cluster, eventually
from tests.e2e.seeding import Seeded, ids, seed

OFFERED = Capability.ARTIFACT_MANIFESTS | Capability.SIGNALS | Capability.ADMINISTRATION
EVERYTHING = {"scopes": 0x3F, "capabilities": 0x1F}
KEPT = RETENTION_FLOOR + 86_400
ARTIFACT_BYTES = 4_096
KEYS = 5


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("work"), certificate_seconds=4)
    seed(cluster.layout.store, sets=2)
    with cluster:
        yield cluster


@pytest.fixture
def work() -> list[Seeded]:
    return ids(2)


def payload(records: Iterable[SnapshotRecord], kind: ObjectKind, id_: bytes) -> Any:
    (record,) = [record for record in records if (record.kind, record.id) == (kind, id_)]
    return pl.decode_record_payload(record.kind, record.payload)


def administration(records: Iterable[SnapshotRecord]) -> list[pl.AdminRecord]:
    found = [pl.decode_record_payload(record.kind, record.payload) for record in records]
    return [item for item in found if isinstance(item, pl.AdminRecord)]


async def run_all(cluster: Cluster, work: Seeded) -> dict[str, Outcome]:
    """One of each command; what must be refused is."""
    async with await connect(cluster, Pins(), "admin", **EVERYTHING) as client:
        assert client.welcome.capabilities & OFFERED == OFFERED
        assert not client.welcome.capabilities & Capability.TERMINAL_BINDINGS
        assert client.welcome.retention_seconds == RETENTION_FLOOR
        session = work.sessions[work.planned]
        fresh = work.artifact[:-1] + b"\xff"
        done = {
            "pause": await client.pause_run(work.running),
            "resume": await client.resume_run(work.paused),
            "cancel": await client.cancel_run(work.planned),
            "ack": await client.ack_signal(work.open_signals[0], "seen"),
            "suppress": await client.suppress_signal(work.acknowledged_signal),
            "next": await client.register_artifact_manifest(work.artifact, 2, b"two"),
            # Cancelling the run moved its session to revision 2.
            "first": await client.register_artifact_manifest(ArtifactId(fresh), 1, b"one", session=(session, 2)),
            "retention": await client.change_retention(KEPT, 1 << 20, ARTIFACT_BYTES),
        }
        with pytest.raises(RevisionConflict):
            await client.resume_run(work.finished)
        with pytest.raises(RevisionConflict):
            await client.ack_signal(work.resolved_signal)
        with pytest.raises(CapabilityRequired):
            await client.cancel_run(work.bound)
        with pytest.raises(RevisionConflict):
            await client.register_artifact_manifest(work.artifact, 2, b"again")
        with pytest.raises(ResourceExhausted):
            await client.register_artifact_manifest(work.artifact, 3, bytes(ARTIFACT_BYTES))
    return done


async def check_all(cluster: Cluster, work: Seeded, done: dict[str, Outcome]) -> None:
    """What the commands have made, and that sending one again finds its result."""
    async with await connect(cluster, Pins(), "admin", **EVERYTHING) as client:
        assert client.welcome.retention_seconds == KEPT
        records = (await client.snapshot()).records
        states = [payload(records, ObjectKind.RUN, run).state for run in (work.running, work.paused, work.planned)]
        assert states == [RunState.PAUSED, RunState.RUNNING, RunState.CANCELLED]
        session = payload(records, ObjectKind.WORK_SESSION, work.sessions[work.planned])
        assert session.state is WorkSessionState.ENDED
        assert payload(records, ObjectKind.SIGNAL, work.open_signals[0]).state is SignalState.ACKNOWLEDGED
        assert payload(records, ObjectKind.SIGNAL, work.acknowledged_signal).state is SignalState.SUPPRESSED
        assert payload(records, ObjectKind.ARTIFACT, work.artifact).latest_revision == 2
        assert payload(records, ObjectKind.ARTIFACT_MANIFEST, work.artifact).manifest == b"two"
        retention = payload(records, ObjectKind.ADMIN, client.welcome.coordinator_id)
        assert retention.content() == AdminRetention(KEPT, 1 << 20, ARTIFACT_BYTES)
        for outcome in done.values():
            assert await client.operation(outcome.operation_id) == outcome.result
        again = await client.pause_run(work.running, operation=done["pause"].operation_id)
        assert again.result == done["pause"].result


@pytest.mark.req("P5-15", "P5-17", "P8-09", "P8-13", "P8-17", "P6-16")
def test_every_command_works_and_survives_a_kill(cluster: Cluster, work: list[Seeded]) -> None:
    first = work[0]
    done = asyncio.run(run_all(cluster, first))
    for name, kind, target in (
        ("pause", ObjectKind.RUN, first.running),
        ("ack", ObjectKind.SIGNAL, first.open_signals[0]),
        ("next", ObjectKind.ARTIFACT, first.artifact),
    ):
        result = done[name].result
        assert isinstance(result, Succeeded)
        assert result.content() == ObjectRef(kind, ObjectId(target))
    asyncio.run(check_all(cluster, first, done))
    samples = cluster.metrics()
    for command in (CommandKind.ACK_SIGNAL, CommandKind.CANCEL_RUN, CommandKind.CHANGE_RETENTION):
        assert samples[f'sidecar_commands_total{{kind="{command.name.lower()}",outcome="succeeded"}}'] == 1
    assert samples['sidecar_quota_refusals_total{resource="artifact_bytes"}'] == 1
    cluster.kill()
    cluster.start_serve()
    asyncio.run(check_all(cluster, first, done))


async def admin_records(cluster: Cluster) -> list[pl.AdminRecord]:
    async with await connect(cluster, Pins(), "admin", **EVERYTHING) as client:
        return administration((await client.snapshot()).records)


@pytest.mark.req("P6-16", "W8-06")
def test_activations_and_credentials_are_on_record_across_restarts(cluster: Cluster) -> None:
    def kinds() -> list[AdminKind]:
        return [record.admin_kind for record in asyncio.run(admin_records(cluster))]

    eventually(lambda: kinds().count(AdminKind.ACTIVATION) == 1)
    assert kinds().count(AdminKind.CREDENTIAL) == KEYS
    assert cluster.stop() == 0
    cluster.start_serve()
    eventually(lambda: kinds().count(AdminKind.ACTIVATION) == 2)
    credentials = [record.content() for record in asyncio.run(admin_records(cluster))]
    scopes = {values.key_id: values.scopes for values in credentials if isinstance(values, AdminCredential)}
    assert len(scopes) == KEYS
    assert Scope(0x3F) in scopes.values()


@pytest.mark.req("P5-12", "P5-14", "P5-17")
def test_every_bit_but_terminal_bindings_is_offered_and_none_is_assumed(cluster: Cluster, work: list[Seeded]) -> None:
    async def offers(capabilities: int, required: int = 0) -> int:
        async with await connect(
            cluster, Pins(), "admin", scopes=0x3F, capabilities=capabilities, required=required
        ) as client:
            return client.welcome.capabilities

    async def refused_without(client: CoordinatorClient) -> None:
        for command in (
            client.ack_signal(work[0].open_signals[0]),
            client.suppress_signal(work[0].open_signals[0]),
            client.register_artifact_manifest(work[0].artifact, 2, b"two"),
            client.change_retention(KEPT, 1, 1),
        ):
            with pytest.raises(CapabilityRequired):
                await command

    async def alone() -> None:
        async with await connect(cluster, Pins(), "admin", scopes=0x3F, capabilities=0) as client:
            await refused_without(client)

    for bit in Capability:
        expected = 0 if bit is Capability.TERMINAL_BINDINGS else bit
        assert asyncio.run(offers(bit)) == expected
    assert asyncio.run(offers(1 << 63 | 0x1F, int(OFFERED))) == 0x1F & ~Capability.TERMINAL_BINDINGS
    with pytest.raises(CapabilityRequired):
        asyncio.run(offers(0x1F, Capability.TERMINAL_BINDINGS))
    asyncio.run(alone())


def document(*arguments: str) -> dict[str, Any]:
    done = cli(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_every_command_from_the_command_line(cluster: Cluster, work: list[Seeded]) -> None:
    item, dev = work[1], ("--dev", str(write_ready(cluster)), "--as", "admin")
    for arguments, named in (
        (("run", "pause", item.running.hex()), "run_id"),
        (("run", "resume", item.paused.hex()), "run_id"),
        (("run", "cancel", item.planned.hex()), "run_id"),
        (("signal", "ack", item.open_signals[0].hex(), "--note", "seen"), "signal_id"),
        (("signal", "suppress", item.open_signals[1].hex()), "signal_id"),
        (("artifact", "register", "two", "--id", item.artifact.hex(), "--revision", "2"), "artifact_id"),
        (
            ("artifact", "register", "one", "--session", item.sessions[item.bound].hex(), "--session-revision", "1"),
            "artifact_id",
        ),
    ):
        shown = document(*arguments, *dev)
        assert shown["result"]["state"] == "SUCCEEDED"
        assert shown["result"]["content"]["id"] == shown[named]
    set_arguments = ("--result-seconds", str(KEPT), "--event-bytes", "0", "--artifact-bytes", "1")
    assert set(document("retention", "set", *set_arguments, *dev)) == {"operation_id", "result", "recovered"}
    assert document("retention", "show", *dev) == {
        "advertised_result_seconds": KEPT,
        "asked": {"operation_result_secs": KEPT, "event_bytes": 0, "artifact_bytes": 1},
        "asked_visible": True,
    }
    people = cli("retention", "show", *dev)
    assert f"results are kept for              {KEPT} s ({KEPT / 86_400:g} days)\n" in people.stdout
    # A key that may not see what was asked for is not told that nothing was.
    blind = ("retention", "show", "--scopes", "WORK_READ", *dev)
    assert document(*blind) == {"advertised_result_seconds": KEPT, "asked": None, "asked_visible": False}
    assert "not shown to this key: that needs the scope ADMIN\n" in cli(*blind).stdout
    refused = cli("run", "pause", item.running.hex(), *dev)
    assert refused.returncode == 1
    assert "REVISION_CONFLICT" in refused.stderr
    unnamed = cli("artifact", "register", "one", *dev)
    assert (unnamed.returncode, "--session" in unnamed.stderr) == (2, True)
    low = cli("retention", "set", "--result-seconds", "2591999", *set_arguments[2:], *dev)
    assert low.returncode == 2
