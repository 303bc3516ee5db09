"""What became of idempotent requests: a second one with the same id is answered with what the first one was (C13.8-01).

Kept in memory alone, for so long and so many: behind that bound an id has no history and is fresh work (C13.8-05, -08).
The id is the whole key beside the caller and the command; the arguments of a repeat are not looked at (C13.8-06).
Pure: time comes in.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sidecar.rails.names.principals import Lifecycle

MOST: Final = 8_192
"""Results in all, and of one caller, so that nobody drives out those of the others."""
PER_CALLER: Final = 512
MOST_BYTES: Final = 64 << 20
SECONDS: Final = 600.0
WAITERS: Final = 16
"""Repeats of one request that wait for the first; more are refused."""


class Key(NamedTuple):
    """One request of one caller."""

    caller: Lifecycle
    command: str
    id: str


class Running:
    """The first request still runs; ``replies`` are where its repeats are answered."""

    __slots__ = ("replies",)

    def __init__(self) -> None:
        self.replies: list[str] = []

    def join(self, reply: str | None) -> bool:
        """A repeat waits too; False when there are too many. A cast is content that it runs."""
        if reply is None:
            return True
        if len(self.replies) >= WAITERS:
            return False
        self.replies.append(reply)
        return True


class _Kept(NamedTuple):
    answer: bytes
    at: float


class Results:
    """Running and finished requests of idempotent commands."""

    def __init__(
        self, most: int = MOST, per_caller: int = PER_CALLER, most_bytes: int = MOST_BYTES, seconds: float = SECONDS
    ) -> None:
        self._most, self._per_caller, self._most_bytes, self._seconds = most, per_caller, most_bytes, seconds
        self._running: dict[Key, Running] = {}
        self._kept: dict[Key, _Kept] = {}
        self._of: dict[Lifecycle, dict[Key, None]] = {}
        self.size = 0
        """Bytes of the answers that are kept."""

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, key: Key, now: float) -> Running | bytes | None:
        """The request while it runs, its answer while that is kept, None for an id without history."""
        running = self._running.get(key)
        if running is not None:
            return running
        kept = self._kept.get(key)
        if kept is None:
            return None
        if now - kept.at > self._seconds:
            self._drop(key)
            return None
        return kept.answer

    def begin(self, key: Key) -> Running:
        """A first request runs."""
        made = self._running[key] = Running()
        return made

    def end(self, key: Key, answer: bytes | None, now: float) -> list[str]:
        """It ended with an answer, or with None: nothing was executed, and a repeat is fresh work. Gives where its
        repeats are answered."""
        running = self._running.pop(key)
        if answer is not None:
            self._keep(key, _Kept(answer, now))
        return running.replies

    def _keep(self, key: Key, kept: _Kept) -> None:
        own = self._of.setdefault(key.caller, {})
        self._kept[key], own[key] = kept, None
        self.size += len(kept.answer)
        if len(own) > self._per_caller:
            self._drop(next(iter(own)))
        while self._kept and (len(self._kept) > self._most or self.size > self._most_bytes or self._is_old(kept.at)):
            self._drop(next(iter(self._kept)))

    def _is_old(self, now: float) -> bool:
        """Whether the oldest has to go."""
        return now - next(iter(self._kept.values())).at > self._seconds

    def _drop(self, key: Key) -> None:
        self.size -= len(self._kept.pop(key).answer)
        own = self._of[key.caller]
        del own[key]
        if not own:
            del self._of[key.caller]
