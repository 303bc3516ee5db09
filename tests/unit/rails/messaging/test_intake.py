"""What both forms of an intake share, and the words and answers of the mediated one, without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from sidecar.base.clock import Now
from sidecar.base.strictjson import JsonValue
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection.streams import ConsumerGone
from sidecar.rails.endpoint.codes import CallError, CallFailed, Code, Outcome
from sidecar.rails.endpoint.contracts import DELIVERY
from sidecar.rails.messaging import mediated_intake
from sidecar.rails.messaging.durables import Durable
from sidecar.rails.messaging.frames import Frame, frame_value
from sidecar.rails.messaging.held import ACK_WAIT, NotShown, Word
from sidecar.rails.messaging.intake import IntakeClosed, IntakeRefused, RawIntake, Source
from sidecar.rails.messaging.mediated_intake import MAX_WORDS, MediatedIntake
from sidecar.rails.names import Lifecycle, Principal

pytestmark = pytest.mark.asyncio

DM = Durable.dm("main", Lifecycle(Principal("local", "bob"), "b" * 26))
SUBJECT = "cotal.main.inst.local.bob.local.alice"


def frame(sequence: int, subject: str = SUBJECT, **changes: Any) -> Frame:
    return Frame(subject, b"{}", {}, sequence, 1, 0, 1, f"1.{sequence}.1.1.0")._replace(**changes)


class Clock:
    def __init__(self) -> None:
        self.mono = 0.0

    def __call__(self) -> Now:
        return Now(self.mono, self.mono)


class Scripted(Source):
    """Puts what a test says, and keeps what is said of it."""

    def __init__(self, clock: Clock, *frames: Frame, error: Exception | None = None) -> None:
        super().__init__(DM, 4, clock, Metrics(), None)
        self.frames, self.error, self.said = list(frames), error, list[tuple[int, Word]]()
        self.heard = True

    async def _read(self) -> None:
        for one in self.frames:
            await self._put(one, self._clock())
        if self.error is not None:
            raise self.error
        await asyncio.Event().wait()

    async def say(self, frame: Frame, word: Word, delay: float) -> bool:
        self.said.append((frame.sequence, word))
        return self.heard

    @property
    def dropped(self) -> dict[str, float]:
        assert self._metrics is not None
        return {labels[1]: count for labels, count in self._metrics.totals("messaging_frames_dropped").items()}


@pytest_asyncio.fixture
async def clock() -> AsyncIterator[Clock]:
    yield Clock()


@pytest.mark.req("C8-62", "C8-67")
async def test_a_copy_that_stood_too_long_is_dropped_because_it_comes_again(clock: Clock) -> None:
    source = Scripted(clock, frame(1), frame(2))
    first = await source.take()
    clock.mono = ACK_WAIT
    waiting = asyncio.create_task(source.take())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert source.dropped == {"stale": 1}
    first.show()
    assert not await first.renew()
    await first.nak()
    assert source.said == [], "others may have them by now"
    await source.close()
    with pytest.raises(IntakeClosed):
        await waiting


async def test_what_is_no_copy_of_the_source_is_terminated_unread(clock: Clock) -> None:
    odd = frame(1, "cotal.main.inst.local.carol.local.alice")
    stored, large = frame(2, headers={"nats-stream": "X"}), frame(3, data=b"", omitted=900_000)
    source = Scripted(clock, odd, stored, large, frame(4))
    assert (await source.take()).frame.sequence == 4
    assert source.said == [(number, Word.TERM) for number in (1, 2, 3)]
    assert source.dropped == {"foreign": 1, "provenance": 1, "omitted": 1}
    await source.close()


async def test_what_ends_a_source_is_raised_behind_what_came_before(clock: Clock) -> None:
    source = Scripted(clock, frame(1), error=ConsumerGone("x"))
    assert (await source.next()).sequence == 1
    for _ in range(2):
        with pytest.raises(ConsumerGone):
            await source.take()
    await source.close()


@pytest.mark.req("C8-66", "C8-67")
async def test_a_copy_is_renewed_while_it_is_handled_and_not_before(clock: Clock) -> None:
    source = Scripted(clock, frame(1))
    copy = await source.take()
    with pytest.raises(NotShown):
        await copy.ack()
    clock.mono = ACK_WAIT / 2
    async with copy.kept():
        while not source.said:  # noqa: ASYNC110 - the source has no event for it
            await asyncio.sleep(0)
    assert source.said == [(1, Word.RENEW)]
    clock.mono = ACK_WAIT
    assert copy.fresh, "the renewal began the wait anew"
    source.heard = False
    assert not await copy.renew()
    clock.mono = ACK_WAIT / 2 + ACK_WAIT
    assert not copy.fresh, "one that got lost did not"
    await copy.ack()
    assert source.said[-1] == (1, Word.ACK)
    await source.close()


class Plane:
    """Answers of the delivery plane, one after the other; the last one stays."""

    def __init__(self, *fetches: JsonValue | CallError) -> None:
        self.fetches = list(fetches)
        self.settles: list[list[dict[str, Any]]] = []
        self.batches: list[int] = []
        self.up = True

    async def call(
        self, endpoint: str, command: str, args: dict[str, JsonValue] | None = None, *, seconds: float = 5.0
    ) -> JsonValue:
        assert DELIVERY[command].input.check(args) is None
        assert args is not None
        if command == "settle":
            if not self.up:
                raise unavailable()
            items: Any = args["items"]
            self.settles.append(items)
            return {"settled": [True] * len(items)}
        self.batches.append(int(str(args["batch"])))
        answer = self.fetches.pop(0) if self.fetches else None
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, CallError):
            raise answer
        return answer


def unavailable(code: str = Code.UNAVAILABLE) -> CallFailed:
    return CallFailed(code, "x", Outcome.NOT_EXECUTED)


class Linked:
    """As much of a connection as an intake looks at."""

    linked = True


def intake(plane: Plane, clock: Clock, metrics: Metrics | None = None) -> MediatedIntake:
    return MediatedIntake(Linked(), plane, DM, clock=clock, chance=lambda: 0.0, metrics=metrics)  # type: ignore[arg-type]


async def test_batches_follow_the_reader_and_bad_frames_are_left_to_the_broker(clock: Clock) -> None:
    metrics = Metrics()
    full = {"frames": [frame_value(frame(number)) for number in range(1, 9)]}
    bad: JsonValue = {"frames": [{"subject": 1}, frame_value(frame(9))]}
    plane = Plane(full, bad, {"frames": "x"}, ["no object"], {"frames": [frame_value(frame(10))]})
    source = intake(plane, clock, metrics)
    assert [(await source.next()).sequence for _ in range(10)] == list(range(1, 11))
    assert plane.batches[:3] == [8, 16, 8]
    assert metrics.totals("messaging_fetch_failures") == {("bad_answer",): 1}
    await source.close()


@pytest.mark.parametrize(("code", "error"), [(Code.NOT_FOUND, ConsumerGone), (Code.PERMISSION_DENIED, IntakeRefused)])
async def test_a_refusal_that_no_retry_heals_ends_the_source(clock: Clock, code: Code, error: type[Exception]) -> None:
    source = intake(Plane(unavailable(code)), clock)
    with pytest.raises(error):
        await source.take()
    await source.close()


async def test_words_wait_for_the_plane_up_to_a_bound(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mediated_intake, "FIRST_RETRY", 0.01)
    metrics, plane = Metrics(), Plane()
    plane.up = False
    source = intake(plane, clock, metrics)
    for number in range(1, MAX_WORDS + 2):
        await source.ack(frame(number))
    assert metrics.totals("messaging_settled") == {("ack", "lost"): 1}, "the oldest; its copy comes again"
    await source.nak(frame(9_000), 1.5)
    plane.up = True
    async with asyncio.timeout(10):
        while metrics.totals("messaging_settled").get(("ack", "sent"), 0) < MAX_WORDS - 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert {len(items) for items in plane.settles[:-1]} == {256}
    assert plane.settles[-1][-1] == {"token": "1.9000.1.1.0", "how": "nak", "delayMs": 1500}
    await source.close()


async def test_what_depends_on_the_ack_wait_is_not_said_later(clock: Clock) -> None:
    metrics, plane = Metrics(), Plane({"frames": [frame_value(frame(1)), frame_value(frame(2))]})
    source = intake(plane, clock, metrics)
    first, second = await source.take(), await source.take()
    plane.up = False
    second.show()
    await second.ack()
    assert not await first.renew()
    await first.nak()
    await source.close()
    assert plane.settles == []
    assert metrics.totals("messaging_settled") == {("renew", "lost"): 1, ("nak", "lost"): 1, ("ack", "lost"): 1}


@pytest.mark.req("C8-66", "C8-67")
async def test_a_word_behind_the_end_is_lost_and_waits_for_nobody(clock: Clock) -> None:
    """The durable may have ended under copies that are still with the member."""
    metrics, plane = Metrics(), Plane({"frames": [frame_value(frame(1))]})
    source = intake(plane, clock, metrics)
    copy = await source.take()
    await source.close()
    copy.show()
    async with asyncio.timeout(5):
        assert not await copy.renew()
    await copy.ack()
    assert metrics.totals("messaging_settled") == {("renew", "lost"): 1, ("ack", "lost"): 1}


class Unlinked:
    """A connection without a link: whoever sends waits for one."""

    linked = False
    sent = 0

    async def send(self, subject: str, data: bytes) -> None:
        self.sent += 1


@pytest.mark.req("C8-63", "C8-67")
async def test_a_raw_copy_is_not_put_back_or_renewed_without_a_link(clock: Clock) -> None:
    """A member that closes with a thousand copies while the broker is away would wait seconds for each."""
    connection, metrics = Unlinked(), Metrics()
    source = RawIntake(connection, DM, clock=clock, metrics=metrics)  # type: ignore[arg-type]
    assert not await source.say(frame(1), Word.NAK, 0.0)
    assert not await source.say(frame(1), Word.RENEW, 0.0)
    assert await source.say(frame(1), Word.ACK, 0.0)
    assert connection.sent == 1
    assert metrics.totals("messaging_settled") == {("nak", "lost"): 1, ("renew", "lost"): 1, ("ack", "sent"): 1}
