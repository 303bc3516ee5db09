"""Roster and registry of a mediated space: a member asks, the delivery plane reads, with the credentials of each."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sidecar.base.clock import system_now
from sidecar.ops.logging import Log
from sidecar.rails.connection.kv import KeyValue
from sidecar.rails.endpoint.caller import Caller
from sidecar.rails.endpoint.contracts import DELIVERY, DELIVERY_ENDPOINT
from sidecar.rails.endpoint.serve import EndpointServer
from sidecar.rails.messaging.reads import Reading
from sidecar.rails.messaging.reads_mediated import MediatedReads
from sidecar.rails.messaging.registry import ChannelConfig, DeliveryClass, RegistryWriter
from sidecar.rails.messaging.roster import RosterUnreadable
from sidecar.rails.names import api, buckets
from sidecar.rails.planes.delivery.anycast_desk import AnycastDesk
from sidecar.rails.planes.delivery.mediated import Mediated
from sidecar.rails.planes.delivery.plane import Plane
from sidecar.rails.space.holder import Form, Profile, Service
from tests.e2e.durable_reads import Member, Town, town
from tests.e2e.space_members import INSTANCE, SPACE

pytestmark = pytest.mark.asyncio

COMMANDS = ("read-registry", "read-roster")


@contextlib.asynccontextmanager
async def plane(here: Town) -> AsyncIterator[Member]:
    """The delivery endpoint, with the two commands that are asked here."""
    service = Service(INSTANCE, 1, COMMANDS)
    async with here.member("delivery", Profile.DELIVERY, service=service) as member:
        own = Plane(member.connection, SPACE, Form.MEDIATED, member.lifecycle, member.metrics)
        handlers = Mediated(own, AnycastDesk(own).epoch_or_refusal).handlers
        server = EndpointServer(
            member.connection,
            SPACE,
            DELIVERY_ENDPOINT,
            INSTANCE,
            1,
            {name: handlers[name] for name in COMMANDS},
            DELIVERY,
            metrics=member.metrics,
            log=Log(io.StringIO()),
        )
        await server.start()
        try:
            yield member
        finally:
            await server.close()


def record(actor: str, ts: float, **more: object) -> bytes:
    card = {"id": f"local.{actor}", "name": actor.title(), "kind": "agent"}
    return json.dumps({"card": card, "status": "idle", "ts": ts, **more}).encode()


async def consumers(member: Member, bucket: buckets.Bucket) -> int:
    answer = await member.connection.request(api.STREAM_INFO.build(stream=bucket.stream(SPACE)))
    return int(json.loads(answer.data)["state"]["consumer_count"])


@pytest.mark.req("C6-44", "C6-46", "C6-47", "C7-10", "C7-11", "C9-47")
async def test_a_member_without_a_raw_read_sees_the_same(tmp_path: Path) -> None:
    async with (
        town(tmp_path, Form.MEDIATED) as here,
        here.member("alice") as alice,
        here.member("old") as old,
        here.member("eve") as eve,
    ):
        reads = MediatedReads(
            Caller(alice.connection, SPACE, alice.lifecycle, "Alice"), Reading(system_now, alice.metrics)
        )
        with pytest.raises(RosterUnreadable):  # nobody answers: that says nothing of who is there
            await reads.roster()
        now = system_now().wall * 1000
        for member, value in (
            (alice, record("alice", now)),
            (old, record("old", now - 60_000, statusSince=1)),
            (eve, record("alice", now)),
        ):
            key = member.lifecycle.principal.dot
            await KeyValue(member.connection, buckets.PRESENCE, SPACE).put(key, value)
        async with plane(here) as delivery, here.member("operator", Profile.PROVISIONER) as operator:
            before = [await consumers(delivery, one) for one in (buckets.PRESENCE, buckets.CHANNELS)]
            roster = await reads.roster()
            assert {row.principal.actor: row.live for row in roster} == {"alice": True, "old": False}
            assert [one.key for one in roster.dropped] == ["local.eve"]
            assert roster.resolve("Alice") == alice.lifecycle.principal
            writer = RegistryWriter(operator.connection, SPACE)
            assert (await reads.registry()).effective("team.a").delivery_class is DeliveryClass.DURABLE
            await writer.set_channel("team.a", ChannelConfig(delivery_class=DeliveryClass.LIVE))
            await writer.set_defaults(ChannelConfig(replay=False))
            registry = await reads.registry()
            assert registry.effective("team.a") == (False, None, DeliveryClass.LIVE)
            assert registry.effective("team.b") == (False, None, DeliveryClass.DURABLE)
            assert [await consumers(delivery, one) for one in (buckets.PRESENCE, buckets.CHANNELS)] == before
