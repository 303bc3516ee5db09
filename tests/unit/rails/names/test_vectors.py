"""The vectors of the conformance section, byte for byte (C12-15 to C12-22)."""

from __future__ import annotations

import pytest

from sidecar.rails.names import Principal, subjects
from sidecar.rails.names.principals import OwnerKind, owner_kind
from sidecar.rails.names.subjects import Delivery, delivery_of

OWNER_A = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa"
OWNER_B = "u_bbbbbbbbbbbbbbbbbbbbbbbbbb"
NKEY = "UAQGWOEVJKMIO4WXSYOTLARXYOZTCXFK67JASEH6AFFFYK6FOPSKQCAD"


@pytest.mark.req("C12-15")
def test_the_principals_of_the_vectors_are_valid() -> None:
    assert owner_kind(OWNER_A) is owner_kind(OWNER_B) is OwnerKind.DERIVED
    assert Principal(OWNER_A, "alice").dot == "u_aaaaaaaaaaaaaaaaaaaaaaaaaa.alice"
    assert Principal(OWNER_B, "bob").dash == "u_bbbbbbbbbbbbbbbbbbbbbbbbbb-bob"


@pytest.mark.req("C12-17", "C3-04", "C3-05", "C3-06")
def test_a_multicast_subject() -> None:
    subject = "cotal.main.chat.u_aaaaaaaaaaaaaaaaaaaaaaaaaa.alice.team.backend"
    found = delivery_of(subject)
    assert found == Delivery("chat", "main", OWNER_A, "alice", "team.backend")
    assert (found.sender, found.shown) == ("u_aaaaaaaaaaaaaaaaaaaaaaaaaa.alice", "channel")
    assert subjects.CHAT.build(space="main", owner=OWNER_A, actor="alice", channel="team.backend") == subject


@pytest.mark.req("C12-18", "C3-04", "C3-05", "C3-06")
def test_a_unicast_subject() -> None:
    subject = "cotal.main.inst.u_bbbbbbbbbbbbbbbbbbbbbbbbbb.bob.u_aaaaaaaaaaaaaaaaaaaaaaaaaa.alice"
    found = delivery_of(subject)
    assert found == Delivery("inst", "main", OWNER_A, "alice", "u_bbbbbbbbbbbbbbbbbbbbbbbbbb.bob")
    assert (found.sender, found.shown) == ("u_aaaaaaaaaaaaaaaaaaaaaaaaaa.alice", "dm")
    names = {"to_owner": OWNER_B, "to_actor": "bob", "owner": OWNER_A, "actor": "alice"}
    assert subjects.INST.build(space="main", **names) == subject


@pytest.mark.req("C12-19", "C3-04", "C3-05", "C3-06")
def test_an_anycast_subject() -> None:
    subject = "cotal.main.svc.reviewer.u_aaaaaaaaaaaaaaaaaaaaaaaaaa.alice"
    found = delivery_of(subject)
    assert found == Delivery("svc", "main", OWNER_A, "alice", "reviewer")
    assert (found.sender, found.shown) == ("u_aaaaaaaaaaaaaaaaaaaaaaaaaa.alice", "anycast")
    assert subjects.SVC.build(space="main", role="reviewer", owner=OWNER_A, actor="alice") == subject


@pytest.mark.req("C12-20", "C12-16", "C3-22")
def test_a_retired_control_subject_has_no_sender() -> None:
    assert delivery_of("cotal.main.ctl.manager.u_aaaaaaaaaaaaaaaaaaaaaaaaaa.alice") is None


@pytest.mark.req("C12-21", "C12-16", "C3-07")
def test_a_chat_subject_without_a_channel_has_no_sender() -> None:
    assert delivery_of("cotal.main.chat.u_aaaaaaaaaaaaaaaaaaaaaaaaaa.alice") is None


@pytest.mark.req("C12-22", "C3-08", "C3-09", "C2-05")
def test_an_nkey_in_the_owners_place_splits_and_is_dropped_at_surfacing() -> None:
    found = delivery_of(f"cotal.main.chat.{NKEY}.team.backend")
    assert found == Delivery("chat", "main", NKEY, "team", "backend")
    assert not found.surfaces
