"""``sidecar coordinator`` as processes against real processes: output, exit codes, keys, pins, watching over a kill."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.base.ed25519 import digest_text, fingerprint
from sidecar.base.keysource import create_seed_file
from sidecar.base.safefile import write_private
from sidecar.coordinator.authority.keyfile import KEY_NAME, init_authority_key
from sidecar.coordinator.authority.registry import add_key
from sidecar.coordinator.wire.limits import HARD
from tests.canary import CANARY, spellings_in
from tests.e2e.clients import cli, start_cli, write_ready
from tests.e2e.cluster import Cluster, eventually

ONE = "00000000000000000000000000000001"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cli"), certificate_seconds=10) as running:
        write_ready(running)
        yield running


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, certificate_seconds=5) as running:
        write_ready(running)
        yield running


def document(done: subprocess.CompletedProcess[str], code: int = 0) -> dict[str, Any]:
    assert done.returncode == code, done.stderr
    assert done.stdout.count("\n") == 1
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def one_line(done: subprocess.CompletedProcess[str], code: int) -> str:
    assert done.returncode == code, (done.returncode, done.stderr)
    lines = [line for line in done.stderr.splitlines() if "first use" not in line]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("sidecar: ")
    return lines[0]


def dev(cluster: Cluster) -> tuple[str, str]:
    return "--dev", str(cluster.layout.root)


def explicit(cluster: Cluster, pins: Path) -> list[str]:
    """Everything but the key, without --dev."""
    return [
        "--socket",
        str(cluster.socket),
        "--pins",
        str(pins),
        "--witness-id",
        cluster.provisioned.witness_id.hex(),
        "--witness-key",
        cluster.provisioned.witness_public_key.hex(),
    ]


# -- work --------------------------------------------------------------------------------------------------------------


@pytest.mark.req("P8-01", "P8-02", "P8-03")
def test_create_update_look_up_and_see_it(shared: Cluster) -> None:
    made = document(cli("objective", "create", "--json", *dev(shared), '{"t": "é"}'))
    assert made["result"]["state"] == "SUCCEEDED"
    assert made["recovered"] is False
    found = document(cli("operation", "get", "--json", *dev(shared), made["operation_id"]))
    assert found["result"] == made["result"]
    again = document(
        cli(
            *("objective", "create", "--json", *dev(shared), '{"t": "é"}'),
            *("--id", made["objective_id"], "--operation-id", made["operation_id"]),
        )
    )
    assert again["result"] == made["result"]
    done = cli("objective", "update", *dev(shared), made["objective_id"], "--file", "-", stdin=b"\x00\xff raw")
    assert done.returncode == 0, done.stderr
    assert f"objective  {made['objective_id']}\n" in done.stdout
    taken = document(cli("snapshot", "--json", *dev(shared)))
    (record,) = [record for record in taken["records"] if record["id"] == made["objective_id"]]
    assert record["revision"] == 2
    assert bytes.fromhex(record["document_hex"]) == b"\x00\xff raw"
    assert taken["record_count"] == len(taken["records"])
    (ran,) = [record for record in taken["records"] if record["id"] == made["operation_id"]]
    assert ran["principal_key_id"] == document(cli("hello", "--json", *dev(shared)))["key_id"]
    assert f"principal={ran['principal_key_id']}\n" in cli("snapshot", *dev(shared)).stdout


def test_documents_pass_through_as_they_are(shared: Cluster, tmp_path: Path) -> None:
    text = '{ "b":1,\n"a":  2 }'
    file = tmp_path / "document.json"
    file.write_text(text)
    for arguments, stdin in ((["--file", str(file)], None), (["-"], text.encode()), ([text], None)):
        made = document(cli("objective", "create", "--json", *dev(shared), *arguments, stdin=stdin))
        taken = document(cli("snapshot", "--json", *dev(shared)))
        (record,) = [record for record in taken["records"] if record["id"] == made["objective_id"]]
        assert record["document"] == text


def test_tables_for_people(shared: Cluster) -> None:
    hello = cli("hello", *dev(shared))
    assert hello.returncode == 0, hello.stderr
    assert shared.ready["authority_fingerprint"] in hello.stdout
    assert "WORK_READ,WORK_COMMAND" in hello.stdout
    assert cli("objective", "create", *dev(shared), "line\nbreak \x1b[31m").returncode == 0
    snapshot = cli("snapshot", *dev(shared))
    assert snapshot.stdout.splitlines()[0].split() == ["KIND", "ID", "REV", "STATE", "DETAIL"]
    assert "\x1b" not in snapshot.stdout
    assert "line break" in snapshot.stdout
    assert snapshot.stdout.splitlines()[-1].startswith("snapshot  cut ")
    assert cli("ping", *dev(shared)).stdout.endswith(" us\n")
    assert document(cli("ping", "--json", *dev(shared)))["seconds"] > 0


# -- exit codes --------------------------------------------------------------------------------------------------------


@pytest.mark.req("P13-04")
def test_a_refusal_names_its_code_and_ends_with_1(shared: Cluster) -> None:
    refused = cli("objective", "create", *dev(shared), "--as", "reader", "{}")
    assert "SCOPE_DENIED" in one_line(refused, 1)
    made = document(cli("objective", "create", "--json", *dev(shared), "{}"))
    stale = cli("objective", "update", "--json", *dev(shared), made["objective_id"], "{}", "--revision", "9")
    error = document(stale, 1)
    assert error["error"]["name"] == "REVISION_CONFLICT"
    assert error["error"]["exit_code"] == 1
    assert error["objective_id"] == made["objective_id"]
    assert "REVISION_CONFLICT" in one_line(stale, 1)
    expired = cli("hello", *dev(shared), "--as", "expired")
    assert "AUTHENTICATION_FAILED" in one_line(expired, 1)


def test_unknown_operations_end_with_5_and_start_nothing(shared: Cluster) -> None:
    before = document(cli("snapshot", "--json", *dev(shared)))
    found = cli("operation", "get", "--json", *dev(shared), ONE)
    assert document(found, 5)["result"] == {"state": "UNKNOWN"}
    after = document(cli("snapshot", "--json", *dev(shared)))
    assert after["cut"] == before["cut"]


@pytest.mark.req("P1-08", "P1-09")
def test_an_absent_endpoint_is_an_explicit_error_and_nothing_is_kept_locally(shared: Cluster, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "work").mkdir(parents=True)
    options = explicit(shared, home / "state" / "pins.json")
    options[1] = str(tmp_path / "absent.sock")
    done = cli(
        *("objective", "create", *options, "--key-file", str(shared.key_file("operator")), "{}"),
        environ={"HOME": str(home), "XDG_STATE_HOME": str(home / "xdg")},
    )
    assert "absent.sock" in one_line(done, 3)
    assert done.stdout == ""
    assert [path.name for path in home.rglob("*")] == ["work", "state"]
    assert str(tmp_path / "dev") in one_line(cli("ping", "--dev", str(tmp_path / "dev")), 3)


@pytest.mark.req("P1-08")
def test_a_required_capability_that_is_absent_is_refused(shared: Cluster) -> None:
    names = {"TERMINAL_BINDINGS", "ARTIFACT_MANIFESTS", "SIGNALS", "ADMINISTRATION"}
    absent = sorted(names - set(document(cli("hello", "--json", *dev(shared)))["capabilities"]))
    done = cli("objective", "create", *dev(shared), "--require", absent[0], "{}")
    assert "CAPABILITY_REQUIRED" in one_line(done, 1)


@pytest.mark.parametrize(
    "arguments",
    [
        ["snapshot"],
        ["snapshot", "--socket", "/tmp/s"],
        ["objective", "create"],
        ["objective", "create", "{}", "--file", "-"],
        ["objective", "update", "abc", "{}"],
        ["operation", "get", "00" * 16],
        ["ping", "--as", "nobody"],
        ["ping", "--witness-id", "01" * 16],
        ["ping", "--key-file", "a", "--key-fd", "3"],
        ["ping", "--authority", "sha256:00"],
        ["objective", "create", "--file", "/nonexistent/file"],
        ["ping", "--timeout", "nan"],
        ["ping", "--wait", "nan"],
    ],
    ids=lambda arguments: " ".join(arguments),
)
def test_wrong_usage_ends_with_2(shared: Cluster, arguments: list[str]) -> None:
    with_target = arguments[:1] == ["snapshot"] or arguments[-1] == "/tmp/s"
    done = cli(*arguments, *(() if with_target else dev(shared)))
    one_line(done, 2)
    assert done.stdout == ""


@pytest.mark.parametrize("form", ["argument", "standard input", "file", "file -"])
@pytest.mark.parametrize("verb", [("create",), ("update", ONE)], ids=lambda verb: verb[0])
def test_an_empty_document_is_wrong_usage(shared: Cluster, tmp_path: Path, form: str, verb: tuple[str, ...]) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    arguments = {
        "argument": [""],
        "standard input": ["-"],
        "file": ["--file", str(empty)],
        "file -": ["--file", "-"],
    }[form]
    done = cli("objective", *verb, *dev(shared), *arguments)
    assert "the document is empty" in one_line(done, 2)
    assert done.stdout == ""


def test_help_says_what_a_document_may_be() -> None:
    words = " ".join(cli("objective", "create", "--help").stdout.split())
    assert f"1 to {HARD.typed_payload} bytes" in words
    assert "JSON is passed through" in words
    assert "- for standard input" in words


@pytest.mark.req("W2-09", "P12-27", "P12-30")
def test_a_changed_authority_ends_with_4_until_an_operator_trusts_it(own: Cluster, tmp_path: Path) -> None:
    pins = tmp_path / "client" / "pins.json"
    options = [*explicit(own, pins), "--key-file", str(own.key_file("operator"))]
    first = cli("hello", "--json", *options)
    old = document(first)["authority"]
    assert document(first)["admission"] == "first"
    assert first.stderr == f"sidecar: first use: pinned authority {old} in {pins}\n"
    again = cli("hello", *options)
    assert (again.stderr, "authority already pinned, same activation\n" in again.stdout) == ("", True)
    own.stop()
    (own.state_dir / KEY_NAME).unlink()
    new = digest_text(fingerprint(init_authority_key(own.state_dir, os.urandom).public_key))
    own.start_serve()
    for command in (["hello"], ["objective", "create", "{}"]):
        line = one_line(cli(*command, *options), 4)
        assert "authority_changed" in line
        assert new in line
        assert line.endswith(f"sidecar coordinator pins trust --pins {pins} FINGERPRINT")
    before = pins.read_bytes()
    assert document(cli("hello", "--json", *options), 4)["error"]["name"] == "AUTHORITY_CHANGED"
    assert pins.read_bytes() == before
    assert cli("pins", "trust", "--pins", str(pins), new).returncode == 0
    trusted = document(cli("pins", "trust", "--json", "--pins", str(pins), new))
    assert trusted == {"authority": new, "state": "approved"}
    assert "new authority, pinned now\n" in cli("hello", *options).stdout
    assert document(cli("hello", "--json", *options))["authority"] == new
    assert "; --authority says which one is accepted" in one_line(cli("hello", *options, "--authority", old), 4)
    listed = document(cli("pins", "list", "--json", "--pins", str(pins)))
    assert {pin["authority"] for pin in listed["authorities"]} == {old, new}
    assert cli("pins", "forget", "--pins", str(pins), old).returncode == 0
    one_line(cli("pins", "forget", "--pins", str(pins), old), 1)
    assert new in cli("pins", "list", "--pins", str(pins)).stdout
    forgotten = document(cli("pins", "forget", "--json", "--pins", str(pins), new))
    assert forgotten == {"authority": new, "state": "forgotten"}


@pytest.mark.req("P12-08")
def test_the_first_use_needs_a_witness_and_the_right_one(shared: Cluster, tmp_path: Path) -> None:
    pins = tmp_path / "client" / "pins.json"
    key = ["--key-file", str(shared.key_file("operator"))]
    bare = ["--socket", str(shared.socket), "--pins", str(pins), *key]
    assert "use --witness-id and --witness-key" in one_line(cli("ping", *bare), 4)
    wrong = [*bare, "--witness-id", ONE, "--witness-key", shared.provisioned.witness_public_key.hex()]
    assert "certificate" in one_line(cli("ping", *wrong), 4)
    assert not pins.exists()
    assert cli("ping", *explicit(shared, pins), *key).returncode == 0
    assert cli("ping", *bare).returncode == 0
    assert stat.S_IMODE(pins.stat().st_mode) == 0o600


def test_a_server_that_stands_still_is_given_up_before_anything_was_sent(tmp_path: Path) -> None:
    with Cluster(tmp_path, certificate_seconds=60) as patient:  # it stands for as long as a command takes to start
        write_ready(patient)
        assert patient.serve is not None
        os.kill(patient.serve.pid, signal.SIGSTOP)
        one_line(cli("objective", "create", *dev(patient), "--timeout", "0.3", "{}"), 3)
        os.kill(patient.serve.pid, signal.SIGCONT)
        assert document(cli("snapshot", "--json", *dev(patient)))["cut"] == 0


# -- keys --------------------------------------------------------------------------------------------------------------


@pytest.mark.req("W9-14")
def test_a_key_comes_from_a_file_a_descriptor_or_a_credential(shared: Cluster, tmp_path: Path) -> None:
    options = explicit(shared, tmp_path / "client" / "pins.json")
    source = shared.key_file("operator")
    key_ids = [document(cli("hello", "--json", *options, "--key-file", str(source)))["key_id"]]
    with source.open("rb") as stream:
        fd = stream.fileno()
        key_ids.append(document(cli("hello", "--json", *options, "--key-fd", str(fd), pass_fds=[fd]))["key_id"])
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    write_private(credentials / "workload", source.read_bytes())
    key_ids.append(
        document(
            cli(
                *("hello", "--json", *options, "--key-credential", "workload"),
                environ={"CREDENTIALS_DIRECTORY": str(credentials)},
            )
        )["key_id"]
    )
    assert key_ids == [shared.provisioned.workloads["operator"]["key_id"]] * 3
    for option in ("--key-file", "--key-fd", "--key-credential"):
        assert option in cli("hello", "--help").stdout


@pytest.mark.req("W9-14")
@pytest.mark.parametrize("fault", ["mode", "link", "size", "missing", "directory"])
def test_an_unsafe_key_file_is_refused_in_one_line(shared: Cluster, tmp_path: Path, fault: str) -> None:
    path = tmp_path / "key"
    create_seed_file(path, os.urandom)
    if fault == "mode":
        path.chmod(0o640)
    elif fault == "link":
        path.rename(tmp_path / "real")
        path.symlink_to(tmp_path / "real")
    elif fault == "size":
        path.unlink()
        write_private(path, bytes(range(31)))
    else:
        path.unlink()
        if fault == "directory":
            path.mkdir()
    done = cli("ping", *dev(shared), "--key-file", str(path))
    assert str(path) in one_line(done, 2)


@pytest.mark.req("W9-15", "W9-16", "W9-17")
def test_key_bytes_are_never_in_arguments_environment_or_output(shared: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "key"
    key = create_seed_file(path, lambda size: CANARY)
    enrolled = shared.metrics()["sidecar_registry_keys"] + 1
    add_key(shared.state_dir, key.public_key, 3, 2**40, now=1.0)
    eventually(lambda: shared.metrics()["sidecar_registry_keys"] == enrolled)
    options = [*explicit(shared, tmp_path / "client" / "pins.json"), "--key-file", str(path)]
    watching = start_cli("watch", "--json", *options)
    try:
        assert watching.stdout is not None
        first = watching.stdout.readline()
        process = Path(f"/proc/{watching.pid}")
        seen: list[str | bytes] = [first, (process / "environ").read_bytes(), (process / "cmdline").read_bytes()]
    finally:
        watching.send_signal(signal.SIGINT)
        rest = watching.communicate(timeout=30)
    assert watching.returncode == 0
    seen += rest
    for arguments in (["hello"], ["objective", "create", "{}"], ["operation", "get", ONE], ["snapshot", "--json"]):
        done = cli(*arguments, *options)
        seen += [done.stdout, done.stderr]
    seen.append((tmp_path / "client" / "pins.json").read_bytes())
    assert [spellings_in(text) for text in seen] == [[]] * len(seen)
    pasted = cli("hello", *options, "--key-file", CANARY.hex())
    assert pasted.returncode != 0
    # there is no option that takes the bytes themselves: the text is taken as the name of a file
    assert "No such file" in pasted.stderr


# -- watch -------------------------------------------------------------------------------------------------------------


class Watching:
    """A running watch whose lines are waited for; killed at the end of the block if it still runs."""

    def __init__(self, *arguments: str) -> None:
        self.process = start_cli("watch", *arguments)
        self.lines: list[str] = []

    def until(self, part: str) -> str:
        assert self.process.stdout is not None
        while True:
            line = self.process.stdout.readline()
            assert line, (part, self.lines, self.process.communicate()[1])
            self.lines.append(line)
            if part in line:
                return line

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=30)
        return self.process.returncode

    def __enter__(self) -> Watching:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


@pytest.mark.req("P10-19", "P10-36", "P12-31")
def test_a_watch_goes_through_a_kill_in_the_open_and_ends_with_0(own: Cluster) -> None:
    with Watching(*dev(own)) as people, Watching("--json", *dev(own)) as machine:
        people.until("snapshot  cut 0")
        machine.until('"why": "start"')
        assert cli("objective", "create", *dev(own), '{"t":"before"}').returncode == 0
        assert '{"t":"before"}' in people.until("event 1")
        event = json.loads(machine.until('"event": 1'))
        assert (event["kind"], event["record"]["document"]) == ("OBJECTIVE_CHANGED", '{"t":"before"}')
        people.until("event 2")
        machine.until('"event": 2')
        own.kill()
        assert people.until("GAP").startswith("GAP after event 2:")
        gap = json.loads(machine.until('"type": "gap"'))
        assert (gap["last_event"], gap["connection"] is not None) == (2, True)
        own.start_serve()
        assert "epoch 2" in people.until("reconnected")
        people.until("snapshot  cut 2  epoch 2")
        machine.until('"type": "reconnected"')
        healed = json.loads(machine.until('"why": "heal"'))
        assert (healed["cut"], healed["changed"], healed["gone"]) == (2, [], [])
        assert cli("objective", "create", *dev(own), '{"t":"after"}').returncode == 0
        assert '{"t":"after"}' in people.until("event 3")
        machine.until('"event": 3')
        assert (people.interrupt(), machine.interrupt()) == (0, 0)


def test_a_watch_without_records_lists_only_what_a_heal_changed(own: Cluster) -> None:
    assert cli("objective", "create", *dev(own), '{"t":"before"}').returncode == 0
    with Watching("--no-records", *dev(own)) as people, Watching("--no-records", "--json", *dev(own)) as machine:
        assert "records 2" in people.until("snapshot  cut 2")
        start = json.loads(machine.until('"type": "snapshot"'))
        assert (start["why"], start["record_count"], "changed" in start, "gone" in start) == ("start", 2, False, False)
        for watching in (people, machine):
            watching.process.send_signal(signal.SIGSTOP)
        own.kill()
        own.start_serve()
        assert cli("objective", "create", *dev(own), '{"t":"meanwhile"}').returncode == 0
        for watching in (people, machine):
            watching.process.send_signal(signal.SIGCONT)
        people.until("healed: 2 changed, 0 gone")
        assert '{"t":"meanwhile"}' in people.until("OBJECTIVE")
        assert not any("before" in line for line in people.lines)
        healed = json.loads(machine.until('"why": "heal"'))
        assert (len(healed["changed"]), healed["gone"]) == (2, [])
        assert (people.interrupt(), machine.interrupt()) == (0, 0)


@pytest.mark.req("P10-19")
def test_no_heal_reports_the_loss_and_ends_with_5(own: Cluster) -> None:
    assert cli("objective", "create", *dev(own), "{}").returncode == 0
    with Watching("--no-heal", "--after", "0", *dev(own)) as watching:
        watching.until("event 2")
        own.kill()
        assert "not healing" in watching.until("GAP")
        _, errors = watching.process.communicate(timeout=30)
        assert watching.process.returncode == 5
        assert errors.count("\n") == 1


def test_a_reader_that_goes_away_ends_the_watch_quietly(shared: Cluster) -> None:
    watching = start_cli("watch", "--json", *dev(shared))
    assert watching.stdout is not None
    assert watching.stderr is not None
    assert watching.stdout.readline()
    watching.stdout.close()
    assert cli("objective", "create", *dev(shared), "{}").returncode == 0
    assert watching.wait(30) == 1
    with watching.stderr as errors:
        assert "Traceback" not in errors.read()


def test_waiting_for_a_server_that_comes_up(own: Cluster) -> None:
    own.stop()
    waiting = start_cli("ping", "--wait", "60", *dev(own))
    own.start_serve()
    output, errors = waiting.communicate(timeout=90)
    assert waiting.returncode == 0, errors
    assert output.endswith(" us\n")


@pytest.mark.parametrize("command", ["hello", "snapshot", "watch", "ping"])
def test_help_documents_the_exit_codes(command: str) -> None:
    text = cli(command, "--help").stdout
    for code in range(6):
        assert f"\n    {code}  " in text or f"\n  {code}  " in text, text
