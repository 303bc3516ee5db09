"""Sending: one publish through JetStream, acknowledged, and safe to repeat (C8-60, C8-61).

A message whose acknowledgement did not come is sent again under the same id, as long as the stream's duplicate window
makes that harmless. What the broker refuses is not tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from sidecar.base.clock import Now
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, NoResponders, NotConnected, PermissionViolation
from sidecar.rails.connection.publishing import Stored, StoreRefused, store
from sidecar.rails.envelopes.errors import EnvelopeError
from sidecar.rails.envelopes.message import EndpointRef
from sidecar.rails.messaging.drafts import ENTROPY_BYTES, NOTHING_MORE, Content, Draft, Extras, Target, draft
from sidecar.rails.messaging.frames import most_readable
from sidecar.rails.messaging.identity import Identity
from sidecar.rails.names import InvalidName
from sidecar.rails.names.limits import DUPLICATE_WINDOW_SECONDS
from sidecar.rails.space.holder import Form

SEND_SECONDS: Final = DUPLICATE_WINDOW_SECONDS / 4
"""How long a message is tried again, far inside of the window in which a second copy is dropped."""
ATTEMPT_SECONDS: Final = 5.0
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 2.0


class Sent(NamedTuple):
    """A message that stands in its stream. ``duplicate``: it already stood there, under the same id."""

    id: str
    sequence: int
    duplicate: bool


class Unconfirmed(Exception):  # noqa: N818 - a state
    """No acknowledgement came: the message may stand in its stream or not.

    Sending it again with ``message_id`` stores it once, within the duplicate window of two minutes.
    """

    def __init__(self, message_id: str, why: str) -> None:
        super().__init__(f"the message may not have been stored: {why}")
        self.message_id = message_id


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to try. Seconds; ``within`` is bounded by half of the duplicate window, whatever was asked for."""

    within: float = SEND_SECONDS

    def wait(self, attempt: int, elapsed: float) -> float | None:
        """The wait before attempt ``attempt`` + 1; None: enough was tried."""
        wait = min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** min(attempt - 1, 16))
        return wait if elapsed + wait < min(self.within, DUPLICATE_WINDOW_SECONDS / 2) else None


class Sender:
    """Posts, direct messages and anycast requests of one identity over one connection."""

    def __init__(
        self,
        connection: Connection,
        identity: Identity,
        ref: EndpointRef,
        *,
        clock: Callable[[], Now],
        entropy: Callable[[int], bytes],
        metrics: Metrics | None = None,
        patience: Patience | None = None,
    ) -> None:
        self._connection = connection
        self._identity = identity
        self._ref = ref
        self._clock = clock
        self._entropy = entropy
        self._metrics = metrics
        self._patience = patience or Patience()

    async def send(self, target: Target, content: Content, extras: Extras = NOTHING_MORE) -> Sent:
        """Store one message. Raises InvalidName and EnvelopeError before anything is sent; PermissionViolation,
        StoreRefused, Stopped; Unconfirmed when no acknowledgement came in time."""
        now = self._clock()
        try:
            made = draft(
                self._identity,
                self._ref,
                target,
                content,
                extras,
                now_ms=int(now.wall * 1000),
                entropy=self._entropy(ENTROPY_BYTES),
                max_payload=self._most(),
            )
        except (InvalidName, EnvelopeError):
            self._count("messaging_sent", "none", "invalid")
            raise
        stored = await self._stored(made, now.mono)
        self._count("messaging_sent", made.kind, "duplicate" if stored.duplicate else "stored")
        return Sent(made.message_id, stored.sequence, stored.duplicate)

    def _most(self) -> int:
        """Bytes of a message at most: what the broker takes, and what its receivers can be given."""
        taken = self._connection.max_payload
        return most_readable(taken) if self._identity.form is Form.MEDIATED else taken

    async def _stored(self, made: Draft, begun: float) -> Stored:
        attempt = 0
        while True:
            attempt += 1
            try:
                stored = await store(self._connection, made.subject, made.data, made.headers, seconds=ATTEMPT_SECONDS)
            except (PermissionViolation, StoreRefused) as error:
                self._count(
                    "messaging_sent", made.kind, "denied" if isinstance(error, PermissionViolation) else "refused"
                )
                raise
            except (NotConnected, NoResponders, TimeoutError) as error:
                wait = self._patience.wait(attempt, self._clock().mono - begun)
                if wait is None:
                    self._count("messaging_sent", made.kind, "unconfirmed")
                    raise Unconfirmed(made.message_id, str(error) or "the broker does not answer") from error
                self._count("messaging_send_retries", made.kind)
                await asyncio.sleep(wait)
            else:
                if self._metrics is not None:
                    self._metrics.histogram("messaging_store_seconds").observe(self._clock().mono - begun)
                return stored

    def _count(self, name: str, *labels: str) -> None:
        if self._metrics is not None:
            self._metrics.counter(name, *labels).inc()
