"""The witness as a process: killed at random moments under load, stopped, started twice, and among bad peers."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sidecar.base.clock import system_now
from sidecar.base.witnessing import Refusal, WitnessRefused, WitnessUnavailable
from sidecar.coordinator.authority.certificate import WitnessPin, verify_certificate
from sidecar.coordinator.wire.ids import AuthorityEpoch, CoordinatorId, IncarnationId
from sidecar.coordinator.wire.records import ActivationCertificate
from sidecar.ops.exitcodes import ExitCode
from sidecar.witness import store
from sidecar.witness.client import WitnessClient
from tests.unit.witness.rig import client_key

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 30.0
ROUNDS = 24
COORDINATORS = 3
RIVALS = 3


class WitnessProcess:
    """`sidecar witness serve` in a directory."""

    def __init__(self, directory: Path, *, certificate_seconds: int = 2) -> None:
        self.directory = directory
        self.socket = directory / "run" / "w.sock"
        self.state = directory / "state"
        if not self.state.exists():
            store.init(self.state, os.urandom)
        (directory / "witness.toml").write_text(
            f"""[witness]
state_dir = "state"
socket = "run/w.sock"
clients = ["{client_key().public_key.hex()}"]
certificate_seconds = {certificate_seconds}
request_milliseconds = 500
max_connections = 16
[log]
level = "error"
file = "witness.log"
"""
        )
        self.process: subprocess.Popen[str] | None = None
        self.up = threading.Event()

    def start(self) -> dict[str, object]:
        """Start it and wait for its ready line."""
        arguments = [sys.executable, "-m", "sidecar", "witness", "serve", "--config"]
        self.process = subprocess.Popen(
            [*arguments, str(self.directory / "witness.toml")], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        ready: dict[str, object] = json.loads(self.process.stdout.readline())
        self.up.set()
        return ready

    def end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.up.clear()
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None
        return code

    def client(self, timeout: float = PATIENCE) -> WitnessClient:
        return WitnessClient(self.socket, client_key(), store.inspect(self.state)[0], timeout=timeout)


@pytest.fixture
def witness(tmp_path: Path) -> Iterator[WitnessProcess]:
    witness = WitnessProcess(tmp_path)
    yield witness
    if witness.process is not None:
        witness.end(signal.SIGKILL)


@dataclass
class Ledger:
    """Everything that any client was told, and every token that anybody began to give back."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    granted: dict[CoordinatorId, list[ActivationCertificate]] = field(default_factory=lambda: defaultdict(list))
    given_back: set[bytes] = field(default_factory=set)
    calls: int = 0
    enough: int = 0
    reached: threading.Event = field(default_factory=threading.Event)

    def counted(self) -> None:
        with self.lock:
            self.calls += 1
            if self.calls >= self.enough:
                self.reached.set()

    def wait_for(self, more: int) -> None:
        """Until that many more calls were answered."""
        with self.lock:
            self.enough = self.calls + more
            self.reached.clear()
        assert self.reached.wait(PATIENCE)

    def check(self) -> None:
        """Counters only rise; a token's successor was granted after its last expiry, or after it was given back."""
        for certificates in self.granted.values():
            activations: dict[int, list[ActivationCertificate]] = defaultdict(list)
            for certificate in certificates:
                activations[certificate.activation_sequence].append(certificate)
            for same in activations.values():
                assert len({(c.fencing_token, c.authority_epoch, c.incarnation_id) for c in same}) == 1
            ordered = [activations[sequence] for sequence in sorted(activations)]
            for before, after in itertools.pairwise(ordered):
                assert after[0].authority_epoch > before[0].authority_epoch
                assert after[0].fencing_token != before[0].fencing_token
                if before[0].fencing_token not in self.given_back:
                    assert min(c.issued_at for c in after) >= max(c.expires_at for c in before)


