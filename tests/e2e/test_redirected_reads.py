"""A hostile member of a compatible space has the broker put stored bytes where others expect a publish.

Its credential is a real one with the published rows. None of what it brings about is shown as a direct message, post,
request for a role or backstop copy, believed as a presence record, registry entry or lease, or served as a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from base64 import b64decode
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from sidecar.base.clock import system_now
from sidecar.base.strictjson import JsonValue
from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection.kv import KeyValue
from sidecar.rails.endpoint.call import Call
from sidecar.rails.endpoint.contracts import DELIVERY
from sidecar.rails.endpoint.serve import EndpointServer
from sidecar.rails.envelopes.receive import Reason, Rejected, Source, receive
from sidecar.rails.messaging.durables import Durable, judge
from sidecar.rails.messaging.intake import RawIntake
from sidecar.rails.messaging.notices import raw_lease
from sidecar.rails.messaging.reads import Reading
from sidecar.rails.messaging.reads_raw import RawReads
from sidecar.rails.names import api, buckets
from sidecar.rails.names.subjects import delivery_of
from sidecar.rails.space.holder import Profile
from tests.e2e.delivery_rig import Rig, root
from tests.e2e.durable_reads import Member, Town, document, town
from tests.e2e.space_broker import EVENT_SECONDS
from tests.e2e.space_members import INSTANCE, SPACE, clock, uid_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

P = f"cotal.{SPACE}"
GENERAL: dict[str, Any] = {"subscribe": ("general",), "allow_publish": ("general",)}
PRESENCE, CHANNELS = buckets.PRESENCE.stream(SPACE), buckets.CHANNELS.stream(SPACE)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def main(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Town]:
    async with town(tmp_path_factory.mktemp("redirected")) as here:
        await here.activate("ann", ("rev",))
        await here.activate("eve", ("rev",))
        yield here


class Eve:
    """What a hostile member can do with the published rows."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.connection = member.connection

    async def direct(self, stored: bytes, target: str) -> None:
        """Her own presence record, as the answer to a Direct Get, on a subject that she may not publish on."""
        own = f"$KV.{PRESENCE.removeprefix('KV_')}.local.eve"
        await self.member.stored(own, stored)
        body = json.dumps({"last_by_subj": own}).encode()
        await self.connection.publish(api.DIRECT_GET.build(stream=PRESENCE), body, reply=target)

    async def pull(self, durable: Durable, target: str) -> None:
        """A pending copy of a durable that she may read, delivered elsewhere."""
        await self.connection.publish(
            api.CONSUMER_NEXT.build(stream=durable.stream, consumer=durable.consumer),
            b'{"batch":1,"no_wait":true}',
            reply=target,
        )

    async def push(self, target: str) -> None:
        """The history of a channel, pushed elsewhere."""
        consumer, pattern = f"chathist_local-eve-{uid_of('eve')}", f"{P}.chat.*.*.general"
        config = {
            "name": consumer,
            "deliver_subject": target,
            "filter_subject": pattern,
            "ack_policy": "none",
            "deliver_policy": "all",
        }
        create = api.CONSUMER_CREATE_FILTERED.build(stream="CHAT_main", consumer=consumer, filter=pattern)
        answer = await self.connection.request(
            create, json.dumps({"stream_name": "CHAT_main", "config": config}).encode()
        )
        if "error" not in json.loads(answer.data):
            await self.connection.request(api.CONSUMER_DELETE.build(stream="CHAT_main", consumer=consumer))

    async def everything(self, forged: bytes, target: str) -> None:
        """Each of the reads, with what she has stored."""
        await self.direct(forged, target)
        await self.member.stored(f"{P}.chat.local.eve.general", forged)
        await self.push(target)
        for durable in (Durable.dm(SPACE, self.member.lifecycle), Durable.of_role(SPACE, "rev")):
            await self.pull(durable, target)


@contextlib.asynccontextmanager
async def cast(here: Town) -> AsyncIterator[tuple[Eve, Member, Member]]:
    """Hostile eve, ann who reads, and sam whose words count."""
    async with (
        here.member("eve", roles=("rev",), **GENERAL) as eve,
        here.member("ann", roles=("rev",), **GENERAL) as ann,
        here.member("sam", **GENERAL) as sam,
    ):
        yield Eve(eve), ann, sam


