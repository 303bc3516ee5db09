"""Structured log lines: one event word and named fields per line, as JSON or as text.

Every event word has its own rate limit, so that a flood of one kind of line (a peer that reconnects in a loop) neither
fills a disk nor hides the others; the next line of that kind says how many were left out. Only plain values are
printed: byte strings are shown by their length alone and everything else by its type, so that no key, nonce, proof or
payload can slip through. Texts and lists are cut: what a peer has written as long as it likes stays one short line.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from enum import Enum, IntEnum
from itertools import islice
from pathlib import Path
from typing import Final, TextIO

LONGEST_TEXT: Final = 1000
"""Characters of one text in a line."""
MOST_ITEMS: Final = 32
"""Items of one list, and members of one mapping, in a line."""


class Level(IntEnum):
    """Severity of a line."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


class RateLimit:
    """Lets through at most `burst` lines of one event per `window` seconds (monotonic) and counts the rest."""

    def __init__(self, burst: int = 20, window: float = 10.0, *, max_events: int = 512) -> None:
        self._burst = burst
        self._window = window
        self._max_events = max_events
        self._seen: dict[str, tuple[float, int, int]] = {}

    def admit(self, event: str, now: float) -> int | None:
        """None: leave this line out. Otherwise write it; the number is how many of its kind were left out before."""
        start, passed, suppressed = self._seen.get(event, (now, 0, 0))
        if now - start >= self._window:
            start, passed = now, 0
        if passed >= self._burst:
            self._seen[event] = (start, passed, suppressed + 1)
            return None
        if event not in self._seen and len(self._seen) >= self._max_events:
            self._seen.clear()
        self._seen[event] = (start, passed + 1, 0)
        return suppressed


def plain(value: object) -> object:
    """What of a value may stand in a log line."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, str):
        return _cut(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Path):
        return _cut(str(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    if isinstance(value, BaseException):
        return _cut(f"{type(value).__name__}: {value}")
    if isinstance(value, list | tuple):
        rest = [f"... {len(value)} in all"] if len(value) > MOST_ITEMS else []
        return [plain(item) for item in value[:MOST_ITEMS]] + rest
    if isinstance(value, Mapping):
        return {_cut(str(name)): plain(item) for name, item in islice(value.items(), MOST_ITEMS)}
    return f"<{type(value).__name__}>"


def told(error: BaseException) -> str:
    """An error as a line may tell it: one of ours or of the system with its text, which holds no content, any other
    one (a fault of the program) by its type and where it was raised, because its text may hold anything."""
    kind = type(error)
    if isinstance(error, OSError) or kind.__module__.partition(".")[0] in ("sidecar", "cext"):
        return f"{kind.__name__}: {error}"
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return kind.__name__
    return f"{kind.__name__} at {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}... ({len(text)} characters)"


class Log:
    """Writes the lines of one process. Safe in any thread; a line that cannot be written is dropped, never raised."""

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        level: Level = Level.INFO,
        form: str = "json",
        limit: RateLimit | None = None,
        wall: Callable[[], float] = time.time,
        mono: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._level = level
        self._render = _json_line if form == "json" else _console_line
        self._limit = limit or RateLimit()
        self._wall = wall
        self._mono = mono
        self._lock = threading.Lock()

    def debug(self, event: str, **fields: object) -> None:
        self._write(Level.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._write(Level.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._write(Level.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        self._write(Level.ERROR, event, fields)

    def close(self) -> None:
        """Close the file that `open_log` opened; standard error stays open."""
        if self._stream is not None:
            self._stream.close()

    def _write(self, level: Level, event: str, fields: dict[str, object]) -> None:
        if level < self._level:
            return
        with self._lock:
            suppressed = self._limit.admit(event, self._mono())
            if suppressed is None:
                return
            shown = {name: plain(value) for name, value in fields.items()}
            if suppressed:
                shown["suppressed"] = suppressed
            line = self._render(self._wall(), level, event, shown)
            stream = self._stream or sys.stderr
            try:
                stream.write(line + "\n")
                stream.flush()
            except (OSError, ValueError):
                return


def _stamp(wall: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(wall))
    return f"{whole}.{int(wall * 1000) % 1000:03d}Z"


def _json_line(wall: float, level: Level, event: str, fields: dict[str, object]) -> str:
    return json.dumps({"time": _stamp(wall), "level": level.name.lower(), "event": event, **fields}, ensure_ascii=True)


def _console_line(wall: float, level: Level, event: str, fields: dict[str, object]) -> str:
    shown = " ".join(f"{name}={json.dumps(value, ensure_ascii=True)}" for name, value in fields.items())
    return f"{_stamp(wall)} {level.name:<7} {event} {shown}".rstrip()


def open_log(level: str, form: str, file: Path | None) -> Log:
    """The log of a process: level and format are configuration words; a file is created 0600 and appended to.

    Raises OSError when the file cannot be opened.
    """
    stream: TextIO | None = None
    if file is not None:
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        stream = os.fdopen(descriptor, "w", encoding="utf-8", buffering=1)
    return Log(stream, level=Level[level.upper()], form=form)
