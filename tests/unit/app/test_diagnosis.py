"""What the doctor concludes from facts: levels at their bounds, and a reason and an advice with everything wrong."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from sidecar.app import diagnosis_space as of_space
from sidecar.app.diagnosis import (
    SHOWN,
    Finding,
    Level,
    exit_code,
    judge_account_disk,
    judge_clock,
    judge_disk,
    judge_greeting,
    judge_servers,
    judge_sync,
    listed,
    unknown,
)
from sidecar.rails.messaging.liveness import Liveness, Verdict, Why
from sidecar.rails.names import consumers, streams
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.planes.delivery.lease import LeaseRow
from sidecar.rails.space.claims import Token, UserClaims, decode
from sidecar.rails.space.holder import Capability, Form, Holder, Profile, Service
from sidecar.rails.space.layout import Limits, configurations, durables
from sidecar.rails.space.trust import BrokerTrust, SpaceTrust, new_user

GREETING = {"version": "2.15.1", "max_payload": 1 << 20, "jetstream": True}
ANN = Lifecycle(Principal("local", "ann"), "u1" * 13)
NOW = 1_800_000_000


def told(finding: Finding, level: Level) -> Finding:
    assert finding.level is level
    if level in (Level.WARN, Level.FAIL):
        assert finding.why
    return finding


def test_the_exit_code_is_that_of_the_worst() -> None:
    one = {level: Finding("x", level, "w") for level in Level}
    assert [exit_code([one[Level.OK], one[level]]) for level in Level] == [0, 1, 2, 1]
    assert exit_code([]) == 0
    assert unknown("x", "r").value() == {
        "check": "x", "space": "", "level": "unknown", "what": "not found out: r",
        "why": "what is not known may be broken", "do": "",
    }  # fmt: skip


def test_long_lists_are_cut() -> None:
    assert listed(map(str, range(SHOWN))).endswith("7")
    assert listed(map(str, range(SHOWN + 3))).endswith("7 and 3 more")


@pytest.mark.parametrize(
    ("more", "check"),
    [
        ({"version": "2.11.9"}, "version"),
        ({"version": None}, "version"),
        ({"max_payload": 1024}, "version"),
        ({"jetstream": False}, "jetstream"),
        ({"jetstream": None}, "jetstream"),
    ],
)
def test_the_greeting(more: dict[str, Any], check: str) -> None:
    assert {one.level for one in judge_greeting("nats://h", GREETING)} == {Level.OK}
    wrong = [one for one in judge_greeting("nats://h", {**GREETING, **more}) if one.level is not Level.OK]
    assert [(one.check, one.level) for one in wrong] == [(check, Level.FAIL)]
    assert wrong[0].do


@pytest.mark.parametrize(
    ("broker", "level"),
    [
        (100.0, Level.OK),
        (100.2, Level.OK),
        (101.2, Level.OK),
        (101.3, Level.WARN),
        (103.2, Level.WARN),
        (103.3, Level.FAIL),
        (98.9, Level.WARN),
        (90.0, Level.FAIL),
    ],
)
def test_the_clock_is_judged_beyond_what_the_round_trip_leaves_open(broker: float, level: Level) -> None:
    told(judge_clock(broker, 100.0, 100.2), level)


def test_what_an_acknowledgement_means() -> None:
    told(judge_sync(None), Level.UNKNOWN)
    told(judge_sync({"sync_always": True, "sync_interval": 120 * 10**9}), Level.OK)
    assert "every 120 s" in told(judge_sync({"sync_interval": 120 * 10**9}), Level.WARN).what
    told(judge_sync({}), Level.WARN)


@pytest.mark.parametrize(
    ("used", "level"),
    [(0, Level.OK), (799, Level.OK), (800, Level.WARN), (949, Level.WARN), (950, Level.FAIL), (1000, Level.FAIL)],
)
def test_how_full_the_store_is(used: int, level: Level) -> None:
    told(judge_disk({"config": {"max_storage": 1000}, "storage": used}), level)
    (account,) = judge_account_disk("main", used, 1000)
    told(account, level)


def test_a_store_without_figures_is_not_judged() -> None:
    without: list[dict[str, Any]] = [
        {},
        {"config": {}},
        {"config": {"max_storage": -1}},
        {"config": {"max_storage": 5}},
    ]
    for figures in without:
        told(judge_disk(figures), Level.UNKNOWN)
    assert judge_account_disk("main", 5, -1) == []
    assert judge_account_disk("main", None, 5) == []
    told(judge_account_disk("main", 0, 0)[0], Level.FAIL)


def known(*names: str, stream: str = "DM_main") -> dict[str, dict[str, dict[str, Any]]]:
    return {stream: {name: {} for name in names}}


def test_streams() -> None:
    right = configurations("main", Limits())
    (well,) = of_space.judge_streams("main", right)
    told(well, Level.OK)
    chat = streams.CHAT.stream("main")
    missing = {name: one for name, one in right.items() if name != chat}
    assert chat in told(of_space.judge_streams("main", missing)[0], Level.FAIL).what
    drifted = {**right, chat: {**right[chat], "allow_direct": False}}
    assert "allow_direct" in told(of_space.judge_streams("main", drifted)[0], Level.FAIL).what


def test_durables_and_leftovers() -> None:
    members = [(ANN, ("reviewer",))]
    wanted = durables("main", ANN, ("reviewer",), 7)
    there: dict[str, dict[str, dict[str, Any]]] = {}
    for name, one in wanted.items():
        there.setdefault(one["stream_name"], {})[name] = {"config": one["config"]}
    (well,) = of_space.judge_durables("main", members, there)
    told(well, Level.OK)
    told(of_space.judge_leftovers("main", members, there), Level.OK)
    told(of_space.judge_leftovers("main", [], there), Level.WARN)
    dm = consumers.DM.build(**ANN.names)
    assert dm in told(of_space.judge_durables("main", members, {})[0], Level.FAIL).what
    there["DM_main"][dm]["config"] = {**there["DM_main"][dm]["config"], "ack_policy": "none"}
    assert "ack_policy" in told(of_space.judge_durables("main", members, there)[0], Level.FAIL).what
    old = known("chat_local-ann", stream="CHAT_main")
    assert "chat_local-ann" in told(of_space.judge_leftovers("main", [], old), Level.WARN).what
    readers = known(*(f"hist_abc_{n}" for n in range(8)), stream="CHAT_main")
    told(of_space.judge_leftovers("main", [], readers), Level.OK)


@pytest.mark.parametrize(
    ("most", "default", "count", "level"),
    [
        (-1, 10, 7, Level.OK),
        (-1, 10, 8, Level.WARN),
        (-1, 10, 10, Level.FAIL),
        (20, 10, 10, Level.OK),
        (20, 10, 16, Level.WARN),
        (-1, None, 10_000, Level.OK),
        (None, -1, 10_000, Level.OK),
    ],
)
def test_room_for_consumers(most: object, default: object, count: int, level: Level) -> None:
    names = known(*map(str, range(count)))
    told(of_space.judge_room("main", {"DM_main": {"max_consumers": most}}, names, default), level)


def test_the_lease_and_the_plane() -> None:
    row = LeaseRow("local.delivery", "i1", 1, True)
    told(of_space.judge_lease("main", row, 15.0), Level.OK)
    told(of_space.judge_lease("main", row, 20.1), Level.FAIL)
    told(of_space.judge_lease("main", LeaseRow("local.delivery", "i1", 1, False), 1.0), Level.WARN)
    told(of_space.judge_lease("main", None, 0.0), Level.FAIL)
    for verdict, level in (
        (Verdict.BOUND, Level.OK),
        (Verdict.UNBOUND, Level.FAIL),
        (Verdict.STALE, Level.FAIL),
        (Verdict.UNKNOWN, Level.UNKNOWN),
    ):
        told(of_space.judge_liveness("main", Liveness("delivery", verdict, Why.ANSWERED)), level)


def test_the_feed() -> None:
    told(of_space.judge_feed("main", True, 30.0), Level.OK)
    told(of_space.judge_feed("main", True, 30.1), Level.WARN)
    told(of_space.judge_feed("main", False, 1.0), Level.WARN)
    told(of_space.judge_feed("main", None, 0.0), Level.WARN)


def test_lag() -> None:
    def lag(waiting: int) -> dict[str, dict[str, dict[str, Any]]]:
        found = {"num_pending": waiting, "num_ack_pending": 1}
        return {"CHAT_main": {"fanout": found}, "INBOX_main": {"reader": {"num_pending": "?"}}}

    assert [one.level for one in of_space.judge_lag("main", lag(1000))] == [Level.OK, Level.OK]
    assert [one.level for one in of_space.judge_lag("main", lag(1001))] == [Level.WARN, Level.OK]
    assert [one.level for one in of_space.judge_lag("main", {})] == [Level.WARN, Level.WARN]


@pytest.fixture(scope="module")
def trusts(tmp_path_factory: pytest.TempPathFactory) -> tuple[BrokerTrust, SpaceTrust]:
    directory = tmp_path_factory.mktemp("trust")
    return BrokerTrust.open(directory / "trust", os.urandom), SpaceTrust.open(directory / "main", "main", os.urandom)


def test_accounts_and_credentials(trusts: tuple[BrokerTrust, SpaceTrust]) -> None:
    broker, account = trusts
    kept = decode(account.account_token(broker, NOW), "account")
    told(of_space.judge_account("main", kept, kept), Level.OK)
    told(of_space.judge_account("main", kept, None), Level.FAIL)
    key = new_user(os.urandom)
    holder = Holder("main", ANN, key.public, Form.MEDIATED)
    token = decode(account.issue(Profile.AGENT, holder, key, NOW, 1000), "user")

    def judged(now: float, held: Token = kept) -> list[Level]:
        found = of_space.judge_creds("ann", token, held.claims, [(Profile.AGENT, holder)], now)  # type: ignore[arg-type]
        return [told(one, one.level).level for one in found]

    assert judged(NOW + 899) == [Level.OK, Level.OK]
    assert judged(NOW + 901) == [Level.WARN, Level.OK]
    assert judged(NOW + 1000) == [Level.FAIL, Level.OK]
    revoked = decode(account.revoke(broker, key.public, NOW), "account")
    assert judged(NOW + 1, revoked) == [Level.OK, Level.FAIL, Level.OK]
    assert "1 revoked" in told(of_space.judge_account("main", revoked, kept), Level.FAIL).why
    user = token.claims
    assert isinstance(user, UserClaims)
    fitting = of_space.candidates("main", Form.MEDIATED, ANN, key.public, (), user)
    found = of_space.judge_creds("ann", token, None, fitting, NOW + 1)
    assert [one.level for one in found] == [Level.OK, Level.OK]
    assert "agent" in found[1].what
    other = of_space.candidates("other", Form.MEDIATED, ANN, key.public, (), user)
    assert told(of_space.judge_creds("ann", token, None, other, NOW + 1)[1], Level.FAIL)
    assert of_space.judge_creds("ann", token, None, [], NOW + 1)[1].level is Level.UNKNOWN


@pytest.mark.req("C13.9-043")
def test_a_creds_file_may_call_list_and_serve_what_its_rows_say_and_no_more(
    trusts: tuple[BrokerTrust, SpaceTrust],
) -> None:
    _, account = trusts
    key = new_user(os.urandom)
    plain = Holder("main", ANN, key.public, Form.MEDIATED)
    calls = (Capability("dev.sidecar.sample", "*"), Capability("com.acme.ci", "end", "owner", (ANN.principal.owner,)))
    caller = replace(plain, capabilities=calls, listing="6b49d200" + "ab" * 12)
    serving = replace(plain, service=Service("d4" * 13, 2, ("echo",), "dev.sidecar.sample"))

    def level(user: UserClaims, token: Token) -> Level:
        whom = of_space.candidates("main", Form.MEDIATED, ANN, key.public, (), user)
        return of_space.judge_creds("ann", token, None, whom, NOW + 1)[1].level

    for profile, holder in ((Profile.AGENT, caller), (Profile.ENDPOINT, serving)):
        token = decode(account.issue(profile, holder, key, NOW, 1000), "user")
        user = token.claims
        assert isinstance(user, UserClaims)
        assert level(user, token) is Level.OK
        for row in (
            f"cotal.main.ep.one.com_acme_ci.end.any.local.{ANN.dot}.*", "cotal.main.epe.com_acme_ci.x.1.>",
            f"cotal.main.ep.reply.dev_sidecar_sample.{'d4' * 13}.3.*.*.*.*", "$KV.cotal_records_main.govern.*",
        ):  # fmt: skip
            rows = replace(user.permissions.publish, allow=(*user.permissions.publish.allow, row))
            wider = replace(user, permissions=replace(user.permissions, publish=rows))
            assert level(wider, replace(token, claims=wider)) is Level.FAIL, row


@pytest.mark.req("C13.12-04", "C13.12-06")
def test_a_partial_answer_is_never_taken_for_a_whole_one() -> None:
    good = {"version": "2.12.0", "max_payload": 1 << 20, "max_control_line": 65536, "server_name": "a"}
    first, other = {**good, "server_id": "A"}, {**good, "server_id": "B", "server_name": "b"}
    assert [one.level for one in judge_servers(2, [first, other])] == [Level.OK]
    assert [one.level for one in judge_servers(2, [first])] == [Level.FAIL]
    assert [one.level for one in judge_servers(2, [first, first])] == [Level.FAIL], "one server twice is one server"
    assert [one.level for one in judge_servers(0, [first])] == [Level.FAIL]
    assert [one.level for one in judge_servers(1, [])] == [Level.FAIL]
    found = judge_servers(2, [first, {**other, "max_control_line": 4096}])
    assert [(one.level, "b:" in one.what) for one in found] == [(Level.FAIL, True)]
