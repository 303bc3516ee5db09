"""Principals of a space at a real broker: added, renewed, ended, and finished after a kill at any step."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats.errors
import pytest
import pytest_asyncio

from sidecar.app.principal_records import Stage, Wanted
from sidecar.app.principals import add, derived_owner, local, principal_info, principals, renew, revoke
from sidecar.app.space_links import SpaceFailed
from sidecar.app.spaces import OpenSpace, create_space, open_space
from sidecar.base.safefile import UnsafeFile
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.principals import Lifecycle, OwnerKind, Principal, owner_kind
from sidecar.rails.space.acl import AclRow, read_row
from sidecar.rails.space.claims import Access, Permissions
from sidecar.rails.space.creds import read_creds
from sidecar.rails.space.grants import GrantRefused
from sidecar.rails.space.heads import head_subject
from sidecar.rails.space.holder import Form, Profile
from sidecar.rails.space.keys import read_key
from sidecar.rails.space.retire import memberships
from sidecar.rails.space.trust import new_user
from tests.e2e.space_broker import EVENT_SECONDS, SpaceBroker, User
from tests.e2e.space_members import clock

pytestmark = pytest.mark.asyncio

SPACE = "main"
P = f"cotal.{SPACE}"
JS = "$JS.API"


@pytest_asyncio.fixture
async def broker(tmp_path: Path) -> AsyncIterator[SpaceBroker]:
    async with SpaceBroker(tmp_path) as running:
        await create_space(tmp_path, SPACE, Form.COMPATIBLE, running.url)
        yield running


def agent(actor: str = "alice", **more: Any) -> Wanted:
    lists = {"subscribe": ("general", "team.>"), "allow_publish": ("general",), "roles": ("reviewer",)}
    return Wanted(local(actor), Profile.AGENT, 3600, **{**lists, **more})


async def ask(user: Any, subject: str, body: Any = None) -> dict[str, Any]:
    reply = await user.request(subject, json.dumps(body).encode() if body else b"", timeout=EVENT_SECONDS)
    answer: dict[str, Any] = json.loads(reply.data)
    return answer


def opened(broker: SpaceBroker, space: str = SPACE) -> Any:
    return open_space(broker.directory, space, broker.url)


def connected(broker: SpaceBroker, creds: Path) -> Any:
    return broker.user(creds, f"_INBOX_{read_creds(creds).key.public}.>")


async def root(broker: SpaceBroker, space: OpenSpace) -> Any:
    """Someone who may look at and write everything: the hand of a test."""
    key = new_user(os.urandom)
    inbox = f"_INBOX_{key.public}.>"
    granted = Permissions(Access(("$JS.API.>", "cotal.>", "$KV.>")), Access((inbox, "cotal.>")))
    token = space.account.mint("local-root", granted, key, clock(), 300)
    return broker.user(broker.creds(token, key), inbox)


@pytest.mark.req("C9-40", "C8-29", "C8-34", "C9-06", "C2-13")
async def test_an_added_principal_works_and_is_added_once(broker: SpaceBroker) -> None:
    async with opened(broker) as space:
        info = await add(space, agent())
        again = await add(space, agent())
        assert again.record == info.record
        assert (again.user, info.record.stage) == (info.user, Stage.ACTIVE)
        row, _ = await read_row(space.client, SPACE, info.record.lifecycle)
        assert row is not None
        assert (row.allow_subscribe, row.roles, row.revision) == (("general", "team.>"), ("reviewer",), 1)
        names = {
            "DM_main": f"dm_local-alice-{info.record.uid}",
            "DLV_main": f"dlv_local-alice-{info.record.uid}",
            "TASK_main": "svc_reviewer",
        }
        for stream, name in names.items():
            assert "error" not in await ask(space.client, f"{JS}.CONSUMER.INFO.{stream}.{name}"), name
    async with connected(broker, info.creds) as user:
        assert await user.may_publish(f"{P}.chat.local.alice.general", b"x")
        assert await user.may_subscribe(f"{P}.chat.*.*.team.>")
        assert not await user.may_publish(f"{P}.chat.local.alice.team.x", b"x")
    listed = principals(broker.directory, SPACE)
    assert [one.record.wanted.principal.dot for one in listed] == ["local.alice"]
    for path in (broker.directory / "spaces").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.req("C2-12", "C9-44")
async def test_renewed_creds_have_the_key_and_the_lifecycle_of_before(broker: SpaceBroker) -> None:
    async with opened(broker) as space:
        first = await add(space, agent())
        before = read_creds(first.creds)
        later = renew(broker.directory, SPACE, local("alice"), 7200)
        after = read_creds(later.creds)
        assert (after.key.public, after.user.tags) == (before.key.public, before.user.tags)
        assert after.token.expires_at is not None
        assert before.token.expires_at is not None
        assert after.token.expires_at - before.token.expires_at >= 3600
        with pytest.raises(GrantRefused, match="CB-92"):
            renew(broker.directory, SPACE, local("alice"), 91 * 24 * 3600)
        assert read_creds(first.creds).token_text.reveal() == after.token_text.reveal()
        narrowed = await add(space, agent(subscribe=("general",), roles=()))
        assert narrowed.record.uid == first.record.uid
        row, _ = await read_row(space.client, SPACE, narrowed.record.lifecycle)
        assert row == AclRow(("general",), (), ("general",), 2, row.updated_at if row else 0)
    with pytest.raises(SpaceFailed, match="no principal"):
        renew(broker.directory, SPACE, local("bob"))


@pytest.mark.req("C13.3-02", "C9-44")
async def test_what_a_redirected_read_put_in_place_of_a_read_list_hinders_no_change_and_no_end(
    broker: SpaceBroker,
) -> None:
    async with opened(broker) as space:
        life = (await add(space, agent())).record.lifecycle
        async with await root(broker, space) as hand:
            for then in (add(space, agent(roles=())), revoke(space, local("alice"))):
                forged = {"Nats-Stream": "KV_cotal_presence_main", "Nats-Subject": "$KV.cotal_presence_main.local.eve"}
                subject = f"$KV.cotal_acl_main.{life.dot}"
                await hand.client.request(subject, b"no row", timeout=EVENT_SECONDS, headers=forged)
                assert (await read_row(space.client, SPACE, life))[0] is None
                info = await then
                row, _ = await read_row(space.client, SPACE, life)
                if info.record.stage is Stage.ACTIVE:
                    assert row is not None
                    assert (row.allow_subscribe, row.roles) == (("general", "team.>"), ())
        assert info.record.stage is Stage.ENDED


@pytest.mark.req("C13.1-027", "C8-33")
async def test_nobody_keeps_his_tokens_by_spoiling_his_own_head(broker: SpaceBroker, tmp_path: Path) -> None:
    async with opened(broker) as space:
        info = await add(space, agent())
        (kept := tmp_path / "kept.creds").write_bytes(info.creds.read_bytes())
        kept.chmod(0o600)
        head = head_subject(SPACE, local("alice"))
        async with connected(broker, kept) as alice:
            # The broker acknowledges it there, whoever may write the key.
            await alice.client.publish(f"{P}.inst.local.alice.local.alice", b"to myself", reply=head)
            heads = await space.as_(Profile.LIFECYCLES)
            async with asyncio.timeout(EVENT_SECONDS):
                while b"stream" not in ((await read_key(heads, "KV_cotal_records_main", head)).value or b""):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        for _ in range(2):  # it may be run again, and says so again
            with pytest.raises(SpaceFailed):
                await revoke(space, local("alice"))
            with pytest.raises(nats.errors.Error, match="Authorization"):
                await User().connect(broker.url, kept, f"_INBOX_{info.user}.>")
        assert principal_info(broker.directory, SPACE, local("alice")).record.stage is Stage.ENDING
        row, _ = await read_row(space.client, SPACE, info.record.lifecycle)
        assert row is not None
        assert not row.allow_subscribe  # what the delivery plane hands on is over too


@pytest.mark.req("C8-30", "C4-09")
async def test_durables_that_were_deleted_are_made_where_the_lifecycle_begins(broker: SpaceBroker) -> None:
    async with opened(broker) as space, await root(broker, space) as hand:
        await hand.client.request(f"{P}.inst.local.alice.local.bob", b"before", timeout=EVENT_SECONDS)
        first = (await add(space, agent())).record
        await hand.client.request(f"{P}.inst.local.alice.local.bob", b"waits", timeout=EVENT_SECONDS)
        name = f"DM_main.dm_local-alice-{first.uid}"
        assert (await ask(hand.client, f"{JS}.CONSUMER.DELETE.{name}"))["success"]
        again = (await add(space, agent())).record
        assert (again.uid, again.frontiers) == (first.uid, first.frontiers)
        got = await hand.client.request(f"{JS}.CONSUMER.MSG.NEXT.{name}", b"1", timeout=EVENT_SECONDS, old_style=True)
        assert got.data == b"waits"


@pytest.mark.req("C8-33", "C8-35", "C8-30", "CB-74", "CB-76", "CD-03", "CD-04")
async def test_a_successor_sees_nothing_of_the_life_before_nor_of_the_gap(broker: SpaceBroker) -> None:
    async with opened(broker) as space:
        first = (await add(space, agent())).record
        async with await root(broker, space) as hand:
            keys = [f"{one}/local.alice.{first.uid}" for one in ("general", "team.=")]
            for subject in (*keys, f"general/local.bob.{first.uid}"):
                await hand.client.request(f"$KV.cotal_members_main.{subject}", b"{}", timeout=EVENT_SECONDS)
            await hand.client.request(f"{P}.inst.local.alice.local.bob", b"old", timeout=EVENT_SECONDS)
            ended = (await revoke(space, local("alice"))).record
            assert ended.stage is Stage.ENDED
            assert (await revoke(space, local("alice"))).record == ended
            assert ended.past[0].uid == first.uid
            assert ended.past[0].frontiers["DM_main"] == 1
            assert set(ended.past[0].frontiers) == {"CHAT_main", "DM_main", "INBOX_main", "DLV_main"}
            row, _ = await read_row(space.client, SPACE, first.lifecycle)
            assert row is not None
            assert (row.allow_subscribe, row.roles, row.issued, row.revision) == ((), (), ("general", "team.>"), 2)
            for name in (f"DM_main.dm_local-alice-{first.uid}", f"DLV_main.dlv_local-alice-{first.uid}"):
                assert (await ask(space.client, f"{JS}.CONSUMER.INFO.{name}"))["error"]["err_code"] == 10014
            for key in keys:
                found = await ask(
                    hand.client,
                    f"{JS}.STREAM.MSG.GET.KV_cotal_members_main",
                    {"last_by_subj": f"$KV.cotal_members_main.{key}"},
                )
                assert "hdrs" in found["message"], "a delete marker"
            assert await memberships(space.client, SPACE, Lifecycle(local("bob"), first.uid)) == ["general"]
            await hand.client.request(f"{P}.inst.local.alice.local.bob", b"gap", timeout=EVENT_SECONDS)
            second = (await add(space, agent())).record
            assert second.uid != first.uid
            assert second.frontiers == {"DM_main": 2}
            await hand.client.request(f"{P}.inst.local.alice.local.bob", b"new", timeout=EVENT_SECONDS)
            name = f"dm_local-alice-{second.uid}"
            subject = f"{JS}.CONSUMER.MSG.NEXT.DM_main.{name}"
            got = await hand.client.request(subject, b"1", timeout=EVENT_SECONDS, old_style=True)
            assert got.data == b"new"


@pytest.mark.req("C9-44")
async def test_a_revoked_credential_ends_at_once_and_never_comes_back(broker: SpaceBroker) -> None:
    async with opened(broker) as space:
        info = await add(space, agent())
        copy = broker.directory / "copy.creds"
        copy.write_bytes(info.creds.read_bytes())
        copy.chmod(0o600)
        async with connected(broker, copy) as user:
            await revoke(space, local("alice"))
            async with asyncio.timeout(EVENT_SECONDS):
                await user.closed.wait()
        with pytest.raises(nats.errors.Error):
            await User().connect(broker.url, copy, "_INBOX_x.>")
        assert not info.creds.exists()
        again = await add(space, agent())
        async with connected(broker, again.creds) as user:
            assert await user.may_publish(f"{P}.chat.local.alice.general", b"x")


@pytest.mark.req("C9-44")
async def test_a_token_of_a_time_when_the_clock_was_ahead_is_revoked_as_well(
    broker: SpaceBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(broker) as space:
        await add(space, agent())
        monkeypatch.setattr("sidecar.app.minting.now", lambda: clock() + 86_400)
        ahead = renew(broker.directory, SPACE, local("alice"), 7200)
        monkeypatch.undo()
        await asyncio.to_thread(ahead.creds.rename, broker.directory / "ahead.creds")
        async with connected(broker, broker.directory / "ahead.creds") as user:
            await revoke(space, local("alice"))
            async with asyncio.timeout(EVENT_SECONDS):
                await user.closed.wait()


@pytest.mark.req("C2-03", "C2-04", "C2-05", "C10-16")
async def test_an_identity_has_one_owner_in_a_space(broker: SpaceBroker) -> None:
    root = broker.directory
    owner = derived_owner(root, SPACE, "idp|alice@example.org")
    assert owner == derived_owner(root, SPACE, "idp|alice@example.org")
    assert owner_kind(owner) is OwnerKind.DERIVED
    assert owner != derived_owner(root, SPACE, "idp|bob@example.org")
    for wrong in ("", " x", "a\nb", "x" * 513):
        with pytest.raises(InvalidName):
            derived_owner(root, SPACE, wrong)
    async with opened(broker) as space:
        one = await add(space, Wanted(Principal(owner, "one"), Profile.AGENT, 60))
        two = await add(space, Wanted(Principal(owner, "two"), Profile.AGENT, 60))
    assert one.record.uid != two.record.uid


@pytest.mark.req("C3-16", "C6-24", "C9-07", "CD-02", "CB-92", "CB-73", "C2-08")
async def test_what_no_credential_may_hold_is_refused_before_anything_is_written(broker: SpaceBroker) -> None:
    async with opened(broker) as space:
        for wrong in (
            {"roles": ("pro.be",)},
            {"roles": (" probe",)},
            {"subscribe": ("perm.>",), "allow_subscribe": ("perm.*",)},
            {"allow_publish": ("a..b",)},
            {"name": "\U0001f600" * 64 + "x"},
        ):
            with pytest.raises(ValueError, match=r"."):
                await add(space, agent("mallory", **wrong))
        for profile in (Profile.DELIVERY, Profile.PROVISIONER, Profile.DEPROVISIONER):
            with pytest.raises(SpaceFailed, match="mints its own"):
                await add(space, Wanted(local("mallory"), profile, 60))
        with pytest.raises(GrantRefused, match="CB-92"):
            await add(space, Wanted(local("mallory"), Profile.OPERATOR, 2 * 3600))
        for actor in ("a-b", "a.b", "*", ""):
            with pytest.raises(InvalidName):
                local(actor)
        assert principals(broker.directory, SPACE) == []
        assert (await add(space, agent("ok", name="\U0001f600" * 64))).record.stage is Stage.ACTIVE


async def test_a_profile_is_not_changed_and_a_broken_record_is_told(broker: SpaceBroker) -> None:
    async with opened(broker) as space:
        info = await add(space, agent())
        with pytest.raises(SpaceFailed, match="profile agent"):
            await add(space, Wanted(local("alice"), Profile.OBSERVER, 60))
        observer = await add(space, Wanted(local("eve"), Profile.OBSERVER, 60))
        row, _ = await read_row(space.client, SPACE, observer.record.lifecycle)
        assert row is None
        assert (await revoke(space, local("eve"))).record.stage is Stage.ENDED
    record = info.creds.parent / "record.json"
    for broken in (b"", b"[]", b"{}", record.read_bytes().replace(b'"seconds":3600', b'"seconds":"x"')):
        record.write_bytes(broken)
        with pytest.raises(UnsafeFile, match="record of a principal"):
            principal_info(broker.directory, SPACE, local("alice"))


@pytest.mark.req("C1-01", "C9-03")
async def test_two_spaces_of_one_broker_share_nothing(broker: SpaceBroker) -> None:
    await create_space(broker.directory, "other", Form.COMPATIBLE, broker.url)
    async with opened(broker) as main, opened(broker, "other") as other:
        here, there = await add(main, agent()), await add(other, agent())
        async with await root(broker, other) as hand, connected(broker, here.creds) as alice:
            tap = await hand.client.subscribe("cotal.>")
            await hand.violations()
            assert await alice.may_publish(f"{P}.chat.local.alice.general", b"x")
            for foreign in ("cotal.other.chat.local.alice.general", f"{JS}.STREAM.INFO.CHAT_other"):
                assert not await alice.may_publish(foreign)
            await hand.violations()
            assert tap.pending_msgs == 0
            # One lifecycle is known in its own space alone, whoever asks.
            assert await read_row(other.client, "other", here.record.lifecycle) == (None, 0)
            name = f"DM_other.dm_local-alice-{here.record.uid}"
            assert "error" in await ask(other.client, f"{JS}.CONSUMER.INFO.{name}")
        await revoke(main, local("alice"))
        async with connected(broker, there.creds) as user:
            assert await user.may_publish("cotal.other.chat.local.alice.general", b"x")
    assert derived_owner(broker.directory, SPACE, "x") != derived_owner(broker.directory, "other", "x")


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from nats.aio.client import Client
from sidecar.app.principal_records import Wanted
from sidecar.app.principals import add, local, revoke
from sidecar.app.spaces import open_space
from sidecar.base import safefile
from sidecar.rails.space.holder import Profile

def step():
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

sync, request = safefile._sync_dir, Client.request

def synced(path):
    sync(path)
    step()

async def requested(self, *args, **more):
    answer = await request(self, *args, **more)
    step()
    return answer

safefile._sync_dir, Client.request = synced, requested

async def main(command):
    async with open_space(Path(sys.argv[1]), "main", sys.argv[2]) as space:
        if command == "add":
            await add(space, Wanted(local("alice"), Profile.AGENT, 3600, "", ("general",), roles=("reviewer",)))
        else:
            await revoke(space, local("alice"))

for line in sys.stdin:
    left, command = int(line.split()[0]), line.split()[1]
    if (child := os.fork()) == 0:
        asyncio.run(main(command))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Killer:
    """Runs commands that are killed after so many writes and answers, each in a process of its own."""

    def __init__(self, broker: SpaceBroker) -> None:
        command = [sys.executable, "-c", KILLED, str(broker.directory), broker.url]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def kill_after(self, steps: int, command: str) -> bool:
        """False when the command was through before."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{steps} {command}\n")
        self.process.stdin.flush()
        code = int(self.process.stdout.readline())
        assert code in (0, -signal.SIGKILL)
        return code != 0

    def close(self) -> None:
        self.process.communicate(timeout=EVENT_SECONDS)


