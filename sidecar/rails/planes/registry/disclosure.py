"""The disclosure read: what ceiling is recorded for a generation, if it is live (C13.20-11, C13.15-08, -13).

It never admits an effect and asks for no live source: what it gives says what a caller may have been granted, and the
broker and the endpoint still judge every call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from sidecar.base.clock import Now, system_now
from sidecar.rails.connection.kv import Unreadable
from sidecar.rails.names import buckets
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.principals import Lifecycle
from sidecar.rails.planes.registry.reads import Reader
from sidecar.rails.space.ceilings import Ceiling
from sidecar.rails.space.evidence import (
    AttemptState,
    InvalidEvidence,
    Reference,
    attempt_subject,
    evidence_subject,
    read_attempt,
    read_evidence,
)

MOST_GENERATIONS: Final = 64
"""Live generations of one triple that are looked at, those that end last first."""


class NotLive(Exception):  # noqa: N818 - a state
    """The generation authorizes nothing: expired, never released, ended. The message is for our own log."""


class Ceilings:
    """Reads the issued store of one space. ``clock`` is compared with horizons."""

    def __init__(self, reader: Reader, space: str, clock: Callable[[], Now] = system_now) -> None:
        self._reader, self._space, self._clock = reader, space, clock
        self._stream = buckets.ISSUED.stream(space)

    async def of(self, lifecycle: Lifecycle, generation: str) -> Ceiling:
        """The ceiling of one generation. Raises NotLive, Unreadable (C13.20-13)."""
        ref = Reference(self._space, lifecycle, generation)
        self._before_horizon(ref)
        row = await self._reader.first(self._stream, evidence_subject(ref))
        if row is None:
            raise NotLive("there is no evidence of it")
        revision = await self._active(ref)
        try:
            evidence = read_evidence(ref, row.data)
        except InvalidEvidence as error:
            raise Unreadable(f"the evidence is none: {error}") from None
        if evidence.expires_at is not None and self._clock().wall >= evidence.expires_at:
            raise NotLive("its evidence is expired")
        if await self._active(ref) != revision:
            raise Unreadable("its attempt row moved while it was read")
        self._before_horizon(ref)
        return evidence.permissions

    def _before_horizon(self, ref: Reference) -> None:
        if not ref.lives(self._clock().wall):
            raise NotLive("it is past its horizon")

    async def _active(self, ref: Reference) -> int:
        """The revision of an attempt row that says ``active``."""
        row = await self._reader.last(self._stream, attempt_subject(ref))
        if row is None or row.marker:
            raise NotLive("there is no attempt row")
        try:
            state = read_attempt(ref, row.data)
        except InvalidEvidence as error:
            raise Unreadable(f"the attempt row is none: {error}") from None
        if state is not AttemptState.ACTIVE:
            raise NotLive(f"its attempt is {state}")
        return row.revision

    async def live(self, lifecycle: Lifecycle) -> list[tuple[str, Ceiling]]:
        """The live generations of a triple with their ceilings, for callers whose rail names none. Raises Unreadable,
        also when one of them could not be read: a view with a hole is no view (C13.7-67)."""
        pattern = buckets.ISSUED.filter(self._space, buckets.ISSUED_KEY, **lifecycle.names)
        found = []
        for subject in await self._reader.subjects(self._stream, pattern):
            try:
                generation = buckets.ISSUED.parse(self._space, buckets.ISSUED_KEY, subject)["generation"]
            except InvalidName:
                continue
            if Reference(self._space, lifecycle, generation).lives(self._clock().wall):
                found.append(generation)
        # The horizon is the head of a generation, so that the order of text is that of the ends.
        newest = sorted(found, reverse=True)[:MOST_GENERATIONS]
        read = await asyncio.gather(*(self._or_none(lifecycle, one) for one in newest))
        return [(one, ceiling) for one, ceiling in zip(newest, read, strict=True) if ceiling is not None]

    async def _or_none(self, lifecycle: Lifecycle, generation: str) -> Ceiling | None:
        try:
            return await self.of(lifecycle, generation)
        except NotLive:
            return None
