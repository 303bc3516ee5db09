"""Directories of ``sidecar dev`` and where its programs are found."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from pathlib import Path

import pytest

from sidecar.app.layout import Layout, find_nats_server
from sidecar.base.safefile import UnsafeFile


def test_every_directory_is_owner_only(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "dev")
    layout.create()
    directories = [path for path in [layout.root, *layout.root.rglob("*")] if path.is_dir()]
    assert len(directories) >= 8
    assert {stat.S_IMODE(path.stat().st_mode) for path in directories} == {0o700}
    layout.create()


def test_a_directory_that_others_can_read_is_refused(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "dev")
    layout.create()
    layout.authority.chmod(0o755)
    with pytest.raises(UnsafeFile):
        layout.create()


def test_a_deep_root_gets_a_short_socket_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/u")
    shallow, deep = Layout(Path("/d")), Layout(tmp_path / ("x" * 100))
    assert shallow.run == Path("/d/run")
    assert deep.run.parent == Path("/run/u")
    assert len(os.fsencode(deep.run / "coordinator.sock")) <= 107
    assert deep.run != Layout(tmp_path / ("y" * 100)).run


def test_the_server_beside_the_interpreter_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_nats_server(tmp_path / "mine") == tmp_path / "mine"
    binary = tmp_path / "bin" / "nats-server"
    binary.parent.mkdir()
    binary.touch(0o755)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert find_nats_server() == binary
    binary.unlink()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(FileNotFoundError, match="--nats-server"):
        find_nats_server()
