"""Judges the grants of a credential against the ownership matrix and against rules that hold whatever the matrix says.

The input may come from anywhere: what was just derived, or a token that was read back (C13.9-043). An empty list is
approval; each finding names the row and the rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

from sidecar.rails.names import api, buckets, endpoint, planes, streams, subjects
from sidecar.rails.names.buckets import Bucket
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.grants import check_row, covers, overlaps
from sidecar.rails.names.streams import Stream
from sidecar.rails.names.template import Template
from sidecar.rails.names.tokens import MODES, TAIL, WILDCARD
from sidecar.rails.space.claims import Access, Permissions
from sidecar.rails.space.evidence import horizon_of, listing_token
from sidecar.rails.space.holder import SERVING, Form, Holder, Profile
from sidecar.rails.space.matrix import rows_of
from sidecar.rails.space.rows import DESCRIBE, Direction

AGENTS: Final = (Profile.AGENT, Profile.DM_READER)
UNTRUSTED: Final = (*AGENTS, Profile.OBSERVER, Profile.ADMIN, Profile.OPERATOR, Profile.ENDPOINT)
_CALLERS: Final = (*AGENTS, Profile.OPERATOR, Profile.ENDPOINT)
"""Profiles that publish requests, which name their sender."""

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
_KEPT: Final = (*streams.CONTROL, buckets.RECORDS, buckets.AUTH, buckets.ISSUED, buckets.ACCEPTED, buckets.ADMISSION)
"""Streams of which no message is ever removed by hand (C13.12-22, C13.12-24)."""
_Rule = tuple[str, tuple[Template, ...], tuple[Stream | Bucket, ...]]
"""What a row breaks, with which requests, on which streams (none: on any)."""
_REMOVED: Final = ("ctl", "control")


def audit(profile: Profile, holder: Holder, granted: Permissions) -> list[str]:
    """Everything that is wrong with ``granted`` for this profile and holder."""
    return [
        *_access("publish", profile, holder, granted.publish),
        *_access("subscribe", profile, holder, granted.subscribe),
        *_holes(granted.subscribe),
        *_reads(profile, holder, granted.publish.allow),
        *_control(profile, holder, granted.publish.allow),
        *_senders(profile, holder, granted.publish.allow),
        *_modes(profile, holder, granted.publish.allow),
        *_rails(profile, holder, granted),
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
    rules: list[_Rule] = [("destroys streams (C13.9-042)", (api.STREAM_DELETE,), ())]
    if profile is not Profile.PURGER:
        rules.append(("destroys streams (C13.9-042)", (api.STREAM_PURGE,), ()))
    barred = _MAKERS.get(profile, (api.STREAM_CREATE, api.STREAM_UPDATE))
    rules.append(("makes or changes streams (C13.12-08)", barred, ()))
    if profile in UNTRUSTED:
        rules.append(("reads the control surface (C13.9-040)", _READS, _CONTROL))
        rules.append(("deletes messages (C13.9-042)", (api.MESSAGE_DELETE,), ()))
    rules.append(("removes what is kept for good (C13.12-24)", (api.MESSAGE_DELETE,), _KEPT))
    if profile in AGENTS and holder.form is Form.MEDIATED:
        rules.append(("has the broker send stored bytes anywhere (C9-47)", (*_READS, api.ACK), ()))
    own = _listed(holder)
    # Most rows are none of these requests, on whatever stream: that is found with a fraction of the patterns.
    every = _patterns(tuple(one for _, requests, _ in rules for one in requests))
    for row in publish:
        if row.startswith("$") and row != own and _meets(row, every):
            yield from (f"publish {row}: {rule}" for rule, *which in rules if _meets(row, _on(*which, holder.space)))


def _meets(row: str, patterns: Iterable[str]) -> bool:
    return any(overlaps(row, one) for one in patterns)


@lru_cache(maxsize=256)
def _on(templates: tuple[Template, ...], stored: tuple[Stream | Bucket, ...], space: str) -> tuple[str, ...]:
    """Every request of these kinds on these streams of a space, or on any stream when none is named."""
    if not stored:
        return _patterns(templates)
    return tuple(one for stream in stored for one in _patterns(templates, stream.stream(space)))


@lru_cache(maxsize=256)
def _patterns(templates: tuple[Template, ...], stream: str | None = None) -> tuple[str, ...]:
    """Every request of these kinds, on one stream or on any."""
    named = {} if stream is None else {"stream": stream}
    return tuple(one for template in templates for one in (template.filter(**named), template.subtree(**named)))


def _listed(holder: Holder) -> str:
    """The one stored row that a caller reads itself: the accepted row of its own listing generation (C13.15-29)."""
    if holder.listing is None:
        return ""
    token = listing_token(holder.connection, horizon_of(holder.listing))
    key = buckets.ACCEPTED.subject(holder.space, buckets.ACCEPTED_KEY, token=token)
    return api.DIRECT_GET_LAST.build(stream=buckets.ACCEPTED.stream(holder.space), filter=key)


def _control(profile: Profile, holder: Holder, publish: Iterable[str]) -> Iterator[str]:
    """Consumers of the control surface: named literally, with a filter that is spelled in full (C13.9-040, -072)."""
    for row in publish:
        if profile is Profile.PROVISIONER or not _meets(row, _patterns(_CREATES)):
            continue
        for stream in _CONTROL:
            name = stream.stream(holder.space)
            if not _meets(row, _patterns(_CREATES, name)):
                continue
            head = api.CONSUMER_CREATE_NAMED.filter(stream=name)[: -len(WILDCARD)]
            consumer, _, pattern = row.removeprefix(head).partition(".")
            if not row.startswith(head) or WILDCARD in consumer or TAIL in consumer:
                yield f"publish {row}: the consumer is not named (C13.9-040)"
            elif pattern in ("", TAIL) or pattern.split(".")[0] in (WILDCARD, TAIL):
                yield f"publish {row}: the filter is not spelled in full (C13.9-040)"


def _senders(profile: Profile, holder: Holder, publish: Iterable[str]) -> Iterator[str]:
    """A caller publishes as itself: its two tokens stand, literally and side by side, in every subject (C3-10). What a
    serving process publishes is pinned to its instance and epoch instead (C13.9-020)."""
    root = subjects.SPACE.build(space=holder.space) + "."
    own = [holder.lifecycle.principal.owner, holder.lifecycle.principal.actor]
    for row in publish:
        if not row.startswith(root) or _of_service(profile, holder, row) or profile is Profile.DELIVERY:
            continue
        if profile is Profile.PUBLISHER and row == planes.CONTRACT.filter(space=holder.space):
            continue
        tokens = row.split(".")
        if profile not in _CALLERS or (profile is Profile.ENDPOINT and tokens[2] != "ep"):
            yield f"publish {row}: this profile publishes no application message"
            continue
        at = next((n for n in range(len(tokens) - 1) if tokens[n : n + 2] == own), None)
        if at is None:
            yield f"publish {row}: does not name its sender (C3-10)"
        elif tokens[2] == "ep" and tokens[at + 2 : at + 3] != [holder.lifecycle.uid]:
            yield f"publish {row}: does not pin the lifecycle (C13.9-008)"


def _of_service(profile: Profile, holder: Holder, row: str) -> bool:
    """Whether a row lies within what the holder's instance publishes at its epoch."""
    if profile not in SERVING or holder.service is None:
        return False
    own = {"space": holder.space, "endpoint": holder.service.token, "instance": holder.service.instance}
    own["epoch"] = str(holder.service.epoch)
    families = (*endpoint.REPLIES.values(), planes.EVENT, planes.TIMER_SCHEDULE, planes.RECORD_WRITE)
    return any(covers(one.filter(**own), row) for one in families)


