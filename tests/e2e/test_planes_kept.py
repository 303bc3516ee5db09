"""Planes of the control surface at a real broker: who may write to them, and what an armed timer does (13.2)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from sidecar.rails.names import planes, streams
from sidecar.rails.space.holder import Capability, EventRead, Form, Profile, Service
from tests.e2e.space_broker import EVENT_SECONDS, SpaceBroker, User
from tests.e2e.space_members import SPACE, Space, uid_of
from tests.e2e.test_space_provision import ask, root

pytestmark = pytest.mark.asyncio(loop_scope="module")

P = f"cotal.{SPACE}"
E = "com_acme_ci"
IID, OTHER = "d4" * 13, "e5" * 13
EVE, BOB = f"local.eve.{uid_of('eve')}", f"local.bob.{uid_of('bob')}"
FACTS = [
    f"{P}.epf.{E}.{topic}"
    for topic in (
        f"dec.{EVE}.r1", f"goal.{EVE}.g1.bind", f"goal.{EVE}.g1.result", "quar.7", f"eff.{EVE}.r1",
        f"wrk.gpu.{EVE}.r1", "cp.t1", f"receipt.{EVE}.r1.7",
    )
]  # fmt: skip
READS = [
    f"$JS.API.{one}"
    for one in (
        "CONSUMER.CREATE.EPJ_main", f"CONSUMER.CREATE.EPJ_main.x.{P}.epj.>", "CONSUMER.DURABLE.CREATE.EPJ_main.x",
        "CONSUMER.MSG.NEXT.EPJ_main.x", "STREAM.MSG.GET.EPJ_main", "DIRECT.GET.EPJ_main",
    )
]  # fmt: skip
ABLE = (
    Capability("com.acme.ci", "build", journal=True), Capability("com.acme.ci", "end", "owner", ("local",), True),
)  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Space]:
    async with SpaceBroker(tmp_path_factory.mktemp("planes")) as broker:
        made = Space(broker, Form.MEDIATED)
        await made.open()
        yield made


async def refused(user: User, rows: list[str]) -> None:
    for row in rows:
        assert not await user.may_publish(row), row


@pytest.mark.req("C13.2-62", "C13.2-63", "C13.2-71", "C13.2-72", "C13.4-16")
@pytest.mark.parametrize("form", Form)
async def test_a_caller_submits_what_it_may_and_writes_no_fact(here: Space, form: Form) -> None:
    here.form = form
    async with here.member(Profile.AGENT, "eve", capabilities=ABLE) as (user, _), root(here) as hand:
        before = (await ask(hand, "$JS.API.STREAM.INFO.EPF_main"))["state"]["messages"]
        for mine in (f"{P}.epj.{E}.build.{EVE}", f"{P}.epj.{E}.end.owner.local.{EVE}"):
            assert await user.may_publish(mine), mine
        await refused(user, [f"{P}.epj.{E}.build.{BOB}", f"{P}.epj.{E}.other.{EVE}", *FACTS, *READS])
        await refused(user, [f"{P}.{one}.delivery.{EVE}" for one in ("ctl", "control")] + [f"{P}.trace.{IID}"])
        for heard in (f"{P}.epj.>", f"{P}.epj.{E}.build.{EVE}", f"{P}.ctl.>", f"{P}.control.>", f"{P}.trace.>"):
            assert not await user.may_subscribe(heard), heard
        assert (await ask(hand, "$JS.API.STREAM.INFO.EPF_main"))["state"]["messages"] == before


@pytest.mark.req("C13.2-64", "C13.2-63")
async def test_an_instance_asks_for_timers_at_its_own_epoch_and_arms_none(here: Space) -> None:
    service = Service(IID, 3, ("build",), "com.acme.ci")
    async with here.member(Profile.ENDPOINT, "eve", service=service) as (user, _):
        own = f"{P}.ept.{E}.{IID}.3.t1"
        assert await user.may_publish(f"{own}.schedule")
        assert await user.may_subscribe(f"{P}.ept.{E}.{IID}.3.*.fire")
        await refused(user, [f"{own}.armed", f"{own}.fire", *FACTS, *READS])
        for place in (f"{E}.{IID}.4", f"{E}.{IID}.2", f"{E}.{OTHER}.3", f"other.{IID}.3"):
            await refused(user, [f"{P}.ept.{place}.t1.{leaf}" for leaf in ("schedule", "armed", "fire")])
            assert not await user.may_subscribe(f"{P}.ept.{place}.*.fire"), place


@pytest.mark.req("C13.5-08", "C13.9-M19")
async def test_a_watch_grant_is_one_subtree_and_its_neighbours_are_unreadable(here: Space) -> None:
    """An event and the goals of one caller are read; the next event, the next goal owner and every whole are not."""
    hears = (EventRead("com.acme.ci", "com.acme.ci", "done"), EventRead("com.acme.ci"))
    async with here.member(Profile.AGENT, "eve", hears=hears) as (user, _), root(here) as hand:
        mine = (f"{P}.epe.{E}.*.*.ev.{E}.done", f"{P}.epe.{E}.*.*.goal.{EVE}.>")
        for row in mine:
            assert await user.may_subscribe(row), row
        for row in (
            f"{P}.epe.{E}.*.*.ev.{E}.*", f"{P}.epe.{E}.*.*.ev.{E}.started", f"{P}.epe.{E}.*.*.ev.*.done",
            f"{P}.epe.{E}.*.*.ev.{E}.done.>", f"{P}.epe.*.*.*.ev.{E}.done", f"{P}.epe.{E}.>", f"{P}.epe.{E}.*.*.>",
            f"{P}.epe.{E}.*.*.goal.{BOB}.>", f"{P}.epe.{E}.*.*.goal.{BOB}.g1.progress", f"{P}.epe.{E}.*.*.goal.*.>",
            f"{P}.epe.{E}.*.*.goal.local.eve.>", f"{P}.epe.{E}.*.*.cp.>",
        ):  # fmt: skip
            assert not await user.may_subscribe(row), row
        heard = [await user.client.subscribe(row) for row in mine]
        assert not await user.violations()
        for topic in (f"ev.{E}.started", f"goal.{BOB}.g1.progress", f"ev.{E}.done", f"goal.{EVE}.g1.progress"):
            await hand.client.publish(f"{P}.epe.{E}.{IID}.3.{topic}", topic.encode())
        got = [(await one.next_msg(EVENT_SECONDS)).data.decode() for one in heard]
        assert got == [f"ev.{E}.done", f"goal.{EVE}.g1.progress"]
        assert [one.pending_msgs for one in heard] == [0, 0]


def timer(leaf: Any) -> str:
    subject: str = leaf.build(space=SPACE, endpoint=E, instance=IID, epoch=3, timer="t1")
    return subject


@pytest.mark.req("C13.2-67", "C13.12-09")
async def test_an_armed_timer_is_replaced_on_its_own_subject_and_fires_once(here: Space) -> None:
    """A timer has one subject whatever it is armed with, so that the stream of a space keeps the newest alone."""
    armed, fire = timer(planes.TIMER_ARMED), timer(planes.TIMER_FIRE)
    stream = streams.EPT.stream(SPACE)
    async with root(here) as hand:
        begun = datetime.now(UTC)
        for seconds, body in ((5, b"first"), (3600, b"never"), (2, b"last")):
            at = (begun + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
            headers = {"Nats-Schedule": f"@at {at}", "Nats-Schedule-Target": fire}
            await hand.client.jetstream().publish(armed, body, headers=headers, timeout=EVENT_SECONDS)
        consumer = {"stream_name": stream, "config": {"ack_policy": "none", "filter_subject": fire}}
        made = await ask(hand, f"$JS.API.CONSUMER.CREATE.{stream}", consumer)
        inbox = hand.client.new_inbox()
        fires = await hand.client.subscribe(inbox)
        wanted = json.dumps({"batch": 2, "expires": 6_000_000_000}).encode()
        await hand.client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{made['name']}", wanted, reply=inbox)
        first, second = [await fires.next_msg(EVENT_SECONDS) for _ in range(2)]
        assert (first.subject, first.data) == (fire, b"last")
        assert (first.headers or {})["Nats-Scheduler"] == armed
        assert (second.headers or {}).get("Status") == "408", "nothing else fires"
