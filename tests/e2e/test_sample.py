"""The sample endpoint, registered and served by its own credential: what each of its commands is for."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any

import pytest

from sidecar.app import sample
from sidecar.rails.endpoint.calls_types import To
from sidecar.rails.endpoint.codes import CallError, CallRefused, Code, Outcome
from sidecar.rails.space.holder import Capability
from sidecar.rails.space.resolver import push_newest
from sidecar.rails.space.trust import new_user
from tests.e2e.own_endpoints import site
from tests.e2e.space_members import clock, uid_of

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


@pytest.mark.req("C13.14-01")
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


async def test_takeovers_at_once_see_each_others_revocations(tmp_path: Path) -> None:
    """Each of them voids keys in the one token of the account; none waits for a token that another one has replaced."""
    async with site(tmp_path, "dev.sidecar") as place, contextlib.AsyncExitStack() as stack:
        first = [await stack.enter_async_context(place.serve(sample.endpoint)) for _ in range(3)]
        before = {one.identity.instance: one.identity.epoch for one in first if one.identity is not None}
        serving = [place.serve(sample.endpoint, instance) for instance in before]
        after = await asyncio.gather(*(stack.enter_async_context(one) for one in serving))
        found = {one.identity.instance: one.identity.epoch for one in after if one.identity is not None}
        assert found == {instance: epoch + 1 for instance, epoch in before.items()}
        assert not any(one.serving for one in first)
        assert "endpoint_not_registered" not in place.log.getvalue()


async def test_no_push_takes_a_revocation_back(tmp_path: Path) -> None:
    """A process that read the account's token before another one wrote a newer one."""
    async with site(tmp_path, "dev.sidecar") as place:
        trust, account = place.broker.trust, place.space.trust
        user = new_user(os.urandom).public
        read: list[str] = []

        def newest() -> str:
            read.append(account.account_token(trust, clock()))
            if len(read) == 1:
                account.revoke(trust, user, clock())
            return read[-1]

        system = await place.broker.system()
        await push_newest(system.client, newest)
        known = await asyncio.to_thread((tmp_path / "accounts" / f"{account.account}.jwt").read_text)
        assert known == read[-1] == account.account_token(trust, clock())
        assert known != read[0]
