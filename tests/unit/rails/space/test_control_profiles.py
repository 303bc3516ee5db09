"""Serving instances, the processes of the control surface, and callers of both rails, row by row (C13.9)."""

from __future__ import annotations

import itertools

import pytest

from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.grants import covers, overlaps
from sidecar.rails.names.tokens import MODES
from sidecar.rails.space.audit import audit
from sidecar.rails.space.claims import Access, Permissions
from sidecar.rails.space.evidence import listing_token
from sidecar.rails.space.grants import permissions
from sidecar.rails.space.holder import SERVING, Capability, EventRead, Form, Profile, Service
from tests.unit.rails.space.holders import CONNECTION, INSTANCE, UID, holder

P = "cotal.main"
JS = "$JS.API"
T = f"local.alice.{UID}"
INBOX = f"_INBOX_{CONNECTION}.>"
RECORDS, AUTH, ISSUED, ACCEPTED = (f"KV_cotal_{one}_main" for one in ("records", "auth", "issued", "accepted"))
GENERATION = "6b49d200" + "ab" * 12
SAMPLE = holder(service=Service(INSTANCE, 7, ("echo", "whoami"), "dev.sidecar.sample"))
E = "dev_sidecar_sample"


def leader(*streams: str) -> set[str]:
    return {f"{JS}.STREAM.{one}.{stream}" for one in ("INFO", "MSG.GET") for stream in streams}


PUBLISHES = {
    Profile.REGISTRY: {
        f"{JS}.INFO", *leader(RECORDS, AUTH, ISSUED), f"{JS}.STREAM.INFO.EPE_main", f"{JS}.STREAM.INFO.EPC_main",
        f"{JS}.DIRECT.GET.{RECORDS}", f"{JS}.DIRECT.GET.EPE_main",
        f"{JS}.DIRECT.GET.{RECORDS}.$KV.cotal_records_main.>",
        f"{JS}.DIRECT.GET.EPC_main.{P}.epc.>",
    },
    Profile.RECORD_WRITER: {
        f"{JS}.INFO", *leader(RECORDS), f"{JS}.STREAM.INFO.EPR_main",
        f"{JS}.CONSUMER.CREATE.EPR_main.recw_main-svc.{P}.epr.*.*.*.svc.>",
        f"{JS}.CONSUMER.INFO.EPR_main.recw_main-svc",
        f"{JS}.CONSUMER.MSG.NEXT.EPR_main.recw_main-svc", "$JS.ACK.EPR_main.recw_main-svc.>",
        "$KV.cotal_records_main.svc.*.*.*",
    },
    Profile.PUBLISHER: {
        f"{JS}.INFO", f"{P}.epc.*", f"{JS}.STREAM.INFO.EPC_main", f"{JS}.DIRECT.GET.EPC_main.{P}.epc.>",
    },
    Profile.REGISTRAR: {
        f"{JS}.INFO", *leader(RECORDS, AUTH), f"{JS}.DIRECT.GET.EPC_main.{P}.epc.>",
        "$KV.cotal_records_main.svc.*.*.*", "$KV.cotal_records_main.govern.*",
        "$KV.cotal_records_main.policy.*.*", "$KV.cotal_auth_main.epgate.*.*", "$KV.cotal_auth_main.epcred.*.*.*",
        "$KV.cotal_auth_main.eprepair.*.*", "$KV.cotal_auth_main.stage.>",
        *(f"{JS}.STREAM.INFO.{one}_main" for one in ("EPE", "EPR", "EPT_REQ", "EPC")),
    },
    Profile.ISSUER: {
        f"{JS}.INFO", *leader(ISSUED, ACCEPTED), f"{JS}.STREAM.MSG.GET.{AUTH}", "$KV.cotal_issued_main.>",
        "$KV.cotal_accepted_main.>",
    },
    Profile.LIFECYCLES: {
        f"{JS}.INFO", *leader(RECORDS), "$KV.cotal_records_main.uid.*", "$KV.cotal_records_main.lifecycle.*.*",
        "$KV.cotal_records_main.lifecycle.*.*.*",
    },
}  # fmt: skip
ROWS = {
    Profile.REGISTRY: ("C13.9-M23", "C13.9-M36", "C13.9-M56"),
    Profile.RECORD_WRITER: ("C13.9-M25",),
    Profile.PUBLISHER: ("C13.9-M22", "C13.9-M23"),
    Profile.REGISTRAR: ("C13.9-M35", "C13.9-M36", "C13.9-M67"),
    Profile.ISSUER: ("C13.9-M07",),
    Profile.LIFECYCLES: ("C13.9-M55",),
}


