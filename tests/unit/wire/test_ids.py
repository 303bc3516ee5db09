"""Ids, counters and cuts: checked where they are made, and never one for another."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from sidecar.coordinator.wire import ids
from sidecar.coordinator.wire.errors import LocalProtocolError

ROOT = Path(__file__).resolve().parents[3]

NOMINAL: list[Callable[[bytes], bytes]] = [
    ids.coordinator_id,
    ids.incarnation_id,
    ids.objective_id,
    ids.run_id,
    ids.work_session_id,
    ids.binding_id,
    ids.pending_binding_id,
    ids.artifact_id,
    ids.signal_id,
    ids.event_id,
    ids.operation_id,
    ids.effect_attempt_id,
    ids.snapshot_id,
    ids.replay_id,
    ids.subscription_id,
    ids.activation_witness_id,
    ids.object_id,
]
COUNTERS: list[Callable[[int], int]] = [
    ids.authority_epoch,
    ids.object_revision,
    ids.event_sequence,
    ids.delivery_sequence,
    ids.source_sequence,
    ids.activation_sequence,
]
CUTS: list[Callable[[int], int]] = [ids.event_cut, ids.delivery_cut]


@pytest.mark.req("P4-01", "P4-02")
@pytest.mark.parametrize("make", NOMINAL)
def test_an_id_is_sixteen_bytes_and_not_zero(make: Callable[[bytes], bytes]) -> None:
    assert make(b"\x01" * 16) == b"\x01" * 16
    assert make(bytes(15) + b"\x01") != make(b"\x01" + bytes(15))
    for wrong in (b"", bytes(16), b"\x01" * 15, b"\x01" * 17):
        with pytest.raises(LocalProtocolError):
            make(wrong)


@pytest.mark.req("P4-01")
def test_a_fresh_id_comes_from_the_entropy_given() -> None:
    asked: list[int] = []

    def entropy(size: int) -> bytes:
        asked.append(size)
        return b"\x07" * size

    assert ids.fresh_id(ids.snapshot_id, entropy) == b"\x07" * 16
    assert asked == [16]
    with pytest.raises(LocalProtocolError):
        ids.fresh_id(ids.snapshot_id, bytes)


@pytest.mark.req("P4-04")
@pytest.mark.parametrize("make", COUNTERS)
def test_a_counter_is_a_nonzero_u64(make: Callable[[int], int]) -> None:
    for good in (1, ids.U64_MAX):
        assert make(good) == good
    for wrong in (0, -1, ids.U64_MAX + 1):
        with pytest.raises(LocalProtocolError):
            make(wrong)


@pytest.mark.req("P4-05")
@pytest.mark.parametrize("make", CUTS)
def test_a_cut_may_be_zero(make: Callable[[int], int]) -> None:
    for good in (0, 1, ids.U64_MAX):
        assert make(good) == good
    for wrong in (-1, ids.U64_MAX + 1):
        with pytest.raises(LocalProtocolError):
            make(wrong)


@pytest.mark.req("P4-04")
def test_a_counter_stops_before_it_wraps() -> None:
    assert ids.advance(ids.event_sequence(1)) == 2
    assert ids.advance(ids.event_sequence(ids.U64_MAX - 1)) == ids.U64_MAX
    with pytest.raises(ids.CounterWrap):
        ids.advance(ids.event_sequence(ids.U64_MAX))


# Each marked line mixes two types that have one image.
MIXED = """
    from sidecar.coordinator.wire import ids
    from sidecar.coordinator.wire.frames import CreditFrame, Subscribe, Subscribed
    from sidecar.coordinator.wire.records import AuthorityGuard

    epoch = ids.authority_epoch(5)
    activation = ids.activation_sequence(7)
    coordinator = ids.coordinator_id(b"1" * 16)
    guard = AuthorityGuard(coordinator, epoch, activation, bytes(32))
    AuthorityGuard(coordinator, activation, epoch, bytes(32))  # 2 errors
    AuthorityGuard(ids.run_id(b"1" * 16), epoch, activation, bytes(32))  # 1 errors
    CreditFrame(subscription_id=ids.snapshot_id(b"1" * 16), add_count=1, add_bytes=1)  # 1 errors
    Subscribed(
        request_id=1,
        subscription_id=ids.subscription_id(b"1" * 16),
        next_delivery_sequence=ids.event_sequence(1),  # 1 errors
    )
    Subscribe(
        request_id=1,
        authority_guard=guard,
        after_event_sequence=ids.delivery_cut(0),  # 1 errors
        initial_credit_count=0,
        initial_credit_bytes=0,
    )
    revision: ids.ObjectRevision = ids.event_sequence(1)  # 1 errors
    sequence: ids.SourceSequence = 1  # 1 errors
    binding: ids.BindingId = ids.pending_binding_id(b"1" * 16)  # 1 errors
"""


TYPES = {
    "CoordinatorId IncarnationId ObjectiveId RunId WorkSessionId BindingId PendingBindingId ArtifactId SignalId "
    "EventId OperationId EffectAttemptId SnapshotId ReplayId SubscriptionId ActivationWitnessId": "bytes",
    "AuthorityEpoch ObjectRevision EventSequence DeliverySequence SourceSequence ActivationSequence EventCut "
    "DeliveryCut": "int",
}


def mixed_pairs() -> str:
    """One function per type; one marked line per ordered pair of types that have one image."""
    lines = ["from sidecar.coordinator.wire import ids"]
    for group, image in TYPES.items():
        names = [*group.split(), image]
        lines += [f"def get_{name}() -> {name if name == image else f'ids.{name}'}: ..." for name in names]
        for wanted in names[:-1]:
            lines += [
                f"x_{wanted}_{given}: ids.{wanted} = get_{given}()  # 1 errors" for given in names if given != wanted
            ]
    return "\n".join(lines) + "\n"


@pytest.mark.req("P4-02", "P4-04")
@pytest.mark.parametrize("source", [pytest.param(MIXED, id="constructors"), pytest.param(mixed_pairs(), id="pairs")])
def test_the_type_checker_refuses_one_id_or_counter_for_another(tmp_path: Path, source: str) -> None:
    snippet = tmp_path / "mixed.pyi" if source is not MIXED else tmp_path / "mixed.py"
    snippet.write_text(textwrap.dedent(source).lstrip())
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run([*command, str(snippet)], cwd=ROOT, capture_output=True, text=True, check=False)
    found: dict[int, int] = {}
    for line in done.stdout.splitlines():
        if ": error: " in line:
            assert line.startswith(str(snippet)), line
            number = int(line.split(":")[1])
            found[number] = found.get(number, 0) + 1
    marks = enumerate(snippet.read_text().splitlines(), start=1)
    assert found == {at: int(line.split()[-2]) for at, line in marks if line.endswith(" errors")}, done.stdout
