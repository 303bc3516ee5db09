"""Streams and buckets at a real broker: made once, proved, never changed."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.space.claims import Access, Permissions
from sidecar.rails.space.holder import Form, Profile
from sidecar.rails.space.layout import History, Limits, configurations
from sidecar.rails.space.provision import BrokerRefused, WrongShape, activate, provision, shape
from sidecar.rails.space.trust import new_user
from tests.e2e.space_broker import EVENT_SECONDS, SpaceBroker, User
from tests.e2e.space_members import INSTANCE, SPACE, Space, clock, uid_of

pytestmark = pytest.mark.asyncio


@contextlib.asynccontextmanager
async def account(tmp_path: Path) -> AsyncIterator[Space]:
    """An account without any stream."""
    async with SpaceBroker(tmp_path) as broker:
        space = Space(broker, Form.MEDIATED)
        await broker.push(space.trust.account_token(broker.trust, clock()))
        yield space


@contextlib.asynccontextmanager
async def root(space: Space) -> AsyncIterator[User]:
    """Someone who may do everything in JetStream: the operator's hand that breaks things."""
    key = new_user(lambda size: bytes(range(1, size + 1)))
    inbox = f"_INBOX_{key.public}.>"
    granted = Permissions(Access(("$JS.API.>", "cotal.>", "$KV.>")), Access((inbox, "cotal.>")))
    token = space.trust.mint("local-root", granted, key, clock(), 300)
    async with space.broker.user(space.broker.creds(token, key), inbox) as user:
        yield user


async def ask(user: User, subject: str, body: Any = None) -> dict[str, Any]:
    reply = await user.client.request(subject, json.dumps(body).encode() if body else b"", timeout=EVENT_SECONDS)
    answer: dict[str, Any] = json.loads(reply.data)
    assert "error" not in answer, answer
    return answer


@pytest.mark.req("C8-01", "C8-02", "C8-03", "C8-04", "C8-13", "C8-69", "C8-70", "C8-71")
async def test_everything_is_made_once_and_stands_the_proof(tmp_path: Path) -> None:
    async with account(tmp_path) as space, space.member(Profile.PROVISIONER, "p") as (user, _):
        names = list(configurations(SPACE, Limits()))
        assert await shape(user.client, SPACE) == dict.fromkeys(names)
        assert await provision(user.client, SPACE) == names
        assert await provision(user.client, SPACE) == []
        assert await shape(user.client, SPACE) == {name: [] for name in names}
        async with root(space) as hand:
            for name, wanted in configurations(SPACE, Limits()).items():
                config = (await ask(hand, f"$JS.API.STREAM.INFO.{name}"))["config"]
                assert {field: config.get(field, type(value)()) for field, value in wanted.items()} == wanted


async def test_a_stream_takes_more_consumers_than_a_broker_allows_by_default(tmp_path: Path) -> None:
    async with account(tmp_path) as space, space.member(Profile.PROVISIONER, "p") as (user, _):
        await provision(user.client, SPACE)
        async with root(space) as hand:

            async def made(number: int) -> None:
                config = {
                    "name": f"c{number}",
                    "durable_name": f"c{number}",
                    "ack_policy": "explicit",
                    "mem_storage": True,
                }
                subject = f"$JS.API.CONSUMER.CREATE.DM_{SPACE}.c{number}"
                await ask(hand, subject, {"stream_name": f"DM_{SPACE}", "config": config})

            for first in range(0, 1024, 64):
                await asyncio.gather(*(made(number) for number in range(first, first + 64)))
            assert (await ask(hand, f"$JS.API.STREAM.INFO.DM_{SPACE}"))["state"]["consumer_count"] == 1024


async def test_a_run_that_died_is_finished(tmp_path: Path) -> None:
    async with account(tmp_path) as space, space.member(Profile.PROVISIONER, "p") as (user, _):
        names = list(configurations(SPACE, Limits()))
        async with root(space) as hand:
            for name in names[:4]:
                await ask(hand, f"$JS.API.STREAM.CREATE.{name}", configurations(SPACE, Limits())[name])
        assert await provision(user.client, SPACE) == names[4:]


