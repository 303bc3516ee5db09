"""The profiles of hosts and operators with real credentials: every row works, and a neighbour of it is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from sidecar.rails.endpoint.caller import Caller
from sidecar.rails.endpoint.codes import CallRefused, Code
from sidecar.rails.messaging.dm_reader import Direct, DmReader
from sidecar.rails.messaging.durables import Durable
from sidecar.rails.messaging.mediated_intake import MediatedIntake
from sidecar.rails.names import Lifecycle, Principal, buckets
from sidecar.rails.space.holder import Ending, Form, Profile
from tests.e2e.durable_reads import life
from tests.e2e.peers import Society, society
from tests.e2e.space_broker import EVENT_SECONDS
from tests.e2e.space_members import SPACE, samples, uid_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

P = f"cotal.{SPACE}"
JS = "$JS.API"
CHANNELS, PRESENCE, MEMBERS, MEMBERSHIP, ACL = (
    one.stream(SPACE) for one in (buckets.CHANNELS, buckets.PRESENCE, buckets.MEMBERS, buckets.MEMBERSHIP, buckets.ACL)
)
BOB = Lifecycle(Principal("local", "bob"), uid_of("bob"))
DM_OF_BOB = f"DM_{SPACE}.dm_local-bob-{BOB.uid}"
DM_OF_ANN = f"DM_{SPACE}.dm_local-ann-{uid_of('ann')}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Society]:
    async with society(tmp_path_factory.mktemp("hosts"), Form.MEDIATED) as made:
        yield made


class Case(NamedTuple):
    """Neighbours of what a profile may publish and subscribe; ``more`` are fields of its holder."""

    publish: list[str]
    subscribe: tuple[str, ...] = ()
    more: Mapping[str, Any] = MappingProxyType({})


NOBODY = [
    f"{JS}.STREAM.DELETE.CHAT_{SPACE}", f"{JS}.STREAM.DELETE.{CHANNELS}", f"{JS}.STREAM.LIST",
    f"{JS}.STREAM.MSG.DELETE.CHAT_{SPACE}", f"{JS}.STREAM.MSG.GET.DM_{SPACE}", f"{JS}.STREAM.MSG.GET.CHAT_{SPACE}",
    f"{JS}.CONSUMER.CREATE.DM_{SPACE}.x.y", f"{JS}.CONSUMER.CREATE.CHAT_{SPACE}.x.y", f"{JS}.STREAM.CREATE.X",
    f"{JS}.CONSUMER.MSG.NEXT.{DM_OF_BOB}", f"{JS}.CONSUMER.MSG.NEXT.INBOX_{SPACE}.reader", "$SYS.REQ.SERVER.PING",
    f"{P}.dinbox.local.bob.{BOB.uid}", f"{P}.dlv.local.bob.{BOB.uid}", f"$KV.cotal_delivery_{SPACE}.lease.0",
    f"$KV.cotal_anycast_{SPACE}.r.x.1", f"$KV.cotal_acl_{SPACE}.local.eve.{uid_of('eve')}",
    f"$KV.cotal_presence_{SPACE}.local.bob", f"{P}.chat.local.bob.general", f"{P}.live.delivery.local.eve",
    f"{P}.ep.one.delivery.lifecycle-memberships.local.eve.{uid_of('eve')}.n",
]  # fmt: skip
NOBODY_HEARS = [">", f"{P}.>", f"{P}.chat.>", f"{P}.inst.>", f"{P}.take.*.*.*", f"{P}.dlv.>", "$KV.>", "_INBOX.>"]
PURGES = [f"{JS}.STREAM.PURGE.{name}_{SPACE}" for name in ("CHAT", "DM")]
REGISTRY = [f"$KV.cotal_channels_{SPACE}.general", f"{JS}.STREAM.MSG.GET.{CHANNELS}"]
CASES = {
    Profile.DEPROVISIONER: Case(
        [
            f"$KV.cotal_acl_{SPACE}.local.bob.{uid_of('carol')}",
            f"$KV.cotal_members_{SPACE}.other/local.bob.{BOB.uid}",
            f"$KV.cotal_members_{SPACE}.general/local.carol.{uid_of('carol')}", f"{JS}.CONSUMER.DELETE.{DM_OF_ANN}",
            f"{JS}.CONSUMER.DELETE.DM_{SPACE}.x", f"{JS}.STREAM.MSG.GET.{ACL}", f"{JS}.STREAM.INFO.{MEMBERS}",
            f"{JS}.CONSUMER.DELETE.TASK_{SPACE}.svc_reviewer", *PURGES, *REGISTRY,
        ],
        more={"ends": Ending(BOB, ("general", "team.>"))},
    ),
    Profile.MEMBERSHIP_RW: Case(
        [
            f"$KV.cotal_members_{SPACE}.general/local.bob.{BOB.uid}", f"{JS}.DIRECT.GET.{MEMBERS}",
            f"{JS}.STREAM.INFO.{ACL}", f"{JS}.STREAM.UPDATE.{MEMBERSHIP}", f"{JS}.STREAM.PURGE.{MEMBERSHIP}",
            f"{JS}.CONSUMER.DELETE.{CHANNELS}.x", *PURGES, *REGISTRY,
        ],
    ),
    Profile.OPERATOR: Case(
        [
            REGISTRY[0], f"$KV.cotal_channels_{SPACE}.=defaults", f"{P}.inst.local.bob.local.bob",
            f"{P}.svc.reviewer.local.bob", f"{P}.take.reviewer.local.eve", f"{JS}.STREAM.MSG.GET.{PRESENCE}",
            f"{JS}.CONSUMER.DELETE.{PRESENCE}.x", f"{JS}.STREAM.INFO.CHAT_{SPACE}", *PURGES,
        ],
    ),
    Profile.CHANNEL_WRITER: Case(
        [
            f"{JS}.STREAM.UPDATE.{CHANNELS}", f"{JS}.STREAM.PURGE.{CHANNELS}", f"{JS}.STREAM.MSG.DELETE.{CHANNELS}",
            f"{JS}.CONSUMER.CREATE.{CHANNELS}.x.y", f"{JS}.STREAM.INFO.{PRESENCE}",
            f"{P}.chat.local.eve.general", *PURGES,
        ],
    ),
    Profile.PURGER: Case(
        [
            *(f"{JS}.STREAM.PURGE.{name}_{SPACE}" for name in ("TASK", "INBOX", "DLV")),
            f"{JS}.STREAM.PURGE.{CHANNELS}", f"{JS}.STREAM.INFO.CHAT_{SPACE}", f"{JS}.STREAM.UPDATE.CHAT_{SPACE}",
            *REGISTRY,
        ],
    ),
    Profile.LIMITER: Case(
        [
            f"{JS}.INFO", f"{JS}.STREAM.UPDATE.TASK_{SPACE}", f"{JS}.STREAM.UPDATE.{CHANNELS}",
            f"{JS}.STREAM.INFO.TASK_{SPACE}", f"{JS}.CONSUMER.CREATE.CHAT_{SPACE}.other",
            f"{JS}.CONSUMER.CREATE.CHAT_{SPACE}.limits.{P}.chat.>", f"{JS}.CONSUMER.MSG.NEXT.CHAT_{SPACE}.limits",
            f"{JS}.CONSUMER.DELETE.CHAT_{SPACE}.fanout", *PURGES, *REGISTRY,
        ],
    ),
    Profile.PROBE: Case(
        [f"{JS}.INFO", f"{P}.chat.local.eve.general", "x", "_INBOX.x", *PURGES, *REGISTRY],
    ),
    Profile.DM_READER: Case(
        [
            f"{JS}.INFO", f"{JS}.CONSUMER.INFO.DM_{SPACE}.dm_local-eve-{uid_of('eve')}",
            f"{JS}.CONSUMER.MSG.NEXT.DM_{SPACE}.dm_local-eve-{uid_of('eve')}",
            f"$JS.ACK.DM_{SPACE}.dm_local-eve-{uid_of('eve')}.1.1.1.1.0",
            *(
                f"{P}.ep.one.delivery.{command}.local.eve.{uid_of('eve')}.n"
                for command in ("describe", "durable-join", "list-memberships", "read-history", "read-roster")
            ),
            f"{P}.ep.one.delivery.fetch.local.bob.{BOB.uid}.n", f"{P}.inst.local.bob.local.eve", *PURGES, *REGISTRY,
        ],
        (f"{P}.ep.reply.*.*.*.local.bob.{BOB.uid}.*", f"{P}.inst.local.eve.>"),
    ),
}  # fmt: skip
ROWS = {
    Profile.DEPROVISIONER: ("CB-102", "CB-74", "C13.12-25"),
    Profile.MEMBERSHIP_RW: ("CB-104",),
    Profile.OPERATOR: ("CB-105",),
    Profile.CHANNEL_WRITER: ("CB-107",),
    Profile.PURGER: ("CB-109",),
    Profile.LIMITER: ("C8-15",),
    Profile.PROBE: ("CB-106",),
    Profile.DM_READER: ("C8-39", "C9-47"),
}


@pytest.mark.req("C9-05", "C9-13", "CB-73")
@pytest.mark.parametrize("profile", [pytest.param(one, marks=pytest.mark.req(*rows)) for one, rows in ROWS.items()])
async def test_a_profile_does_its_own_work_and_no_other(here: Society, profile: Profile) -> None:
    case = CASES[profile]
    async with here.town.space.member(profile, "eve", **case.more) as (user, holder):
        subjects, filters = samples(profile, holder)
        assert {row.rpartition(" ")[0] or row for row, _ in filters} >= {f"_INBOX_{holder.connection}.>"}
        # A real subscription first: a row that works on one's own inbox alone proves nothing of the others.
        for subject, queue in filters:
            assert await user.may_subscribe(subject, queue), subject
        for subject in (*NOBODY_HEARS, *case.subscribe):
            assert not await user.may_subscribe(subject), subject
        for subject in (*NOBODY, *case.publish):
            assert not await user.may_publish(subject), subject
        for subject in subjects:
            # What they would do is refused by JetStream itself, so that no row destroys what another test needs.
            assert await user.may_publish(subject, b"", headers={"Nats-Expected-Stream": "nothing"}), subject


async def direct(reader: DmReader) -> Direct:
    async with asyncio.timeout(EVENT_SECONDS):
        return await reader.next()


@pytest.mark.req("C8-36", "C8-37", "C8-38", "C9-47")
async def test_a_reader_of_a_mediated_space_fetches_and_settles_without_a_read_list(here: Society) -> None:
    """It has no row in the bucket of read lists: its own direct messages are nobody's channel."""
    await here.town.activate("ann")
    async with (
        here.plane(),
        here.town.member("sam") as sam,
        here.town.member("ann", Profile.DM_READER) as ann,
    ):
        caller = Caller(ann.connection, SPACE, ann.lifecycle, "ann")
        durable = Durable.dm(SPACE, life("ann"))
        reader = DmReader(
            MediatedIntake(ann.connection, caller, durable, metrics=ann.metrics), mediated=True, metrics=ann.metrics
        )
        await sam.tell("ann", "forged", as_actor="carol")
        await sam.tell("ann", "m1")
        shown = await direct(reader)
        assert shown.received.message.id == "m1"
        await shown.handled()
        await sam.tell("ann", "m2")
        await (await direct(reader)).later()
        again = await direct(reader)
        assert again.received.message.id == "m2"
        await again.handled()
        assert ann.metrics.totals("messaging_copies_refused") == {("dm", "sender-mismatch"): 1}
        assert ann.metrics.totals("nats_faults") == {}
        await reader.close()
        await caller.close()
    found = await here.town.consumer(durable)
    assert (found["num_pending"], found["num_ack_pending"]) == (0, 0)


@pytest.mark.req("C9-47", "C8-39")
async def test_a_reader_of_direct_messages_serves_no_role(here: Society) -> None:
    async with here.plane(), here.town.member("cleo", Profile.DM_READER) as cleo:
        await here.town.activate("cleo", ("reviewer",))
        caller = Caller(cleo.connection, SPACE, cleo.lifecycle, "cleo")
        answer = await caller.call("delivery", "fetch", {"source": "dm", "batch": 1, "waitMs": 0})
        assert answer == {"frames": []}
        with pytest.raises(CallRefused) as refused:
            await caller.call("delivery", "fetch", {"source": "role", "role": "reviewer", "batch": 1, "waitMs": 0})
        assert refused.value.code == Code.PERMISSION_DENIED
        await caller.close()
