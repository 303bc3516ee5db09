"""Unix sockets that belong to one user: who is at the other end, and how to listen without a window for others."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sidecar.base import safefile
from sidecar.ops.exitcodes import ExitCode

SOCKET_MODE: Final = 0o600
BACKLOG: Final = 128
_UCRED: Final = struct.Struct("iII")  # pid, uid, gid


class CannotListen(Exception):  # noqa: N818 - a state of the path, not a mishap
    """Nothing can be served at this path; one line says why."""

    exit_code = ExitCode.CANNOT_BIND


def peer_uid(sock: socket.socket) -> int:
    """The user id of the process at the other end, as the kernel saw it at connect."""
    _, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return int(uid)


@contextlib.contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """A listening socket, mode 0600 before anybody can connect; its name is removed at the end.

    A socket that a killed process left is replaced; a live one and any other kind of file are not touched. Raises
    :exc:`CannotListen`.
    """
    try:
        sock, identity = _listen(path)
    except (OSError, safefile.UnsafeFile) as error:
        raise CannotListen(f"{path} cannot be opened: {error}") from error
    try:
        with sock:
            yield sock
    finally:
        with contextlib.suppress(FileNotFoundError):
            if _identity(path) == identity:
                path.unlink()


def _listen(path: Path) -> tuple[socket.socket, tuple[int, int]]:
    safefile.ensure_private_dir(path.parent)
    _clear(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        sock.bind(str(path))
        path.chmod(SOCKET_MODE)  # nobody can connect before listen
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock, _identity(path)


def _identity(path: Path) -> tuple[int, int]:
    info = os.lstat(path)
    return info.st_dev, info.st_ino


def _clear(path: Path) -> None:
    """Remove the socket of a process that died; refuse everything else."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise CannotListen(f"{path} exists and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.setblocking(False)
        # Anything but a refusal, a full backlog too, is a sign of life.
        if probe.connect_ex(str(path)) != errno.ECONNREFUSED:
            raise CannotListen(f"{path} is served by another process")
    path.unlink()
