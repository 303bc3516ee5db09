"""The end of a lifecycle at the broker: where it ended, what it was a member of, and the removal of what it bound.

``reader`` is the provisioner, which may look; ``ender`` the deprovisioner of exactly this lifecycle, which may remove
(CB-74, CB-102). Everything may be run again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from nats.aio.client import Client

from sidecar.rails.names import api, buckets, consumers, headers, streams
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.principals import Lifecycle
from sidecar.rails.space.asking import BrokerRefused, ask

_NO_CONSUMER: Final = 10014
_PAGES: Final = 64
_BATCH_BYTES: Final = 8 * 1024
"""Channel names in one deprovisioner's grants, well below the grant bound (C13.9-013)."""


async def frontiers(reader: Client, space: str) -> dict[str, int]:
    """Last sequence of every stream that holds something of a lifecycle (C8-33)."""
    found = {}
    for stream in (streams.CHAT, streams.DM, streams.INBOX, streams.DLV):
        answer = await ask(reader, api.STREAM_INFO.build(stream=stream.stream(space)))
        found[stream.stream(space)] = last_sequence(answer)
    return found


def last_sequence(answer: dict[str, Any]) -> int:
    """The last sequence in an answer to a stream info. Raises BrokerRefused."""
    state = answer.get("state")
    sequence = state.get("last_seq") if isinstance(state, dict) else None
    if type(sequence) is not int:
        raise BrokerRefused("stream info", {"description": "the answer has no state"})
    return sequence


async def subjects_of(reader: Client, stream: str, pattern: str) -> dict[str, int]:
    """Every subject of a stream that fits a pattern, with its number of messages; paged as the broker pages them."""
    found: dict[str, int] = {}
    request = api.STREAM_INFO.build(stream=stream)
    for _ in range(_PAGES):
        answer = await ask(reader, request, {"subjects_filter": pattern, "offset": len(found)})
        state = answer.get("state")
        page = state.get("subjects") if isinstance(state, dict) else None
        if not isinstance(page, dict) or not page:
            return found
        found |= page
        if len(found) >= int(answer.get("total") or 0):
            return found
    raise BrokerRefused(request, {"description": f"more subjects than {_PAGES} pages hold"})


async def memberships(reader: Client, space: str, lifecycle: Lifecycle) -> list[str]:
    """Channels and families of which the lifecycle is a durable member, by the keys that stand in the bucket."""
    bucket = buckets.MEMBERS
    found = []
    for subject in await subjects_of(reader, bucket.stream(space), bucket.everything(space)):
        try:
            channel, member = buckets.parse_member_key(subject.removeprefix(bucket.everything(space).rstrip(">")))
        except InvalidName:
            continue  # no key of a member
        if member == lifecycle:
            found.append(channel)
    return sorted(found)


def batches(channels: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """The channels in parts that each fit into one credential; one empty part when there are none."""
    part: list[str] = []
    size = 0
    for channel in channels:
        if part and size + len(channel) + 128 > _BATCH_BYTES:
            yield tuple(part)
            part, size = [], 0
        part.append(channel)
        size += len(channel) + 128
    yield tuple(part)


async def leave(ender: Client, space: str, lifecycle: Lifecycle, channels: Iterable[str]) -> None:
    """Remove the membership rows of these channels by their exact keys (CD-03)."""
    bucket = buckets.MEMBERS.bucket(space)
    for channel in channels:
        subject = buckets.KV_SUBJECT.build(bucket=bucket, key=buckets.member_key(channel, lifecycle))
        await ask(ender, subject, b"", headers={headers.KV_OPERATION: headers.KV_DELETE})


async def unbind(ender: Client, space: str, lifecycle: Lifecycle) -> list[str]:
    """Delete the two durables of a lifecycle; the names of those that were there."""
    removed = []
    for stream, template in ((streams.DM, consumers.DM), (streams.DLV, consumers.HANDOFF)):
        name = template.build(**lifecycle.names)
        try:
            await ask(ender, api.CONSUMER_DELETE.build(stream=stream.stream(space), consumer=name))
        except BrokerRefused as error:
            if error.code != _NO_CONSUMER:
                raise
        else:
            removed.append(name)
    return removed