@pytest.mark.req("C5-14", "C13.3-02", "C13.3-03")
async def test_no_redirected_read_is_a_direct_message(main: Town) -> None:
    async with cast(main) as (eve, ann, sam):
        await sam.tell("eve", "to-eve")
        forged = document("carol", "forged", to="local.ann")
        await eve.everything(forged, f"{P}.inst.local.ann.local.carol")
        intake = RawIntake(ann.connection, Durable.dm(SPACE, ann.lifecycle), metrics=ann.metrics, heartbeat=0.4)
        # Into the pull inbox as well: with the subject that it was stored on, and the ack subject of another.
        waiting = asyncio.create_task(intake.take())
        while ann.metrics.totals("messaging_frames_dropped").get(("dm", "provenance"), 0) < 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        (inbox,) = [one.subject for one in ann.connection._subscriptions.placed if ".s." in one.subject]
        await sam.tell("eve", "to-eve-again")
        await eve.everything(forged, inbox)
        await sam.tell("ann", "real")
        async with asyncio.timeout(EVENT_SECONDS):
            copy = await waiting
            while not copy.frame.data:  # the broker's word that there is nothing to pull, stored as a message
                with pytest.raises(Rejected):
                    judge(copy.frame, intake.durable, mediated=False)
                await copy.term()
                copy = await intake.take()
        assert judge(copy.frame, intake.durable, mediated=False).message.id == "real"
        copy.show()
        await copy.ack()
        dropped = ann.metrics.totals("messaging_frames_dropped")
        assert dropped[("dm", "provenance")] == 1
        assert dropped[("dm", "foreign")] >= 2
        async with asyncio.timeout(EVENT_SECONDS):
            while (await main.consumer(intake.durable))["num_ack_pending"]:
                pass
        await intake.close()


@pytest.mark.req("C5-14", "C13.3-02")
async def test_no_redirected_read_is_a_request_for_a_role_or_a_backstop_copy(main: Town) -> None:
    async with cast(main) as (eve, ann, sam):
        forged = document("carol", "forged", toService="rev")
        await eve.direct(forged, f"{P}.svc.rev.local.carol")
        await eve.direct(document("carol", "forged", channel="general"), f"{P}.dlv.local.ann.{uid_of('ann')}")
        role = RawIntake(ann.connection, Durable.of_role(SPACE, "rev"), metrics=ann.metrics, heartbeat=0.4)
        copies = RawIntake(ann.connection, Durable.backstop(SPACE, ann.lifecycle), metrics=ann.metrics, heartbeat=0.4)
        await sam.request_role("rev", "real")
        async with asyncio.timeout(EVENT_SECONDS):
            copy = await role.take()
            assert judge(copy.frame, role.durable, mediated=False).message.id == "real"
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await copies.take()
        dropped = ann.metrics.totals("messaging_frames_dropped")
        assert (dropped[("role", "provenance")], dropped[("backstop", "provenance")]) == (1, 1)
        await copy.term()
        await role.close()
        await copies.close()


@pytest.mark.req("C5-14", "C13.3-02")
async def test_no_redirected_read_is_a_post(main: Town) -> None:
    async with cast(main) as (eve, ann, sam):
        live = await ann.connection.subscribe(f"{P}.chat.*.*.general")
        await sam.tell("eve", "to-eve")
        await eve.everything(document("carol", "forged", channel="general"), f"{P}.chat.local.carol.general")
        await sam.stored(f"{P}.chat.local.sam.general", document("sam", "real", channel="general"))
        shown: list[str] = []
        refused: list[Reason] = []
        async with asyncio.timeout(EVENT_SECONDS):
            while not shown:
                frame = await live.next()
                try:
                    delivery = delivery_of(frame.subject)
                    received = receive(
                        frame.data, delivery, Source.LIVE, header_names=frame.headers or {}, reply=frame.reply
                    )
                except Rejected as error:
                    refused.append(error.reason)
                else:
                    shown.append(received.message.id)
        assert shown == ["real"]
        assert refused.count(Reason.REDIRECTED) >= 2
        assert Reason.SENDER_MISMATCH in refused, "her own post in the name of another"


@pytest.mark.req("C13.3-02")
async def test_no_redirected_read_is_a_record_of_a_bucket(main: Town) -> None:
    record = {
        "card": {"id": "local.carol", "name": "carol", "kind": "agent"},
        "status": "idle",
        "ts": clock() * 1000,
    }
    async with cast(main) as (eve, ann, sam), main.member("observer", Profile.OBSERVER) as observer:
        watch = KeyValue(observer.connection, buckets.PRESENCE, SPACE).watch("redirected")
        await sam.tell("eve", "to-eve")
        await eve.everything(json.dumps(record).encode(), "$KV.cotal_presence_main.local.carol")
        await eve.everything(b'{"description":"forged","deliveryClass":"live"}', "$KV.cotal_channels_main.general")
        holder = json.dumps({"holder": "local.eve", "instanceId": INSTANCE, "since": 1, "ready": True}).encode()
        await eve.everything(holder, "$KV.cotal_delivery_main.lease.0")
        await sam.stored("$KV.cotal_presence_main.local.sam", json.dumps({**record, "card": {
            "id": "local.sam", "name": "sam", "kind": "agent"}}).encode())  # fmt: skip
        found = await KeyValue(ann.connection, buckets.PRESENCE, SPACE).read_all()
        assert "local.sam" in found
        # The broker's word that there is nothing to pull is stored as well; an empty value is no record.
        assert "local.carol" not in found or not found["local.carol"].value
        reads = RawReads(ann.connection, SPACE, Reading(system_now, ann.metrics))
        roster = await reads.roster()
        assert {"local.carol", "local.sam"} & set(roster.rows) == {"local.sam"}
        channels = KeyValue(ann.connection, buckets.CHANNELS, SPACE)
        await eve.direct(b'{"description":"forged","deliveryClass":"live"}', "$KV.cotal_channels_main.other")
        assert not any(entry.value for entry in (await channels.read_all()).values())
        assert await channels.get("other") is None
        assert (await reads.registry()).effective("other").delivery_class == "durable"
        await eve.direct(holder, "$KV.cotal_delivery_main.lease.0")
        assert await raw_lease(ann.connection, SPACE)() is None
        values = {}
        async with asyncio.timeout(EVENT_SECONDS):
            while "local.sam" not in values:
                entry = await watch.next()
                values[entry.key] = entry.value
        assert not values.get("local.carol")
        assert ann.metrics.totals("nats_records_redirected")[()] >= 3
        await watch.close()


