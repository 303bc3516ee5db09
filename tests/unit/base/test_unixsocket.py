"""The socket file: owner-only, stale ones replaced, live ones left alone."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.base.unixsocket import MAX_PATH, CannotBind, SocketFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "c.sock"


def connect(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


@pytest.mark.req("P2-06")
def test_the_socket_is_owner_only_in_an_owner_only_directory(path: Path) -> None:
    file = SocketFile(path)
    with file.open():
        assert stat.S_IMODE(path.lstat().st_mode) == 0o600
        assert stat.S_ISSOCK(path.lstat().st_mode)
        assert stat.S_IMODE(path.parent.lstat().st_mode) == 0o700
        connect(path)


@pytest.mark.req("P2-06")
@pytest.mark.parametrize("mode", [0o755, 0o710, 0o701])
def test_a_directory_that_others_can_enter_is_refused(path: Path, mode: int) -> None:
    path.parent.mkdir()
    path.parent.chmod(mode)
    with pytest.raises(CannotBind, match="chmod 700"):
        SocketFile(path).open()
    assert not path.exists()


def test_a_stale_file_of_a_dead_process_is_replaced(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    code = "import socket,sys,os; s=socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); os._exit(0)"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    assert path.exists()
    with SocketFile(path).open():
        connect(path)


def test_a_socket_on_which_somebody_listens_stays(path: Path) -> None:
    first = SocketFile(path)
    with first.open():
        with pytest.raises(CannotBind, match="another server listens here"):
            SocketFile(path).open()
        connect(path)
        first.close()


def test_a_listener_with_a_full_backlog_counts_as_alive(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waiting:
        busy.bind(str(path))
        busy.listen(0)
        waiting.connect(str(path))
        with pytest.raises(CannotBind, match="another server listens here"):
            SocketFile(path).open()


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_what_is_no_socket_is_not_touched(path: Path, kind: str) -> None:
    path.parent.mkdir(mode=0o700)
    if kind == "file":
        path.write_text("precious")
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(path.parent / "elsewhere")
    with pytest.raises(CannotBind, match="move it away"):
        SocketFile(path).open()
    assert os.path.lexists(path)


def test_closing_removes_the_own_file_once(path: Path) -> None:
    file = SocketFile(path)
    with file.open():
        file.close()
        assert not path.exists()
        file.close()


def test_closing_leaves_the_file_of_a_successor(path: Path) -> None:
    first, second = SocketFile(path), SocketFile(path)
    with first.open():
        path.unlink()
        with second.open():
            first.close()
            connect(path)


def test_a_path_that_does_not_fit_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotBind, match=str(MAX_PATH)):
        SocketFile(tmp_path / ("x" * 200)).open()


def test_a_server_knows_whether_clients_still_find_it(path: Path) -> None:
    file = SocketFile(path)
    assert not file.in_place()
    with file.open():
        assert file.in_place()
        path.unlink()
        assert not file.in_place()
        path.touch()
        assert not file.in_place()


RIVAL = """
import sys
from pathlib import Path
from sidecar.base.unixsocket import CannotBind, SocketFile
sys.stdin.readline()
try:
    listener = SocketFile(Path(sys.argv[1])).open()
    print("serves", flush=True)
except CannotBind:
    print("refused", flush=True)
sys.stdin.readline()
"""


def test_of_many_that_start_at_once_on_a_stale_file_one_serves(path: Path) -> None:
    """Between bind and listen a socket looks stale: who looks at it then must not take it away."""
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    rivals = [
        subprocess.Popen(
            [sys.executable, "-c", RIVAL, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(6)
    ]
    told = []
    for line in ("start\n", "end\n"):
        for rival in rivals:
            assert rival.stdin is not None
            rival.stdin.write(line)
            rival.stdin.flush()
        if line == "start\n":
            for rival in rivals:
                assert rival.stdout is not None
                told.append(rival.stdout.readline().strip())
            connect(path)
    for rival in rivals:
        rival.communicate()
    assert sorted(told) == ["refused"] * 5 + ["serves"]
