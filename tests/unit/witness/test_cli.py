"""The commands of the witness, as processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.coordinator.wire.ids import AuthorityEpoch
from sidecar.ops.exitcodes import ExitCode
from tests.unit.witness.rig import COORDINATOR, START_WALL, Clock, LocalWitness, client_key, incarnation

ROOT = Path(__file__).resolve().parents[3]


def sidecar(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sidecar", "witness", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "state"


def test_init_as_json(directory: Path) -> None:
    made = json.loads(sidecar("init", "--json", "--state-dir", str(directory)).stdout)
    shown = json.loads(sidecar("show", "--json", "--state-dir", str(directory)).stdout)
    assert set(made) == {"witness_id", "public_key"}
    assert made["witness_id"] == shown["witness_id"]


def test_init_prints_what_coordinators_pin_and_never_repeats(directory: Path) -> None:
    done = sidecar("init", "--state-dir", str(directory))
    assert done.returncode == 0
    words = dict(line.split() for line in done.stdout.splitlines())
    assert set(words) == {"witness_id", "public_key"}
    assert (len(words["witness_id"]), len(words["public_key"])) == (32, 64)
    assert (directory / "witness.ed25519").read_bytes().hex() not in done.stdout
    again = sidecar("init", "--state-dir", str(directory))
    assert again.returncode == ExitCode.STORE
    assert "already" in again.stderr
    assert len(again.stderr.splitlines()) == 1
    shown = sidecar("show", "--state-dir", str(directory), "--json")
    assert json.loads(shown.stdout) == {"witness_id": words["witness_id"], "commits": 0, "coordinators": []}


@pytest.mark.req("P12-03")
def test_show_dumps_everything_but_secrets_beside_a_running_witness(directory: Path) -> None:
    witness = LocalWitness(directory, Clock())
    certificate = witness.activate(COORDINATOR, AuthorityEpoch(5), incarnation(1))
    text = sidecar("show", "--state-dir", str(directory))
    shown = sidecar("show", "--state-dir", str(directory), "--json")
    (coordinator,) = json.loads(shown.stdout)["coordinators"]
    assert coordinator == {
        "coordinator_id": COORDINATOR.hex(),
        "client_key_id": coordinator["client_key_id"],
        "last_authority_epoch": 5,
        "activation_sequence": 1,
        "incarnation_id": incarnation(1).hex(),
        "issued_at": START_WALL,
        "expires_at": START_WALL + 60,
        "relinquished": False,
    }
    assert "last_authority_epoch 5" in text.stdout
    assert "2030-03-17T17:47:40Z" in text.stdout
    for output in (text.stdout, shown.stdout):
        assert certificate.fencing_token.hex() not in output
    witness.service.close()


def test_show_without_a_witness_says_so(directory: Path) -> None:
    done = sidecar("show", "--state-dir", str(directory))
    assert (done.returncode, done.stdout) == (ExitCode.STORE, "")
    assert "there is no witness" in done.stderr
    assert "; make one with: sidecar witness init --state-dir " in done.stderr


def write_config(tmp_path: Path, extra: str = "") -> Path:
    path = tmp_path / "witness.toml"
    path.write_text(
        f'[witness]\nstate_dir = "state"\nsocket = "run/w.sock"\nclients = ["{client_key().public_key.hex()}"]\n{extra}'
    )
    return path


@pytest.mark.parametrize(
    ("extra", "prepared", "code", "text"),
    [
        ("colour = 1\n", True, ExitCode.CONFIG, "witness.colour: unknown key"),
        ("", False, ExitCode.STORE, "witness init"),
        ('[log]\nfile = "nowhere/log"\n', True, 1, "nowhere/log"),
    ],
)
def test_serve_refuses_in_one_line(
    extra: str, prepared: bool, code: int, text: str, tmp_path: Path, directory: Path
) -> None:
    if prepared:
        sidecar("init", "--state-dir", str(directory))
    done = sidecar("serve", "--config", str(write_config(tmp_path, extra)))
    assert (done.returncode, done.stdout) == (code, "")
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_serve_does_not_take_a_socket_that_is_no_socket(tmp_path: Path, directory: Path) -> None:
    sidecar("init", "--state-dir", str(directory))
    (tmp_path / "run").mkdir(mode=0o700)
    (tmp_path / "run" / "w.sock").write_text("mine")
    done = sidecar("serve", "--config", str(write_config(tmp_path)))
    assert done.returncode == ExitCode.CANNOT_BIND
    assert "not a socket" in done.stderr
    assert (tmp_path / "run" / "w.sock").read_text() == "mine"