class Rival:
    """A coordinator process that wants to be the writer, holds on for a while, and leaves with or without a word."""

    def __init__(self, witness: WitnessProcess, coordinator: CoordinatorId, ledger: Ledger, seed: int) -> None:
        self._client = witness.client(timeout=5.0)
        self._up = witness.up
        self._coordinator = coordinator
        self._ledger = ledger
        self._random = random.Random(seed)

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            assert self._up.wait(PATIENCE)
            try:
                self._live(stop)
            except WitnessRefused as refused:
                self._ledger.counted()
                if refused.retry_after is not None:
                    stop.wait(min(refused.retry_after, 0.05))
            except WitnessUnavailable:
                continue

    def _live(self, stop: threading.Event) -> None:
        epoch = self._client.last(self._coordinator)[0] + 1
        certificate = self._keep(
            self._client.activate(self._coordinator, AuthorityEpoch(epoch), IncarnationId(self._random.randbytes(16)))
        )
        for _ in range(self._random.randrange(12)):
            if stop.is_set():
                return
            certificate = self._keep(self._client.renew(certificate))
        if self._random.random() < 0.8:
            with self._ledger.lock:
                self._ledger.given_back.add(certificate.fencing_token)
            self._client.relinquish(self._coordinator, certificate.activation_sequence, certificate.fencing_token)

    def _keep(self, certificate: ActivationCertificate) -> ActivationCertificate:
        with self._ledger.lock:
            self._ledger.granted[self._coordinator].append(certificate)
        self._ledger.counted()
        return certificate


