"""A ``sidecar`` command on a pseudo-terminal, and the screen that a person would see."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from types import TracebackType
from typing import Self

PATIENCE = 30.0
_SEQUENCE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])")


class Terminal:
    """The process and its screen. ``raw`` is everything that it wrote."""

    def __init__(
        self, *arguments: str, rows: int = 30, columns: int = 120, environ: dict[str, str] | None = None
    ) -> None:
        self.raw = ""
        self.lines: list[str] = [""]
        self.cursor = True
        self.sequences: list[str] = []
        self._row = self._column = 0
        self._left = ""
        self._master, slave = pty.openpty()
        self.resize(rows=rows, columns=columns)
        environment = {
            name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sidecar", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**environment, "TERM": "xterm-256color", **(environ or {})},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)
        os.close(self._master)

    def resize(self, *, rows: int, columns: int) -> None:
        """The window has another size now."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        """Keys are pressed."""
        os.write(self._master, text.encode())

    def rows_with(self, needle: str) -> list[int]:
        """Rows of the screen that hold the text."""
        return [row for row, line in enumerate(self.lines) if needle in line]

    def wait_for(self, needle: str) -> None:
        """Until the screen shows the text."""
        self._until(lambda: bool(self.rows_with(needle)), needle)

    def wait_for_not(self, needle: str) -> None:
        """Until the screen does not show it any more."""
        self._until(lambda: not self.rows_with(needle), f"no {needle}")

    def wait(self) -> int:
        """Until the process has ended and all of its output was seen; its exit code."""
        while self._read(PATIENCE):
            pass
        return self.process.wait(PATIENCE)

    def _until(self, done: object, what: str) -> None:
        give_up = time.monotonic() + PATIENCE
        assert callable(done)
        while not done():
            assert time.monotonic() < give_up, f"{what!r} did not come:\n" + "\n".join(self.lines)
            assert self._read(1.0) or self.process.poll() is None, f"it ended without {what!r}\n" + self.raw

    def _read(self, seconds: float) -> bool:
        """Take what was written; False when there is nothing or nothing more."""
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        data = b""
        with contextlib.suppress(OSError):  # EIO: the other end is closed
            data = os.read(self._master, 65536)
        text = data.decode("utf-8", "replace")
        self.raw += text
        self._show(self._left + text)
        return bool(data)

    def _show(self, text: str) -> None:
        at = 0
        while at < len(text):
            if text[at] == "\x1b":
                found = _SEQUENCE.match(text, at)
                if found is None:
                    break  # the rest of it comes with the next read
                self._obey(found[1], found[2])
                self.sequences.append(found[0])
                at = found.end()
                continue
            self._put(text[at])
            at += 1
        self._left = text[at:]

    def _obey(self, values: str, name: str) -> None:
        if name == "H":
            self._row = self._column = 0
        elif name == "K":
            self.lines[self._row] = self.lines[self._row][: self._column]
        elif name == "J" and values == "2":
            self.lines = [""] * len(self.lines)
        elif name == "J":
            self.lines[self._row] = self.lines[self._row][: self._column]
            del self.lines[self._row + 1 :]
        elif values == "?25":
            self.cursor = name == "h"

    def _put(self, char: str) -> None:
        if char == "\r":
            self._column = 0
        elif char == "\n":
            self._row += 1
            while self._row >= len(self.lines):
                self.lines.append("")
        else:
            line = self.lines[self._row].ljust(self._column)
            self.lines[self._row] = line[: self._column] + char + line[self._column + 1 :]
            self._column += 1
