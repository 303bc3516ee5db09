"""The witness's durable state: what survives, what is refused."""

from __future__ import annotations

import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from sidecar.base.witnessing import Refusal, WitnessRefused
from sidecar.coordinator.wire.ids import U64_MAX, AuthorityEpoch, activation_witness_id
from sidecar.ops.exitcodes import ExitCode
from sidecar.witness import store
from sidecar.witness.highwater import HighWater
from sidecar.witness.messages import Activate, Refused
from sidecar.witness.store import StateRolledBack, WitnessStateError, WitnessStore
from tests.unit.witness.rig import COORDINATOR, LIFE, OTHER, Clock, LocalWitness, counting_entropy, incarnation

ROOT = Path(__file__).resolve().parents[3]
STEPS = ("begin", "locked", "created", "written", "synced", "renamed", "durable", "before commit", "committed")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "witness"


@pytest.fixture
def witness(directory: Path, clock: Clock) -> LocalWitness:
    return LocalWitness(directory, clock)


def activate(witness: LocalWitness, epoch: int) -> None:
    witness.activate(COORDINATOR, AuthorityEpoch(epoch), incarnation(epoch))


def open_refused(directory: Path, kind: type[WitnessStateError] = WitnessStateError) -> str:
    with pytest.raises(kind) as caught:
        WitnessStore.open(directory)
    assert caught.value.exit_code == ExitCode.STORE
    return str(caught.value)


def test_records_survive_a_restart_exactly(witness: LocalWitness, directory: Path) -> None:
    witness.activate(COORDINATOR, AuthorityEpoch(U64_MAX - 1), incarnation(1))
    witness.activate(OTHER, AuthorityEpoch(3), incarnation(2))
    before = store.inspect(directory)
    assert before[:2] == (witness.service.identity.witness_id, 2)
    assert [record.epoch for record in before[2]] == [U64_MAX - 1, 3]
    witness.restart()
    assert store.inspect(directory) == before
    assert witness.last(COORDINATOR) == (U64_MAX - 1, 1)


