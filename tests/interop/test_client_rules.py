"""The independent client notices a server that breaks a rule; without this its conversations would prove little."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.interop import values as v
from tests.interop.phux import digests, proof
from tests.interop.phux import enums as e
from tests.interop.phux import records as r
from tests.interop.phux.digests import sha256
from tests.interop.phux.frames import Frame, Type, decode, encode
from tests.interop.phux.proof import NotTrusted
from tests.interop.phux.stream import NotContinuous, Phase, Replay, Snapshot, Stream, View
from tests.interop.phux.tlv import Malformed

NOW = v.ISSUED + 1.0
PLENTY = (100, 100_000)


def frame(frame_type: Type, **values: Any) -> Frame:
    return decode(encode(frame_type, **values))


# ---- snapshots ----


def begin(**values: Any) -> Frame:
    return frame(
        Type.SNAPSHOT_BEGIN,
        **{
            "request_id": 1,
            "snapshot_id": v.EVENT_1,
            "authority_guard": v.GUARD,
            "base_event_sequence": 9,
            "first_cursor": b"c0",
            "lease_expires_at": 60,
            **values,
        },
    )


def page(index: int, records: list[r.SnapshotRecord], more: bool, **values: Any) -> Frame:
    return frame(
        Type.SNAPSHOT_PAGE,
        **{
            "request_id": 1,
            "snapshot_id": v.EVENT_1,
            "cursor": b"c%d" % index,
            "page_index": index,
            "records": records,
            "next_cursor": b"c%d" % (index + 1) if more else None,
            **values,
        },
    )


def end(**values: Any) -> Frame:
    digest = sha256(digests.snapshot_preimage(v.GUARD, 9, v.RECORDS))
    known = {"page_count": 2, "record_count": 5, "canonical_sha256": digest}
    return frame(Type.SNAPSHOT_END, **{"request_id": 1, "snapshot_id": v.EVENT_1, **known, **values})


def read(*frames: Frame) -> Snapshot:
    snapshot = Snapshot(frames[0], v.GUARD, 3)
    for one in frames[1:]:
        (snapshot.add if one.type is Type.SNAPSHOT_PAGE else snapshot.finish)(one)
    return snapshot


FIRST, LAST = page(0, v.RECORDS[:3], True), page(1, v.RECORDS[3:], False)
WRONG_RECORD = v.RECORDS[4]._replace(payload=v.RECORDS[4].payload + b"\x63\0\1")
SNAPSHOTS: dict[str, Callable[[], list[Frame]]] = {
    "another guard": lambda: [begin(authority_guard=v.GUARD._replace(authority_epoch=6)), FIRST, LAST, end()],
    "another base": lambda: [begin(base_event_sequence=8), FIRST, LAST, end()],
    "a page that is missing": lambda: [begin(), LAST, end()],
    "a page twice": lambda: [begin(), FIRST, FIRST, end()],
    "a page index that jumps": lambda: [begin(), FIRST, page(1, v.RECORDS[3:], False, page_index=2), end()],
    "a foreign cursor": lambda: [begin(), FIRST, page(1, v.RECORDS[3:], False, cursor=b"x"), end()],
    "a cursor that stays": lambda: [begin(), page(0, v.RECORDS[:3], True, next_cursor=b"c0")],
    "a page over the limit": lambda: [begin(), page(0, v.RECORDS[:4], True)],
    "an empty page": lambda: [begin(), page(0, [], True)],
    "records out of order": lambda: [begin(), page(0, v.RECORDS[2::-1], True)],
    "a record on two pages": lambda: [begin(), FIRST, page(1, v.RECORDS[2:], False), end(record_count=6)],
    "an end before the last page": lambda: [begin(), FIRST, end(page_count=1, record_count=3)],
    "another page count": lambda: [begin(), FIRST, LAST, end(page_count=3)],
    "another record count": lambda: [begin(), FIRST, LAST, end(record_count=4)],
    "another digest": lambda: [begin(), FIRST, LAST, end(canonical_sha256=bytes(32))],
    "a record of no known form": lambda: [begin(), FIRST, page(1, [v.RECORDS[3], WRONG_RECORD], False), end()],
}


def test_a_good_snapshot_is_taken() -> None:
    assert read(begin(), FIRST, LAST, end()).view().revisions[v.OBJECTIVE_REF] == 1


@pytest.mark.parametrize("frames", SNAPSHOTS.values(), ids=SNAPSHOTS)
def test_a_bad_snapshot_is_refused(frames: Callable[[], list[Frame]]) -> None:
    with pytest.raises((NotContinuous, Malformed)):
        read(*frames())


def test_nothing_is_seen_of_half_a_snapshot() -> None:
    with pytest.raises(NotContinuous):
        read(begin(), FIRST).view()


# ---- streams ----


def event(delivery: int, source: r.ReplayEvent = v.EVENTS[0], **values: Any) -> Frame:
    fields = {"subscription_id": v.SUBSCRIPTION, "delivery_sequence": delivery, **source._asdict(), **values}
    return frame(Type.COORD_EVENT, **fields)


def gap(**values: Any) -> Frame:
    known = {"last_contiguous_delivery": 0, "last_contiguous_event": 9, "reason": e.GapReason.QUEUE_OVERFLOW}
    return frame(Type.GAP, **{"subscription_id": v.SUBSCRIPTION, **known, **values})


def stream(phase: Phase = Phase.LIVE, credit: tuple[int, int] = PLENTY) -> Stream:
    made = Stream(v.SUBSCRIPTION, phase, 9, View({v.OBJECTIVE_REF: 1, v.BINDING_OBJECT: 1}))
    made.credit = credit
    return made


def test_a_good_stream_is_followed() -> None:
    followed = stream()
    followed.deliver(event(1))
    followed.deliver(event(2, v.EVENTS[1]))
    followed.take_gap(gap(last_contiguous_delivery=2, last_contiguous_event=12, observed_event=13), False)
    assert followed.view
    assert (followed.phase, followed.cut, followed.view.revisions[v.OBJECTIVE_REF]) == (Phase.PAUSED_GAP, 12, 2)


STREAMS: dict[str, Callable[[], Any]] = {
    "an event before the acknowledgement": lambda: stream(Phase.RESERVED).deliver(event(1)),
    "an event after a gap": lambda: stream(Phase.PAUSED_GAP).deliver(event(1)),
    "an event while replaying": lambda: stream(Phase.REPLAYING).deliver(event(1)),
    "a delivery that jumps": lambda: stream().deliver(event(2)),
    "an event without count": lambda: stream(credit=(0, 1_000)).deliver(event(1)),
    "an event without bytes": lambda: stream(credit=(1, event(1).size - 1)).deliver(event(1)),
    "an event from before": lambda: stream().deliver(event(1, event_sequence=9)),
    "a record of another object": lambda: stream().deliver(event(1, object=v.RUN_REF)),
    "a record of another revision": lambda: stream().deliver(event(1, object_revision=3)),
    "another schema": lambda: stream().deliver(event(1, schema=2)),
    "a second gap": lambda: stream(Phase.PAUSED_GAP).take_gap(gap(), False),
    "a gap after another delivery": lambda: stream().take_gap(gap(last_contiguous_delivery=1), False),
    "a gap after another event": lambda: stream().take_gap(gap(last_contiguous_event=8), False),
    "a gap that observed the past": lambda: stream().take_gap(gap(observed_event=9), False),
}


@pytest.mark.parametrize("act", STREAMS.values(), ids=STREAMS)
def test_a_bad_stream_is_refused(act: Callable[[], Any]) -> None:
    with pytest.raises((NotContinuous, Malformed)):
        act()


def test_a_revision_that_jumps_changes_nothing() -> None:
    followed = stream()
    payload = r.SNAPSHOT_RECORD.write(v.objective_record(4))
    jump = v.EVENTS[0]._replace(event_sequence=11, event_id=v.EVENT_2, object_revision=4, payload=payload)
    with pytest.raises(NotContinuous):
        followed.publish([v.EVENTS[0], jump])
    assert followed.view
    assert followed.view.revisions[v.OBJECTIVE_REF] == 1


# ---- replays ----


def replay_frames(**values: Any) -> list[Frame]:
    """BEGIN, one page, END of RP-2; a value goes to every frame that has its name."""
    known = {
        "request_id": 1,
        "replay_id": v.EVENT_1,
        "subscription_id": v.SUBSCRIPTION,
        "first_event": 10,
        "replay_cut": 12,
        "first_cursor": b"c0",
        "lease_expires_at": 60,
        "cursor": b"c0",
        "page_index": 0,
        "events": v.EVENTS,
        "page_count": 1,
        "event_count": 2,
        "canonical_sha256": sha256(digests.replay_preimage(v.GUARD, v.SUBSCRIPTION, 9, 12, v.EVENTS)),
        **values,
    }
    names = {
        Type.REPLAY_BEGIN: (
            "replay_id",
            "subscription_id",
            "first_event",
            "replay_cut",
            "first_cursor",
            "lease_expires_at",
        ),
        Type.REPLAY_PAGE: ("replay_id", "cursor", "page_index", "events"),
        Type.REPLAY_END: ("replay_id", "page_count", "event_count", "canonical_sha256"),
    }
    return [frame(kind, request_id=1, **{name: known[name] for name in of}) for kind, of in names.items()]


def play(opening: Frame, one_page: Frame, closing: Frame) -> Stream:
    paused = stream(Phase.PAUSED_GAP)
    replay = Replay(opening, paused, v.GUARD, 3)
    replay.add(one_page)
    assert paused.view
    assert paused.view.revisions[v.OBJECTIVE_REF] == 1
    replay.finish(closing)
    replay.resume(*PLENTY)
    return paused


def test_a_good_replay_resumes_its_stream() -> None:
    resumed = play(*replay_frames())
    assert resumed.view
    assert (resumed.phase, resumed.cut, resumed.view.revisions[v.OBJECTIVE_REF]) == (Phase.LIVE, 12, 2)


REPLAYS: dict[str, dict[str, Any]] = {
    "another subscription": {"subscription_id": v.EVENT_2},
    "a cut from before": {"replay_cut": 8},
    "another cut": {"replay_cut": 13},
    "no first event": {"first_event": None},
    "another first event": {"first_event": 9},
    "another page": {"page_index": 1},
    "another cursor": {"cursor": b"x"},
    "events out of order": {"events": v.EVENTS[::-1]},
    "an event twice": {"events": [v.EVENTS[0], v.EVENTS[0]]},
    "an event after the cut": {"replay_cut": 11},
    "an event of the past": {"events": [v.EVENTS[0]._replace(event_sequence=9), v.EVENTS[1]]},
    "another event": {"events": [v.EVENTS[0]._replace(event_id=v.RUN), v.EVENTS[1]]},
    "another page count": {"page_count": 2},
    "another event count": {"event_count": 3},
    "another digest": {"canonical_sha256": bytes(32)},
}


@pytest.mark.parametrize("values", REPLAYS.values(), ids=REPLAYS)
def test_a_bad_replay_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises((NotContinuous, Malformed)):
        play(*replay_frames(**values))


# ---- certificates ----


def signed(**changes: Any) -> r.Certificate:
    unsigned = v.CERTIFICATE._replace(**changes)
    return unsigned._replace(signature=proof.sign(v.WITNESS_SEED, proof.certificate_preimage(unsigned)))


CERTIFICATES: dict[str, Callable[[], tuple[r.Certificate, float]]] = {
    "another witness": lambda: (signed(witness_id=v.RUN), NOW),
    "another witness key": lambda: (signed(witness_key_id=v.OWNER), NOW),
    "another coordinator": lambda: (signed(coordinator_id=v.RUN), NOW),
    "61 seconds": lambda: (signed(expires_at=v.ISSUED + 61), NOW),
    "no life": lambda: (signed(expires_at=v.ISSUED), NOW - 2),
    "not yet issued": lambda: (signed(), v.ISSUED - 6.0),
    "just expired": lambda: (signed(), float(v.EXPIRES)),
    "a changed token": lambda: (v.CERTIFICATE._replace(fencing_token=v.OWNER), NOW),
    "a changed signature": lambda: (v.CERTIFICATE._replace(signature=bytes(64)), NOW),
}


@pytest.mark.parametrize("case", CERTIFICATES.values(), ids=CERTIFICATES)
def test_a_bad_certificate_is_not_trusted(case: Callable[[], tuple[r.Certificate, float]]) -> None:
    proof.check_certificate(v.CERTIFICATE, v.PINS, NOW)
    with pytest.raises(NotTrusted):
        proof.check_certificate(case()[0], v.PINS, case()[1])


@pytest.mark.parametrize(
    "changes",
    [
        {"activation_sequence": 8},
        {"authority_epoch": 6},
        {"incarnation_id": v.RUN},
        {"fencing_token": v.OWNER},
        {"expires_at": v.EXPIRES - 1},
    ],
)
def test_a_renewal_keeps_its_activation(changes: dict[str, Any]) -> None:
    proof.check_renewal(v.CERTIFICATE, signed(), v.PINS, NOW)
    with pytest.raises(NotTrusted):
        proof.check_renewal(v.CERTIFICATE, signed(**changes), v.PINS, NOW)
