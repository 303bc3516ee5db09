"""What a caller says and is told: targets, answers, and the results of the verbs that ask many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from sidecar.base.strictjson import JsonValue
from sidecar.rails.endpoint.codes import CallError
from sidecar.rails.endpoint.envelope import Bind

if TYPE_CHECKING:
    from sidecar.rails.endpoint.descriptor import Descriptor

CALL_SECONDS: Final = 15.0
"""The deadline of a call that names none (C13.8-40)."""

DELIVERY_SECONDS: Final = 5.0
"""The deadline of the calls by which a peer uses the delivery plane: it repeats them by itself."""


class To(NamedTuple):
    """Whom a targeted command is about. ``self`` needs nothing more; the other modes need owner and actor.

    Without ``uid`` the caller looks the current lifecycle up in the registry (C13.2-40), together with the mapping
    revision.
    """

    mode: str
    owner: str | None = None
    actor: str | None = None
    uid: str | None = None
    mapping_revision: int | None = None


class Answer(NamedTuple):
    """Data, and who gave it, as the subject of the reply says (C13.2-49). ``id`` is that of the request."""

    data: JsonValue
    instance: str
    epoch: int
    id: str
    receipt: str | None = None


class Described(NamedTuple):
    """What an instance says of its endpoint to this caller."""

    descriptor: Descriptor
    instance: str
    epoch: int

    @property
    def bind(self) -> Bind:
        """The incarnation that described itself."""
        return Bind(self.instance, self.epoch)


class Probe(StrEnum):
    """What a liveness probe found. Only GONE is the broker's word; SILENT says nothing (C13.5-28)."""

    GONE = "gone"
    ANSWERED = "answered"
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class Scattered:
    """What became of each instance that was expected, in classes that have no instance in common (C13.5-23, -24).

    ``replies`` has an Answer or the error of each instance that answered in time. ``unexpected`` and ``duplicate`` are
    replies that do not count: (instance, epoch). ``complete``: every expected instance answered in time.
    """

    id: str
    replies: Mapping[str, Answer | CallError]
    missing: tuple[str, ...] = ()
    churn: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    unexpected: tuple[tuple[str, int], ...] = ()
    duplicate: tuple[tuple[str, int], ...] = ()
    complete: bool = True


class Listing(NamedTuple):
    """A page of the registry's listing (C13.20-03). ``next`` is the ``after`` of the next page, None on the last."""

    rows: tuple[Mapping[str, JsonValue], ...]
    next: str | None
    source: str


@dataclass(frozen=True, slots=True)
class Seen:
    """An event of an endpoint. ``sequence`` is None for one that came live: it is known once it was read again.

    ``stale``: a later epoch of the instance is known (C13.2-59).
    """

    instance: str
    epoch: int
    topic: str
    ts: int
    data: JsonValue
    sequence: int | None = None
    correlation: Mapping[str, str] = field(default_factory=dict)
    stale: bool = False


class Missed(NamedTuple):
    """Events may be missing here, and why (C13.8-42). ``after`` is the last sequence that is known to be complete."""

    why: str
    after: int


class Recorded(NamedTuple):
    """Both halves of a service record, read together; None for a half that does not exist.

    ``settled`` is False when the status was written for a later spec than the one that could be read.
    """

    spec: Mapping[str, JsonValue] | None
    spec_revision: int
    status: Mapping[str, JsonValue] | None
    status_revision: int
    settled: bool = True
