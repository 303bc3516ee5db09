"""Permission rows, and the arithmetic that audits them."""

from __future__ import annotations

import pytest

from sidecar.rails.names import InvalidName, api, grants, inboxes, subjects
from sidecar.rails.names.grants import admitted, check_row, covers, overlaps, subscribe_denies
from sidecar.rails.names.table import TEMPLATES
from sidecar.rails.names.template import Template
from tests.unit.rails.names.samples import sample

WHO = {"owner": "local", "actor": "alice"}


@pytest.mark.parametrize(
    ("outer", "inner", "contained", "common"),
    [
        ("a.b", "a.b", True, True),
        ("a.*", "a.b", True, True),
        ("a.b", "a.*", False, True),
        ("a.*", "a.*", True, True),
        ("a.>", "a.*", True, True),
        ("a.>", "a.>", True, True),
        ("a.>", "a.b.>", True, True),
        ("a.*", "a.>", False, True),
        ("a.*.>", "a.>", False, True),
        ("a.>", "a", False, False),
        ("a", "a.>", False, False),
        ("a.b", "a.b.c", False, False),
        ("a.b.c", "a.b", False, False),
        ("*.b", "a.*", False, True),
        ("*", ">", False, True),
        (">", "*.a", True, True),
        ("a.*.c", "a.b.d", False, False),
        ("a.*.*", "a.>", False, True),
        ("a.b.>", "a.b", False, False),
    ],
)
def test_containment_and_overlap(outer: str, inner: str, contained: bool, common: bool) -> None:
    assert covers(outer, inner) is contained
    assert overlaps(outer, inner) is overlaps(inner, outer) is common


@pytest.mark.parametrize(
    ("row", "subscription", "taken"),
    [
        ("x.*", "x.a", True),
        ("x.*", "x.>", True),
        ("x.*", "x.*", True),
        ("x.*", "x.a.b", False),
        ("x.*", "x.*.>", False),
        ("x.*.*", "x.>", False),
        ("x.>", "x.>", True),
        ("x.>", "x", False),
        ("x.* queue", "x.>", True),
        ("x.a", "x.>", False),
        ("x.a", "x", False),
    ],
)
def test_what_the_broker_admits_under_an_allow_row(row: str, subscription: str, taken: bool) -> None:
    assert admitted(row, subscription) is taken


@pytest.mark.req("C3-12")
def test_every_row_that_ends_in_a_star_gets_its_deny() -> None:
    rows = [
        subjects.CHAT.filter(space="main", channel="team.*"),
        subjects.CHAT.filter(space="main", channel="general"),
        subjects.CHAT.filter(space="main", channel="ops.>"),
        subjects.CHAT.filter(space="main", channel="a.*.b"),
        subjects.LIVE.filter(space="main", plane="delivery") + " live.delivery",
        inboxes.INBOX.subtree(connection="abcdefgh"),
    ]
    denies = subscribe_denies(rows)
    assert denies == ["cotal.main.chat.*.*.team.*.>", "cotal.main.live.delivery.*.*.>"]
    for row in rows:
        assert not any(overlaps(deny, row.split(" ")[0]) for deny in denies)
    # What the hole lets in beyond the row is what the deny takes away.
    wide = "cotal.main.chat.*.*.team.>"
    assert admitted(rows[0], wide)
    for subject in (
        "cotal.main.chat.local.a.team.b",
        "cotal.main.chat.local.a.team.b.c",
        "cotal.main.chat.local.a.team.b.c.d",
    ):
        assert covers(wide, subject)
        assert covers(rows[0], subject) is not any(covers(deny, subject) for deny in denies)


def test_a_row_whose_subtree_is_allowed_anyway_needs_no_deny() -> None:
    assert subscribe_denies(["cotal.s.chat.*.*.team.*", "cotal.s.chat.*.*.team.>"]) == []
    assert subscribe_denies(["cotal.s.chat.*.*.team.*", "cotal.s.chat.*.*.team.*"]) == ["cotal.s.chat.*.*.team.*.>"]
    assert subscribe_denies([]) == []


@pytest.mark.parametrize("other", ["team.a.b", "team.a.>", "*.a.b", "team.*.*", "*.>"])
def test_a_deny_that_would_take_what_is_allowed_is_refused(other: str) -> None:
    rows = [subjects.CHAT.filter(space="s", channel=channel) for channel in ("team.*", other)]
    if covers(rows[1], f"{rows[0]}.>"):
        assert subscribe_denies(rows) == []
        return
    with pytest.raises(InvalidName, match="together"):
        subscribe_denies(rows)


@pytest.mark.parametrize(
    "row",
    [
        "",
        "*",
        ">",
        "cotal",
        "cotal.>",
        "cotal.*.chat.>",
        "$JS.>",
        "$JS.API.>",
        "$JS.*.INFO",
        "$JS.API.*.INFO",
        "$KV.>",
        "$KV.*.a",
        "$O.>",
        "$SYS.>",
        "_INBOX.*",
        "other.main.x",
        "cotal.main.a..b",
        "cotal.main.>.b",
        "cotal.main.a*",
        "cotal.main.a b c",
        "cotal.main.a ",
        "cotal.main.a *",
        "cotal.main.a\n",
        "cotal.main." + "x" * 9000,
        None,
        5,
    ],
)
def test_no_permission_row(row: object) -> None:
    with pytest.raises(InvalidName) as caught:
        check_row(row)
    assert len(str(caught.value)) < 200


ROOTS = ("cotal.", "$JS.API", "$JS.ACK", "$JS.FC.", "$KV.<bucket>.", "$O.", "$SYS.", "_INBOX_", "_INBOX.")


@pytest.mark.parametrize(
    "template", [pytest.param(one, id=one.name) for one in TEMPLATES if one.text.startswith(ROOTS)]
)
def test_every_name_of_the_table_may_stand_in_a_permission(template: Template) -> None:
    row = template.filter(**sample(template))
    assert check_row(row) == row
    assert check_row(f"{row} group") == f"{row} group"


def test_the_shared_inbox_is_the_one_wide_row() -> None:
    assert check_row(inboxes.SYSTEM.subtree()) == "_INBOX.>"


@pytest.mark.parametrize("channel", ["team.*", "*", "a.*.*"])
def test_no_deny_closes_a_pinned_filter_that_ends_in_a_star(channel: str) -> None:
    pattern = subjects.CHAT.filter(space="main", channel=channel)
    row = api.CONSUMER_CREATE_FILTERED.filter(stream="CHAT_main", consumer="c", filter=pattern)
    wide = f"{row[:-1]}>"
    assert admitted(row, wide)
    # Every deny that takes the literal wide create takes the granted one too.
    assert all(admitted(deny, row) for deny in (wide, row, "$JS.API.CONSUMER.CREATE.>") if admitted(deny, wide))
    assert not admitted(f"{row}.>", wide)


def test_create_denies_cover_every_create_form() -> None:
    denies = grants.create_denies("DM_main")
    assert denies == [
        "$JS.API.CONSUMER.CREATE.DM_main",
        "$JS.API.CONSUMER.CREATE.DM_main.>",
        "$JS.API.CONSUMER.DURABLE.CREATE.DM_main.>",
    ]
    pair = {"stream": "DM_main", "consumer": "x"}
    forms = [
        api.CONSUMER_CREATE.build(stream="DM_main"),
        api.CONSUMER_CREATE_NAMED.build(**pair),
        api.CONSUMER_CREATE_FILTERED.build(**pair, filter="cotal.main.inst.>"),
        api.DURABLE_CREATE.build(**pair),
    ]
    assert all(any(admitted(deny, form) for deny in denies) for form in forms)
