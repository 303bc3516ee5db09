"""Children of ``sidecar dev``: readiness, restarts, order of stopping. Real processes."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.app.supervisor import Child, ChildFailed, Supervisor
from sidecar.base.safefile import UnsafeFile

READY = "import json,os,signal;print(json.dumps({'pid':os.getpid()}),flush=True);signal.pause()"


def child(tmp_path: Path, code: str, name: str = "child", **options: float) -> Child:
    return Child(name, [sys.executable, "-c", code], tmp_path / f"{name}.log", **options)  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_the_ready_line_is_read(tmp_path: Path) -> None:
    events: list[str] = []
    supervisor = Supervisor(events.append)
    program = child(tmp_path, READY)
    ready = await supervisor.start(program)
    assert program.process is not None
    assert ready == {"pid": program.process.pid}
    await supervisor.stop()
    assert program.process.returncode == -signal.SIGTERM
    assert events == []


@pytest.mark.asyncio
async def test_a_child_that_ends_early_is_told_with_its_log(tmp_path: Path) -> None:
    program = child(tmp_path, "import sys;sys.stderr.write('why');sys.exit(3)")
    with pytest.raises(ChildFailed, match=r"exit code 3.*child\.log"):
        await program.start()
    assert (tmp_path / "child.log").read_text() == "why"


@pytest.mark.asyncio
async def test_a_silent_child_is_stopped(tmp_path: Path) -> None:
    program = child(tmp_path, "import signal;signal.pause()", ready_seconds=0.3)
    with pytest.raises(ChildFailed, match="not ready"):
        await program.start()
    assert program.process is not None
    assert program.process.returncode is not None


@pytest.mark.asyncio
async def test_a_killed_child_comes_back(tmp_path: Path) -> None:
    events: list[str] = []
    again = asyncio.Event()
    pids: list[int] = []

    def on_ready(program: Child) -> None:
        pids.append(program.ready["pid"])
        if len(pids) == 2:
            again.set()

    supervisor = Supervisor(events.append)
    program = child(tmp_path, READY)
    await supervisor.start(program, on_ready)
    assert program.process is not None
    program.process.kill()
    async with asyncio.timeout(30):
        await again.wait()
    assert pids[0] != pids[1]
    assert program.restarts == 1
    assert "restarting" in events[0]
    await supervisor.stop()


@pytest.mark.asyncio
async def test_a_child_whose_log_cannot_be_opened_is_tried_again(tmp_path: Path) -> None:
    """The directory of the log is gone for a while, or the disk is full: the watch outlives it."""
    logs = tmp_path / "log"
    logs.mkdir()
    failed, again = asyncio.Event(), asyncio.Event()

    def heard(text: str) -> None:
        if "No such file" in text:
            failed.set()

    supervisor = Supervisor(heard)
    program = child(logs, READY)
    await supervisor.start(program, lambda _: again.set())
    again.clear()
    (logs / "child.log").unlink()
    logs.rmdir()
    assert program.process is not None
    program.process.kill()
    async with asyncio.timeout(30):
        await failed.wait()
        logs.mkdir()
        await again.wait()
    await supervisor.stop()


@pytest.mark.asyncio
async def test_a_child_whose_readiness_cannot_be_told_is_watched_on(tmp_path: Path) -> None:
    """The file that says what is ready has become unsafe: whoever tells raises, each time until it is put right."""
    starts = 0
    third = asyncio.Event()

    def on_ready(program: Child) -> None:
        nonlocal starts
        starts += 1
        if starts == 2:
            program.process.kill()  # type: ignore[union-attr]
            raise UnsafeFile(tmp_path, "is open to others")
        if starts == 3:
            third.set()

    events: list[str] = []
    supervisor = Supervisor(events.append)
    program = child(tmp_path, READY)
    await supervisor.start(program, on_ready)
    assert program.process is not None
    program.process.kill()
    async with asyncio.timeout(30):
        await third.wait()
    assert any("open to others" in event for event in events)
    await supervisor.stop()


@pytest.mark.asyncio
@pytest.mark.parametrize("line", ["no json", "[]"])
async def test_a_child_that_says_something_else_is_told(tmp_path: Path, line: str) -> None:
    program = child(tmp_path, f"import signal;print({line!r},flush=True);signal.pause()")
    with pytest.raises(ChildFailed, match=r"something else.*child\.log"):
        await program.start()
    await program.stop()


@pytest.mark.asyncio
async def test_children_stop_in_reverse_order_and_a_stubborn_one_is_killed(tmp_path: Path) -> None:
    order = tmp_path / "order"
    code = (
        "import signal,sys,json\n"
        "def stop(*_):\n"
        f"    open({str(order)!r},'a').write('NAME ')\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "print(json.dumps({}), flush=True)\n"
        "while True: signal.pause()\n"
    )
    stubborn = (
        "import signal,json\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(json.dumps({}), flush=True)\n"
        "while True: signal.pause()\n"
    )
    supervisor = Supervisor(lambda text: None)
    first = child(tmp_path, code.replace("NAME", "first"), "first")
    second = child(tmp_path, code.replace("NAME", "second"), "second")
    third = child(tmp_path, stubborn, "third", stop_seconds=0.3)
    for program in (first, second, third):
        await supervisor.start(program)
    await supervisor.stop()
    assert order.read_text() == "second first "
    assert third.process is not None
    assert third.process.returncode == -signal.SIGKILL


ORPHAN = """
import os, sys
from sidecar.app.supervisor import die_with_parent
supervisor = os.getpid()
if os.fork():
    os._exit(0)
os.write(1, b"forked ")
sys.stdin.read()  # until the supervisor is gone
die_with_parent(supervisor)
os.write(1, b"exec")
"""


def test_a_child_forked_by_a_supervisor_that_is_gone_does_not_become_an_orphan() -> None:
    """Killed between fork and prctl the supervisor can send no signal any more."""
    supervisor = subprocess.Popen([sys.executable, "-c", ORPHAN], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert supervisor.stdin is not None
    assert supervisor.stdout is not None
    with supervisor.stdin, supervisor.stdout:
        assert supervisor.wait(60) == 0
        supervisor.stdin.close()
        assert supervisor.stdout.read() == b"forked "
