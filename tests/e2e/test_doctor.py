"""The doctor at real brokers: nothing wrong, and every fault produced for real."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from click.testing import CliRunner

from sidecar.app.broker import free_port
from sidecar.app.diagnosis import Finding, Level, exit_code
from sidecar.app.doctor import Question, examine
from sidecar.app.principal_records import Wanted
from sidecar.app.principals import add
from sidecar.app.spaces import create_space, open_space
from sidecar.base.safefile import write_private
from sidecar.cli.doctor import command
from sidecar.rails.connection.kv import KeyValue
from sidecar.rails.names import api, buckets, consumers, streams
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.planes.delivery.lease import LeaseRow
from sidecar.rails.space.claims import Access, Permissions
from sidecar.rails.space.creds import read_creds, write_creds
from sidecar.rails.space.holder import Form, Holder, Profile
from sidecar.rails.space.provision import activate
from sidecar.rails.space.trust import SpaceTrust, new_user
from tests.e2e.cluster import Program, hold
from tests.e2e.plain_broker import plain_broker
from tests.e2e.space_broker import EVENT_SECONDS, SpaceBroker
from tests.e2e.space_dial import dialled
from tests.e2e.space_members import SPACE, Space, clock, uid_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

ANN = Principal("local", "ann")


class Ward:
    """A broker with a space that has one member, made as an operator does."""

    def __init__(self, broker: SpaceBroker) -> None:
        self.broker = broker
        self.root = broker.directory
        self.space = Space(broker, Form.MEDIATED)
        self.space.trust = SpaceTrust.open(self.root / "spaces" / SPACE, SPACE, os.urandom)

    @property
    def creds(self) -> Path:
        return self.root / "spaces" / SPACE / "principals" / ANN.dot / "user.creds"

    async def examined(self, **more: object) -> list[Finding]:
        return await examine(Question(self.root, self.broker.url, **more))  # type: ignore[arg-type]

    async def found(self, check: str, level: Level, **more: object) -> Finding:
        """The finding of this check at this level."""
        findings = await self.examined(**more)
        matching = [one for one in findings if (one.check, one.level) == (check, level)]
        assert matching, [one for one in findings if one.check == check or one.level is not Level.OK]
        assert matching[0].what
        assert level is Level.OK or matching[0].why
        return matching[0]

    async def until(self, met: Callable[[list[Finding]], bool]) -> list[Finding]:
        async with asyncio.timeout(EVENT_SECONDS):
            while not met(findings := await self.examined()):
                pass
            return findings


def levels(findings: list[Finding]) -> dict[str, Level]:
    order = list(Level)
    found: dict[str, Level] = {}
    for one in findings:
        if one.check not in found or order.index(one.level) > order.index(found[one.check]):
            found[one.check] = one.level
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ward(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ward]:
    directory: Path = tmp_path_factory.mktemp("doctor")
    async with SpaceBroker(directory) as broker:
        await create_space(directory, SPACE, Form.MEDIATED, broker.url)
        async with open_space(directory, SPACE, broker.url) as space:
            await add(space, Wanted(ANN, Profile.AGENT, 3600, "ann", ("team",), roles=("reviewer",)))
        yield Ward(broker)


async def test_a_space_with_its_delivery_plane_is_well_and_a_stopped_one_is_told(ward: Ward, tmp_path: Path) -> None:
    config = tmp_path / "delivery.json"
    lane = {"space": SPACE, "url": ward.broker.url, "root": str(ward.root)}
    write_private(config, json.dumps({"lanes": [lane]}).encode())
    daemon = Program(tmp_path / "delivery.log", "delivery", "--config", str(config))
    try:
        await asyncio.to_thread(daemon.wait_ready)
        await ward.until(lambda found: levels(found)["lease"] is Level.OK)
        findings = await ward.until(lambda found: levels(found)["feed"] is Level.OK)
        wrong = [one for one in findings if one.level is not Level.OK]
        # The one thing that is not as it should be in a test broker.
        assert [(one.check, one.level) for one in wrong] == [("acknowledgement", Level.WARN)]
        assert exit_code(findings) == 1
        assert {
            "broker", "version", "jetstream", "trust", "clock", "storage", "account", "streams", "durables",
            "leftovers", "consumers", "lease", "feed", "liveness", "fanout-lag", "reader-lag", "creds-end",
            "creds-grants",
        } <= levels(findings).keys()  # fmt: skip
    finally:
        daemon.kill()
    stopped = levels(await ward.examined())
    assert stopped["liveness"] is Level.FAIL
    await ward.found("lease", Level.FAIL, old_lease=0.0)


async def test_a_lease_that_is_not_renewed_is_told(ward: Ward) -> None:
    async with dialled(ward.space, Profile.DELIVERY, "old") as (old, _):
        row = LeaseRow("local.old", "i1", 1, True)
        await KeyValue(old, buckets.DELIVERY, SPACE).put(buckets.DELIVERY_LEASE.build(shard=0), row.encode())
        found = await ward.found("lease", Level.OK)
        assert "local.old" in found.what
        aged = await ward.found("lease", Level.FAIL, old_lease=0.0)
        assert "has not renewed" in aged.what
        await KeyValue(old, buckets.DELIVERY, SPACE).delete(buckets.DELIVERY_LEASE.build(shard=0))
    await ward.found("lease", Level.FAIL)


async def test_a_drifted_stream_is_told(ward: Ward) -> None:
    key, account = new_user(os.urandom), ward.space.trust
    name = streams.CHAT.stream(SPACE)
    inbox = f"_INBOX_{key.public}.>"
    subjects = (api.STREAM_UPDATE.build(stream=name), api.STREAM_INFO.build(stream=name))
    token = account.mint("local-vandal", Permissions(Access(subjects), Access((inbox,))), key, clock(), 300)
    async with ward.broker.user(ward.broker.creds(token, key), inbox) as vandal:

        async def update(**fields: object) -> None:
            info = json.loads((await vandal.client.request(subjects[1], b"")).data)
            body = json.dumps({**info["config"], **fields}).encode()
            assert "error" not in json.loads((await vandal.client.request(subjects[0], body)).data)

        await update(allow_direct=False)
        found = await ward.found("streams", Level.FAIL)
        assert "allow_direct" in found.what
        assert (found.space, name in found.what) == (SPACE, True)
        await update(allow_direct=True)
    await ward.found("streams", Level.OK)


async def test_a_deleted_durable_and_one_of_nobody_are_told(ward: Ward) -> None:
    async with open_space(ward.root, SPACE, ward.broker.url) as space:
        stranger = Lifecycle(Principal("local", "stranger"), uid_of("stranger"))
        await activate(space.client, SPACE, stranger)
    left = await ward.found("leftovers", Level.WARN)
    assert consumers.DM.build(**stranger.names) in left.what
    key, account = new_user(os.urandom), ward.space.trust
    inbox = f"_INBOX_{key.public}.>"
    delete = tuple(api.CONSUMER_DELETE.filter(stream=one.stream(SPACE)) for one in (streams.DM, streams.DLV))
    token = account.mint("local-vandal", Permissions(Access(delete), Access((inbox,))), key, clock(), 300)
    shelf = json.loads((ward.creds.parent / "record.json").read_bytes())
    names = {"owner": "local", "actor": "ann", "uid": shelf["lifecycleUid"]}
    async with ward.broker.user(ward.broker.creds(token, key), inbox) as vandal:
        for stream, consumer in (
            (streams.DM, consumers.DM.build(**names)),
            (streams.DM, consumers.DM.build(**stranger.names)),
            (streams.DLV, consumers.HANDOFF.build(**stranger.names)),
        ):
            subject = api.CONSUMER_DELETE.build(stream=stream.stream(SPACE), consumer=consumer)
            assert json.loads((await vandal.client.request(subject, b"")).data)["success"]
    gone = await ward.found("durables", Level.FAIL)
    assert consumers.DM.build(**names) in gone.what
    await ward.found("leftovers", Level.OK)
    async with open_space(ward.root, SPACE, ward.broker.url) as space:
        await activate(space.client, SPACE, Lifecycle(ANN, shelf["lifecycleUid"]), ("reviewer",))
    await ward.found("durables", Level.OK)


async def test_credentials_that_ended_or_are_open_to_others_are_told(ward: Ward, tmp_path: Path) -> None:
    key, now = new_user(os.urandom), clock()
    holder = Holder(SPACE, Lifecycle(ANN, uid_of("ann")), key.public, Form.MEDIATED)

    def written(name: str, issued: int, seconds: int) -> Path:
        path = tmp_path / name
        write_creds(path, ward.space.trust.issue(Profile.AGENT, holder, key, issued, seconds), key)
        return path

    ended, soon, good = (
        written("ended.creds", now - 1000, 10),
        written("soon.creds", now - 990, 1000),
        written("good.creds", now, 1000),
    )
    found = await ward.found("creds-end", Level.FAIL, creds=(ended,))
    assert "ended.creds" in found.what
    assert "soon.creds" in (await ward.found("creds-end", Level.WARN, creds=(soon,))).what
    assert all(one.level is Level.OK for one in await ward.examined(creds=(good,)) if "good.creds" in one.what)
    good.chmod(0o644)
    opened = await ward.found("creds-file", Level.FAIL, creds=(good,))
    assert "0644" in opened.what
    write_private(tmp_path / "no.creds", b"nothing of the kind")
    await ward.found("creds-file", Level.FAIL, creds=(tmp_path / "no.creds",))
    await ward.found("creds-file", Level.FAIL, creds=(tmp_path / "absent.creds",))
    mode = ward.creds.stat().st_mode
    ward.creds.chmod(0o640)
    try:
        assert (await ward.found("creds-file", Level.FAIL)).space == SPACE
    finally:
        ward.creds.chmod(mode)


async def test_a_credential_with_more_than_its_profile_is_told(ward: Ward, tmp_path: Path) -> None:
    key = new_user(os.urandom)
    holder = Holder(SPACE, Lifecycle(ANN, uid_of("ann")), key.public, Form.MEDIATED)
    wide = Permissions(Access(("cotal.main.>",)), Access((f"_INBOX_{key.public}.>",)))
    path = tmp_path / "wide.creds"
    write_creds(path, ward.space.trust.mint("local-ann", wide, key, clock(), 300, holder.tags), key)
    found = await ward.found("creds-grants", Level.FAIL, creds=(path,))
    assert "cotal.main.>" in found.what
    write_creds(path, ward.space.trust.mint("nobody", wide, key, clock(), 300), key)
    await ward.found("creds-grants", Level.UNKNOWN, creds=(path,))
    other = SpaceTrust.open(tmp_path / "other", SPACE, os.urandom)
    write_creds(path, other.issue(Profile.AGENT, holder, key, clock(), 300), key)
    assert "another account" in (await ward.found("creds-trust", Level.FAIL, creds=(path,))).what


async def test_a_revocation_that_was_not_pushed_is_told(ward: Ward) -> None:
    user = read_creds(ward.creds).user.subject
    token = ward.space.trust.revoke(ward.broker.trust, user, clock())
    found = await ward.found("account", Level.FAIL)
    assert "1 revoked users can still log in" in found.why
    assert "revoked" in (await ward.found("creds-trust", Level.FAIL)).what
    await ward.broker.push(token)
    await ward.found("account", Level.OK)


async def test_nothing_secret_is_shown_and_the_exit_code_says_how_it_is(ward: Ward) -> None:
    arguments = ["--root", str(ward.root), "--server", ward.broker.url, "--creds", str(ward.creds)]
    for more in ([], ["--json"]):
        result = await asyncio.to_thread(CliRunner().invoke, command, [*arguments, *more])
        assert result.exit_code == 2, result.output
        secrets = [path.read_text() for path in ward.root.rglob("*.nk")] + [ward.creds.read_text()]
        for text in secrets:
            for line in text.splitlines():
                assert len(line) < 40 or line not in result.output
        if more:
            value = json.loads(result.output)
            assert value["exitCode"] == 2
            assert all(set(one) == {"check", "space", "level", "what", "why", "do"} for one in value["findings"])
        else:
            assert "why: " in result.output
            assert "do: " in result.output


async def test_a_broker_that_hangs_or_is_gone_is_told_in_time(ward: Ward) -> None:
    assert ward.broker.process is not None
    hold(ward.broker.process.pid)
    try:
        async with asyncio.timeout(EVENT_SECONDS):
            hung = await ward.examined(look_seconds=0.5)
        assert levels(hung)["broker"] is Level.FAIL
        assert levels(hung)["acknowledgement"] is Level.UNKNOWN
        assert "creds-end" in levels(hung)
    finally:
        ward.broker.process.send_signal(signal.SIGCONT)
    gone = await examine(Question(ward.root, f"nats://127.0.0.1:{free_port('127.0.0.1')}"))
    assert levels(gone)["broker"] is Level.FAIL
    assert exit_code(gone) == 2


async def test_a_broker_of_nobody_is_told_what_can_be_told(tmp_path: Path) -> None:
    port = free_port("127.0.0.1")
    with plain_broker(tmp_path, f'http: "127.0.0.1:{port}"\n') as served:
        question = Question(
            tmp_path / "none", f"nats://127.0.0.1:{served}", monitor=f"http://127.0.0.1:{port}", space="main"
        )
        found = await examine(question)
        assert levels(found) == {
            "broker": Level.OK,
            "version": Level.OK,
            "jetstream": Level.OK,
            "space": Level.FAIL,
            "trust": Level.WARN,
            "acknowledgement": Level.WARN,
        }
        dead = Question(tmp_path / "none", monitor=f"http://127.0.0.1:{free_port('127.0.0.1')}")
        assert levels(await examine(dead))["acknowledgement"] is Level.UNKNOWN
