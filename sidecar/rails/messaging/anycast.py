"""The sender's side of an anycast request: what became of it, and taking it back (C8.1-34..42, C8.1-55)."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from sidecar.base.strictjson import JsonValue
from sidecar.rails.endpoint.caller import Calls
from sidecar.rails.endpoint.calls_types import DELIVERY_SECONDS
from sidecar.rails.endpoint.contracts import DELIVERY_ENDPOINT
from sidecar.rails.envelopes.message import EndpointRef
from sidecar.rails.messaging.notices import ref_of


class OpenMesh(Exception):  # noqa: N818 - what the space is
    """The space has no delivery plane, so that there is no record of any request. Nothing was sent (C8.1-02)."""

    def __init__(self) -> None:
        super().__init__("this is an open mesh: it keeps no record of anycast requests")


class BadStatus(ValueError):  # noqa: N818 - a state of the value
    """The delivery plane answered with something that is no status."""


class State(StrEnum):
    """What is known of a request."""

    WAITING = "waiting"
    """It is queued and nobody has taken it."""
    TAKEN = "taken"
    """A holder's connector was about to show it. It does not say that it was read, started or finished (C8.1-52)."""
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"
    """There is no record of it and it is not queued, as after the ack of a holder that knows no takes (C8.1-54)."""


class Removal(StrEnum):
    """How a cancelled request left the queue (C8.1-37)."""

    PENDING = "pending"
    DELETED = "deleted"
    ALREADY_GONE = "already-gone"


class Status(NamedTuple):
    """What became of a request. ``at``: when it was taken, milliseconds since 1970."""

    state: State
    sequence: int
    role: str | None = None
    taker: EndpointRef | None = None
    previous: EndpointRef | None = None
    at: int | None = None
    removal: Removal | None = None


class AnycastRequests:
    """Status and cancel of one's own requests. ``caller`` is None on an open mesh.

    ``sequence`` is the one of the send's PubAck. The id always goes with it: after the stream was made anew a sequence
    alone can name a newer request of one's own (C8.1-55).
    """

    def __init__(self, caller: Calls | None) -> None:
        self._caller = caller

    async def status(self, sequence: int, message_id: str) -> Status:
        """What became of it. Raises OpenMesh, CallRefused, CallFailed, BadStatus."""
        return await self._ask("anycast-status", sequence, message_id)

    async def cancel(self, sequence: int, message_id: str) -> Status:
        """Take it back while it waits. A taken one stays taken, and the status says by whom (C8.1-39); may be repeated
        after a lost answer (C8.1-40). Raises as :meth:`status`."""
        return await self._ask("anycast-cancel", sequence, message_id)

    async def _ask(self, command: str, sequence: int, message_id: str) -> Status:
        if self._caller is None:
            raise OpenMesh
        args: dict[str, JsonValue] = {"seq": sequence, "id": message_id}
        return read_status(await self._caller.call(DELIVERY_ENDPOINT, command, args, seconds=DELIVERY_SECONDS))


def read_status(value: JsonValue) -> Status:
    """A status from an answer; BadStatus for any other shape."""
    if not isinstance(value, dict):
        raise BadStatus("it is no object")
    try:
        state, removal = value.get("state"), value.get("removal")
        sequence, role, at = value.get("seq"), value.get("role"), value.get("at")
        status = Status(
            State(str(state)),
            sequence if type(sequence) is int else 0,
            role if isinstance(role, str) else None,
            ref_of(value.get("taker")),
            ref_of(value.get("previous")),
            at if type(at) is int else None,
            None if removal is None else Removal(str(removal)),
        )
    except ValueError:
        raise BadStatus("its state or removal is none") from None
    if status.sequence < 1 or (status.role is None) is not (status.state is State.UNKNOWN):
        raise BadStatus("it does not name the request")
    if (status.state is State.TAKEN) is not (status.taker is not None and status.at is not None):
        raise BadStatus("it does not say by whom, or when, or says too much")
    if (status.state is State.CANCELLED) is not (status.removal is not None):
        raise BadStatus("it does not say how it left the queue, or says too much")
    return status
