"""The sample endpoint, registered and served by its own credential: what each of its commands is for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sidecar.app import sample
from sidecar.rails.endpoint.calls_types import To
from sidecar.rails.endpoint.codes import CallError, CallRefused, Code, Outcome
from sidecar.rails.space.holder import Capability
from tests.e2e.own_endpoints import site
from tests.e2e.space_members import uid_of

ALL = (Capability(sample.NAME, "*"), Capability(sample.NAME, "whoami", "self"))

pytestmark = pytest.mark.asyncio


async def test_every_command_does_what_it_says(tmp_path: Path) -> None:
    async with (
        site(tmp_path, "dev.sidecar") as place,
        place.serve(sample.endpoint),
        place.caller(sample.endpoint, *ALL) as alice,
    ):

        async def call(command: str, args: Any = None, **more: Any) -> Any:
            return await alice.call(sample.NAME, command, args, **more)

        assert await call("echo", {"text": "grüß dich"}) == {"text": "grüß dich"}
        assert await call("add", {"a": 2**52, "b": -3}) == {"sum": 2**52 - 3}
        assert await call("sleep", {"ms": 5}) == {"ms": 5}
        first = (await call("count"))["count"]
        assert (await call("count"))["count"] == first + 1
        for code in ("conflict", "internal"):
            for after, outcome in ((False, Outcome.NOT_EXECUTED), (True, Outcome.EXECUTED)):
                with pytest.raises(CallRefused) as caught:
                    await call("fail", {"code": code, "after": after})
                assert (caught.value.code, caught.value.outcome) == (code, outcome)
        assert (await call("count"))["count"] == first + 4, "the effect of each refusal that came after it"
        whoami = await call("whoami", target=To("self"))
        assert whoami == {"owner": "local", "actor": "alice", "uid": uid_of("alice")}


async def test_what_is_not_of_the_contract_is_not_executed(tmp_path: Path) -> None:
    async with (
        site(tmp_path, "dev.sidecar") as place,
        place.serve(sample.endpoint),
        place.caller(sample.endpoint, *ALL) as alice,
    ):
        asked: tuple[tuple[str, Any], ...] = (
            ("add", {"a": 1}),
            ("add", {"a": 1, "b": 2.5}),
            ("sleep", {"ms": 60_001}),
            ("fail", {"code": "no-such-code", "after": True}),
        )
        for command, args in asked:
            with pytest.raises(CallError) as caught:
                await alice.call(sample.NAME, command, args)
            assert (caught.value.code, caught.value.outcome) == (Code.BAD_REQUEST, Outcome.NOT_EXECUTED)


async def test_who_holds_nothing_is_refused_by_the_broker(tmp_path: Path) -> None:
    async with (
        site(tmp_path, "dev.sidecar") as place,
        place.serve(sample.endpoint),
        place.caller(sample.endpoint, Capability(sample.NAME, "echo"), actor="carol") as carol,
    ):
        assert await carol.call(sample.NAME, "echo", {"text": "x"}) == {"text": "x"}
        with pytest.raises(CallError) as caught:
            await carol.call(sample.NAME, "count")
        assert (caught.value.code, caught.value.outcome) == (Code.PERMISSION_DENIED, Outcome.NOT_EXECUTED)


async def test_two_instances_serve_and_a_third_takes_one_over(tmp_path: Path) -> None:
    async with site(tmp_path, "dev.sidecar") as place, place.caller(sample.endpoint, *ALL) as alice:
        async with place.serve(sample.endpoint) as one, place.serve(sample.endpoint) as two:
            assert one.identity is not None
            assert two.identity is not None
            assert one.identity.instance != two.identity.instance
            for instance in (one, two):
                assert instance.identity is not None
                answer = await alice.invoke(sample.NAME, "echo", {"text": "x"}, instance=instance.identity.instance)
                assert (answer.instance, answer.epoch) == (instance.identity.instance, instance.identity.epoch)
            async with place.serve(sample.endpoint, one.identity.instance) as three:
                assert three.identity is not None
                assert three.identity.epoch == one.identity.epoch + 1
                answer = await alice.invoke(sample.NAME, "echo", {"text": "x"}, instance=three.identity.instance)
                assert answer.epoch == three.identity.epoch
                await asyncio.sleep(0)
                assert not one.serving
        async with place.serve(sample.endpoint) as again:
            assert again.identity is not None
            assert again.identity.instance in (one.identity.instance, two.identity.instance)
