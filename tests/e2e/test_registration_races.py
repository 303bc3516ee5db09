"""Registrations, releases and holds that meet each other, step by step, at a real broker."""

from __future__ import annotations

import asyncio
import base64
import shutil
import stat
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sidecar.app import endpoint_host
from sidecar.app.domains import claim as claim_domain
from sidecar.app.domains import release as release_domain
from sidecar.app.endpoint_host import InstanceSuperseded, instances, register
from sidecar.app.endpoint_records import EndpointShelf
from sidecar.app.space_links import SpaceFailed
from sidecar.base.safefile import DirLock, read_private
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, Credentials
from sidecar.rails.endpoint.identity import identity_of
from sidecar.rails.names import buckets
from sidecar.rails.planes.registration import barrier, minting, publisher
from sidecar.rails.planes.registration import register as registration
from sidecar.rails.planes.registration.barrier import Progress
from sidecar.rails.planes.registration.cells import write_cell
from sidecar.rails.planes.registration.faults import Conflict, Denied
from sidecar.rails.planes.registration.gates import CredentialRow, Gate, GateState, Intent, Op, RowState
from sidecar.rails.planes.registration.govern import Head, Hold
from sidecar.rails.planes.registration.naming import Place
from sidecar.rails.planes.registration.publisher import ArtifactClash, ArtifactTooLarge
from sidecar.rails.space.asking import ask
from sidecar.rails.space.creds import read_creds
from sidecar.rails.space.retire import subjects_of
from tests.e2e.registering import ME, NAME, NUMBER, OTHER_OWNER, OWNER, SPACE, YOU, Site, echo, site
from tests.e2e.space_broker import EVENT_SECONDS

pytestmark = pytest.mark.asyncio
PLACE = Place(SPACE, NAME, ME)
FOREIGN = Op("f" * 32, Intent.REGISTRATION)


@pytest_asyncio.fixture
async def here(tmp_path: Path) -> AsyncIterator[Site]:
    async with site(tmp_path) as made:
        yield made


async def set_gate(here: Site, change: Callable[[Gate], Gate], place: Place = PLACE) -> None:
    """Move a gate as another operation would."""
    kept = await here.kept(buckets.AUTH, place.gate)
    async with here.hand() as hand:
        await write_cell(hand.client, place.gate, change(Gate.decode(kept.value or b"")).encode(), kept.revision)


async def states(here: Site) -> list[RowState]:
    async with here.hand() as hand:
        found = await subjects_of(hand.client, buckets.AUTH.stream(SPACE), PLACE.credentials)
    return [CredentialRow.decode((await here.kept(buckets.AUTH, one)).value or b"").state for one in found]


