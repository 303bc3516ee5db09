"""The audit finds each kind of wrong grant; every case is a good credential with one row more, less or wider."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sidecar.rails.space.audit import audit
from sidecar.rails.space.claims import Access, Permissions
from sidecar.rails.space.grants import permissions
from sidecar.rails.space.holder import Form, Holder, Profile
from tests.unit.rails.space.holders import ALICE, CONNECTION, UID, holder

P = "cotal.main"
JS = "$JS.API"
MEDIATED = holder(form=Form.MEDIATED)


def findings(profile: Profile, someone: Holder, *, publish: str = "", subscribe: str = "", deny: str = "") -> list[str]:
    """What the audit says about a good credential with one more row."""
    good = permissions(profile, someone)
    changed = Permissions(
        replace(good.publish, allow=(*good.publish.allow, *([publish] if publish else []))),
        Access((*good.subscribe.allow, *([subscribe] if subscribe else [])), good.subscribe.deny),
    )
    if deny:
        changed = replace(changed, publish=replace(changed.publish, deny=(*changed.publish.deny, deny)))
    return audit(profile, someone, changed)


@pytest.mark.parametrize("profile", Profile)
@pytest.mark.parametrize("form", Form)
def test_a_good_credential_has_no_findings(profile: Profile, form: Form) -> None:
    assert findings(profile, holder(form=form)) == []


@pytest.mark.req("C9-14", "C13.9-043")
@pytest.mark.parametrize(
    "row",
    [
        f"{P}.chat.local.alice.secret", f"{P}.chat.local.bob.general", f"{P}.inst.*.*.*.alice", f"{P}.inst.>",
        f"{P}.svc.>", f"{P}.live.*.local.alice", f"{P}.take.other.local.bob", "$KV.cotal_presence_main.local.bob",
        "$KV.cotal_presence_main.>", "$KV.cotal_channels_main.general", f"{P}.ep.one.*.*.local.alice.{UID}.*",
        f"{P}.ep.one.*.describe.local.alice.*.*", f"{P}.ep.one.delivery.evict-principal.local.alice.{UID}.*",
        f"{JS}.STREAM.INFO.DM_main", f"{JS}.STREAM.INFO.*", f"{JS}.CONSUMER.CREATE.CHAT_main",
        f"{JS}.CONSUMER.CREATE.CHAT_main.>", f"{JS}.DIRECT.GET.CHAT_main", f"{JS}.STREAM.MSG.GET.CHAT_main",
        f"{JS}.CONSUMER.MSG.NEXT.DM_main.*", f"{JS}.STREAM.CREATE.CHAT_main", f"{JS}.STREAM.DELETE.CHAT_main",
        f"{JS}.STREAM.PURGE.CHAT_main", f"{JS}.STREAM.MSG.DELETE.TASK_main", "$SYS.REQ.USER.INFO",
        f"{P}.dinbox.*.*.*", f"{P}.dlv.*.*.*", f"{P}.ep.reply.delivery.*.*.*.*.*.*", f"{P}.epf.x.dec.>",
    ],
)  # fmt: skip
def test_a_row_outside_the_matrix_is_found(row: str) -> None:
    found = [one for one in findings(Profile.AGENT, ALICE, publish=row) if "no row of the matrix" in one]
    # Another channel of the agent's own is a question of its list, not of the matrix.
    assert bool(found) is not row.startswith(f"{P}.chat.local.alice.")


@pytest.mark.parametrize(
    "row", [">", "*", "cotal.>", f"{P}.>x", "$JS.API.>", "$KV.>", "$O.>", "$SYS.>", "foo.bar", "a b c"]
)
def test_a_row_that_is_too_wide_or_none_at_all_is_found(row: str) -> None:
    assert findings(Profile.AGENT, ALICE, publish=row)
    assert findings(Profile.ADMIN, ALICE, subscribe=row)


@pytest.mark.req("CB-71", "C9-39")
@pytest.mark.parametrize(
    "row", [f"{P}.>", f"{P}.*", f"{P}.inst.>", f"{P}.ep.>", f"{P}.dlv.>", "_INBOX_*.>", "_INBOX.>", "$SYS.ACCOUNT.>"]
)
def test_a_wider_subscription_is_found(row: str) -> None:
    assert findings(Profile.AGENT, ALICE, subscribe=row)
    assert findings(Profile.OBSERVER, ALICE, subscribe=row)


@pytest.mark.req("C13.9-003", "C13.9-019")
def test_a_serve_row_without_its_group_is_found() -> None:
    assert findings(Profile.DELIVERY, ALICE, subscribe=f"{P}.live.delivery.*.*")
    assert findings(Profile.DELIVERY, ALICE, subscribe=f"{P}.ep.one.delivery.durable-join.>")
    assert findings(Profile.DELIVERY, ALICE, subscribe=f"{P}.ep.one.delivery.durable-join.> other")
    assert findings(Profile.DELIVERY, ALICE, subscribe=f"{P}.ep.one.delivery.> delivery")


@pytest.mark.req("C3-12")
def test_a_missing_deny_below_a_star_is_found() -> None:
    someone = holder(subscribe=("team.*",))
    good = permissions(Profile.AGENT, someone)
    for missing in good.subscribe.deny:
        rest = tuple(one for one in good.subscribe.deny if one != missing)
        changed = replace(good, subscribe=replace(good.subscribe, deny=rest))
        found = audit(Profile.AGENT, someone, changed)
        assert [one for one in found if missing in one and "not denied" in one]
    # A wider deny does as well, and a row whose whole subtree is allowed needs none.
    free = Permissions(good.publish, Access((f"{P}.chat.*.*.team.*", f"{P}.chat.*.*.team.>")))
    assert not [one for one in audit(Profile.AGENT, someone, free) if "not denied" in one]


@pytest.mark.parametrize(
    "deny", [f"{P}.chat.local.alice.>", f"{P}.chat.local.alice.general", f"{P}.*.local.alice.team.x"]
)
def test_a_deny_that_hides_an_allow_is_found(deny: str) -> None:
    assert [one for one in findings(Profile.AGENT, ALICE, deny=deny) if "hides" in one]


@pytest.mark.req("C9-13", "CB-73")
def test_a_direction_without_limits_is_found() -> None:
    good = permissions(Profile.AGENT, ALICE)
    assert [one for one in audit(Profile.AGENT, ALICE, replace(good, publish=Access())) if "C9-13" in one]
    assert [one for one in audit(Profile.AGENT, ALICE, replace(good, subscribe=Access())) if "C9-13" in one]


@pytest.mark.req("C9-47", "CB-19")
def test_every_raw_read_of_a_mediated_agent_is_found() -> None:
    raw = [row for row in permissions(Profile.AGENT, ALICE).publish.allow if row.startswith(("$JS.API", "$JS.ACK"))]
    harmless = [
        row for row in raw if row.split(".")[2:4] in (["STREAM", "INFO"], ["CONSUMER", "INFO"]) or row == f"{JS}.INFO"
    ]
    harmless += [row for row in raw if ".CONSUMER.DELETE." in row]
    for row in raw:
        found = [one for one in findings(Profile.AGENT, MEDIATED, publish=row) if "C9-47" in one]
        assert bool(found) is (row not in harmless), row
        assert findings(Profile.AGENT, MEDIATED, publish=row), "and none of them is in the matrix"


@pytest.mark.req("C13.9-040", "C13.9-073")
@pytest.mark.parametrize("stream", ["EPF_main", "EPC_main", "EPE_main", "KV_cotal_records_main", "KV_cotal_auth_main"])
@pytest.mark.parametrize(
    "form",
    [
        "CONSUMER.CREATE.%s.x.y", "CONSUMER.CREATE.%s.>", "CONSUMER.MSG.NEXT.%s.x", "DIRECT.GET.%s", "DIRECT.GET.%s.x",
        "STREAM.MSG.GET.%s",
    ],
)  # fmt: skip
def test_no_untrusted_profile_reads_the_control_surface(stream: str, form: str) -> None:
    for profile in (Profile.AGENT, Profile.OBSERVER, Profile.ADMIN):
        assert [one for one in findings(profile, ALICE, publish=f"{JS}.{form % stream}") if "C13.9-040" in one]


@pytest.mark.req("C13.9-041", "C13.9-042", "C13.12-08")
@pytest.mark.parametrize("profile", Profile)
def test_each_way_to_make_or_destroy_a_stream_has_its_one_profile(profile: Profile) -> None:
    found = {
        verb: findings(profile, ALICE, publish=f"{JS}.STREAM.{verb}.X")
        for verb in ("DELETE", "PURGE", "CREATE", "UPDATE")
    }
    assert [one for one in found["DELETE"] if "destroys" in one], "no profile deletes a stream"
    assert bool([one for one in found["PURGE"] if "destroys" in one]) is (profile is not Profile.PURGER)
    makers = (Profile.PROVISIONER, Profile.CHANNEL_WRITER)
    assert bool([one for one in found["CREATE"] if "makes" in one]) is (profile not in makers)
    assert bool([one for one in found["UPDATE"] if "makes" in one]) is (
        profile not in (Profile.PROVISIONER, Profile.LIMITER)
    )
    assert all([one for one in faults if "no row of the matrix" in one] for faults in found.values())


@pytest.mark.req("C3-10", "CB-58", "C13.9-008")
def test_a_sender_that_is_not_the_holder_is_found() -> None:
    for row in (f"{P}.chat.local.bob.general", f"{P}.chat.*.alice.general", f"{P}.inst.local.alicex.y"):
        assert [one for one in findings(Profile.AGENT, ALICE, publish=row) if "C3-10" in one]
    row = f"{P}.ep.one.delivery.durable-join.local.alice.{'b' * 26}.*"
    assert [one for one in findings(Profile.AGENT, ALICE, publish=row) if "C13.9-008" in one]
    for profile in set(Profile) - {Profile.AGENT, Profile.DM_READER, Profile.OPERATOR, Profile.DELIVERY}:
        row = f"{P}.chat.local.alice.general"
        assert [one for one in findings(profile, ALICE, publish=row) if "no application message" in one]


@pytest.mark.req("C13-03")
@pytest.mark.parametrize("rail", ["ctl", "control"])
def test_the_removed_rail_is_found(rail: str) -> None:
    assert [one for one in findings(Profile.AGENT, ALICE, publish=f"{P}.{rail}.x.local.alice") if "C13-03" in one]


def test_a_reader_of_another_connection_is_found() -> None:
    other = CONNECTION.replace("A", "B")
    assert findings(Profile.OBSERVER, ALICE, publish=f"{JS}.CONSUMER.DELETE.CHAT_main.hist_{other}_0")
    assert findings(Profile.OBSERVER, ALICE, publish=f"{JS}.CONSUMER.DELETE.CHAT_main.hist_{CONNECTION}_8")
    assert findings(Profile.OBSERVER, ALICE, publish=f"{JS}.CONSUMER.DELETE.CHAT_main.>")
