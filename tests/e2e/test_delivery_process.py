"""`sidecar delivery` as a process: lanes, the lease between processes, kills at bad moments, and clean stops."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from sidecar.app import delivery_registration
from sidecar.app.delivery_config import LaneConfig
from sidecar.app.delivery_lane import DeliveryLane, LaneState, write_state
from sidecar.app.endpoint_host import host
from sidecar.app.spaces import create_space
from sidecar.app.supervisor import Child
from sidecar.base.safefile import DirLock, ensure_private_dir
from sidecar.base.strictjson import JsonValue
from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection
from sidecar.rails.connection.kv import KeyValue
from sidecar.rails.endpoint.call import Call
from sidecar.rails.endpoint.caller import Caller
from sidecar.rails.endpoint.service_record import read_spec
from sidecar.rails.messaging.liveness import Verdict, probe
from sidecar.rails.names import api, buckets, consumers, headers, streams, subjects
from sidecar.rails.planes.delivery.anycast import Record, key_of
from sidecar.rails.planes.delivery.broker import consumer_info
from sidecar.rails.planes.delivery.compose import delivery_endpoint, served
from sidecar.rails.planes.delivery.lease import LeaseRow
from sidecar.rails.planes.registration.naming import Place as Placed
from sidecar.rails.space.holder import Form
from sidecar.rails.space.trust import SpaceTrust
from tests.e2e.anycast_scene import take, take_of
from tests.e2e.cluster import Program
from tests.e2e.delivery_rig import CHAT, DLV, INBOX, Author, Rig, kept, root, store_of
from tests.e2e.durable_reads import Member, Town
from tests.e2e.space_broker import EVENT_SECONDS, SpaceBroker
from tests.e2e.space_members import SPACE, Space
from tests.e2e.wire_tap import Tap, tapped

pytestmark = pytest.mark.asyncio
ROLE = "reviewer"


class Process:
    """One `sidecar delivery`, and what it says of itself."""

    def __init__(self, directory: Path, name: str, lanes: list[dict[str, str]], seconds: int) -> None:
        config = directory / f"{name}.json"
        config.write_text(json.dumps({"lanes": lanes, "credentialSeconds": seconds}))
        self.program = Program(directory / f"{name}.log", "delivery", "--config", str(config))
        self.ready: dict[str, Any] = {}

    async def wait_ready(self) -> Process:
        self.ready = await asyncio.to_thread(self.program.wait_ready)
        return self

    async def events(self, event: str, count: int = 1) -> list[dict[str, Any]]:
        """Its log lines of a kind, when there are so many."""
        async with asyncio.timeout(2 * EVENT_SECONDS):
            while len(found := [line for line in self.program.lines() if line["event"] == event]) < count:  # noqa: ASYNC110 - another process writes them
                await asyncio.sleep(0.02)
        return found

    def unready(self) -> str:
        try:
            with urllib.request.urlopen(self.ready["ready_url"], timeout=5) as answer:
                assert answer.status == 200
                return ""
        except urllib.error.HTTPError as error:
            return error.read().decode()

    def metric(self, sample: str) -> float:
        with urllib.request.urlopen(self.ready["metrics_url"], timeout=5) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith(f"sidecar_{sample} "):
                    return float(line.split()[-1])
        raise AssertionError(sample)


class Place:
    """A broker with spaces that `sidecar space create` made, and processes of the plane."""

    def __init__(self, broker: SpaceBroker) -> None:
        self.broker = broker
        self.processes: list[Process] = []

    async def town(self, form: Form = Form.MEDIATED) -> Town:
        await create_space(self.broker.directory, SPACE, form, self.broker.url)
        space = Space(self.broker, form)
        space.trust = SpaceTrust.open(self.broker.directory / "spaces" / SPACE, SPACE, os.urandom)
        return Town(space)

    def lane(self, space: str = SPACE, url: str = "", root: Path | None = None) -> dict[str, str]:
        return {"space": space, "url": url or self.broker.url, "root": str(root or self.broker.directory)}

    def start(self, *lanes: dict[str, str], seconds: int = 600) -> Process:
        name = f"delivery-{len(self.processes)}"
        process = Process(self.broker.directory, name, list(lanes) or [self.lane()], seconds)
        self.processes.append(process)
        return process

    async def started(self, *lanes: dict[str, str], seconds: int = 600) -> Process:
        return await self.start(*lanes, seconds=seconds).wait_ready()

    def end(self) -> None:
        for process in self.processes:
            if process.program.running:
                process.program.kill()


@pytest.fixture
def place_of(tmp_path: Path) -> Callable[[], contextlib.AbstractAsyncContextManager[Place]]:
    @contextlib.asynccontextmanager
    async def made() -> AsyncIterator[Place]:
        async with SpaceBroker(tmp_path) as broker:
            place = Place(broker)
            try:
                yield place
            finally:
                place.end()

    return made


Places = Callable[[], contextlib.AbstractAsyncContextManager[Place]]


async def call(member: Member, command: str, args: dict[str, JsonValue] | None = None, seconds: float = 10.0) -> Any:
    caller = Caller(member.connection, SPACE, member.lifecycle, member.lifecycle.principal.actor)
    try:
        return await caller.call("delivery", command, args, seconds=seconds)
    finally:
        await caller.close()


async def verdict(member: Member) -> Verdict:
    return (await probe(member.connection, SPACE, member.lifecycle.principal, "delivery")).verdict


async def lease_row(town: Town) -> tuple[LeaseRow | None, int]:
    async with root(Rig(town)) as operator:
        entry = await KeyValue(operator, buckets.DELIVERY, SPACE).get("lease.0")
    return (None, 0) if entry is None else (LeaseRow.decode(entry.value), entry.revision)


async def soon(met: Callable[[], Any]) -> Any:
    async with asyncio.timeout(2 * EVENT_SECONDS):
        while not (value := await met()):  # noqa: ASYNC110 - what is waited for is at the broker
            await asyncio.sleep(0.05)
        return value


@pytest.mark.req("C6.1-15", "CB-81", "CB-82")
async def test_lanes_share_nothing_and_one_that_fails_takes_no_other_down(place_of: Places) -> None:
    async with place_of() as place:
        town = await place.town()
        await create_space(place.broker.directory, "other", Form.COMPATIBLE, place.broker.url)
        process = await place.started(place.lane(), place.lane("other"))
        assert [lane["serving"] for lane in process.ready["lanes"]] == [True, True]
        assert process.unready() == ""
        states = [
            json.loads((place.broker.directory / "spaces" / name / "delivery" / "lane.json").read_text())
            for name in (SPACE, "other")
        ]
        for member in ("uid", "instance", "leases"):
            assert states[0][member] != states[1][member]
        async with town.member("alice") as alice:
            assert await verdict(alice) is Verdict.BOUND
            info = SpaceTrust.open(place.broker.directory / "spaces" / "other", "other", os.urandom)
            await place.broker.delete(info.account)
            await soon(lambda: asyncio.to_thread(process.unready))
            assert "space other" in process.unready()
            assert f"space {SPACE}" not in process.unready()
            assert await verdict(alice) is Verdict.BOUND
            assert await call(alice, "anycast-takes") == {"takes": True}
        assert process.program.stop() == 0


@pytest.mark.req("C6.1-15", "C6.1-16")
async def test_the_row_decides_what_a_probe_is_told(place_of: Places) -> None:
    async with place_of() as place:
        town = await place.town()
        process = await place.started()
        async with town.member("alice") as alice, root(Rig(town)) as operator:
            bucket = KeyValue(operator, buckets.DELIVERY, SPACE)
            assert await verdict(alice) is Verdict.BOUND
            row, _ = await lease_row(town)
            assert row is not None
            assert row.holder == "local.delivery"
            await bucket.put("lease.0", b"no row")
            assert await verdict(alice) is Verdict.UNKNOWN
            await bucket.put("lease.0", LeaseRow("local.delivery", "another", 1, ready=True).encode())
            assert await verdict(alice) is Verdict.STALE
            await bucket.put("lease.0", LeaseRow("local.delivery", row.instance, 1, ready=False).encode())
            assert await verdict(alice) is Verdict.UNBOUND
            await bucket.delete("lease.0")
            assert await verdict(alice) is Verdict.UNBOUND
        assert process.program.running


async def _is(awaited: Any, value: object) -> bool:
    return bool(await awaited == value)


async def test_a_second_process_waits_and_takes_over_after_a_clean_stop(place_of: Places) -> None:
    """Two directories with the same keys, as on two machines: only the lease is between them."""
    async with place_of() as place:
        town = await place.town()
        first = await place.started()
        copy = place.broker.directory / "copy"
        (copy / "spaces").mkdir(parents=True, mode=0o700)
        os.chmod(copy, 0o700)
        source = place.broker.directory / "spaces" / SPACE
        target = copy / "spaces" / SPACE
        target.mkdir(mode=0o700)
        for name in ("account.nk", "signing.nk", "account.jwt", "space.json"):
            (target / name).write_bytes((source / name).read_bytes())
            (target / name).chmod(0o600)
        second = await place.started(place.lane(root=copy))
        assert [lane["serving"] for lane in second.ready["lanes"]] == [False]
        assert "the lane is waiting" in second.unready()
        row, _ = await lease_row(town)
        assert first.program.stop() == 0
        await second.events("delivery_serving")
        await soon(lambda: _changed(town, row))
        assert second.unready() == ""
        assert second.program.stop() == 0
        assert await lease_row(town) == (None, 0)


async def _changed(town: Town, before: LeaseRow | None) -> bool:
    row, _ = await lease_row(town)
    return row is not None and row.ready and before is not None and row.instance != before.instance


async def test_epochs_grow_and_a_killed_process_is_followed_at_once(place_of: Places) -> None:
    async with place_of() as place:
        await place.town()
        epochs = []
        for _ in range(3):
            process = await place.started()
            epochs.append(process.ready["lanes"][0]["epoch"])
            assert process.ready["lanes"][0]["serving"]
            process.program.kill()
        assert epochs == [0, 1, 2], "those of its registrations"


@pytest.mark.req("C13.7-65", "C13.7-68")
async def test_delivery_is_an_endpoint_that_says_what_it_takes(place_of: Places) -> None:
    """Its descriptor is public, its contracts are those that callers have compiled in, and it is registered."""
    async with place_of() as place:
        town = await place.town()
        process = await place.started()
        (lane,) = process.ready["lanes"]
        async with town.member("alice") as alice, root(Rig(town)) as operator:
            caller = Caller(alice.connection, SPACE, alice.lifecycle, "alice")
            described = await caller.describe("delivery", seconds=10.0)
            await caller.close()
            assert (described.instance, described.epoch) == (lane["instance"], lane["epoch"])
            (cluster,) = described.descriptor.clusters
            assert set(cluster.commands) == set(served(Form.MEDIATED))
            where = Placed(SPACE, "delivery", lane["instance"])
            stream = buckets.RECORDS.stream(SPACE)
            asked = json.dumps({"last_by_subj": where.spec}).encode()
            answer = json.loads((await operator.request(api.MESSAGE_GET.build(stream=stream), asked)).data)
            record = read_spec(json.loads(base64.b64decode(answer["message"]["data"])))
            assert record.cluster_digests == (cluster.digest,)
            reports = api.STREAM_INFO.build(stream=streams.EPR.stream(SPACE))
            stored = json.loads((await operator.request(reports, b"")).data)
            assert stored["state"]["last_seq"] == 1, "it told its record that it is ready"


async def test_a_lane_that_cannot_be_registered_serves_all_the_same(place_of: Places) -> None:
    async with place_of() as place:
        town = await place.town()
        first = await place.started()
        (before,) = first.ready["lanes"]
        assert first.program.stop() == 0
        async with root(Rig(town)) as operator:
            gate = Placed(SPACE, "delivery", before["instance"]).gate
            await operator.request(gate, b"no gate")
        second = await place.started()
        (after,) = second.ready["lanes"]
        assert after["serving"]
        assert after["instance"] != before["instance"]
        assert after["epoch"] == 0
        assert second.metric("delivery_unregistered_total") == 1
        assert await second.events("delivery_unregistered")
        async with town.member("alice") as alice:
            assert await call(alice, "anycast-takes") == {"takes": True}


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
async def test_a_stop_beside_a_broker_that_does_not_answer_is_clean_and_soon(
    place_of: Places, how: signal.Signals
) -> None:
    """Sooner than `sidecar dev` kills it."""
    async with place_of() as place:
        await place.town()
        program = (await place.started()).program
        assert place.broker.process is not None
        os.kill(place.broker.process.pid, how)
        program.process.send_signal(signal.SIGTERM)
        code = await asyncio.to_thread(program.process.wait, Child("", [], program.log).stop_seconds)
        program.kill()  # what it has open here
        if how is signal.SIGSTOP:
            os.kill(place.broker.process.pid, signal.SIGCONT)
        assert code == 0


async def test_a_ready_line_that_nobody_reads_is_told_in_the_log(place_of: Places) -> None:
    async with place_of() as place:
        town = await place.town()
        process = place.start()
        assert process.program.process.stdout is not None
        process.program.process.stdout.close()
        await process.events("ready_line_unwritten")
        async with town.member("alice") as alice:
            assert await verdict(alice) is Verdict.BOUND
        assert process.program.stop() == 0


async def test_credentials_are_replaced_before_they_end(place_of: Places) -> None:
    async with place_of() as place:
        town = await place.town()
        process = await place.started(seconds=10)
        await process.events("nats_renewed")
        async with town.member("alice") as alice:
            assert await call(alice, "anycast-takes") == {"takes": True}
        assert process.metric('delivery_restarts_total{kind="lane"}') == 0


async def test_a_broker_that_is_killed_is_served_again(place_of: Places) -> None:
    async with place_of() as place:
        town = await place.town()
        process = await place.started()
        place.broker.kill()
        place.broker.start()
        async with town.member("alice") as alice:
            await soon(lambda: _is(verdict(alice), Verdict.BOUND))
            assert await call(alice, "anycast-takes") == {"takes": True}
        assert process.program.stop() == 0


# ---- kills ----


@contextlib.asynccontextmanager
async def killed_at(place: Place, stop_at: Callable[[str], bool]) -> AsyncIterator[tuple[Process, Tap]]:
    """A process whose first publish of a kind never reaches the broker; it is killed there, and followed by another."""
    async with tapped(place.broker.port) as tap:
        process = await place.started(place.lane(url=tap.url))
        tap.stop_at = stop_at
        yield process, tap
        async with asyncio.timeout(EVENT_SECONDS):
            await tap.stopped.wait()
        process.program.kill()


@pytest.mark.req("C8.1-45", "C8.1-46")
async def test_killed_between_the_answer_to_a_take_and_its_notice(place_of: Places) -> None:
    async with place_of() as place:
        town = await place.town()
        await town.activate("carol", (ROLE,))
        pattern = subjects.INST.subtree(space=SPACE, to_owner="local", to_actor="alice")
        async with town.member("alice") as alice, town.member("carol", roles=(ROLE,)) as carol:
            sequence = await alice.request_role(ROLE, "k-1")
            async with killed_at(place, lambda subject: ".inst." in subject):
                epoch = (await call(carol, "task-epoch"))["epoch"]
                assert await take(carol, take_of(carol, sequence, "k-1", 1, epoch)) == {"ok": True}
            assert await kept(Rig(town), streams.DM.stream(SPACE), pattern) == []
            following = await place.started()

            async def noticed() -> bool:
                return bool(await kept(Rig(town), streams.DM.stream(SPACE), pattern))

            await soon(noticed)
            status = await call(alice, "anycast-status", {"seq": sequence, "id": "k-1"})
            assert (status["state"], status["taker"]["id"]) == ("taken", "local.carol")
            following.program.kill()
            await place.started()
            (copy,) = await kept(Rig(town), streams.DM.stream(SPACE), pattern)
            assert copy.value["parts"][1]["data"][headers.ANYCAST_NOTICE]["event"] == "taken"


@pytest.mark.req("C8.1-38", "C8.1-40")
async def test_killed_between_the_row_of_a_cancel_and_the_deletion(place_of: Places) -> None:
    async with place_of() as place:
        town = await place.town()
        async with town.member("alice") as alice:
            sequence = await alice.request_role(ROLE, "k-2")
            delete = api.MESSAGE_DELETE.build(stream=streams.TASK.stream(SPACE))
            args: dict[str, JsonValue] = {"seq": sequence, "id": "k-2"}
            async with killed_at(place, lambda subject: subject == delete):
                cancelling = asyncio.create_task(call(alice, "anycast-cancel", args, seconds=3.0))
            assert (await asyncio.gather(cancelling, return_exceptions=True))[0] is not None
            async with root(Rig(town)) as operator:
                epoch = json.loads(
                    (await operator.request(api.STREAM_INFO.build(stream=streams.TASK.stream(SPACE)))).data
                )["created"]
                entry = await KeyValue(operator, buckets.ANYCAST, SPACE).get(key_of(epoch, sequence))
                assert entry is not None
                assert json.loads(entry.value)["removal"] == "pending"
                await place.started()
                bucket = KeyValue(operator, buckets.ANYCAST, SPACE)

                async def removed() -> bool:
                    found = await bucket.get(key_of(epoch, sequence))
                    return found is not None and Record.decode(found.value).removal == "deleted"

                await soon(removed)
            status = await call(alice, "anycast-cancel", args)
            assert (status["state"], status["removal"]) == ("cancelled", "deleted")


@pytest.mark.req("C9-47", "C8-39")
async def test_killed_between_a_fetch_and_the_settling_of_its_copies(place_of: Places) -> None:
    async with place_of() as place:
        town = await place.town()
        await town.activate("bob")
        fetch: dict[str, JsonValue] = {"source": "dm", "batch": 8, "waitMs": 2000}
        async with town.member("alice") as alice, town.member("bob") as bob:
            for n in range(3):
                await alice.tell("bob", f"k-{n}")
            process = await place.started()
            frames = (await call(bob, "fetch", fetch))["frames"]
            assert len(frames) == 3
            process.program.kill()
            await place.started()
            items: list[JsonValue] = [{"token": frame["token"], "how": "ack"} for frame in frames[:2]]
            items.append({"token": frames[2]["token"], "how": "nak"})
            assert (await call(bob, "settle", {"source": "dm", "items": items}))["settled"] == [True] * 3
            again = (await call(bob, "fetch", fetch))["frames"]
            assert [(one["sequence"], one["delivered"]) for one in again] == [(frames[2]["sequence"], 2)]


async def test_posts_of_the_time_without_a_plane_reach_their_members(place_of: Places) -> None:
    async with place_of() as place:
        town = await place.town()
        rig = Rig(town)
        await town.activate("bob")
        await rig.acl("bob", "team.>")
        async with town.member("alice", allow_publish=("team.>",)) as alice, town.member("bob") as bob:
            await rig.channel("team.a", "durable")
            process = await place.started()
            frontier = (await call(bob, "read-history", {"channel": "team.a", "limit": 0}))["frontier"]
            joined = await call(bob, "durable-join", {"channel": "team.a", "joinCursor": frontier})
            assert joined["durable"], joined
            process.program.kill()
            await Author(alice).post("team.a", "off-1")
            await place.started()
            frames = (await call(bob, "fetch", {"source": "backstop", "batch": 8, "waitMs": 9000}, 15.0))["frames"]
            assert len(frames) == 1
            assert (await call(bob, "list-memberships"))["memberships"][0]["channel"] == "team.a"


@pytest.mark.req("C4-08")
async def test_durables_deleted_while_no_plane_runs_go_on_where_they_were(place_of: Places) -> None:
    """Long behind the duplicate windows, which would hide what is copied again."""
    loops = ((CHAT, consumers.FANOUT.build()), (INBOX, consumers.READER.build()))
    async with place_of() as place:
        town = await place.town()
        rig = Rig(town)
        await town.activate("bob")
        await rig.acl("bob", "team.>")
        await rig.channel("team.a", "durable")

        async def idle() -> bool:
            async with root(rig) as operator:
                return not any([await _left(operator, *loop) for loop in loops])

        async with town.member("alice", allow_publish=("team.>",)) as alice, town.member("bob") as bob:
            process = await place.started()
            assert (await call(bob, "durable-join", {"channel": "team.a", "joinCursor": 0}))["durable"]
            for number in range(3):
                await Author(alice).post("team.a", f"before-{number}")
            await soon(idle)
            assert process.program.stop() == 0
            for stream in (INBOX, DLV):
                await rig.configure(stream, duplicate_window=100_000_000)
            place.broker.kill()
            place.broker.start()
            for loop in loops:
                await rig.delete_consumer(*loop)
            await Author(alice).post("team.a", "meanwhile")
            process = await place.started()
            await Author(alice).post("team.a", "after")
            await soon(idle)
            found = [copy.id for copy in await store_of(rig, "bob")]
            assert found == ["before-0", "before-1", "before-2", "meanwhile", "after"]
            assert process.program.stop() == 0


async def _left(connection: Connection, stream: str, consumer: str) -> int:
    info = await consumer_info(connection, stream, consumer)
    return 1 if info is None else int(info["num_pending"]) + int(info["num_ack_pending"])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{}", "lanes"),
        ("no json", "is no JSON"),
        ('{"lanes":[{"space":"a","url":"nats://x:1","root":"r","more":1}]}', "lanes[0].more"),
        ('{"lanes":[{"space":"a b","url":"nats://x:1","root":"r"}]}', "lanes[0].space"),
        ('{"lanes":[{"space":"a","url":"http://x","root":"r"}]}', "lanes[0].url"),
        (
            '{"lanes":[{"space":"a","url":"nats://x:1","root":"r"},{"space":"a","url":"nats://y:1","root":"r"}]}',
            "twice",
        ),
        ('{"lanes":[{"space":"a","url":"nats://x:1","root":"r","form":"open"}]}', "lanes[0].form"),
        ('{"lanes":[{"space":"a","url":"nats://x:1","root":"r"}],"credentialSeconds":5}', "credentialSeconds"),
        ('{"lanes":[{"space":"a","url":"nats://x:1","root":"r"}],"metrics":"0.0.0.0:1"}', "metrics"),
    ],
)
async def test_a_configuration_that_is_not_right_is_refused_in_one_line(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "delivery.json"
    file.write_text(text)
    program = Program(tmp_path / "log", "delivery", "--config", str(file))
    assert await asyncio.to_thread(program.wait) == 78
    assert program.stderr.count("\n") == 1
    assert told in program.stderr


@pytest.mark.req("C13.7-61", "C13.1-028")
async def test_a_lane_that_serves_without_is_registered_as_soon_as_that_can_be(
    place_of: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_registration, "LATE_SECONDS", 0.05)
    async with place_of() as place:
        town = await place.town()
        root_directory, url = place.broker.directory, place.broker.url
        metrics, text = Metrics(), io.StringIO()
        endpoint = delivery_endpoint(dict.fromkeys(served(Form.MEDIATED), _nothing))
        instance = os.urandom(16).hex()
        (await host(root_directory, SPACE, url, endpoint, owner="local", instance=instance)).close()
        ensure_private_dir(root_directory / "spaces" / SPACE / "delivery")
        with DirLock(root_directory / "spaces" / SPACE / "delivery") as lock:
            state = LaneState(os.urandom(16).hex(), instance)
            write_state(root_directory / "spaces" / SPACE / "delivery", state, lock)
        where = Placed(SPACE, "delivery", instance)
        async with root(Rig(town)) as operator, town.member("alice") as alice:
            stream = buckets.AUTH.stream(SPACE)
            asked = json.dumps({"last_by_subj": where.gate}).encode()
            answer = await operator.request(api.MESSAGE_GET.build(stream=stream), asked)
            gate = base64.b64decode(json.loads(answer.data)["message"]["data"])
            await operator.request(where.gate, b"no gate")
            lane = DeliveryLane(LaneConfig(SPACE, url, root_directory), 300, metrics, Log(text))
            running = asyncio.create_task(lane.run())
            try:
                async with asyncio.timeout(2 * EVENT_SECONDS):
                    await lane.settled.wait()
                    assert lane.service is not None
                    assert (lane.service.instance != instance, lane.service.epoch) == (True, 0)
                    assert await call(alice, "anycast-takes") == {"takes": True}
                    while metrics.totals("delivery_unregistered")[()] < 3:  # noqa: ASYNC110 - it tries on
                        await asyncio.sleep(0.02)
                    assert lane.serving
                    await operator.request(where.gate, gate)
                    while lane.service.instance != instance or not lane.serving:  # noqa: ASYNC110 - another task
                        await asyncio.sleep(0.02)
                assert lane.service.epoch == 1
                assert await call(alice, "anycast-takes") == {"takes": True}
                assert "delivery_registered_late" in text.getvalue()
                assert not any(metrics.totals("delivery_restarts").values())
            finally:
                running.cancel()
                await asyncio.wait((running,))


async def _nothing(_: Call) -> JsonValue:
    return None
