"""Planes that no credential of a client writes, and families that nobody speaks: over every profile and form (13.2)."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.rails.endpoint.codes import Refusal
from sidecar.rails.endpoint.envelope import Body, read_request
from sidecar.rails.names import endpoint, planes, subjects
from sidecar.rails.names.grants import covers, overlaps
from sidecar.rails.space.claims import Permissions
from sidecar.rails.space.grants import permissions
from sidecar.rails.space.holder import Capability, EventRead, Form, Holder, Profile, Service
from tests.unit.rails.names.samples import sample
from tests.unit.rails.space.holders import INSTANCE, UID, holder

ROOT = Path(__file__).resolve().parents[4]
P = "cotal.main"
E = "com_acme_ci"
NEW = {"ep", "epc", "epe", "epf", "epj", "epr", "eps", "ept", "epw"}
ABLE = (
    Capability("com.acme.ci", "build", journal=True),
    Capability("com.acme.ci", "end", "owner", ("local",), journal=True),
    Capability("com.acme.ci", "*"),
    Capability("com.acme.ci", "*", "self", journal=True),
)
SERVES = Service(INSTANCE, 7, ("build",), "com.acme.ci")


def everyone() -> Iterator[tuple[Profile, Holder, Permissions]]:
    """Every profile in every form, with as much as a holder can be given."""
    for profile, form in itertools.product(Profile, Form):
        able = ABLE if profile is Profile.AGENT else ()
        someone = holder(form=form, service=SERVES, capabilities=able, hears=(EventRead("com.acme.ci"),))
        yield profile, someone, permissions(profile, someone)


def reached(rows: tuple[str, ...], family: str) -> list[str]:
    return [row for row in rows if overlaps(row.partition(" ")[0], family)]


@pytest.mark.req("C13.2-71", "C13.2-72", "C13-03")
@pytest.mark.parametrize("family", ["ctl", "control", "trace"])
def test_no_credential_speaks_or_hears_a_family_that_is_gone_or_kept_free(family: str) -> None:
    for profile, _, granted in everyone():
        for rows in (granted.publish.allow, granted.subscribe.allow):
            for below in (f"{P}.{family}", f"{P}.{family}.>"):
                assert not reached(rows, below), profile


@pytest.mark.req("C13.2-72", "C13.2-71")
def test_no_code_names_the_trace_family_or_a_control_rail() -> None:
    names = {attribute for attribute, one in vars(subjects).items() if one is subjects.TRACE}
    families = {f"cotal.<space>.{one}" for one in ("ctl", "control", "trace")}
    for path in sorted((ROOT / "sidecar").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        used |= {one.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for one in node.names}
        assert not used & names, path
        texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and type(node.value) is str]
        found = [one for one in texts if any(one == way or one.startswith(f"{way}.") for way in families)]
        assert found == ([subjects.TRACE.text] if path.name == "subjects.py" else []), path


@pytest.mark.req("C13.2-63")
def test_no_profile_that_is_minted_writes_facts() -> None:
    for profile, _, granted in everyone():
        assert not reached(granted.publish.allow, f"{P}.epf.>"), profile


@pytest.mark.req("C13.2-62", "C13.4-16")
def test_submissions_are_sent_by_holders_of_their_capability_and_read_by_nobody() -> None:
    own = f"local.alice.{UID}"
    mine = {f"{P}.epj.{E}.build.{own}", f"{P}.epj.{E}.end.owner.local.{own}", f"{P}.epj.{E}.*.self.{own}"}
    for profile, someone, granted in everyone():
        assert set(reached(granted.publish.allow, f"{P}.epj.>")) == (mine if profile is Profile.AGENT else set())
        assert not reached(granted.subscribe.allow, f"{P}.epj.>"), profile
        for verb in ("CONSUMER.CREATE", "CONSUMER.DURABLE.CREATE", "CONSUMER.MSG.NEXT", "DIRECT.GET", "STREAM.MSG.GET"):
            for family in (f"$JS.API.{verb}.EPJ_main", f"$JS.API.{verb}.EPJ_main.>"):
                assert not reached(granted.publish.allow, family), (profile, someone.form)


@pytest.mark.req("C13.2-64")
def test_an_instance_asks_for_its_own_timers_and_nobody_arms_or_fires_one() -> None:
    for profile, _, granted in everyone():
        found = reached(granted.publish.allow, f"{P}.ept.>")
        serves = profile is Profile.ENDPOINT
        assert found == ([f"{P}.ept.{E}.{INSTANCE}.7.*.schedule"] if serves else []), profile
        for leaf in ("armed", "fire"):
            assert not reached(granted.publish.allow, f"{P}.ept.*.*.*.*.{leaf}"), profile


@pytest.mark.req("C13.2-20", "C13.4-20", "C13.2-60")
def test_a_capability_of_a_targeted_command_submits_with_the_block_of_its_request() -> None:
    """What is asked and what is submitted name the same target, token for token."""
    someone = holder(capabilities=(Capability("com.acme.ci", "end", "owner", ("local",), journal=True),))
    rows = permissions(Profile.AGENT, someone).publish.allow
    (submitted,) = [row for row in rows if row.startswith(f"{P}.epj.")]
    asked = submitted.replace(".epj.", ".ep.one.") + ".*"
    assert asked in rows
    assert not covers(submitted, f"{P}.epj.{E}.end.owner.other.local.alice.{UID}")


@pytest.mark.req("C13.11-01")
def test_the_control_surface_and_what_was_before_share_no_subject_and_no_envelope() -> None:
    """The grammar alone tells them apart: neither reader takes the other's subjects or bodies."""
    built = {one.name: one.build(**sample(one)) for one in (*endpoint.TEMPLATES, *planes.TEMPLATES) if "<" in one.text}
    old = [one.build(**sample(one)) for one in subjects.TEMPLATES if one.text.startswith("cotal.<space>.")]
    forms = {name: one for name, one in built.items() if one.startswith("cotal.") and one.count(".") > 1}
    assert {one.split(".")[2] for one in forms.values()} - {"wfj"} == NEW
    assert not {one.split(".")[2] for one in old} & NEW
    for subject in forms.values():
        assert subjects.delivery_of(subject) is None, subject
    for subject in old:
        for read in (endpoint.parse_request, endpoint.parse_submission):
            with pytest.raises(ValueError, match=r"subject|submission"):
                read(subject)
    for before in (
        b'{"op":"durableJoin","args":{"channel":"general"}}',
        b'{"id":"r1","op":"stop","args":{}}',
        b'{"v":0,"id":"r1","op":{"endpoint":"delivery","command":"x"}}',
    ):
        with pytest.raises(Refusal) as caught:
            read_request(Body(before))
        assert caught.value.code == "unsupported-version"
