"""Streams and buckets of the control surface: what is fixed, and what an operator may lengthen (C13.12 table).

What stands for a one-use identity (decisions, results, receipts, authority heads, gates) must not leave early: no short
age, no finite limit, no rollup, no removal by hand (C13.12-22, C13.12-23).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sidecar.rails.names import buckets, limits, streams
from sidecar.rails.names.buckets import Bucket
from sidecar.rails.names.streams import Stream

NANOSECONDS: Final = 1_000_000_000
UNLIMITED: Final = -1

MIN_AGES: Final[Mapping[Stream, int]] = {
    streams.EPJ: limits.RECOVERY_LAG_SECONDS,
    streams.EPF: limits.FACT_SECONDS,
    streams.EPT_REQ: limits.RECOVERY_LAG_SECONDS,
    streams.EPR: limits.RECOVERY_LAG_SECONDS,
    streams.EPT: limits.TIMER_SECONDS,
    streams.EPW: limits.WORK_SECONDS,
}
"""Shortest age of each stream in seconds, which is that of a new one; an operator may lengthen it or take it away
(C13.8-44, C13.8-46, C13.12-26, C13.6-33)."""

_PERMANENT: Final = {"deny_delete": True, "deny_purge": True}
_KV: Final = {**_PERMANENT, "max_msgs_per_subject": 1, "discard": "new", "allow_rollup_hdrs": False}
"""No rollup and no purge: a delete marker is one more message, and nothing that stood there is lost (OPEN C13.12-a)."""
# Every row ends with its generation: the age of one message, without the markers that would switch rollup on.
_ISSUED: Final = {**_KV, "max_msgs_per_subject": UNLIMITED, "allow_msg_ttl": True}

STREAMS: Final[Mapping[Stream, Mapping[str, Any]]] = {
    # 100 ms is the shortest window of a server, and 0 is two minutes: no id of a submission is lost to it (C13.12-10).
    streams.EPJ: {"duplicate_window": limits.SUBMISSION_WINDOW_MS * NANOSECONDS // 1000},
    streams.EPF: {**_PERMANENT, "allow_direct": True},
    streams.EPE: {"max_age": limits.EVENT_SECONDS * NANOSECONDS, "allow_direct": True},
    streams.EPT_REQ: {},
    # The server switches rollup on with schedules, whatever one asks for.
    streams.EPT: {"allow_msg_schedules": True, "allow_rollup_hdrs": True},
    streams.EPR: {},
    streams.EPW: {"retention": "workqueue"},
    streams.EPC: {**_PERMANENT, "allow_direct": True},
    streams.WFJ: {},
}
BUCKETS: Final[Mapping[Bucket, Mapping[str, Any]]] = {
    buckets.RECORDS: {**_KV, "allow_direct": True},
    # Rows of the ledger end with their credentials, by the age of one message (C13.12-20).
    buckets.AUTH: {**_KV, "allow_msg_ttl": True},
    buckets.ISSUED: _ISSUED,
    buckets.ACCEPTED: {**_ISSUED, "allow_direct": True},
    buckets.ADMISSION: _KV,
}
WRITTEN: Final = (streams.EPE, streams.EPR, streams.EPT_REQ, streams.EPC)
"""Streams that hold what a serving endpoint writes, and what it is judged by."""
LEADER_ONLY: Final = (buckets.AUTH, buckets.ISSUED, buckets.ADMISSION)
"""Buckets that no replica answers for."""


def control_fields(space: str) -> dict[str, tuple[list[str], dict[str, Any]]]:
    """Stream name -> its subjects, and its fields where they differ from the base, in the order of creation."""
    made: dict[str, tuple[list[str], dict[str, Any]]] = {}
    for stream, fields in STREAMS.items():
        age = {"max_age": MIN_AGES[stream] * NANOSECONDS} if stream in MIN_AGES else {}
        made[stream.stream(space)] = (stream.subjects(space), {**age, **fields})
    for bucket, fields in BUCKETS.items():
        made[bucket.stream(space)] = ([bucket.everything(space)], dict(fields))
    return made


def min_ages(space: str) -> dict[str, int]:
    """Stream name -> its shortest age in seconds; 0 where the age is the operator's own."""
    return {one.stream(space): age for one, age in {**MIN_AGES, streams.EPE: 0}.items()}


def age_fault(found: Mapping[str, Any], least: int) -> str:
    """Why the age of a stream may lose what is still needed (C13.8-44); empty when it is none or long enough."""
    age = found.get("max_age", 0)
    if type(age) is int and (age == 0 or age >= max(1, least) * NANOSECONDS):
        return ""
    return f"max_age is {age!r}, must be 0 or at least {least} s"


def store_faults(bucket: Bucket, found: Mapping[str, Any]) -> list[str]:
    """Why a records or auth store cannot be trusted (C13.12-18): it is no primary, or something may leave it, or a
    replica may answer for it. Empty when it can. ``found`` is the configuration that STREAM.INFO gives."""
    faults = [f"{field} is set: it is no primary" for field in ("mirror", "sources") if found.get(field)]
    if found.get("max_age"):
        faults.append(f"max_age is {found['max_age']!r}: what stands there would leave")
    for field in ("max_msgs", "max_bytes"):
        value = found.get(field, UNLIMITED)
        if value != UNLIMITED:
            faults.append(f"{field} is {value!r}: what stands there would leave")
    faults += [f"{field} is not set" for field in _PERMANENT if not found.get(field)]
    if found.get("allow_rollup_hdrs"):
        faults.append("allow_rollup_hdrs is set")
    if bucket in LEADER_ONLY and found.get("allow_direct"):
        faults.append("allow_direct is set: a replica could answer")
    if BUCKETS[bucket].get("allow_msg_ttl") and not found.get("allow_msg_ttl"):
        faults.append("allow_msg_ttl is not set: the store is to be made anew")
    return faults
