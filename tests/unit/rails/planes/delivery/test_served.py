"""What the delivery plane serves, and that its credentials let it do just that."""

from __future__ import annotations

import asyncio

import pytest

from sidecar.rails.endpoint.contracts import DELIVERY
from sidecar.rails.names import Lifecycle, Principal
from sidecar.rails.planes.delivery.anycast_desk import TAKE_QUEUE
from sidecar.rails.planes.delivery.compose import served
from sidecar.rails.planes.delivery.mediated import Shared
from sidecar.rails.space.grants import permissions
from sidecar.rails.space.holder import Form, Holder, Profile, Service
from sidecar.rails.space.matrix import READ_COMMANDS

KEY = "U" + "A" * 55


def holder(form: Form) -> Holder:
    lifecycle = Lifecycle(Principal("local", "delivery"), "d" * 32)
    return Holder("main", lifecycle, KEY, form, service=Service("e" * 32, 3, served(form)))


@pytest.mark.parametrize("form", Form)
def test_every_command_has_a_contract_and_a_rail(form: Form) -> None:
    granted = permissions(Profile.DELIVERY, holder(form)).subscribe.allow
    for command in served(form):
        assert command in DELIVERY
        assert f"cotal.main.ep.one.delivery.{command}.> delivery" in granted
    assert set(served(form)) & set(READ_COMMANDS) == (set(READ_COMMANDS) if form is Form.MEDIATED else set())


@pytest.mark.req("CB-89", "C8.1-57")
@pytest.mark.parametrize("form", Form)
def test_the_rows_for_anycast_are_these(form: Form) -> None:
    granted = permissions(Profile.DELIVERY, holder(form))
    assert f"cotal.main.take.*.*.* {TAKE_QUEUE}" in granted.subscribe.allow
    about = [row for row in granted.publish.allow if ".take." in row or ".inst." in row]
    assert sorted(about) == ["cotal.main.inst.*.*.local.delivery", "cotal.main.take.*.*.*.reply.*"]
    task = [row for row in granted.publish.allow if "TASK_main" in row]
    own = ["$JS.API.STREAM.INFO.TASK_main", "$JS.API.STREAM.MSG.DELETE.TASK_main", "$JS.API.STREAM.MSG.GET.TASK_main"]
    pulls = [
        "$JS.ACK.TASK_main.>",
        "$JS.API.CONSUMER.INFO.TASK_main.>",
        "$JS.API.CONSUMER.MSG.NEXT.TASK_main.>",
    ]
    assert sorted(task) == sorted(own + (pulls if form is Form.MEDIATED else []))
    assert "$KV.cotal_anycast_main.>" in granted.publish.allow


@pytest.mark.asyncio
async def test_a_shared_read_begins_after_everybody_who_gets_it_has_asked() -> None:
    begun = [asyncio.Event(), asyncio.Event()]
    ends = [asyncio.Event(), asyncio.Event()]
    count = 0

    async def read() -> int:
        nonlocal count
        number, count = count, count + 1
        begun[number].set()
        await ends[number].wait()
        return number

    async with asyncio.timeout(10):
        shared = Shared(read)
        early = [asyncio.create_task(shared.get()) for _ in range(3)]
        await begun[0].wait()
        late = [asyncio.create_task(shared.get()) for _ in range(5)]
        ends[0].set()
        assert await asyncio.gather(*early) == [0] * 3
        await begun[1].wait()
        ends[1].set()
        assert await asyncio.gather(*late) == [1] * 5
