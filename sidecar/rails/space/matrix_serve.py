"""Rows of a serving credential: what one instance of one endpoint hears, answers and writes (C13.9-019..022)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sidecar.rails.names import endpoint, planes
from sidecar.rails.names.endpoint import UNTARGETED
from sidecar.rails.space.holder import SERVING, Holder, Profile
from sidecar.rails.space.rows import DESCRIBE, Row, Values, grant, space_of


def _commands(holder: Holder) -> list[dict[str, str]]:
    service = holder.service
    if service is None:
        return []
    named = dict.fromkeys((*service.commands, DESCRIBE))
    return [{**space_of(holder), "endpoint": service.token, "command": one} for one in named]


def _pinned(holder: Holder) -> Iterable[Values]:
    service = holder.service
    return [{**one, "instance": service.instance} for one in _commands(holder)] if service else []


def _group(holder: Holder) -> str:
    return holder.service.token if holder.service else ""


def running(holder: Holder) -> Iterable[Values]:
    """The instance at its epoch, which fences all that it publishes (C13.1-030)."""
    service = holder.service
    if service is None:
        return []
    return [
        {**space_of(holder), "endpoint": service.token, "instance": service.instance, "epoch": service.epoch},
    ]


def serve_rows(row: str, held: tuple[Profile, ...], *, issued: bool) -> Iterator[Row]:
    """One row for each registered command and route of a rail, never one for several commands (C13.9-019); the class
    rail by queue group alone, so that no instance sees what another one is asked (C13.9-003)."""
    requests = endpoint.REQUESTS
    one = requests["one", UNTARGETED, issued]
    yield grant(row, held, "subscribe", one, _commands, below=True, queue=_group)
    yield grant(row, held, "subscribe", requests["all", UNTARGETED, issued], _commands, below=True)
    yield grant(row, held, "subscribe", requests["inst", UNTARGETED, issued], _pinned, below=True)


def reply_rows(row: str, held: tuple[Profile, ...], *, issued: bool) -> Iterator[Row]:
    """Answers, as this instance at this epoch and of exactly this arity (C13.2-48)."""
    yield grant(row, held, "publish", endpoint.REPLIES[issued], running)


def serving_rows() -> Iterator[Row]:
    """Both rails for every profile that serves (C13.9-M04..M06)."""
    for issued in (False, True):
        yield from serve_rows("C13.9-M06" if issued else "C13.9-M04", SERVING, issued=issued)
        yield from reply_rows("C13.9-M06" if issued else "C13.9-M05", SERVING, issued=issued)


def own_writes() -> Iterator[Row]:
    """What an instance writes beside its answers: its events, its own service record, its timer requests; and what it
    hears of them, its own fires (C13.9-M24, M27, M28, M30). No session rail (C13.9-021)."""
    held = (Profile.ENDPOINT,)

    def record(holder: Holder) -> Iterable[Values]:
        service = holder.service
        if service is None:
            return []
        qualifier = f"{service.token}.{service.instance}"
        return [{**one, "kind": "svc", "qualifier": qualifier} for one in running(holder)]

    # Delivery has grants of its own for the rest, and the status of its instance beside them.
    yield grant("C13.9-M24", (*held, Profile.DELIVERY), "publish", planes.RECORD_WRITE, record)
    yield grant("C13.9-M27", held, "publish", planes.EVENT, running, below=True)
    yield grant("C13.9-M28", held, "publish", planes.TIMER_SCHEDULE, running)
    yield grant("C13.9-M30", held, "subscribe", planes.TIMER_FIRE, running)
