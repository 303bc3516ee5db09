"""Principals that call endpoints: what they may, which lifecycle is current, and what is recorded before creds are
written."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from click.testing import CliRunner

from sidecar.app import minting
from sidecar.app.broker import free_port
from sidecar.app.principal_records import Shelf, Stage, Wanted
from sidecar.app.principals import add, local, manager_of, principal_info, renew, renew_listed, revoke
from sidecar.app.space_links import SpaceFailed
from sidecar.app.spaces import OpenSpace, create_space, open_space
from sidecar.base.strictjson import canonical
from sidecar.cli.principal import command
from sidecar.rails.names import buckets
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.space import lifecycles
from sidecar.rails.space.ceilings import ceiling_of
from sidecar.rails.space.creds import read_creds
from sidecar.rails.space.evidence import (
    Reference,
    accepted_subject,
    accepted_value,
    evidence_subject,
    horizon_of,
    listing_token,
    read_accepted,
    read_evidence,
)
from sidecar.rails.space.grants import GrantRefused
from sidecar.rails.space.heads import HeadState, uid_subject
from sidecar.rails.space.holder import Capability, EventRead, Form, Profile
from sidecar.rails.space.keys import read_first, read_key, write_key
from sidecar.rails.space.lifecycles import reserve
from sidecar.rails.space.reading import with_listing
from tests.e2e.space_broker import SpaceBroker

pytestmark = pytest.mark.asyncio

SPACE = "main"
P = f"cotal.{SPACE}"
E = "dev.sidecar.sample"
TOKEN = "dev_sidecar_sample"
CALLS = (Capability(E, "*"), Capability(E, "*", "self"))
RECORDS, ISSUED, ACCEPTED = (one.stream(SPACE) for one in (buckets.RECORDS, buckets.ISSUED, buckets.ACCEPTED))


@pytest_asyncio.fixture
async def broker(tmp_path: Path) -> AsyncIterator[SpaceBroker]:
    async with SpaceBroker(tmp_path) as running:
        await create_space(tmp_path, SPACE, Form.MEDIATED, running.url)
        yield running


def agent(actor: str = "alice", **more: Any) -> Wanted:
    return Wanted(local(actor), Profile.AGENT, 3600, **{"subscribe": ("general",), **more})


def opened(broker: SpaceBroker) -> Any:
    return open_space(broker.directory, SPACE, broker.url)


def connected(broker: SpaceBroker, creds: Path) -> Any:
    return broker.user(creds, f"_INBOX_{read_creds(creds).key.public}.>")


async def head_of(space: OpenSpace, actor: str = "alice") -> Any:
    return (await lifecycles.read_head(await space.as_(Profile.LIFECYCLES), SPACE, local(actor)))[0]


def listing_in(creds: Path, lifecycle: Lifecycle) -> str | None:
    """The generation that the rows of a creds file name."""
    found = read_creds(creds)
    holder = agent().holder(SPACE, Form.MEDIATED, lifecycle.uid, found.key.public)
    return with_listing(holder, found.user.permissions).listing


@pytest.mark.req("C13.9-007", "C13.9-009", "C13.9-M02", "C13.9-M19")
async def test_a_principal_calls_and_hears_what_it_may_and_another_grant_replaces_it(broker: SpaceBroker) -> None:
    async with opened(broker) as space:
        info = await add(space, agent(capabilities=CALLS, hears=(EventRead(E, E, "counted"),)))
        tail = f"{info.record.lifecycle.dot}.{'n' * 22}"
        async with connected(broker, info.creds) as user:
            for subject in (f"{P}.ep.one.{TOKEN}.echo.{tail}", f"{P}.ep.inst.{TOKEN}.{'i' * 26}.whoami.self.{tail}"):
                assert await user.may_publish(subject), subject
            for subject in (f"{P}.ep.one.other.echo.{tail}", f"{P}.ep.one.{TOKEN}.echo.owner.local.{tail}"):
                assert not await user.may_publish(subject), subject
            assert await user.may_subscribe(f"{P}.epe.{TOKEN}.*.*.ev.{TOKEN}.counted")
        again = await add(space, agent(capabilities=(Capability(E, "add"),)))
        assert (again.record.uid, again.record.stage) == (info.record.uid, Stage.ACTIVE)
        async with connected(broker, again.creds) as user:
            assert await user.may_publish(f"{P}.ep.one.{TOKEN}.add.{tail}")
            assert not await user.may_publish(f"{P}.ep.one.{TOKEN}.echo.{tail}")
            assert not await user.may_subscribe(f"{P}.epe.{TOKEN}.*.*.ev.{TOKEN}.counted")
    kept = principal_info(broker.directory, SPACE, local("alice")).record
    assert (kept.wanted.capabilities, kept.wanted.hears) == ((Capability(E, "add"),), ())


@pytest.mark.req("C13.2-30", "C13.2-31", "C13.2-32", "C13.2-33", "C13.9-014")
async def test_what_no_agent_may_is_refused_before_anything_is_written(broker: SpaceBroker) -> None:
    many = tuple(Capability(E, f"command-{n:03}") for n in range(200))
    refused = [(Capability(E, "end", "any", ("local",)),), (Capability(E, "end", "owner", ("other",)),), many]
    refused += [(Capability(E, "end", mode, ("local", "bob", "b" * 26)),) for mode in ("handle", "exact")]
    async with opened(broker) as space:
        for capabilities in refused:
            with pytest.raises(GrantRefused):
                await add(space, agent(capabilities=capabilities))
        with pytest.raises(SpaceFailed, match="no principal"):
            principal_info(broker.directory, SPACE, local("alice"))
        assert await head_of(space) is None
        for profile in (Profile.ENDPOINT, Profile.REGISTRY, Profile.REGISTRAR, Profile.ISSUER, Profile.LIFECYCLES):
            with pytest.raises(SpaceFailed, match="not one of a principal"):
                await add(space, Wanted(local("x"), profile, 600))
        operator = await add(space, Wanted(local("boss"), Profile.OPERATOR, 600, capabilities=refused[0]))
    async with connected(broker, operator.creds) as user:
        assert await user.may_publish(f"{P}.ep.one.{TOKEN}.end.any.local.{operator.record.lifecycle.dot}.n")


@pytest.mark.req("C13.1-003", "C13.1-004", "C13.1-021", "C13.1-023", "C13.1-025", "C13.1-014", "C13.9-M55")
async def test_a_lifecycle_is_reserved_and_current_until_it_is_revoked(broker: SpaceBroker) -> None:
    async with opened(broker) as space:
        first = (await add(space, agent())).record
        head = await head_of(space)
        assert (head.uid, head.state, head.current_credential_id) == (first.uid, HeadState.ACTIVE, None)
        assert head.manager_instance == manager_of(space.account)
        client = await space.as_(Profile.LIFECYCLES)
        reserved = await read_key(client, RECORDS, uid_subject(SPACE, first.uid))
        assert reserved.value == canonical({"owner": "local", "actor": "alice", "mintedBy": "provisioner"})
        await revoke(space, local("alice"))
        assert (await head_of(space)).state is HeadState.RETIRED
        second = (await add(space, agent())).record
        assert second.uid != first.uid
        assert ((await head_of(space)).uid, (await head_of(space)).state) == (second.uid, HeadState.ACTIVE)
        assert (await read_key(client, RECORDS, uid_subject(SPACE, first.uid))).value == reserved.value


@pytest.mark.req("C13.1-006", "C13.1-022")
async def test_a_uid_that_somebody_else_has_reserved_is_burned(
    broker: SpaceBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(broker) as space:
        taken = "ab" * 16
        await reserve(await space.as_(Profile.LIFECYCLES), SPACE, taken, Principal("local", "mallory"))
        drawn = iter([bytes.fromhex(taken)])
        real = os.urandom
        monkeypatch.setattr("sidecar.app.principals.os.urandom", lambda size: next(drawn, None) or real(size))
        monkeypatch.setattr("sidecar.app.principals._check", lambda *_: None)  # it draws a key of its own
        info = await add(space, agent())
        monkeypatch.undo()
        assert info.record.uid != taken
        assert (await head_of(space)).uid == info.record.uid


@pytest.mark.req("C13.15-05", "C13.15-06", "C13.15-28", "C13.15-29", "C13.15-30", "C13.15-31", "C13.15-14")
async def test_the_creds_of_an_agent_list_with_what_is_recorded_of_them(broker: SpaceBroker) -> None:
    async with opened(broker) as space:
        info = await add(space, agent(capabilities=CALLS))
        assert info.unlisted == ""
        creds, lifecycle = read_creds(info.creds), info.record.lifecycle
        generation = listing_in(info.creds, lifecycle)
        assert generation is not None
        ends = creds.token.expires_at
        assert ends is not None
        assert horizon_of(generation) == ends
        client = await space.as_(Profile.ISSUER)
        token = listing_token(creds.key.public, ends)
        accepted = await read_key(client, ACCEPTED, accepted_subject(SPACE, token))
        ref = read_accepted(accepted.value or b"")
        assert ref == Reference(SPACE, lifecycle, generation)
        row = await read_first(client, ISSUED, evidence_subject(ref))
        evidence = read_evidence(ref, row or b"")
        assert evidence.permissions == ceiling_of(creds.user.permissions), "all that the token grants, legacy rows too"
        assert (evidence.expires_at, evidence.sources) == (ends, ())
        tail = f"{lifecycle.dot}.{generation}.{'n' * 22}"
        async with connected(broker, info.creds) as user:
            assert await user.may_publish(f"{P}.ep.v1.one.registry.endpoints.{tail}")
        observer = await add(space, Wanted(local("eve"), Profile.OBSERVER, 3600))
        assert (observer.unlisted, listing_in(observer.creds, observer.record.lifecycle)) == ("", None)


@pytest.mark.req("C13.15-31", "C13.15-17")
async def test_a_row_of_somebody_else_is_never_replaced_and_never_refuses_a_credential(
    broker: SpaceBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(broker) as space:
        first = await add(space, agent())
        at = read_creds(first.creds).token.issued_at
        # The same second again: the same token, and a row that already stands.
        monkeypatch.setattr(minting, "now", lambda: at)
        same = await add(space, agent())
        assert same.unlisted == ""
        lifecycle = first.record.lifecycle
        assert listing_in(same.creds, lifecycle) == listing_in(first.creds, lifecycle)
        other = await add(space, agent(capabilities=CALLS))
        assert "other grants are recorded" in other.unlisted
        assert listing_in(other.creds, lifecycle) is None
        key, ends = read_creds(first.creds).key.public, at + 7200
        mallory = Lifecycle(Principal("local", "mallory"), "m" * 26)
        foreign = Reference(SPACE, mallory, f"{ends:08x}" + "0" * 24)
        issuer = await space.as_(Profile.ISSUER)
        subject = accepted_subject(SPACE, listing_token(key, ends))
        await write_key(issuer, subject, canonical(accepted_value(foreign)), 0)
        stolen = await renew_listed(space, local("alice"), 7200)
        assert "somebody else's" in stolen.unlisted
        assert read_creds(stolen.creds).token.expires_at == ends
        kept = await read_key(issuer, ACCEPTED, subject)
        assert read_accepted(kept.value or b"") == foreign


@pytest.mark.req("C13.15-03", "C13.15-14", "C13.15-17")
async def test_renewed_creds_list_when_the_broker_is_asked_and_say_so_when_it_is_not(broker: SpaceBroker) -> None:
    async with opened(broker) as space:
        first = await add(space, agent())
        lifecycle = first.record.lifecycle
        later = await renew_listed(space, local("alice"), 7200)
        ends = read_creds(later.creds).token.expires_at
        generation = listing_in(later.creds, lifecycle)
        assert generation is not None
        assert horizon_of(generation) == ends
        alone = renew(broker.directory, SPACE, local("alice"))
        assert alone.unlisted
        assert listing_in(alone.creds, lifecycle) is None
        await revoke(space, local("alice"))
        with pytest.raises(SpaceFailed, match="no creds to renew"):
            await renew_listed(space, local("alice"))


async def test_a_record_of_before_there_were_endpoints_is_read_and_made_current(broker: SpaceBroker) -> None:
    async with opened(broker) as space:
        record = (await add(space, agent("old"))).record
        shelf = Shelf(space.directory / "principals", local("old"))
        value = {name: one for name, one in record.value().items() if name not in ("capabilities", "hears")}
        path = shelf.directory / "record.json"
        path.write_bytes(canonical({**value, "lifecycleUid": "0" * 26}))
        assert shelf.read() is not None
        await revoke(space, local("old"))
        assert principal_info(broker.directory, SPACE, local("old")).record.stage is Stage.ENDED


def run(*args: str) -> Any:
    return CliRunner().invoke(command, args, catch_exceptions=False)


async def test_the_command_grants_calls_and_events(broker: SpaceBroker) -> None:
    where = ("--root", str(broker.directory), "--space", SPACE)
    made = await asyncio.to_thread(
        run, "add", *where, "--server", broker.url, "--owner", "local", "--actor", "alice", "--may", f"{E}:*",
        "--may", "com.acme.ci:build@owner", "--hear", f"{E}:counted", "--json",
    )  # fmt: skip
    assert made.exit_code == 0, made.output
    value = json.loads(made.stdout)
    assert [(one["endpoint"], one["command"], one["mode"], one["target"]) for one in value["capabilities"]] == [
        (E, "*", "", []), (E, "*", "self", []), ("com.acme.ci", "build", "owner", ["local"]),
    ]  # fmt: skip
    assert value["hears"] == [{"endpoint": E, "cluster": E, "event": "counted"}]
    assert value["unlisted"] is None
    shown = await asyncio.to_thread(run, "show", "local.alice", *where)
    assert f"{E}:*@self" in shown.output
    assert f"{E}:{E}/counted" in shown.output
    renewed = await asyncio.to_thread(run, "creds", "local.alice", *where, "--server", broker.url)
    assert (renewed.exit_code, "cannot list" in renewed.stderr) == (0, False)
    nobody = f"nats://127.0.0.1:{free_port('127.0.0.1')}"
    away = await asyncio.to_thread(run, "creds", "local.alice", *where, "--server", nobody)
    assert away.exit_code == 0
    assert "the broker was not asked" in away.stderr
    assert "cannot list the endpoints" in away.stderr
    alone = await asyncio.to_thread(run, "creds", "local.alice", *where, "--json")
    assert json.loads(alone.stdout)["unlisted"]
    for bad in ("x", f"{E}:", f"{E}:a@none", "*:a"):
        with pytest.raises(InvalidName):
            await asyncio.to_thread(
                run, "add", *where, "--server", broker.url, "--owner", "local", "--actor", "bob", "--may", bad
            )
