"""The ownership matrix of the messaging plane: who may do what, as data (C9-14, C13.9-038).

A row says which profiles hold it, in which direction, and which template with which values of the holder it is. Grants
are derived from it (``grants``) and judged by it (``audit``); nothing else in the tree gives a permission.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from sidecar.rails.names import api, buckets, consumers, endpoint, inboxes, streams, subjects
from sidecar.rails.names.endpoint import UNTARGETED
from sidecar.rails.names.limits import HISTORY_READER_SLOTS
from sidecar.rails.names.template import Template
from sidecar.rails.names.tokens import PLANES
from sidecar.rails.space.holder import Capability, Form, Holder, Profile

Values = Mapping[str, str | int]
Direction = Literal["publish", "subscribe"]

AGENT, OBSERVER, ADMIN = Profile.AGENT, Profile.OBSERVER, Profile.ADMIN
DELIVERY, PROVISIONER = Profile.DELIVERY, Profile.PROVISIONER
READERS: Final = (OBSERVER, ADMIN)
COMPATIBLE, MEDIATED = (Form.COMPATIBLE,), (Form.MEDIATED,)
BOTH: Final = (Form.COMPATIBLE, Form.MEDIATED)

SELF_COMMANDS: Final = ("run-answer", "turn-participate", "turn-pending", "turn-unconfirmed", "turn-yield")
"""Commands of the manager that every agent may send about itself (CB-16)."""
DELIVERY_COMMANDS: Final = (
    "anycast-cancel",
    "anycast-status",
    "anycast-takes",
    "durable-join",
    "durable-leave",
    "list-memberships",
)
"""Commands of the delivery endpoint that every agent may send (CB-15, OPEN C7-a)."""
READ_COMMANDS: Final = ("fetch", "read-history", "read-registry", "read-roster", "settle")
"""Commands by which the delivery plane reads for an agent of a mediated space (C9-47)."""
_DESCRIBE: Final = "describe"
_DELIVERY: Final = "delivery"
"""Endpoint, and queue group of its class rail (C13.9-M04)."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row: ``profiles`` in ``forms`` hold ``template`` in one direction.

    ``values`` gives the fields of each subject that a holder gets; a field that it leaves out is a wildcard of the
    grant. ``below`` makes it everything below the subject, ``queue`` admits queue subscriptions of that group only.
    ``widest`` are the fields without those that come from a list of the holder: no derived row reaches beyond it.
    """

    row: str
    profiles: tuple[Profile, ...]
    direction: Direction
    template: Template
    values: Callable[[Holder], Iterable[Values]]
    widest: Callable[[Holder], Iterable[Values]]
    below: bool = False
    queue: str = ""
    forms: tuple[Form, ...] = BOTH

    def subjects(self, holder: Holder) -> list[str]:
        """The permission rows that ``holder`` gets."""
        return [self._text(values) for values in self.values(holder)]

    def ceilings(self, holder: Holder) -> list[str]:
        """What every one of them lies within."""
        return [self._text(values) for values in self.widest(holder)]

    def _text(self, values: Values) -> str:
        subject = self.template.subtree(**values) if self.below else self.template.filter(**values)
        return f"{subject} {self.queue}" if self.queue else subject


def _space(holder: Holder) -> dict[str, str]:
    return {"space": holder.space}


def _own(holder: Holder) -> dict[str, str]:
    principal = holder.lifecycle.principal
    return {"space": holder.space, "owner": principal.owner, "actor": principal.actor}


def _triple(holder: Holder) -> dict[str, str]:
    return {"space": holder.space, **holder.lifecycle.names}


def _rows(
    row: str,
    profiles: tuple[Profile, ...],
    direction: Direction,
    template: Template,
    values: Callable[[Holder], Iterable[Values]],
    widest: Callable[[Holder], Iterable[Values]] | None = None,
    *,
    below: bool = False,
    queue: str = "",
    forms: tuple[Form, ...] = BOTH,
) -> Row:
    return Row(row, profiles, direction, template, values, widest or values, below, queue, forms)


def _one(values: Callable[[Holder], Values]) -> Callable[[Holder], Iterable[Values]]:
    return lambda holder: [values(holder)]


def _constant(**values: str) -> Callable[[Holder], Iterable[Values]]:
    return lambda holder: [values]


# ---- streams and buckets ----

Named = streams.Stream | buckets.Bucket


def _stream(name: Named) -> Callable[[Holder], Iterable[Values]]:
    return lambda holder: [{"stream": name.stream(holder.space)}]


def _consumer(name: Named, consumer: Template) -> Callable[[Holder], Iterable[Values]]:
    """A consumer of one lifecycle."""
    return lambda holder: [{"stream": name.stream(holder.space), "consumer": consumer.build(**holder.lifecycle.names)}]


def _literal(name: Named, consumer: Template) -> Callable[[Holder], Iterable[Values]]:
    return lambda holder: [{"stream": name.stream(holder.space), "consumer": consumer.build()}]


def _api(row: str, profiles: tuple[Profile, ...], names: Iterable[Named], *templates: Template) -> Iterator[Row]:
    """Publish rows of exactly these interfaces on exactly these streams."""
    for name in names:
        for template in templates:
            yield _rows(row, profiles, "publish", template, _stream(name))


def _api_below(
    row: str,
    profiles: tuple[Profile, ...],
    names: Iterable[Named],
    *templates: Template,
    forms: tuple[Form, ...] = BOTH,
) -> Iterator[Row]:
    for name in names:
        for template in templates:
            yield _rows(row, profiles, "publish", template, _stream(name), below=True, forms=forms)


def _bind(
    row: str, name: Named, consumer: Callable[[Holder], Iterable[Values]], forms: tuple[Form, ...]
) -> Iterator[Row]:
    """Use of a consumer that somebody else made: look, pull, ack (C8-39)."""
    for template in (api.CONSUMER_INFO, api.CONSUMER_NEXT):
        yield _rows(row, (AGENT,), "publish", template, consumer, forms=forms)
    yield _rows(row, (AGENT,), "publish", api.ACK, consumer, below=True, forms=forms)


def _watch(row: str, profiles: tuple[Profile, ...], *names: Named) -> Iterator[Row]:
    """What a watcher of a bucket sends."""
    yield from _api_below(row, profiles, names, api.CONSUMER_CREATE_NAMED, api.CONSUMER_INFO)


def _key(row: str, profiles: tuple[Profile, ...], bucket: buckets.Bucket) -> Row:
    """Every key of a bucket."""
    return _rows(
        row,
        profiles,
        "publish",
        buckets.KV_ALL,
        lambda holder: [{"bucket": bucket.bucket(holder.space)}],
        below=True,
    )


# ---- agents ----


def _agent_subjects() -> Iterator[Row]:
    own = _one(_own)

    def channels(attribute: str) -> Callable[[Holder], Iterable[Values]]:
        def values(holder: Holder) -> Iterable[Values]:
            base = _space(holder) if attribute == "readable" else _own(holder)
            return [{**base, "channel": channel} for channel in getattr(holder, attribute)]

        return values

    def roles(holder: Holder) -> Iterable[Values]:
        return [{**_own(holder), "role": role} for role in holder.roles]

    def planes(holder: Holder) -> Iterable[Values]:
        return [{**_own(holder), "plane": plane} for plane in PLANES]

    everyone = (*READERS, AGENT, DELIVERY, PROVISIONER)
    yield _rows(
        "CB-01", everyone, "subscribe", inboxes.INBOX, lambda holder: [{"connection": holder.connection}], below=True
    )
    agent = (AGENT,)
    yield _rows("CB-02", agent, "subscribe", subjects.LIVE, planes, below=True)
    yield _rows("CB-03", agent, "subscribe", subjects.TAKE, roles, own, below=True)
    yield _rows("CB-04", agent, "subscribe", endpoint.REPLIES[False], _one(_triple))
    yield _rows("CB-07", agent, "subscribe", subjects.CHAT, channels("readable"), _one(_space))
    yield _rows("CB-08", agent, "publish", subjects.CHAT, channels("allow_publish"), own)
    yield _rows("CB-09", (AGENT, DELIVERY), "publish", subjects.INST, own)
    yield _rows("CB-10", agent, "publish", subjects.SVC, own)
    yield _rows("CB-11", agent, "publish", subjects.LIVE, planes)
    yield _rows("CB-43", agent, "publish", subjects.TAKE, roles, own)
    yield _rows(
        "CB-36",
        agent,
        "publish",
        buckets.KV_SUBJECT,
        lambda holder: [{"bucket": buckets.PRESENCE.bucket(holder.space), "key": holder.lifecycle.principal.dot}],
    )


def _requests(
    row: str, route: str, mode: str, named: Callable[[Holder], Iterable[Values]], forms: tuple[Form, ...] = BOTH
) -> Row:
    def values(holder: Holder) -> Iterable[Values]:
        return [{**_triple(holder), **one} for one in named(holder)]

    return _rows(row, (AGENT,), "publish", endpoint.REQUESTS[route, mode, False], values, forms=forms)


def _agent_requests() -> Iterator[Row]:
    def commands(name: str, *wanted: str) -> Callable[[Holder], Iterable[Values]]:
        return lambda holder: [{"endpoint": name, "command": command} for command in wanted]

    def able(mode: str, *, journal: bool = False) -> Callable[[Holder], Iterable[Values]]:
        def wanted(one: Capability) -> bool:
            return one.mode == mode and (one.journal or not journal)

        return lambda holder: [one.tokens for one in holder.capabilities if wanted(one)]

    for route in endpoint.ROUTES:
        # The one row of untrusted profiles with every endpoint in it (OPEN C13.9-f).
        yield _requests("CB-14", route, UNTARGETED, _constant(command=_DESCRIBE))
    yield _requests("CB-15", "one", UNTARGETED, commands(_DELIVERY, *DELIVERY_COMMANDS))
    yield _requests("C9-47", "one", UNTARGETED, commands(_DELIVERY, *READ_COMMANDS), forms=MEDIATED)
    yield _requests("CB-16", "one", "self", commands("manager", *SELF_COMMANDS))
    for mode in dict.fromkeys(mode for _, mode, _ in endpoint.REQUESTS):
        for route in endpoint.ROUTES:
            yield _requests("C13.9-M02", route, mode, able(mode))

        def submitted(holder: Holder, mode: str = mode) -> Iterable[Values]:
            return [{**_triple(holder), **one} for one in able(mode, journal=True)(holder)]

        yield _rows("C13.9-M12", (AGENT,), "publish", endpoint.SUBMISSIONS[mode], submitted)


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
        return _rows(row, agent, "publish", template, _stream(name), forms=forms)

    yield _rows("CB-20", agent, "publish", api.INFO, _constant(), forms=forms)
    for name in world:
        yield publish("CB-21", api.STREAM_INFO, name)
    yield _rows("CB-22", agent, "publish", api.CONSUMER_CREATE_FILTERED, _history, _any_history, forms=forms)
    history = _consumer(streams.CHAT, consumers.CHAT_HISTORY)
    for template in (api.CONSUMER_INFO, api.CONSUMER_NEXT, api.CONSUMER_DELETE):
        yield _rows("CB-23..25", agent, "publish", template, history, forms=forms)
    yield from _bind("CB-26..28", streams.DM, _consumer(streams.DM, consumers.DM), forms)
    yield from _bind("CB-29..31", streams.DLV, _consumer(streams.DLV, consumers.HANDOFF), forms)
    yield publish("CB-32", api.DIRECT_GET, buckets.PRESENCE)
    yield from _api_below(
        "CB-33..34", agent, (buckets.PRESENCE,), api.CONSUMER_CREATE_NAMED, api.CONSUMER_INFO, forms=forms
    )
    yield _rows("CB-35", agent, "publish", api.FLOW, _constant(), below=True, forms=forms)
    yield publish("CB-37", api.MESSAGE_GET, buckets.CHANNELS)
    yield publish("CB-38", api.DIRECT_GET, buckets.CHANNELS)
    yield from _api_below(
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

    yield _rows("CB-42", agent, "publish", api.STREAM_INFO, task, forms=forms)
    yield from _bind("CB-42", streams.TASK, queues, forms)


# ---- observers and admins ----


def _reader_rows() -> Iterator[Row]:
    def tap(template: Template) -> Row:
        profiles = READERS if template is subjects.CHAT else (ADMIN,)
        return _rows(
            "CB-57" if template is subjects.CHAT else "CB-71", profiles, "subscribe", template, _one(_space), below=True
        )

    def slots(name: Named) -> Callable[[Holder], Iterable[Values]]:
        def values(holder: Holder) -> Iterable[Values]:
            names = (
                consumers.HISTORY_READER.build(reader=holder.connection, slot=n) for n in range(HISTORY_READER_SLOTS)
            )
            return [{"stream": name.stream(holder.space), "consumer": one} for one in names]

        return values

    def history(row: str, profiles: tuple[Profile, ...], name: Named) -> Iterator[Row]:
        yield from _api(row, profiles, (name,), api.STREAM_INFO, api.CONSUMER_CREATE)
        yield from _api_below(
            row, profiles, (name,), api.CONSUMER_CREATE_NAMED, api.CONSUMER_INFO, api.CONSUMER_NEXT, api.ACK
        )
        yield _rows(row, profiles, "publish", api.CONSUMER_DELETE, slots(name))

    for template in (subjects.CHAT, subjects.INST, subjects.SVC):
        yield tap(template)
    yield _rows("CB-59", READERS, "publish", api.INFO, _constant())
    yield from history("CB-59..61", READERS, streams.CHAT)
    yield from history("CB-72", (ADMIN,), streams.DM)
    yield from _api("CB-59", READERS, (buckets.PRESENCE,), api.STREAM_INFO)
    yield from _watch("CB-62", READERS, buckets.PRESENCE)
    yield from _api("CB-63", READERS, (buckets.CHANNELS,), api.STREAM_INFO, api.MESSAGE_GET)
    yield from _watch("CB-63", READERS, buckets.CHANNELS)
    yield from _api("CB-64", READERS, (buckets.MEMBERSHIP,), api.STREAM_INFO, api.MESSAGE_GET, api.DIRECT_GET)
    yield from _watch("CB-64", READERS, buckets.MEMBERSHIP)
    yield from _api("CB-65", READERS, (buckets.DELIVERY,), api.STREAM_INFO, api.MESSAGE_GET)
    yield _rows("CB-65", READERS, "publish", api.FLOW, _constant(), below=True)


# ---- hosts ----


def _delivery_rows() -> Iterator[Row]:
    held = (DELIVERY,)
    yield _rows("CB-103", held, "publish", api.INFO, _constant())
    yield from _api("CB-103", held, (streams.CHAT, streams.INBOX, streams.DLV), api.STREAM_INFO)
    yield from _api("CB-103", held, (streams.CHAT,), api.CONSUMER_CREATE)
    chat = (api.CONSUMER_CREATE_NAMED, api.DURABLE_CREATE, api.CONSUMER_INFO, api.CONSUMER_NEXT, api.CONSUMER_DELETE)
    yield from _api_below("CB-103", held, (streams.CHAT,), *chat, api.ACK)
    reader = _literal(streams.INBOX, consumers.READER)
    for template in (api.DURABLE_CREATE, api.CONSUMER_INFO, api.CONSUMER_NEXT, api.CONSUMER_DELETE):
        yield _rows("CB-103", held, "publish", template, reader)
    for template in (api.CONSUMER_CREATE_NAMED, api.ACK):
        yield _rows("CB-103", held, "publish", template, reader, below=True)
    yield _rows("CB-103", held, "publish", api.FLOW, _constant(), below=True)
    kept = (buckets.PRESENCE, buckets.CHANNELS, buckets.MEMBERS, buckets.ACL, buckets.ANYCAST)
    yield from _api("CB-103", held, (*kept, buckets.DELIVERY), api.STREAM_INFO, api.MESSAGE_GET)
    yield from _watch("CB-103", held, *kept)
    yield from _api_below("CB-103", held, kept, api.CONSUMER_DELETE)
    yield _key("CB-103", held, buckets.MEMBERS)
    yield _key("CB-89", held, buckets.ANYCAST)
    yield _rows("CB-103", held, "publish", buckets.KV_SUBJECT, _lease_keys)
    for template in (subjects.DINBOX, subjects.DLV):
        yield _rows("CB-103", held, "publish", template, _one(_space))
    yield from _api("CB-89", held, (streams.TASK,), api.STREAM_INFO, api.MESSAGE_GET, api.MESSAGE_DELETE)
    yield _rows("CB-89", held, "subscribe", subjects.TAKE, _one(_space), queue="take")
    yield _rows("CB-89", held, "publish", subjects.TAKE_REPLY, _one(_space))
    plane = _one(lambda holder: {**_space(holder), "plane": "delivery"})
    queue = subjects.LIVE_QUEUE.build(plane="delivery")
    yield _rows("C6.1-23", held, "subscribe", subjects.LIVE, plane, queue=queue)
    yield _rows("C6.1-23", held, "publish", subjects.LIVE_REPLY, plane)
    # What it reads for the agents of a mediated space: their own consumers, which they cannot pull themselves.
    mixed = (streams.DM, streams.TASK, streams.DLV)
    yield from _api_below("C9-47", held, mixed, api.CONSUMER_INFO, api.CONSUMER_NEXT, api.ACK, forms=MEDIATED)
    yield from _serve_rows(held)


def _lease_keys(holder: Holder) -> Iterable[Values]:
    return [{"bucket": buckets.DELIVERY.bucket(holder.space), "key": buckets.DELIVERY_LEASE.build(shard=0)}]


def _serve_rows(held: tuple[Profile, ...]) -> Iterator[Row]:
    """One row for each registered command, never one for several (C13.9-019)."""

    def commands(holder: Holder) -> Iterable[dict[str, str]]:
        if holder.service is None:
            return []
        named = dict.fromkeys((*holder.service.commands, _DESCRIBE))
        return [{**_space(holder), "endpoint": _DELIVERY, "command": one} for one in named]

    def pinned(holder: Holder) -> Iterable[Values]:
        service = holder.service
        return [{**one, "instance": service.instance} for one in commands(holder)] if service else []

    def replies(holder: Holder) -> Iterable[Values]:
        service = holder.service
        if service is None:
            return []
        return [{**_space(holder), "endpoint": _DELIVERY, "instance": service.instance, "epoch": service.epoch}]

    requests = endpoint.REQUESTS
    one = requests["one", UNTARGETED, False]
    yield _rows("C13.9-M04", held, "subscribe", one, commands, below=True, queue=_DELIVERY)
    yield _rows("C13.9-M04", held, "subscribe", requests["all", UNTARGETED, False], commands, below=True)
    yield _rows("C13.9-M04", held, "subscribe", requests["inst", UNTARGETED, False], pinned, below=True)
    yield _rows("C13.9-M05", held, "publish", endpoint.REPLIES[False], replies)


def _provisioner_rows() -> Iterator[Row]:
    held = (PROVISIONER,)
    everything: tuple[Named, ...] = (*streams.STREAMS, *buckets.BUCKETS)
    yield _rows("CB-101", held, "publish", api.INFO, _constant())
    yield from _api("CB-101", held, everything, api.STREAM_CREATE, api.STREAM_INFO)
    aged = (buckets.PRESENCE, buckets.DELIVERY, buckets.MANAGER, buckets.RECORDS)
    yield from _api("CB-101", held, aged, api.STREAM_UPDATE)
    bound = (streams.DM, streams.DLV, streams.TASK)
    yield from _api_below("CB-101", held, bound, api.CONSUMER_CREATE_NAMED, api.DURABLE_CREATE, api.CONSUMER_INFO)
    for bucket in (buckets.ACL, buckets.CHANNELS):
        yield _key("CB-101", held, bucket)
        yield from _api("CB-101", held, (bucket,), api.MESSAGE_GET, api.DIRECT_GET)
        yield from _api_below("CB-101", held, (bucket,), api.DIRECT_GET)
    yield _rows("C13.9-M01", held, "publish", api.USER_INFO, _constant())


MATRIX: Final = (
    *_agent_subjects(),
    *_agent_requests(),
    *_agent_reads(),
    *_reader_rows(),
    *_delivery_rows(),
    *_provisioner_rows(),
)
"""Every row, in the order in which grants are written."""

NO_CREATE: Final = {AGENT: (streams.DM, streams.TASK, streams.DLV)}
"""Streams on which a profile is denied every consumer create, whatever else it holds (CB-44..CB-52)."""


def rows_of(profile: Profile, form: Form, direction: Direction) -> list[Row]:
    """The matrix rows that a profile holds in spaces of ``form``."""
    return [row for row in MATRIX if profile in row.profiles and form in row.forms and row.direction == direction]