@pytest.mark.req("C13.1-074", "C13.1-075", "C13.1-061", "C13.1-048", "C13.1-073")
async def test_a_freeze_between_row_and_release_releases_nothing(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    hosted = await here.host()

    async def frozen_before(client: Any, subject: str, *more: Any, **named: Any) -> int:
        if subject == PLACE.gate:
            assert await states(here) == [RowState.ACTIVE]  # the row is there before, so that a freeze finds it
            await set_gate(here, lambda gate: gate.frozen(FOREIGN))
        return await write_cell(client, subject, *more, **named)

    monkeypatch.setattr(minting, "write_cell", frozen_before)
    with pytest.raises(InstanceSuperseded):
        await hosted.minter()
    monkeypatch.undo()
    assert await states(here) == [RowState.REVOKED]
    with pytest.raises(InstanceSuperseded):
        await hosted.minter()
    await set_gate(here, lambda gate: gate.reopened(FOREIGN))
    with pytest.raises(InstanceSuperseded):  # a key that was refused once is refused for good
        await hosted.minter()


@pytest.mark.req("C13.1-074", "C13.1-029")
async def test_nothing_is_released_at_another_epoch_nor_before_the_first_registration(here: Site) -> None:
    hosted = await here.host()
    await set_gate(here, lambda gate: gate.frozen(FOREIGN).reopened(FOREIGN, epoch=1))
    with pytest.raises(InstanceSuperseded):
        await hosted.minter()
    await set_gate(here, lambda gate: Gate.virgin(gate.principal, 0))
    with pytest.raises(InstanceSuperseded):
        await hosted.minter()
    assert await states(here) == []


@pytest.mark.req("C13.1-057", "C13.8-11", "C13.1-032")
async def test_a_gate_that_somebody_else_has_frozen_is_a_conflict_and_stays_his(here: Site) -> None:
    await here.host()
    await set_gate(here, lambda gate: gate.frozen(FOREIGN))
    before = await here.gate()
    for _ in range(2):
        with pytest.raises(Conflict, match="f" * 32):
            await here.host()
    assert await here.gate() == before
    record = EndpointShelf(here.root, SPACE, NAME, ME).read()
    assert record is not None
    assert record.progress is None
    # Nor with an operation of one's own at hand, whatever it is known to have done.
    for frozen in (False, True):
        shelf = EndpointShelf(here.root, SPACE, NAME, ME)
        with DirLock(shelf.directory) as lock:
            shelf.write(replace(record, progress=Progress("a" * 32, Intent.REGISTRATION, 1, 1, frozen)), lock)
        with pytest.raises(Conflict, match="f" * 32):
            await here.host()
        assert await here.gate() == before
    await set_gate(here, lambda gate: gate.reopened(FOREIGN))
    assert (await here.host()).identity.epoch == 1


@pytest.mark.req("C13.1-074", "C13.1-075")
async def test_a_takeover_goes_on_when_a_credential_is_released_meanwhile(
    here: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await here.host()
    released: list[Credentials] = []

    async def minted_before(client: Any, subject: str, *more: Any, **named: Any) -> int:
        if subject == PLACE.gate and not released:
            released.append(await first.minter())
        return await write_cell(client, subject, *more, **named)

    monkeypatch.setattr(barrier, "write_cell", minted_before)
    second = await here.host()
    assert len(released) == 1
    assert (second.identity.epoch, second.registered.evicted) == (1, 1)
    assert await states(here) == [RowState.REVOKED]


async def killed_before(here: Site, monkeypatch: pytest.MonkeyPatch, step: str, endpoint: Any = None) -> None:
    """A registration of ME that stops right before a step."""

    async def stop(*_: Any, **__: Any) -> None:
        raise SpaceFailed("the process ends here")

    monkeypatch.setattr(registration, step, stop)
    with pytest.raises(SpaceFailed, match="ends here"):
        await here.host(endpoint)
    monkeypatch.undo()


@pytest.mark.req("C13.7-47", "C13.7-46")
async def test_a_registration_that_stopped_blocks_no_other_instance_of_its_contract(
    here: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await killed_before(here, monkeypatch, "publish")
    assert (await here.gate()).state is GateState.FROZEN
    assert (await here.governance()).holds.keys() == {ME}
    assert (await here.host(instance=YOU)).identity.epoch == 0
    assert (await here.governance()).holds.keys() == {ME}
    assert (await here.host()).identity.epoch == 0
    assert (await here.governance()) == Head()


@pytest.mark.req("C13.7-47", "C13.7-72")
async def test_a_stopped_registration_with_another_contract_is_undecided_until_its_gate_has_moved(
    here: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await killed_before(here, monkeypatch, "publish", echo(schema=NUMBER))
    with pytest.raises(Conflict, match="on its way"):
        await here.host(instance=YOU)
    # Its gate opens again without it, as an operator brings about: now it can never complete.
    await set_gate(here, lambda gate: gate.reopened(gate.op or FOREIGN))
    assert (await here.host(instance=YOU)).identity.epoch == 0
    assert (await here.governance()).holds == {}


@pytest.mark.req("C13.7-62", "C13.1-077")
async def test_a_record_that_an_earlier_run_has_written_is_not_written_again(
    here: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for epoch in range(2):
        await killed_before(here, monkeypatch, "advance")
        _, written = await here.record("spec")
        hosted = await here.host()
        assert (hosted.identity.epoch, hosted.registered.registration_revision) == (epoch, written)


@pytest.mark.req("C13.1-077", "C13.7-63", "C13.1-032")
async def test_a_registration_that_died_behind_the_open_gate_is_complete(
    here: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def died(_: barrier.Barrier) -> None:
        raise SpaceFailed("the process ends here")

    for epoch in (0, 1):
        monkeypatch.setattr(barrier.Barrier, "done", died)
        with pytest.raises(SpaceFailed):
            await here.host()
        monkeypatch.undo()
        assert (await here.gate()).process_epoch == epoch
        hosted = await here.host()
        assert hosted.identity.epoch == epoch
        assert (await hosted.minter()).text
    monkeypatch.setattr(barrier.Barrier, "done", died)
    with pytest.raises(SpaceFailed):
        await here.host()
    monkeypatch.undo()
    other = await here.host(echo(NAME, "echo", "shout"))  # not what was completed: it is registered anew
    assert other.identity.epoch == 3


@pytest.mark.req("C13.1-032", "C13.1-028", "C13.7-63")
async def test_an_abort_that_died_behind_the_open_gate_completes_nothing(
    here: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: Any) -> None:
        raise Conflict("refused behind the freeze")

    def died(_: barrier.Barrier) -> None:
        raise SpaceFailed("the process ends here")

    await here.host()
    monkeypatch.setattr(registration, "publish", refused)
    monkeypatch.setattr(barrier.Barrier, "done", died)
    with pytest.raises(SpaceFailed, match="ends here"):
        await here.host()
    monkeypatch.undo()
    gate = await here.gate()
    assert (gate.state, gate.process_epoch, gate.generation) == (GateState.OPEN, 0, 2)
    # The epoch of before belongs to the process that was evicted.
    assert (await here.host()).identity.epoch == 1


@pytest.mark.req("C13.1-033", "C13.7-34", "C13.7-36")
async def test_what_is_refused_behind_the_freeze_opens_the_gate_as_it_was(here: Site) -> None:
    first = await here.host()
    await first.minter()
    changed = echo(NAME, "echo", "shout")
    digest = changed.surface.digests[0]
    async with here.hand() as hand:  # another document stands where its contract is to be
        await hand.client.request(f"cotal.main.epc.{digest.removeprefix('sha256:')}", b'{"a":1}', timeout=EVENT_SECONDS)
    before = await here.gate()
    with pytest.raises(ArtifactClash):
        await here.host(changed)
    after = await here.gate()
    assert after == replace(before, generation=before.generation + 1)
    assert await here.governance() == Head()
    assert await states(here) == [RowState.REVOKED]  # contained all the same
    assert (await here.host()).identity.epoch == 1


@pytest.mark.req("C13.7-34")
async def test_a_document_that_fits_into_no_message_is_refused_before_anybody_is_hurt(
    here: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await here.host()
    await first.minter()
    monkeypatch.setattr(publisher, "HEADROOM", 1 << 20)
    with pytest.raises(ArtifactTooLarge):
        await here.host()
    assert (await here.gate()).process_epoch == 0
    assert (await first.minter()).text


@pytest.mark.req("C13.7-46", "C13.8-11")
async def test_a_hold_that_was_taken_for_abandoned_does_not_complete(
    here: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await here.host(instance=YOU)
    promote = Head.promoted
    moved: list[bool] = []

    def taken_before(self: Head, instance: str, op_id: str, governed: Any) -> Head:
        moved.append(True)
        return promote(self.taken(instance, Hold("9" * 32, 0, (), 1)), instance, op_id, governed)

    monkeypatch.setattr(Head, "promoted", taken_before)
    with pytest.raises(Conflict, match="abandoned"):
        await here.host()
    monkeypatch.undo()
    assert moved
    assert (await here.gate()).state is GateState.FROZEN  # its record stands: it is to be finished, not undone
    assert (await here.host()).identity.epoch == 0


@pytest.mark.req("C13.7-46", "C13.8-11")
async def test_registrations_of_one_endpoint_at_the_same_time_all_succeed(here: Site) -> None:
    hosted = await asyncio.gather(*(here.host(instance=f"{n:04x}" * 8) for n in range(6)))
    assert [one.identity.epoch for one in hosted] == [0] * 6
    assert await here.governance() == Head()


@pytest.mark.req("C13.1-083")
async def test_hosts_without_an_instance_take_up_a_kept_one_that_nobody_serves(here: Site) -> None:
    one = await here.host(instance=None)
    two = await here.host(instance=None)
    assert one.identity.instance != two.identity.instance
    assert all(len(hosted.identity.instance) == 32 for hosted in (one, two))
    one.close()
    again = await here.host(instance=None)
    assert (again.identity.instance, again.identity.epoch) == (one.identity.instance, 1)
    known = {record.instance for record in instances(here.root, SPACE)}
    assert known == {one.identity.instance, two.identity.instance}


@pytest.mark.req("C13.14-01", "C13.1-048")
async def test_a_creds_file_for_a_process_elsewhere_serves_until_the_next_one_is_made(
    here: Site, tmp_path: Path
) -> None:
    out = tmp_path / "serve.creds"
    where = (here.root, SPACE, here.broker.url)
    done = await register(*where, echo(), owner=OWNER, out=out, instance=ME)
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    identity = identity_of(read_private(out, 65536))
    assert (identity.instance, identity.epoch, identity.endpoint) == (ME, done.epoch, NAME) == (ME, 0, NAME)
    async with here.broker.user(out, f"_INBOX_{user_of(out)}.>") as user:
        assert await user.may_subscribe("cotal.main.ep.one.com_acme_echo.echo.>", "com_acme_echo")
        assert not await user.may_subscribe("cotal.main.ep.one.com_acme_echo.other.>", "com_acme_echo")
        assert await user.may_publish(f"cotal.main.ep.reply.com_acme_echo.{ME}.0.local.bob.{'b' * 26}.{'n' * 22}")
        assert not await user.may_publish(f"cotal.main.ep.reply.com_acme_echo.{ME}.1.local.bob.{'b' * 26}.{'n' * 22}")
        await register(*where, echo(), owner=OWNER, out=tmp_path / "next.creds", instance=ME)
        async with asyncio.timeout(EVENT_SECONDS):
            await user.closed.wait()


def user_of(creds: Path) -> str:
    return read_creds(creds).key.public


async def test_a_domain_is_not_given_up_while_an_instance_is_registered(here: Site) -> None:
    await here.host()
    with pytest.raises(SpaceFailed, match="in use"):
        release_domain(here.root, SPACE, "com.acme")
    await endpoint_host.deregister(here.root, SPACE, here.broker.url, NAME, ME)
    assert release_domain(here.root, SPACE, "com.acme").owner == OWNER


@pytest.mark.req("C13.2-03")
async def test_a_registration_whose_domain_is_given_up_meanwhile_changes_nothing(
    here: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = registration.register

    async def given_up(*args: Any) -> Any:
        release_domain(here.root, SPACE, "com.acme")  # nothing says yet that it is in use
        claim_domain(here.root, SPACE, "com.acme", OTHER_OWNER)
        return await begin(*args)

    monkeypatch.setattr("sidecar.app.endpoint_host._register", given_up)
    with pytest.raises(Denied):
        await here.host()
    monkeypatch.undo()
    gate = await here.gate()
    assert (gate.state, gate.registered) == (GateState.OPEN, False)
    assert await here.record("spec") == (None, 0)
    (record,) = instances(here.root, SPACE)
    assert (record.registered, record.progress) == (False, None)
    release_domain(here.root, SPACE, "com.acme")  # what was refused holds no domain


@pytest.mark.req("C13.2-03")
async def test_a_domain_is_not_given_up_between_the_last_step_and_the_record_of_it(
    here: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = registration.register

    async def killed(*args: Any) -> Any:
        await begin(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr("sidecar.app.endpoint_host._register", killed)
    with pytest.raises(KeyboardInterrupt):
        await here.host()
    monkeypatch.undo()
    assert (await here.gate()).registered
    with pytest.raises(SpaceFailed, match="in use"):
        release_domain(here.root, SPACE, "com.acme")


@pytest.mark.req("C13.2-23")
async def test_a_name_that_is_registered_has_no_second_owner(here: Site) -> None:
    await here.host()
    shutil.rmtree(EndpointShelf(here.root, SPACE, NAME, ME).directory.parent)  # another directory registered it
    claim_domain(here.root, SPACE, NAME, OTHER_OWNER)
    before = await here.record("spec")
    with pytest.raises(Denied, match="another owner"):
        await here.host(owner=OTHER_OWNER, instance=YOU)
    assert await here.record("spec") == before
    assert await here.record("spec", YOU) == (None, 0)


@pytest.mark.req("C13.12-20", "C13.12-22")
async def test_a_ledger_row_ends_with_its_credential_and_a_gate_never_does(here: Site) -> None:
    hosted = await here.host(seconds=600)
    await hosted.minter()
    async with here.hand() as hand:
        stream = buckets.AUTH.stream(SPACE)
        (subject,) = await subjects_of(hand.client, stream, PLACE.credentials)
        for one, wanted in ((subject, b"Nats-TTL: 600s"), (PLACE.gate, None)):
            answer = await ask(hand.client, f"$JS.API.STREAM.MSG.GET.{stream}", {"last_by_subj": one})
            told = base64.b64decode(answer["message"].get("hdrs", ""))
            assert (b"Nats-TTL" in told) is (wanted is not None)
            assert wanted is None or wanted in told


@pytest.mark.req("C13.14-01")
async def test_registrations_are_counted_by_how_they_ended(here: Site) -> None:
    metrics = Metrics()
    first = await here.host(metrics=metrics)
    await first.minter()
    await here.host(metrics=metrics)
    with pytest.raises(InstanceSuperseded):
        await first.minter()
    await set_gate(here, lambda gate: gate.frozen(FOREIGN))
    with pytest.raises(Conflict):
        await here.host(metrics=metrics)
    assert metrics.totals("registration_registrations") == {("first",): 1, ("takeover",): 1, ("conflict",): 1}
    assert metrics.totals("registration_evictions") == {(): 1}
    assert metrics.totals("registration_fences") == {(): 1}


@pytest.mark.req("C13.1-030", "C13.14-01")
async def test_a_connection_renews_its_credentials_at_the_same_epoch(here: Site) -> None:
    hosted = await here.host()
    minted: list[Credentials] = []

    async def mint() -> Credentials:
        minted.append(await hosted.minter())
        return minted[-1]

    async with await Connection.open([here.broker.url], mint) as connection:
        assert connection.linked
        assert identity_of(minted[0].text) == identity_of((await mint()).text)
    assert await states(here) == [RowState.ACTIVE]
