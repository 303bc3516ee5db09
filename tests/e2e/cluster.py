"""A real witness and a real coordinator, each its own process, in one temporary directory.

cluster = Cluster(tmp_path, certificate_seconds=3)
with cluster:                      # starts both, stops what still runs
    cluster.ready["socket"], cluster.key("admin"), ...
    cluster.kill(); cluster.start_serve()
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from sidecar.app.layout import Layout
from sidecar.app.provision import provision
from sidecar.base.ed25519 import SigningKey
from sidecar.base.keysource import load_seed_file
from sidecar.ops.admin import fetch

READY_SECONDS = 60.0
EXIT_SECONDS = 30.0

Overrides = dict[str, dict[str, Any]]


class DidNotStart(AssertionError):  # noqa: N818 - what happened
    """A process ended before it was ready; `exit_code` and `stderr` say how."""

    def __init__(self, exit_code: int, stderr: str) -> None:
        super().__init__(f"exit code {exit_code}: {stderr}")
        self.exit_code = exit_code
        self.stderr = stderr


class Program:
    """One `sidecar` command that prints a ready line."""

    def __init__(
        self, log: Path, *arguments: str, descriptors: int | None = None, file_bytes: int | None = None
    ) -> None:
        """`descriptors` is the most that the process may open, `file_bytes` what one of its files may hold."""
        self.log = log
        self._errors: IO[bytes] = log.open("ab")
        self._from = self._errors.tell()
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", "sidecar", *arguments]
        limits = [] if descriptors is None else [f"ulimit -n {descriptors}"]
        limits += [] if file_bytes is None else [f"ulimit -f {file_bytes // 512}"]
        if limits:
            command = ["sh", "-c", " && ".join([*limits, 'exec "$@"']), "sh", *command]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stderr(self) -> str:
        """What this process has written to its standard error."""
        return self.log.read_bytes()[self._from :].decode()

    def lines(self) -> list[dict[str, Any]]:
        """Its log lines."""
        return [json.loads(line) for line in self.stderr.splitlines() if line.startswith("{")]

    def wait_ready(self) -> dict[str, Any]:
        """The ready line. Raises DidNotStart."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], READY_SECONDS)[0]:
            self.kill()
            raise DidNotStart(-1, f"not ready in {READY_SECONDS} s\n{self.stderr}")
        line = self.process.stdout.readline()
        if not line:
            raise DidNotStart(self.wait(), self.stderr)
        ready: dict[str, Any] = json.loads(line)
        return ready

    def wait(self) -> int:
        """Wait for the end by itself; the exit code."""
        code = self.process.wait(EXIT_SECONDS)
        self._close()
        return code

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait(EXIT_SECONDS)
        self._close()

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def rss(self) -> int:
        """Resident bytes now."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def descriptors(self) -> int:
        """Open descriptors now."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def rest_of_stdout(self) -> bytes:
        """What came after the ready line; the process must have ended."""
        return self._rest

    def _close(self) -> None:
        if self.process.stdout is not None and not self.process.stdout.closed:
            self._rest = self.process.stdout.read()
            self.process.stdout.close()
        self._errors.close()


