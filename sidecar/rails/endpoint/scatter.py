"""Who of many answered: the expected set is frozen before anything is sent, each reply has one class (C13.5-21..24).

Pure. An instance stands in exactly one of: answered, late, churn, missing. Replies that do not count are told apart as
unexpected (of an instance that is not expected) and duplicate (a second one of the same incarnation).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, Generic, NamedTuple, TypeVar

MOST_EXPECTED: Final = 4_096
"""Instances of one scatter."""
MOST_EXTRA: Final = 1_024
"""Replies that do not count, of each class, that are told by name; more are only counted."""

T = TypeVar("T")


class Live(NamedTuple):
    """One instance of the expected set. ``revision`` is that of its registration (C13.5-21)."""

    instance: str
    revision: int
    epoch: int


class Class(StrEnum):
    """What a reply, or the place of an instance that gave none, is; the values are metric labels."""

    ANSWERED = "answered"
    DUPLICATE = "duplicate"
    UNEXPECTED = "unexpected"
    CHURN = "churn"
    LATE = "late"
    MISSING = "missing"


class Scatter(Generic[T]):
    """The places of one scatter. ``T`` is what an answer is taken for."""

    def __init__(self, expected: Iterable[Live]) -> None:
        """ValueError for an empty set, and for one with an instance twice."""
        listed = tuple(expected)
        self._expected = {one.instance: one for one in listed}
        if not listed or len(self._expected) != len(listed):
            raise ValueError("an expected set has every instance once, and at least one")
        self.answers: dict[str, T] = {}
        self.late: dict[str, T] = {}
        self.unexpected: dict[tuple[str, int], None] = {}
        self.duplicate: dict[tuple[str, int], None] = {}
        self.counted: dict[Class, int] = dict.fromkeys(Class, 0)
        self._churned: set[str] = set()
        self._gone: set[str] = set()
        """Of the churned ones those whose expected incarnation was superseded: it cannot answer any more."""
        self._seen: set[tuple[str, int]] = set()
        self._over = False

    @property
    def settled(self) -> bool:
        """Whether nothing more can come: each expected instance answered, or is another incarnation now."""
        return len(self.answers) + len(self._gone) == len(self._expected)

    def hear(self, instance: str, epoch: int, value: T) -> Class:
        """One reply, attributed by its subject; the first of an incarnation counts (C13.5-22)."""
        told = self._class(instance, epoch, value)
        self.counted[told] += 1
        return told

    def _class(self, instance: str, epoch: int, value: T) -> Class:
        one = self._expected.get(instance)
        if one is None:
            _note(self.unexpected, (instance, epoch))
            return Class.UNEXPECTED
        if (instance, epoch) in self._seen:
            _note(self.duplicate, (instance, epoch))
            return Class.DUPLICATE
        if epoch != one.epoch:
            if len(self._seen) < 2 * MOST_EXPECTED:
                self._seen.add((instance, epoch))
            self._churn(instance, superseded=epoch > one.epoch)
            return Class.CHURN
        self._seen.add((instance, epoch))
        if instance in self._gone:
            return Class.CHURN  # a later incarnation has spoken: this one is superseded
        if self._over:
            self.late[instance] = value
            return Class.LATE
        self._churned.discard(instance)
        self.answers[instance] = value
        return Class.ANSWERED

    def _churn(self, instance: str, *, superseded: bool) -> None:
        if instance in self.answers or instance in self.late:
            return
        self._churned.add(instance)
        if superseded:
            self._gone.add(instance)

    def over(self) -> None:
        """The deadline: what answers from now on is late, and does not count."""
        self._over = True

    @property
    def open(self) -> tuple[Live, ...]:
        """The places without an answer in time, and without a superseding incarnation."""
        done = self.answers.keys() | self._gone
        return tuple(one for name, one in self._expected.items() if name not in done)

    def observe(self, now: Mapping[str, Live]) -> None:
        """What the registry says at the end, by instance: a place whose instance is not what it was is churn, and not
        missing (C13.5-23, -24)."""
        for one in self.open:
            if one.instance not in self.late and now.get(one.instance) != one:
                self._churned.add(one.instance)

    @property
    def churn(self) -> tuple[str, ...]:
        """Instances that are not the expected incarnation any more, in order."""
        return tuple(sorted(self._churned - self.late.keys()))

    @property
    def missing(self) -> tuple[str, ...]:
        """Instances of which nothing is known, in order."""
        known = self.answers.keys() | self.late.keys() | self._churned
        return tuple(sorted(self._expected.keys() - known))


def _note(found: dict[tuple[str, int], None], one: tuple[str, int]) -> None:
    if len(found) < MOST_EXTRA:
        found[one] = None
