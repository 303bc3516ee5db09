"""``sidecar coordinator top``: what a coordinator holds and does, live."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn, Protocol

import click

from sidecar.cli.connection_options import Command, FiniteType
from sidecar.cli.coordinator_stats import EXIT_HELP, Look, admin_options, admin_socket, document_line, look, rates
from sidecar.cli.coordinator_top_view import Line, fitted, painted, silent, view
from sidecar.cli.main import one_line
from sidecar.ops.admin import CannotAsk

_HOME: Final = "\x1b[H"
_CLEAR: Final = "\x1b[2J"
_CLEAR_LINE: Final = "\x1b[K"
_CLEAR_BELOW: Final = "\x1b[J"
_HIDE_CURSOR: Final = "\x1b[?25l"
_SHOW_CURSOR: Final = "\x1b[?25h"


@click.command(name="top", cls=Command, epilog=EXIT_HELP, short_help="Who is connected, what lags, what is near.")
@click.option(
    "--interval",
    type=FiniteType(0.1, 3600),
    default=2.0,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option("--once", is_flag=True, help="Look once and end.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per look.")
@admin_options
def top(interval: float, once: bool, as_json: bool, dev: Path | None, admin_path: Path | None) -> None:
    """Watch connections, subscriptions, leases, quotas and refusals until Ctrl-C.

    On a terminal the view is refreshed in place, elsewhere it is printed anew as plain lines. A subscription's LAG is
    how many durable events it is behind; STALLED has events and no credit for them. `!` marks a quota at 80 % or more.
    A server that goes away is told and waited for. NO_COLOR turns colours off.
    """
    path = admin_socket(dev, admin_path)
    shown: _Output = _Json() if as_json else _Plain()
    if not (once or as_json) and _is_screen():
        shown = _Screen()
    if once:
        shown.show(look(path), None)
        return
    with contextlib.suppress(KeyboardInterrupt), shown.open() as pause:
        _follow(path, shown, pause, interval)


class _Pause(Protocol):
    def __call__(self, seconds: float) -> bool:
        """Wait; True when something else than the time ended it and the view is to be drawn again."""


class _Output(Protocol):
    """Where the looks go."""

    def open(self) -> contextlib.AbstractContextManager[_Pause]: ...
    def show(self, now: Look, before: Look | None) -> None: ...
    def lost(self, error: CannotAsk, last: Look, before: Look | None) -> None:
        """The server does not answer; ``last`` is what it said last."""


def _follow(path: Path, shown: _Output, pause: _Pause, interval: float) -> NoReturn:
    """Look again and again. The first look must succeed (CannotAsk); later ones are tried until they do."""
    before: Look | None = None
    last = look(path)
    shown.show(last, None)
    error: CannotAsk | None = None
    due = time.monotonic()
    while True:
        due = max(due + interval, time.monotonic())
        while pause(max(0.0, due - time.monotonic())):
            if error is None:
                shown.show(last, before)
            else:
                shown.lost(error, last, before)
        try:
            now = look(path)
        except CannotAsk as failure:
            error = failure
            shown.lost(error, last, before)
        else:
            error, before, last = None, last, now
            shown.show(last, before)


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


class _Json:
    """One object per look; ``rates`` is null until there are two."""

    def open(self) -> contextlib.AbstractContextManager[_Pause]:
        return contextlib.nullcontext(_sleep)

    def show(self, now: Look, before: Look | None) -> None:
        click.echo(document_line({**now.document, "rates": rates(before, now)}))

    def lost(self, error: CannotAsk, last: Look, before: Look | None) -> None:
        document = {"name": "NO_CONNECTION", "message": one_line(str(error)), "exit_code": error.exit_code}
        click.echo(document_line({"error": document}))


class _Plain:
    """The view as plain lines, each followed by an empty one."""

    def open(self) -> contextlib.AbstractContextManager[_Pause]:
        return contextlib.nullcontext(_sleep)

    def show(self, now: Look, before: Look | None) -> None:
        for line in view(now.document, rates(before, now)):
            click.echo(line.text)
        click.echo()

    def lost(self, error: CannotAsk, last: Look, before: Look | None) -> None:
        click.echo(silent(str(error), None, 0).text)


def _is_screen() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


class _Screen:
    """The view in place, on the terminal as it is. The cursor comes back however it ends."""

    def __init__(self) -> None:
        self._colour = not os.environ.get("NO_COLOR")
        self._size = os.terminal_size((0, 0))

    @contextlib.contextmanager
    def open(self) -> Iterator[_Pause]:
        """Hide the cursor, and listen to the end of the process and to changes of the size."""
        woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        handlers = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
        handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, lambda _number, _frame: None)
        old = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

        def pause(seconds: float) -> bool:
            if not select.select([woken], [], [], seconds)[0]:
                return False
            with contextlib.suppress(BlockingIOError):
                os.read(woken, 4_096)
            return True

        try:
            self._write(_HIDE_CURSOR)
            yield pause
        finally:
            signal.set_wakeup_fd(old)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            os.close(woken)
            os.close(wake)
            with contextlib.suppress(OSError):  # the terminal itself may be gone
                self._write(f"\r\n{_SHOW_CURSOR}")

    def show(self, now: Look, before: Look | None) -> None:
        self._draw(view(now.document, rates(before, now)))

    def lost(self, error: CannotAsk, last: Look, before: Look | None) -> None:
        head = silent(str(error), last.document, time.monotonic() - last.at)
        self._draw([head, *view(last.document, rates(before, last))])

    def _draw(self, lines: list[Line]) -> None:
        size = shutil.get_terminal_size()
        clear = _CLEAR if size != self._size else ""
        self._size = size
        shown = fitted(lines, size.columns, max(2, size.lines - 1))
        body = f"{_CLEAR_LINE}\r\n".join(painted(line, colour=self._colour) for line in shown)
        self._write(f"{clear}{_HOME}{body}{_CLEAR_LINE}{_CLEAR_BELOW}")

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
