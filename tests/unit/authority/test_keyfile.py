"""The authority key in its state directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.base.ed25519 import fingerprint
from sidecar.base.safefile import UnsafeFile
from sidecar.coordinator.authority.keyfile import KEY_NAME, init_authority_key, load_authority_key
from tests.canary import CANARY, spellings_in


def canary(size: int) -> bytes:
    return CANARY[:size]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    init_authority_key(tmp_path / "state", canary)
    return tmp_path / "state"


@pytest.mark.req("W2-10", "W2-11", "W2-12")
def test_init_writes_the_raw_seed_owner_only(state: Path) -> None:
    path = state / "workload-authority.ed25519"
    assert path.read_bytes() == CANARY
    assert path.stat().st_mode & 0o7777 == 0o600
    assert state.stat().st_mode & 0o7777 == 0o700
    assert os.listdir(state) == [KEY_NAME]


@pytest.mark.req("W2-01", "W2-08")
def test_the_fingerprint_is_stable_over_loads(state: Path) -> None:
    keys = {fingerprint(load_authority_key(state).public_key) for _ in range(3)}
    assert len(keys) == 1
    moved = state.rename(state.with_name("moved"))
    assert fingerprint(load_authority_key(moved).public_key) in keys


@pytest.mark.req("W2-15")
def test_another_key_is_another_authority(state: Path, tmp_path: Path) -> None:
    before = fingerprint(load_authority_key(state).public_key)
    (state / KEY_NAME).unlink()
    init_authority_key(state, os.urandom)
    assert fingerprint(load_authority_key(state).public_key) != before


@pytest.mark.req("W2-10")
@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_another_size_is_refused(state: Path, size: int) -> None:
    (state / KEY_NAME).write_bytes((CANARY * 2)[:size])
    with pytest.raises(UnsafeFile) as refused:
        load_authority_key(state)
    assert not spellings_in(str(refused.value))


@pytest.mark.req("W2-11")
@pytest.mark.parametrize("mode", [0o775, 0o755, 0o777])
def test_an_open_state_directory_is_refused(state: Path, mode: int) -> None:
    state.chmod(mode)
    with pytest.raises(UnsafeFile, match="open to others"):
        load_authority_key(state)
    with pytest.raises(UnsafeFile, match="open to others"):
        init_authority_key(state, os.urandom)


@pytest.mark.req("W2-12")
def test_an_unsafe_key_file_is_refused(state: Path, tmp_path: Path) -> None:
    path = state / KEY_NAME
    path.chmod(0o644)
    with pytest.raises(UnsafeFile, match=f"chmod 600 {path}"):
        load_authority_key(state)
    path.chmod(0o600)
    real = path.rename(tmp_path / "real")
    path.symlink_to(real)
    with pytest.raises(UnsafeFile, match="not a regular file"):
        load_authority_key(state)
    path.unlink()
    path.mkdir(mode=0o600)
    with pytest.raises(UnsafeFile, match="not a regular file"):
        load_authority_key(state)


@pytest.mark.req("W2-14", "W9-10")
def test_loading_never_creates(tmp_path: Path) -> None:
    with pytest.raises(UnsafeFile, match="authority --init"):
        load_authority_key(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()
    (tmp_path / "empty").mkdir(mode=0o700)
    with pytest.raises(UnsafeFile, match="authority --init"):
        load_authority_key(tmp_path / "empty")
    assert not list((tmp_path / "empty").iterdir())


@pytest.mark.req("W9-11")
def test_init_never_overwrites(state: Path) -> None:
    with pytest.raises(UnsafeFile, match="exists already"):
        init_authority_key(state, os.urandom)
    assert (state / KEY_NAME).read_bytes() == CANARY
    (state / KEY_NAME).write_bytes(b"damaged")
    with pytest.raises(UnsafeFile, match="exists already"):
        init_authority_key(state, os.urandom)
    assert (state / KEY_NAME).read_bytes() == b"damaged"


@pytest.mark.req("W9-11", "W2-13")
def test_of_many_inits_one_wins(tmp_path: Path) -> None:
    code = (
        "import os, sys; from sidecar.coordinator.authority.keyfile import init_authority_key\n"
        "init_authority_key(sys.argv[1], os.urandom)"
    )
    argv = [sys.executable, "-c", code, str(tmp_path / "state")]
    processes = [subprocess.Popen(argv, stderr=subprocess.DEVNULL) for _ in range(4)]
    assert sorted(process.wait() for process in processes) == [0, 1, 1, 1]
    load_authority_key(tmp_path / "state")
    assert os.listdir(tmp_path / "state") == [KEY_NAME]


@pytest.mark.req("W2-16")
def test_no_key_appears_when_the_random_source_fails(tmp_path: Path) -> None:
    def broken(_: int) -> bytes:
        raise OSError("no entropy")

    with pytest.raises(OSError, match="no entropy"):
        init_authority_key(tmp_path / "state", broken)
    assert not list((tmp_path / "state").iterdir())
