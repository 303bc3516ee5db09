"""`sidecar ep` at a running `sidecar dev`: what a person types, what is shown, and how each command ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.ops.exitcodes import CallCode
from tests.e2e.devset import SIDECAR, DevSet, dev_set
from tests.e2e.talk import PATIENCE, Terminal, sidecar
from tests.e2e.terminal import Terminal as Screen

pytestmark = pytest.mark.timeout(300)
SAMPLE = "dev.sidecar.sample"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
COMMANDS = {"echo", "add", "sleep", "fail", "count", "whoami"}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevSet]:
    with dev_set(tmp_path_factory.mktemp("ep") / "dev") as made:
        yield made


@pytest.fixture(scope="module")
def main(running: DevSet) -> Terminal:
    return Terminal(running, "main")


def samples(running: DevSet) -> dict[str, int]:
    (found,) = [one for one in running.ready["nats"]["endpoints"] if one["name"] == SAMPLE]
    return {one["instance_id"]: one["epoch"] for one in found["instances"]}


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The last JSON line of a command."""
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# ---- list and describe ----


@pytest.mark.req("C13.15-11", "C13.15-29", "C13.20-03", "C13.20-15")
def test_the_listing_shows_what_the_credential_may_call(main: Terminal) -> None:
    rows = {row["endpoint"]: row for row in main.done("alice", "ep", "list")}
    assert {one["name"] for one in rows[SAMPLE]["commands"]} >= COMMANDS
    assert len(rows[SAMPLE]["instances"]) == 2
    shown = main.run("alice", "ep", "list")
    assert shown.returncode == 0
    (line,) = [line for line in shown.stdout.splitlines() if line.startswith(SAMPLE)]
    assert "2 ready" in line
    assert "from the grants that are recorded" in shown.stderr


@pytest.mark.req("C13.15-28", "C13.20-15")
def test_who_has_no_grant_is_told_so_and_nothing_is_listed(main: Terminal) -> None:
    done = main.run("observer", "ep", "list", "--json")
    assert done.returncode == CallCode.REFUSED
    assert [line["type"] for line in map(json.loads, done.stdout.splitlines())] == ["failure"]
    assert "its operator grants it with principal add; nothing is listed" in done.stderr


@pytest.mark.req("C13.7-65", "C13.7-66")
def test_describe_shows_every_command_with_what_it_takes(main: Terminal, running: DevSet) -> None:
    shown = main.run("alice", "ep", "describe", SAMPLE)
    assert shown.returncode == 0, shown.stderr
    assert "  add {a: integer, b: integer} -> {sum: integer}  [read]" in shown.stdout
    assert "  whoami - -> {actor: string, owner: string, uid: string} --target self  [read]" in shown.stdout
    assert "  event counted" in shown.stdout
    (told,) = main.done("alice", "ep", "describe", SAMPLE)
    assert told["commands"].keys() == COMMANDS
    assert told["commands"]["add"]["input"]["properties"].keys() == {"a", "b"}
    instance, epoch = next(iter(samples(running).items()))
    (named,) = main.done("alice", "ep", "describe", SAMPLE, "--instance", instance)
    assert (named["instance"], named["epoch"]) == (instance, epoch)


# ---- call ----


@pytest.mark.req("C13.2-49", "C13.5-01")
def test_a_call_prints_the_answer_and_says_who_gave_it(main: Terminal, running: DevSet) -> None:
    done = main.run("alice", "ep", "call", SAMPLE, "add", "a=2", "b=3")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"sum": 5})
    found = re.fullmatch(r"-- ok: executed by (\w+) at epoch (\d+) \(([\w-]+)\)\n", done.stderr)
    assert found is not None
    assert (found[1], int(found[2])) in samples(running).items()


