"""The stores of the control surface, written out once more, and what a trusted process refuses to bind (C13.12)."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.rails.names import buckets
from sidecar.rails.space.layout import Limits, configurations, drift
from sidecar.rails.space.layout_control import BUCKETS, store_faults

DAY = 86_400 * 1_000_000_000
TABLE = configurations("main", Limits())
PERMANENT = {"deny_delete": True, "deny_purge": True, "allow_rollup_hdrs": False, "max_age": 0}
STORE = {**PERMANENT, "max_msgs": -1, "max_bytes": -1, "storage": "file", "retention": "limits", "discard": "new"}


@pytest.mark.req("C13.12-09", "C13.12-10", "C13.12-15", "C13.12-22", "C13.12-23", "C13.12-26", "C13.12-30", "C13.15-09")
@pytest.mark.req("C13.8-44", "C13.8-46", "C13.6-33", "C13.12-21")
@pytest.mark.parametrize(
    ("name", "subjects", "fields"),
    [
        ("EPJ_main", ["cotal.main.epj.>"], {"max_age": DAY, "duplicate_window": 100_000_000, "retention": "limits"}),
        ("EPF_main", ["cotal.main.epf.>"], {**PERMANENT, "max_age": 91 * DAY, "allow_direct": True, "max_msgs": -1,
         "max_bytes": -1, "allow_msg_ttl": False, "retention": "limits"}),
        ("EPE_main", ["cotal.main.epe.>"], {"max_age": DAY, "retention": "limits"}),
        ("EPT_REQ_main", ["cotal.main.ept.*.*.*.*.schedule"], {"max_age": DAY, "allow_msg_schedules": False}),
        ("EPR_main", ["cotal.main.epr.>"], {"max_age": DAY, "retention": "limits"}),
        ("EPT_main", ["cotal.main.ept.*.*.*.*.armed", "cotal.main.ept.*.*.*.*.fire"],
         {"max_age": 31 * DAY, "allow_msg_schedules": True, "allow_rollup_hdrs": True}),
        ("EPW_main", ["cotal.main.epw.>"], {"max_age": 31 * DAY, "retention": "workqueue", "allow_direct": False}),
        ("EPC_main", ["cotal.main.epc.>"], {**PERMANENT, "allow_direct": True, "max_msgs": -1, "max_bytes": -1}),
        ("WFJ_main", ["cotal.main.wfj.*"], {"max_age": 0, "allow_direct": False, "max_msgs": -1, "storage": "file"}),
        ("KV_cotal_records_main", ["$KV.cotal_records_main.>"], {**STORE, "allow_direct": True, "allow_msg_ttl": False,
         "max_msgs_per_subject": 1}),
        ("KV_cotal_auth_main", ["$KV.cotal_auth_main.>"], {**STORE, "allow_direct": False, "allow_msg_ttl": True,
         "max_msgs_per_subject": 1}),
        ("KV_cotal_issued_main", ["$KV.cotal_issued_main.>"], {**STORE, "allow_direct": False, "allow_msg_ttl": True,
         "max_msgs_per_subject": -1}),
        ("KV_cotal_accepted_main", ["$KV.cotal_accepted_main.>"], {**STORE, "allow_direct": True, "allow_msg_ttl": True,
         "max_msgs_per_subject": -1}),
        ("KV_cotal_admission_main", ["$KV.cotal_admission_main.>"], {**STORE, "allow_direct": False,
         "allow_msg_ttl": False}),
    ],
)  # fmt: skip
def test_each_store_is_its_line_of_the_table(name: str, subjects: list[str], fields: dict[str, Any]) -> None:
    config = TABLE[name]
    assert config["subjects"] == subjects
    assert {field: config[field] for field in fields} == fields
    assert config["storage"] == "file"


@pytest.mark.req("C13.8-44", "C13.8-46", "C13.8-49", "C13.12-22", "C13.12-26", "C13.6-33")
@pytest.mark.parametrize(
    ("name", "days"),
    [("EPJ", 1), ("EPF", 91), ("EPT_REQ", 1), ("EPR", 1), ("EPT", 31), ("EPW", 31)],
)
def test_an_age_may_be_lengthened_and_never_shortened(name: str, days: int) -> None:
    stream = f"{name}_main"
    config = TABLE[stream]
    assert config["max_age"] == days * DAY
    for fine in (0, days * DAY, days * DAY + 1, 10**20):
        assert drift("main", stream, {**config, "max_age": fine}) == []
    for short in (1, days * DAY - 1, -1, "1", None):
        assert drift("main", stream, {**config, "max_age": short}), short


def test_events_are_kept_as_long_as_the_operator_wants() -> None:
    for fine in (0, 10**9, DAY):
        assert drift("main", "EPE_main", {**TABLE["EPE_main"], "max_age": fine}) == []
    assert drift("main", "EPE_main", {**TABLE["EPE_main"], "max_age": 1})


@pytest.mark.req("C13.12-22", "C13.12-23", "C13.12-21", "C13.15-09")
@pytest.mark.parametrize(
    "name", ["EPF_main", "EPC_main", *(f"KV_cotal_{one}_main" for one in ("records", "auth", "issued", "accepted"))]
)
def test_nothing_that_could_drop_a_row_passes_the_proof(name: str) -> None:
    config = TABLE[name]
    for change in (
        {"max_msgs": 10}, {"max_bytes": 10}, {"allow_rollup_hdrs": True}, {"deny_delete": False}, {"deny_purge": False},
        {"subject_delete_marker_ttl": 1}, {"retention": "interest"}, {"max_msgs_per_subject": 7},
        {"mirror": {"name": "x"}}, {"allow_msg_ttl": not config["allow_msg_ttl"]},
    ):  # fmt: skip
        assert drift("main", name, {**config, **change}), change


@pytest.mark.req("C13.12-18", "C13.12-21", "C13.15-09")
def test_a_store_that_may_lose_rows_is_not_bound() -> None:
    for bucket in BUCKETS:
        config = TABLE[bucket.stream("main")]
        assert store_faults(bucket, config) == []
        for change in (
            {"max_age": 1}, {"max_msgs": 5}, {"max_bytes": 5}, {"mirror": {"name": "x"}}, {"sources": [{"name": "x"}]},
            {"allow_rollup_hdrs": True}, {"deny_delete": False}, {"deny_purge": False},
        ):  # fmt: skip
            assert store_faults(bucket, {**config, **change}), change
        open_to_replicas = store_faults(bucket, {**config, "allow_direct": True})
        assert bool(open_to_replicas) is (bucket in (buckets.AUTH, buckets.ISSUED, buckets.ADMISSION))
        old = store_faults(bucket, {**config, "allow_msg_ttl": False})
        assert bool(old) is (bucket in (buckets.AUTH, buckets.ISSUED, buckets.ACCEPTED))
