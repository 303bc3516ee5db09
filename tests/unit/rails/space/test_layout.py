"""The configuration tables, written out once more, and the comparison with what a broker says."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.space.layout import (
    History,
    InvalidLimit,
    Limits,
    configurations,
    drift,
    durable_drift,
    durables,
)

SECOND = 1_000_000_000
TABLE = configurations("main", Limits())


def test_streams_and_buckets_are_those_of_the_tables() -> None:
    assert list(TABLE) == [
        "CHAT_main", "DM_main", "TASK_main", "INBOX_main", "DLV_main", "KV_cotal_presence_main",
        "KV_cotal_channels_main", "KV_cotal_membership_main", "KV_cotal_anycast_main", "KV_cotal_members_main",
        "KV_cotal_acl_main", "KV_cotal_delivery_main", "KV_cotal_manager_main", "EPJ_main", "EPF_main", "EPE_main",
        "EPT_REQ_main", "EPT_main", "EPR_main", "EPW_main", "EPC_main", "WFJ_main", "KV_cotal_records_main",
        "KV_cotal_auth_main", "KV_cotal_issued_main", "KV_cotal_accepted_main", "KV_cotal_admission_main",
    ]  # fmt: skip
    assert all(config["name"] == name and config["storage"] == "file" for name, config in TABLE.items())


@pytest.mark.req("C8-02", "C8-03", "C8-04", "C8-05", "C8-06", "C8-13", "C8-51", "C8-69", "C8-70", "C8-71")
@pytest.mark.parametrize(
    ("name", "subject", "fields"),
    [
        ("CHAT_main", "cotal.main.chat.>", {"max_age": 0, "max_msgs_per_subject": 1000, "allow_direct": True,
         "retention": "limits", "discard": "old", "allow_msg_ttl": False, "duplicate_window": 120 * SECOND}),
        ("DM_main", "cotal.main.inst.>", {"max_age": 0, "max_msgs_per_subject": -1, "allow_direct": False,
         "retention": "limits", "discard": "old", "mirror_direct": False}),
        ("TASK_main", "cotal.main.svc.>", {"retention": "workqueue", "allow_direct": False, "mirror_direct": False}),
        ("INBOX_main", "cotal.main.dinbox.>", {"max_msgs_per_subject": 1000, "duplicate_window": 7200 * SECOND,
         "allow_direct": False}),
        ("DLV_main", "cotal.main.dlv.>", {"max_msgs_per_subject": 1000, "duplicate_window": 7200 * SECOND,
         "discard": "old"}),
        ("KV_cotal_presence_main", "$KV.cotal_presence_main.>", {"max_age": 6 * SECOND, "allow_direct": True,
         "max_msgs_per_subject": 1, "duplicate_window": 6 * SECOND, "allow_rollup_hdrs": False}),
        ("KV_cotal_channels_main", "$KV.cotal_channels_main.>", {"max_age": 0, "allow_direct": True}),
        ("KV_cotal_membership_main", "$KV.cotal_membership_main.>", {"max_msg_size": 262144, "max_bytes": -1,
         "max_age": 0, "max_msgs_per_subject": 1}),
        ("KV_cotal_anycast_main", "$KV.cotal_anycast_main.>", {"max_msg_size": 65536, "max_bytes": -1, "max_age": 0,
         "max_msgs_per_subject": 1}),
        ("KV_cotal_delivery_main", "$KV.cotal_delivery_main.>", {"max_age": 30 * SECOND}),
        ("KV_cotal_manager_main", "$KV.cotal_manager_main.>", {"max_age": 10 * SECOND}),
    ],
)  # fmt: skip
def test_fields_that_the_specification_fixes(name: str, subject: str, fields: dict[str, Any]) -> None:
    config = TABLE[name]
    assert config["subjects"] == [subject]
    assert {field: config[field] for field in fields} == fields


@pytest.mark.req("C8-07", "C8-10", "C8-15")
def test_an_operator_may_set_these_limits() -> None:
    for age, count in ((None, None), (120, 1), (3650 * 86400, 10**6)):
        chosen = Limits(chat=History(age, count), dm=History(age, count))
        for name in ("CHAT_main", "DM_main"):
            config = configurations("main", chosen)[name]
            assert config["max_age"] == (age or 0) * SECOND
            assert config["max_msgs_per_subject"] == (count or -1)
            assert drift("main", name, config) == []


@pytest.mark.req("C8-15", "C8-51")
def test_and_not_those() -> None:
    for age in (0, 119, 3650 * 86400 + 1, -1, 120.5, True):
        with pytest.raises(InvalidLimit):
            Limits(chat=History(age))  # type: ignore[arg-type]
    for count in (0, -1, 1.5):
        with pytest.raises(InvalidLimit):
            Limits(dm=History(None, count))  # type: ignore[arg-type]
    with pytest.raises(InvalidLimit):
        Limits(backstop=History(7199))
    assert configurations("main", Limits(backstop=History(7200)))["DLV_main"]["max_age"] == 7200 * SECOND


def test_what_is_written_down_is_right() -> None:
    for name, config in TABLE.items():
        assert drift("main", name, config) == []
        # A server leaves out what is false or zero, and adds metadata.
        short = {field: value for field, value in config.items() if value or value is None}
        assert drift("main", name, {**short, "metadata": {"_nats.level": "1"}, "num_replicas": 3}) == []


AGED = {f"{one}_main" for one in ("EPJ", "EPF", "EPE", "EPT_REQ", "EPT", "EPR", "EPW")}


def other(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 7
    return [f"{value[0]}.x"] if isinstance(value, list) else f"{value}x"


@pytest.mark.req("C8-05", "C8-06", "C9-40")
@pytest.mark.parametrize("name", TABLE)
def test_every_other_value_is_found(name: str) -> None:
    adjustable = (
        {"max_age", "max_msgs_per_subject"} if name in ("CHAT_main", "DM_main", "INBOX_main", "DLV_main") else set()
    )
    for field, value in TABLE[name].items():
        found = drift("main", name, {**TABLE[name], field: other(value)})
        free = field in ("num_replicas", "max_consumers") or (field in adjustable and field == "max_msgs_per_subject")
        if field == "max_age" and (field in adjustable or name in AGED):
            continue  # judged below, and in test_layout_control
        assert bool(found) is not free, field
    for field in ("mirror", "sources", "subject_transform", "republish", "placement"):
        assert drift("main", name, {**TABLE[name], field: {"name": "X"}}) == [f"{field} must not be set"]


@pytest.mark.req("C8-14", "C8-16", "C8-52")
def test_a_legal_limit_of_the_operator_is_no_drift_and_an_illegal_one_is() -> None:
    chat, inbox = TABLE["CHAT_main"], TABLE["INBOX_main"]
    for age, count in ((0, 10), (1, -1), (10**20, 1)):
        assert drift("main", "CHAT_main", {**chat, "max_age": age, "max_msgs_per_subject": count}) == []
    assert drift("main", "INBOX_main", {**inbox, "max_age": 7200 * SECOND}) == []
    assert drift("main", "INBOX_main", {**inbox, "max_age": 7200 * SECOND - 1})
    assert drift("main", "CHAT_main", {**chat, "max_age": -1})
    assert drift("main", "CHAT_main", {**chat, "max_age": "1"})
    assert drift("main", "CHAT_main", {**chat, "max_msgs_per_subject": 0})
    assert drift("main", "CHAT_main", {**chat, "max_msgs_per_subject": None})


def test_a_space_with_an_underscore_is_told_apart() -> None:
    config = configurations("main_DM", Limits())["CHAT_main_DM"]
    assert drift("main_DM", "CHAT_main_DM", {**config, "max_msgs_per_subject": 5}) == []


ALICE = Lifecycle(Principal("local", "alice"), "a1" * 13)
L, D = f"local-alice-{ALICE.uid}", f"local.alice.{ALICE.uid}"


@pytest.mark.req("C8-29", "C8-32", "C8-34", "C8-35")
def test_durables_of_a_lifecycle_are_those_of_the_table() -> None:
    table = durables("main", ALICE, ("reviewer",), 41)
    common = {"ack_policy": "explicit", "ack_wait": 60 * SECOND, "max_deliver": -1, "replay_policy": "instant"}
    begin = {"deliver_policy": "by_start_sequence", "opt_start_seq": 42}
    rows: list[tuple[str, str, dict[str, Any]]] = [
        ("DM_main", f"dm_{L}", {"filter_subject": "cotal.main.inst.local.alice.>", **begin}),
        ("DLV_main", f"dlv_{L}", {"filter_subject": f"cotal.main.dlv.{D}", "deliver_policy": "all"}),
        ("TASK_main", "svc_reviewer", {"filter_subject": "cotal.main.svc.reviewer.>", "deliver_policy": "all"}),
    ]  # fmt: skip
    assert table == {
        name: {"stream_name": stream, "config": {"name": name, "durable_name": name, **common, **fields}}
        for stream, name, fields in rows
    }
    assert set(durables("main", ALICE, (), 0)) == {f"dm_{L}", f"dlv_{L}"}
    assert durables("main", ALICE, (), 0)[f"dm_{L}"]["config"]["opt_start_seq"] == 1


def test_every_other_value_of_a_durable_is_found_except_where_it_began() -> None:
    for entry in durables("main", ALICE, ("reviewer",), 41).values():
        config = entry["config"]
        assert durable_drift(config, {**config, "max_ack_pending": 1000, "num_replicas": 0}) == []
        for field, value in config.items():
            assert bool(durable_drift(config, {**config, field: other(value)})) is (field != "opt_start_seq"), field
            assert bool(durable_drift(config, {k: v for k, v in config.items() if k != field})) is (
                field != "opt_start_seq"
            )
        for field in ("deliver_subject", "inactive_threshold", "headers_only", "filter_subjects"):
            assert durable_drift(config, {**config, field: 1}) == [f"{field} must not be set"]