@pytest.mark.req("P12-02", "P12-03")
def test_the_directory_holds_the_key_and_the_monotonic_state_and_is_private(
    witness: LocalWitness, directory: Path
) -> None:
    certificate = witness.activate(COORDINATOR, AuthorityEpoch(5), incarnation(1))
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    files = {path.name: path for path in directory.iterdir()}
    assert set(files) == {"witness.ed25519", "witness.db", "witness.db-wal", "witness.db-shm", "high-water"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files.values()} == {0o600}
    seed = files.pop("witness.ed25519").read_bytes()
    for path in files.values():
        assert seed not in path.read_bytes()
        assert certificate.fencing_token not in path.read_bytes()
    connection = apsw.Connection(str(directory / "witness.db"), flags=apsw.SQLITE_OPEN_READONLY)
    columns = {
        table: {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
        for (table,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    }
    connection.close()
    assert columns == {
        "witness": {"only", "witness_id", "witness_key_id", "generation"},
        "coordinator": {
            "coordinator_id",
            "client_key",
            "last_authority_epoch",
            "activation_sequence",
            # the active lease
            "incarnation_id",
            "token_sha256",
            "issued_at",
            "expires_at",
            "boot_id",
            "boot_deadline_ns",
            "spent",
        },
    }


def test_commits_are_synchronous(witness: LocalWitness, directory: Path) -> None:
    witness.service.close()
    opened = WitnessStore.open(directory)
    pragma = opened._database.pragma
    assert (pragma("journal_mode"), pragma("synchronous")) == ("wal", 2)
    opened.close()


@pytest.mark.req("P12-09")
@pytest.mark.parametrize("request_name", ["activate", "renew", "relinquish"])
def test_a_kill_at_any_step_of_a_commit_leaves_it_whole_or_undone(
    request_name: str, directory: Path, clock: Clock
) -> None:
    for number, step in enumerate(STEPS):
        died = directory.with_name(f"witness{number}")
        arguments = [sys.executable, "-m", "tests.unit.witness.dying", str(died), request_name, step]
        assert subprocess.run(arguments, cwd=ROOT, check=False).returncode == -signal.SIGKILL
        announced = number >= STEPS.index("renamed")
        witness = LocalWitness(died, clock)
        records = store.inspect(died)[2]
        if request_name == "activate":
            assert [(record.epoch, record.activation_sequence) for record in records] == ([(5, 1)] if announced else [])
        elif request_name == "renew":
            assert records[0].lease.expires_at == records[0].lease.issued_at + LIFE
            assert records[0].lease.issued_at == clock.now().wall + (30 if announced else 0)
        else:
            assert records[0].lease.spent is announced
        # Whatever was left is a state in which the witness goes on.
        clock.advance(2 * LIFE)
        assert witness.activate(COORDINATOR, AuthorityEpoch(6), incarnation(2)).activation_sequence == 1 + len(records)
        clock.advance(-2 * LIFE)
        witness.service.close()


@pytest.mark.req("P12-09")
@pytest.mark.parametrize("commits_behind", [2, 3])
def test_an_older_database_is_refused(
    commits_behind: int, witness: LocalWitness, directory: Path, tmp_path: Path
) -> None:
    activate(witness, 5)
    witness.service.close()
    shutil.copytree(directory, tmp_path / "backup")
    witness.service = witness.start()
    for epoch in range(6, 6 + commits_behind):
        witness.clock.advance(LIFE)
        activate(witness, epoch)
    witness.service.close()
    shutil.copy(tmp_path / "backup" / "witness.db", directory / "witness.db")
    text = open_refused(directory, StateRolledBack)
    assert "witness.db is an older copy" in text
    assert "backup" in text


@pytest.mark.req("P12-09")
def test_a_database_that_misses_the_last_commit_gets_it_back(
    witness: LocalWitness, directory: Path, tmp_path: Path
) -> None:
    activate(witness, 5)
    witness.service.close()
    shutil.copytree(directory, tmp_path / "backup")
    witness.service = witness.start()
    witness.clock.advance(LIFE)
    activate(witness, 6)
    witness.service.close()
    shutil.copy(tmp_path / "backup" / "witness.db", directory / "witness.db")
    witness.service = witness.start()
    assert witness.last(COORDINATOR) == (6, 2)
    with pytest.raises(WitnessRefused, match=Refusal.LEASE_ACTIVE):
        activate(witness, 7)


@pytest.mark.req("P12-09")
def test_an_older_or_missing_high_water_file_is_refused(witness: LocalWitness, directory: Path, tmp_path: Path) -> None:
    shutil.copy(directory / "high-water", tmp_path / "old")
    activate(witness, 5)
    witness.service.close()
    shutil.copy(tmp_path / "old", directory / "high-water")
    assert "high-water is an older copy" in open_refused(directory, StateRolledBack)
    (directory / "high-water").unlink()
    open_refused(directory, StateRolledBack)


@pytest.mark.req("P12-09")
def test_every_damaged_high_water_byte_is_noticed(witness: LocalWitness, directory: Path) -> None:
    activate(witness, 5)
    witness.service.close()
    path = directory / "high-water"
    whole = path.read_bytes()
    for position in range(len(whole)):
        with pytest.raises(ValueError, match="damaged"):
            HighWater.decode(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(ValueError, match="damaged"):
            HighWater.decode(whole[:position])
    path.write_bytes(whole[:-1])
    assert "damaged" in open_refused(directory)


def rewrite(directory: Path, statement: str) -> None:
    connection = apsw.Connection(str(directory / "witness.db"))
    connection.execute(statement)
    connection.close()


def spoil(directory: Path) -> None:
    path = directory / "witness.db"
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * len(data[4096:])
    path.write_bytes(data)


def swap_witness(directory: Path) -> None:
    store.init(directory.with_name("other"), counting_entropy_from(9))
    shutil.copy(directory.with_name("other") / "witness.db", directory / "witness.db")


def swap_key(directory: Path) -> None:
    store.init(directory.with_name("other"), counting_entropy_from(9))
    shutil.copy(directory.with_name("other") / "witness.ed25519", directory / "witness.ed25519")


def counting_entropy_from(skip: int) -> Callable[[int], bytes]:
    entropy = counting_entropy()
    for _ in range(skip):
        entropy(1)
    return entropy


@pytest.mark.req("P12-08", "P12-09")
@pytest.mark.parametrize(
    ("spoiler", "text"),
    [
        (lambda path: rewrite(path, "PRAGMA user_version = 2"), "schema 2"),
        (lambda path: rewrite(path, "PRAGMA application_id = 7"), "not a witness database"),
        (lambda path: rewrite(path, "DELETE FROM witness"), "no identity"),
        (lambda path: rewrite(path, f"UPDATE witness SET witness_id = x'{'ab' * 16}'"), "different witnesses"),
        (
            lambda path: rewrite(
                path, "PRAGMA ignore_check_constraints = ON; INSERT INTO witness VALUES (2, x'01', x'02', 0)"
            ),
            "damaged: CHECK constraint",
        ),
        (spoil, "witness.db"),
        (lambda path: (path / "witness.db").write_bytes(b"nothing of the kind" * 100), "cannot be used"),
        (lambda path: (path / "witness.db").unlink(), "witness.db is missing"),
        (lambda path: (path / "witness.ed25519").unlink(), "witness init"),
        (lambda path: (path / "witness.ed25519").chmod(0o640), "chmod 600"),
        (lambda path: (path / "witness.ed25519").write_bytes(b"short"), "32 bytes"),
        (lambda path: path.chmod(0o750), "chmod 700"),
        (swap_witness, "different witnesses"),
        (swap_key, "different witnesses"),
    ],
)
def test_a_directory_that_is_not_as_it_was_left_is_refused(
    spoiler: Callable[[Path], None], text: str, witness: LocalWitness, directory: Path
) -> None:
    activate(witness, 5)
    witness.service.close()
    spoiler(directory)
    assert text in open_refused(directory)


def test_one_process_holds_the_directory(witness: LocalWitness, directory: Path) -> None:
    assert "locked by another process" in open_refused(directory)
    witness.service.close()
    WitnessStore.open(directory).close()


def test_init_overwrites_nothing(witness: LocalWitness, directory: Path) -> None:
    key = (directory / "witness.ed25519").read_bytes()
    witness.service.close()
    with pytest.raises(WitnessStateError, match="already"):
        store.init(directory, counting_entropy())
    assert (directory / "witness.ed25519").read_bytes() == key


def test_inspect_says_what_is_missing(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(WitnessStateError, match="no witness"):
        store.inspect(directory)
    directory.mkdir(mode=0o755)
    with pytest.raises(WitnessStateError, match="chmod 700"):
        store.inspect(directory)
    directory.chmod(0o700)
    (directory / "witness.db").write_bytes(b"nothing of the kind" * 100)
    with pytest.raises(WitnessStateError, match="cannot be read"):
        store.inspect(directory)


@pytest.mark.req("P12-09")
@pytest.mark.parametrize("step", STEPS)
def test_a_commit_that_fails_grants_nothing_and_heals_itself(step: str, witness: LocalWitness, clock: Clock) -> None:
    activate(witness, 5)
    clock.advance(LIFE)

    def fail(name: str) -> None:
        if name == step:
            raise OSError(28, "No space left on device")

    witness.step = fail
    reply = witness.call(Activate(COORDINATOR, AuthorityEpoch(6), incarnation(6)))
    assert reply == Refused(Refusal.STORAGE)
    witness.step = lambda name: None
    epoch, sequence = witness.last(COORDINATOR)
    assert (epoch, sequence) == ((6, 2) if STEPS.index(step) >= STEPS.index("renamed") else (5, 1))
    clock.advance(LIFE)
    assert witness.activate(COORDINATOR, AuthorityEpoch(epoch + 1), incarnation(7)).activation_sequence == sequence + 1
    assert "witness_commit_failed" in witness.log.getvalue()


def test_a_state_that_cannot_be_read_again_is_told_to_every_caller(witness: LocalWitness, directory: Path) -> None:
    def fail(name: str) -> None:
        raise OSError(5, "Input/output error")

    witness.step = fail
    refused = Refused(Refusal.STORAGE)
    request = Activate(COORDINATOR, AuthorityEpoch(6), incarnation(6))
    assert witness.call(request) == refused
    (directory / "high-water").rename(directory / "away")
    assert witness.call(request) == refused
    assert "witness_state_unusable" in witness.log.getvalue()
    (directory / "away").rename(directory / "high-water")
    witness.step = lambda name: None
    assert witness.last(COORDINATOR) == (0, 0)


def test_high_water_without_a_record_reads_back() -> None:
    level = HighWater(activation_witness_id(b"\xaa" * 16), 7)
    assert HighWater.decode(level.encode()) == level