def _modes(profile: Profile, holder: Holder, publish: Iterable[str]) -> Iterator[str]:
    """Which endpoints, commands and targets a request row may leave open (C13.9-009, C13.2-30..33, C13.2-36)."""
    roots = tuple(f"{subjects.SPACE.build(space=holder.space)}.ep.{rail}" for rail in ("v1.", ""))
    for row in publish:
        root = next((one for one in roots if row.startswith(one)), None)
        tokens = row.removeprefix(root).split(".") if root else []
        if not root or tokens[0] not in endpoint.ROUTES or len(tokens) < 5:
            continue
        command = 3 if tokens[0] == "inst" else 2
        mode = tokens[command + 1]
        if tokens[1] == WILDCARD and tokens[command] != DESCRIBE and profile is not Profile.OPERATOR:
            yield f"publish {row}: names no endpoint (C13.9-009)"
        if mode in (WILDCARD, TAIL) or tokens[command] == TAIL:
            yield f"publish {row}: leaves the mode open (C13.2-36)"
        elif mode in ("handle", "exact"):
            yield f"publish {row}: {mode} is never granted for good (C13.2-32, C13.2-33)"
        elif mode == "any" and profile is not Profile.OPERATOR:
            yield f"publish {row}: any is for operators (C13.2-31)"
        elif mode == "owner" and tokens[command + 2] != holder.lifecycle.principal.owner:
            yield f"publish {row}: names another owner than its own (C13.2-30)"
        elif mode in MODES and mode != "self" and WILDCARD in tokens[command + 2 : command + 3]:
            yield f"publish {row}: leaves the target open (C13.2-30)"


def _rails(profile: Profile, holder: Holder, granted: Permissions) -> Iterator[str]:
    """A caller rides one rail; a serving credential and the listing rows are on both (C13.2-26)."""
    if profile in SERVING:
        return
    root = subjects.SPACE.build(space=holder.space) + ".ep."
    rows = [row for row in (*granted.publish.allow, *granted.subscribe.allow) if row.startswith(root)]
    for row in rows:
        issued = row.startswith(f"{root}v1.")
        if issued and holder.generation is None and not (holder.listing and f".{holder.listing}." in row):
            yield f"{row}: rides the issued rail without a generation (C13.2-26)"
        elif issued and holder.generation is not None and f".{holder.generation}." not in row:
            yield f"{row}: does not pin its generation (C13.15-04)"
        elif not issued and holder.generation is not None:
            yield f"{row}: rides the legacy rail with a generation (C13.2-26)"