def serves(endpoint: str, *commands: str) -> set[str]:
    """The serve rows of an instance on both rails."""
    found = set()
    for rail, command in itertools.product((f"{P}.ep", f"{P}.ep.v1"), (*commands, "describe")):
        found |= {f"{rail}.one.{endpoint}.{command}.> {endpoint}", f"{rail}.all.{endpoint}.{command}.>"}
        found.add(f"{rail}.inst.{endpoint}.{INSTANCE}.{command}.>")
    return found


def answers(endpoint: str) -> set[str]:
    return {
        f"{P}.ep.reply.{endpoint}.{INSTANCE}.7.*.*.*.*",
        f"{P}.ep.v1.reply.{endpoint}.{INSTANCE}.7.*.*.*.*.*",
    }


@pytest.mark.parametrize("profile", [pytest.param(one, marks=pytest.mark.req(*rows)) for one, rows in ROWS.items()])
@pytest.mark.parametrize("form", Form)
def test_a_process_of_the_control_surface_has_exactly_its_rows(profile: Profile, form: Form) -> None:
    serving = profile is Profile.REGISTRY
    someone = holder(form=form, service=Service(INSTANCE, 7, ("endpoints",), "registry") if serving else None)
    granted = permissions(profile, someone)
    assert set(granted.publish.allow) == PUBLISHES[profile] | (answers("registry") if serving else set())
    assert set(granted.subscribe.allow) == {INBOX} | (serves("registry", "endpoints") if serving else set())
    assert audit(profile, someone, granted) == []


@pytest.mark.req("C13.9-M04", "C13.9-M05", "C13.9-M06", "C13.9-M24", "C13.9-M27", "C13.9-019", "C13.9-020", "C13.9-021")
@pytest.mark.req("C13.9-022", "C13.2-48", "C13.1-030", "C13.9-006")
def test_a_serving_instance_has_exactly_its_rows() -> None:
    granted = permissions(Profile.ENDPOINT, SAMPLE)
    asks = ("artifacts", "caller-view", "describe", "instances", "target")
    assert set(granted.publish.allow) == answers(E) | {
        *(f"{P}.ep.one.registry.{command}.{T}.*" for command in asks),
        f"{P}.epr.{E}.{INSTANCE}.7.svc.{E}.{INSTANCE}",
        f"{P}.epe.{E}.{INSTANCE}.7.>",
        f"{P}.ept.{E}.{INSTANCE}.7.*.schedule",
    }
    assert set(granted.subscribe.allow) == serves(E, "echo", "whoami") | {
        INBOX,
        f"{P}.ep.reply.*.*.*.{T}.*",
        f"{P}.ept.{E}.{INSTANCE}.7.*.fire",
    }
    assert audit(Profile.ENDPOINT, SAMPLE, granted) == []


@pytest.mark.req("C13.9-019", "C13.9-003", "C13.9-M04")
def test_the_class_rail_of_an_instance_is_heard_in_its_group_alone() -> None:
    for row in permissions(Profile.ENDPOINT, SAMPLE).subscribe.allow:
        subject, _, queue = row.partition(" ")
        assert (queue == E) is (".one." in subject)


@pytest.mark.req("C13.9-020", "C13.9-021", "C13.9-022", "C13.9-002")
@pytest.mark.parametrize(
    "row",
    [
        f"{P}.ep.reply.{E}.{INSTANCE}.8.*.*.*.*", f"{P}.ep.reply.{E}.*.7.*.*.*.*", f"{P}.ep.reply.{E}.{INSTANCE}.7.>",
        f"{P}.epe.{E}.{INSTANCE}.8.>", f"{P}.epe.{E}.*.7.>", f"{P}.epr.{E}.{INSTANCE}.7.>", f"{P}.eps.{E}.>",
        f"{P}.epr.{E}.{INSTANCE}.7.goal.x", f"{P}.ept.{E}.{INSTANCE}.7.*.armed", f"{P}.epf.{E}.dec.>", f"{P}.epc.*",
        f"{P}.chat.local.alice.general", f"{P}.ep.one.*.*.{T}.*", f"{P}.ep.one.delivery.fetch.{T}.*",
        f"{JS}.STREAM.MSG.GET.{RECORDS}", f"{JS}.CONSUMER.CREATE.EPE_main.x.{P}.epe.>", f"{JS}.DIRECT.GET.EPC_main",
        "$KV.cotal_records_main.svc.*.*.*", "$KV.cotal_auth_main.epgate.*.*",
    ],
)  # fmt: skip
def test_anything_wider_for_an_instance_is_found(row: str) -> None:
    good = permissions(Profile.ENDPOINT, SAMPLE)
    changed = Permissions(Access((*good.publish.allow, row), good.publish.deny), good.subscribe)
    assert audit(Profile.ENDPOINT, SAMPLE, changed)


