"""Subjects: layout, the parser of deliveries, and what it takes for none (C3)."""

from __future__ import annotations

import pytest

from sidecar.rails.names import InvalidName, api, endpoint, planes, subjects
from sidecar.rails.names.limits import MAX_SUBJECT
from sidecar.rails.names.subjects import DELIVERY_KINDS, delivery_of
from sidecar.rails.names.table import TEMPLATES
from sidecar.rails.names.template import Kind
from tests.unit.rails.names.samples import UID, sample

DERIVED = "u_" + "a" * 26
PLATFORM = "p_" + "a" * 26


@pytest.mark.req("C3-01")
def test_every_application_subject_begins_with_the_space() -> None:
    families = (subjects.TEMPLATES, endpoint.TEMPLATES, planes.TEMPLATES)
    texts = [one.text for family in families for one in family if one.kind is Kind.SUBJECT]
    assert len(texts) > 70
    assert all(text == "cotal.<space>" or text.startswith("cotal.<space>.") for text in texts)


@pytest.mark.req("C3-07")
@pytest.mark.parametrize(
    "subject",
    [
        "cotal.main.chat.local.alice",
        "cotal.main.inst.local.bob.local",
        "cotal.main.inst.local.bob.local.alice.x",
        "cotal.main.svc.reviewer.local",
        "cotal.main.svc.reviewer.local.alice.x",
        "other.main.chat.local.alice.team",
        "Cotal.main.chat.local.alice.team",
        "cotal.main.post.local.alice.team",
        "cotal.main.CHAT.local.alice.team",
        "cotal.main.chat..alice.team",
        "cotal.main.chat.local.alice.team.",
        "cotal.main",
        "cotal",
        "",
    ],
)
def test_another_root_kind_or_arity_has_no_sender(subject: str) -> None:
    assert delivery_of(subject) is None


@pytest.mark.req("C3-21", "C3-22", "C6.1-04")
@pytest.mark.parametrize(
    "subject",
    [
        "cotal.main.take.reviewer.local.alice",
        "cotal.main.live.manager.local.alice",
        "cotal.main.trace.abc.local.alice",
        "cotal.main.ctl.manager.local.alice",
        "cotal.main.control.abc.local.alice",
        f"cotal.main.dlv.local.alice.{UID}",
        f"cotal.main.dinbox.local.alice.{UID}",
        f"cotal.main.ep.one.manager.status.local.alice.{UID}.{'n' * 22}",
        f"cotal.main.epe.manager.{UID}.1.x.y",
        f"cotal.main.epf.manager.dec.local.alice.{UID}.1",
        "$KV.cotal_presence_main.local.alice.x",
    ],
)
def test_no_other_family_is_a_delivery(subject: str) -> None:
    assert delivery_of(subject) is None


@pytest.mark.req("C3-08")
@pytest.mark.parametrize("owner", ["anything", "UAQ", "p_x", "-", "ö"])
def test_the_parser_does_not_judge_the_owner(owner: str) -> None:
    found = delivery_of(f"cotal.main.chat.{owner}.alice.team")
    assert found is not None
    assert found.owner == owner


@pytest.mark.req("C3-09")
@pytest.mark.parametrize(
    ("owner", "shown"), [("local", True), (DERIVED, True), (PLATFORM, False), ("Local", False), ("alice", False)]
)
@pytest.mark.parametrize("rest", ["chat.{}.a.team", "inst.local.b.{}.a", "svc.reviewer.{}.a"])
def test_only_principal_owners_surface(owner: str, shown: bool, rest: str) -> None:
    found = delivery_of("cotal.main." + rest.format(owner))
    assert found is not None
    assert found.surfaces is shown


@pytest.mark.req("C4-05", "C12-06")
def test_the_kind_is_that_of_the_subject() -> None:
    assert DELIVERY_KINDS == {"chat": "channel", "inst": "dm", "svc": "anycast"}


@pytest.mark.req("C3-13", "C3-17")
@pytest.mark.parametrize("rest", ["chat.local.a.team.>", "chat.local.a.*", "inst.*.b.local.a", "svc.*.local.a"])
def test_a_literal_wildcard_in_a_delivery_is_seen(rest: str) -> None:
    found = delivery_of(f"cotal.main.{rest}")
    assert found is not None
    assert not found.concrete
    assert found.surfaces


def test_a_plain_delivery_is_concrete() -> None:
    for rest in ("chat.local.a.team.b", "inst.local.b.local.a", "svc.r.local.a"):
        found = delivery_of(f"cotal.main.{rest}")
        assert found is not None
        assert found.concrete