class Cluster:
    """One witness and one coordinator with their keys. Workload keys: admin, operator, reader, commander, expired.

    `serve` and `witness` override keys of the configuration files, section by section.
    """

    def __init__(
        self,
        directory: Path,
        *,
        certificate_seconds: int = 3,
        serve: Overrides | None = None,
        witness: Overrides | None = None,
    ) -> None:
        self.layout = Layout(directory / "c")
        self.layout.create()
        self.provisioned = provision(self.layout, certificate_seconds=certificate_seconds)
        self.serve_config = self.provisioned.serve_config
        self.witness_config = self.provisioned.witness_config
        self.configure(self.serve_config, {"log": {"level": "debug"}, **(serve or {})})
        self.configure(self.witness_config, witness or {})
        self.serve: Program | None = None
        self.witness: Program | None = None
        self.ready: dict[str, Any] = {}

    # ---- configuration ----

    @staticmethod
    def configure(file: Path, overrides: Overrides) -> None:
        """Set keys of a configuration file; a value of None takes the key away."""
        text = file.read_text()
        for section, keys in overrides.items():
            if f"[{section}]\n" not in text:
                text += f"[{section}]\n"
            for name, value in keys.items():
                head, found, tail = text.partition(f"[{section}]\n")
                body, rest = re.split(r"(?=^\[)", tail, maxsplit=1, flags=re.M) if "\n[" in tail else (tail, "")
                body = re.sub(rf"^{name} = .*\n", "", body, flags=re.M)
                if value is not None:
                    body += f"{name} = {json.dumps(value)}\n"
                text = head + found + body + rest
        file.write_text(text)

    # ---- what there is ----

    @property
    def socket(self) -> Path:
        """The coordinator's socket."""
        return self.layout.run / "coordinator.sock"

    @property
    def state_dir(self) -> Path:
        """Authority key and registry."""
        return self.layout.authority

    def key(self, name: str) -> SigningKey:
        """A workload's private key."""
        return load_seed_file(self.key_file(name))

    def key_file(self, name: str) -> Path:
        """The file of a workload's key."""
        return Path(self.provisioned.workloads[name]["key_file"])

    def metrics(self) -> dict[str, float]:
        """Samples of /metrics by name with labels."""
        with urllib.request.urlopen(self.ready["metrics_url"], timeout=10) as answer:
            text = answer.read().decode()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}

    def stats(self) -> dict[str, Any]:
        """The document of the admin socket."""
        return fetch(Path(self.ready["admin_socket"]))

    def health(self, path: str) -> tuple[int, str]:
        """Status and text of a health path."""
        url = self.ready["health_url"].removesuffix("/healthz") + path
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    # ---- life ----

    def start_witness(self) -> dict[str, Any]:
        """Start the witness; its ready line."""
        self.witness = self.program("witness", "witness", "serve", "--config", str(self.witness_config))
        return self.witness.wait_ready()

    def start_serve(self) -> dict[str, Any]:
        """Start the coordinator; its ready line. Raises DidNotStart."""
        self.serve = self.program("serve", "serve", "--config", str(self.serve_config))
        self.ready = self.serve.wait_ready()
        return self.ready

    def program(self, name: str, *arguments: str) -> Program:
        """Run a `sidecar` command with its errors in the log directory."""
        return Program(self.layout.log / f"{name}.log", *arguments)

    def kill(self) -> None:
        """SIGKILL the coordinator."""
        assert self.serve is not None
        self.serve.kill()

    def stop(self) -> int:
        """SIGTERM the coordinator; its exit code."""
        assert self.serve is not None
        return self.serve.stop()

    def stop_witness(self) -> int:
        """SIGTERM the witness; its exit code."""
        assert self.witness is not None
        return self.witness.stop()

    def __enter__(self) -> Self:
        try:
            self.start_witness()
            self.start_serve()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill whatever still runs and remove what lies outside the directory."""
        for program in (self.serve, self.witness):
            if program is not None and program.running:
                program.kill()
        if not self.layout.run.is_relative_to(self.layout.root):
            for path in self.layout.run.iterdir():
                path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self.layout.run.rmdir()


def hold(pid: int) -> None:
    """SIGSTOP; every thread of the process stands when this returns."""
    os.kill(pid, signal.SIGSTOP)

    def stands() -> bool:
        threads = Path(f"/proc/{pid}/task").iterdir()
        return all((thread / "stat").read_text().rpartition(")")[2].split()[0] == "T" for thread in threads)

    eventually(stands)


def eventually(check: Any, *, seconds: float = 30.0) -> Any:
    """Poll until `check()` is true; its value. Fails the test after `seconds`."""
    give_up = time.monotonic() + seconds
    while not (value := check()):
        assert time.monotonic() < give_up, "it never became true"
        time.sleep(0.02)
    return value


def short_directory() -> tempfile.TemporaryDirectory[str]:
    """A directory whose socket paths fit."""
    return tempfile.TemporaryDirectory(prefix="sidecar-")
