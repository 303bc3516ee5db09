"""Rows of the profiles that no agent gets: hosts, and what the commands of an operator run as (CB-101..CB-109)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from sidecar.rails.names import api, buckets, consumers, streams, subjects
from sidecar.rails.names.template import Template
from sidecar.rails.space.holder import Holder, Profile
from sidecar.rails.space.rows import (
    MEDIATED,
    Named,
    Row,
    Values,
    calls,
    calls_below,
    constant,
    consumer_named,
    grant,
    keys_of,
    principal_of,
    single,
    space_of,
    stream_of,
    watches,
)

LIMITED = (streams.CHAT, streams.DM, streams.INBOX, streams.DLV)
"""Streams with a history limit that an operator sets (C8-07, C8-51)."""
DELIVERY, PROVISIONER = Profile.DELIVERY, Profile.PROVISIONER


def delivery_rows() -> Iterator[Row]:
    held = (DELIVERY,)
    yield grant("CB-103", held, "publish", api.INFO, constant())
    yield from calls("CB-103", held, (streams.CHAT, streams.INBOX, streams.DLV), api.STREAM_INFO)
    yield from calls("CB-103", held, (streams.CHAT,), api.CONSUMER_CREATE)
    chat = (api.CONSUMER_CREATE_NAMED, api.DURABLE_CREATE, api.CONSUMER_INFO, api.CONSUMER_NEXT, api.CONSUMER_DELETE)
    yield from calls_below("CB-103", held, (streams.CHAT,), *chat, api.ACK)
    reader = consumer_named(streams.INBOX, consumers.READER)
    for template in (api.DURABLE_CREATE, api.CONSUMER_INFO, api.CONSUMER_NEXT, api.CONSUMER_DELETE):
        yield grant("CB-103", held, "publish", template, reader)
    for template in (api.CONSUMER_CREATE_NAMED, api.ACK):
        yield grant("CB-103", held, "publish", template, reader, below=True)
    yield grant("CB-103", held, "publish", api.FLOW, constant(), below=True)
    kept = (buckets.PRESENCE, buckets.CHANNELS, buckets.MEMBERS, buckets.ACL, buckets.ANYCAST)
    yield from calls("CB-103", held, (*kept, buckets.DELIVERY), api.STREAM_INFO, api.MESSAGE_GET)
    yield from watches("CB-103", held, *kept)
    yield from calls_below("CB-103", held, kept, api.CONSUMER_DELETE)
    yield keys_of("CB-103", held, buckets.MEMBERS)
    yield keys_of("CB-89", held, buckets.ANYCAST)
    yield grant("CB-103", held, "publish", buckets.KV_SUBJECT, _lease_keys)
    for template in (subjects.DINBOX, subjects.DLV):
        yield grant("CB-103", held, "publish", template, single(space_of))
    yield from calls("CB-89", held, (streams.TASK,), api.STREAM_INFO, api.MESSAGE_GET, api.MESSAGE_DELETE)
    yield grant("CB-89", held, "subscribe", subjects.TAKE, single(space_of), queue="take")
    yield grant("CB-89", held, "publish", subjects.TAKE_REPLY, single(space_of))
    plane = single(lambda holder: {**space_of(holder), "plane": "delivery"})
    queue = subjects.LIVE_QUEUE.build(plane="delivery")
    yield grant("C6.1-23", held, "subscribe", subjects.LIVE, plane, queue=queue)
    yield grant("C6.1-23", held, "publish", subjects.LIVE_REPLY, plane)
    # What it reads for the agents of a mediated space: their own consumers, which they cannot pull themselves.
    mixed = (streams.DM, streams.TASK, streams.DLV)
    yield from calls_below("C9-47", held, mixed, api.CONSUMER_INFO, api.CONSUMER_NEXT, api.ACK, forms=MEDIATED)
    for bucket in (buckets.PRESENCE, buckets.CHANNELS):
        yield grant("C9-47", held, "publish", api.DIRECT_GET, stream_of(bucket), forms=MEDIATED)


def _lease_keys(holder: Holder) -> Iterable[Values]:
    return [{"bucket": buckets.DELIVERY.bucket(holder.space), "key": buckets.DELIVERY_LEASE.build(shard=0)}]


def provisioner_rows() -> Iterator[Row]:
    held = (PROVISIONER,)
    everything: tuple[Named, ...] = (*streams.STREAMS, *buckets.BUCKETS)
    yield grant("CB-101", held, "publish", api.INFO, constant())
    yield from calls("CB-101", held, everything, api.STREAM_CREATE, api.STREAM_INFO)
    aged = (buckets.PRESENCE, buckets.DELIVERY, buckets.MANAGER, buckets.RECORDS)
    yield from calls("CB-101", held, aged, api.STREAM_UPDATE)
    bound = (streams.DM, streams.DLV, streams.TASK)
    yield from calls_below("CB-101", held, bound, api.CONSUMER_CREATE_NAMED, api.DURABLE_CREATE, api.CONSUMER_INFO)
    for bucket in (buckets.ACL, buckets.CHANNELS):
        yield keys_of("CB-101", held, bucket)
        yield from calls("CB-101", held, (bucket,), api.MESSAGE_GET, api.DIRECT_GET)
        yield from calls_below("CB-101", held, (bucket,), api.DIRECT_GET)
    yield grant("C13.9-M01", held, "publish", api.USER_INFO, constant())


def deprovisioner_rows() -> Iterator[Row]:
    """The end of exactly one lifecycle: its two durables, its read ACL, and the memberships that are named (CB-74)."""
    held = (Profile.DEPROVISIONER,)

    def durable(name: Named, consumer: Template) -> Callable[[Holder], Iterable[Values]]:
        def values(holder: Holder) -> Iterable[Values]:
            ends = holder.ends
            if ends is None:
                return []
            return [{"stream": name.stream(holder.space), "consumer": consumer.build(**ends.lifecycle.names)}]

        return values

    def acl(holder: Holder) -> Iterable[Values]:
        if holder.ends is None:
            return []
        key = buckets.ACL_KEY.build(**holder.ends.lifecycle.names)
        return [{"bucket": buckets.ACL.bucket(holder.space), "key": key}]

    def members(holder: Holder) -> Iterable[Values]:
        if holder.ends is None:
            return []
        bucket, life = buckets.MEMBERS.bucket(holder.space), holder.ends.lifecycle
        return [{"bucket": bucket, "key": buckets.member_key(channel, life)} for channel in holder.ends.channels]

    yield grant("CB-102", held, "publish", api.INFO, constant())
    yield grant("CB-102", held, "publish", api.CONSUMER_DELETE, durable(streams.DM, consumers.DM))
    yield grant("CB-102", held, "publish", api.CONSUMER_DELETE, durable(streams.DLV, consumers.HANDOFF))
    yield from calls("CB-102", held, (buckets.ACL,), api.STREAM_INFO)
    yield grant("CB-102", held, "publish", buckets.KV_SUBJECT, acl)
    yield grant("CB-102", held, "publish", buckets.KV_SUBJECT, members)


def feed_rows() -> Iterator[Row]:
    """The writer of the membership feed (CB-104)."""
    held = (Profile.MEMBERSHIP_RW,)
    read = (buckets.MEMBERS, buckets.MEMBERSHIP)
    yield grant("CB-104", held, "publish", api.INFO, constant())
    yield from calls("CB-104", held, read, api.STREAM_INFO, api.MESSAGE_GET)
    yield from watches("CB-104", held, *read)
    yield from calls_below("CB-104", held, read, api.CONSUMER_DELETE)
    yield keys_of("CB-104", held, buckets.MEMBERSHIP)
    yield grant("CB-104", held, "publish", api.FLOW, constant(), below=True)


def operator_rows() -> Iterator[Row]:
    """What the commands of an operator run as, for minutes (CB-105..CB-109). A probe publishes nothing."""
    operator, writer, purger = (Profile.OPERATOR,), (Profile.CHANNEL_WRITER,), (Profile.PURGER,)
    yield grant("CB-105", (*operator, *writer, *purger), "publish", api.INFO, constant())
    yield grant("CB-105", operator, "publish", subjects.CHAT, single(principal_of), below=True)
    yield from calls("CB-105", operator, (buckets.PRESENCE,), api.STREAM_INFO)
    yield from calls("CB-105", operator, (buckets.CHANNELS,), api.STREAM_INFO, api.MESSAGE_GET)
    yield from watches("CB-105", operator, buckets.PRESENCE, buckets.CHANNELS)
    yield from calls_below("CB-105", operator, (buckets.CHANNELS,), api.DIRECT_GET)
    yield grant("CB-105", operator, "publish", api.FLOW, constant(), below=True)
    yield keys_of("CB-107", writer, buckets.CHANNELS)
    yield from calls("CB-107", writer, (buckets.CHANNELS,), api.STREAM_INFO, api.STREAM_CREATE, api.MESSAGE_GET)
    yield from calls_below("CB-107", writer, (buckets.CHANNELS,), api.DIRECT_GET)
    yield from calls("CB-109", purger, (streams.CHAT, streams.DM), api.STREAM_PURGE)


def limiter_rows() -> Iterator[Row]:
    """The history limits of a space, and the count of what a change of them deletes (C8-15, C8-57)."""
    held = (Profile.LIMITER,)
    yield from calls("C8-15", held, LIMITED, api.STREAM_INFO, api.STREAM_UPDATE)
    for stream in LIMITED:
        counter = consumer_named(stream, consumers.LIMITER)
        yield grant("C8-57", held, "publish", api.CONSUMER_CREATE_NAMED, counter)
        yield grant("C8-57", held, "publish", api.CONSUMER_DELETE, counter)
