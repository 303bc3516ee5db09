"""Up to where the durables of a delivery plane were settled, kept beside the broker.

A durable that somebody deletes while no process runs takes its place in the stream with it. Its successor would begin
far behind, and what it handed on before the broker's duplicate windows would come twice. The broker is asked for the
ack floors now and then and at the end; the owner of a lane keeps them on disk, and a durable made anew begins there.
A floor is what the broker said, and may be old: then some is done again, and nothing is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from sidecar.rails.names import consumers, streams
from sidecar.rails.planes.delivery.broker import StreamState, Unanswered, consumer_info, stream_state

if TYPE_CHECKING:
    from sidecar.rails.planes.delivery.plane import Plane


class Floor(NamedTuple):
    """Every message of a durable up to ``sequence`` is settled, in the stream that was made at ``created``."""

    created: str
    sequence: int


class Floors:
    """The floors of one lane by the names of the durables."""

    def __init__(self, known: Mapping[str, Floor] | None = None) -> None:
        self.known = dict(known or {})

    def of(self, consumer: str, stream: StreamState) -> int | None:
        """The floor of a durable in a stream as it is now; None when nothing is known, or it is about an older stream
        or one that was set back."""
        floor = self.known.get(consumer)
        if floor is None or floor.created != stream.created or floor.sequence > stream.last:
            return None
        return floor.sequence

    async def look(self, plane: Plane) -> None:
        """Ask the broker. What it does not answer stays as it was, as does a durable that is not there."""
        for name, consumer in ((streams.CHAT, consumers.FANOUT.build()), (streams.INBOX, consumers.READER.build())):
            stream = name.stream(plane.space)
            try:
                state = await stream_state(plane.connection, stream)
                info = await consumer_info(plane.connection, stream, consumer)
            except Unanswered:
                continue
            if (sequence := settled(info)) is not None:
                self.known[consumer] = Floor(state.created, sequence)


def settled(info: Mapping[str, Any] | None) -> int | None:
    """The ack floor in what the broker says of a consumer; None when there is none."""
    floor = None if info is None else info.get("ack_floor")
    sequence = floor.get("stream_seq") if isinstance(floor, dict) else None
    return sequence if type(sequence) is int and sequence >= 0 else None
