"""What README and docs tell a reader to run, run as it is written there."""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sidecar.rails.endpoint.calls_repeat import BASE_SECONDS, CAP_SECONDS
from sidecar.rails.endpoint.calls_types import CALL_SECONDS
from sidecar.rails.endpoint.codes import Code
from sidecar.rails.endpoint.serve import EndpointServer
from sidecar.rails.endpoint.serve_results import SECONDS as KEPT_SECONDS
from sidecar.rails.names.limits import EVENT_SECONDS
from tests.e2e.devset import dev_set

ROOT = Path(__file__).resolve().parents[2]


def blocks(text: str, language: str = "") -> list[str]:
    """The fenced blocks of this language in a page."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for named, block in found if named == language]


def environment(tmp_path: Path) -> dict[str, str]:
    """A home of its own, and `sidecar` on the path."""
    program = tmp_path / "bin" / "sidecar"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m sidecar "$@"\n')
    program.chmod(0o755)
    return {
        "HOME": str(tmp_path / "home"),
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
    }


def shell_in(tmp_path: Path) -> Callable[[str], str]:
    """Runs commands as they are written, and gives what they print; they must succeed."""
    environ = environment(tmp_path)

    def shell(step: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", step],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return shell


def test_the_program_of_the_readme_runs_beside_make_run(tmp_path: Path) -> None:
    *_, program, _ = blocks((ROOT / "README.md").read_text(), "python")
    with dev_set(tmp_path / ".sidecar", "--without-endpoints") as running:
        reader = subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env=environment(tmp_path),
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert reader.stdout is not None
            assert "Succeeded" in reader.stdout.readline()
            assert reader.stdout.readline() == "2 records at event 2\n"
            made = running.cli("coordinator", "objective", "create", "{}")
            assert made.returncode == 0, made.stderr
            assert reader.stdout.readline() == "3 OBJECTIVE_CHANGED\n"
        finally:
            reader.kill()
            reader.communicate()


@pytest.mark.parametrize("space", ["main", "guarded"])
def test_two_terminals_of_the_readme_talk_and_nothing_is_lost(tmp_path: Path, space: str) -> None:
    section = (ROOT / "README.md").read_text().split("## Two terminals\n")[1].split("\n## ")[0]
    written = [one.replace(".venv/bin/sidecar", "sidecar") for one in blocks(section)]
    bob, alice, back = (one.replace("--space guarded", f"--space {space}") for one in written)
    shell = shell_in(tmp_path)
    with dev_set(tmp_path / ".sidecar", "--without-endpoints"):
        assert "team.backend: joined durable" in shell(bob)
        assert shell(alice).count("stored") == 3
        heard = shell(back)
        for text in ("#team.backend alice: Can you review this? [durable] [mention]", "dm alice: Thank you!"):
            assert heard.count(text) == 1, heard
        assert heard.count("It is merged.") == 1
        assert " alice:" not in shell(back)


def test_the_peer_of_the_readme_hears_what_the_command_line_says(tmp_path: Path) -> None:
    *_, program = blocks((ROOT / "README.md").read_text(), "python")
    with dev_set(tmp_path / ".sidecar", "--without-endpoints") as running:
        peer = subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env=environment(tmp_path),
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert peer.stdout is not None
            assert peer.stdout.readline() == "team.backend: joined durable\n"
            for words in (("channel", "send", "team.backend", "hello"), ("dm", "send", "bob", "psst")):
                said = running.cli(*words, "--as", "alice", "--space", "guarded")
                assert said.returncode == 0, said.stderr
            heard = {peer.stdout.readline(), peer.stdout.readline()}
            assert heard == {"alice channel team.backend hello\n", "alice dm psst\n"}
            peer.send_signal(signal.SIGINT)
            assert peer.wait(30) != 0
        finally:
            peer.kill()
            peer.communicate()


def test_the_ten_lines_of_the_readme_serve_and_are_found_and_called(tmp_path: Path) -> None:
    section = (ROOT / "README.md").read_text().split("## Endpoints: ten lines\n")[1].split("\n## ")[0]
    greeter, program = blocks(section, "python")
    serving, calling, sample = (one.replace(".venv/bin/sidecar", "sidecar") for one in blocks(section))
    (tmp_path / "greeter.py").write_text(greeter)
    shell = shell_in(tmp_path)
    claim, serve = serving.splitlines()
    with dev_set(tmp_path / ".sidecar"):
        assert "com.acme" in shell(claim)
        environ = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        server = subprocess.Popen(["bash", "-c", f"exec {serve}"], cwd=tmp_path, env=environ, stdout=subprocess.PIPE)
        try:
            assert server.stdout is not None
            assert json.loads(server.stdout.readline())["ready"] is True
            told = shell(calling)
            assert "com.acme.greeter" in told
            assert "greet {text: string} -> {text: string}" in told
            assert told.count("Hello, dana!") == 2
            answers = shell(sample)
            assert '"sum": 42' in answers
            assert '"connected": true' in answers
            (tmp_path / "program.py").write_text(program)
            python = f"{shlex.quote(sys.executable)} program.py"
            assert shell(python) == "{'sum': 42}\nconflict executed\n"
            server.send_signal(signal.SIGINT)
            assert server.wait(30) == 0
        finally:
            server.kill()
            server.communicate()


def test_the_setup_by_hand_runs_as_written(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    section = page.split("## Setting it up by hand\n")[1].split("\n## ")[0]
    script = "\n".join(blocks(section)).replace("/srv/sidecar", shlex.quote(str(tmp_path / "house")))
    assert "/srv" not in script
    again = "sidecar coordinator hello --socket run/coordinator.sock --key-file alice.ed25519 --json"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"trap 'kill $(jobs -p); wait' EXIT\n{script}\n{again}"],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WORK_READ,WORK_COMMAND" in done.stdout
    assert '"scopes": ["WORK_READ", "WORK_COMMAND"]' in done.stdout
    for path in (tmp_path / "house").rglob("*"):
        assert not stat.S_IMODE(path.lstat().st_mode) & 0o077, path


def test_no_page_links_to_what_is_not_there() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_commands_for_the_night_run_as_written(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    (script,) = blocks(page.split("## What is going on, at 3 a.m.\n")[1].split("\n## ")[0])
    with dev_set(tmp_path / ".sidecar") as running:
        assert Path(running.ready["coordinator"]["admin_socket"]).is_socket()
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=tmp_path,
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    for told in ("so far     commands 0", "RESOURCE", "FAULT at 0x0011, E-04", "snapshot  cut"):
        assert told in done.stdout


def test_the_endpoint_of_the_page_is_served_by_its_creds_and_called(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "endpoints.md").read_text()
    shop, customer = blocks(page, "python")
    serving, granting = (one.replace(".venv/bin/sidecar", "sidecar") for one in blocks(page))
    (tmp_path / "shop.py").write_text(shop)
    (tmp_path / "customer.py").write_text(customer)
    os.chmod(tmp_path, 0o700)
    shell = shell_in(tmp_path)
    with dev_set(tmp_path / ".sidecar") as running:
        url = running.ready["nats"]["url"]
        *before, serve = serving.splitlines()
        for step in before:
            shell(step)
        creds = json.loads(shell(granting))["creds"]
        assert serve == '.venv/bin/python shop.py "$URL" shop.creds'
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "shop.py", url, "shop.creds"]
        server = subprocess.Popen(command, cwd=tmp_path, env=environ, stderr=subprocess.PIPE, text=True)
        try:
            assert server.stderr is not None
            assert any("endpoint_serves" in line for line in server.stderr)
            assert shell(f"{shlex.quote(sys.executable)} customer.py {url} {shlex.quote(creds)}").splitlines() == [
                "left: 3",
                "bought: 2 again: 2",
                "sold: tea",
                "me: local.erin",
                "not-found not-executed True",
                "everybody answered: True 1",
            ]
            server.send_signal(signal.SIGTERM)
            assert server.wait(30) == 0
        finally:
            server.kill()
            server.communicate()


def test_the_page_of_endpoints_has_every_code_and_the_limits_as_they_are() -> None:
    page = (ROOT / "docs" / "endpoints.md").read_text()
    table = page.split("## Errors\n")[1]
    assert re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE) == [code.value for code in Code]
    defaults = {name: one.default for name, one in inspect.signature(EndpointServer).parameters.items()}
    for name in ("at_once", "waiting", "per_caller", "longest"):
        assert f"`{name}={defaults[name]}`" in page
    assert f"{CALL_SECONDS:g} seconds unless" in page
    assert f"{BASE_SECONDS * 1000:g} ms to {CAP_SECONDS:g} s" in page
    assert (KEPT_SECONDS, EVENT_SECONDS) == (600.0, 86_400)  # ten minutes, and a day
