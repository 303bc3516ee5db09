"""Serving instances, the processes of the control surface and callers with real credentials: every row works, and each
neighbour of a row is refused by the broker (C13.9-002, C13.9-038, C13.9-043)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from sidecar.rails.names import buckets
from sidecar.rails.names.grants import admitted
from sidecar.rails.space.evidence import listing_token
from sidecar.rails.space.grants import permissions
from sidecar.rails.space.holder import Capability, EventRead, Form, Holder, Profile, Service
from tests.e2e.space_broker import EVENT_SECONDS, SpaceBroker, User
from tests.e2e.space_members import SPACE, Space, samples, uid_of
from tests.e2e.test_space_provision import root

pytestmark = pytest.mark.asyncio(loop_scope="module")

P = f"cotal.{SPACE}"
JS = "$JS.API"
E = "dev_sidecar_sample"
IID, OTHER = "d4" * 13, "e5" * 13
EVE = f"local.eve.{uid_of('eve')}"
BOB = f"local.bob.{uid_of('bob')}"
RECORDS, AUTH, ISSUED, ACCEPTED = (
    one.stream(SPACE) for one in (buckets.RECORDS, buckets.AUTH, buckets.ISSUED, buckets.ACCEPTED)
)
NONCE = "n" * 22
GENERATION, FOREIGN = "6b49d200" + "ab" * 12, "6b49d200" + "cd" * 12
SAMPLE = Service(IID, 3, ("echo", "whoami"), "dev.sidecar.sample")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Space]:
    async with SpaceBroker(tmp_path_factory.mktemp("control")) as broker:
        made = Space(broker, Form.MEDIATED)
        await made.open()
        yield made


class Case(NamedTuple):
    """Neighbours of what a profile may publish and subscribe; ``more`` are fields of its holder."""

    publish: list[str]
    subscribe: tuple[str, ...] = ()
    more: Mapping[str, Any] = MappingProxyType({})


READS = [
    f"{JS}.{form % stream}"
    for stream in (RECORDS, AUTH, ISSUED, ACCEPTED, "EPC_main", "EPE_main", "EPF_main", "EPR_main")
    for form in (
        "CONSUMER.CREATE.%s", "CONSUMER.CREATE.%s.x", "CONSUMER.CREATE.%s.x.$KV.x.>", "CONSUMER.MSG.NEXT.%s.x",
        "CONSUMER.DURABLE.CREATE.%s.x", "DIRECT.GET.%s", "DIRECT.GET.%s.x", "STREAM.MSG.GET.%s",
    )
]  # fmt: skip
ENDS = [
    f"{JS}.STREAM.{verb}.{stream}"
    for stream in (RECORDS, AUTH, ISSUED, ACCEPTED, "EPC_main", "EPE_main", "EPF_main", "EPJ_main", "EPR_main")
    for verb in ("DELETE", "PURGE", "UPDATE", "CREATE", "MSG.DELETE")
]
WRITES = [
    f"$KV.cotal_records_main.lifecycle.{EVE}", "$KV.cotal_records_main.lifecycle.local.eve",
    f"$KV.cotal_records_main.uid.{uid_of('eve')}", f"$KV.cotal_records_main.svc.{E}.{IID}.spec",
    f"$KV.cotal_records_main.svc.{E}.{IID}.status", f"$KV.cotal_records_main.govern.{E}",
    f"$KV.cotal_records_main.policy.{E}.{'ab' * 32}", f"$KV.cotal_records_main.frontier.{uid_of('eve')}",
    f"$KV.cotal_records_main.goal.{E}.{EVE}.g.spec", f"$KV.cotal_records_main.oblig.ep.{E}.{EVE}.x",
    f"$KV.cotal_auth_main.epgate.{E}.{IID}", f"$KV.cotal_auth_main.gate.{uid_of('eve')}", "$KV.cotal_auth_main.plane",
    f"$KV.cotal_auth_main.epcred.{E}.{IID}.x", f"$KV.cotal_auth_main.cred.{uid_of('eve')}.x",
    f"$KV.cotal_issued_main.v1.{EVE}.{GENERATION}", f"$KV.cotal_accepted_main.accepted.v1.{'ab' * 16}",
    f"$KV.cotal_admission_main.admission.v1.{E}.x", f"{P}.epc.{'ab' * 32}", f"{P}.epf.{E}.dec.{EVE}.x",
    f"{P}.epw.{E}.pool.{EVE}.x", f"{P}.epr.{E}.{IID}.3.svc.{E}.{IID}", f"{P}.epe.{E}.{IID}.3.ev.x.y",
    f"{P}.ept.{E}.{IID}.3.t.schedule", f"{P}.ept.{E}.{IID}.3.t.armed", f"{P}.ept.{E}.{IID}.3.t.fire",
    f"{P}.eps.{E}.s.3.in", f"{P}.eps.{E}.s.3.out", f"{P}.wfj.run", f"{P}.chat.local.eve.general",
    f"{P}.ep.reply.{E}.{IID}.3.{BOB}.{NONCE}", f"{P}.ep.v1.reply.{E}.{IID}.3.{BOB}.{GENERATION}.{NONCE}",
    f"{P}.ep.one.registry.instances.{EVE}.{NONCE}", f"{P}.ep.one.{E}.echo.{EVE}.{NONCE}",
    f"{P}.ep.one.registry.instances.{BOB}.{NONCE}", f"{P}.ctl.delivery.x", f"{P}.control.x", "$SYS.REQ.USER.INFO",
]  # fmt: skip
NOBODY_HEARS = (
    ">", f"{P}.>", f"{P}.ep.>", f"{P}.ep.one.>", f"{P}.ep.one.{E}.>", f"{P}.ep.one.{E}.echo.>",
    f"{P}.ep.v1.one.{E}.echo.>", f"{P}.ep.one.registry.>", f"{P}.ep.reply.>", f"{P}.ep.reply.*.*.*.{BOB}.*",
    f"{P}.ep.v1.reply.>", f"{P}.epe.>", f"{P}.epf.>", f"{P}.epc.>", f"{P}.epr.>", f"{P}.ept.>", f"{P}.eps.>",
    f"{P}.epj.>", f"{P}.chat.>", "$KV.>", "$JS.>", "_INBOX.>",
)  # fmt: skip
EVERYTHING = [*READS, *ENDS, *WRITES]

CASES = {
    Profile.ENDPOINT: Case(
        [
            f"{P}.ep.reply.{E}.{IID}.4.{BOB}.{NONCE}",
            f"{P}.ep.reply.{E}.{OTHER}.3.{BOB}.{NONCE}",
            f"{P}.ep.reply.delivery.{IID}.3.{BOB}.{NONCE}",
            f"{P}.ep.reply.{E}.{IID}.3.{BOB}.{NONCE}.x",
            f"{P}.ep.v1.reply.{E}.{IID}.4.{BOB}.{GENERATION}.{NONCE}",
            f"{P}.epe.{E}.{IID}.4.ev.x.y",
            f"{P}.epe.{E}.{OTHER}.3.ev.x.y",
            f"{P}.epe.delivery.{IID}.3.ev.x.y",
            f"{P}.ept.{E}.{IID}.4.t.schedule",
            f"{P}.epr.{E}.{IID}.4.svc.{E}.{IID}",
            f"{P}.epr.{E}.{IID}.3.svc.{E}.{OTHER}",
            f"{P}.epr.{E}.{IID}.3.goal.{E}.{IID}",
            f"{P}.epr.{E}.{OTHER}.3.svc.{E}.{IID}",
            f"{P}.ep.one.registry.record.{EVE}.{NONCE}",
            f"{P}.ep.one.registry.endpoints.{EVE}.{NONCE}",
            f"{P}.ep.all.registry.instances.{EVE}.{NONCE}",
            f"{P}.ep.v1.one.registry.target.{EVE}.{GENERATION}.{NONCE}",
            f"{P}.ep.one.delivery.describe.{EVE}.{NONCE}",
            f"{JS}.INFO",
        ],
        (
            f"{P}.ep.one.{E}.other.>",
            f"{P}.ep.all.{E}.other.>",
            f"{P}.ep.inst.{E}.{OTHER}.echo.>",
            f"{P}.ep.inst.{E}.{IID}.other.>",
            f"{P}.ep.all.{E}.>",
            f"{P}.ep.one.delivery.describe.>",
            f"{P}.ept.{E}.{IID}.4.*.fire",
            f"{P}.epe.{E}.{IID}.3.>",
        ),
        {"service": SAMPLE},
    ),
    Profile.REGISTRY: Case(
        [
            f"{JS}.DIRECT.GET.{AUTH}",
            f"{JS}.DIRECT.GET.{ISSUED}.x",
            f"{JS}.STREAM.MSG.GET.EPF_main",
            f"{JS}.STREAM.MSG.GET.{ACCEPTED}",
            f"{JS}.DIRECT.GET.EPC_main",
            f"{JS}.STREAM.MSG.GET.EPC_main",
            f"{P}.ep.reply.registry.{IID}.4.{BOB}.{NONCE}",
            f"{P}.ep.reply.delivery.{IID}.3.{BOB}.{NONCE}",
        ],
        (f"{P}.ep.one.registry.endpoints.>", f"{P}.ep.one.registry.other.>", f"{P}.ep.all.registry.other.>"),
        {"service": Service(IID, 3, ("endpoints", "instances"), "registry")},
    ),
    Profile.RECORD_WRITER: Case(
        [
            f"{JS}.CONSUMER.CREATE.EPR_main.recw_main-svc.{P}.epr.>",
            f"{JS}.CONSUMER.MSG.NEXT.EPR_main.recw_main-goal",
            f"{JS}.CONSUMER.CREATE.EPR_main.recw_main-svc.{P}.epr.*.*.*.goal.>",
            f"{JS}.CONSUMER.CREATE.EPR_main.recw_main-svc",
            f"{JS}.CONSUMER.DELETE.EPR_main.recw_main-svc",
            f"{JS}.DIRECT.GET.{RECORDS}",
            "$JS.ACK.EPR_main.other.x",
            f"$KV.cotal_records_main.svc.{E}.{IID}",
            f"{JS}.STREAM.INFO.{AUTH}",
        ]
    ),
    Profile.PUBLISHER: Case([f"{JS}.DIRECT.GET.EPC_main", f"{JS}.STREAM.MSG.GET.EPC_main", f"{P}.epc.x.y"]),
    Profile.REGISTRAR: Case(
        [
            f"{JS}.DIRECT.GET.{RECORDS}",
            f"{JS}.DIRECT.GET.{AUTH}",
            f"$KV.cotal_records_main.svc.{E}.{IID}",
            f"$KV.cotal_auth_main.epgate.{E}.{IID}.x",
            "$KV.cotal_auth_main.srcgate.x.y",
            "$KV.cotal_auth_main.session.x",
        ]
    ),
    Profile.ISSUER: Case(
        [f"{JS}.DIRECT.GET.{ACCEPTED}.x", f"{JS}.STREAM.INFO.{AUTH}", f"{JS}.STREAM.MSG.GET.{RECORDS}"]
    ),
    Profile.LIFECYCLES: Case(
        [f"{JS}.DIRECT.GET.{RECORDS}", f"$KV.cotal_records_main.uid.{uid_of('eve')}.x", f"{JS}.STREAM.INFO.{AUTH}"]
    ),
}
ROWS = {
    Profile.ENDPOINT: ("C13.9-M04", "C13.9-M05", "C13.9-M06", "C13.9-M24", "C13.9-M27", "C13.9-019", "C13.9-024",
                       "C13.2-05", "C13.2-48", "C13.9-003"),
    Profile.REGISTRY: ("C13.9-M23", "C13.9-M36", "C13.9-M56"),
    Profile.RECORD_WRITER: ("C13.9-M25",),
    Profile.PUBLISHER: ("C13.9-M22",),
    Profile.REGISTRAR: ("C13.9-M35", "C13.9-M67"),
    Profile.ISSUER: ("C13.9-M07",),
    Profile.LIFECYCLES: ("C13.9-M55",),
}  # fmt: skip


def beyond(profile: Profile, holder: Holder) -> list[str]:
    """What lies outside of the rows that were minted: the neighbours of a profile."""
    rows = permissions(profile, holder).publish.allow
    return [one for one in EVERYTHING if not any(admitted(row, one) for row in rows)]


@pytest.mark.req("C13.9-001", "C13.9-002", "C13.9-038", "C13.9-043", "C13.9-041", "C13.9-042", "C13.12-24", "C13.9-073")
@pytest.mark.parametrize("profile", [pytest.param(one, marks=pytest.mark.req(*rows)) for one, rows in ROWS.items()])
async def test_a_profile_does_its_own_work_and_no_other(here: Space, profile: Profile) -> None:
    case = CASES[profile]
    async with here.member(profile, "eve", **case.more) as (user, holder):
        subjects, filters = samples(profile, holder)
        for subject, queue in filters:
            assert await user.may_subscribe(subject, queue), subject
        for subject in subjects:
            assert await user.may_publish(subject), subject
        foreign = beyond(profile, holder)
        assert len(foreign) > len(EVERYTHING) * 0.85, "a row that admits a whole family hides what it should not"
        for subject in (*case.publish, *foreign):
            assert not await user.may_publish(subject), subject
        for subject in (*NOBODY_HEARS, *case.subscribe):
            if subject.startswith(f"{P}.ep.one.") or subject not in [row for row, _ in filters]:
                assert not await user.may_subscribe(subject), subject


@pytest.mark.req("C13.9-003", "C13.9-024", "C13.9-M04", "C13.2-05")
async def test_the_class_rail_is_heard_by_queue_alone_and_by_nobody_else(here: Space) -> None:
    async with here.member(Profile.ENDPOINT, "eve", service=SAMPLE) as (user, _):
        for rail in (f"{P}.ep", f"{P}.ep.v1"):
            assert await user.may_subscribe(f"{rail}.one.{E}.echo.>", E)
            for queue in ("", "other", "delivery"):
                assert not await user.may_subscribe(f"{rail}.one.{E}.echo.>", queue), queue
    other = Service(OTHER, 1, ("echo",), "com.acme.other")
    async with here.member(Profile.ENDPOINT, "mallory", service=other) as (user, _):
        for rail in (f"{P}.ep", f"{P}.ep.v1"):
            assert not await user.may_subscribe(f"{rail}.one.{E}.echo.>", E)
            assert not await user.may_subscribe(f"{rail}.inst.{E}.{OTHER}.echo.>")
            assert not await user.may_publish(f"{rail}.reply.{E}.{OTHER}.1.{BOB}.{NONCE}")


CAPABLE = (
    Capability("dev.sidecar.sample", "*"), Capability("dev.sidecar.sample", "*", "self"),
    Capability("com.acme.ci", "build", journal=True), Capability("com.acme.ci", "end", "owner", ("local",)),
)  # fmt: skip
HEARS = (EventRead("dev.sidecar.sample", "dev.sidecar.sample", "counted"), EventRead("com.acme.ci"))


async def probes(user: User, granted: list[str], refused: list[str]) -> None:
    for subject in granted:
        assert await user.may_publish(subject), subject
    for subject in refused:
        assert not await user.may_publish(subject), subject


@pytest.mark.req("C13.9-M02", "C13.9-M12", "C13.9-M19", "C13.9-007", "C13.9-008", "C13.9-009", "C13.9-010", "CB-06")
@pytest.mark.req("C13.2-30", "C13.2-36", "C13.2-47", "C13.4-42", "C13.9-004")
@pytest.mark.parametrize("form", Form)
async def test_a_caller_reaches_what_its_capabilities_name(here: Space, form: Form) -> None:
    here.form = form
    async with here.member(Profile.AGENT, "eve", capabilities=CAPABLE, hears=HEARS) as (user, _):
        tail = f"{EVE}.{NONCE}"
        registry = [
            f"{P}.ep.one.registry.{one}.{tail}" for one in ("instances", "artifacts", "record", "events", "target")
        ]
        await probes(
            user,
            [
                *registry,
                f"{P}.ep.one.{E}.echo.{tail}",
                f"{P}.ep.all.{E}.echo.{tail}",
                f"{P}.ep.inst.{E}.{IID}.echo.{tail}",
                f"{P}.ep.one.{E}.whoami.self.{tail}",
                f"{P}.ep.one.com_acme_ci.build.{tail}",
                f"{P}.epj.com_acme_ci.build.{EVE}",
                f"{P}.ep.one.com_acme_ci.end.owner.local.{tail}",
                f"{P}.ep.one.anything.describe.{tail}",
                f"{P}.ep.inst.anything.{IID}.describe.{tail}",
            ],
            [
                f"{P}.ep.one.{E}.echo.{BOB}.{NONCE}",
                f"{P}.ep.one.{E}.echo.local.eve.{uid_of('bob')}.{NONCE}",
                f"{P}.ep.one.{E}.end.owner.local.{tail}",
                f"{P}.ep.one.com_acme_ci.other.{tail}",
                f"{P}.ep.one.com_acme_ci.end.owner.other.{tail}",
                f"{P}.ep.one.com_acme_ci.end.any.local.{tail}",
                f"{P}.ep.one.com_acme_ci.end.child.local.{tail}",
                f"{P}.ep.one.com_acme_ci.end.ledger.local.{tail}",
                f"{P}.ep.one.com_acme_ci.end.handle.{BOB}.{tail}",
                f"{P}.ep.one.com_acme_ci.end.exact.{BOB}.{tail}",
                f"{P}.ep.one.{E}.echo.handle.{BOB}.{tail}",
                f"{P}.ep.one.{E}.echo.{tail}.x",
                f"{P}.ep.one.{E}.{tail}",
                f"{P}.epj.com_acme_ci.build.{BOB}",
                f"{P}.epj.com_acme_ci.end.owner.local.{EVE}",
                f"{P}.epj.{E}.echo.{EVE}",
                f"{P}.ep.v1.one.{E}.echo.{EVE}.{GENERATION}.{NONCE}",
                f"{P}.ep.one.registry.endpoints.{tail}",
                f"{P}.ep.one.registry.caller-view.{tail}",
                f"{P}.ep.all.registry.instances.{tail}",
                *READS,
                *ENDS,
                f"$KV.cotal_records_main.svc.{E}.{IID}.spec",
                f"{P}.epc.{'ab' * 32}",
                f"{P}.epe.{E}.{IID}.3.ev.{E}.counted",
                f"{P}.ep.reply.{E}.{IID}.3.{BOB}.{NONCE}",
            ],
        )
        for granted in (f"{P}.epe.{E}.*.*.ev.{E}.counted", f"{P}.epe.com_acme_ci.*.*.goal.{EVE}.>"):
            assert await user.may_subscribe(granted), granted
        for refused in (
            f"{P}.epe.{E}.>",
            f"{P}.epe.{E}.*.*.ev.{E}.other",
            f"{P}.epe.com_acme_ci.*.*.goal.{BOB}.>",
            f"{P}.epe.com_acme_ci.*.*.goal.>",
            f"{P}.epe.*.*.*.ev.{E}.counted",
            f"{P}.ep.one.{E}.echo.>",
        ):
            assert not await user.may_subscribe(refused), refused


@pytest.mark.req("C13.2-25", "C13.2-26", "C13.15-04", "C13.9-M06")
async def test_an_issued_caller_is_refused_on_the_legacy_rail_and_with_another_generation(here: Space) -> None:
    async with here.member(Profile.AGENT, "eve", capabilities=CAPABLE, generation=GENERATION) as (user, _):
        rail = f"{P}.ep.v1"
        await probes(
            user,
            [
                f"{rail}.one.{E}.echo.{EVE}.{GENERATION}.{NONCE}",
                f"{rail}.one.registry.record.{EVE}.{GENERATION}.{NONCE}",
                f"{rail}.one.any.describe.{EVE}.{GENERATION}.{NONCE}",
                f"{rail}.one.{E}.whoami.self.{EVE}.{GENERATION}.{NONCE}",
            ],
            [
                f"{rail}.one.{E}.echo.{EVE}.{FOREIGN}.{NONCE}",
                f"{P}.ep.one.{E}.echo.{EVE}.{NONCE}",
                f"{P}.ep.one.any.describe.{EVE}.{NONCE}",
                f"{P}.ep.one.delivery.durable-join.{EVE}.{NONCE}",
            ],
        )
        assert await user.may_subscribe(f"{rail}.reply.*.*.*.{EVE}.{GENERATION}.*")
        for refused in (
            f"{rail}.reply.*.*.*.{EVE}.{FOREIGN}.*",
            f"{rail}.reply.*.*.*.{EVE}.*.*",
            f"{P}.ep.reply.*.*.*.{EVE}.*",
        ):
            assert not await user.may_subscribe(refused), refused


@pytest.mark.req("C13.15-28", "C13.15-29", "CB-05", "CB-12", "CB-13")
async def test_a_listing_generation_reaches_one_question_and_its_own_row(here: Space) -> None:
    async with here.member(Profile.AGENT, "eve", listing=GENERATION) as (user, holder):
        token = listing_token(holder.connection, 0x6B49D200)
        rail, accepted = f"{P}.ep.v1", f"{JS}.DIRECT.GET.{ACCEPTED}.$KV.cotal_accepted_main.accepted.v1"
        await probes(
            user,
            [f"{rail}.one.registry.endpoints.{EVE}.{GENERATION}.{NONCE}", f"{accepted}.{token}"],
            [
                f"{rail}.one.registry.endpoints.{EVE}.{FOREIGN}.{NONCE}",
                f"{accepted}.{'0' * 32}",
                f"{accepted}.{token}.x",
                f"{rail}.one.registry.instances.{EVE}.{GENERATION}.{NONCE}",
                f"{rail}.all.registry.endpoints.{EVE}.{GENERATION}.x",
                f"{rail}.one.any.describe.{EVE}.{GENERATION}.{NONCE}",
                f"{P}.ep.one.registry.endpoints.{EVE}.{NONCE}",
            ],
        )
        assert await user.may_subscribe(f"{rail}.reply.*.*.*.{EVE}.{GENERATION}.*")
        assert not await user.may_subscribe(f"{rail}.reply.*.*.*.{EVE}.{FOREIGN}.*")


@pytest.mark.req("C13.11-02", "C13.11-03", "C13-03", "C13-04")
@pytest.mark.parametrize(
    "profile", [Profile.ADMIN, Profile.OBSERVER, Profile.OPERATOR, Profile.PROBE, Profile.DM_READER]
)
async def test_no_other_profile_reaches_the_endpoint_rails(here: Space, profile: Profile) -> None:
    """The credentials of before the cut had these rows: ``>`` for administrators, ``ctl`` for callers."""
    here.form = Form.COMPATIBLE
    async with here.member(profile, "eve") as (user, holder):
        foreign = beyond(profile, holder)
        for subject in foreign:
            assert not await user.may_publish(subject), subject
        assert not [one for one in EVERYTHING if one not in foreign and ".chat." not in one]
        own = f"{P}.ep.reply.*.*.*.{EVE}.*"
        for subject in (*NOBODY_HEARS, own, f"{P}.ctl.>", f"{P}.control.>"):
            allowed = subject == f"{P}.chat.>" and profile in (Profile.ADMIN, Profile.OBSERVER)
            assert await user.may_subscribe(subject) is allowed, subject
        assert holder.form is Form.COMPATIBLE


@pytest.mark.req("C13-03", "C13.11-02")
async def test_a_request_on_the_removed_rail_finds_nobody(here: Space) -> None:
    async with (
        here.member(Profile.DELIVERY, "delivery"),
        here.member(Profile.ENDPOINT, "eve", service=SAMPLE),
        root(here) as hand,
    ):
        reply = await _raw(hand, f"{P}.ctl.delivery.local.alice")
        assert reply == "503"


async def _raw(user: User, subject: str) -> str:
    inbox = user.client.new_inbox()
    heard = await user.client.subscribe(inbox)
    await user.client.publish(subject, b"", reply=inbox)
    message = await heard.next_msg(EVENT_SECONDS)
    await heard.unsubscribe()
    return (message.headers or {}).get("Status", "")
