"""Registration of endpoint instances at a real broker: who may, in which order, and what stands after it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import shutil
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

import nats.errors
import pytest
import pytest_asyncio

from sidecar.app import endpoint_host, principals
from sidecar.app.endpoint_host import Hosted, InstanceSuperseded, deregister, host, retire
from sidecar.app.endpoint_records import EndpointRecord, EndpointShelf
from sidecar.app.spaces import open_space
from sidecar.base.safefile import DirLock
from sidecar.rails.connection import Connection, State
from sidecar.rails.endpoint.codes import Code
from sidecar.rails.endpoint.identity import identity_of
from sidecar.rails.names import buckets
from sidecar.rails.names.principals import Principal
from sidecar.rails.planes.registration import eviction
from sidecar.rails.planes.registration.faults import Conflict, Corrupt, Denied, Unverified
from sidecar.rails.planes.registration.gates import CredentialRow, GateState, Intent, Op, RowState
from sidecar.rails.planes.registration.homogeneity import MixedContracts
from sidecar.rails.planes.registration.naming import Place
from sidecar.rails.planes.registration.publisher import ArtifactClash, ArtifactTooLarge, publish, read_artifact
from sidecar.rails.planes.registration.report import report_status
from sidecar.rails.space.asking import ask
from sidecar.rails.space.claims import AccountClaims, Permissions, decode
from sidecar.rails.space.holder import Profile
from sidecar.rails.space.resolver import push_permissions
from sidecar.rails.space.retire import last_sequence, subjects_of
from tests.e2e.registering import ME, NAME, NUMBER, OTHER_OWNER, OWNER, SPACE, YOU, Site, echo, site
from tests.e2e.space_broker import EVENT_SECONDS, User

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def here(tmp_path: Path) -> AsyncIterator[Site]:
    async with site(tmp_path) as made:
        yield made


async def over(connection: Connection) -> None:
    """Wait until a connection has ended for good."""
    async with asyncio.timeout(EVENT_SECONDS):
        while connection.state is not State.STOPPED:  # noqa: ASYNC110 - its end has no event here
            await asyncio.sleep(0.005)


@pytest.mark.req("C13.14-01", "C13.7-61", "C13.7-62", "C13.7-63", "C13.1-068", "C13.1-083", "C13.7-46")
async def test_a_registered_instance_stands_in_gate_record_and_credential(here: Site) -> None:
    hosted = await here.host()
    gate = await here.gate()
    spec, revision = await here.record("spec")
    assert (gate.state, gate.process_epoch, gate.generation) == (GateState.OPEN, 0, 1)
    assert gate.registration_revision == revision == hosted.registered.registration_revision
    assert gate.principal == hosted.identity.lifecycle.principal
    assert gate.name_authority_revision == 1
    assert spec == {
        "endpoint": NAME,
        "owner": OWNER,
        "clusterDigests": list(echo().surface.digests),
        "protocol": {"v": 1},
    }
    assert (await here.governance()).holds == {}
    credentials = await hosted.minter()
    identity = identity_of(credentials.text)
    assert identity == hosted.identity
    assert (identity.instance, identity.epoch, identity.owner) == (ME, 0, OWNER)


@pytest.mark.req("C13.14-01", "C13.1-029", "C13.1-028", "C13.7-63", "C13.1-031", "C13.1-035", "C13.1-083")
@pytest.mark.req("C13.7-62")
async def test_a_takeover_evicts_the_predecessor_before_the_successor_may_serve(here: Site) -> None:
    first = await here.host()
    async with await Connection.open([here.broker.url], first.minter) as old:
        second = await here.host()
        # It is gone when the registration is through, not some time later.
        await over(old)
        assert (second.identity.epoch, second.registered.evicted, second.registered.first) == (1, 1, False)
        assert second.identity.instance == first.identity.instance
        assert second.identity.lifecycle == first.identity.lifecycle
        with pytest.raises(InstanceSuperseded):
            await first.minter()
        async with await Connection.open([here.broker.url], second.minter) as new:
            assert new.linked
    gate, (_, revision) = await here.gate(), await here.record("spec")
    assert (gate.process_epoch, gate.generation, gate.registration_revision) == (1, 2, revision)
    assert revision > first.registered.registration_revision


@pytest.mark.req("C13.1-061", "C13.1-074", "C13.14-01")
async def test_nothing_is_minted_under_a_gate_that_is_not_open(here: Site) -> None:
    """At the very epoch of the credential: who froze it has counted what was released, and nothing follows."""
    hosted = await here.host()
    gate, place = await here.gate(), Place(SPACE, NAME, ME)
    ends = Op("0" * 32, Intent.RETIREMENT)
    async with here.hand() as hand:
        before = await subjects_of(hand.client, buckets.AUTH.stream(SPACE), place.credentials)
        for shut in (gate.frozen(Op("0" * 32, Intent.TAKEOVER)), gate.frozen(ends).retired(ends)):
            await hand.client.request(place.gate, shut.encode(), timeout=EVENT_SECONDS)
            with pytest.raises(InstanceSuperseded):
                await hosted.minter()
        assert await subjects_of(hand.client, buckets.AUTH.stream(SPACE), place.credentials) == before
        await hand.client.request(place.gate, gate.encode(), timeout=EVENT_SECONDS)
        await hosted.minter()


@pytest.mark.req("C13.2-23", "C13.14-01")
async def test_the_gate_of_another_principal_is_moved_by_nobody_else(here: Site) -> None:
    hosted = await here.host()
    place = Place(SPACE, NAME, ME)
    other = replace(await here.gate(), principal=Principal(OTHER_OWNER, "ep_other"))
    async with here.hand() as hand:
        await hand.client.request(place.gate, other.encode(), timeout=EVENT_SECONDS)
        with pytest.raises(Denied, match="ep_other"):
            await here.host()
        with pytest.raises(InstanceSuperseded):
            await hosted.minter()
    assert await here.gate() == other


@pytest.mark.req("C13.1-074", "C13.1-028")
async def test_credentials_are_minted_again_at_the_same_epoch_for_the_same_key(here: Site) -> None:
    hosted = await here.host()
    one, two = identity_of((await hosted.minter()).text), identity_of((await hosted.minter()).text)
    assert one == two == hosted.identity
    async with here.hand() as hand:
        rows = await subjects_of(hand.client, buckets.AUTH.stream(SPACE), Place(SPACE, NAME, ME).credentials)
    assert len(rows) == 1
    (subject,) = rows
    row = CredentialRow.decode((await here.kept(buckets.AUTH, subject)).value or b"")
    assert (row.state, row.holder, row.uid) == (
        RowState.ACTIVE,
        hosted.identity.lifecycle.principal,
        hosted.identity.lifecycle.uid,
    )
    assert subject.endswith(row.credential_id)


@pytest.mark.req("C13.2-02", "C13.2-03", "C13.2-05")
async def test_a_name_is_registered_by_its_owner_alone(here: Site) -> None:
    for name, owner in ((NAME, OTHER_OWNER), ("com.other.x", OWNER), ("manager", OWNER), ("foo", OTHER_OWNER)):
        with pytest.raises(Denied) as caught:
            await here.host(echo(name), owner=owner)
        assert caught.value.code == Code.PERMISSION_DENIED
    async with here.hand() as hand:
        for bucket in (buckets.AUTH, buckets.RECORDS):
            assert not await subjects_of(hand.client, bucket.stream(SPACE), bucket.everything(SPACE))
    operator = await here.host(echo("notes"), owner="local")
    assert operator.identity.lifecycle.principal.owner == "local"


@pytest.mark.req("C13.1-083", "C13.1-084")
async def test_an_instance_id_that_is_taken_is_refused_and_changes_nothing(here: Site) -> None:
    await here.host()
    before = await here.gate(), await here.record("spec")
    shelf = EndpointShelf(here.root, SPACE, NAME, ME)
    with DirLock(shelf.directory) as lock:  # another directory has drawn the same id
        record = shelf.read()
        assert record is not None
        shelf.write(EndpointRecord(NAME, ME, OWNER, "f" * 32), lock)
    with pytest.raises(Denied, match="taken"):
        await here.host()
    assert (await here.gate(), await here.record("spec")) == before


@pytest.mark.req("C13.7-72", "C13.7-78", "C13.7-46")
async def test_a_class_has_one_contract_and_may_add_to_it(here: Site) -> None:
    first = await here.host()
    with pytest.raises(MixedContracts) as caught:
        await here.host(echo(schema=NUMBER), instance=YOU)
    assert caught.value.code == Code.CONTRACT_MISMATCH
    assert (await first.minter()).text  # nobody was hurt
    assert (await here.record("spec", YOU)) == (None, 0)
    added = await here.host(echo(NAME, "echo", "shout"), instance=YOU)
    back = await here.host()  # the earlier generation again, beside the later one
    assert (added.identity.epoch, back.identity.epoch) == (0, 1)
    await back.minter()
    with pytest.raises(MixedContracts):
        await here.host(echo(schema=NUMBER))
    assert (await here.gate()).process_epoch == 1
    assert (await back.minter()).text
    assert await deregister(here.root, SPACE, here.broker.url, NAME, YOU)
    alone = await here.host(echo(schema=NUMBER))
    assert alone.identity.epoch == 2


@pytest.mark.req("C13.7-63", "C13.7-62")
async def test_a_deregistered_instance_counts_on(here: Site) -> None:
    first = await here.host()
    async with await Connection.open([here.broker.url], first.minter) as connection, here.record_writer() as written:
        await report_status(connection, first.identity, "ready")
        await written(ME, "ready")
    assert await deregister(here.root, SPACE, here.broker.url, NAME, ME)
    assert (await here.record("spec"))[0] is None
    assert (await here.record("status"))[0] is None
    gate = await here.gate()
    assert (gate.state, gate.process_epoch) == (GateState.OPEN, 0)
    with pytest.raises(InstanceSuperseded):  # its key is void
        await first.minter()
    again = await here.host()
    assert again.identity.epoch == 1
    assert (await here.record("spec"))[1] > first.registered.registration_revision


@pytest.mark.req("C13.1-084", "C13.1-061", "C13.1-026")
async def test_a_retired_instance_never_comes_back(here: Site) -> None:
    first = await here.host()
    async with await Connection.open([here.broker.url], first.minter) as connection:
        assert await retire(here.root, SPACE, here.broker.url, NAME, ME)
        await over(connection)
    assert (await here.gate()).state is GateState.RETIRED
    assert (await here.record("spec"))[0] is None
    with pytest.raises(Denied, match="retired"):
        await here.host()
    with pytest.raises(InstanceSuperseded):
        await first.minter()
    assert not await retire(here.root, SPACE, here.broker.url, NAME, ME)
    shelf = EndpointShelf(here.root, SPACE, NAME, ME)
    with DirLock(shelf.directory) as lock:  # also for a directory that does not know it
        shelf.write(EndpointRecord(NAME, ME, OWNER, first.identity.lifecycle.uid), lock)
    with pytest.raises(Denied):
        await here.host()


@pytest.mark.req("C13.7-34", "C13.12-15", "C13.7-36")
async def test_artifacts_are_published_once_and_never_changed(here: Site) -> None:
    artifacts = echo().artifacts
    await here.host()
    async with here.hand() as hand, here.as_(Profile.PUBLISHER) as publisher:
        stream = "EPC_main"
        for digest, document in artifacts.items():
            assert await read_artifact(publisher, SPACE, digest) == document
        before = await last_sequence_of(hand, stream)
        assert await publish(publisher, SPACE, artifacts) == 0
        assert await last_sequence_of(hand, stream) == before
        (digest, document), *_ = artifacts.items()
        poisoned = "sha256:" + "0" * 64
        await hand.client.request(f"cotal.main.epc.{'0' * 64}", document, timeout=EVENT_SECONDS)
        with pytest.raises(ArtifactClash):
            await read_artifact(publisher, SPACE, poisoned)
        with pytest.raises(ArtifactClash):
            await publish(publisher, SPACE, {digest: document + b" "})
        with pytest.raises(ArtifactTooLarge):
            await publish(publisher, SPACE, {digest: b"x" * publisher.max_payload})
        assert await read_artifact(publisher, SPACE, "sha256:" + "1" * 64) is None
        other = hashlib.sha256(b'{"a":1}').hexdigest()
        await hand.client.request(f"cotal.main.epc.{other}", b'{"a":2}', timeout=EVENT_SECONDS)
        with pytest.raises(ArtifactClash):
            await publish(publisher, SPACE, {f"sha256:{other}": b'{"a":1}'})


async def last_sequence_of(hand: User, stream: str) -> int:
    return last_sequence(await ask(hand.client, f"$JS.API.STREAM.INFO.{stream}"))


@pytest.mark.req("C13.7-43", "C13.12-17")
async def test_a_marker_on_a_key_that_is_never_deleted_refuses(here: Site) -> None:
    await here.host()
    place = Place(SPACE, NAME, ME)
    for subject in (place.govern, place.gate):
        async with here.hand() as hand:
            await hand.client.request(subject, b"", timeout=EVENT_SECONDS, headers={"KV-Operation": "DEL"})
        with pytest.raises(Corrupt) as caught:
            await here.host()
        assert caught.value.code == Code.INTERNAL


@pytest.mark.req("C13.1-034")
async def test_where_eviction_cannot_be_verified_the_gate_stays_frozen_and_the_next_run_finishes(
    here: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await here.host()
    async with await Connection.open([here.broker.url], first.minter):
        # A server that does not answer who is connected: the barrier may not ask.
        monkeypatch.setattr(endpoint_host, "barrier_permissions", push_permissions_of)
        monkeypatch.setattr(eviction, "_ANSWER_SECONDS", 0.2)
        monkeypatch.setattr(eviction, "SECONDS", 0.1)
        with pytest.raises(Unverified) as caught:
            await here.host()
        assert caught.value.code == Code.UNAVAILABLE
        gate = await here.gate()
        assert (gate.state, gate.process_epoch) == (GateState.FROZEN, 0)
        with pytest.raises(InstanceSuperseded):
            await first.minter()
    monkeypatch.undo()
    second = await here.host()
    assert second.identity.epoch == 1
    assert (await here.gate()).generation == 2


def push_permissions_of(account: str, inbox: str) -> Permissions:
    return push_permissions(inbox)


@pytest.mark.req("C13.1-028", "C13.1-032", "C13.1-057", "C13.8-11")
@pytest.mark.parametrize("before", [0, 1])
async def test_of_two_hosts_with_copies_of_a_directory_exactly_one_wins(
    here: Site, tmp_path: Path, before: int
) -> None:
    for _ in range(before):
        (await here.host()).close()
    if not before:
        shelf = EndpointShelf(here.root, SPACE, NAME, ME)
        shelf.open()
        with DirLock(shelf.directory) as lock:
            shelf.write(EndpointRecord(NAME, ME, OWNER, "e" * 32), lock)
    copies = []
    for n in range(3):
        copy = tmp_path / f"copy{n}"
        copy.mkdir(mode=0o700)
        for part in ("trust", "spaces"):
            shutil.copytree(here.root / part, copy / part)
        copies.append(copy)
    results = await asyncio.gather(
        *(host(copy, SPACE, here.broker.url, echo(), owner=OWNER, instance=ME) for copy in copies),
        return_exceptions=True,
    )
    won = [one for one in results if isinstance(one, Hosted)]
    epochs = sorted(one.identity.epoch for one in won)
    # Who comes after a completed registration takes over; who comes into one is told so.
    assert epochs == list(range(before, before + len(won)))
    assert all(isinstance(one, Conflict) for one in results if one not in won)
    gate = await here.gate()
    assert (gate.state, gate.process_epoch, gate.generation) == (GateState.OPEN, epochs[-1], before + len(won))
    living = []
    for one in won:
        with contextlib.suppress(InstanceSuperseded):
            await one.minter()
            living.append(one.identity.epoch)
    assert living == [epochs[-1]]


@pytest.mark.req("C13.1-034")
async def test_a_takeover_from_a_copy_of_the_directory_takes_no_revocation_back(here: Site, tmp_path: Path) -> None:
    """Two hosts with the account's keys: what one has voided stays void when the other voids something."""
    first = await here.host()
    await first.minter()
    first.close()
    async with open_space(here.root, SPACE, here.broker.url) as space:
        ann = await principals.add(space, principals.Wanted(principals.local("ann"), Profile.AGENT, 3600))
    (creds := tmp_path / "ann.creds").write_bytes(ann.creds.read_bytes())
    creds.chmod(0o600)
    copy = tmp_path / "copy"
    copy.mkdir(mode=0o700)
    for part in ("trust", "spaces"):
        shutil.copytree(here.root / part, copy / part)
    async with open_space(here.root, SPACE, here.broker.url) as space:
        await principals.revoke(space, principals.local("ann"))
    inbox = f"_INBOX_{ann.user}.>"
    with pytest.raises(nats.errors.Error, match="Authorization"):
        await User().connect(here.broker.url, creds, inbox)
    taken = await host(copy, SPACE, here.broker.url, echo(), owner=OWNER, instance=ME)
    taken.close()
    assert taken.registered.evicted == 1
    with pytest.raises(nats.errors.Error, match="Authorization"):
        await User().connect(here.broker.url, creds, inbox)
    # And the other way round: what the copy has voided, the first directory voids too.
    async with open_space(here.root, SPACE, here.broker.url) as space:
        await space.push()
        (evicted,) = set(revocations(copy)) - {ann.user}
        assert {ann.user, evicted} <= revocations(here.root).keys()


def revocations(root: Path) -> Mapping[str, int]:
    claims = decode((root / "spaces" / SPACE / "account.jwt").read_text("ascii"), "account").claims
    assert isinstance(claims, AccountClaims)
    return claims.revocations
