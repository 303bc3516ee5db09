"""Rows of the membership feed: what is seen, what is written, and what only a complete view may take away."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.rails.names.limits import MAX_MEMBERSHIP_VALUE
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.planes.delivery.connections import LIMIT, MAX_PAGES, MAX_PATTERNS, Sweep, principal_of
from sidecar.rails.planes.delivery.feed_rows import HEARTBEAT, Row, content, encode, fold, heartbeat, plan
from sidecar.rails.planes.delivery.membership import Interval, Membership

ANN, BOB = Principal("local", "ann"), Principal("u_" + "a" * 26, "bob")
UID = "u1" * 13


def row(principal: Principal | None, *subjects: object, **more: Any) -> dict[str, Any]:
    tags = [] if principal is None else list(principal.tags)
    return {"cid": 1, "tags": tags, "subscriptions_list": list(subjects), **more}


def answer(*rows: Any, server: str = "N1", total: int | None = None, offset: int = 0) -> bytes:
    data = {"total": len(rows) if total is None else total, "offset": offset, "connections": list(rows)}
    return json.dumps({"server": {"id": server}, "data": data}).encode()


def swept(*answers: bytes) -> Sweep:
    sweep = Sweep("main")
    for one in answers:
        sweep.take(one)
    assert not sweep.turn()
    return sweep


@pytest.mark.req("CB-117", "C8-72")
def test_a_connection_is_told_by_its_tag_or_by_the_name_of_its_token() -> None:
    assert principal_of(row(ANN)) == ANN
    assert principal_of(row(BOB, authorized_user="local-ann")) == BOB
    assert principal_of({"authorized_user": BOB.dash}) == BOB
    for strange in (
        {},
        row(None),
        row(None, authorized_user="UCEK5VXOGT6QFWGNWMCQ2CB2GZ44WZSJCQCHDP66XKPAWDT2CTQ3ITH2"),
        row(None, authorized_user=5),
        row(Principal("p_" + "a" * 26, "x")),
        row(Principal("somebody", "x")),
        {"tags": 7},
        {"tags": [*ANN.tags, *BOB.tags]},
    ):
        assert principal_of(strange) is None


@pytest.mark.req("C8-72")
def test_live_keeps_patterns_and_leaves_out_what_is_no_channel_of_this_space() -> None:
    sweep = swept(
        answer(
            row(
                ANN,
                "cotal.main.chat.*.*.team.>",
                "cotal.main.chat.*.*.ops",
                "cotal.main.chat.>",
                "cotal.main.chat.local.bob.ops",
                "cotal.other.chat.*.*.ops",
                "cotal.main.inst.local.ann.>",
                "_INBOX_x.>",
                "cotal.main.chat.*.*.a..b",
                7,
            ),
            row(ANN, "cotal.main.chat.*.*.second"),
            row(None, "cotal.main.chat.*.*.ops"),
            row(BOB),
        )
    )
    assert sweep.complete
    assert sweep.live == {ANN: {"team.>", "ops", "second"}, BOB: set()}
    assert sweep.unattributed == 1


@pytest.mark.req("C8-72")
def test_pages_of_several_servers_are_read_to_their_end() -> None:
    sweep = Sweep("main")
    assert json.loads(sweep.request()) == {"subscriptions": True, "auth": True, "offset": 0, "limit": 1024}
    sweep.take(answer(row(ANN, "cotal.main.chat.*.*.a"), total=LIMIT + 1))
    sweep.take(answer(server="N2"))
    assert sweep.turn()
    assert not sweep.complete
    assert json.loads(sweep.request())["offset"] == LIMIT
    sweep.take(answer(row(BOB, "cotal.main.chat.*.*.b"), total=LIMIT + 1, offset=LIMIT))
    sweep.take(answer(server="N2", offset=LIMIT))
    assert not sweep.turn()
    assert sweep.complete
    assert sweep.live == {ANN: {"a"}, BOB: {"b"}}


@pytest.mark.req("C8-72")
@pytest.mark.parametrize(
    "answers",
    [
        [],
        [b"", answer(row(ANN))],
        [b"[]"],
        [b'{"server":{}}'],
        [answer(row(ANN), offset=5)],
        [answer(row(ANN)), answer(row(BOB))],
        [json.dumps({"server": {"id": "N1"}, "data": {"total": "1", "offset": 0, "connections": []}}).encode()],
    ],
)
def test_what_cannot_be_read_makes_the_view_incomplete(answers: list[bytes]) -> None:
    assert not swept(*answers).complete


def test_a_server_that_falls_silent_or_a_list_without_end_is_incomplete() -> None:
    sweep = Sweep("main")
    sweep.take(answer(server="N1", total=LIMIT + 1))
    sweep.take(answer(server="N2"))
    assert sweep.turn()
    sweep.take(answer(server="N1", total=LIMIT + 1, offset=LIMIT))
    assert not sweep.turn()
    assert not sweep.complete
    sweep, pages = Sweep("main"), 0
    more = True
    while more:
        sweep.take(answer(total=10**9, offset=sweep.offset))
        more, pages = sweep.turn(), pages + 1
    assert pages == MAX_PAGES
    assert not sweep.complete


@pytest.mark.parametrize("row", ["no row", None, 1, []])
def test_a_connection_of_another_form_makes_a_sweep_incomplete(row: Any) -> None:
    sweep = Sweep("main")
    sweep.take(answer(row))
    assert not sweep.turn()
    assert not sweep.complete


@given(st.lists(st.binary(max_size=60) | st.sampled_from([answer(row(ANN)), answer(server="N2")]), max_size=5))
def test_no_answer_of_a_server_ends_the_sweep_otherwise_than_by_its_result(answers: list[bytes]) -> None:
    sweep = swept(*answers)
    assert sweep.complete in (True, False)


def membership(principal: Principal, channel: str, leave: int | None = None) -> Membership:
    return Membership(channel, Lifecycle(principal, UID), Interval(1, leave), 1)


@pytest.mark.req("C8-72")
def test_a_row_is_the_union_of_both_and_keeps_a_family_as_recorded() -> None:
    rows = fold(
        {ANN: {"ops", "team.*"}, Principal("local", "mute"): set()},
        [membership(ANN, "team.>"), membership(BOB, "a"), membership(ANN, "left", 5)],
    )
    assert rows == {
        "local.ann": Row(("ops", "team.*"), ("team.>",)),
        f"{BOB.owner}.bob": Row((), ("a",)),
    }
    value = json.loads(encode(rows["local.ann"], 17))
    assert value == {"live": ["ops", "team.*"], "durable": ["team.>"], "observedAt": 17}
    assert json.loads(heartbeat(18, 2, complete=True)) == {"observedAt": 18, "rows": 2, "complete": True}
    assert HEARTBEAT == "=feed"


@pytest.mark.req("C8-70")
def test_a_row_beyond_the_bound_is_shortened_and_says_so() -> None:
    long = tuple(f"{n:04}" + "x" * 3000 for n in range(200))
    data = encode(Row(long, ("team.>",)), 1)
    assert len(data) <= MAX_MEMBERSHIP_VALUE
    value = json.loads(data)
    assert value["durable"] == ["team.>"]
    assert value["live"] == list(long[: len(value["live"])])
    assert 0 < value["omitted"] == 200 - len(value["live"])
    exact = encode(Row(("a",), ()), 1)
    assert "omitted" not in json.loads(exact)
    many = fold({ANN: {f"c{n}" for n in range(MAX_PATTERNS + 5)}}, [])["local.ann"]
    assert len(many.live) == MAX_PATTERNS
    assert many.omitted == 5


@pytest.mark.req("C8-72")
def test_only_what_changed_is_written_and_only_a_complete_view_removes() -> None:
    row = Row(("a",), ("d",))
    stored = {"local.ann": encode(row, 1), "local.gone": encode(Row(("x",), ()), 1), HEARTBEAT: b"{}"}
    same = plan({"local.ann": row}, stored, 9, complete=True)
    assert (same.puts, same.deletes) == ({}, ["local.gone"])
    assert plan({"local.ann": row}, stored, 9, complete=False).deletes == []
    narrower = {"local.ann": Row((), ("d",))}
    assert content(plan(narrower, stored, 9, complete=True).puts["local.ann"]) == ((), ("d",), 0)
    assert plan(narrower, stored, 9, complete=False).puts == {}
    wider = plan({"local.ann": Row(("b",), ())}, stored, 9, complete=False)
    assert content(wider.puts["local.ann"]) == (("a", "b"), (), 0)
    for broken in (b"", b"null", b"[]", b'{"live":3,"durable":[]}', b'{"live":[1],"durable":[]}'):
        assert "local.ann" in plan({"local.ann": row}, {"local.ann": broken}, 9, complete=True).puts
        assert plan({"local.ann": row}, {"local.ann": broken}, 9, complete=False).puts