@pytest.mark.req("C13.2-26", "C13.15-04", "C13.9-M06", "C13.2-47", "C13.2-25")
@pytest.mark.parametrize("form", Form)
def test_an_issued_caller_rides_the_issued_rail_alone(form: Form) -> None:
    able = (Capability("ci", "build"), Capability("ci", "stop", "self"), Capability("ci", "end", "owner", ("local",)))
    legacy = permissions(Profile.AGENT, holder(form=form, capabilities=able))
    issued = permissions(Profile.AGENT, holder(form=form, capabilities=able, generation=GENERATION))
    for one, other in ((legacy.publish, issued.publish), (legacy.subscribe, issued.subscribe)):
        moved = {
            row.replace(".ep.", ".ep.v1.").replace(UID, f"{UID}.{GENERATION}") if ".ep." in row else row
            for row in one.allow
        }
        assert moved == set(other.allow)
    assert f"{P}.ep.v1.reply.*.*.*.{T}.{GENERATION}.*" in issued.subscribe.allow
    mixed = Permissions(
        Access((*issued.publish.allow, f"{P}.ep.one.ci.build.{T}.*"), issued.publish.deny), issued.subscribe
    )
    someone = holder(form=form, capabilities=able, generation=GENERATION)
    assert [one for one in audit(Profile.AGENT, someone, mixed) if "C13.2-26" in one]
    someone = holder(form=form, capabilities=able)
    assert [one for one in audit(Profile.AGENT, someone, issued) if "C13.2-26" in one]


@pytest.mark.req("C13.15-28", "C13.15-29", "CB-05", "CB-12", "CB-13", "C13.2-26")
@pytest.mark.parametrize("form", Form)
def test_a_listing_generation_is_three_rows(form: Form) -> None:
    plain, listed = (permissions(Profile.AGENT, holder(form=form, listing=one)) for one in (None, GENERATION))
    token = listing_token(CONNECTION, 0x6B49D200)
    assert set(listed.publish.allow) - set(plain.publish.allow) == {
        f"{P}.ep.v1.one.registry.endpoints.{T}.{GENERATION}.*",
        f"{JS}.DIRECT.GET.{ACCEPTED}.$KV.cotal_accepted_main.accepted.v1.{token}",
    }
    assert set(listed.subscribe.allow) - set(plain.subscribe.allow) == {f"{P}.ep.v1.reply.*.*.*.{T}.{GENERATION}.*"}
    with pytest.raises(InvalidName):
        holder(listing=GENERATION, generation=GENERATION)
    wider = f"{JS}.DIRECT.GET.{ACCEPTED}.$KV.cotal_accepted_main.>"
    changed = Permissions(Access((*listed.publish.allow, wider), listed.publish.deny), listed.subscribe)
    assert audit(Profile.AGENT, holder(form=form, listing=GENERATION), changed)


@pytest.mark.req("C13.15-28", "CB-05", "CB-12", "CB-13")
@pytest.mark.parametrize("profile", sorted(set(Profile) - {Profile.AGENT}))
def test_a_listing_generation_is_an_agents_alone(profile: Profile) -> None:
    assert permissions(profile, holder(listing=GENERATION)) == permissions(profile, holder())


@pytest.mark.req("C13.2-36")
def test_no_row_of_one_mode_reaches_another_mode() -> None:
    own = (Capability("ci", "*"), Capability("ci", "*", "self"), Capability("ci", "*", "owner", ("local",)))
    rows = permissions(Profile.AGENT, holder(capabilities=own)).publish.allow
    uid = "b2" * 13
    targets = {"self": "", "handle": f"x.y.{uid}.", "exact": f"x.y.{uid}."}
    for mode, route in itertools.product(MODES, ("one.ci", "all.ci", f"inst.ci.{INSTANCE}")):
        for owner in ("local", "x"):
            subject = f"{P}.ep.{route}.kill.{mode}.{targets.get(mode, f'{owner}.')}{T}.n"
            reached = [row for row in rows if covers(row, subject)]
            assert bool(reached) is (mode == "self" or (mode, owner) == ("owner", "local")), subject