async def test_two_runs_at_the_same_time_end_well(tmp_path: Path) -> None:
    async with account(tmp_path) as space, space.member(Profile.PROVISIONER, "p") as (user, _):
        names = set(configurations(SPACE, Limits()))
        made = await asyncio.gather(*(provision(user.client, SPACE) for _ in range(4)))
        assert set().union(*made) == names
        made = await asyncio.gather(*(activate(user.client, SPACE, ALICE, ("reviewer",)) for _ in range(4)))
        assert set().union(*made) == {f"dm_{ALICE.dash}", f"dlv_{ALICE.dash}", "svc_reviewer"}
        assert await provision(user.client, SPACE) == await activate(user.client, SPACE, ALICE, ("reviewer",)) == []


@pytest.mark.req("C8-14")
async def test_an_operators_limits_survive_another_setup(tmp_path: Path) -> None:
    async with account(tmp_path) as space, space.member(Profile.PROVISIONER, "p") as (user, _):
        await provision(user.client, SPACE, Limits(chat=History(None, 10)))
        assert await provision(user.client, SPACE, Limits(chat=History(3600, 5))) == []
        async with root(space) as hand:
            config = (await ask(hand, "$JS.API.STREAM.INFO.CHAT_main"))["config"]
            assert (config["max_age"], config["max_msgs_per_subject"]) == (0, 10)


@pytest.mark.req("C8-05", "C8-06")
async def test_another_shape_is_reported_and_never_repaired(tmp_path: Path) -> None:
    async with account(tmp_path) as space, space.member(Profile.PROVISIONER, "p") as (user, _):
        wanted = configurations(SPACE, Limits())
        changed = {**wanted["DM_main"], "allow_direct": True}
        async with root(space) as hand:
            await ask(hand, "$JS.API.STREAM.CREATE.DM_main", changed)
            for _ in range(2):
                with pytest.raises(WrongShape) as caught:
                    await provision(user.client, SPACE)
                assert caught.value.faults == {"DM_main": ["allow_direct is True, must be False"]}
            assert (await ask(hand, "$JS.API.STREAM.INFO.DM_main"))["config"]["allow_direct"] is True
        # All others were made nevertheless, so that one fault shows once and alone.
        assert [name for name, found in (await shape(user.client, SPACE)).items() if found != []] == ["DM_main"]


async def test_a_refusal_of_the_broker_is_told(tmp_path: Path) -> None:
    async with account(tmp_path) as space, space.member(Profile.PROVISIONER, "p") as (user, _):
        async with root(space) as hand:
            # Its subjects are taken, so that CHAT cannot be made.
            await ask(hand, "$JS.API.STREAM.CREATE.OTHER", {"name": "OTHER", "subjects": ["cotal.main.chat.>"]})
        with pytest.raises(BrokerRefused, match="overlap"):
            await provision(user.client, SPACE)


@pytest.mark.req("C8-08", "C8-09")
async def test_a_count_is_per_sender_and_channel(tmp_path: Path) -> None:
    async with account(tmp_path) as space, space.member(Profile.PROVISIONER, "p") as (user, _):
        await provision(user.client, SPACE, Limits(chat=History(None, 3)))
        async with space.member(Profile.AGENT, "alice", allow_publish=("a", "b")) as (alice, _):
            for number in range(5):
                await alice.client.request("cotal.main.chat.local.alice.a", str(number).encode(), timeout=EVENT_SECONDS)
            await alice.client.request("cotal.main.chat.local.alice.b", b"x", timeout=EVENT_SECONDS)
        async with root(space) as hand:
            state = (await ask(hand, "$JS.API.STREAM.INFO.CHAT_main", {"subjects_filter": ">"}))["state"]
            assert state["subjects"] == {"cotal.main.chat.local.alice.a": 3, "cotal.main.chat.local.alice.b": 1}


