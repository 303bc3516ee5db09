"""The ownership matrix: who may do what, as data (C9-14, C13.9-038).

A row says which profiles hold it, in which direction, and which template with which values of the holder it is. Grants
are derived from it (``grants``) and judged by it (``audit``); nothing else in the tree gives a permission.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from sidecar.rails.names import api, buckets, consumers, endpoint, inboxes, streams, subjects
from sidecar.rails.names.endpoint import UNTARGETED
from sidecar.rails.names.limits import HISTORY_READER_SLOTS
from sidecar.rails.names.template import Template
from sidecar.rails.names.tokens import PLANES
from sidecar.rails.space import matrix_calls, matrix_control, matrix_hosts, matrix_serve
from sidecar.rails.space.holder import Form, Holder, Profile
from sidecar.rails.space.rows import (
    COMPATIBLE,
    DELIVERY_ENDPOINT,
    MEDIATED,
    Direction,
    Named,
    Row,
    Values,
    binds,
    calls,
    calls_below,
    constant,
    consumer_of,
    grant,
    principal_of,
    single,
    space_of,
    stream_of,
    triple_of,
    watches,
)

AGENT, OBSERVER, ADMIN = Profile.AGENT, Profile.OBSERVER, Profile.ADMIN
DM_READER, OPERATOR = Profile.DM_READER, Profile.OPERATOR
READERS: Final = (OBSERVER, ADMIN)
DELIVERY_COMMANDS: Final = matrix_calls.DELIVERY_COMMANDS
READ_COMMANDS: Final = matrix_calls.READ_COMMANDS
SENDERS: Final = (AGENT, OPERATOR)
"""Profiles that send direct messages and work to roles, as themselves."""


# ---- agents ----


def _agent_subjects() -> Iterator[Row]:
    own = single(principal_of)

    def channels(attribute: str) -> Callable[[Holder], Iterable[Values]]:
        def values(holder: Holder) -> Iterable[Values]:
            base = space_of(holder) if attribute == "readable" else principal_of(holder)
            return [{**base, "channel": channel} for channel in getattr(holder, attribute)]

        return values

    def roles(holder: Holder) -> Iterable[Values]:
        return [{**principal_of(holder), "role": role} for role in holder.roles]

    def planes(holder: Holder) -> Iterable[Values]:
        return [{**principal_of(holder), "plane": plane} for plane in PLANES]

    yield grant(
        "CB-01",
        tuple(Profile),
        "subscribe",
        inboxes.INBOX,
        lambda holder: [{"connection": holder.connection}],
        below=True,
    )
    agent = (AGENT,)
    yield grant("CB-02", agent, "subscribe", subjects.LIVE, planes, below=True)
    yield grant("CB-03", agent, "subscribe", subjects.TAKE, roles, own, below=True)
    yield from matrix_calls.replies("CB-04", agent)
    yield grant("CB-07", agent, "subscribe", subjects.CHAT, channels("readable"), single(space_of))
    yield grant("CB-08", agent, "publish", subjects.CHAT, channels("allow_publish"), own)
    yield grant("CB-09", (*SENDERS, Profile.DELIVERY), "publish", subjects.INST, own)
    yield grant("CB-10", SENDERS, "publish", subjects.SVC, own)
    yield grant("CB-11", agent, "publish", subjects.LIVE, planes)
    yield grant("CB-43", agent, "publish", subjects.TAKE, roles, own)
    yield grant(
        "CB-36",
        SENDERS,
        "publish",
        buckets.KV_SUBJECT,
        lambda holder: [{"bucket": buckets.PRESENCE.bucket(holder.space), "key": holder.lifecycle.principal.dot}],
    )


def _history(holder: Holder) -> Iterable[Values]:
    """One pinned filter for each readable entry. An entry that ends in ``*`` has none: the filter is a part of the
    subject that is published, where ``*`` would admit the literal ``>`` and with it what lies deeper."""
    name = consumers.CHAT_HISTORY.build(**holder.lifecycle.names)
    filters = (subjects.CHAT.filter(space=holder.space, channel=one) for one in holder.readable if not _starred(one))
    return [{"stream": streams.CHAT.stream(holder.space), "consumer": name, "filter": one} for one in filters]


def _any_history(holder: Holder) -> Iterable[Values]:
    name = consumers.CHAT_HISTORY.build(**holder.lifecycle.names)
    everything = subjects.CHAT.filter(space=holder.space)
    return [{"stream": streams.CHAT.stream(holder.space), "consumer": name, "filter": everything}]


def _starred(channel: str) -> bool:
    return channel.split(".")[-1] == "*"


def _agent_reads() -> Iterator[Row]:
    """The raw reads of the compatible form; a mediated agent has none of them."""
    agent, forms = (AGENT,), COMPATIBLE
    world: tuple[Named, ...] = (streams.CHAT, buckets.PRESENCE, buckets.CHANNELS, buckets.DELIVERY)

    def publish(row: str, template: Template, name: Named) -> Row:
        return grant(row, agent, "publish", template, stream_of(name), forms=forms)

    yield grant("CB-20", agent, "publish", api.INFO, constant(), forms=forms)
    for name in world:
        yield publish("CB-21", api.STREAM_INFO, name)
    yield grant("CB-22", agent, "publish", api.CONSUMER_CREATE_FILTERED, _history, _any_history, forms=forms)
    history = consumer_of(streams.CHAT, consumers.CHAT_HISTORY)
    for template in (api.CONSUMER_INFO, api.CONSUMER_NEXT, api.CONSUMER_DELETE):
        yield grant("CB-23..25", agent, "publish", template, history, forms=forms)
    yield from binds("CB-26..28", agent, streams.DM, consumer_of(streams.DM, consumers.DM), forms)
    yield from binds("CB-29..31", agent, streams.DLV, consumer_of(streams.DLV, consumers.HANDOFF), forms)
    yield publish("CB-32", api.DIRECT_GET, buckets.PRESENCE)
    yield from calls_below(
        "CB-33..34", agent, (buckets.PRESENCE,), api.CONSUMER_CREATE_NAMED, api.CONSUMER_INFO, forms=forms
    )
    yield grant("CB-35", agent, "publish", api.FLOW, constant(), below=True, forms=forms)
    yield publish("CB-37", api.MESSAGE_GET, buckets.CHANNELS)
    yield publish("CB-38", api.DIRECT_GET, buckets.CHANNELS)
    yield from calls_below(
        "CB-39..40", agent, (buckets.CHANNELS,), api.CONSUMER_CREATE_NAMED, api.CONSUMER_INFO, forms=forms
    )
    yield publish("CB-41", api.MESSAGE_GET, buckets.DELIVERY)

    def task(holder: Holder) -> Iterable[Values]:
        return [{"stream": streams.TASK.stream(holder.space)}] if holder.roles else []

    def queues(holder: Holder) -> Iterable[Values]:
        return [
            {"stream": streams.TASK.stream(holder.space), "consumer": consumers.ROLE.build(role=role)}
            for role in holder.roles
        ]

    yield grant("CB-42", agent, "publish", api.STREAM_INFO, task, forms=forms)
    yield from binds("CB-42", agent, streams.TASK, queues, forms)


# ---- observers and admins ----


def _reader_rows() -> Iterator[Row]:
    def tap(row: str, profiles: tuple[Profile, ...], template: Template) -> Row:
        return grant(row, profiles, "subscribe", template, single(space_of), below=True)

    def slots(name: Named) -> Callable[[Holder], Iterable[Values]]:
        def values(holder: Holder) -> Iterable[Values]:
            names = (
                consumers.HISTORY_READER.build(reader=holder.connection, slot=n) for n in range(HISTORY_READER_SLOTS)
            )
            return [{"stream": name.stream(holder.space), "consumer": one} for one in names]

        return values

    def history(row: str, profiles: tuple[Profile, ...], name: Named) -> Iterator[Row]:
        yield from calls(row, profiles, (name,), api.STREAM_INFO, api.CONSUMER_CREATE)
        yield from calls_below(
            row, profiles, (name,), api.CONSUMER_CREATE_NAMED, api.CONSUMER_INFO, api.CONSUMER_NEXT, api.ACK
        )
        yield grant(row, profiles, "publish", api.CONSUMER_DELETE, slots(name))

    yield tap("CB-57", READERS, subjects.CHAT)
    for template in (subjects.INST, subjects.SVC):
        yield tap("CB-71", (ADMIN,), template)
    yield grant("CB-59", READERS, "publish", api.INFO, constant())
    yield from history("CB-59..61", READERS, streams.CHAT)
    yield from history("CB-72", (ADMIN,), streams.DM)
    yield from calls("CB-59", READERS, (buckets.PRESENCE,), api.STREAM_INFO)
    yield from watches("CB-62", READERS, buckets.PRESENCE)
    yield from calls("CB-63", READERS, (buckets.CHANNELS,), api.STREAM_INFO, api.MESSAGE_GET)
    yield from watches("CB-63", READERS, buckets.CHANNELS)
    yield from calls("CB-64", READERS, (buckets.MEMBERSHIP,), api.STREAM_INFO, api.MESSAGE_GET, api.DIRECT_GET)
    yield from watches("CB-64", READERS, buckets.MEMBERSHIP)
    yield from calls("CB-65", READERS, (buckets.DELIVERY,), api.STREAM_INFO, api.MESSAGE_GET)
    yield grant("CB-65", READERS, "publish", api.FLOW, constant(), below=True)


def _dm_reader_rows() -> Iterator[Row]:
    """A reader of its own direct messages, and of nothing else (C8-36..C8-39)."""
    reader = (DM_READER,)
    yield from binds("C8-39", reader, streams.DM, consumer_of(streams.DM, consumers.DM), COMPATIBLE)

    def reads(holder: Holder) -> Iterable[Values]:
        return [{**triple_of(holder), "endpoint": DELIVERY_ENDPOINT, "command": one} for one in ("fetch", "settle")]

    # In a mediated space it has no raw read either (C9-47): it asks as an agent does.
    requests = endpoint.REQUESTS["one", UNTARGETED, False]
    yield grant("C9-47", reader, "publish", requests, reads, forms=MEDIATED)
    yield grant("C9-47", reader, "subscribe", endpoint.REPLIES[False], single(triple_of), forms=MEDIATED)


MATRIX: Final = (
    *_agent_subjects(),
    *matrix_calls.call_rows(),
    *matrix_calls.event_rows(),
    *matrix_calls.listing_rows(),
    *_agent_reads(),
    *_reader_rows(),
    *_dm_reader_rows(),
    *matrix_hosts.delivery_rows(),
    *matrix_hosts.provisioner_rows(),
    *matrix_hosts.deprovisioner_rows(),
    *matrix_hosts.feed_rows(),
    *matrix_hosts.operator_rows(),
    *matrix_hosts.limiter_rows(),
    *matrix_serve.serving_rows(),
    *matrix_serve.own_writes(),
    *matrix_control.registry_rows(),
    *matrix_control.record_writer_rows(),
    *matrix_control.publisher_rows(),
    *matrix_control.registrar_rows(),
    *matrix_control.issuer_rows(),
    *matrix_control.lifecycle_rows(),
)
"""Every row, in the order in which grants are written."""

NO_CREATE: Final = {AGENT: (streams.DM, streams.TASK, streams.DLV)}
"""Streams on which a profile is denied every consumer create, whatever else it holds (CB-44..CB-52)."""


def rows_of(profile: Profile, form: Form, direction: Direction) -> list[Row]:
    """The matrix rows that a profile holds in spaces of ``form``."""
    return [row for row in MATRIX if profile in row.profiles and form in row.forms and row.direction == direction]
