"""`sidecar ep` at an endpoint that answers badly, hangs, dies or is taken over; and the operator's side of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.ops.exitcodes import CallCode, ExitCode
from tests.e2e.devset import SIDECAR, DevSet, dev_set
from tests.e2e.hostile_endpoint import NASTY
from tests.e2e.talk import PATIENCE, Terminal, sidecar
from tests.e2e.terminal import Terminal as Screen

pytestmark = pytest.mark.timeout(300)
HERE = Path(__file__).parent
HOSTILE, DOMAIN = "com.example.hostile", "com.example"
FILE = f"{HERE / 'hostile_endpoint.py'}:endpoint"
INSTANCE = "hostile0" * 4


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevSet]:
    with dev_set(tmp_path_factory.mktemp("hostile") / "dev") as made:
        yield made


@pytest.fixture(scope="module")
def main(running: DevSet) -> Terminal:
    """Carol holds every command of the endpoint."""
    here = ("--space", "main", "--json")
    assert operator(running, "ep", "domain", "claim", DOMAIN, "--owner", "local", *here)["owner"] == "local"
    may = ("--may", f"{HOSTILE}:*", "--hear", f"{HOSTILE}:began")
    operator(running, "principal", "add", "--actor", "carol", "--owner", "local", *may, *here)
    return Terminal(running, "main")


def operator(running: DevSet, *words: str) -> dict[str, Any]:
    done = running.cli(*words)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@contextlib.contextmanager
def serving(running: DevSet, *more: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """`sidecar ep serve` until the end of the context, and its ready line."""
    words = [
        "ep",
        "serve",
        FILE,
        *(more or ("--space", "main", "--instance", INSTANCE)),
        "--dev",
        str(running.directory),
    ]
    with subprocess.Popen([*SIDECAR, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            yield process, json.loads(line)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def hostile(running: DevSet, main: Terminal) -> Iterator[dict[str, Any]]:
    with serving(running, "--space", "main") as (_, ready):
        yield ready


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# ---- what is shown ----


def test_control_characters_of_an_answer_do_not_reach_the_terminal(main: Terminal, hostile: dict[str, Any]) -> None:
    done = main.run("carol", "ep", "call", HOSTILE, "control")
    assert done.returncode == 0
    assert all(one.isprintable() or one == "\n" for one in done.stdout + done.stderr)
    assert json.loads(done.stdout)["text"] == NASTY
    refused = main.run("carol", "ep", "call", HOSTILE, "refuse")
    assert refused.returncode == CallCode.REFUSED
    assert all(one.isprintable() or one == "\n" for one in refused.stdout + refused.stderr)
    assert "com.example.detail" in refused.stderr
    with Screen(*main.words("carol", "ep", "call", HOSTILE, "control")) as screen:
        assert screen.wait() == 0
        assert screen.sequences == []


def test_a_huge_answer_comes_whole_through_a_pipe(main: Terminal, hostile: dict[str, Any]) -> None:
    done = main.run("carol", "ep", "call", HOSTILE, "huge", "size=700000")
    assert len(json.loads(done.stdout)["text"]) == 700_000


@pytest.mark.req("C13.3-41")
def test_an_answer_that_fits_into_no_message_was_executed(main: Terminal, hostile: dict[str, Any]) -> None:
    done = main.run("carol", "ep", "call", HOSTILE, "huge", "size=2000000", "--json")
    assert (done.returncode, document(done)["outcome"]) == (CallCode.EXECUTED, "executed")


@pytest.mark.req("C13.3-36", "C13.3-42")
@pytest.mark.parametrize(
    ("command", "code", "outcome"),
    [("wrong", CallCode.EXECUTED, "executed"), ("broken", CallCode.UNKNOWN, "unknown")],
)
def test_a_handler_that_fails_says_what_may_have_happened(
    main: Terminal, hostile: dict[str, Any], command: str, code: CallCode, outcome: str
) -> None:
    done = main.run("carol", "ep", "call", HOSTILE, command, "--json")
    assert (done.returncode, document(done)["code"], document(done)["outcome"]) == (code, "internal", outcome)
    assert NASTY not in done.stdout + done.stderr


# ---- hanging, dying, Ctrl-C ----


@pytest.mark.req("C13.3-50")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_during_a_call_says_that_nobody_knows(
    main: Terminal, hostile: dict[str, Any], number: signal.Signals
) -> None:
    identity = f"cut-{number}"
    with main.follow("carol", "ep", "watch", HOSTILE, "began", "--after", "0") as watching:
        words = main.words("carol", "ep", "call", HOSTILE, "hang", "--seconds", "600", "--id", identity, "--json")
        with subprocess.Popen([*SIDECAR, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                watching.until(lambda line: line.get("data") == {"id": identity})
                process.send_signal(number)
                out, errors = process.communicate(timeout=PATIENCE)
            finally:
                process.kill()
    assert process.returncode == CallCode.INTERRUPTED
    assert json.loads(out)["outcome"] == "unknown"
    assert "the outcome is unknown: it was sent" in errors


@pytest.mark.req("C13.3-50", "C13.5-28")
def test_an_endpoint_that_stands_still_is_unknown(main: Terminal, running: DevSet) -> None:
    with serving(running) as (process, ready):
        named = ("--instance", ready["instance_id"], "--seconds", "3", "--json")
        assert main.run("carol", "ep", "call", HOSTILE, "control", *named).returncode == 0
        process.send_signal(signal.SIGSTOP)
        done = main.run("carol", "ep", "call", HOSTILE, "control", *named)
        process.send_signal(signal.SIGCONT)
        assert document(done)["outcome"] in ("unknown", "not-executed")
        assert done.returncode in (CallCode.UNKNOWN, CallCode.NO_CONNECTION)


@pytest.mark.req("C13.5-02", "C13.3-49")
def test_a_killed_endpoint_is_not_there(main: Terminal, running: DevSet) -> None:
    with serving(running) as (process, ready):
        process.kill()
        process.wait(PATIENCE)
        named = ("--instance", ready["instance_id"], "--seconds", "5", "--json")
        done = main.run("carol", "ep", "call", HOSTILE, "control", *named)
        assert (done.returncode, document(done)["outcome"]) == (CallCode.NO_CONNECTION, "not-executed")


# ---- serving ----


@pytest.mark.req("C13.14-01", "C13.7-63")
def test_a_superseded_process_ends_by_itself_and_says_so(main: Terminal, running: DevSet) -> None:
    with serving(running) as (old, first), serving(running) as (new, second):
        assert (second["instance_id"], second["epoch"]) == (first["instance_id"], first["epoch"] + 1)
        assert old.stderr is not None
        assert old.wait(PATIENCE) == ExitCode.FENCED
        (line,) = old.stderr.read().splitlines()[-1:]
        assert "superseded" in line
        named = ("--instance", second["instance_id"])
        (told,) = main.done("carol", "ep", "call", HOSTILE, "control", *named)
        assert told["epoch"] == second["epoch"]
        new.send_signal(signal.SIGTERM)
        assert new.wait(PATIENCE) == 0


@pytest.mark.req("C13.7-61")
def test_a_stopped_process_answers_what_it_has_begun_and_says_that_it_is_gone(main: Terminal, running: DevSet) -> None:
    with serving(running) as (process, ready):
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
    watched = ("ep", "watch", HOSTILE, "--instance", ready["instance_id"])
    with main.follow("carol", *watched) as watching:
        seen = watching.until(lambda line: (line.get("status") or {}).get("state") == "exited")
        assert seen["status"]["epoch"] == ready["epoch"]


@pytest.mark.req("C13.2-03", "C13.2-02")
def test_nobody_serves_what_is_not_claimed(running: DevSet, main: Terminal, tmp_path: Path) -> None:
    here = ("--space", "main", "--dev", str(running.directory))
    for name, why in (("org.other.thing", "no claim covers org.other.thing"), ("single", "")):
        file = tmp_path / f"{name.replace('.', '_')}.py"
        file.write_text((HERE / "hostile_endpoint.py").read_text().replace(HOSTILE, name))
        done = sidecar("ep", "serve", f"{file}:endpoint", *here, *(() if why else ("--owner", "u_" + "a" * 26)))
        assert done.returncode == 1, done.stderr
        assert why in done.stderr
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1
    other = sidecar("ep", "serve", FILE, *here, "--owner", "u_" + "a" * 26)
    assert (other.returncode, "another owner" in other.stderr) == (1, True)


def test_a_file_without_an_endpoint_is_wrong_usage(running: DevSet, tmp_path: Path) -> None:
    here = ("--space", "main", "--dev", str(running.directory))
    (tmp_path / "bad.py").write_text("raise ValueError('no')")
    for where in (f"{tmp_path / 'bad.py'}:endpoint", f"{tmp_path / 'none.py'}:endpoint", "::"):
        done = sidecar("ep", "serve", where, *here)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


@pytest.mark.req("C13.7-63")
def test_an_instance_is_registered_served_by_its_creds_and_ended(
    running: DevSet, main: Terminal, tmp_path: Path
) -> None:
    os.chmod(tmp_path, 0o700)
    creds, instance = tmp_path / "serve.creds", "creds000" * 4
    here = ("--space", "main", "--json")
    made = operator(running, "ep", "register", FILE, "--instance", instance, "--out", str(creds), *here)
    assert (made["instance_id"], made["epoch"]) == (instance, 0)
    with serving(running, "--creds", str(creds)) as (process, ready):
        assert (ready["instance_id"], ready["epoch"]) == (instance, 0)
        with serving(running) as (_, beside):  # it holds nothing in the directory, and is left alone all the same
            assert beside["instance_id"] != instance
        (told,) = main.done("carol", "ep", "call", HOSTILE, "control", "--instance", instance)
        assert told["epoch"] == 0
        ended = operator(running, "ep", "deregister", HOSTILE, instance, *here)
        assert ended["was_registered"] is True
        assert process.wait(PATIENCE) == ExitCode.FENCED
    again = operator(running, "ep", "register", FILE, "--instance", instance, "--out", str(creds), *here)
    assert again["epoch"] == 1
    gone = operator(running, "ep", "deregister", HOSTILE, instance, "--for-good", *here)
    assert gone["type"] == "retired"
    never = running.cli("ep", "register", FILE, "--instance", instance, "--out", str(creds), "--space", "main")
    assert (never.returncode, "never comes back" in never.stderr) == (1, True)


def test_creds_of_another_endpoint_are_refused(running: DevSet, main: Terminal, tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o700)
    creds = tmp_path / "serve.creds"
    operator(running, "ep", "register", FILE, "--out", str(creds), "--space", "main", "--json")
    other = ("sidecar.app.sample:endpoint", "--creds", str(creds), "--dev", str(running.directory))
    done = sidecar("ep", "serve", *other)
    assert (done.returncode, f"serves {HOSTILE}, not dev.sidecar.sample" in done.stderr) == (2, True)


def test_claims_are_listed_refused_to_others_and_released(running: DevSet, main: Terminal) -> None:
    here = ("--space", "main", "--json")
    listed = operator(running, "ep", "domain", "list", *here)["claims"]
    assert {one["domain"] for one in listed} >= {DOMAIN, "dev.sidecar"}
    taken = running.cli("ep", "domain", "claim", DOMAIN, "--identity", "somebody@example.invalid", "--space", "main")
    assert (taken.returncode, f"{DOMAIN} is claimed by local" in taken.stderr) == (1, True)
    operator(running, "ep", "domain", "claim", "org.gone", "--owner", "local", *here)
    operator(running, "ep", "domain", "release", "org.gone", *here)
    assert running.cli("ep", "domain", "release", "org.gone", "--space", "main").returncode == 1
    assert running.cli("ep", "domain", "claim", "single", "--owner", "local", "--space", "main").returncode == 2


@pytest.mark.req("C13.20-15")
def test_a_registry_that_does_not_answer_lists_nothing(main: Terminal, running: DevSet) -> None:
    (registry,) = [
        pid for pid in running.children() if b"\0registry\0" in Path(f"/proc/{pid}/cmdline").read_bytes() + b"\0"
    ]
    assert main.run("alice", "ep", "list").returncode == 0
    os.kill(registry, signal.SIGSTOP)
    try:
        done = main.run("alice", "ep", "list", "--seconds", "2", "--json")
    finally:
        os.kill(registry, signal.SIGCONT)
    assert done.returncode == CallCode.NO_CONNECTION
    assert [line["type"] for line in map(json.loads, done.stdout.splitlines())] == ["failure"]
    assert "the registry does not answer" in done.stderr
    assert "nothing is listed" in done.stderr