ALICE = Lifecycle(Principal("local", "alice"), uid_of("alice"))
HEIR = Lifecycle(Principal("local", "alice"), uid_of("heir"))
P = f"cotal.{SPACE}"


async def pull(user: User, stream: str, durable: str) -> tuple[bytes, str] | None:
    """The next message of a durable and its ack subject; None when there is none."""
    # Not the client's own request: what comes keeps the subject that it was stored under.
    inbox = user.client.new_inbox()
    answers = await user.client.subscribe(inbox)
    body = json.dumps({"batch": 1, "no_wait": True}).encode()
    await user.client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{durable}", body, reply=inbox)
    got = await answers.next_msg(EVENT_SECONDS)
    await answers.unsubscribe()
    return None if (got.headers or {}).get("Status") else (got.data, got.reply)


@pytest.mark.req("C8-29", "C8-32", "C8-34", "C9-40")
async def test_the_durables_of_a_lifecycle_are_made_once(tmp_path: Path) -> None:
    async with account(tmp_path) as space, space.member(Profile.PROVISIONER, "p") as (user, _):
        await provision(user.client, SPACE)
        names = [f"dm_{ALICE.dash}", f"dlv_{ALICE.dash}", "svc_reviewer"]
        assert await activate(user.client, SPACE, ALICE, ("reviewer",)) == names
        assert await activate(user.client, SPACE, ALICE, ("reviewer",)) == []
        assert await activate(user.client, SPACE, HEIR, ("reviewer",)) == [f"dm_{HEIR.dash}", f"dlv_{HEIR.dash}"]
        async with root(space) as hand:
            fields = {"ack_policy": "explicit", "ack_wait": 60_000_000_000, "max_deliver": -1}
            for stream, name, more in (
                ("DM_main", names[0], {"filter_subject": f"{P}.inst.local.alice.>", "opt_start_seq": 1}),
                ("DLV_main", names[1], {"filter_subject": f"{P}.dlv.{ALICE.dot}", "deliver_policy": "all"}),
                ("TASK_main", names[2], {"filter_subject": f"{P}.svc.reviewer.>", "deliver_policy": "all"}),
            ):
                config = (await ask(hand, f"$JS.API.CONSUMER.INFO.{stream}.{name}"))["config"]
                assert {**config, **fields, **more} == config
                assert config["durable_name"] == name
                assert not config.get("inactive_threshold")


@pytest.mark.req("C8-29", "C8-30", "C8-33", "C8-35")
async def test_an_heir_sees_nothing_from_before_its_activation(tmp_path: Path) -> None:
    async with account(tmp_path) as space, space.member(Profile.PROVISIONER, "p") as (user, _):
        space.form = Form.COMPATIBLE
        await provision(user.client, SPACE)
        await activate(user.client, SPACE, ALICE)
        async with space.member(Profile.AGENT, "bob") as (bob, _):

            async def send(text: bytes) -> None:
                await bob.client.request(f"{P}.inst.local.alice.local.bob", text, timeout=EVENT_SECONDS)

            await send(b"to the first")
            await send(b"in the gap")
            await activate(user.client, SPACE, HEIR)
            await activate(user.client, SPACE, HEIR)
            await send(b"to the heir")
            async with space.member(Profile.AGENT, "alice", lifecycle=HEIR) as (alice, _):
                found = await pull(alice, "DM_main", f"dm_{HEIR.dash}")
                assert found is not None
                assert found[0] == b"to the heir"
                await alice.client.publish(found[1], b"+ACK")
                assert await alice.violations() == []
                assert await pull(alice, "DM_main", f"dm_{HEIR.dash}") is None
                # The other lifecycle of the same alias is somebody else's.
                assert not await alice.may_publish(f"$JS.API.CONSUMER.MSG.NEXT.DM_main.dm_{ALICE.dash}")


