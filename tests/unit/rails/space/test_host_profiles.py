"""The profiles that hosts and the commands of an operator run as, row by row (CB-102..CB-109, CB-117, CB-118)."""

from __future__ import annotations

import pytest

from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.space.audit import audit
from sidecar.rails.space.grants import GrantRefused, permissions
from sidecar.rails.space.holder import Capability, Ending, Form, Profile
from sidecar.rails.space.matrix_calls import SELF_COMMANDS
from sidecar.rails.space.may import parse_may
from sidecar.rails.space.system import evictor_permissions, observer_permissions
from tests.unit.rails.space.holders import CONNECTION, UID, holder

P = "cotal.main"
JS = "$JS.API"
T = f"local.alice.{UID}"
L = f"local-alice-{UID}"
BOB = "b2" * 13
ACCOUNT = "A" + "B" * 55


def watched(bucket: str) -> list[str]:
    """`kvw` of the table: look, get at the leader, watch."""
    stream = f"KV_cotal_{bucket}_main"
    requests = ("STREAM.INFO.%s", "STREAM.MSG.GET.%s", "CONSUMER.CREATE.%s.>", "CONSUMER.INFO.%s.>")
    return [f"{JS}.{one % stream}" for one in requests]


CHANNELS = "KV_cotal_channels_main"
PUBLISHES = {
    Profile.DEPROVISIONER: [
        f"{JS}.INFO", f"{JS}.CONSUMER.DELETE.DM_main.dm_local-bob-{BOB}",
        f"{JS}.CONSUMER.DELETE.DLV_main.dlv_local-bob-{BOB}", f"{JS}.STREAM.INFO.KV_cotal_acl_main",
        f"$KV.cotal_acl_main.local.bob.{BOB}", f"$KV.cotal_members_main.general/local.bob.{BOB}",
        f"$KV.cotal_members_main.team.=/local.bob.{BOB}",
    ],
    Profile.MEMBERSHIP_RW: [
        f"{JS}.INFO", *watched("members"), *watched("membership"), f"{JS}.CONSUMER.DELETE.KV_cotal_members_main.>",
        f"{JS}.CONSUMER.DELETE.KV_cotal_membership_main.>", "$KV.cotal_membership_main.>", "$JS.FC.>",
    ],
    Profile.OPERATOR: [
        f"{P}.chat.local.alice.>", f"{P}.inst.*.*.local.alice", f"{P}.svc.*.local.alice",
        "$KV.cotal_presence_main.local.alice", f"{JS}.INFO", *watched("channels"), f"{JS}.DIRECT.GET.{CHANNELS}.>",
        *(one for one in watched("presence") if "MSG.GET" not in one), "$JS.FC.>",
    ],
    Profile.CHANNEL_WRITER: [
        f"{JS}.INFO", "$KV.cotal_channels_main.>", f"{JS}.STREAM.INFO.{CHANNELS}", f"{JS}.STREAM.CREATE.{CHANNELS}",
        f"{JS}.STREAM.MSG.GET.{CHANNELS}", f"{JS}.DIRECT.GET.{CHANNELS}.>",
    ],
    Profile.PURGER: [f"{JS}.INFO", f"{JS}.STREAM.PURGE.CHAT_main", f"{JS}.STREAM.PURGE.DM_main"],
    Profile.LIMITER: [
        f"{JS}.{one % stream}"
        for stream in ("CHAT_main", "DM_main", "INBOX_main", "DLV_main")
        for one in (
            "STREAM.INFO.%s", "STREAM.UPDATE.%s", "CONSUMER.CREATE.%s.limits", "CONSUMER.DELETE.%s.limits",
        )
    ],
    Profile.PROBE: [],
    Profile.DM_READER: [
        f"{JS}.CONSUMER.INFO.DM_main.dm_{L}", f"{JS}.CONSUMER.MSG.NEXT.DM_main.dm_{L}", f"$JS.ACK.DM_main.dm_{L}.>",
    ],
}  # fmt: skip
ROWS = {
    Profile.DEPROVISIONER: ("CB-102", "CB-74", "CD-03"),
    Profile.MEMBERSHIP_RW: ("CB-104",),
    Profile.OPERATOR: ("CB-105",),
    Profile.CHANNEL_WRITER: ("CB-107",),
    Profile.PURGER: ("CB-109",),
    Profile.LIMITER: ("C8-15",),
    Profile.PROBE: ("CB-106",),
    Profile.DM_READER: ("C8-36", "C8-39"),
}


