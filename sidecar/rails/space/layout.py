"""Streams and buckets of a space with their exact configuration, compared with what a broker has (Data D1, D3).

Everything is written out, defaults too: what a server's default is today is no promise. History limits belong to the
operator and may be any legal value on a space that exists; every other field must be what stands here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sidecar.rails.names import buckets, consumers, limits, streams, subjects
from sidecar.rails.names.buckets import Bucket
from sidecar.rails.names.principals import Lifecycle
from sidecar.rails.names.streams import Stream
from sidecar.rails.space.layout_control import NANOSECONDS, UNLIMITED, age_fault, control_fields, min_ages

_BASE: Final[Mapping[str, Any]] = {
    "retention": "limits",
    "storage": "file",
    "num_replicas": 1,
    # Without a number the broker takes its own, which is 1,000: a thousand members, and nobody comes any more.
    "max_consumers": limits.MAX_CONSUMERS,
    "max_msgs": UNLIMITED,
    "max_bytes": UNLIMITED,
    "max_age": 0,
    "max_msgs_per_subject": UNLIMITED,
    "max_msg_size": UNLIMITED,
    "discard": "old",
    "discard_new_per_subject": False,
    "duplicate_window": limits.DUPLICATE_WINDOW_SECONDS * NANOSECONDS,
    "no_ack": False,
    "compression": "none",
    "allow_direct": False,
    "mirror_direct": False,
    "allow_rollup_hdrs": False,
    "deny_delete": False,
    "deny_purge": False,
    "sealed": False,
    "allow_msg_ttl": False,
    "allow_msg_schedules": False,
    "allow_msg_counter": False,
    "allow_atomic": False,
}
_ABSENT: Final = (
    "mirror",
    "sources",
    "subject_transform",
    "republish",
    "placement",
    "first_seq",
    "template_owner",
    # With it the server switches rollup on and the refusal of purges off, without a word (OPEN C13.12-a).
    "subject_delete_marker_ttl",
)
"""Fields that change where messages come from or go to; none of them is ever set."""


class InvalidLimit(ValueError):  # noqa: N818 - a state of the value
    """A history limit that an operator may not set; the message names the bounds."""


@dataclass(frozen=True, slots=True)
class History:
    """A history limit: entries leave when they are older than ``age_seconds`` or when ``count`` newer ones share their
    subject, whichever is first (C8-08). ``None`` is no limit (C8-10)."""

    age_seconds: int | None = None
    count: int | None = None

    def checked(self, youngest: int) -> History:
        """Itself, if an operator may set it (C8-15); InvalidLimit otherwise. ``youngest`` is the duplicate window."""
        age, most = self.age_seconds, limits.HISTORY_AGE_MAX_SECONDS
        if age is not None and (type(age) is not int or not youngest <= age <= most):
            raise InvalidLimit(f"a history age is none, or {youngest} to {most} whole seconds")
        if self.count is not None and (type(self.count) is not int or self.count < 1):
            raise InvalidLimit("a history count is none, or at least 1")
        return self

    @property
    def fields(self) -> dict[str, int]:
        """The two fields of a stream's configuration."""
        return {
            "max_age": (self.age_seconds or 0) * NANOSECONDS,
            "max_msgs_per_subject": UNLIMITED if self.count is None else self.count,
        }


@dataclass(frozen=True, slots=True)
class Limits:
    """History limits of a space; the defaults are those of a new one (C8-13, C8-51)."""

    chat: History = History(count=limits.CHAT_COUNT)
    dm: History = History()
    backstop: History = History(count=limits.BACKSTOP_COUNT)

    def __post_init__(self) -> None:
        self.chat.checked(limits.HISTORY_AGE_MIN_SECONDS)
        self.dm.checked(limits.HISTORY_AGE_MIN_SECONDS)
        self.backstop.checked(limits.BACKSTOP_AGE_MIN_SECONDS)


def configurations(space: str, history: Limits) -> dict[str, dict[str, Any]]:
    """Stream name -> configuration, in the order in which they are made."""
    backstop = {
        **history.backstop.fields,
        "duplicate_window": limits.BACKSTOP_DUPLICATE_WINDOW_SECONDS * NANOSECONDS,
    }
    return dict(
        [
            _stream(streams.CHAT, space, {**history.chat.fields, "allow_direct": True}),
            _stream(streams.DM, space, history.dm.fields),
            _stream(streams.TASK, space, {"retention": "workqueue"}),
            _stream(streams.INBOX, space, backstop),
            _stream(streams.DLV, space, backstop),
            # Agents write their own key here. A rollup header on it would remove the keys of all others.
            _bucket(buckets.PRESENCE, space, {**_ttl(limits.PRESENCE_TTL_MS), "allow_rollup_hdrs": False}),
            _bucket(buckets.CHANNELS, space, {}),
            _bucket(buckets.MEMBERSHIP, space, {"max_msg_size": limits.MAX_MEMBERSHIP_VALUE}),
            _bucket(buckets.ANYCAST, space, {"max_msg_size": limits.MAX_ANYCAST_VALUE}),
            _bucket(buckets.MEMBERS, space, {}),
            _bucket(buckets.ACL, space, {}),
            _bucket(buckets.DELIVERY, space, _ttl(limits.DELIVERY_LEASE_SECONDS * 1000)),
            _bucket(buckets.MANAGER, space, _ttl(limits.MANAGER_LEASE_SECONDS * 1000)),
            *(
                (name, {**_BASE, **fields, "name": name, "subjects": subjects_of})
                for name, (subjects_of, fields) in control_fields(space).items()
            ),
        ]
    )