@pytest.mark.req("C8-32")
async def test_holders_of_a_role_drain_one_queue(tmp_path: Path) -> None:
    async with account(tmp_path) as space, space.member(Profile.PROVISIONER, "p") as (user, _):
        space.form = Form.COMPATIBLE
        await provision(user.client, SPACE)
        await activate(user.client, SPACE, ALICE, ("reviewer",))
        async with (
            space.member(Profile.AGENT, "bob") as (bob, _),
            space.member(Profile.AGENT, "alice", roles=("reviewer",)) as (one, _),
            space.member(Profile.AGENT, "carol", roles=("reviewer",)) as (two, _),
        ):
            for text in (b"1", b"2"):
                await bob.client.request(f"{P}.svc.reviewer.local.bob", text, timeout=EVENT_SECONDS)
            found = [await pull(holder, "TASK_main", "svc_reviewer") for holder in (one, two, one)]
            assert [got and got[0] for got in found] == [b"1", b"2", None]
            assert not await bob.may_publish("$JS.API.CONSUMER.MSG.NEXT.TASK_main.svc_reviewer")


async def test_a_durable_of_another_shape_is_reported_and_never_repaired(tmp_path: Path) -> None:
    async with account(tmp_path) as space, space.member(Profile.PROVISIONER, "p") as (user, _):
        with pytest.raises(BrokerRefused, match="stream not found"):
            await activate(user.client, SPACE, ALICE)
        await provision(user.client, SPACE)
        name = f"dlv_{ALICE.dash}"
        wrong = {
            "name": name,
            "durable_name": name,
            "ack_policy": "none",
            "deliver_policy": "all",
            "inactive_threshold": 10**12,
        }
        async with root(space) as hand:
            subject = f"$JS.API.CONSUMER.CREATE.DLV_main.{name}"
            await ask(hand, subject, {"stream_name": "DLV_main", "config": wrong})
            with pytest.raises(WrongShape) as caught:
                await activate(user.client, SPACE, ALICE)
            assert list(caught.value.faults) == [name]
            text = str(caught.value)
            assert all(word in text for word in ("filter_subject", "ack_policy", "inactive_threshold must not"))
            assert (await ask(hand, f"$JS.API.CONSUMER.INFO.DLV_main.{name}"))["config"]["ack_policy"] == "none"


@pytest.mark.req(
    "C6.1-22", "C6.1-23", "C8.1-57", "C8.1-58", "C13.9-M02", "C13.9-M03", "C13.9-M04", "C13.9-M05", "CB-56"
)
async def test_agent_and_delivery_daemon_reach_each_other_on_every_rail(tmp_path: Path) -> None:
    async with account(tmp_path) as space, space.member(Profile.PROVISIONER, "p") as (user, _):
        await provision(user.client, SPACE)
        async with (
            space.member(Profile.DELIVERY, "delivery") as (daemon, _),
            space.member(Profile.AGENT, "alice", roles=("reviewer",)) as (alice, _),
        ):
            me, nonce = f"local.alice.{ALICE.uid}", "n" * 22
            rails = [
                (
                    f"{P}.live.delivery.*.*", "live.delivery", f"{P}.live.delivery.local.alice",
                    "{request}.reply." + nonce,
                ),
                (f"{P}.take.*.*.*", "take", f"{P}.take.reviewer.local.alice", "{request}.reply." + nonce),
                (
                    f"{P}.ep.one.delivery.durable-join.>", "delivery", f"{P}.ep.one.delivery.durable-join.{me}.{nonce}",
                    f"{P}.ep.reply.delivery.{INSTANCE}.1.{me}.{nonce}",
                ),
            ]  # fmt: skip
            for serve, queue, request, answer in rails:
                reply = answer.format(request=request)
                served = await daemon.client.subscribe(serve, queue=queue)
                heard = await alice.client.subscribe(reply)
                assert (await daemon.violations(), await alice.violations()) == ([], [])
                await alice.client.publish(request, b"ask", reply=reply)
                assert await alice.violations() == []
                assert (await served.next_msg(EVENT_SECONDS)).subject == request
                await daemon.client.publish(reply, b"answer")
                assert await daemon.violations() == []
                assert (await heard.next_msg(EVENT_SECONDS)).data == b"answer"
