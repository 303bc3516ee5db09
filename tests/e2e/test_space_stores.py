"""The stores of the control surface at a real broker: what stands there stays, whoever asks for its end (C13.12)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from sidecar.app.endpoint_host import host
from sidecar.app.space_links import SpaceFailed
from sidecar.app.spaces import create_space, open_space
from sidecar.base.strictjson import JsonValue
from sidecar.rails.endpoint.app import Endpoint
from sidecar.rails.endpoint.call import Call
from sidecar.rails.names import buckets
from sidecar.rails.planes.registration.faults import Corrupt
from sidecar.rails.space.claims import Access, Permissions
from sidecar.rails.space.holder import Profile
from sidecar.rails.space.layout import Limits, configurations
from sidecar.rails.space.provision import WrongShape, check_floors, provision
from sidecar.rails.space.trust import new_user
from tests.e2e.space_broker import EVENT_SECONDS, SpaceBroker, User
from tests.e2e.space_members import SPACE, clock
from tests.e2e.test_space_provision import account, ask, root

pytestmark = pytest.mark.asyncio

PERMANENT = {
    "EPF": "cotal.main.epf.ci.dec.local.alice.x.1",
    "EPC": f"cotal.main.epc.{'ab' * 32}",
    buckets.RECORDS.stream(SPACE).removesuffix("_main"): "$KV.cotal_records_main.lifecycle.local.alice",
    buckets.AUTH.stream(SPACE).removesuffix("_main"): "$KV.cotal_auth_main.epgate.ci.x",
    buckets.ISSUED.stream(SPACE).removesuffix("_main"): "$KV.cotal_issued_main.v1.local.alice.x.y",
    buckets.ACCEPTED.stream(SPACE).removesuffix("_main"): "$KV.cotal_accepted_main.accepted.v1.x",
    buckets.ADMISSION.stream(SPACE).removesuffix("_main"): "$KV.cotal_admission_main.admission.v1.ci.x",
}


async def answer(user: User, subject: str, data: bytes = b"", **headers: str) -> dict[str, Any]:
    reply = await user.client.request(subject, data, timeout=EVENT_SECONDS, headers=headers or None)
    found: dict[str, Any] = json.loads(reply.data)
    return found


def code(found: dict[str, Any]) -> int:
    refused: int = found["error"]["err_code"]
    return refused


@pytest.mark.req("C13.12-15", "C13.12-17", "C13.12-22", "C13.12-23", "C13.15-09")
async def test_the_broker_refuses_every_way_to_take_something_away(tmp_path: Path) -> None:
    async with account(tmp_path) as space, space.member(Profile.PROVISIONER, "p") as (user, _):
        await provision(user.client, SPACE)
        async with root(space) as hand:
            for name, subject in PERMANENT.items():
                stream = f"{name}_main"
                first = (await answer(hand, subject, b"first"))["seq"]
                api = "$JS.API.STREAM"
                gone = await answer(hand, f"{api}.MSG.DELETE.{stream}", json.dumps({"seq": first}).encode())
                purged = await answer(hand, f"{api}.PURGE.{stream}")
                part = await answer(hand, f"{api}.PURGE.{stream}", json.dumps({"filter": subject}).encode())
                rolled = await answer(hand, subject, b"", **{"Nats-Rollup": "sub"})
                everything = await answer(hand, subject, b"", **{"Nats-Rollup": "all"})
                assert [code(one) for one in (gone, purged, part, rolled, everything)] == [
                    10057, 10110, 10110, 10111, 10111,
                ], stream  # fmt: skip
                if not configurations(SPACE, Limits())[stream]["allow_msg_ttl"]:
                    assert code(await answer(hand, subject, b"x", **{"Nats-TTL": "1s"})) == 10166, stream
                kept = await ask(hand, f"{api}.MSG.GET.{stream}", {"seq": first})
                assert kept["message"]["subject"] == subject


@pytest.mark.req("C13.12-22", "C13.12-23")
async def test_a_stream_is_not_filled_up_and_drops_nothing(tmp_path: Path) -> None:
    async with account(tmp_path) as space, space.member(Profile.PROVISIONER, "p") as (user, _):
        await provision(user.client, SPACE)
        async with root(space) as hand:
            for n in range(1_999):
                await hand.client.publish(f"cotal.main.epf.ci.dec.local.alice.x.{n}", b"x" * 512)
            await answer(hand, "cotal.main.epf.ci.dec.local.alice.x.last", b"x")
            info = await ask(hand, "$JS.API.STREAM.INFO.EPF_main")
            assert (info["state"]["messages"], info["state"]["first_seq"]) == (2_000, 1)


@pytest.mark.req("C13.12-10", "C13.12-30")
async def test_the_duplicate_window_is_the_shortest_and_a_request_is_no_schedule(tmp_path: Path) -> None:
    async with account(tmp_path) as space, space.member(Profile.PROVISIONER, "p") as (user, _):
        await provision(user.client, SPACE)
        async with root(space) as hand:
            config = (await ask(hand, "$JS.API.STREAM.INFO.EPJ_main"))["config"]
            assert config["duplicate_window"] == 100_000_000
            shorter = {**config, "duplicate_window": 99_000_000}
            refused = await answer(hand, "$JS.API.STREAM.UPDATE.EPJ_main", json.dumps(shorter).encode())
            assert code(refused) == 10052
            schedule = "cotal.main.ept.ci.x.1.t1.schedule"
            at = {"Nats-Schedule": "@at 2030-01-01T00:00:00Z", "Nats-Schedule-Target": "cotal.main.ept.ci.x.1.t1.fire"}
            assert code(await answer(hand, schedule, b"", **at)) == 10188


@pytest.mark.req("C13.12-21", "C13.12-18", "C13.15-09")
async def test_a_store_of_another_making_is_never_adopted(tmp_path: Path) -> None:
    async with account(tmp_path) as space, space.member(Profile.PROVISIONER, "p") as (user, _):
        old = {**configurations(SPACE, Limits())["KV_cotal_issued_main"], "allow_msg_ttl": False}
        async with root(space) as hand:
            await ask(hand, "$JS.API.STREAM.CREATE.KV_cotal_issued_main", old)
            for _ in range(2):
                with pytest.raises(WrongShape) as caught:
                    await provision(user.client, SPACE)
                assert caught.value.faults == {"KV_cotal_issued_main": ["allow_msg_ttl is False, must be True"]}


@pytest.mark.req("C13.12-09")
async def test_a_space_that_was_made_before_gets_what_is_missing(tmp_path: Path) -> None:
    async with account(tmp_path) as space, space.member(Profile.PROVISIONER, "p") as (user, _):
        every = configurations(SPACE, Limits())
        messaging = [name for name in every if not name.startswith(("EP", "WFJ")) and name not in _CONTROL]
        async with root(space) as hand:
            for name in messaging:
                await ask(hand, f"$JS.API.STREAM.CREATE.{name}", every[name])
        assert await provision(user.client, SPACE) == [name for name in every if name not in messaging]


@pytest.mark.req("C13.8-49", "C13.8-44")
async def test_no_endpoint_is_let_serve_over_a_store_below_its_floors(tmp_path: Path) -> None:
    async with account(tmp_path) as space, space.member(Profile.PROVISIONER, "p") as (user, _):
        await provision(user.client, SPACE)
        async with root(space) as hand, space.member(Profile.REGISTRAR, "r") as (registrar, _):
            await check_floors(registrar.client, SPACE)
            config = configurations(SPACE, Limits())["EPR_main"]
            for age, fine in ((3600 * 10**9, False), (2 * 86_400 * 10**9, True)):
                await ask(hand, "$JS.API.STREAM.UPDATE.EPR_main", {**config, "max_age": age})
                if fine:
                    await check_floors(registrar.client, SPACE)
                else:
                    with pytest.raises(WrongShape) as caught:
                        await check_floors(registrar.client, SPACE)
                    assert list(caught.value.faults) == ["EPR_main"]
            await ask(hand, "$JS.API.STREAM.DELETE.EPE_main")
            with pytest.raises(WrongShape, match="missing"):
                await check_floors(registrar.client, SPACE)


_CONTROL = [
    one.stream(SPACE) for one in (buckets.RECORDS, buckets.AUTH, buckets.ISSUED, buckets.ACCEPTED, buckets.ADMISSION)
]


@pytest.mark.req("C13.8-49")
async def test_an_instance_is_not_registered_over_a_store_that_forgets_too_early(tmp_path: Path) -> None:
    async with SpaceBroker(tmp_path) as broker:
        await create_space(tmp_path, SPACE, None, broker.url)
        sample = Endpoint("sampler")

        @sample.command(effect="read")
        async def look(call: Call) -> JsonValue:
            return call.args

        async with open_space(tmp_path, SPACE, broker.url) as opened:
            key = new_user(os.urandom)
            inbox = f"_INBOX_{key.public}.>"
            token = opened.account.mint("root", Permissions(Access(("$JS.API.>",)), Access((inbox,))), key, clock(), 60)
        async with broker.user(broker.creds(token, key), inbox) as hand:
            await ask(hand, "$JS.API.STREAM.DELETE.EPR_main")
        with pytest.raises(SpaceFailed, match="EPR_main: it is missing"):
            await host(tmp_path, SPACE, broker.url, sample, owner="local")


@pytest.mark.req("C13.12-18", "C13.12-17")
async def test_no_instance_is_registered_over_an_authority_store_that_lets_rows_go(tmp_path: Path) -> None:
    async with SpaceBroker(tmp_path) as broker:
        await create_space(tmp_path, SPACE, None, broker.url)
        async with open_space(tmp_path, SPACE, broker.url) as opened:
            key = new_user(os.urandom)
            inbox = f"_INBOX_{key.public}.>"
            token = opened.account.mint("root", Permissions(Access(("$JS.API.>",)), Access((inbox,))), key, clock(), 60)
        sample = Endpoint("sampler")
        sample.command("look", effect="read")(_look)
        lax: list[dict[str, Any]] = [
            {"deny_delete": False},
            {"deny_purge": False},
            {"deny_purge": False, "allow_rollup_hdrs": True},
        ]
        async with broker.user(broker.creds(token, key), inbox) as hand:
            for bucket in (buckets.AUTH, buckets.RECORDS):
                stream = bucket.stream(SPACE)
                config = configurations(SPACE, Limits())[stream]
                for changes in lax:
                    await ask(hand, f"$JS.API.STREAM.DELETE.{stream}")
                    await ask(hand, f"$JS.API.STREAM.CREATE.{stream}", {**config, **changes})
                    with pytest.raises(Corrupt, match=next(iter(changes))):
                        await host(tmp_path, SPACE, broker.url, sample, owner="local")
                await ask(hand, f"$JS.API.STREAM.DELETE.{stream}")
                await ask(hand, f"$JS.API.STREAM.CREATE.{stream}", config)
        (await host(tmp_path, SPACE, broker.url, sample, owner="local")).close()


async def _look(call: Call) -> JsonValue:
    return call.args