@pytest.mark.req("C13.2-30", "C13.2-31", "C13.2-32", "C13.2-33", "C13.9-009")
@pytest.mark.parametrize(
    ("tail", "rule"),
    [
        ("one.ci.kill.owner.*.{T}.*", "C13.2-30"), ("one.ci.kill.owner.other.{T}.*", "C13.2-30"),
        ("inst.ci.*.kill.owner.*.{T}.*", "C13.2-30"), ("one.ci.kill.child.*.{T}.*", "C13.2-30"),
        ("one.ci.kill.any.local.{T}.*", "C13.2-31"), ("one.ci.kill.handle.local.bob.x.{T}.*", "C13.2-32"),
        ("one.ci.kill.exact.local.bob.x.{T}.*", "C13.2-33"), ("one.ci.kill.*.local.{T}.*", "C13.2-36"),
        ("one.*.kill.{T}.*", "C13.9-009"), ("inst.*.*.kill.{T}.*", "C13.9-009"),
    ],
)  # fmt: skip
def test_an_open_target_is_found(tail: str, rule: str) -> None:
    good = permissions(Profile.AGENT, holder())
    for rail in ("ep", "ep.v1"):
        row = f"{P}.{rail}.{tail.format(T=T)}"
        changed = Permissions(Access((*good.publish.allow, row), good.publish.deny), good.subscribe)
        assert [one for one in audit(Profile.AGENT, holder(), changed) if rule in one], row


@pytest.mark.req("C13.9-M19", "CB-06", "C13.7-07")
def test_a_reader_of_events_hears_one_declared_event_or_its_own_goals() -> None:
    plain = set(permissions(Profile.AGENT, holder()).subscribe.allow)
    assert not [row for row in plain if ".epe." in row], "none by default"
    name = "dev.sidecar.sample"
    for one, row in (
        (EventRead(name, name, "counted"), f"{P}.epe.{E}.*.*.ev.{E}.counted"),
        (EventRead(name, name, "*"), f"{P}.epe.{E}.*.*.ev.{E}.*"),
        (EventRead(name), f"{P}.epe.{E}.*.*.goal.{T}.>"),
    ):
        granted = permissions(Profile.AGENT, holder(hears=(one,)))
        assert set(granted.subscribe.allow) - plain == {row}
        assert (f"{row}.>" in granted.subscribe.deny) is row.endswith(".*")
    for bad in (("*",), (E,), (name, "", "x"), (name, name, ""), (name, "*", "x"), (name, name, "a.b")):
        with pytest.raises(InvalidName):
            EventRead(*bad)


@pytest.mark.req("C13.9-040", "C13.9-072", "C13.9-039")
@pytest.mark.parametrize("profile", sorted(set(Profile) - {Profile.PROVISIONER}))
@pytest.mark.parametrize(
    "row",
    [
        f"{JS}.CONSUMER.CREATE.EPR_main", f"{JS}.CONSUMER.CREATE.EPR_main.>", f"{JS}.CONSUMER.CREATE.EPR_main.x",
        f"{JS}.CONSUMER.CREATE.EPR_main.x.>", f"{JS}.CONSUMER.CREATE.EPR_main.*.{P}.epr.>",
        f"{JS}.CONSUMER.CREATE.EPR_main.x.*.main.epr.>", f"{JS}.CONSUMER.DURABLE.CREATE.EPR_main.x",
    ],
)  # fmt: skip
def test_a_consumer_of_the_control_surface_is_named_and_filtered(profile: Profile, row: str) -> None:
    good = permissions(profile, holder())
    changed = Permissions(Access((*good.publish.allow, row), good.publish.deny), good.subscribe)
    assert [one for one in audit(profile, holder(), changed) if "C13.9-040" in one]