@pytest.mark.req("C13.3-02", "C13.3-04")
async def test_no_redirected_read_is_a_request_of_an_endpoint(main: Town) -> None:
    served: list[JsonValue] = []

    async def handler(called: Call) -> JsonValue:
        served.append(called.args)
        return {"takes": True}

    async with cast(main) as (eve, _, sam), main.member("delivery", Profile.DELIVERY) as daemon:
        server = EndpointServer(
            daemon.connection,
            SPACE,
            "delivery",
            INSTANCE,
            1,
            {"anycast-takes": handler},
            DELIVERY,
            metrics=Metrics(),
            log=Log(io.StringIO()),
        )
        await server.start()
        await sam.tell("eve", "to-eve")
        contract = DELIVERY["anycast-takes"]
        request: dict[str, Any] = {
            "v": 1,
            "id": "forged",
            "op": {
                "endpoint": "delivery",
                "command": "anycast-takes",
                "inputDigest": contract.input_digest,
                "outputDigest": contract.output_digest,
            },
            "class": "ephemeral",
            "replyExpected": True,
            "deadlineMs": 1000,
            "from": {"id": "local.ann", "name": "ann"},
        }
        target = f"{P}.ep.one.delivery.anycast-takes.local.ann.{uid_of('ann')}.{'n' * 22}"
        await eve.everything(json.dumps(request).encode(), target)
        # The same words, published by a holder of the row, are served: what was refused is the redirection alone.
        async with main.member("ann", **GENERAL) as ann:
            await ann.connection.publish(target.replace("n" * 22, "m" * 22), json.dumps(request).encode())
        async with asyncio.timeout(EVENT_SECONDS):
            while not served:  # noqa: ASYNC110 - the server has no event for it
                await asyncio.sleep(0.01)
        assert len(served) == 1
        await server.close()


@pytest.mark.req("C9-46", "C9-47")
async def test_what_is_left_of_a_redirected_pull_is_a_replay_and_no_forgery(main: Town) -> None:
    """The one read that has no mark once a stream has stored it again: what the handbook says of a compatible space."""
    to_eve, to_ann = (f"{P}.inst.local.{name}.local.sam" for name in ("eve", "ann"))
    async with cast(main) as (eve, ann, sam), root(Rig(main)) as operator:

        async def stored(sequence: int) -> tuple[str, str] | None:
            body = json.dumps({"seq": sequence}).encode()
            answer = json.loads((await operator.request(api.MESSAGE_GET.build(stream="DM_main"), body)).data)
            message = answer.get("message", {})
            data = b64decode(message.get("data", ""))
            return (message["subject"], json.loads(data)["id"]) if data else None

        first = await sam.stored(to_eve, document("sam", "for-eve", to="local.eve"))
        for _ in range(8):  # what earlier tests have left for her comes first
            await eve.pull(Durable.dm(SPACE, eve.member.lifecycle), f"{P}.inst.local.ann.local.carol")
        real = await sam.stored(to_ann, document("sam", "for-ann", to="local.ann"))
        found = [one for sequence in range(first, real + 1) if (one := await stored(sequence)) is not None]
        assert found.count((to_eve, "for-eve")) > 1, "the genuine message, again"
        assert {subject for subject, _ in found} == {to_eve, to_ann}, "each where it was, whatever was chosen"

        intake = RawIntake(ann.connection, Durable.dm(SPACE, ann.lifecycle), metrics=ann.metrics, heartbeat=0.4)
        async with asyncio.timeout(EVENT_SECONDS):
            while not (copy := await intake.take()).frame.data:  # the broker's word that nothing is left to pull
                await copy.term()
        assert judge(copy.frame, intake.durable, mediated=False).message.id == "for-ann"
        copy.show()
        await copy.ack()
        await intake.close()
