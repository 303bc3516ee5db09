"""The durables that a member reads, and what a frame from one of them has to be. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sidecar.rails.envelopes import backstop
from sidecar.rails.envelopes.receive import Reason, Received, Rejected, Source, receive
from sidecar.rails.messaging.frames import Frame
from sidecar.rails.names import Lifecycle, consumers, streams, subjects
from sidecar.rails.names.grants import covers
from sidecar.rails.names.headers import carries_provenance
from sidecar.rails.names.subjects import delivery_of


class From(StrEnum):
    """Which durable; the values are metric labels, and the ``source`` of ``fetch`` and ``settle``."""

    DM = "dm"
    BACKSTOP = "backstop"
    ROLE = "role"


class Odd(StrEnum):
    """Why a frame is dropped unread; the values are metric labels."""

    FOREIGN = "foreign"
    """It is the copy of another consumer, or stored outside of what this one filters on: a reader elsewhere had it
    delivered here. The broker leaves such a frame the subject that it was stored on."""
    PROVENANCE = "provenance"
    """It carries the headers of a stored message: a stream captured the answer to somebody's Direct Get."""
    STALE = "stale"
    """The ack wait of the copy was over before anybody read it: the broker gives it out again."""
    OMITTED = "omitted"
    """Its payload is larger than an answer of the delivery plane can hold; it can be settled and nothing else."""


@dataclass(frozen=True, slots=True)
class Durable:
    """One consumer that a member is bound to. ``pattern`` holds every subject that it delivers."""

    source: From
    space: str
    stream: str
    consumer: str
    pattern: str
    role: str = ""

    @classmethod
    def dm(cls, space: str, lifecycle: Lifecycle) -> Durable:
        """Direct messages of one lifecycle (C8-29)."""
        names = lifecycle.names
        pattern = subjects.INST.subtree(space=space, to_owner=names["owner"], to_actor=names["actor"])
        return cls(From.DM, space, streams.DM.stream(space), consumers.DM.build(**names), pattern)

    @classmethod
    def backstop(cls, space: str, lifecycle: Lifecycle) -> Durable:
        """Copies of channel posts and mentions for one lifecycle (C8-43)."""
        names = lifecycle.names
        pattern = subjects.DLV.build(space=space, **names)
        return cls(From.BACKSTOP, space, streams.DLV.stream(space), consumers.HANDOFF.build(**names), pattern)

    @classmethod
    def of_role(cls, space: str, role: str) -> Durable:
        """The queue of a role, shared by its holders (C8-32)."""
        pattern = subjects.SVC.subtree(space=space, role=role)
        return cls(From.ROLE, space, streams.TASK.stream(space), consumers.ROLE.build(role=role), pattern, role)

    def odd(self, frame: Frame) -> Odd | None:
        """Why a frame of this consumer is not read at all; None for one that may be judged."""
        if not covers(self.pattern, frame.subject):
            return Odd.FOREIGN
        return Odd.PROVENANCE if carries_provenance(frame.headers) else None


_SOURCE: Final = Source.DURABLE


def judge(frame: Frame, durable: Durable, *, mediated: bool) -> Received:
    """The message of a frame and what its subject says of it, before any handler (C5-14, C8-38). Raises Rejected,
    which is permanent: such a copy is terminated (C8-64).

    A backstop copy has the subject of its post in its headers; the kind is always ``channel``.
    """
    delivery = delivery_of(frame.subject)
    if durable.source is From.BACKSTOP:
        try:
            delivery = backstop.decode(frame.headers, durable.space).delivery
        except backstop.MalformedCopy as error:
            raise Rejected(Reason.MALFORMED_SUBJECT, _SOURCE, str(error)) from None
    return receive(frame.data, delivery, _SOURCE, header_names=frame.headers, mediated=mediated)
