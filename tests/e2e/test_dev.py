"""``sidecar dev`` as its users see it: the ready line, restarts, stopping, a broker that only keys can enter."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import stat
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from sidecar.app.layout import Layout
from tests.e2e.cluster import eventually
from tests.e2e.devset import SIDECAR, DevSet, dev_set, wait_gone


def objective(running: DevSet, text: str) -> dict[str, Any]:
    done = running.cli("coordinator", "objective", "create", "--json", text)
    assert done.returncode == 0, done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def test_the_ready_line_names_every_part(tmp_path: Path) -> None:
    with dev_set(tmp_path / "dev") as running:
        ready = running.ready
        assert ready["ready"] is True
        assert ready["pid"] == running.process.pid
        coordinator = ready["coordinator"]
        assert stat.S_ISSOCK(os.stat(coordinator["socket"]).st_mode)
        assert re.fullmatch(r"[0-9a-f]{32}", coordinator["coordinator_id"])
        assert re.fullmatch(r"sha256:[0-9a-f]{64}", coordinator["authority_fingerprint"])
        assert re.fullmatch(r"[0-9a-f]{32}", coordinator["witness_id"])
        assert re.fullmatch(r"[0-9a-f]{64}", coordinator["witness_public_key"])
        scopes = {name: workload["scopes"] for name, workload in ready["workloads"].items()}
        assert scopes == {"admin": 63, "operator": 31, "reader": 1, "commander": 2, "expired": 3}
        for workload in ready["workloads"].values():
            assert stat.S_IMODE(os.stat(workload["key_file"]).st_mode) == 0o600
            assert re.fullmatch(r"sha256:[0-9a-f]{64}", workload["key_id"])
        assert json.loads((running.directory / "ready.json").read_text()) == ready
        with urllib.request.urlopen(ready["metrics_url"], timeout=10) as answer:
            assert b"sidecar_" in answer.read()
        assert {path.name for path in (running.directory / "log").iterdir()} >= {
            "bridge.log",
            "delivery.log",
            "nats-server.log",
            "registry.log",
            "sample-1.log",
            "sample-2.log",
            "serve.log",
            "witness.log",
        }
        children = running.children()
        assert len(children) == 8
        code, rest = running.stop(signal.SIGINT)
        assert (code, rest) == (0, b"")
        wait_gone(children)
        assert not (running.directory / "ready.json").exists()
        assert not os.path.exists(coordinator["socket"])


@pytest.mark.req("P4-07", "P4-08", "P4-09", "P14-06")
def test_a_second_run_continues_the_same_coordinator(tmp_path: Path) -> None:
    with dev_set(tmp_path / "dev") as first:
        made = objective(first, '{"t":1}')
        first.stop()
    with dev_set(tmp_path / "dev") as second:
        before, after = first.ready["coordinator"], second.ready["coordinator"]
        assert after["coordinator_id"] == before["coordinator_id"]
        assert after["authority_fingerprint"] == before["authority_fingerprint"]
        assert after["incarnation_id"] != before["incarnation_id"]
        assert after["epoch"] > before["epoch"]
        assert second.ready["workloads"] == first.ready["workloads"]
        again = second.cli("coordinator", "operation", "get", "--json", made["operation_id"])
        assert again.returncode == 0, again.stderr
        assert json.loads(again.stdout)["result"] == made["result"]


def test_a_killed_run_takes_its_children_down_and_loses_nothing(tmp_path: Path) -> None:
    with dev_set(tmp_path / "dev") as first:
        made = objective(first, '{"t":2}')
        children = first.children()
        first.stop(signal.SIGKILL)
        wait_gone(children)
    with dev_set(tmp_path / "dev") as second:
        again = second.cli("coordinator", "operation", "get", "--json", made["operation_id"])
        assert json.loads(again.stdout)["result"] == made["result"]


def test_a_start_that_waits_for_a_certificate_says_so(tmp_path: Path) -> None:
    with dev_set(tmp_path / "dev", "--certificate-seconds", "14", "--without-endpoints") as first:
        children = first.children()
        os.kill(first.ready["coordinator"]["pid"], signal.SIGKILL)  # at least half of its certificate is left
        first.stop(signal.SIGKILL)
        wait_gone(children)
    with dev_set(tmp_path / "dev", "--without-endpoints") as second:
        told = second.errors.read_text()
    assert "sidecar dev: the coordinator is still starting; after a run that was killed" in told


def test_a_killed_coordinator_is_started_again(tmp_path: Path) -> None:
    with dev_set(tmp_path / "dev") as running:
        made = objective(running, '{"t":3}')
        os.kill(running.ready["coordinator"]["pid"], signal.SIGKILL)
        again = running.cli("coordinator", "operation", "get", "--json", "--wait", "60", made["operation_id"])
        assert again.returncode == 0, again.stderr
        assert json.loads(again.stdout)["result"] == made["result"]
        with urllib.request.urlopen(running.ready["health_url"], timeout=10) as answer:  # the addresses still hold
            assert answer.read() == b"ok\n"


def test_a_set_whose_notices_nobody_reads_still_restarts_its_parts(tmp_path: Path) -> None:
    """`sidecar dev 2>&1 | head`: the reader is gone when a part is killed."""
    os.mkfifo(tmp_path / "dev.stderr")
    reader = os.open(tmp_path / "dev.stderr", os.O_RDONLY | os.O_NONBLOCK)
    with dev_set(tmp_path / "dev") as running:
        os.close(reader)

        def coordinator() -> int:
            return int(json.loads((running.directory / "ready.json").read_bytes())["coordinator"]["pid"])

        for _ in range(2):
            killed = coordinator()
            os.kill(killed, signal.SIGKILL)
            eventually(lambda gone=killed: coordinator() != gone)
        assert running.cli("coordinator", "ping").returncode == 0
        assert running.stop() == (0, b"")


def test_a_witness_whose_socket_file_is_gone_is_started_again(tmp_path: Path) -> None:
    with dev_set(tmp_path / "dev", "--certificate-seconds", "30") as running:
        path = Layout(running.directory).run / "witness.sock"
        path.unlink()
        eventually(path.exists)
        assert running.cli("coordinator", "ping").returncode == 0
        ready = json.loads((running.directory / "ready.json").read_bytes())
        assert ready["coordinator"]["pid"] == running.ready["coordinator"]["pid"], "it never lost its authority"
        assert running.stop() == (0, b"")
    assert "witness ended with exit code 73; restarting" in running.errors.read_text()


def test_two_runs_in_one_directory_are_refused(tmp_path: Path) -> None:
    with dev_set(tmp_path / "dev") as running:
        second = subprocess.run(
            [*SIDECAR, "dev", "--dir", str(running.directory)], capture_output=True, text=True, timeout=60, check=False
        )
        assert second.returncode == 1
        assert second.stdout == ""
        assert "another `sidecar dev`" in second.stderr
        assert second.stderr.count("\n") == 1
        assert running.process.poll() is None


def test_a_deep_directory_works(tmp_path: Path) -> None:
    with dev_set(tmp_path / ("deep" * 30)) as running:
        assert len(os.fsencode(running.ready["coordinator"]["socket"])) < 108
        assert running.cli("coordinator", "ping").returncode == 0


def test_the_tour_says_what_happened_and_what_to_type(tmp_path: Path) -> None:
    directory = tmp_path / "dev set"
    tour = subprocess.Popen(
        [*SIDECAR, "dev", "--demo", "--dir", str(directory), "--certificate-seconds", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert tour.stdout is not None
        lines: list[str] = []
        while not lines or "kill -9" not in lines[-1]:
            line = tour.stdout.readline()
            assert line, lines
            lines.append(line.strip())
        steps = [line.split(". ")[0] for line in lines if re.match(r"\d+\. ", line)]
        assert steps == [str(number) for number in range(1, 13)]
        assert [line.split("alice ")[1] for line in lines if line.startswith("bob hears")] == [
            "#team.backend: Can you review this?",
            "#team.backend: It is merged.",
            "dm: Thank you!",
            "#team.backend: Welcome back.",
        ]
        ready = json.loads((directory / "ready.json").read_text())
        assert lines[-1].startswith(f"kill -9 {ready['coordinator']['pid']} ")
        typed = [line.removeprefix("by hand:").strip() for line in lines if line.startswith("by hand:")]
        verbs = {}
        for line in typed:
            program, *arguments = shlex.split(line)
            assert program == "sidecar"
            if arguments[1] not in ("watch", "tail", "inbox"):
                verbs[arguments[1]] = subprocess.run(
                    [*SIDECAR, *arguments], capture_output=True, timeout=60, check=False
                )
        assert {verb: done.returncode for verb, done in verbs.items()} == {
            "hello": 0,
            "objective": 1,  # the last one is the update that is refused
            "operation": 0,
            "snapshot": 0,
            "send": 0,
            "list": 0,
            "describe": 0,
            "call": 0,
        }, {verb: done.stderr for verb, done in verbs.items()}
        assert b"REVISION_CONFLICT" in verbs["objective"].stderr
    finally:
        tour.send_signal(signal.SIGINT)
        assert tour.stdout is not None
        tour.stdout.close()
        assert tour.wait(60) == 0


def test_once_needs_demo() -> None:
    done = subprocess.run([*SIDECAR, "dev", "--once"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