@pytest.mark.parametrize(
    "words",
    [['{"text":"hi"}'], ["@args.json"], ["-"], ["text=hi"], ['text:="hi"']],
    ids=["word", "file", "stdin", "kv", "raw"],
)
def test_arguments_come_in_five_ways(main: Terminal, words: list[str], tmp_path: Path) -> None:
    (tmp_path / "args.json").write_text('{"text": "hi"}')
    words = [word.replace("@", f"@{tmp_path}/") for word in words]
    (told,) = main.done("alice", "ep", "call", SAMPLE, "echo", *words, stdin='{"text":"hi"}')
    assert (told["data"], told["outcome"], told["ok"]) == ({"text": "hi"}, "executed", True)


def test_a_call_goes_where_it_is_sent_with_its_id_and_trace(main: Terminal, running: DevSet) -> None:
    for instance, epoch in samples(running).items():
        more = ("--instance", instance, "--bind", f"{instance}@{epoch}", "--id", "mine-1", "--traceparent", TRACE)
        (told,) = main.done("alice", "ep", "call", SAMPLE, "echo", "text=x", *more)
        assert (told["instance"], told["epoch"], told["id"]) == (instance, epoch, "mine-1")


@pytest.mark.req("C13.2-29")
def test_a_target_of_its_own(main: Terminal, running: DevSet) -> None:
    mine = running.ready["nats"]["principals"]["alice"]
    (told,) = main.done("alice", "ep", "call", SAMPLE, "whoami", "--target", "self")
    assert told["data"] == {"owner": mine["owner"], "actor": mine["actor"], "uid": mine["lifecycle_uid"]}


@pytest.mark.req("C13.3-28", "C13.3-47")
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["add", "a=2"], "b is missing"),
        (["add", "a=2", "b=x"], "b is no integer"),
        (["add", "a=2", "b=3", "c=4"], "c is no argument of the command, which takes a, b"),
        (["add", '{"a":2,"b":"3"}'], "b is"),
        (["add", '{"a":2,"b":3,"c":{"d":1}}'], "c is no argument"),
        (["add", '{"a":2'], "on the command line are no JSON"),
        (["add", "[1]"], "are no JSON object"),
        (["add", "@not/there.json"], "No such file"),
        (["whoami"], "it needs --target with one of self"),
        (["echo", "text=x", "--target", "self"], "takes no target"),
        (["whoami", "--target", "any=local.bob"], "takes only self"),
        (["count", "x=1"], "takes no arguments"),
        (["echo", "text=x", "--bind", "x"], "this is no instance"),
        (["echo", "text=x", "--traceparent", "00-0-0-0"], "traceparent"),
        (["echo", "text=x", "--seconds", "nan"], "nan is not a number"),
    ],
)
def test_what_is_typed_wrongly_is_named_and_not_sent(main: Terminal, words: list[str], why: str) -> None:
    done = main.run("alice", "ep", "call", SAMPLE, *words, "--json")
    assert done.returncode == CallCode.USAGE, done.stderr
    assert why in done.stderr
    for line in map(json.loads, done.stdout.splitlines()):
        assert line["type"] == "error"
        assert line.get("outcome", "not-executed") == "not-executed"


@pytest.mark.req("C13.3-39", "C13.3-41", "C13.3-44")
@pytest.mark.parametrize(
    ("after", "outcome", "code"),
    [("false", "not-executed", CallCode.REFUSED), ("true", "executed", CallCode.EXECUTED)],
)
def test_a_refusal_says_whether_it_was_executed(main: Terminal, after: str, outcome: str, code: CallCode) -> None:
    done = main.run("alice", "ep", "call", SAMPLE, "fail", "code=conflict", f"after={after}", "--json")
    assert done.returncode == code
    told = document(done)
    assert (told["type"], told["code"], told["outcome"]) == ("refusal", "conflict", outcome)
    assert told["instance"]
    assert ("was executed" in done.stderr) is (outcome == "executed")


def test_an_unknown_command_and_an_unknown_endpoint(main: Terminal) -> None:
    done = main.run("alice", "ep", "call", SAMPLE, "nothing", "--json")
    assert (done.returncode, document(done)["code"]) == (CallCode.REFUSED, "unimplemented")
    for name in ("Not.A.Name", "a_b", "-x"):
        assert main.run("alice", "ep", "call", name, "x").returncode == CallCode.USAGE


