"""When a connection connects again, with which credentials, and when it gives up. Time and chance are arguments."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from sidecar.rails.connection.faults import Fault, Heal, Said


class State(Enum):
    """Where a connection is."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    RENEWING = "renewing"
    WAITING = "waiting"
    STOPPED = "stopped"
    CLOSED = "closed"


class Event(Enum):
    """What happens to it."""

    UP = "a link is up, with every subscription on it"
    DOWN = "the link ended or could not be made"
    DUE = "the credentials end soon"
    KEPT = "fresh credentials could not be had; the old link stays"
    RETRY = "the wait is over"
    GIVE_UP = "nothing heals the fault"
    CLOSE = "the owner closes"


_ENDED: Final = {State.STOPPED, State.CLOSED}

_STEPS: Final = {
    (State.CONNECTING, Event.UP): State.CONNECTED,
    (State.CONNECTING, Event.DOWN): State.WAITING,
    (State.CONNECTED, Event.DOWN): State.WAITING,
    (State.CONNECTED, Event.DUE): State.RENEWING,
    (State.RENEWING, Event.UP): State.CONNECTED,
    (State.RENEWING, Event.KEPT): State.CONNECTED,
    (State.RENEWING, Event.DOWN): State.WAITING,
    (State.WAITING, Event.RETRY): State.CONNECTING,
}


def after(state: State, event: Event) -> State:
    """The next state; ValueError for an event that cannot happen there. An ended connection only closes."""
    if event is Event.CLOSE:
        return State.CLOSED
    if event is Event.GIVE_UP and state not in _ENDED:
        return State.STOPPED
    step = _STEPS.get((state, event))
    if step is None:
        raise ValueError(f"{event.name} cannot happen in {state.name}")
    return step


@dataclass(frozen=True, slots=True)
class Policy:
    """The figures of recovery. Times in seconds."""

    first_wait: float = 0.25
    longest_wait: float = 10.0
    settled: float = 5.0
    """A link that was up for this long begins the backoff anew when it ends."""
    attempts: int = 1000
    """Failed attempts in a row before the connection gives up (C13.12-03)."""
    refusals: int = 3
    """Refused credentials in a row, each freshly minted, before it gives up."""
    drops: int = 5
    """Connections dropped before the login was answered, in a row, before it gives up (C13.12-03)."""
    renew_ahead: float = 60.0
    """Fresh credentials are fetched this long before the old ones end, or after three quarters of a shorter life."""
    ping_every: float = 2.0
    ping_within: int = 3
    """A link that does not answer a ping for this long is taken as lost."""
    connect_within: int = 5
    call_within: int = 5
    """How long a call waits for a link, and for the broker's word on it."""

    def wait(self, failures: int, chance: float) -> float:
        """The wait after so many failures in a row; ``chance`` in [0, 1) spreads it over its upper half."""
        ceiling = min(self.longest_wait, self.first_wait * 2.0 ** min(failures - 1, 32))
        return ceiling * (0.5 + chance / 2)

    def renew_at(self, now: float, expires_at: float) -> float:
        """The wall time at which credentials that end at ``expires_at`` are replaced."""
        return expires_at - min(self.renew_ahead, max(0.0, expires_at - now) / 4)


@dataclass(frozen=True, slots=True)
class Again:
    """Connect again after a wait, with fresh credentials or the ones at hand."""

    wait: float
    fresh: bool


CONTROL_LINE_HINT: Final = "CONNECT may exceed the broker's max_control_line; have the operator verify it"
_NEVER_LET_IN: Final = (Fault.AUTHORIZATION, Fault.EXPIRED, Fault.REVOKED, Fault.ACCOUNT)


class Recovery:
    """Counts what failed in a row and decides on the next attempt."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._failures = 0
        self._refusals = 0
        self._drops = 0
        self._cause: Said | None = None
        self._up_since: float | None = None

    def up(self, now: float) -> None:
        """A link is up; ``now`` is monotonic."""
        self._up_since = now
        self._refusals = self._drops = 0
        self._cause = None

    def down(self, said: Said, now: float, chance: float) -> Again | Said:
        """What to do after the link ended or could not be made: connect again, or stop for the fault returned."""
        was_up = self._up_since is not None
        if self._up_since is not None and now - self._up_since >= self._policy.settled:
            self._failures = 0
        self._up_since = None
        self._failures += 1
        if said.fault.heal is Heal.STOP:
            # The minter has no more: what the broker said before tells why.
            return self._cause if self._cause is not None and said.fault is Fault.CREDENTIALS_REFUSED else said
        if said.fault in _NEVER_LET_IN and (self._cause is None or self._cause.fault is Fault.AUTHORIZATION):
            # The broker answers a login with "authorization violation" whatever it is; the first word was better.
            self._cause = said
        if said.fault in _NEVER_LET_IN and not was_up:
            self._refusals += 1
        self._drops = self._drops + 1 if said.fault in (Fault.DROPPED, Fault.MAX_CONTROL_LINE) else 0
        if self._refusals >= self._policy.refusals:
            return self._cause or said
        if self._drops >= self._policy.drops:
            return Said(Fault.MAX_CONTROL_LINE, CONTROL_LINE_HINT)
        if self._failures >= self._policy.attempts:
            return said
        return Again(self._policy.wait(self._failures, chance), said.fault.heal is Heal.FRESH)
