"""Judges the grants of a credential against the ownership matrix and against rules that hold whatever the matrix says.

The input may come from anywhere: what was just derived, or a token that was read back (C13.9-043). An empty list is
approval; each finding names the row and the rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

from sidecar.rails.names import api, buckets, streams, subjects
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.grants import check_row, covers, overlaps
from sidecar.rails.names.template import Template
from sidecar.rails.names.tokens import TAIL, WILDCARD
from sidecar.rails.space.claims import Access, Permissions
from sidecar.rails.space.holder import Form, Holder, Profile
from sidecar.rails.space.matrix import rows_of
from sidecar.rails.space.rows import Direction

AGENTS: Final = (Profile.AGENT, Profile.DM_READER)
UNTRUSTED: Final = (*AGENTS, Profile.OBSERVER, Profile.ADMIN, Profile.OPERATOR)

_CREATES: Final = (api.CONSUMER_CREATE, api.CONSUMER_CREATE_NAMED, api.DURABLE_CREATE)
_READS: Final = (*_CREATES, api.CONSUMER_NEXT, api.MESSAGE_GET, api.DIRECT_GET, api.DIRECT_GET_LAST)
"""Requests whose answer holds stored bytes, or makes the broker send them (C9-47)."""
_MAKERS: Final = {
    Profile.PROVISIONER: (),
    Profile.CHANNEL_WRITER: (api.STREAM_UPDATE,),
    Profile.LIMITER: (api.STREAM_CREATE,),
}
"""Profiles that may make or change streams, and what of both they may not."""
_CONTROL: Final = (
    *streams.CONTROL,
    buckets.RECORDS,
    buckets.AUTH,
    buckets.ISSUED,
    buckets.ACCEPTED,
    buckets.ADMISSION,
    buckets.SESSIONS,
    buckets.MANAGER,
)
_REMOVED: Final = ("ctl", "control")


def audit(profile: Profile, holder: Holder, granted: Permissions) -> list[str]:
    """Everything that is wrong with ``granted`` for this profile and holder."""
    return [
        *_access("publish", profile, holder, granted.publish),
        *_access("subscribe", profile, holder, granted.subscribe),
        *_holes(granted.subscribe),
        *_reads(profile, holder, granted.publish.allow),
        *_senders(profile, holder, granted.publish.allow),
    ]


def _access(direction: Direction, profile: Profile, holder: Holder, access: Access) -> Iterator[str]:
    if not access.bounded:
        yield f"{direction}: everything is allowed (C9-13)"
    ceilings = [one for row in rows_of(profile, holder.form, direction) for one in row.ceilings(holder)]
    for row in access.allow:
        try:
            check_row(row)
        except InvalidName as error:
            yield f"{direction}: {error}"
            continue
        if not any(_within(ceiling, row) for ceiling in ceilings):
            yield f"{direction} {row}: no row of the matrix contains it (C9-14)"
        subject = row.partition(" ")[0]
        if subject.split(".")[2:3] and subject.split(".")[2] in _REMOVED:
            yield f"{direction} {row}: the rail does not exist any more (C13-03)"
        yield from (
            f"{direction} {row}: the deny {deny} hides a part of it" for deny in access.deny if overlaps(deny, subject)
        )


def _within(ceiling: str, row: str) -> bool:
    outer, _, wanted = ceiling.partition(" ")
    inner, _, queue = row.partition(" ")
    # A row without a group admits plain subscriptions too, so it is wider than one with a group.
    return covers(outer, inner) and (not wanted or queue == wanted)


def _holes(subscribe: Access) -> Iterator[str]:
    """``*`` as a last token admits a subscription to ``>``, unless what lies below is allowed or denied."""
    allowed = [row.partition(" ")[0] for row in subscribe.allow]
    for row in allowed:
        below = f"{row}.{TAIL}"
        if row.split(".")[-1] != WILDCARD or any(covers(other, below) for other in allowed):
            continue
        if not any(covers(deny, below) for deny in subscribe.deny):
            yield f"subscribe {row}: {below} is not denied, so that a > passes for the *"


def _reads(profile: Profile, holder: Holder, publish: Iterable[str]) -> Iterator[str]:
    """Requests that a profile never holds, whatever the matrix says."""
    rules = [("destroys streams (C13.9-042)", _patterns((api.STREAM_DELETE,)))]
    if profile is not Profile.PURGER:
        rules.append(("destroys streams (C13.9-042)", _patterns((api.STREAM_PURGE,))))
    barred = _MAKERS.get(profile, (api.STREAM_CREATE, api.STREAM_UPDATE))
    rules.append(("makes or changes streams (C13.12-08)", _patterns(barred)))
    if profile in UNTRUSTED:
        control = tuple(one for stream in _CONTROL for one in _patterns(_READS, stream.stream(holder.space)))
        rules.append(("reads the control surface (C13.9-040)", control))
        rules.append(("deletes messages (C13.9-042)", _patterns((api.MESSAGE_DELETE,))))
    if profile in AGENTS and holder.form is Form.MEDIATED:
        rules.append(("has the broker send stored bytes anywhere (C9-47)", _patterns((*_READS, api.ACK))))
    for row in publish:
        if row.startswith("$"):
            yield from (
                f"publish {row}: {rule}" for rule, patterns in rules if any(overlaps(row, one) for one in patterns)
            )


@lru_cache(maxsize=256)
def _patterns(templates: tuple[Template, ...], stream: str | None = None) -> tuple[str, ...]:
    """Every request of these kinds, on one stream or on any."""
    named = {} if stream is None else {"stream": stream}
    return tuple(one for template in templates for one in (template.filter(**named), template.subtree(**named)))


def _senders(profile: Profile, holder: Holder, publish: Iterable[str]) -> Iterator[str]:
    """An agent publishes as itself: its two tokens stand, literally and side by side, in every subject (C3-10)."""
    root = subjects.SPACE.build(space=holder.space) + "."
    own = [holder.lifecycle.principal.owner, holder.lifecycle.principal.actor]
    for row in publish:
        if not row.startswith(root):
            continue
        if profile not in (*AGENTS, Profile.OPERATOR, Profile.DELIVERY):
            yield f"publish {row}: this profile publishes no application message"
        elif profile is not Profile.DELIVERY:
            tokens = row.split(".")
            at = next((n for n in range(len(tokens) - 1) if tokens[n : n + 2] == own), None)
            if at is None:
                yield f"publish {row}: does not name its sender (C3-10)"
            elif tokens[2] == "ep" and tokens[at + 2 : at + 3] != [holder.lifecycle.uid]:
                yield f"publish {row}: does not pin the lifecycle (C13.9-008)"
