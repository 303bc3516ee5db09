"""The history limits of a space that exists: read, judged, changed (C8-07..C8-17, C8-51, C8-57).

Lowering a limit deletes at once (C8-12); :func:`preview` counts what, at the broker. The connection is the caller's,
with the grants of the ``limiter`` profile.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from nats.aio.client import Client

from sidecar.rails.names import api, consumers, limits, streams
from sidecar.rails.names.streams import Stream
from sidecar.rails.space.asking import BrokerRefused, ask
from sidecar.rails.space.layout import History, InvalidLimit
from sidecar.rails.space.layout_control import NANOSECONDS, UNLIMITED
from sidecar.rails.space.retire import subjects_of

PARTS: Final = {
    "chat": (streams.CHAT,),
    "dm": (streams.DM,),
    # Two streams with one limit; a change that stops between them leaves both valid (C8-52).
    "backstop": (streams.INBOX, streams.DLV),
}
_YOUNGEST: Final = {
    "chat": limits.HISTORY_AGE_MIN_SECONDS,
    "dm": limits.HISTORY_AGE_MIN_SECONDS,
    "backstop": limits.BACKSTOP_AGE_MIN_SECONDS,
}
UNCHANGED: Final = -1
"""In a :class:`Change`: this half stays."""
_COUNTER_SECONDS: Final = 5


@dataclass(frozen=True, slots=True)
class Change:
    """One new limit; None is "no limit", UNCHANGED leaves a half as it is."""

    part: str
    age_seconds: int | None = UNCHANGED
    count: int | None = UNCHANGED

    def applied(self, to: History) -> History:
        """The new limit. Raises InvalidLimit for one that an operator may not set (C8-15)."""
        wanted = to
        if self.age_seconds != UNCHANGED:
            wanted = replace(wanted, age_seconds=self.age_seconds)
        if self.count != UNCHANGED:
            wanted = replace(wanted, count=self.count)
        try:
            return wanted.checked(_YOUNGEST[self.part])
        except InvalidLimit as error:
            raise InvalidLimit(f"{self.part}: {error}") from None


@dataclass(frozen=True, slots=True)
class Loss:
    """What a limit deletes of one stream that holds ``messages``, as counted at one moment.

    ``by_age`` and ``by_count`` are exact; a message may fall under both, so together they are a range.
    """

    stream: str
    before: History
    after: History
    messages: int
    by_age: int
    by_count: int

    @property
    def least(self) -> int:
        """Messages that go at least."""
        return max(self.by_age, self.by_count)

    @property
    def most(self) -> int:
        """Messages that go at most."""
        return min(self.messages, self.by_age + self.by_count)


def history_of(config: Mapping[str, Any]) -> History:
    """The limit in a stream's configuration."""
    age, count = config.get("max_age", 0), config.get("max_msgs_per_subject", UNLIMITED)
    return History(age // NANOSECONDS or None if age else None, count if count > 0 else None)


async def current(client: Client, space: str) -> dict[str, History]:
    """Stream name -> its limit. Raises BrokerRefused, nats.errors.Error."""
    found = {}
    for part in PARTS.values():
        for stream in part:
            found[stream.stream(space)] = history_of((await _info(client, stream.stream(space)))["config"])
    return found


async def preview(client: Client, space: str, change: Change, now: float) -> list[Loss]:
    """What the change deletes, stream by stream; ``now`` is Unix time. Changes nothing. Raises InvalidLimit,
    BrokerRefused, nats.errors.Error."""
    return [await _loss(client, space, stream, change, now) for stream in PARTS[change.part]]


async def apply(client: Client, space: str, change: Change) -> list[str]:
    """Make the change; the names of the streams that had another limit. May be run again. Raises as :func:`preview`."""
    changed = []
    for stream in PARTS[change.part]:
        name = stream.stream(space)
        config = dict((await _info(client, name))["config"])
        before = history_of(config)
        after = change.applied(before)
        if after != before:
            await ask(client, api.STREAM_UPDATE.build(stream=name), {**config, **after.fields})
            changed.append(name)
    return changed


async def _loss(client: Client, space: str, stream: Stream, change: Change, now: float) -> Loss:
    name = stream.stream(space)
    info = await _info(client, name)
    before = history_of(info["config"])
    after = change.applied(before)
    messages = int(info["state"]["messages"])
    by_count = by_age = 0
    if after.count is not None and messages:
        found = await subjects_of(client, name, stream.subjects(space)[0])
        by_count = sum(max(0, held - after.count) for held in found.values())
    if after.age_seconds is not None and messages:
        by_age = messages - await _younger(client, name, now - after.age_seconds)
    return Loss(name, before, after, messages, max(0, by_age), by_count)


async def _younger(client: Client, stream: str, since: float) -> int:
    """Messages that were stored at ``since`` or later: what a consumer that begins there has before it."""
    name = consumers.LIMITER.build()
    start = datetime.datetime.fromtimestamp(since, datetime.UTC).isoformat().replace("+00:00", "Z")
    config = {
        "name": name,
        "deliver_policy": "by_start_time",
        "opt_start_time": start,
        "ack_policy": "none",
        "replay_policy": "instant",
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": _COUNTER_SECONDS * NANOSECONDS,
    }
    request = api.CONSUMER_CREATE_NAMED.build(stream=stream, consumer=name)
    made = await ask(client, request, {"stream_name": stream, "config": config, "action": "create"})
    await ask(client, api.CONSUMER_DELETE.build(stream=stream, consumer=name))
    return int(made["num_pending"])


async def _info(client: Client, stream: str) -> dict[str, Any]:
    subject = api.STREAM_INFO.build(stream=stream)
    answer = await ask(client, subject)
    if not isinstance(answer.get("config"), dict) or not isinstance(answer.get("state"), dict):
        raise BrokerRefused(subject, {"description": "the answer has no configuration"})
    return answer
