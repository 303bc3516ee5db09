"""Unix sockets that belong to one user: a file that is never taken from a live server, and who is at the other end."""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from pathlib import Path
from typing import Final

from sidecar.base.safefile import DirLock, UnsafeFile, ensure_private_dir

BACKLOG: Final = 512
MAX_PATH: Final = 107
"""Bytes of the longest path that fits a Unix socket address."""
_UCRED: Final = struct.Struct("iII")


class CannotBind(OSError):  # noqa: N818 - a state of the path, not a mishap
    """Nothing can be served at this path; one line says why."""


class SocketFile:
    """A listening socket at `path`, mode 0600 in a directory of mode 0700 (P2-06, P12-21).

    A stale file (its server died) is replaced; one on which somebody listens, or that is no socket of this user, is
    not. `close` removes the file again unless another server has taken its place.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._identity: tuple[int, int] | None = None

    def open(self) -> socket.socket:
        """Bind and listen. Raises CannotBind."""
        if len(os.fsencode(self.path)) > MAX_PATH:
            raise CannotBind(f"{self.path}: too long, the path of a Unix socket has at most {MAX_PATH} bytes")
        try:
            ensure_private_dir(self.path.parent)
            with DirLock(self.path.parent):
                self._remove_stale()
                return self._listen()
        except CannotBind:
            raise
        except UnsafeFile as error:
            raise CannotBind(str(error)) from None
        except OSError as error:
            raise CannotBind(f"{self.path}: {error.strerror}") from None

    def in_place(self) -> bool:
        """Whether clients still find this server under its path. While it is bound nobody gets its inode."""
        return self._identity is not None and self._identity == _identity(self.path)

    def close(self) -> None:
        """Remove the file if it is still the one that `open` made."""
        if self.in_place():
            self.path.unlink(missing_ok=True)
        self._identity = None

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(os.fspath(self.path))
            # Nobody can connect before listen(), so the mode is in place in time.
            self.path.chmod(0o600)
            self._identity = _identity(self.path)
            listener.setblocking(False)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
        return listener

    def _remove_stale(self) -> None:
        try:
            info = os.lstat(self.path)
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(info.st_mode) or info.st_uid != os.geteuid():
            raise CannotBind(f"{self.path}: exists and is not a socket of this user; move it away")
        if _somebody_listens(self.path):
            raise CannotBind(f"{self.path}: another server listens here; what is served by another is never taken")
        self.path.unlink(missing_ok=True)


def peer_ids(sock: socket.socket) -> tuple[int, int, int]:
    """pid, uid and gid of the process at the other end, as the kernel saw them at its connect(2); pid is 0 when it
    lives in a pid namespace that cannot be seen from here. OSError or struct.error where the kernel does not tell."""
    pid, uid, gid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return pid, uid, gid


def peer_uid(sock: socket.socket) -> int:
    """The user at the other end."""
    return peer_ids(sock)[1]


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        info = os.lstat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino


def _somebody_listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        # Anything but a refusal (also a full backlog) means that a process holds the other end.
        return probe.connect_ex(os.fspath(path)) not in (errno.ECONNREFUSED, errno.ENOENT)