@pytest.mark.req("C13.5-03")
def test_without_a_grant_it_ends_long_before_the_deadline(main: Terminal) -> None:
    done = main.run("observer", "ep", "call", SAMPLE, "echo", "text=x", "--seconds", "600", "--json")
    assert done.returncode == CallCode.REFUSED
    assert (document(done)["code"], document(done)["outcome"]) == ("permission-denied", "not-executed")


@pytest.mark.req("C13.5-02", "C13.3-49")
def test_an_instance_that_is_not_there(main: Terminal) -> None:
    done = main.run("alice", "ep", "call", SAMPLE, "echo", "text=x", "--instance", "f" * 26, "--json")
    assert done.returncode == CallCode.NO_CONNECTION
    assert (document(done)["code"], document(done)["outcome"]) == ("unavailable", "not-executed")


@pytest.mark.req("C13.2-54")
def test_a_bind_to_an_incarnation_that_is_over(main: Terminal, running: DevSet) -> None:
    instance, epoch = next(iter(samples(running).items()))
    bind = ("--instance", instance, "--bind", f"{instance}@{epoch + 1}")
    done = main.run("alice", "ep", "call", SAMPLE, "count", *bind, "--json")
    assert (done.returncode, document(done)["code"]) == (CallCode.REFUSED, "expired")
    assert document(done)["details"][0]["servedBy"] == {"instanceId": instance, "epoch": epoch}


@pytest.mark.req("C13.3-50")
def test_a_deadline_leaves_it_open(main: Terminal) -> None:
    done = main.run("alice", "ep", "call", SAMPLE, "sleep", "ms=30000", "--seconds", "1", "--json")
    assert done.returncode == CallCode.UNKNOWN
    assert (document(done)["code"], document(done)["outcome"]) == ("deadline-exceeded", "unknown")


def test_no_broker_and_no_creds(running: DevSet, tmp_path: Path) -> None:
    creds = running.ready["nats"]["principals"]["alice"]["creds"]
    away = ("--creds", creds, "--url", "nats://127.0.0.1:1", "--timeout", "1", "--json")
    assert sidecar("ep", "call", SAMPLE, "echo", "text=x", *away).returncode == CallCode.NO_CONNECTION
    assert sidecar("ep", "call", SAMPLE, "echo", "text=x").returncode == CallCode.USAGE
    missing = ("--creds", str(tmp_path / "none.creds"), "--url", "nats://127.0.0.1:1")
    assert sidecar("ep", "list", *missing).returncode == CallCode.USAGE


# ---- cast, scatter, watch ----


@pytest.mark.req("C13.5-04", "C13.5-06")
def test_a_cast_says_what_nobody_knows(main: Terminal) -> None:
    (told,) = main.done("alice", "ep", "cast", SAMPLE, "count")
    assert told["outcome"] == "unknown"
    refused = main.run("observer", "ep", "cast", SAMPLE, "count", "--json")
    assert (refused.returncode, document(refused)["code"]) == (CallCode.REFUSED, "permission-denied")


@pytest.mark.req("C13.5-21", "C13.5-24")
def test_a_scatter_shows_every_instance(main: Terminal, running: DevSet) -> None:
    *answers, summary = main.done("alice", "ep", "scatter", SAMPLE, "echo", "text=all", "--id", "mine-1")
    assert summary["id"] == "mine-1"
    assert {one["instance"]: one["epoch"] for one in answers} == samples(running)
    assert (summary["complete"], summary["answered"], summary["missing"]) == (True, 2, [])
    shown = main.run("alice", "ep", "scatter", SAMPLE, "fail", "code=conflict", "after=true")
    assert shown.returncode == CallCode.EXECUTED
    assert "-- complete: 2 of 2 instances answered, 2 of them refused" in shown.stderr


@pytest.mark.req("C13.5-24")
def test_a_scatter_accounts_for_every_instance_when_time_is_up(main: Terminal) -> None:
    done = main.run("alice", "ep", "scatter", SAMPLE, "sleep", "ms=30000", "--seconds", "2", "--json")
    told = document(done)  # an instance may say in time, or late, that time is up
    assert told["answered"] + len(told["missing"] + told["late"]) == 2
    assert done.returncode == (CallCode.UNKNOWN if told["complete"] else CallCode.PARTIAL)


