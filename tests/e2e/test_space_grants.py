"""Every profile with real credentials: each granted row works, and what is not granted is refused by the broker."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import nats.errors
import pytest

from sidecar.rails.space.claims import UserClaims
from sidecar.rails.space.creds import read_creds
from sidecar.rails.space.holder import Form, Holder, Profile
from tests.e2e.space_broker import EVENT_SECONDS, SpaceBroker, User
from tests.e2e.space_members import INSTANCE, SPACE, Space, samples, uid_of

pytestmark = pytest.mark.asyncio

P = f"cotal.{SPACE}"
JS = "$JS.API"
ALICE = {"subscribe": ("general", "team.>", "ops.*"), "allow_publish": ("general", "team.>"), "roles": ("reviewer",)}
BOB_UID = uid_of("bob")


@contextlib.asynccontextmanager
async def space(tmp_path: Path, form: Form) -> AsyncIterator[Space]:
    async with SpaceBroker(tmp_path) as broker:
        opened = Space(broker, form)
        await opened.open()
        yield opened


async def every_granted_row_works(user: User, profile: Profile, holder: Holder) -> None:
    subjects, filters = samples(profile, holder)
    for subject in subjects:
        assert await user.may_publish(subject), subject
    for subject, queue in filters:
        assert await user.may_subscribe(subject, queue), subject


async def refused(user: User, publish: list[str], subscribe: list[str]) -> None:
    for subject in publish:
        assert not await user.may_publish(subject), f"publish {subject}"
    for subject in subscribe:
        assert not await user.may_subscribe(subject), f"subscribe {subject}"


NOBODY_PUBLISHES = [
    f"{JS}.STREAM.DELETE.CHAT_main", f"{JS}.STREAM.PURGE.CHAT_main", f"{JS}.STREAM.UPDATE.CHAT_main",
    f"{JS}.STREAM.MSG.DELETE.CHAT_main", f"{JS}.STREAM.LIST", f"{JS}.STREAM.NAMES", "$JS.API.x", "$SYS.x", "x",
    f"{P}.ctl.delivery.local.alice", f"{P}.control.x", f"{P}.trace.x", "$O.x.y", "$KV.x.y", "_INBOX.x",
    f"{P}.chat.local.bob.general", f"{P}.inst.local.alice.local.bob", f"{P}.svc.reviewer.local.bob",
    f"{P}.dinbox.local.bob", "$KV.cotal_presence_main.local.bob", "$KV.cotal_records_main.x", "$KV.cotal_auth_main.x",
    f"{JS}.STREAM.MSG.GET.KV_cotal_auth_main", f"{JS}.DIRECT.GET.EPC_main.cotal.main.epc.x",
    f"{JS}.CONSUMER.CREATE.EPF_main.x.y", f"{P}.epf.x.dec.y", f"{P}.epw.x", f"{P}.ep.reply.delivery.x.1.a.b.c.n",
]  # fmt: skip
NOBODY_SUBSCRIBES = [
    ">", "*", "cotal.>", f"{P}.>", f"{P}.*", "$SYS.>", "$JS.>", "$KV.>", "_INBOX.>", f"{P}.dlv.>", f"{P}.dinbox.>",
    f"{P}.ep.>", f"{P}.ep.one.delivery.>", f"{P}.ep.reply.>", f"{P}.epe.>", f"{P}.epf.>", f"{P}.live.manager.*.*",
    f"_INBOX_{'U' + 'A' * 55}.>", "$KV.cotal_presence_main.>", "$JS.ACK.>",
]  # fmt: skip
AN_AGENT_PUBLISHES_NOT = [
    f"{P}.chat.local.alice.secret", f"{P}.chat.local.alice.team", f"{P}.chat.local.alicex.general",
    f"{P}.inst.local.bob.local.bob", f"{P}.inst.local.bob.local.alice.x", f"{P}.take.other.local.alice",
    f"{P}.take.reviewer.local.bob", f"{P}.live.delivery.local.bob", f"{P}.live.auth.local.alice",
    f"{P}.live.delivery.local.alice.reply.x", f"{P}.dlv.local.bob.{BOB_UID}", f"{P}.dinbox.local.bob.{BOB_UID}",
    f"{P}.ep.one.delivery.evict-principal.local.alice.{uid_of('alice')}.n",
    f"{P}.ep.one.delivery.durable-join.local.alice.{BOB_UID}.n",
    f"{P}.ep.one.manager.run-start.local.alice.{BOB_UID}.n",
    f"{P}.ep.one.delivery.durable-join.local.bob.{BOB_UID}.n",
    "$KV.cotal_acl_main.x", "$KV.cotal_channels_main.general",
    "$KV.cotal_members_main.x", "$KV.cotal_membership_main.x", "$KV.cotal_delivery_main.lease.0",
    f"{JS}.STREAM.CREATE.X", f"{JS}.STREAM.INFO.DM_main", f"{JS}.STREAM.INFO.DLV_main", f"{JS}.STREAM.INFO.INBOX_main",
    f"{JS}.CONSUMER.CREATE.CHAT_main", f"{JS}.CONSUMER.CREATE.CHAT_main.x", f"{JS}.DIRECT.GET.CHAT_main",
    f"{JS}.DIRECT.GET.CHAT_main.{P}.chat.local.bob.general", f"{JS}.STREAM.MSG.GET.CHAT_main",
    f"{JS}.CONSUMER.CREATE.CHAT_main.chathist_local-alice-{uid_of('alice')}.{P}.chat.*.*.secret",
    f"{JS}.CONSUMER.CREATE.CHAT_main.chathist_local-alice-{uid_of('alice')}.{P}.chat.>",
    f"{JS}.CONSUMER.CREATE.CHAT_main.chathist_local-alice-{uid_of('alice')}.{P}.chat.*.*.ops.>",
    f"{JS}.CONSUMER.CREATE.CHAT_main.chathist_local-bob-{BOB_UID}.{P}.chat.*.*.general",
    f"{JS}.CONSUMER.CREATE.DM_main", f"{JS}.CONSUMER.CREATE.DM_main.x.y", f"{JS}.CONSUMER.DURABLE.CREATE.DM_main.x",
    f"{JS}.CONSUMER.CREATE.TASK_main.x", f"{JS}.CONSUMER.DURABLE.CREATE.TASK_main.x",
    f"{JS}.CONSUMER.CREATE.DLV_main.x",
    f"{JS}.CONSUMER.MSG.NEXT.DM_main.dm_local-bob-{BOB_UID}", f"{JS}.CONSUMER.INFO.DM_main.dm_local-bob-{BOB_UID}",
    f"$JS.ACK.DM_main.dm_local-bob-{BOB_UID}.1", f"{JS}.CONSUMER.MSG.NEXT.TASK_main.svc_other",
    f"{JS}.CONSUMER.MSG.NEXT.DLV_main.dlv_local-bob-{BOB_UID}", f"{JS}.CONSUMER.MSG.NEXT.INBOX_main.reader",
    f"{JS}.CONSUMER.DELETE.KV_cotal_presence_main.x", f"{JS}.CONSUMER.DELETE.DM_main.dm_local-alice-{uid_of('alice')}",
    f"{JS}.CONSUMER.CREATE.INBOX_main.x", f"{JS}.CONSUMER.INFO.INBOX_main.reader", "$JS.ACK.INBOX_main.reader.1",
    f"{JS}.STREAM.MSG.GET.INBOX_main", f"{JS}.DIRECT.GET.INBOX_main", f"{JS}.CONSUMER.DELETE.INBOX_main.reader",
    f"{JS}.STREAM.MSG.GET.DM_main", f"{JS}.DIRECT.GET.DM_main", f"{JS}.STREAM.MSG.GET.KV_cotal_acl_main",
]  # fmt: skip
AN_AGENT_SUBSCRIBES_NOT = [
    f"{P}.chat.>", f"{P}.chat.*.*.>", f"{P}.chat.*.*.secret", f"{P}.chat.*.*.team", f"{P}.chat.*.*.*", f"{P}.inst.>",
    f"{P}.inst.local.alice.>", f"{P}.svc.>", f"{P}.svc.reviewer.>", f"{P}.live.delivery.*.*", f"{P}.take.*.*.*",
    f"{P}.live.delivery.local.bob.>", f"{P}.ep.reply.*.*.*.local.bob.{BOB_UID}.*", f"{P}.chat.local.bob.>",
    f"{P}.chat.*.*.ops.a.b", f"{P}.dlv.local.alice.{uid_of('alice')}",
]  # fmt: skip
RAW_READS = [
    f"{JS}.INFO", f"{JS}.STREAM.INFO.CHAT_main", f"{JS}.CONSUMER.MSG.NEXT.DM_main.dm_local-alice-{uid_of('alice')}",
    f"{JS}.CONSUMER.CREATE.CHAT_main.chathist_local-alice-{uid_of('alice')}.{P}.chat.*.*.general",
    f"{JS}.CONSUMER.MSG.NEXT.CHAT_main.chathist_local-alice-{uid_of('alice')}",
    f"{JS}.CONSUMER.MSG.NEXT.DLV_main.dlv_local-alice-{uid_of('alice')}",
    f"{JS}.CONSUMER.MSG.NEXT.TASK_main.svc_reviewer", f"{JS}.DIRECT.GET.KV_cotal_presence_main",
    f"{JS}.DIRECT.GET.KV_cotal_channels_main", f"{JS}.STREAM.MSG.GET.KV_cotal_channels_main",
    f"{JS}.STREAM.MSG.GET.KV_cotal_delivery_main", f"{JS}.CONSUMER.CREATE.KV_cotal_presence_main.x.y",
    f"{JS}.CONSUMER.CREATE.KV_cotal_channels_main.x.y", "$JS.FC.x",
]  # fmt: skip


@pytest.mark.req("C9-05", "C9-37", "C9-39", "C9-40", "C9-41", "C9-45", "CB-54", "C3-10", "C2-07")
@pytest.mark.req("C8-01", "C8-31", "C8-41", "C8-48", "C8-68", "C6.1-22", "C8.1-58")
@pytest.mark.req("C13.9-001", "C13.9-002", "C13.9-003", "C13.12-08")
@pytest.mark.parametrize("form", Form)
async def test_an_agent_does_what_it_may_and_nothing_else(tmp_path: Path, form: Form) -> None:
    async with space(tmp_path, form) as opened, opened.member(Profile.AGENT, "alice", **ALICE) as (user, holder):
        await every_granted_row_works(user, Profile.AGENT, holder)
        await refused(user, NOBODY_PUBLISHES + AN_AGENT_PUBLISHES_NOT, NOBODY_SUBSCRIBES + AN_AGENT_SUBSCRIBES_NOT)
        for subject in RAW_READS:
            assert await user.may_publish(subject) is (form is Form.COMPATIBLE), subject
        if form is Form.COMPATIBLE:
            for command in ("fetch", "settle", "read-history"):
                assert not await user.may_publish(f"{P}.ep.one.delivery.{command}.local.alice.{uid_of('alice')}.n")


@pytest.mark.req("CB-57", "CB-58", "CB-68", "C9-13")
@pytest.mark.parametrize("profile", [Profile.OBSERVER, Profile.ADMIN])
async def test_readers_publish_no_message(tmp_path: Path, profile: Profile) -> None:
    direct = [f"{P}.inst.>", f"{P}.svc.>"]
    async with space(tmp_path, Form.COMPATIBLE) as opened, opened.member(profile, "eve") as (user, holder):
        await every_granted_row_works(user, profile, holder)
        publish = [f"{P}.chat.local.eve.general", f"{P}.inst.local.bob.local.eve", f"{P}.svc.x.local.eve"]
        publish += [f"{JS}.CONSUMER.DELETE.CHAT_main.x", f"{JS}.CONSUMER.DELETE.CHAT_main.hist_{holder.connection}_8"]
        publish += ["$KV.cotal_presence_main.local.eve", f"{JS}.STREAM.MSG.GET.KV_cotal_presence_main"]
        publish += [f"{P}.live.delivery.local.eve", f"{JS}.STREAM.MSG.GET.DM_main", f"{JS}.STREAM.CREATE.X"]
        if profile is Profile.OBSERVER:
            publish += [
                f"{JS}.STREAM.INFO.DM_main",
                f"{JS}.CONSUMER.CREATE.DM_main",
                f"{JS}.CONSUMER.MSG.NEXT.DM_main.x",
            ]
        await refused(user, NOBODY_PUBLISHES + publish, NOBODY_SUBSCRIBES)
        for subject in direct:
            assert await user.may_subscribe(subject) is (profile is Profile.ADMIN), subject


@pytest.mark.req("CB-103", "CB-89", "C6.1-24", "C8.1-57", "C13.9-003", "C13.9-019", "C13.9-020")
@pytest.mark.parametrize("form", Form)
async def test_the_delivery_daemon_answers_and_asks_nothing(tmp_path: Path, form: Form) -> None:
    async with space(tmp_path, form) as opened, opened.member(Profile.DELIVERY, "delivery") as (user, holder):
        await every_granted_row_works(user, Profile.DELIVERY, holder)
        publish = [
            f"{P}.live.delivery.a.b",
            f"{P}.take.r.a.b",
            f"{P}.live.manager.a.b.reply.n",
            f"{P}.chat.local.delivery.x",
        ]
        publish += [f"{P}.ep.reply.delivery.{INSTANCE}.2.a.b.c.n", f"{P}.ep.reply.manager.{INSTANCE}.1.a.b.c.n"]
        publish += [
            "$KV.cotal_delivery_main.lease.1",
            "$KV.cotal_acl_main.x",
            f"{JS}.CONSUMER.CREATE.INBOX_main.other.x",
        ]
        publish += [f"{JS}.STREAM.MSG.GET.DM_main", f"{JS}.CONSUMER.CREATE.DM_main.x.y", f"{JS}.STREAM.CREATE.X"]
        wanted = [one for one in NOBODY_PUBLISHES if one != f"{P}.ep.reply.delivery.x.1.a.b.c.n"]
        plain = [f"{P}.live.delivery.*.*", f"{P}.take.*.*.*", f"{P}.ep.one.delivery.durable-join.>"]
        await refused(user, wanted + publish, NOBODY_SUBSCRIBES + plain)
        assert not await user.may_subscribe(f"{P}.take.*.*.*", "other")
        assert not await user.may_subscribe(f"{P}.ep.one.delivery.evict-principal.>", "delivery")
        mixed = [f"{JS}.CONSUMER.MSG.NEXT.{name}_main.x" for name in ("DM", "TASK", "DLV")]
        for subject in mixed:
            assert await user.may_publish(subject) is (form is Form.MEDIATED), subject


@pytest.mark.req("CB-101", "C9-05")
async def test_the_provisioner_makes_and_does_not_read(tmp_path: Path) -> None:
    async with space(tmp_path, Form.MEDIATED) as opened, opened.member(Profile.PROVISIONER, "p") as (user, holder):
        await every_granted_row_works(user, Profile.PROVISIONER, holder)
        publish = [
            f"{JS}.CONSUMER.MSG.NEXT.DM_main.x",
            f"{JS}.STREAM.MSG.GET.DM_main",
            f"{JS}.STREAM.MSG.GET.CHAT_main",
        ]
        publish += [f"{JS}.STREAM.CREATE.OTHER", f"{JS}.STREAM.UPDATE.DM_main", f"{P}.chat.local.p.general"]
        publish += [f"{JS}.CONSUMER.CREATE.CHAT_main.x.y", "$JS.ACK.DM_main.x.y", f"{JS}.STREAM.DELETE.DM_main"]
        await refused(user, NOBODY_PUBLISHES + publish, [*NOBODY_SUBSCRIBES, f"{P}.chat.>"])


@pytest.mark.req("C3-12", "C9-09", "C9-39", "CB-55")
async def test_a_star_reads_one_level_whatever_is_subscribed(tmp_path: Path) -> None:
    async with (
        space(tmp_path, Form.MEDIATED) as opened,
        opened.member(Profile.AGENT, "alice", subscribe=("ops.*",)) as (alice, _),
        opened.member(Profile.AGENT, "bob", allow_publish=("ops.>",)) as (bob, _),
    ):
        # The broker takes this subscription, because > passes for the star; it must not carry what lies deeper.
        tricks = [
            await alice.client.subscribe(f"{P}.chat.*.*.ops.>"),
            await alice.client.subscribe(f"{P}.chat.*.*.ops.*"),
        ]
        assert await alice.violations() == []
        for channel in ("ops.a.b", "ops.a.b.c", "ops.a"):
            await bob.client.publish(f"{P}.chat.local.bob.{channel}", channel.encode())
        assert await bob.violations() == []
        for one in tricks:
            assert (await one.next_msg(EVENT_SECONDS)).data == b"ops.a"
            await alice.violations()
            assert one.pending_msgs == 0


@pytest.mark.req("C9-47")
async def test_no_mediated_agent_can_have_the_broker_speak_for_it(tmp_path: Path) -> None:
    """Stored bytes get onto a foreign subject that is chosen as the reply: compatible agents can do it, others not."""
    victim = f"{P}.inst.local.bob.local.carol"
    request = json.dumps({"last_by_subj": "$KV.cotal_presence_main.local.alice"}).encode()
    direct, leader = f"{JS}.DIRECT.GET.KV_cotal_presence_main", f"{JS}.STREAM.MSG.GET.KV_cotal_channels_main"
    for form in Form:
        directory = tmp_path / form
        directory.mkdir()
        async with (
            space(directory, form) as opened,
            opened.member(Profile.ADMIN, "root") as (admin, _),
            opened.member(Profile.AGENT, "alice", **ALICE) as (alice, _),
        ):
            tap = await admin.client.subscribe(f"{P}.inst.>")
            await admin.violations()
            await alice.client.publish("$KV.cotal_presence_main.local.alice", b"forged")
            await alice.violations()
            allowed = await alice.may_publish(direct, request, reply=victim)
            assert allowed is (form is Form.COMPATIBLE)
            assert await alice.may_publish(leader, request, reply=victim) is (form is Form.COMPATIBLE)
            if form is Form.COMPATIBLE:
                # The hole of the published rows, which receivers close: the copy says where it was stored.
                found = await tap.next_msg(EVENT_SECONDS)
                assert (found.subject, found.data) == (victim, b"forged")
                assert (found.headers or {})["Nats-Stream"] == "KV_cotal_presence_main"
            else:
                await admin.violations()
                assert tap.pending_msgs == 0


@pytest.mark.req("C9-44", "C9-11")
async def test_a_narrower_list_acts_with_the_next_connection(tmp_path: Path) -> None:
    async with (
        space(tmp_path, Form.MEDIATED) as opened,
        opened.member(Profile.AGENT, "alice", subscribe=("team.>",)) as (before, _),
        opened.member(Profile.AGENT, "alice", subscribe=("general",)) as (after, _),
    ):
        assert await before.may_subscribe(f"{P}.chat.*.*.team.a")
        assert await before.may_subscribe(f"{P}.chat.*.*.team.>"), "joined and left without anybody's help"
        assert not await after.may_subscribe(f"{P}.chat.*.*.team.a")
        assert await after.may_subscribe(f"{P}.chat.*.*.general")


@pytest.mark.req("C9-41", "C8-28")
async def test_a_history_consumer_has_the_filter_that_its_subject_names(tmp_path: Path) -> None:
    async with (
        space(tmp_path, Form.COMPATIBLE) as opened,
        opened.member(Profile.AGENT, "alice", **ALICE) as (alice, _),
    ):
        name = f"chathist_local-alice-{uid_of('alice')}"
        row = f"{JS}.CONSUMER.CREATE.CHAT_main.{name}.{P}.chat.*.*.general"
        for filters in (f"{P}.chat.*.*.secret", f"{P}.chat.*.*.general"):
            config = {"name": name, "filter_subject": filters, "ack_policy": "none", "deliver_policy": "all"}
            body = json.dumps({"stream_name": "CHAT_main", "config": config}).encode()
            answer = json.loads((await alice.client.request(row, body, timeout=EVENT_SECONDS)).data)
            assert ("error" in answer) is (filters != f"{P}.chat.*.*.general")
        gone = await alice.client.request(f"{JS}.CONSUMER.DELETE.CHAT_main.{name}", timeout=EVENT_SECONDS)
        assert json.loads(gone.data)["success"] is True


@pytest.mark.req("C8-69")
async def test_one_agent_cannot_empty_the_roster(tmp_path: Path) -> None:
    async with (
        space(tmp_path, Form.COMPATIBLE) as opened,
        opened.member(Profile.AGENT, "alice") as (alice, _),
        opened.member(Profile.AGENT, "bob") as (bob, _),
    ):
        await bob.client.request("$KV.cotal_presence_main.local.bob", b"here", timeout=EVENT_SECONDS)
        answer = await alice.client.request(
            "$KV.cotal_presence_main.local.alice", b"x", timeout=EVENT_SECONDS, headers={"Nats-Rollup": "all"}
        )
        assert "rollup" in json.loads(answer.data)["error"]["description"]


@pytest.mark.req("CB-119", "C2-11", "C2-12")
async def test_a_credential_says_its_principal_and_keeps_it_under_a_new_key(tmp_path: Path) -> None:
    async with space(tmp_path, Form.MEDIATED) as opened:
        seen = []
        for _ in range(2):
            async with opened.member(Profile.AGENT, "alice", **ALICE) as (user, holder):
                assert await user.may_publish(f"{P}.chat.local.alice.general")
                creds = read_creds(tmp_path / "creds" / f"{holder.connection}.creds")
                assert isinstance(creds.user, UserClaims)
                assert creds.user.name == "local-alice"
                assert creds.user.tags[:3] == ("owner:local", "actor:alice", "principal:local.alice")
                seen.append(creds)
        assert seen[0].key.public != seen[1].key.public
        assert seen[0].user.permissions.publish == seen[1].user.permissions.publish


@pytest.mark.req("C13.9-013")
async def test_the_largest_grant_that_is_made_connects(tmp_path: Path) -> None:
    async with space(tmp_path, Form.COMPATIBLE) as opened:
        channels = tuple(f"channel-{number:04}" for number in range(240))
        async with opened.member(Profile.AGENT, "alice", allow_publish=channels) as (user, _):
            assert await user.may_publish(f"{P}.chat.local.alice.channel-0239")
        with pytest.raises(nats.errors.Error, match=r"(?i)auth"):
            async with opened.broker.user(None, "_INBOX_nobody.>"):
                pass