@pytest.mark.req("P12-09", "P12-11", "P12-12", "P12-04", "P14-05")
def test_kill_at_random_moments_never_gives_two_tokens_or_a_lower_epoch(witness: WitnessProcess) -> None:
    seed = random.SystemRandom().getrandbits(32)
    chance = random.Random(seed)
    ledger, stop = Ledger(), threading.Event()
    coordinators = [CoordinatorId(bytes([number]) * 16) for number in range(1, COORDINATORS + 1)]
    rivals: list[Future[None]] = []
    witness.start()
    with ThreadPoolExecutor(COORDINATORS * RIVALS) as pool:
        for coordinator in coordinators:
            for _ in range(RIVALS):
                rivals.append(pool.submit(Rival(witness, coordinator, ledger, chance.getrandbits(32)).run, stop))
        try:
            for _ in range(ROUNDS):
                ledger.wait_for(chance.randrange(5, 120))
                witness.end(signal.SIGKILL)
                witness.start()
                for coordinator in coordinators:
                    last = witness.client().last(coordinator)
                    with ledger.lock:
                        known = ledger.granted[coordinator]
                        most = max(((c.authority_epoch, c.activation_sequence) for c in known), default=(0, 0))
                    # `known` may have grown since the question, but never beyond what the witness says next.
                    assert last >= most or witness.client().last(coordinator) >= most, f"seed {seed}"
        finally:
            stop.set()
    for rival in rivals:
        rival.result()
    ledger.check()
    assert {len(ledger.granted[coordinator]) > ROUNDS // 4 for coordinator in coordinators} == {True}, f"seed {seed}"
    assert witness.end(signal.SIGTERM) == ExitCode.OK
    assert (witness.directory / "witness.log").read_text() == ""


@pytest.mark.req("P12-10", "P12-19")
def test_a_stop_on_request_is_clean_and_the_state_goes_on(witness: WitnessProcess) -> None:
    ready = witness.start()
    pin = WitnessPin(bytes.fromhex(str(ready["witness_id"])), bytes.fromhex(str(ready["public_key"])))
    coordinator = CoordinatorId(b"\x07" * 16)
    certificate = witness.client().activate(coordinator, AuthorityEpoch(5), IncarnationId(b"\x01" * 16))
    verify_certificate(
        certificate, pin, coordinator_id=coordinator, epoch=5, incarnation=b"\x01" * 16, now=system_now()
    )
    assert certificate.expires_at - certificate.issued_at == 2
    assert witness.end(signal.SIGTERM) == ExitCode.OK
    assert not witness.socket.exists()
    with pytest.raises(WitnessUnavailable):
        witness.client().last(coordinator)
    assert witness.start()["witness_id"] == ready["witness_id"]
    assert witness.client().last(coordinator) == (5, 1)
    assert witness.end(signal.SIGINT) == ExitCode.OK


@pytest.mark.req("P12-11")
def test_a_second_witness_on_the_same_state_does_not_start(witness: WitnessProcess) -> None:
    witness.start()
    arguments = [sys.executable, "-m", "sidecar", "witness", "serve", "--config"]
    second = subprocess.run(
        [*arguments, str(witness.directory / "witness.toml")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert second.returncode == ExitCode.STORE
    assert "locked by another process" in second.stderr
    assert witness.client().last(CoordinatorId(b"\x07" * 16)) == (0, 0)


@pytest.mark.req("P12-09")
def test_a_restored_older_state_does_not_start(witness: WitnessProcess) -> None:
    witness.start()
    coordinator = CoordinatorId(b"\x07" * 16)
    certificate = witness.client().activate(coordinator, AuthorityEpoch(5), IncarnationId(b"\x01" * 16))
    witness.end(signal.SIGTERM)
    shutil.copy(witness.state / "witness.db", witness.directory / "backup.db")
    witness.start()
    for _ in range(3):
        certificate = witness.client().renew(certificate)
    witness.end(signal.SIGTERM)
    shutil.copy(witness.directory / "backup.db", witness.state / "witness.db")
    arguments = [sys.executable, "-m", "sidecar", "witness", "serve", "--config"]
    refused = subprocess.run(
        [*arguments, str(witness.directory / "witness.toml")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert refused.returncode == ExitCode.STORE
    assert "older copy" in refused.stderr
    assert not witness.socket.exists()


def test_bad_peers_hurt_nobody(witness: WitnessProcess) -> None:
    witness.start()
    bad = []
    for number in range(60):
        peer = socket.socket(socket.AF_UNIX)
        peer.settimeout(PATIENCE)
        peer.connect(str(witness.socket))
        with suppress(BrokenPipeError):
            peer.send((b"", b"\x00\x00", b"\xff" * 64)[number % 3])
        bad.append(peer)
    coordinator = CoordinatorId(b"\x07" * 16)
    certificate = witness.client().activate(coordinator, AuthorityEpoch(1), IncarnationId(b"\x01" * 16))
    with pytest.raises(WitnessRefused, match=Refusal.LEASE_ACTIVE):
        witness.client().activate(coordinator, AuthorityEpoch(2), IncarnationId(b"\x02" * 16))
    for peer in bad:  # every one of them is closed by the witness, the silent ones too
        with suppress(ConnectionResetError):
            while peer.recv(4096):
                pass
        peer.close()
    witness.client().relinquish(coordinator, certificate.activation_sequence, certificate.fencing_token)
    assert witness.end(signal.SIGTERM) == ExitCode.OK


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_witness_whose_socket_file_is_gone_ends(witness: WitnessProcess, how: str) -> None:
    """It would serve nobody: whoever starts it again brings it back to where clients look."""
    witness.start()
    coordinator = CoordinatorId(b"\x07" * 16)
    witness.client().activate(coordinator, AuthorityEpoch(5), IncarnationId(b"\x01" * 16))
    witness.socket.unlink()
    if how == "replaced":
        witness.socket.write_text("theirs")
    assert witness.process is not None
    assert witness.process.wait(PATIENCE) == ExitCode.CANNOT_BIND
    assert "removed or replaced" in (witness.directory / "witness.log").read_text()
    if how == "replaced":
        assert witness.socket.read_text() == "theirs"
        witness.socket.unlink()
    assert witness.process.stdout is not None
    witness.process.stdout.close()
    witness.start()
    assert witness.client().last(coordinator) == (5, 1)
    assert witness.end(signal.SIGTERM) == ExitCode.OK
