"""Stretches of the log, and what goes out of them: the same as one event after the other would give."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cext.credit import Credit
from sidecar.coordinator.engine.log import EventLog, LogEntry, replay_event
from sidecar.coordinator.engine.stretch import STRETCH_SCAN, Stretches
from sidecar.coordinator.engine.subscription import Subscription
from sidecar.coordinator.engine.visibility import Visibility
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import Scope
from sidecar.coordinator.wire.ids import DeliverySequence, SubscriptionId
from sidecar.coordinator.wire.limits import Limits
from tests.unit.engine.fakes import key
from tests.unit.engine.harness import Client, World
from tests.unit.engine.test_log import event

READER = Visibility.of(Scope.WORK_READ, 0, key(1))
STRANGER = Visibility.of(Scope.ARTIFACT_READ, 0, key(1))
NARROW = Limits(4_096, 2_048, 64, 1_200, 64, 16_384)


class OneByOne:
    """What one subscription is owed, found the slow way: the log is asked for each event by itself."""

    def __init__(self, client: Client, after: int, count: int, nbytes: int) -> None:
        self.client, self.count, self.nbytes = client, count, nbytes
        self.id = SubscriptionId(client.live(after, count, nbytes))
        self.position, self.delivery = after, 0

    @property
    def log(self) -> EventLog:
        return self.client.world.engine._runtime.log

    @property
    def real(self) -> Subscription:
        return self.client.conn.subscriptions[self.id]

    def waiting(self) -> Iterator[LogEntry]:
        for sequence in range(self.position + 1, self.log.head + 1):
            if self.client.conn.visibility.sees_event(self.log[sequence].event):
                yield self.log[sequence]

    def owed(self, room: int) -> list[bytes]:
        """The frames that go out when the transport takes ``room`` bytes."""
        frames: list[bytes] = []
        for entry in self.waiting():
            if room <= 0 or self.count == 0 or self.nbytes < entry.size:
                break
            self.delivery += 1
            plain = replay_event(entry.event)
            frames.append(
                fr.CoordEvent(
                    subscription_id=self.id,
                    delivery_sequence=DeliverySequence(self.delivery),
                    event_sequence=plain.event_sequence,
                    event_id=plain.event_id,
                    event_kind=plain.event_kind,
                    object=plain.object,
                    object_revision=plain.object_revision,
                    schema=plain.schema,
                    payload=plain.payload,
                ).encode()
            )
            assert len(frames[-1]) == entry.size
            self.position = entry.event.sequence
            self.count, self.nbytes, room = self.count - 1, self.nbytes - entry.size, room - entry.size
        return frames

    def check(self) -> None:
        """Credit, place and what waits are as the slow way has them."""
        sub = self.real
        assert (sub.credit.count, sub.credit.nbytes) == (self.count, self.nbytes)
        assert (sub.delivery, sub.last_event) == (self.delivery, self.position or sub.last_event)
        unsent = [entry for entry in self.waiting() if entry.event.sequence > sub.history_end]
        assert (sub.lag_frames, sub.lag_bytes) == (len(unsent), sum(entry.size for entry in unsent))
        assert not any(True for _ in self.waiting()) or sub.waiting


STEPS = st.lists(
    st.tuples(st.just("make"), st.integers(0, 1), st.integers(1, 3_000))
    | st.tuples(st.just("take"), st.integers(0, 3), st.sampled_from([1, 300, 2_000, 70_000, 1 << 20]))
    | st.tuples(st.just("credit"), st.integers(0, 3), st.sampled_from([1, 2, 7])),
    min_size=20,
    max_size=60,
)


@pytest.mark.req("P10-05", "P10-06", "P10-07", "P10-11", "P10-14")
@given(steps=STEPS)
@settings(max_examples=60, deadline=None)
def test_subscriptions_get_what_one_event_after_the_other_would_give(steps: list[tuple[str, int, int]]) -> None:
    world = World()
    makers = [world.connect(2), world.connect(3, scopes=Scope.WORK_COMMAND)]
    for number in range(1, 6):
        makers[0].done(makers[0].create(number, b"x" * 40 * number))
    readers = [
        OneByOne(world.connect(1, scopes=Scope.WORK_READ), 0, 0, 0),
        OneByOne(world.connect(1, scopes=Scope.WORK_READ), 4, 3, 1 << 20),
        OneByOne(world.connect(2), world.engine._runtime.log.head, 50, 4_000),
        OneByOne(world.connect(9), 1, 0, 1 << 20),
    ]
    for reader in readers:
        # What went out behind SUBSCRIBED already.
        fresh = [frame.encode() for frame in reader.client.events()]
        assert fresh == reader.owed(1 << 20)
    for number, (what, who, size) in enumerate(steps, 100):
        if what == "make":
            makers[who].done(makers[who].create(number, b"x" * size))
        elif what == "take":
            reader = readers[who]
            assert reader.client.conn.take(size, world.now) == reader.owed(size)
        else:
            reader = readers[who]
            reader.client.send(reader.client.credit(reader.id, size, size * 500))
            reader.count, reader.nbytes = reader.count + size, reader.nbytes + size * 500
        for reader in readers:
            reader.check()


@pytest.mark.req("P3-27")
@pytest.mark.parametrize(("size", "fits"), [(1_100, True), (1_300, False)])
def test_what_stands_in_front_of_an_event_that_is_too_large_still_goes_out(size: int, fits: bool) -> None:
    world = World()
    maker, reader = world.connect(2), world.connect(1, scopes=Scope.WORK_READ, selected=NARROW)
    reader.live(0, 64, 16_384)
    for number, length in enumerate((10, 20, size, 30), 1):
        maker.send(maker.create(number, b"x" * length))
    reader.pull()
    assert len(reader.events()) == (4 if fits else 2)
    assert len(reader.gaps()) == (0 if fits else 1)


@pytest.mark.req("P10-14")
def test_room_is_each_one_s_own_in_a_stretch_that_is_shared() -> None:
    world = World()
    maker = world.connect(2)
    wide, narrow = (world.connect(1, scopes=Scope.WORK_READ) for _ in range(2))
    wide.live()
    narrow.live()
    for number in range(1, 9):
        maker.send(maker.create(number))
    world.commit()
    whole = wide.conn.take(1 << 20, world.now)
    size = len(whole[0])
    assert len(whole) == 8
    assert [len(narrow.conn.take(room, world.now)) for room in (1, size, size + 1, 2 * size)] == [1, 1, 2, 2]


def test_a_stretch_grows_no_further_than_credit_and_room() -> None:
    log = EventLog([event(number, b"x" * 100) for number in range(1, 201)], 200)
    stretch = Stretches(log).behind(0, READER)
    size = log[1].size
    for credit, room, found in (
        (Credit(9, 1 << 20, 0, 1 << 20), 1 << 20, 1),
        (Credit(9, 1 << 20, 1, 1 << 20), 1 << 20, 2),
        (Credit(9, 1 << 20, 9, 3 * size), 1 << 20, 4),
        (Credit(99, 1 << 20, 99, 1 << 20), 5 * size, 5),
        (Credit(99, 1 << 20, 9, 1 << 20), 1 << 20, 10),
        (Credit(99, 1 << 20, 3, 1 << 20), 1 << 20, 10),
    ):
        stretch.grow(credit, room)
        assert len(stretch.tails) == len(stretch.sequences) == stretch.through == found
    assert stretch.ends == [size * number for number in range(1, 11)]


def test_hidden_events_are_stepped_over_a_bounded_number_at_a_time() -> None:
    log = EventLog([event(number) for number in range(1, STRETCH_SCAN + 6)], STRETCH_SCAN + 5)
    stretches, credit = Stretches(log), Credit(9, 9, 9, 9)
    first = stretches.behind(0, STRANGER)
    first.grow(credit, 1)
    assert (first.tails, first.through) == ([], STRETCH_SCAN)
    second = stretches.behind(first.through, STRANGER)
    second.grow(credit, 1)
    assert (second.tails, second.through) == ([], STRETCH_SCAN + 5)


@pytest.mark.req("P10-14")
def test_a_place_is_shared_until_the_log_changes() -> None:
    log = EventLog([event(number) for number in range(1, 10)], 9)
    stretches = Stretches(log)
    found = stretches.behind(3, READER)
    assert stretches.behind(3, Visibility(*READER)) is found
    assert stretches.behind(3, STRANGER) is not found
    assert stretches.behind(4, READER) is not found
    log.append([event(10)])
    grown = stretches.behind(3, READER)
    assert grown is not found
    grown.grow(Credit(99, 1 << 20, 99, 1 << 20), 1 << 20)
    assert grown.sequences == list(range(4, 11))
    log.drop_before(4)
    assert stretches.behind(3, READER) is not grown


def test_no_more_places_are_kept_than_a_bound() -> None:
    log = EventLog([event(number) for number in range(1, 200)], 199)
    stretches = Stretches(log)
    first = stretches.behind(0, READER)
    for place in range(1, 199):
        stretches.behind(place, READER)
        assert len(stretches._known) <= 64
    assert stretches.behind(0, READER) is not first
