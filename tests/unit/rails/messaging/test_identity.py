"""Who a credential makes its holder, read back from the tokens that the trust makes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sidecar.base.secret import Secret
from sidecar.rails.messaging.identity import Identity, NoIdentity, OtherPrincipal, Stance
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.space.claims import Access, Permissions
from sidecar.rails.space.creds import InvalidCreds, format_creds
from sidecar.rails.space.holder import Form, Holder, Profile
from sidecar.rails.space.trust import SpaceTrust, new_user

NOW = 1_800_000_000
UID = "a1" * 13
ALICE = Lifecycle(Principal("local", "alice"), UID)
TAGS = ("principal:local.alice", "space:main", "form:mediated", f"lifecycle:local.alice.{UID}", "role:reviewer")
KEY = new_user(os.urandom)


@pytest.fixture
def trust(tmp_path: Path) -> SpaceTrust:
    return SpaceTrust.open(tmp_path / "main", "main", os.urandom)


def issued(trust: SpaceTrust, profile: Profile = Profile.AGENT, **more: Any) -> Identity:
    holder = replace(Holder("main", ALICE, KEY.public), **more)
    return Identity.from_creds(format_creds(trust.issue(profile, holder, KEY, NOW, 600), KEY))


def tagged(trust: SpaceTrust, *tags: str) -> Identity:
    token = trust.mint("someone", Permissions(Access(("cotal.main.chat.local.alice.x",))), KEY, NOW, 600, tags)
    return Identity.from_creds(format_creds(token, KEY).reveal())


@pytest.mark.req("C2-13", "C2-10", "C2-11")
@pytest.mark.parametrize("form", Form)
def test_a_client_adopts_what_its_credential_names(trust: SpaceTrust, form: Form) -> None:
    found = issued(
        trust,
        form=form,
        allow_subscribe=("general", "team.>", "x.*"),
        allow_publish=("general", "a.b"),
        roles=("r1", "r-2"),
    )
    assert found == Identity(
        "main", form, ALICE, KEY.public, ("r1", "r-2"), ("general", "team.>", "x.*"), ("general", "a.b"), NOW + 600
    )
    assert found.principal.dot == "local.alice"


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize(
    ("profile", "stance"),
    [
        (Profile.AGENT, Stance.MEMBER),
        (Profile.OBSERVER, Stance.OBSERVER),
        (Profile.ADMIN, Stance.ADMIN),
        (Profile.OPERATOR, Stance.SENDER),
        (Profile.DM_READER, Stance.DM_READER),
    ],
)
def test_the_grants_say_what_a_holder_is(trust: SpaceTrust, form: Form, profile: Profile, stance: Stance) -> None:
    assert issued(trust, profile, form=form).stance is stance


def test_a_member_without_lists_reads_and_posts_nothing(trust: SpaceTrust) -> None:
    found = issued(trust)
    assert (found.roles, found.readable, found.postable) == ((), (), ())
    assert not found.may_read("general")
    assert not found.may_post("general")


def test_a_list_of_everything_and_an_observer_read_everything(trust: SpaceTrust) -> None:
    assert issued(trust, allow_subscribe=(">",)).readable == (">",)
    observer = issued(trust, Profile.OBSERVER)
    assert (observer.readable, observer.postable) == ((">",), ())


def test_a_list_holds_a_channel_within_one_entry(trust: SpaceTrust) -> None:
    found = issued(trust, allow_subscribe=("general", "team.>"), allow_publish=("team.*",))
    assert found.may_read("team.a.b")
    assert found.may_read("team.>")
    assert not found.may_read("team")
    assert not found.may_read("*")
    assert found.may_post("team.a")
    assert not found.may_post("team.a.b")


@pytest.mark.req("C2-13")
@pytest.mark.parametrize("missing", range(4))
def test_a_token_that_does_not_say_who_its_holder_is_is_refused(trust: SpaceTrust, missing: int) -> None:
    assert tagged(trust, *TAGS).roles == ("reviewer",)
    with pytest.raises(NoIdentity):
        tagged(trust, *TAGS[:missing], *TAGS[missing + 1 :])
    with pytest.raises(NoIdentity):
        tagged(trust, *TAGS, TAGS[missing].replace("alice", "bob").replace("main", "m2").replace("mediated", "c"))


@pytest.mark.req("C2-13")
@pytest.mark.parametrize(
    "tags",
    [
        (*TAGS[:2], "form:other", *TAGS[3:]),
        (*TAGS[:3], f"lifecycle:local.bob.{UID}"),
        ("principal:local.al-ice", *TAGS[1:]),
    ],
)
def test_tags_that_contradict_each_other_are_refused(trust: SpaceTrust, tags: tuple[str, ...]) -> None:
    with pytest.raises(NoIdentity):
        tagged(trust, *tags)


def test_what_is_no_creds_file_is_refused() -> None:
    with pytest.raises(InvalidCreds):
        Identity.from_creds(Secret(b"x"))


@pytest.mark.req("C2-14")
def test_another_name_is_refused(trust: SpaceTrust) -> None:
    found = tagged(trust, *TAGS)
    found.agree()
    found.agree(card_id="local.alice", principal=ALICE.principal, space="main")
    for other in ({"card_id": "local.bob"}, {"principal": Principal("local", "bob")}, {"space": "guarded"}):
        with pytest.raises(OtherPrincipal):
            found.agree(**other)


@pytest.mark.req("C2-12")
def test_a_renewed_credential_of_another_key_is_the_same_principal(trust: SpaceTrust) -> None:
    other = new_user(os.urandom)
    holder = Holder("main", ALICE, other.public)
    renewed = Identity.from_creds(format_creds(trust.issue(Profile.AGENT, holder, other, NOW + 5, 600), other))
    assert replace(renewed, connection=KEY.public, expires_at=NOW + 600) == issued(trust)