@pytest.mark.parametrize(("size", "parsed"), [(MAX_SUBJECT - 1, True), (MAX_SUBJECT, True), (MAX_SUBJECT + 1, False)])
def test_a_long_subject_costs_a_length_check(size: int, parsed: bool) -> None:
    prefix = "cotal.main.chat.local.a."
    assert (delivery_of(prefix + "x" * (size - len(prefix))) is not None) is parsed


@pytest.mark.req("C3-17", "C3-13")
def test_no_builder_of_a_published_subject_takes_a_wildcard() -> None:
    who = {"space": "main", "owner": "local", "actor": "a"}
    for role in ("*", ">", ""):
        with pytest.raises(InvalidName):
            subjects.SVC.build(role=role, **who)
    for channel in ("team.>", "team.*", "*", ">", "*.x"):
        with pytest.raises(InvalidName):
            subjects.CHAT.build(channel=channel, **who)
    for recipient in ("*", ">"):
        with pytest.raises(InvalidName):
            subjects.INST.build(to_owner=recipient, to_actor="b", **who)


@pytest.mark.req("C2-08")
@pytest.mark.parametrize("value", ["a-b", "a.b", "*", ">", "", " a", "a ", "ä", "a\n", "x" * 65, 5, None, True, b"a"])
def test_owner_and_actor_are_refused_by_every_builder_that_has_them(value: object) -> None:
    tried = 0
    for template in TEMPLATES:
        for name in ("owner", "actor", "to_owner", "to_actor"):
            if name not in template.fields:
                continue
            good = sample(template)
            template.build(**good)
            with pytest.raises(InvalidName):
                template.build(**{**good, name: value})  # type: ignore[arg-type]
            tried += 1
    assert tried > 250


@pytest.mark.req("C3-18", "C3-14")
def test_the_rows_that_the_layout_names() -> None:
    who = {"space": "main", "owner": "local", "actor": "a"}
    assert subjects.CHAT.filter(channel="team.>", **who) == "cotal.main.chat.local.a.team.>"
    assert subjects.CHAT.filter(space="main", channel="team.backend") == "cotal.main.chat.*.*.team.backend"
    assert subjects.INST.filter(**who) == "cotal.main.inst.*.*.local.a"
    assert subjects.INST.subtree(space="main", to_owner="local", to_actor="a") == "cotal.main.inst.local.a.>"
    assert subjects.SVC.filter(**who) == subjects.SVC.filter(role="*", **who) == "cotal.main.svc.*.local.a"
    assert subjects.SVC.subtree(space="main", role="reviewer") == "cotal.main.svc.reviewer.>"
    assert subjects.TAKE.filter(space="main") == "cotal.main.take.*.*.*"
    assert subjects.TAKE.subtree(role="reviewer", **who) == "cotal.main.take.reviewer.local.a.>"
    assert subjects.TAKE_REPLY.subtree(space="main") == "cotal.main.take.*.*.*.reply.>"


@pytest.mark.req("C6.1-02", "C6.1-03", "C6.1-06")
def test_the_liveness_family() -> None:
    who = {"space": "main", "owner": "local", "actor": "a"}
    assert subjects.LIVE.build(plane="delivery", **who) == "cotal.main.live.delivery.local.a"
    assert subjects.LIVE_REPLY.build(plane="manager", nonce="n1", **who) == "cotal.main.live.manager.local.a.reply.n1"
    assert subjects.LIVE.filter(space="main", plane="manager") == "cotal.main.live.manager.*.*"
    assert subjects.LIVE.subtree(plane="manager", **who) == "cotal.main.live.manager.local.a.>"
    assert subjects.LIVE_REPLY.subtree(space="main", plane="manager") == "cotal.main.live.manager.*.*.reply.>"
    assert subjects.LIVE_QUEUE.build(plane="manager") == "live.manager"
    for plane in ("auth", "Manager", "", "managerx"):
        with pytest.raises(InvalidName):
            subjects.LIVE.build(plane=plane, **who)


@pytest.mark.req("C3-19")
def test_reserved_roots_are_known_and_no_builder_of_ours_yields_one() -> None:
    for subject in ("$JS.API.INFO", "$KV.b.k", "$SYS.x", "$O.b.C.x", "_INBOX.abc", "_INBOX_abcdefgh.1"):
        assert api.reserved(subject)
    assert not api.reserved("cotal.main.chat.local.a.team")
    for template in (*subjects.TEMPLATES, *endpoint.TEMPLATES, *planes.TEMPLATES):
        assert not api.reserved(template.build(**sample(template)))
    with pytest.raises(InvalidName):
        subjects.CHAT.build(space="$JS", owner="local", actor="a", channel="x")
