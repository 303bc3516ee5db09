"""Grants of each profile, row by row as the tables write them out, and what no credential ever holds."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.grants import admitted, covers, overlaps
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.space.audit import audit
from sidecar.rails.space.grants import (
    MAX_GRANT_BYTES,
    GrantRefused,
    check_capabilities,
    check_life,
    grant_bytes,
    permissions,
    without_history,
)
from sidecar.rails.space.holder import LONGEST_SECONDS, Capability, Form, Profile
from tests.unit.rails.space.holders import ALICE, CONNECTION, INSTANCE, UID, holder

P = "cotal.main"
T = f"local.alice.{UID}"
L = f"local-alice-{UID}"
JS = "$JS.API"
MEDIATED = holder(form=Form.MEDIATED)


def published(profile: Profile, **changes: object) -> set[str]:
    return set(permissions(profile, holder(**changes)).publish.allow)


def subscribed(profile: Profile, **changes: object) -> set[str]:
    return set(permissions(profile, holder(**changes)).subscribe.allow)


# What Appendix B prints, written out once more; `describe`, delivery and manager rows are OPEN CB-b.
AGENT_ROWS = {
    "CB-08": [f"{P}.chat.local.alice.general", f"{P}.chat.local.alice.team.>"],
    "CB-09": [f"{P}.inst.*.*.local.alice"],
    "CB-10": [f"{P}.svc.*.local.alice"],
    "CB-11": [f"{P}.live.manager.local.alice", f"{P}.live.delivery.local.alice"],
    "CB-14": [f"{P}.ep.{form}.describe.{T}.*" for form in ("one.*", "all.*", "inst.*.*")],
    "CB-15": [
        f"{P}.ep.one.delivery.{command}.{T}.*"
        for command in (
            "durable-join", "durable-leave", "list-memberships", "anycast-status", "anycast-cancel", "anycast-takes",
        )
    ],
    "C13.4-42": [
        f"{P}.ep.one.registry.{command}.{T}.*" for command in ("artifacts", "events", "instances", "record", "target")
    ],
    "CB-16": [
        f"{P}.ep.one.manager.{command}.self.{T}.*"
        for command in ("run-answer", "turn-participate", "turn-pending", "turn-unconfirmed", "turn-yield")
    ],
    "CB-20": [f"{JS}.INFO"],
    "CB-21": [
        f"{JS}.STREAM.INFO.{stream}"
        for stream in ("CHAT_main", "KV_cotal_presence_main", "KV_cotal_channels_main", "KV_cotal_delivery_main")
    ],
    "CB-22": [
        f"{JS}.CONSUMER.CREATE.CHAT_main.chathist_{L}.{P}.chat.*.*.{channel}" for channel in ("general", "team.>")
    ],
    "CB-23": [f"{JS}.CONSUMER.INFO.CHAT_main.chathist_{L}"],
    "CB-24": [f"{JS}.CONSUMER.MSG.NEXT.CHAT_main.chathist_{L}"],
    "CB-25": [f"{JS}.CONSUMER.DELETE.CHAT_main.chathist_{L}"],
    "CB-26": [f"{JS}.CONSUMER.INFO.DM_main.dm_{L}"],
    "CB-27": [f"{JS}.CONSUMER.MSG.NEXT.DM_main.dm_{L}"],
    "CB-28": [f"$JS.ACK.DM_main.dm_{L}.>"],
    "CB-29": [f"{JS}.CONSUMER.INFO.DLV_main.dlv_{L}"],
    "CB-30": [f"{JS}.CONSUMER.MSG.NEXT.DLV_main.dlv_{L}"],
    "CB-31": [f"$JS.ACK.DLV_main.dlv_{L}.>"],
    "CB-32": [f"{JS}.DIRECT.GET.KV_cotal_presence_main"],
    "CB-33": [f"{JS}.CONSUMER.CREATE.KV_cotal_presence_main.>"],
    "CB-34": [f"{JS}.CONSUMER.INFO.KV_cotal_presence_main.>"],
    "CB-35": ["$JS.FC.>"],
    "CB-36": ["$KV.cotal_presence_main.local.alice"],
    "CB-37": [f"{JS}.STREAM.MSG.GET.KV_cotal_channels_main"],
    "CB-38": [f"{JS}.DIRECT.GET.KV_cotal_channels_main"],
    "CB-39": [f"{JS}.CONSUMER.CREATE.KV_cotal_channels_main.>"],
    "CB-40": [f"{JS}.CONSUMER.INFO.KV_cotal_channels_main.>"],
    "CB-41": [f"{JS}.STREAM.MSG.GET.KV_cotal_delivery_main"],
    "CB-42": [
        f"{JS}.STREAM.INFO.TASK_main",
        f"{JS}.CONSUMER.INFO.TASK_main.svc_reviewer",
        f"{JS}.CONSUMER.MSG.NEXT.TASK_main.svc_reviewer",
        "$JS.ACK.TASK_main.svc_reviewer.>",
    ],
    "CB-43": [f"{P}.take.reviewer.local.alice"],
}  # fmt: skip
RAW = [*(f"CB-{n}" for n in range(20, 36)), *(f"CB-{n}" for n in range(37, 43))]
"""The rows of raw reads: all that a mediated agent does without."""
INBOX = f"_INBOX_{CONNECTION}.>"
AGENT_SUBSCRIBES = {
    INBOX,
    f"{P}.live.manager.local.alice.>",
    f"{P}.live.delivery.local.alice.>",
    f"{P}.take.reviewer.local.alice.>",
    f"{P}.ep.reply.*.*.*.{T}.*",
    f"{P}.chat.*.*.general",
    f"{P}.chat.*.*.team.>",
}


@pytest.mark.req(
    *(f"CB-{n:02}" for n in (*range(8, 12), *range(14, 17), *range(20, 44))), "C9-05", "C9-09", "C9-41", "C13.9-016"
)
def test_a_compatible_agent_publishes_exactly_the_rows_of_appendix_b() -> None:
    expected = {row for rows in AGENT_ROWS.values() for row in rows}
    assert published(Profile.AGENT) == expected
    granted = permissions(Profile.AGENT, ALICE)
    assert len(granted.publish.allow) == len(expected), "no row stands twice"


@pytest.mark.req("C9-47", "CB-19")
def test_a_mediated_agent_has_no_raw_read_and_asks_the_delivery_plane() -> None:
    reads = ("fetch", "lease-holder", "read-history", "read-registry", "read-roster", "settle", "task-epoch")
    expected = {row for number, rows in AGENT_ROWS.items() if number not in RAW for row in rows}
    expected |= {f"{P}.ep.one.delivery.{command}.{T}.*" for command in reads}
    assert published(Profile.AGENT, form=Form.MEDIATED) == expected
    assert not [row for row in expected if row.startswith("$JS")]
    assert ALICE.form is Form.COMPATIBLE
    assert type(ALICE).__dataclass_fields__["form"].default is Form.MEDIATED, "the default for new spaces"


@pytest.mark.req("CB-01", "CB-02", "CB-03", "CB-04", "CB-07", "C9-37", "C6.1-22", "C8.1-58", "C13.9-M03")
@pytest.mark.parametrize("form", Form)
def test_an_agent_subscribes_exactly_its_own_rails_and_its_channels(form: Form) -> None:
    granted = permissions(Profile.AGENT, holder(form=form)).subscribe
    assert set(granted.allow) == AGENT_SUBSCRIBES
    assert granted.deny == (f"{P}.ep.reply.*.*.*.{T}.*.>",)


@pytest.mark.req(*(f"CB-{n}" for n in range(44, 54)), "C9-40")
def test_an_agent_may_create_no_consumer_where_bytes_are_mixed() -> None:
    for form in Form:
        deny = set(permissions(Profile.AGENT, holder(form=form)).publish.deny)
        streams = ("DM_main", "TASK_main", "DLV_main")
        creates = {f"{JS}.CONSUMER.CREATE.{one}{tail}" for one in streams for tail in ("", ".>")}
        assert deny == creates | {f"{JS}.CONSUMER.DURABLE.CREATE.{one}.>" for one in streams}
        assert not [row for row in deny if "CHAT" in row]


@pytest.mark.req("CB-54", "C9-45", "CB-43")
def test_without_a_role_there_is_nothing_on_the_task_stream() -> None:
    rows = published(Profile.AGENT, roles=())
    assert not [row for row in rows if "TASK" in row or ".take." in row]
    assert not [row for row in subscribed(Profile.AGENT, roles=()) if ".take." in row]
    for stream in ("DM_main", "DLV_main", "EPC_main", "INBOX_main"):
        assert f"{JS}.STREAM.INFO.{stream}" not in rows
    both = published(Profile.AGENT, roles=("a", "b"))
    assert {f"{P}.take.a.local.alice", f"{P}.take.b.local.alice"} <= both


@pytest.mark.req("C9-08", "C9-10")
def test_lists_default_to_what_is_asked_for_and_to_nothing() -> None:
    assert ALICE.readable == ("general", "team.>")
    wider = holder(allow_subscribe=("general", "team.>", "x"))
    assert f"{P}.chat.*.*.x" in permissions(Profile.AGENT, wider).subscribe.allow
    silent = published(Profile.AGENT, allow_publish=())
    assert not [row for row in silent if ".chat." in row and not row.startswith("$")]
    deaf = subscribed(Profile.AGENT, subscribe=())
    assert not [row for row in deaf if ".chat." in row]


@pytest.mark.req("C9-07")
@pytest.mark.parametrize(
    ("asked", "allowed", "fits"),
    [
        ("perm.>", ("perm.*",), False), ("perm.*", ("perm.>",), True), ("perm.a", ("perm.*",), True), ("a", (), False),
        ("perm.a.b", ("perm.*",), False), ("perm.*", ("perm.a", "perm.b"), False), ("perm", ("perm.>",), False),
        (">", (">",), True), ("*", (">",), True), (">", ("*", "*.>"), False),
    ],
)  # fmt: skip
def test_what_is_asked_for_lies_within_one_entry(asked: str, allowed: tuple[str, ...], fits: bool) -> None:
    if fits:
        assert holder(subscribe=(asked,), allow_subscribe=allowed).readable == allowed
    else:
        with pytest.raises(InvalidName, match="C9-07"):
            holder(subscribe=(asked,), allow_subscribe=allowed)


@pytest.mark.req("C9-12", "C2-11")
def test_the_connection_is_in_the_inbox_row_and_nowhere_else() -> None:
    other = "U" + "B" * 55
    one, two = permissions(Profile.AGENT, ALICE), permissions(Profile.AGENT, holder(connection=other))
    assert one.publish == two.publish
    assert set(one.subscribe.allow) ^ set(two.subscribe.allow) == {INBOX, f"_INBOX_{other}.>"}


@pytest.mark.req("C2-07", "C2-08", "C3-10")
def test_tokens_are_refused_and_never_rewritten() -> None:
    for owner, actor in (("local", "a-b"), ("local", "a.b"), ("local", "*"), ("local", ""), ("lo-cal", "a")):
        with pytest.raises(InvalidName):
            holder(lifecycle=Lifecycle(Principal(owner, actor), UID))
    for bad in (
        {"space": "a.b"},
        {"connection": ">"},
        {"connection": "a.b" * 10},
        {"roles": ("*",)},
        {"roles": ("a b",)},
    ):
        with pytest.raises(InvalidName):
            holder(**bad)
    for channel in ("a..b", "a.>.b", "a*b", "", "Team A", ">.a"):
        with pytest.raises(InvalidName):
            holder(allow_publish=(channel,))
    for owner in ("nobody", "u_short", "p_" + "a" * 26, CONNECTION):
        with pytest.raises(InvalidName):
            holder(lifecycle=Lifecycle(Principal(owner, "a"), UID))


OBSERVER_ROWS = {
    f"{JS}.INFO",
    *(f"{JS}.STREAM.INFO.{one}" for one in ("CHAT_main", "KV_cotal_presence_main", "KV_cotal_channels_main")),
    *(f"{JS}.STREAM.INFO.{one}" for one in ("KV_cotal_membership_main", "KV_cotal_delivery_main")),
    f"{JS}.CONSUMER.CREATE.CHAT_main",
    *(f"{JS}.CONSUMER.{verb}.CHAT_main.>" for verb in ("CREATE", "INFO", "MSG.NEXT")),
    "$JS.ACK.CHAT_main.>",
    *(f"{JS}.CONSUMER.DELETE.CHAT_main.hist_{CONNECTION}_{n}" for n in range(8)),
    *(
        f"{JS}.CONSUMER.{verb}.KV_cotal_{one}_main.>"
        for verb in ("CREATE", "INFO")
        for one in ("presence", "channels", "membership")
    ),
    *(f"{JS}.STREAM.MSG.GET.KV_cotal_{one}_main" for one in ("channels", "membership", "delivery")),
    f"{JS}.DIRECT.GET.KV_cotal_membership_main",
    "$JS.FC.>",
}


@pytest.mark.req(*(f"CB-{n}" for n in range(57, 67)), "CB-68")
def test_an_observer_holds_exactly_its_rows() -> None:
    assert published(Profile.OBSERVER) == OBSERVER_ROWS
    assert subscribed(Profile.OBSERVER) == {f"{P}.chat.>", INBOX}
    assert not permissions(Profile.OBSERVER, ALICE).publish.deny


@pytest.mark.req("CB-71", "CB-72")
def test_an_admin_holds_an_observers_rows_and_the_direct_messages() -> None:
    more = {
        f"{JS}.STREAM.INFO.DM_main",
        f"{JS}.CONSUMER.CREATE.DM_main",
        *(f"{JS}.CONSUMER.{verb}.DM_main.>" for verb in ("CREATE", "INFO", "MSG.NEXT")),
        "$JS.ACK.DM_main.>",
        *(f"{JS}.CONSUMER.DELETE.DM_main.hist_{CONNECTION}_{n}" for n in range(8)),
    }
    assert published(Profile.ADMIN) == OBSERVER_ROWS | more
    taps = subscribed(Profile.ADMIN)
    assert taps == {f"{P}.chat.>", f"{P}.inst.>", f"{P}.svc.>", INBOX}
    for rail in ("ep", "epe", "epf", "epj", "ept", "epr", "epw", "eps", "epc"):
        assert not [row for row in taps if overlaps(row, f"{P}.{rail}.>")]


@pytest.mark.req("CB-89", "CB-103", "C6.1-23", "C6.1-24", "C8.1-57", "C13.9-019", "C13.9-020", "C13.9-M04", "C13.9-M05")
def test_the_delivery_daemon_serves_by_queue_and_answers_below_replies() -> None:
    granted = permissions(Profile.DELIVERY, ALICE)
    rails, commands = (f"{P}.ep", f"{P}.ep.v1"), ("durable-join", "durable-leave", "describe")
    assert set(granted.subscribe.allow) == {
        INBOX,
        f"{P}.take.*.*.* take",
        f"{P}.live.delivery.*.* live.delivery",
        *(f"{rail}.one.delivery.{one}.> delivery" for rail in rails for one in commands),
        *(f"{rail}.all.delivery.{one}.>" for rail in rails for one in commands),
        *(f"{rail}.inst.delivery.{INSTANCE}.{one}.>" for rail in rails for one in commands),
    }
    assert set(granted.subscribe.deny) == {f"{P}.take.*.*.*.>", f"{P}.live.delivery.*.*.>"}
    rows = set(granted.publish.allow)
    assert {
        f"{P}.take.*.*.*.reply.*",
        f"{P}.live.delivery.*.*.reply.*",
        f"{P}.inst.*.*.local.alice",
        f"{P}.ep.reply.delivery.{INSTANCE}.7.*.*.*.*",
        f"{P}.ep.v1.reply.delivery.{INSTANCE}.7.*.*.*.*.*",
        f"{P}.dinbox.*.*.*",
        f"{P}.dlv.*.*.*",
        "$KV.cotal_delivery_main.lease.0",
        "$KV.cotal_members_main.>",
        "$KV.cotal_anycast_main.>",
        *(f"{JS}.STREAM.{one}.TASK_main" for one in ("INFO", "MSG.GET", "MSG.DELETE")),
        *(f"{JS}.CONSUMER.{one}.INBOX_main.reader" for one in ("DURABLE.CREATE", "INFO", "MSG.NEXT", "DELETE")),
        f"{JS}.CONSUMER.CREATE.INBOX_main.reader.>",
        "$JS.ACK.INBOX_main.reader.>",
    } <= rows
    for request in (f"{P}.live.delivery.a.b", f"{P}.take.r.a.b", f"{P}.chat.local.alice.general", f"{P}.dinbox.a.b"):
        assert not [row for row in rows if covers(row, request)]
    reads = {f"{JS}.CONSUMER.MSG.NEXT.{one}.>" for one in ("DM_main", "TASK_main", "DLV_main")}
    assert not reads & rows
    assert reads <= published(Profile.DELIVERY, form=Form.MEDIATED)
    idle = permissions(Profile.DELIVERY, holder(service=None))
    assert not [row for row in (*idle.subscribe.allow, *idle.publish.allow) if ".ep." in row]


@pytest.mark.req("CB-101", "C8-01", "C13.9-M01")
def test_the_provisioner_makes_streams_and_reads_no_message() -> None:
    rows = published(Profile.PROVISIONER)
    for name in ("CHAT_main", "DM_main", "TASK_main", "INBOX_main", "DLV_main", "EPJ_main", "KV_cotal_acl_main"):
        assert {f"{JS}.STREAM.CREATE.{name}", f"{JS}.STREAM.INFO.{name}"} <= rows
    updates = {row for row in rows if ".STREAM.UPDATE." in row}
    kept = ("presence", "delivery", "manager", "records")
    assert updates == {f"{JS}.STREAM.UPDATE.KV_cotal_{one}_main" for one in kept}
    assert "$SYS.REQ.USER.INFO" in rows
    for word in ("MSG.NEXT", "ACK", "STREAM.DELETE", "PURGE", "MSG.DELETE"):
        assert not [row for row in rows if word in row]
    assert not [row for row in rows if "MSG.GET" in row and ("DM_" in row or "DLV_" in row)]
    assert {f"{JS}.CONSUMER.CREATE.{one}.>" for one in ("DM_main", "DLV_main", "TASK_main")} <= rows
    assert subscribed(Profile.PROVISIONER) == {INBOX}
    for profile in set(Profile) - {Profile.PROVISIONER, Profile.CHANNEL_WRITER, Profile.LIMITER}:
        assert not [row for row in published(profile) if "STREAM.CREATE" in row or "STREAM.UPDATE" in row]


@pytest.mark.req("C13.9-007", "C13.9-008", "C13.9-009", "C13.9-012", "C13.9-M02", "C13.9-M12")
def test_a_capability_is_one_command_with_its_literal_target() -> None:
    owner, uid = "u_" + "b" * 26, "z9" * 13
    capabilities = (
        Capability("com.acme.ci", "build", journal=True),
        Capability("com.acme.ci", "stop", "self"),
        Capability("com.acme.ci", "kill", "owner", ("local",), journal=True),
        Capability("com.acme.ci", "inspect", "child", (owner,)),
    )
    more = published(Profile.AGENT, capabilities=capabilities) - published(Profile.AGENT)
    tails = (f"build.{T}", f"stop.self.{T}", f"kill.owner.local.{T}", f"inspect.child.{owner}.{T}")
    rails = ("one.com_acme_ci", "all.com_acme_ci", "inst.com_acme_ci.*")
    requests = {f"{P}.ep.{rail}.{tail}.*" for rail, tail in itertools.product(rails, tails)}
    assert more == requests | {f"{P}.epj.com_acme_ci.build.{T}", f"{P}.epj.com_acme_ci.kill.owner.local.{T}"}
    everything = published(Profile.AGENT, capabilities=(Capability("com.acme.ci", "*"),)) - published(Profile.AGENT)
    assert everything == {f"{P}.ep.{rail}.*.{T}.*" for rail in rails}
    for mode, target in (("self", ("x",)), ("owner", ()), ("exact", (owner,)), ("other", ()), ("", ("x",))):
        with pytest.raises(InvalidName):
            Capability("ci", "build", mode, target)
    for bad in (("*", "build"), ("com_acme_ci", "build"), ("ci", ">"), ("ci", "kill", "owner", ("*",))):
        with pytest.raises(InvalidName):
            Capability(*bad)
    for open_target in ((owner, "*", uid), ("*", "bob", uid), (owner, "bob", "*")):
        with pytest.raises(InvalidName):
            Capability("ci", "inspect", "exact", open_target)


@pytest.mark.req("C13.9-M02")
@pytest.mark.req("C13.2-30", "C13.2-31", "C13.2-32", "C13.2-33")
def test_a_standing_credential_names_no_target_that_is_not_its_own_to_name() -> None:
    other, uid = "u_" + "b" * 26, "z9" * 13
    for mode, target in (
        ("any", ("local",)), ("owner", (other,)), ("handle", ("local", "bob", uid)), ("exact", ("local", "bob", uid)),
    ):  # fmt: skip
        one = (Capability("ci", "kill", mode, target),)
        with pytest.raises(GrantRefused, match=r"C13\.2-3"):
            permissions(Profile.AGENT, holder(capabilities=one))
        with pytest.raises(GrantRefused, match=r"C13\.2-3"):
            check_capabilities(Profile.AGENT, holder(capabilities=one))
        if mode != "any":
            with pytest.raises(GrantRefused, match=r"C13\.2-3"):
                permissions(Profile.OPERATOR, holder(capabilities=one))
    rows = published(Profile.OPERATOR, capabilities=(Capability("ci", "kill", "any", (other,)),))
    assert f"{P}.ep.one.ci.kill.any.{other}.{T}.*" in rows
    assert f"{P}.ep.reply.*.*.*.{T}.*" in subscribed(Profile.OPERATOR, capabilities=(Capability("ci", "kill"),))
    assert f"{P}.ep.reply.*.*.*.{T}.*" not in subscribed(Profile.OPERATOR)


@pytest.mark.req("C13.9-013")
def test_grants_above_the_policy_gate_are_refused() -> None:
    def with_channels(count: int) -> int:
        return grant_bytes(permissions(Profile.AGENT, holder(allow_publish=tuple(f"c{n:03}" for n in range(count)))))

    each = with_channels(11) - with_channels(10)
    most = 10 + (MAX_GRANT_BYTES - with_channels(10)) // each
    assert with_channels(most) <= MAX_GRANT_BYTES
    with pytest.raises(GrantRefused, match="013"):
        with_channels(most + 1)


@pytest.mark.req("CB-92")
@pytest.mark.parametrize("profile", Profile)
def test_every_profile_has_a_longest_life(profile: Profile) -> None:
    longest = LONGEST_SECONDS[profile]
    assert check_life(profile, longest) == longest
    assert check_life(profile, 1) == 1
    for seconds in (0, -1, longest + 1):
        with pytest.raises(GrantRefused, match="CB-92"):
            check_life(profile, seconds)
    assert LONGEST_SECONDS[Profile.PROVISIONER] <= 600
    assert LONGEST_SECONDS[Profile.DELIVERY] <= 86400


@pytest.mark.req("C3-12", "CB-55")
def test_a_row_that_ends_in_a_star_lets_nothing_deeper_through() -> None:
    granted = permissions(Profile.AGENT, holder(subscribe=("team.*",))).subscribe
    assert f"{P}.chat.*.*.team.*" in granted.allow
    assert f"{P}.chat.*.*.team.*.>" in granted.deny
    # Both at once could be granted only by hiding the deeper one.
    with pytest.raises(InvalidName, match="together"):
        permissions(Profile.AGENT, holder(subscribe=("team.*", "team.a.b")))
    wide = permissions(Profile.AGENT, holder(subscribe=("team.*", "team.>"))).subscribe
    assert f"{P}.chat.*.*.team.*.>" not in wide.deny
    assert not [row for row in granted.allow if covers(row, f"{P}.chat.a.b.team")], "team.* is not team"


@pytest.mark.req("CB-22", "C8-28")
def test_an_entry_that_ends_in_a_star_has_no_raw_history() -> None:
    starred = holder(subscribe=("team.*", "general"))
    creates = [
        row for row in permissions(Profile.AGENT, starred).publish.allow if "chathist" in row and "CREATE" in row
    ]
    assert creates == [f"{JS}.CONSUMER.CREATE.CHAT_main.chathist_{L}.{P}.chat.*.*.general"]
    assert without_history(starred) == ["team.*"]
    # Why: the broker takes the published literal for a match of the star.
    assert admitted("a.team.*", "a.team.>")


CHANNELS = st.lists(
    st.lists(st.sampled_from(["a", "b", "team", "*"]), min_size=1, max_size=3).map(".".join)
    | st.lists(st.sampled_from(["a", "b", "*"]), max_size=2).map(lambda parts: ".".join([*parts, ">"])),
    max_size=4,
    unique=True,
)


@pytest.mark.req("C9-05", "C9-13", "C9-14", "C13.9-038", "C13.9-040", "C13.9-041", "CB-73")
@given(st.sampled_from(Profile), st.sampled_from(Form), CHANNELS, CHANNELS, st.lists(st.sampled_from(["r1", "r2"])))
def test_whatever_is_granted_stands_the_audit(
    profile: Profile, form: Form, read: list[str], write: list[str], roles: list[str]
) -> None:
    someone = holder(form=form, subscribe=tuple(read), allow_publish=tuple(write), roles=tuple(roles))
    try:
        granted = permissions(profile, someone)
    except InvalidName as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert "together" in refused
        return
    assert audit(profile, someone, granted) == []
    for access in (granted.publish, granted.subscribe):
        for row in access.allow:
            subject = row.partition(" ")[0]
            assert subject not in (">", "*", f"{P}.>", "$JS.API.>", "$JS.>", "$KV.>", "$O.>", "$SYS.>", "_INBOX.>")
            assert ".ctl." not in row
        for deny, row in itertools.product(access.deny, access.allow):
            assert not overlaps(deny, row.partition(" ")[0])