async def test_whatever_step_is_the_last_the_next_run_finishes(broker: SpaceBroker) -> None:
    """Each number of steps ends in a state that the very next command brings to its end."""
    wanted = Wanted(local("alice"), Profile.AGENT, 3600, "", ("general",), roles=("reviewer",))
    steps = {"add": 1, "revoke": 1}
    killed, killer = True, Killer(broker)
    while killed:
        killed = False
        killed |= await asyncio.to_thread(killer.kill_after, steps["add"], "add")
        async with opened(broker) as space:
            info = await add(space, wanted)
            assert info.record.stage is Stage.ACTIVE
            row, _ = await read_row(space.client, SPACE, info.record.lifecycle)
            assert row is not None
            assert row.allow_subscribe == ("general",)
        async with connected(broker, info.creds) as user:
            assert await user.may_subscribe(f"{P}.chat.*.*.general")
        killed |= await asyncio.to_thread(killer.kill_after, steps["revoke"], "revoke")
        async with opened(broker) as space:
            ended = (await revoke(space, local("alice"))).record
            assert ended.stage is Stage.ENDED
            assert ended.past[-1].uid == info.record.uid
            assert ended.past[-1].frontiers
            row, _ = await read_row(space.client, SPACE, info.record.lifecycle)
            assert row is not None
            assert (row.allow_subscribe, row.revision) == ((), 2)
        steps = {name: count + 1 for name, count in steps.items()}
    killer.close()
    assert steps["add"] > 11
    async with opened(broker) as space, await root(broker, space) as hand:
        for stream in ("DM_main", "DLV_main"):
            left = await ask(hand.client, f"{JS}.CONSUMER.NAMES.{stream}")
            assert left["consumers"] in (None, []), "no lifecycle left a durable behind"