def durables(space: str, lifecycle: Lifecycle, roles: tuple[str, ...], frontier: int) -> dict[str, dict[str, Any]]:
    """Stream name -> configuration of each durable that a lifecycle binds (Data D2), role queues included.

    ``frontier`` is the last sequence of the DM stream when the lifecycle begins: nothing older is ever delivered to it,
    also when the alias had a holder before (C8-29, C8-30).
    """
    names = lifecycle.names
    to = {"to_owner": names["owner"], "to_actor": names["actor"]}
    begin = {"deliver_policy": "by_start_sequence", "opt_start_seq": frontier + 1}
    dm = _durable(consumers.DM.build(**names), subjects.INST.subtree(space=space, **to), begin)
    dlv = _durable(consumers.HANDOFF.build(**names), subjects.DLV.build(space=space, **names), {})
    found = {dm["durable_name"]: (streams.DM, dm), dlv["durable_name"]: (streams.DLV, dlv)}
    for role in roles:
        queue = _durable(consumers.ROLE.build(role=role), subjects.SVC.subtree(space=space, role=role), {})
        found[queue["durable_name"]] = (streams.TASK, queue)
    return {name: {"stream_name": stream.stream(space), "config": config} for name, (stream, config) in found.items()}


def _durable(name: str, pattern: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "durable_name": name,
        "name": name,
        "filter_subject": pattern,
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "ack_wait": limits.ACK_WAIT_MS * NANOSECONDS // 1000,
        "max_deliver": UNLIMITED,
        "replay_policy": "instant",
        **fields,
    }


def durable_drift(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """How a durable differs from what it must be. Where a lifecycle begins is kept from its first activation; a push
    consumer, one that ends by itself and one without headers differ too."""
    differences = [
        f"{field} is {found.get(field)!r}, must be {value!r}"
        for field, value in wanted.items()
        if field != "opt_start_seq" and found.get(field) != value
    ]
    unset = ("deliver_subject", "inactive_threshold", "headers_only", "filter_subjects", "mem_storage", "pause_until")
    return differences + [f"{field} must not be set" for field in unset if found.get(field)]


def _stream(stream: Stream, space: str, fields: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    name = stream.stream(space)
    return name, {**_BASE, **fields, "name": name, "subjects": stream.subjects(space)}


def _bucket(bucket: Bucket, space: str, fields: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    kept = {
        "max_msgs_per_subject": 1,
        "discard": "new",
        "allow_direct": True,
        "allow_rollup_hdrs": True,
        # As every stock client makes its buckets: a key ends with a marker, never by the removal of a message.
        "deny_delete": True,
    }
    name = bucket.stream(space)
    return name, {**_BASE, **kept, **fields, "name": name, "subjects": [bucket.everything(space)]}


def _ttl(milliseconds: int) -> dict[str, int]:
    age = milliseconds * NANOSECONDS // 1000
    return {"max_age": age, "duplicate_window": min(age, limits.DUPLICATE_WINDOW_SECONDS * NANOSECONDS)}


def drift(space: str, name: str, found: Mapping[str, Any]) -> list[str]:
    """How a broker's stream differs from what it must be; empty when it is right.

    The numbers of replicas and consumers are the operator's, history limits are if they are legal (C8-14, C8-16), ages
    of the control surface if they are no shorter than what may be asked for again (C13.8-44).
    Metadata is not compared: it is bookkeeping of the server.
    """
    wanted = configurations(space, Limits())[name]
    free = {"num_replicas", "max_consumers"}
    if (youngest := _ADJUSTABLE.get(name.removesuffix(f"_{space}"))) is not None:
        free |= {"max_age", "max_msgs_per_subject"}
    if (least := min_ages(space).get(name)) is not None:
        free.add("max_age")
    differences = [
        f"{field} is {found.get(field)!r}, must be {value!r}"
        for field, value in wanted.items()
        # A server leaves out what is false, empty or zero.
        if field not in free and found.get(field, type(value)()) != value
    ]
    if youngest is not None and (fault := _illegal(found, youngest)):
        differences.append(fault)
    if least is not None and (fault := age_fault(found, least)):
        differences.append(fault)
    return differences + [f"{field} must not be set" for field in _ABSENT if found.get(field)]


_ADJUSTABLE: Final = {
    "CHAT": 0,
    "DM": 0,
    "INBOX": limits.BACKSTOP_AGE_MIN_SECONDS,
    "DLV": limits.BACKSTOP_AGE_MIN_SECONDS,
}
"""Streams with an operator's limit, and the youngest age that a reader accepts there."""


def _illegal(found: Mapping[str, Any], youngest: int) -> str:
    age, count = found.get("max_age", 0), found.get("max_msgs_per_subject", 0)
    if type(age) is not int or age < 0 or 0 < age < youngest * NANOSECONDS:
        return f"max_age is {age!r}, must be 0 or at least {youngest} s"
    if type(count) is not int or (count != UNLIMITED and count < 1):
        return f"max_msgs_per_subject is {count!r}, must be -1 or at least 1"
    return ""