@pytest.mark.req("C13.9-M22")
@pytest.mark.req("C13.12-24", "C13.9-041", "C13.9-042", "C13.12-19")
def test_nobody_removes_what_is_kept_and_only_the_auth_path_touches_its_store() -> None:
    kept = [f"{one}_main" for one in ("EPJ", "EPF", "EPE", "EPT_REQ", "EPT", "EPR", "EPW", "EPC", "WFJ")]
    kept += [RECORDS, AUTH, ISSUED, ACCEPTED, "KV_cotal_admission_main"]
    for profile, form in itertools.product(Profile, Form):
        rows = permissions(profile, holder(form=form)).publish.allow
        for stream, verb in itertools.product(kept, ("DELETE", "PURGE", "MSG.DELETE", "UPDATE")):
            changes = profile is Profile.PROVISIONER and (verb, stream) == ("UPDATE", RECORDS)
            assert any(overlaps(row, f"{JS}.STREAM.{verb}.{stream}") for row in rows) is changes
        trusted = (Profile.REGISTRAR, Profile.REGISTRY, Profile.ISSUER, Profile.PROVISIONER)
        assert any("cotal_auth" in row for row in rows) is (profile in trusted)
        writes = any(row.startswith("$KV.cotal_auth") for row in rows)
        assert writes is (profile is Profile.REGISTRAR)
        publishes = any(overlaps(row, f"{P}.epc.x") for row in rows)
        assert publishes is (profile is Profile.PUBLISHER)
    good = permissions(Profile.REGISTRAR, holder())
    for stream in kept:
        row = f"{JS}.STREAM.MSG.DELETE.{stream}"
        changed = Permissions(Access((*good.publish.allow, row), good.publish.deny), good.subscribe)
        assert [one for one in audit(Profile.REGISTRAR, holder(), changed) if "C13.12-24" in one]


@pytest.mark.req("C13.4-42", "C13.9-073", "C13.9-076")
def test_the_holders_of_raw_reads_of_the_control_surface_are_a_closed_list() -> None:
    found: dict[str, set[str]] = {}
    for profile in Profile:
        for row in permissions(profile, holder()).publish.allow:
            if row.startswith((f"{JS}.STREAM.MSG.GET.", f"{JS}.DIRECT.GET.")):
                for stream in (RECORDS, AUTH, ISSUED, ACCEPTED, "EPC_main", "EPE_main", "EPF_main", "EPR_main"):
                    if stream in row.split("."):
                        found.setdefault(stream, set()).add(profile)
    assert found == {
        RECORDS: {Profile.REGISTRY, Profile.RECORD_WRITER, Profile.REGISTRAR, Profile.LIFECYCLES},
        AUTH: {Profile.REGISTRY, Profile.REGISTRAR, Profile.ISSUER},
        ISSUED: {Profile.REGISTRY, Profile.ISSUER},
        ACCEPTED: {Profile.ISSUER},
        "EPC_main": {Profile.REGISTRY, Profile.PUBLISHER, Profile.REGISTRAR},
        "EPE_main": {Profile.REGISTRY},
    }


@pytest.mark.req("C13-03", "C13-04", "C13.11-02", "C13.11-03")
def test_no_credential_reaches_the_rail_that_was_removed_and_no_reader_the_endpoint_rails() -> None:
    for profile, form in itertools.product(Profile, Form):
        granted = permissions(profile, holder(form=form))
        rows = [row.partition(" ")[0] for row in (*granted.publish.allow, *granted.subscribe.allow)]
        for family in ("ctl", "control"):
            assert not [row for row in rows if overlaps(row, f"{P}.{family}.>")]
    for profile in (Profile.ADMIN, Profile.OBSERVER):
        granted = permissions(profile, holder())
        for row in (*granted.publish.allow, *granted.subscribe.allow):
            assert not row.startswith(f"{P}.ep"), row
            assert row != f"{P}.>"


@pytest.mark.req("C13.9-019", "C13.9-020")
def test_a_serving_credential_says_what_it_serves() -> None:
    assert SAMPLE.tags[-3:] == (f"endpoint:{E}", f"instance:{INSTANCE}", "epoch:7")
    assert not [tag for tag in holder(service=None).tags if tag.startswith(("endpoint:", "instance:", "epoch:"))]
    for bad in (("i" * 25, 1, ()), (INSTANCE, -1, ()), (INSTANCE, 1, ("*",)), (INSTANCE, 1, (), "a_b")):
        with pytest.raises(InvalidName):
            Service(*bad)
    assert set(SERVING) == {Profile.DELIVERY, Profile.ENDPOINT, Profile.REGISTRY}