@pytest.mark.req("C13.5-07", "C13.2-58")
def test_an_event_is_watched_live_and_from_before(main: Terminal) -> None:
    with main.follow("alice", "ep", "watch", SAMPLE, "counted", "--after", "0") as watching:
        (told,) = main.done("alice", "ep", "call", SAMPLE, "count")
        own = ("instance", "epoch", "data")  # each instance counts by itself
        watching.until(lambda line: line["type"] == "event" and all(line[name] == told[name] for name in own))
        assert watching.stop() == 0
    again = main.done("alice", "ep", "watch", SAMPLE, "counted", "--after", "0", "--count", "1")
    assert again[0]["type"] == "event"
    unknown = main.run("alice", "ep", "watch", SAMPLE, "nothing")
    assert unknown.returncode == CallCode.USAGE
    assert "there are: dev.sidecar.sample/counted" in unknown.stderr


@pytest.mark.req("C13.5-07", "C13.7-61")
def test_a_record_is_watched(main: Terminal, running: DevSet) -> None:
    instance, epoch = next(iter(samples(running).items()))
    (told,) = main.done("alice", "ep", "watch", SAMPLE, "--instance", instance, "--count", "1")
    assert told["status"]["epoch"] == epoch
    assert told["spec"]["endpoint"] == SAMPLE


# ---- ways to end, and what is shown ----


@pytest.mark.req("C13.3-47")
def test_ctrl_c_before_anything_was_sent_says_so(running: DevSet) -> None:
    creds = running.ready["nats"]["principals"]["alice"]["creds"]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        away = ("--creds", creds, "--url", f"nats://127.0.0.1:{silent.getsockname()[1]}", "--timeout", "600", "--json")
        words = [*SIDECAR, "ep", "call", SAMPLE, "count", *away]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                silent.settimeout(PATIENCE)
                with silent.accept()[0]:
                    process.send_signal(signal.SIGINT)
                    out, errors = process.communicate(timeout=PATIENCE)
            finally:
                process.kill()
    assert process.returncode == CallCode.INTERRUPTED
    assert json.loads(out)["outcome"] == "not-executed"
    assert "nothing was sent: it was not executed" in errors


def test_a_pipe_that_is_closed_ends_it_quietly(main: Terminal) -> None:
    words = main.words("alice", "ep", "call", SAMPLE, "echo", f"text={'x' * 60_000}")
    with subprocess.Popen([*SIDECAR, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait(PATIENCE) == 1
    assert "Traceback" not in errors


def test_a_terminal_gets_colourless_text_that_is_cut(main: Terminal) -> None:
    words = main.words("alice", "ep", "call", SAMPLE, "echo", f"text={'y' * 60_000}")
    with Screen(*words) as screen:
        assert screen.wait() == 0
        assert "characters more; a pipe or --json gets all" in screen.raw
        assert screen.raw.count("y") < 20_000
        assert screen.sequences == []


def complete(words: list[str], *, shell: str = "bash") -> list[str]:
    """What the shell would offer for the last word."""
    line = " ".join(["sidecar", *words])
    environ = {
        **os.environ,
        "_SIDECAR_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run(SIDECAR, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_a_shell_completes_endpoints_and_commands_from_the_listing(main: Terminal, running: DevSet) -> None:
    here = ["--dev", str(running.directory), "--as", "alice"]
    assert SAMPLE in complete(["ep", "call", *here, "dev."])
    assert set(complete(["ep", "call", *here, SAMPLE, ""])) >= COMMANDS
    assert complete(["ep", "call", *here, SAMPLE, "ec"]) == ["echo"]
    assert complete(["ep", "call", *here, "not.there", ""]) == []
    assert complete(["ep", "call", "--dev", "/not/there", "--as", "alice", "d"]) == []
    assert complete(["ep", "call", "--dev", str(running.directory), "--as", "observer", "d"]) == []
    assert "describe" in complete(["ep", "des"])
