"""What a terminal is told of channels, direct messages and requests: messages and notices as one stream of events."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from sidecar.base.clock import system_now
from sidecar.rails.connection import Fault, Happening, Notice
from sidecar.rails.connection.faults import Heal
from sidecar.rails.envelopes.message import Message
from sidecar.rails.envelopes.receive import Meta
from sidecar.rails.messaging.channel import Past
from sidecar.rails.messaging.desk import Via
from sidecar.rails.messaging.identity import Stance
from sidecar.rails.messaging.inbox import Delivered
from sidecar.rails.messaging.liveness import Verdict
from sidecar.rails.messaging.membership import Join
from sidecar.rails.messaging.observing import Gap, Observation
from sidecar.rails.messaging.peer import Peer
from sidecar.rails.names.grants import covers
from sidecar.rails.space.holder import Form

_Result = TypeVar("_Result")

LOOK_SECONDS: Final = 0.25
"""How often it is looked whether a join, a durable or a counter has changed."""
ASIDE_SECONDS: Final = 60.0
"""How long a copy is put back that is not asked for here."""
_PLANE: Final = "delivery"
_MARKED: Final = {Via.HISTORY: "history", Via.BACKSTOP: "durable"}


class Unanswered(Exception):  # noqa: N818 - a state
    """Nothing came, and who reads for members of a mediated space does not answer either."""


async def _nothing() -> None:
    """A message that needs no word."""


@dataclass(frozen=True, slots=True)
class Said:
    """A message to show. ``handled`` is to be called when it was shown: a message without that comes again."""

    message: Message
    meta: Meta
    ways: tuple[Via, ...]
    mentioned: bool = False
    handled: Callable[[], Awaitable[None]] = _nothing

    @property
    def marks(self) -> tuple[str, ...]:
        """What a person should know of it beside its text."""
        stored = self.meta.kind == "channel" and Via.LIVE not in self.ways  # other kinds never come another way
        marks = dict.fromkeys(_MARKED[way] for way in self.ways if stored and way in _MARKED)
        if self.mentioned:
            marks["mention"] = None
        if self.meta.mismatched:
            marks["mismatch"] = None
        return tuple(marks)


@dataclass(frozen=True, slots=True)
class Told:
    """A notice: one word for programs, a sentence for people, and what it is about."""

    event: str
    text: str
    about: dict[str, Any] = field(default_factory=dict)


Event = Said | Told


class Notices:
    """What there is to tell beside messages. Bounded: of a flood the oldest are left out."""

    def __init__(self) -> None:
        self._told: deque[Told] = deque(maxlen=256)
        self.stirred = asyncio.Event()
        self.restored: Callable[[], None] | None = None
        self._down = False

    def tell(self, event: str, text: str, **about: Any) -> None:
        """One more."""
        self._told.append(Told(event, text, about))
        self.stirred.set()

    def take(self) -> Told | None:
        """The oldest."""
        return self._told.popleft() if self._told else None

    def watch(self, notice: Notice) -> None:
        """What the connection says."""
        said = notice.said
        why = "" if said is None else said.text or said.fault.value
        # A reader that heard nothing begins anew by itself, and a refused call is its caller's.
        ended = said is not None and said.fault is not Fault.WATCH_SILENT and said.fault.heal is not Heal.CALL
        if notice.happening is Happening.FAULT and ended and not self._down:
            self._down = True
            self.tell("disconnected", f"the connection is disturbed: {why}; going on when it is back", why=why)
        elif notice.happening is Happening.RESTORED:
            self._down = False
            self.tell("restored", "connected again; what was missed follows")
            if self.restored is not None:
                self.restored()
        elif notice.happening is Happening.STOPPED:
            self.tell("stopped", f"the connection has ended: {why}", why=why)


class Conversation:
    """The stream of one peer. ``channels`` are joined at its begin, with the given past."""

    def __init__(
        self,
        peer: Peer,
        notices: Notices,
        stop: asyncio.Event,
        *,
        channels: Sequence[str] = (),
        past: Past | None = None,
    ) -> None:
        self._peer, self._notices, self._stop = peer, notices, stop
        self._channels, self._past = channels, past
        self._joins: dict[str, Join] = {}
        self._faults: dict[str, str] = {}
        self._counted: dict[tuple[str, ...], float] = {}
        self._aside: set[str] = set()

    async def events(self, idle: float | None = None) -> AsyncIterator[Event]:
        """Until it is stopped, or nothing was said for ``idle`` seconds. Raises what a join raises, Stopped, and
        Unanswered for a silence that may not be the end."""
        for channel in self._channels:
            join = await self._until_stopped(self._peer.join(channel, self._past))
            if join is None:
                return
            self._joined(join)
        reading: asyncio.Task[Delivered] | None = None
        last = system_now().mono
        try:
            while not self._stop.is_set():
                while (told := self._notices.take()) is not None:
                    yield told
                reading = reading or asyncio.create_task(self._peer.next())
                if not await self._wait(reading):
                    if idle is not None and system_now().mono - last >= idle:
                        await self._prove_silence()
                        return
                    continue
                delivered, reading = reading.result(), None
                async for event in self._shown(delivered):
                    yield event
                last = system_now().mono
        finally:
            if reading is not None:
                reading.cancel()
                with contextlib.suppress(Exception, asyncio.CancelledError):
                    await reading
        while (told := self._notices.take()) is not None:
            yield told

    async def _prove_silence(self) -> None:
        """A plane that hangs says nothing for as long as a fetch may wait, as an empty store does."""
        identity = self._peer.identity
        if identity.form is not Form.MEDIATED or identity.stance is not Stance.MEMBER:
            return
        found = await self._until_stopped(self._peer.probe(_PLANE))
        if found is not None and found.verdict is not Verdict.BOUND:
            raise Unanswered(f"nothing came, and the delivery plane is {found.verdict} ({found.why})")

    async def _until_stopped(self, work: Awaitable[_Result]) -> _Result | None:
        doing, stopped = asyncio.ensure_future(work), asyncio.create_task(self._stop.wait())
        await asyncio.wait((doing, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if doing.done():
            return doing.result()
        doing.cancel()
        await asyncio.gather(doing, return_exceptions=True)
        return None

    async def _wait(self, reading: asyncio.Task[Delivered]) -> bool:
        """Whether there is a message; otherwise it is time to look at something else."""
        stop, stirred = asyncio.create_task(self._stop.wait()), asyncio.create_task(self._notices.stirred.wait())
        await asyncio.wait((reading, stop, stirred), timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        stirred.cancel()
        self._notices.stirred.clear()
        self._look()
        return reading.done()

    async def _shown(self, delivered: Delivered) -> AsyncIterator[Event]:
        """The events of one delivery. A copy of a channel that is not asked for is put back."""
        if delivered.eviction is not None:
            text = (
                f"{delivered.eviction.pending} copies wait behind this one, and the store keeps "
                f"{delivered.eviction.limit}: older ones may be gone; read: sidecar channel history CHANNEL"
            )
            yield Told("evicted", text, delivered.eviction._asdict())
        meta = delivered.meta
        if meta.kind == "channel" and not any(covers(one, meta.target) for one in self._channels):
            await delivered.later(ASIDE_SECONDS)
            if meta.target not in self._aside:
                self._aside.add(meta.target)
                text = f"copies of {meta.target} wait too; show them with: sidecar channel tail {meta.target}"
                yield Told("waiting", text, {"channel": meta.target})
            return
        if (notice := delivered.notice) is not None:
            text = f"request {notice.sequence} for {notice.role} was {notice.turn} by {notice.taker.name}"
            yield Told("anycast", text, {"seq": notice.sequence, "role": notice.role, "turn": notice.turn.value})
            await delivered.handled()
            return
        name = self._peer.card.name.lower()
        mentioned = name in (one.lower() for one in delivered.message.mentions)
        yield Said(delivered.message, meta, delivered.ways, mentioned, delivered.handled)

    # ---- what changes meanwhile ----

    def _joined(self, join: Join) -> None:
        self._joins[join.channel] = join
        state = f"joined {join.state}"
        text = f"{join.channel}: {state}" + (f": {join.shortfall}" if join.shortfall else "")
        self._notices.tell(
            "joined", text, channel=join.channel, state=join.state.value, shortfall=join.shortfall or None
        )

    def _look(self) -> None:
        now = self._peer.joined
        for channel, join in list(self._joins.items()):
            if channel not in now:
                del self._joins[channel]
                text = f"{channel}: not joined any more: the broker refuses the subscription"
                self._notices.tell("dropped", text, channel=channel)
            elif now[channel].state is not join.state:  # what is missing may be said anew with each attempt
                self._joined(now[channel])
        faults = self._peer.source_faults
        for durable, why in faults.items():
            if self._faults.get(durable) != why:
                self._notices.tell("unread", f"stored messages cannot be read: {why}; trying again", why=why)
        for _ in self._faults.keys() - faults.keys():
            self._notices.tell("read", "stored messages are read again")
        self._faults = dict(faults)
        self._count()

    def _count(self) -> None:
        """What is known by counters alone."""
        lost = self._peer.metrics.totals("messaging_gaps").get(("lost",), 0.0)
        if lost > self._counted.get(("lost",), 0.0):
            self._counted["lost",] = lost
            self._notices.tell("gap", "posts may be missing here: the channel has no history that can be read")
        for reasons, total in self._peer.metrics.totals("messaging_refused").items():
            if total > self._counted.get(reasons, 0.0):
                self._counted[reasons] = total
                text = f"{int(total)} messages were refused so far: {reasons[1]} ({reasons[0]})"
                self._notices.tell("refused", text, reason=reasons[1], way=reasons[0], count=int(total))


async def observed(
    observation: Observation,
    notices: Notices,
    stop: asyncio.Event,
    *,
    past: Past | None = None,
    idle: float | None = None,
) -> AsyncIterator[Event]:
    """The same for an observer: posts alone, nothing to settle."""
    notices.restored = observation.look_again
    asked = None if past is None or past.skipped else past
    events = observation.events(None if asked is None else asked.since_ms, past=asked is not None)
    refused: dict[str, int] = {}
    last = system_now().mono
    reading: asyncio.Task[Any] | None = None
    try:
        while not stop.is_set():
            while (told := notices.take()) is not None:
                yield told
            for reason, count in observation.refused.items():
                if count > refused.get(reason, 0):
                    refused[reason] = count
                    yield Told("refused", f"{count} messages were refused so far: {reason}", {"reason": reason})
            reading = reading or asyncio.ensure_future(anext(events))
            stopped = asyncio.create_task(stop.wait())
            await asyncio.wait((reading, stopped), timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            if not reading.done():
                if idle is not None and system_now().mono - last >= idle:
                    return
                continue
            event, reading = reading.result(), None
            last = system_now().mono
            if isinstance(event, Gap):
                yield Told("gap", f"posts are missing and cannot be read yet: {event.why}; trying again")
            else:
                yield Said(event.received.message, event.received.meta, (event.via,))
    finally:
        if reading is not None:
            reading.cancel()
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await reading
        await observation.close()
