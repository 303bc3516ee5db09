"""What an instance says of itself: which change moves which field of its record."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import orjson
import pytest

from sidecar.rails.envelopes.errors import EnvelopeError
from sidecar.rails.envelopes.presence import Card, ReportedCondition, Runtime, decode_presence, encode_presence
from sidecar.rails.envelopes.schema import Attention, ChannelMode, EndpointKind, Status
from sidecar.rails.messaging.heartbeat import NotOwnCard, OwnPresence
from sidecar.rails.messaging.runtime import Process, current_process, started_ms
from sidecar.rails.names import InvalidName, Lifecycle, Principal

ALICE = Lifecycle(Principal("local", "alice"), "a" * 26)
CARD = Card("local.alice", "Alice", EndpointKind.AGENT, role="builder", protocol_version="0.4")
RUNTIME = Runtime("r" * 32, 500)


def begin(now: int = 1_000, card: Card = CARD) -> OwnPresence:
    return OwnPresence.begin(card, ALICE, RUNTIME, now)


@pytest.mark.req("C6-01", "C6-02", "C6-03", "C6-13", "C6-22", "C6-23", "C6-25", "C6-26", "C6-28", "C13.11-04")
def test_a_first_record_says_who_it_is_in_which_life() -> None:
    said = orjson.loads(encode_presence(begin().record(2_000)))
    assert said == {
        "card": {
            "id": "local.alice",
            "name": "Alice",
            "kind": "agent",
            "owner": "local",
            "actor": "alice",
            "role": "builder",
            "protocolVersion": "0.4",
        },
        "status": "idle",
        "ts": 2_000,
        "statusSince": 1_000,
        "attention": "open",
        "lifecycleUid": "a" * 26,
        "runtime": {"id": "r" * 32, "startedAt": 500, "source": "endpoint-process"},
    }


@pytest.mark.req("C6-07", "C6-09")
def test_status_since_moves_with_the_pair_and_activity_since_with_the_activity_alone() -> None:
    own = begin()
    for now in (3_000, 5_000, 7_000):
        assert own.record(now).status_since == 1_000
    own = own.doing(8_000, status=Status.WORKING, activity="tests")
    assert (own.status_since, own.activity_since) == (8_000, 8_000)
    assert own.doing(9_000, status=Status.WORKING, activity="tests") is own
    assert own.doing(9_000) is own
    own = own.doing(9_000, status=Status.WAITING).doing(10_000, status=Status.WORKING)
    assert (own.status_since, own.activity_since) == (10_000, 8_000)
    own = own.doing(11_000, activity="build")
    assert (own.status, own.status_since, own.activity_since) == (Status.WORKING, 11_000, 11_000)
    own = own.doing(12_000, activity="")
    assert (own.activity, own.status_since, own.activity_since) == (None, 12_000, None)


def test_every_sequence_of_changes_keeps_the_two_times_to_their_rule() -> None:
    statuses, activities = (None, Status.IDLE, Status.WORKING), (None, "", "a", "b")
    for steps in itertools.product(itertools.product(statuses, activities), repeat=3):
        own = begin()
        pair: tuple[Status, str | None] = (Status.IDLE, None)
        since: tuple[int, int | None] = (1_000, None)
        for number, (status, activity) in enumerate(steps):
            now = 2_000 + number
            own = own.doing(now, status=status, activity=activity)
            after = (status or pair[0], pair[1] if activity is None else activity or None)
            set_at = since[1] if after[1] == pair[1] else (now if after[1] else None)
            pair, since = after, (since[0] if after == pair else now, set_at)
            assert (own.status, own.activity, own.status_since, own.activity_since) == (*pair, *since)


@pytest.mark.req("C6-31")
def test_a_live_instance_is_never_offline() -> None:
    with pytest.raises(ValueError, match="never offline"):
        begin().doing(2_000, status=Status.OFFLINE)


@pytest.mark.req("C6-10")
def test_progress_is_what_the_harness_reported_and_never_older() -> None:
    own = begin()
    assert own.record(2_000).active_at is None
    own = own.worked(1_500)
    assert own.worked(1_400) is own
    assert own.record(60_000)[:3] == (CARD, Status.IDLE, 60_000)
    assert own.record(60_000).active_at == 1_500


@pytest.mark.req("C6-04", "C6-05", "C6-06")
def test_condition_environment_and_activity_are_passed_on_as_they_are() -> None:
    own = begin()
    assert own.record(2_000).condition is None
    odd = "\u0000 {} \U0001f680 \\ \" '"
    own = (
        own.reported(ReportedCondition("rate_limit", source="429", since=1_900)).placed(odd).doing(2_000, activity=odd)
    )
    read = decode_presence("local.alice", encode_presence(own.record(2_000)))
    assert (read.environment, read.activity) == (odd, odd)
    assert read.condition == ReportedCondition("rate_limit", "429", None, 1_900)
    assert own.reported(None).record(3_000).condition is None


@pytest.mark.req("C6-08", "C6-12", "C6-19", "C6-21", "C6-32")
def test_the_last_record_is_offline_since_no_time_and_keeps_its_process() -> None:
    own = begin().attending(Attention.DND).tuned("team.a", ChannelMode.MUTED).tuned("team.b", ChannelMode.QUIET)
    own = own.tuned("team.b", None)
    assert own.record(2_000).channel_modes == {"team.a": ChannelMode.MUTED}
    last = decode_presence("local.alice", encode_presence(own.farewell(3_000)))
    assert (last.status, last.status_since, last.attention, last.channel_modes) == (Status.OFFLINE, None, None, {})
    assert last.runtime == RUNTIME
    again = begin()
    assert (again.attention, again.channel_modes) == (Attention.OPEN, {})
    with pytest.raises(InvalidName):
        own.tuned("team.>", ChannelMode.QUIET)


@pytest.mark.req("C2-14", "C6-23", "C6-36")
def test_a_card_of_somebody_else_is_refused_before_anything_is_written() -> None:
    with pytest.raises(NotOwnCard):
        begin(card=CARD._replace(id="local.bob"))


@pytest.mark.req("C6-24")
def test_a_name_has_at_most_128_characters() -> None:
    assert begin(card=CARD._replace(name="n" * 128)).card.name == "n" * 128
    for name in ("n" * 129, "\U0001f680" * 65):
        with pytest.raises(EnvelopeError):
            begin(card=CARD._replace(name=name))


@pytest.mark.req("C6-15", "C6-16", "C6-17", "C6-20")
def test_a_process_has_one_token_for_each_lifecycle_and_one_start() -> None:
    here, there = Process(7_000, os.urandom), Process(9_000, os.urandom)
    other = Lifecycle(ALICE.principal, "b" * 26)
    first = here.runtime(ALICE)
    assert here.runtime(ALICE) == first
    assert here.runtime(other).id != first.id
    assert here.runtime(other).started_at == first.started_at == 7_000
    assert there.runtime(ALICE).id != first.id
    assert len(first.id) == 32
    assert set(orjson.loads(encode_presence(begin().record(1)))["runtime"]) == {"id", "startedAt", "source"}


@pytest.mark.req("C6-17")
def test_the_start_of_the_process_is_read_from_the_system(tmp_path: Path) -> None:
    began = started_ms()
    if began is not None:
        assert current_process().runtime(ALICE).started_at == began
    (tmp_path / "self").mkdir()
    (tmp_path / "self/stat").write_text("1 (a ) b) R " + " ".join(["0"] * 18) + f" {os.sysconf('SC_CLK_TCK') * 3} 0")
    (tmp_path / "stat").write_text("cpu 1\nbtime 1000\n")
    assert started_ms(tmp_path) == 1_003_000
    (tmp_path / "stat").write_text("cpu 1\n")
    assert started_ms(tmp_path) is None
    assert started_ms(tmp_path / "none") is None
    assert current_process() is current_process()
