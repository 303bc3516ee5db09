"""A served registry: what callers with real credentials are told, and what becomes of it under faults (13.20)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sidecar.app.registry_lane import RegistryLane, Stage
from sidecar.ops.logging import Log
from sidecar.rails.endpoint.caller import Caller, Listing
from sidecar.rails.endpoint.codes import CallError, CallFailed, CallRefused, Code, Outcome
from sidecar.rails.endpoint.registry_contracts import LISTING as LISTING_CONTRACTS
from sidecar.rails.endpoint.registry_contracts import registry_surface
from sidecar.rails.envelopes.shapes import ANYTHING
from sidecar.rails.names import headers
from sidecar.rails.planes.registry import registry as module
from sidecar.rails.planes.registry.compose import registry_endpoint
from sidecar.rails.space.holder import Capability
from tests.e2e.registry_town import ADD, ECHO, SAMPLE, sample, town
from tests.e2e.space_broker import EVENT_SECONDS

pytestmark = pytest.mark.asyncio
LISTING = Capability("registry", "endpoints")


@contextlib.asynccontextmanager
async def refused(code: Code, message: str = "", detail: str = "") -> AsyncIterator[None]:
    """The block is refused by the endpoint."""
    with pytest.raises(CallRefused) as caught:
        yield
    error = caught.value
    assert (error.code, error.outcome) == (code, Outcome.NOT_EXECUTED)
    assert not message or error.message == message
    assert not detail or error.has(detail)


def rows(listing: Listing) -> list[Any]:
    return list(listing.rows)


def names(listing: Listing) -> list[str]:
    return [row["endpoint"] for row in rows(listing)]


@pytest.mark.req("C13.20-01", "C13.20-02")
async def test_what_is_registered_is_what_callers_know_by_heart(tmp_path: Path) -> None:
    async def nothing(_: Any) -> None:
        return None

    made = registry_endpoint(dict.fromkeys((*registry_surface().surface.commands,), nothing))
    assert made.surface.digests == registry_surface().surface.digests
    assert made.public
    one = made.surface.commands["endpoints"]
    assert (one.capability, one.contract_class, one.modes) == ("registry.endpoints", "ephemeral", ())
    assert made.surface.clusters[0].urn == "ai.cotal.registry"


@pytest.mark.req("C13.20-01", "C13.20-03", "C13.20-10", "C13.20-11")
async def test_each_caller_is_told_of_what_it_may_call(tmp_path: Path) -> None:
    async with town(tmp_path) as made, made.registry() as lane, made.site.serve(sample()) as served:
        assert served.identity is not None
        async with made.caller("alice", ECHO) as alice, made.caller("bob") as bob:
            listing = await alice.caller.endpoints()
            assert (listing.source, listing.next) == ("recorded-ceiling", None)
            assert names(listing) == [SAMPLE, "registry"]
            row = rows(listing)[0]
            (instance,) = row["instances"]
            assert (instance["instanceId"], instance["artifacts"]) == (served.identity.instance, "verified")
            (echo,) = row["commands"]
            assert echo["name"] == "echo"
            routes = [(form["rail"], form["route"]) for form in echo["forms"]]
            assert routes == [("ep", "one"), ("ep", "all"), ("ep", "inst")]
            # The forms are those that the broker takes: what is listed can be called, the rest cannot.
            assert await alice.caller.call(SAMPLE, "echo", "hi") == "hi"
            with pytest.raises(CallFailed) as denied:
                await alice.caller.call(SAMPLE, "add", "hi")
            assert denied.value.code == Code.UNIMPLEMENTED  # its description does not have it
            # Baseline grants alone are on the registry.
            assert names(await bob.caller.endpoints()) == ["registry"]
        assert lane.identity is not None
        assert lane.serving


@pytest.mark.req("C13.20-03")
async def test_a_limit_outside_of_its_bounds_is_refused_by_the_registry_too(tmp_path: Path) -> None:
    own = LISTING_CONTRACTS["endpoints"]
    lax = replace(own, input=ANYTHING)
    assert lax.input_digest == own.input_digest
    known = {"registry": {"endpoints": lax}}
    async with town(tmp_path) as made, made.registry(), made.caller("alice", ECHO, contracts=known) as alice:
        for limit in (0, 101):
            async with refused(Code.BAD_REQUEST):
                await alice.caller.endpoints(limit)
        for limit in (1, 100):
            assert names(await alice.caller.endpoints(limit)) == ["registry"]


@pytest.mark.req("C13.7-66", "C13.20-02", "C13.7-68", "C13.7-69")
async def test_descriptions_are_cut_to_what_the_caller_holds(tmp_path: Path) -> None:
    async with (
        town(tmp_path) as made,
        made.registry(),
        made.site.serve(sample()),
        made.caller("alice", ECHO) as alice,
        made.caller("carol", ECHO, ADD, issued=True) as carol,
        made.caller("dave", ECHO, record=False) as dave,
    ):
        for caller, held in ((alice, {"echo"}), (carol, {"echo", "add"})):
            described = await caller.caller.describe(SAMPLE)
            assert {name for one in described.descriptor.clusters for name in one.commands} == held
        # Whom nothing is recorded of is told nothing, and everybody the registry.
        async with refused(Code.UNAVAILABLE):
            await dave.caller.describe(SAMPLE)
        assert (await dave.caller.describe("registry")).descriptor.public


@pytest.mark.req("C13.15-32", "C13.20-11")
async def test_an_issued_caller_lists_with_its_own_generation(tmp_path: Path) -> None:
    async with (
        town(tmp_path) as made,
        made.registry(),
        made.site.serve(sample()),
        made.caller("carol", ECHO, LISTING, issued=True) as carol,
        made.caller("dan", ECHO, issued=True) as dan,
    ):
        listing = await carol.caller.endpoints()
        assert names(listing) == [SAMPLE, "registry"]
        (echo,) = rows(listing)[0]["commands"]
        assert {form["rail"] for form in echo["forms"]} == {"ep.v1"}
        with pytest.raises(CallFailed) as caught:
            await dan.caller.endpoints()
        assert caught.value.code == Code.PERMISSION_DENIED


@pytest.mark.req("C13.20-11", "C13.20-13", "C13.15-33")
async def test_a_caller_that_is_bound_to_nothing_live_is_refused(tmp_path: Path) -> None:
    async with town(tmp_path) as made, made.registry(), made.site.serve(sample()):
        async with made.caller("alice", ECHO) as alice:
            assert (await alice.caller.endpoints()).rows
            await made.revoke(alice)
            async with refused(Code.PERMISSION_DENIED, module.NOT_LIVE):
                await alice.caller.endpoints()
        not_live = refused(Code.PERMISSION_DENIED, module.NOT_LIVE)
        async with made.caller("erin", ECHO, record=False) as erin, not_live:
            await erin.caller.endpoints()
        # The legacy rail reaches the registry with a capability of its own, and is told what is missing.
        unbound = refused(Code.PERMISSION_DENIED, module.UNBOUND, headers.DETAIL_UNBOUND_AUTHORITY)
        async with made.caller("frank", ECHO, LISTING, bound=False) as frank, unbound:
            await frank.caller.endpoints()
        async with made.caller("grace", ECHO, bound=False) as grace:
            with pytest.raises(CallFailed, match="no listing binding"):
                await grace.caller.endpoints()


@pytest.mark.req("C13.20-15")
async def test_a_registry_that_is_away_is_told_and_nothing_is_listed(tmp_path: Path) -> None:
    async with town(tmp_path) as made, made.caller("alice", ECHO) as alice, made.site.serve(sample()):
        async with made.registry():
            assert names(await alice.caller.endpoints())
            assert await alice.caller.call(SAMPLE, "echo", "hi") == "hi"
        with pytest.raises(CallError) as caught:
            await alice.caller.endpoints(seconds=2.0)
        assert isinstance(caught.value, CallFailed)
        assert caught.value.nobody
        # What is known already is called as before: only discovery needs the registry.
        assert await alice.caller.call(SAMPLE, "echo", "again") == "again"
        # And a description needs a view: without the registry nothing is told (C13.7-67).
        with pytest.raises(CallRefused) as undescribed:
            await alice.caller.describe(SAMPLE, seconds=10.0)
        assert undescribed.value.code == Code.UNAVAILABLE


@pytest.mark.req("C13.20-16")
async def test_a_listing_makes_the_next_description_fresh_on_whatever_connection(tmp_path: Path) -> None:
    async with (
        town(tmp_path) as made,
        made.registry(),
        made.site.serve(sample()),
        made.caller("alice", ECHO) as alice,
        made.caller("alice", ECHO, ADD) as other,
    ):
        # Described on one connection, asked on another one of the same triple: the answer is that one's view.
        await alice.caller.describe("registry")
        (row, _) = rows(await other.caller.endpoints())
        assert [one["name"] for one in row["commands"]] == ["add", "echo"]
        (row, _) = rows(await alice.caller.endpoints())
        assert [one["name"] for one in row["commands"]] == ["echo"]

        # What was known of a listed endpoint is forgotten: the next use of it asks again.
        def asked() -> float:
            return made.site.metrics.totals("endpoint_requests").get(("ok",), 0.0)

        begun = asked()
        for listed, requests in ((False, 2), (False, 3), (True, 5)):
            if listed:
                await alice.caller.endpoints()
            assert await alice.caller.call(SAMPLE, "echo", "hi") == "hi"
            assert asked() == begun + requests


@pytest.mark.req("C13.20-01")
async def test_two_registries_serve_one_space_and_one_may_go(tmp_path: Path) -> None:
    async with (
        town(tmp_path) as made,
        made.site.serve(sample()),
        made.caller("alice", ECHO) as alice,
        made.registry() as first,
    ):
        async with made.registry() as second:
            assert first.identity is not None
            assert second.identity is not None
            assert first.identity.instance != second.identity.instance
            assert len(rows(await alice.caller.endpoints())[1]["instances"]) == 2

            async def ask() -> int:
                return len((await alice.caller.endpoints()).rows)

            assert set(await asyncio.gather(*(ask() for _ in range(20)))) == {2}
        assert len((await alice.caller.endpoints()).rows) == 2


@pytest.mark.req("C13.4-08", "C13.5-07")
async def test_what_an_instance_reports_stands_in_its_record(tmp_path: Path) -> None:
    async with town(tmp_path) as made, made.registry(), made.caller("alice", ECHO) as alice:
        async with made.site.serve(sample()) as served:
            assert served.identity is not None
            asked = {"endpoint": SAMPLE, "instanceId": served.identity.instance}
            found = await reported(alice.caller, asked, "ready")
            assert found["observed"] == found["spec"]["revision"]
            assert found["status"]["value"]["epoch"] == served.identity.epoch
        await reported(alice.caller, asked, "exited")


async def reported(caller: Caller, asked: dict[str, Any], state: str) -> dict[str, Any]:
    """The record of an instance when it has this state."""
    after: dict[str, int] = {}
    async with asyncio.timeout(EVENT_SECONDS):
        while True:
            found: Any = await caller.call("registry", "record", {**asked, "after": after, "waitMs": 5_000})
            if found.get("status", {}).get("value", {}).get("state") == state:
                return dict(found)
            after = {name: found[name]["revision"] for name in ("spec", "status") if name in found}


async def test_a_registry_that_leaves_says_so_in_its_own_record(tmp_path: Path) -> None:
    async with town(tmp_path) as made:
        async with made.registry() as lane, made.caller("alice", ECHO) as alice:
            assert lane.identity is not None
            instance = lane.identity.instance
            await reported(alice.caller, {"endpoint": "registry", "instanceId": instance}, "ready")
        assert await made.state("registry", instance) == "exited"


@pytest.mark.req("C13.12-18")
async def test_a_lane_that_cannot_serve_says_why_and_goes_on(tmp_path: Path) -> None:
    async with town(tmp_path) as made:
        made.site.broker.kill()
        lane = RegistryLane(made.site.where, 300, made.metrics, Log(made.log))
        running = asyncio.create_task(lane.run())
        try:
            assert not lane.serving
            made.site.broker.start()
            async with asyncio.timeout(2 * EVENT_SECONDS):
                await lane.settled.wait()
            assert lane.ready_line()["serving"]
            # The broker comes back with everything, and the lane with it.
            made.site.broker.kill()
            made.site.broker.start()
            async with made.caller("alice", ECHO) as alice:
                async with asyncio.timeout(2 * EVENT_SECONDS):
                    while True:
                        with contextlib.suppress(CallError):
                            assert names(await alice.caller.endpoints(seconds=2.0)) == ["registry"]
                            break
        finally:
            running.cancel()
            await asyncio.wait((running,))
        value = made.metrics.registry.get_sample_value
        found = {one.value: value("sidecar_registry_lanes", {"state": one.value}) for one in Stage}
        assert found == {"connecting": 0, "binding": 0, "serving": 0, "stopped": 1}


async def test_nothing_of_a_generation_is_in_the_log(tmp_path: Path) -> None:
    async with town(tmp_path) as made, made.registry(), made.caller("alice", ECHO) as alice:
        await alice.caller.endpoints()
        await made.revoke(alice)
        with pytest.raises(CallRefused):
            await alice.caller.endpoints()
        said = [json.loads(line) for line in made.log.getvalue().splitlines()]
        refusals = [line for line in said if line["event"] == "registry_refused"]
        assert [(line["kind"], line["caller"]) for line in refusals] == [("not_live", alice.lifecycle.dot)]
