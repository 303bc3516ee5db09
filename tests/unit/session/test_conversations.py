"""Random conversations over real sessions: every request id ends exactly once (P13-08, P13-09)."""

from __future__ import annotations

import random
from collections import Counter
from functools import lru_cache

import pytest

from sidecar.coordinator.engine.policy import Policy
from sidecar.coordinator.machines.connection import ConnectionState
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode, FrameType, Scope
from sidecar.coordinator.wire.limits import LEASE_SECONDS, QuotaCaps
from sidecar.coordinator.wire.table import FRAME_TABLE
from tests.unit.engine.harness import World
from tests.unit.session.bench import OTHER_KEY, WORKLOAD_KEY, House
from tests.unit.session.speaker import REQUESTS, Speaker

SEEDS = range(12)
SMALL = {"max_frame_bytes": 16_384, "max_page_bytes": 4_096, "max_page_records": 3, "max_typed_payload_bytes": 2_048}
QUOTAS = {"queue_frames": QuotaCaps(None, 8, 60), "leases": QuotaCaps(3, 5, 9), "subscriptions": QuotaCaps(6, 9, 20)}


def settle(house: House, speakers: list[Speaker]) -> None:
    """Everything that is under way comes to its end."""
    for _ in range(4):
        house.world.commit()
        for speaker in speakers:
            speaker.wire.session.process(speaker.wire.now)
            speaker.hear()


@lru_cache
def converse(seed: int) -> tuple[House, list[Speaker]]:
    """Four peers of two principals, one of which may see no operation, and 600 requests."""
    rng = random.Random(seed)
    house = House(world=World(policy=Policy(quotas=QUOTAS)))
    speakers = [
        Speaker(house.login(WORKLOAD_KEY, offered_capabilities=0x1, **SMALL), rng),
        Speaker(house.login(WORKLOAD_KEY, **SMALL), rng),
        Speaker(house.login(WORKLOAD_KEY, scopes=Scope.ARTIFACT_READ), rng),
        Speaker(house.login(OTHER_KEY, scopes=0x01), rng),
    ]
    for _ in range(600):
        speaker = rng.choice(speakers)
        speaker.say()
        if rng.random() < 0.3:
            house.world.commit()
        if rng.random() < 0.4:
            speaker.hear()
        if rng.random() < 0.02:
            house.world.advance(LEASE_SECONDS)
    settle(house, speakers)
    return house, speakers


@pytest.mark.req("P13-08", "P13-09", "P13-06", "P7-09")
@pytest.mark.parametrize("seed", SEEDS)
def test_every_request_has_exactly_one_terminal_reply(seed: int) -> None:
    house, speakers = converse(seed)
    for speaker in speakers:
        assert speaker.wire.session.state is ConnectionState.ACT
        assert speaker.ended == Counter(speaker.sent.keys())
        assert speaker.expects_end == set()
        connection = speaker.wire.session.connection
        assert connection is not None
        assert connection.requests == set()
    assert house.crashes == []


def test_the_conversations_touch_every_request_and_every_way_to_end_it() -> None:
    outcomes: Counter[tuple[FrameType, FrameType]] = Counter()
    for seed in SEEDS:
        for speaker in converse(seed)[1]:
            outcomes += speaker.outcomes
    wanted = {(kind, FrameType.COORD_ERROR) for kind in REQUESTS}
    wanted |= {(kind, reply) for kind in REQUESTS for reply in FRAME_TABLE[kind].replies}
    assert wanted == set(outcomes)


@pytest.mark.req("P13-08", "P13-05", "P3-50")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_fatal_error_ends_what_is_open_without_another_reply(seed: int) -> None:
    rng = random.Random(1000 + seed)
    house = House(world=World(policy=Policy(quotas=QUOTAS)))
    speakers = [Speaker(house.login(WORKLOAD_KEY, **SMALL), rng), Speaker(house.login(OTHER_KEY, scopes=0x01), rng)]
    for _ in range(100):
        rng.choice(speakers).say()
        if rng.random() < 0.3:
            house.world.commit()
            rng.choice(speakers).hear()
    doomed, other = speakers
    house.world.commit()
    for _ in range(5):
        doomed.say()
    open_ids = set(doomed.sent) - set(doomed.ended)
    doomed.wire.send(fr.Ack(request_id=1))
    frames = doomed.wire.received()
    for frame in frames[:-1]:
        doomed._take(frame)
    assert isinstance(frames[-1], fr.CoordErrorFrame)
    assert (frames[-1].code, frames[-1].request_id) == (ErrorCode.PROTOCOL_ERROR, None)
    assert doomed.wire.session.state is ConnectionState.CLOSED
    settle(house, [doomed, other])
    assert max(doomed.ended.values()) == 1
    assert set(doomed.sent) - open_ids <= set(doomed.ended)
    assert other.ended == Counter(other.sent.keys())
    other.wire.session.eof(other.wire.now)
    assert house.world.used() == {}