@pytest.mark.parametrize("profile", [pytest.param(one, marks=pytest.mark.req(*rows)) for one, rows in ROWS.items()])
def test_a_profile_is_exactly_its_line_of_the_table(profile: Profile) -> None:
    for form in (Form.COMPATIBLE,) if profile is Profile.DM_READER else Form:
        someone = holder(form=form)
        granted = permissions(profile, someone)
        assert set(granted.publish.allow) == set(PUBLISHES[profile])
        assert set(granted.subscribe.allow) == {f"_INBOX_{CONNECTION}.>"}
        assert audit(profile, someone, granted) == []


@pytest.mark.req("CB-106", "C9-13")
def test_a_probe_is_denied_every_publish() -> None:
    granted = permissions(Profile.PROBE, holder()).publish
    assert (granted.allow, granted.deny) == ((), (">",))


@pytest.mark.req("C9-47", "C8-36")
def test_a_reader_of_direct_messages_asks_the_delivery_plane_where_no_agent_reads_raw() -> None:
    granted = permissions(Profile.DM_READER, holder(form=Form.MEDIATED))
    commands = ("fetch", "settle")
    assert set(granted.publish.allow) == {f"{P}.ep.one.delivery.{command}.{T}.*" for command in commands}
    assert set(granted.subscribe.allow) == {f"_INBOX_{CONNECTION}.>", f"{P}.ep.reply.*.*.*.{T}.*"}


@pytest.mark.req("CB-74")
def test_a_deprovisioner_names_channels_and_families_and_no_other_pattern() -> None:
    life = Lifecycle(Principal("local", "bob"), BOB)
    for pattern in ("*", ">", "team.*", "*.a", "team.*.>", "a..b", ""):
        with pytest.raises(InvalidName):
            Ending(life, ("general", pattern))
    nobody = permissions(Profile.DEPROVISIONER, holder(ends=None))
    assert set(nobody.publish.allow) == {f"{JS}.INFO", f"{JS}.STREAM.INFO.KV_cotal_acl_main"}


@pytest.mark.req("CB-117")
def test_the_observer_of_connections_sees_one_account_and_ends_nothing() -> None:
    granted = observer_permissions(ACCOUNT)
    assert granted.publish.allow == (f"$SYS.REQ.ACCOUNT.{ACCOUNT}.CONNZ",)
    events = (f"$SYS.ACCOUNT.{ACCOUNT}.CONNECT", f"$SYS.ACCOUNT.{ACCOUNT}.DISCONNECT")
    assert granted.subscribe.allow == ("_INBOX.cotal-membership.>", *events)
    assert granted.publish.bounded
    assert granted.subscribe.bounded
    for account in ("*", ">", "A" * 55, "U" + "B" * 55):
        with pytest.raises(InvalidName):
            observer_permissions(account)


@pytest.mark.req("CB-118")
def test_the_evictor_of_connections_kicks_and_sees_nothing() -> None:
    granted = evictor_permissions()
    assert granted.publish.allow == ("$SYS.REQ.SERVER.*.KICK",)
    assert granted.subscribe.allow == ("_INBOX.>",)


@pytest.mark.req("CB-18", "C13.9-007")
def test_wider_targets_come_from_an_explicit_capability_alone() -> None:
    owner = "u_" + "b" * 26

    def rows(*capabilities: Capability) -> set[str]:
        return set(permissions(Profile.AGENT, holder(capabilities=capabilities)).publish.allow)

    plain = rows()
    assert not [row for row in plain for mode in ("child", "ledger", "any", "owner") if f".{mode}." in row]
    for mode in ("child", "ledger"):
        more = rows(Capability("manager", "despawn", mode, (owner,))) - plain
        assert more == {
            f"{P}.ep.{rail}.despawn.{mode}.{owner}.{T}.*" for rail in ("one.manager", "all.manager", "inst.manager.*")
        }


@pytest.mark.req("CB-17", "C13.2-30", "C13.9-007")
def test_lifecycle_commands_of_the_manager_come_with_a_capability_and_for_the_own_owner() -> None:
    """None is in the baseline, and what ``@owner`` gives names the holder's owner literally on each route."""
    commands = ("spawn", "despawn", "restart")

    def rows(text: str) -> set[str]:
        able = parse_may(text, "local")
        return set(permissions(Profile.AGENT, holder(capabilities=able)).publish.allow)

    plain = set(permissions(Profile.AGENT, holder()).publish.allow)
    assert {row for row in plain if ".one.manager." in row} == {
        f"{P}.ep.one.manager.{command}.self.{T}.*" for command in SELF_COMMANDS
    }
    for command in commands:
        assert rows(f"manager:{command}@owner") - plain == {
            f"{P}.ep.{rail}.{command}.owner.local.{T}.*" for rail in ("one.manager", "all.manager", "inst.manager.*")
        }
    for other in ("*", "u_" + "b" * 26):
        with pytest.raises((InvalidName, GrantRefused)):
            rows(f"manager:spawn@owner={other}")
