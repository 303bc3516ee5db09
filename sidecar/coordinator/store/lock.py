"""One writer per store directory (P12-01), and the proof that it still is the one (P14-05)."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import Final

from sidecar.base.safefile import quoted
from sidecar.coordinator.store.errors import StoreLocked, StoreReadOnly, StoreUnsafe

NAME: Final = "store.lock"
_ATTEMPTS: Final = 16


class StoreLock:
    """An exclusive ``flock`` on ``DIR/store.lock``; the kernel drops it when the process dies.

    The file stays when the lock is released: removing it would let two writers lock two files of one name.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd
        self._info = os.fstat(fd)

    @classmethod
    def acquire(cls, directory: Path) -> StoreLock:
        """Take the lock at once or raise StoreLocked; StoreReadOnly and StoreUnsafe for the file itself."""
        path = directory / NAME
        for _ in range(_ATTEMPTS):
            lock = cls(path, _open(path))
            try:
                check_file(path, lock._info)
                fcntl.flock(lock._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.release()
                raise StoreLocked(directory, "another process runs on this store; stop it first") from None
            except BaseException:
                lock.release()
                raise
            if lock.held():
                return lock
            lock.release()  # the file was replaced between open and flock
        raise StoreUnsafe(path, "keeps being replaced; stop whatever removes it")

    def held(self) -> bool:
        """Whether the locked file still is the one of that name. Open as it is, its inode cannot be given out again."""
        return same_file(self._path, self._info)

    def release(self) -> None:
        """Drop the lock."""
        os.close(self._fd)


def same_file(path: Path, info: os.stat_result) -> bool:
    """Whether ``path`` still names the file of ``info``."""
    try:
        now = os.lstat(path)
    except OSError:
        return False
    return (now.st_dev, now.st_ino) == (info.st_dev, info.st_ino)


def check_file(path: Path, info: os.stat_result) -> None:
    """A regular file of the effective user, mode 0600: StoreUnsafe or StoreReadOnly otherwise."""
    if not stat.S_ISREG(info.st_mode):
        raise StoreUnsafe(path, "is not a regular file")
    if info.st_uid != os.geteuid():
        raise StoreUnsafe(path, f"belongs to uid {info.st_uid}, not to uid {os.geteuid()} that runs this")
    mode = stat.S_IMODE(info.st_mode)
    if not mode & stat.S_IWUSR:
        raise StoreReadOnly(path, f"has mode {mode:04o}; run: chmod 600 {quoted(path)}")
    if mode != stat.S_IRUSR | stat.S_IWUSR:
        raise StoreUnsafe(path, f"has mode {mode:04o}; run: chmod 600 {quoted(path)}")


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR):
            raise StoreUnsafe(path, "is not a regular file") from None
        raise StoreReadOnly(path, f"cannot be opened for writing ({error.strerror})") from None
