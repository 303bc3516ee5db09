"""What ``top`` and ``quota`` make of a document: order, marks, rates, and a screen that is never overfull."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from click.testing import CliRunner

from sidecar.cli.coordinator import command
from sidecar.cli.coordinator_stats import Look, levels_of, number, rates, seconds, size
from sidecar.cli.coordinator_top_view import Line, Mark, fitted, painted, silent, view

ALICE, BOB = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"


def quotas(cap: int = 100, **used: int) -> dict[str, Any]:
    names = (
        "connections",
        "requests",
        "leases",
        "pinned_bytes",
        "subscriptions",
        "queue_frames",
        "queue_bytes",
        "pending_operations",
    )
    return {name: {"used": used.get(name, 0), "cap": cap} for name in names}


def subscription(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "id": str(number) * 32,
        "state": "LIVE",
        "credit_count": 10,
        "credit_bytes": 1000,
        "queue_frames": 0,
        "queue_bytes": 0,
        "lag": 0,
        "stalled": False,
        "deliveries": 5,
        "last_event": 5,
        **changes,
    }


def connection(pid: int, key_id: str, *subscriptions: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "key_id": key_id,
        "scopes": ["WORK_READ"],
        "capabilities": [],
        "grant_seconds": 10.0,
        "requests": 0,
        "backlog_bytes": 0,
        "replies": 0,
        "control_frames": 0,
        "control_bytes": 0,
        "writable": True,
        "closing": None,
        "quotas": {"subscriptions": {"used": len(subscriptions), "cap": 4}, "connections": {"used": 1, "cap": None}},
        "subscriptions": list(subscriptions),
        "leases": [],
        "pid": pid,
        "uid": 0,
        "age_seconds": 61.0,
        **changes,
    }


def document(*connections: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "time": 1_700_000_000.0,
        "pid": 77,
        "stopping": False,
        "sockets": {"handshake": 1, "active": len(connections)},
        "queues": {"backlog": 3, "pending_operations": 4, "subscription_frames": 5},
        "authority": {"coordinator_id": "c0" * 16, "epoch": 9, "fenced": None, "lease_seconds": 42.0},
        "events": {"head": 12, "durable": 11, "retained_from": 2, "retained": 10, "retained_bytes": 2048},
        "quotas": quotas(cap=1000, connections=len(connections)),
        "principals": [{"key_id": ALICE, "quotas": quotas(subscriptions=85)}, {"key_id": BOB, "quotas": quotas()}],
        "connections": list(connections),
        "counters": {
            "frames_in": 10,
            "frames_out": 20,
            "bytes_in": 1000,
            "bytes_out": 2000,
            "events_sent": 100,
            "event_bytes": 5000,
            "credit_stalls": 1,
            "commands": {"succeeded": 7},
            "refusals": {"scope_denied": 2, "not_found": 30},
            "gaps": {},
            "quota_refusals": {},
            "handshakes": {},
            "sockets_refused": {},
        },
        **changes,
    }


def texts(lines: list[Line]) -> list[str]:
    return [line.text for line in lines]


def row_of(lines: list[Line], needle: str) -> Line:
    (found,) = [line for line in lines if needle in line.text]
    return found


def test_subscriptions_stand_by_lag_and_what_is_wrong_is_marked() -> None:
    lines = view(
        document(
            connection(1, ALICE, subscription(1, lag=5), subscription(2)),
            connection(2, BOB, subscription(3, lag=900, stalled=True), subscription(4, lag=70, state="PAUSED_GAP")),
        ),
        None,
    )
    ids = [line.text.split()[-2] for line in lines if "LIVE" in line.text or "PAUSED" in line.text]
    assert ids == ["3" * 12, "4" * 12, "1" * 12, "2" * 12]
    assert "900" in row_of(lines, "LIVE STALLED").text
    assert row_of(lines, "LIVE STALLED").mark is row_of(lines, "PAUSED_GAP").mark is Mark.WARN
    assert row_of(lines, "1" * 12).mark is Mark.PLAIN
    connections = [line.text.split()[0] for line in lines if " 61 s " in line.text]
    assert connections == ["900", "5"], "a connection is as far behind as its last subscription"


def test_a_quota_near_its_cap_is_marked_and_the_fullest_comes_first() -> None:
    shown = document(connection(1, ALICE))
    lines = view(shown, None)
    near = row_of(lines, "subscriptions 85 of 100")
    assert near.mark is Mark.WARN
    assert near.text.startswith("quotas")
    assert f"85 %! subscriptions 85 of 100  principal {ALICE}" in near.text
    shown["principals"][0]["quotas"] = quotas(subscriptions=79)
    assert row_of(view(shown, None), "subscriptions 79 of 100").mark is Mark.PLAIN
    shown["principals"][0]["quotas"] = quotas(subscriptions=80)
    assert row_of(view(shown, None), "subscriptions 80 of 100").mark is Mark.WARN


def test_a_fenced_server_says_so_on_top() -> None:
    shown = document()
    shown["authority"]["fenced"] = "the certificate\nexpired"
    line = view(shown, None)[1]
    assert line == Line("FENCED: the certificate expired", Mark.ALERT)


def test_leases_of_both_kinds_are_shown_the_soonest_first() -> None:
    lease = {"pinned_bytes": 20480, "pages": 3, "ended": False, "subscription_id": None}
    shown = document(
        connection(
            1,
            ALICE,
            leases=[
                {**lease, "id": "aa", "kind": "snapshot", "seconds_left": 50.4},
                {**lease, "id": "bb", "kind": "replay", "seconds_left": 7.0},
            ],
        )
    )
    found = [line.split()[:5] for line in texts(view(shown, None)) if " 20 KiB " in line]
    assert found == [["replay", "7", "s", "20", "KiB"], ["snapshot", "50", "s", "20", "KiB"]]


def test_rates_are_counters_over_the_time_between_two_looks() -> None:
    before, after = document(), document()
    after["counters"] = copy.deepcopy(after["counters"])
    after["counters"]["refusals"]["scope_denied"] = 12
    after["counters"]["refusals"]["internal"] = 4
    after["counters"]["events_sent"] = 1100
    found = rates(Look(before, 10.0), Look(after, 12.0))
    assert found is not None
    assert found["events_sent"] == 500
    assert found["refusals"] == {"scope_denied": 5, "not_found": 0, "internal": 2}
    line = row_of(view(after, found), "refusals")
    assert line.text == "refusals   not_found 30 (0/s)  scope_denied 12 (5/s)  internal 4 (2/s)"
    assert line.mark is Mark.WARN
    assert row_of(view(after, rates(Look(after, 1.0), Look(after, 2.0))), "refusals").mark is Mark.PLAIN


def test_there_are_no_rates_over_a_restart() -> None:
    assert rates(None, Look(document(), 1.0)) is None
    assert rates(Look(document(pid=1), 1.0), Look(document(pid=2), 2.0)) is None


def test_a_view_that_is_old_says_how_old() -> None:
    line = silent("gone\x1b[2J", document(), 75.0)
    assert line == Line("NO ANSWER, trying again: gone\\x1b[2J; what follows is 75 s old", Mark.ALERT)


@pytest.mark.parametrize(("rows", "shown"), [(10, 9), (9, 9), (8, 7)])
def test_a_screen_takes_what_fits_and_tells_of_the_rest(rows: int, shown: int) -> None:
    lines = [Line(f"line {index} {'x' * 100}") for index in range(9)]
    found = fitted(lines, 20, rows)
    assert len(found) == min(rows, 9)
    assert all(len(line.text) <= 20 for line in found)
    assert [line for line in found if line.text.startswith("line")] == [Line(line.text[:20]) for line in lines[:shown]]
    assert found[-1].text.startswith(f".. {9 - shown} more lines") == (shown < 9)


def test_colour_is_only_put_where_it_is_wanted() -> None:
    line = Line("x", Mark.WARN)
    assert painted(line, colour=True) == "\x1b[33mx\x1b[0m"
    assert painted(line, colour=False) == painted(Line("x"), colour=True) == "x"


def test_quotas_are_sorted_by_how_full_they_are() -> None:
    shown = document(connection(1, BOB, subscription(1), subscription(2), subscription(3)))
    rows = levels_of(shown, connections=True)
    assert [(row.level, row.resource, row.percent) for row in rows[:3]] == [
        ("principal", "subscriptions", 85.0),
        ("connection", "subscriptions", 75.0),
        ("server", "connections", 0.1),
    ]
    assert rows[1].who == f"pid 1 {BOB}"
    assert all(row.level != "connection" for row in levels_of(shown, connections=False))
    assert len(rows) == 8 + 2 * 8 + 1, "what has no cap is no quota"


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (number(0), "0"),
        (number(3), "3"),
        (number(3.25), "3.2"),
        (number(12.6), "13"),
        (number(1234567), "1,234,567"),
        (size(10239), "10,239 B"),
        (size(10240), "10 KiB"),
        (size(16 * 1024**2), "16 MiB"),
        (size(99 * 1024**3), "99 GiB"),
        (seconds(99.9), "99 s"),
        (seconds(100), "1 m 40 s"),
        (seconds(7325), "2 h 02 m"),
    ],
)
def test_short_forms(shown: str, text: str) -> None:
    assert shown == text


@pytest.mark.parametrize("arguments", [("top", "--interval", "nan"), ("quota", "--check", "nan")])
def test_nan_is_no_interval_and_no_percentage(arguments: tuple[str, ...]) -> None:
    """It is within every bound, pauses for no time and is exceeded by nothing."""
    ran = CliRunner().invoke(command, [*arguments, "--admin-socket", "/nonexistent/admin.sock"])
    assert (ran.exit_code, "nan is not a number" in ran.output) == (2, True)
