"""Rows of the ownership matrix: what one is, and the shapes that many of them share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from sidecar.rails.names import api, buckets, streams
from sidecar.rails.names.template import Template
from sidecar.rails.space.holder import Form, Holder, Profile

Values = Mapping[str, str | int]
Direction = Literal["publish", "subscribe"]

COMPATIBLE, MEDIATED = (Form.COMPATIBLE,), (Form.MEDIATED,)
BOTH: Final = (Form.COMPATIBLE, Form.MEDIATED)
DESCRIBE: Final = "describe"
DELIVERY_ENDPOINT: Final = "delivery"
"""Endpoint, and queue group of its class rail (C13.9-M04)."""
REGISTRY_ENDPOINT: Final = "registry"
"""The read mediator of discovery (C13.20)."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row: ``profiles`` in ``forms`` hold ``template`` in one direction.

    ``values`` gives the fields of each subject that a holder gets; a field that it leaves out is a wildcard of the
    grant. ``below`` makes it everything below the subject, ``queue`` admits queue subscriptions of that group only
    (empty: plain ones too).
    ``widest`` are the fields without those that come from a list of the holder: no derived row reaches beyond it.
    """

    row: str
    profiles: tuple[Profile, ...]
    direction: Direction
    template: Template
    values: Callable[[Holder], Iterable[Values]]
    widest: Callable[[Holder], Iterable[Values]]
    below: bool = False
    queue: Callable[[Holder], str] = lambda _: ""
    forms: tuple[Form, ...] = BOTH

    def subjects(self, holder: Holder) -> list[str]:
        """The permission rows that ``holder`` gets."""
        return self._texts(self.values, holder)

    def ceilings(self, holder: Holder) -> list[str]:
        """What every one of them lies within."""
        return self._texts(self.widest, holder)

    def _texts(self, given: Callable[[Holder], Iterable[Values]], holder: Holder) -> list[str]:
        make = self.template.subtree if self.below else self.template.filter
        queue = self.queue(holder)
        subjects = [make(**values) for values in given(holder)]
        return [f"{subject} {queue}" for subject in subjects] if queue else subjects


def space_of(holder: Holder) -> dict[str, str]:
    return {"space": holder.space}


def principal_of(holder: Holder) -> dict[str, str]:
    principal = holder.lifecycle.principal
    return {"space": holder.space, "owner": principal.owner, "actor": principal.actor}


def triple_of(holder: Holder) -> dict[str, str]:
    return {"space": holder.space, **holder.lifecycle.names}


def grant(
    row: str,
    profiles: tuple[Profile, ...],
    direction: Direction,
    template: Template,
    values: Callable[[Holder], Iterable[Values]],
    widest: Callable[[Holder], Iterable[Values]] | None = None,
    *,
    below: bool = False,
    queue: str | Callable[[Holder], str] = "",
    forms: tuple[Form, ...] = BOTH,
) -> Row:
    group = (lambda _, name=queue: name) if isinstance(queue, str) else queue
    return Row(row, profiles, direction, template, values, widest or values, below, group, forms)


def single(values: Callable[[Holder], Values]) -> Callable[[Holder], Iterable[Values]]:
    return lambda holder: [values(holder)]


def constant(**values: str) -> Callable[[Holder], Iterable[Values]]:
    return lambda holder: [values]


# ---- streams and buckets ----

Named = streams.Stream | buckets.Bucket


def stream_of(name: Named) -> Callable[[Holder], Iterable[Values]]:
    return lambda holder: [{"stream": name.stream(holder.space)}]


def consumer_of(name: Named, consumer: Template) -> Callable[[Holder], Iterable[Values]]:
    """A consumer of one lifecycle."""
    return lambda holder: [{"stream": name.stream(holder.space), "consumer": consumer.build(**holder.lifecycle.names)}]


def consumer_named(name: Named, consumer: Template) -> Callable[[Holder], Iterable[Values]]:
    return lambda holder: [{"stream": name.stream(holder.space), "consumer": consumer.build()}]


def calls(row: str, profiles: tuple[Profile, ...], names: Iterable[Named], *templates: Template) -> Iterator[Row]:
    """Publish rows of exactly these interfaces on exactly these streams."""
    for name in names:
        for template in templates:
            yield grant(row, profiles, "publish", template, stream_of(name))


def calls_below(
    row: str,
    profiles: tuple[Profile, ...],
    names: Iterable[Named],
    *templates: Template,
    forms: tuple[Form, ...] = BOTH,
) -> Iterator[Row]:
    for name in names:
        for template in templates:
            yield grant(row, profiles, "publish", template, stream_of(name), below=True, forms=forms)


def binds(
    row: str,
    profiles: tuple[Profile, ...],
    name: Named,
    consumer: Callable[[Holder], Iterable[Values]],
    forms: tuple[Form, ...],
) -> Iterator[Row]:
    """Use of a consumer that somebody else made: look, pull, ack (C8-39)."""
    for template in (api.CONSUMER_INFO, api.CONSUMER_NEXT):
        yield grant(row, profiles, "publish", template, consumer, forms=forms)
    yield grant(row, profiles, "publish", api.ACK, consumer, below=True, forms=forms)


def watches(row: str, profiles: tuple[Profile, ...], *names: Named) -> Iterator[Row]:
    """What a watcher of a bucket sends."""
    yield from calls_below(row, profiles, names, api.CONSUMER_CREATE_NAMED, api.CONSUMER_INFO)


def keys_of(row: str, profiles: tuple[Profile, ...], bucket: buckets.Bucket) -> Row:
    """Every key of a bucket."""
    return grant(
        row,
        profiles,
        "publish",
        buckets.KV_ALL,
        lambda holder: [{"bucket": bucket.bucket(holder.space)}],
        below=True,
    )
