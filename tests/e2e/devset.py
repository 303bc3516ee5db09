"""A running ``sidecar dev`` as a context: real processes, started through the command line."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SIDECAR = [sys.executable, "-m", "sidecar"]


class DevSet:
    """One ``sidecar dev`` process; ``ready`` is its ready line."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.directory = directory
        self.errors = directory.with_suffix(".stderr")
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [*SIDECAR, "dev", "--dir", str(directory), "--certificate-seconds", "3", *options],
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.errors.read_text()
        self.ready: dict[str, Any] = json.loads(line)

    def children(self) -> list[int]:
        """Process ids of what it started."""
        text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in text.split()]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, bytes]:
        """Sends the signal and waits; exit code and what else came on stdout."""
        self.process.send_signal(number)
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            rest = lines.read()
        return self.process.wait(60), rest

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs ``sidecar ARGUMENTS --dev DIR``."""
        return subprocess.run(
            [*SIDECAR, *arguments, "--dev", str(self.directory)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@contextlib.contextmanager
def dev_set(directory: Path, *options: str) -> Iterator[DevSet]:
    """Starts one and stops it at the end, whatever happened in between."""
    running = DevSet(directory, *options)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.stop()


def wait_gone(pids: list[int]) -> None:
    """Waits until none of the processes is alive any more (a zombie is not alive)."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            descriptor = os.pidfd_open(pid)
            try:
                assert select.select([descriptor], [], [], 30)[0], f"process {pid} is still there"
            finally:
                os.close(descriptor)
