"""What a coordinator refuses to start with: one line, an exit code, and nothing bound."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from sidecar.coordinator.authority.keyfile import KEY_NAME
from sidecar.coordinator.authority.registry import REGISTRY_NAME
from sidecar.coordinator.store import database
from sidecar.ops.exitcodes import ExitCode
from tests.e2e.cluster import Cluster, DidNotStart, Program
from tests.e2e.peer import Peer


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A witness that runs; coordinators come and go."""
    cluster = Cluster(tmp_path_factory.mktemp("startup"), serve={"witness": {"wait_seconds": 0}})
    cluster.start_witness()
    yield cluster
    cluster.close()


def copy_of(cluster: Cluster, directory: Path, **overrides: dict[str, Any]) -> tuple[Path, Path, Path]:
    """Configuration, state directory and socket of a coordinator with own copies of everything."""
    state, store, run = directory / "state", directory / "store", directory / "run"
    shutil.copytree(cluster.state_dir, state)
    state.chmod(0o700)
    config = directory / "serve.toml"
    shutil.copy(cluster.serve_config, config)
    own = {"state_dir": str(state), "store_dir": str(store), "socket": str(run / "c.sock")}
    cluster.configure(config, {"coordinator": own})
    cluster.configure(config, overrides)
    return config, state, run / "c.sock"


def refused(cluster: Cluster, config: Path, path: Path, code: ExitCode) -> str:
    """Start, see it refuse with this code and one line, and see that nothing was bound."""
    program = cluster.program("refused", "serve", "--config", str(config))
    with pytest.raises(DidNotStart) as caught:
        program.wait_ready()
    assert caught.value.exit_code == code
    assert not path.exists()
    errors = [line for line in caught.value.stderr.splitlines() if not line.startswith("{")]
    assert len(errors) == 1
    assert errors[0].startswith("sidecar: ") or errors[0].startswith("Error: ")
    assert "Traceback" not in caught.value.stderr
    assert "stopped" not in [line["event"] for line in program.lines()], "the problem is told once"
    return errors[0]


@pytest.mark.req("W9-01", "W9-03", "P2-04", "P12-21", "P2-03")
@pytest.mark.parametrize("mode", ["local", "hybrid", None])
def test_a_mode_other_than_paired(cluster: Cluster, tmp_path: Path, mode: str | None) -> None:
    config, _, path = copy_of(cluster, tmp_path, coordinator={"mode": mode})
    assert "coordinator.mode" in refused(cluster, config, path, ExitCode.CONFIG)


@pytest.mark.req("W9-03", "W9-04", "W9-08", "P2-08", "P2-09", "P2-12", "W5-11")
@pytest.mark.parametrize(("key", "value"), [("listen", "0.0.0.0:7000"), ("transport", "ssh"), ("stdin", True)])
def test_another_transport(cluster: Cluster, tmp_path: Path, key: str, value: Any) -> None:
    config, _, path = copy_of(cluster, tmp_path, coordinator={key: value})
    assert f"coordinator.{key}: unknown key" in refused(cluster, config, path, ExitCode.CONFIG)


def break_key_missing(state: Path) -> None:
    (state / KEY_NAME).unlink()


def break_key_short(state: Path) -> None:
    (state / KEY_NAME).write_bytes(b"short")


def break_key_mode(state: Path) -> None:
    (state / KEY_NAME).chmod(0o640)


def break_key_link(state: Path) -> None:
    (state / KEY_NAME).rename(state / "elsewhere")
    (state / KEY_NAME).symlink_to(state / "elsewhere")


def break_registry_missing(state: Path) -> None:
    (state / REGISTRY_NAME).unlink()


def break_registry_malformed(state: Path) -> None:
    (state / REGISTRY_NAME).write_bytes(b'{"version":1,"keys":[{}]}')


def break_registry_mode(state: Path) -> None:
    (state / REGISTRY_NAME).chmod(0o644)


def break_directory_mode(state: Path) -> None:
    state.chmod(0o750)


@pytest.mark.req("W9-05", "P12-21")
@pytest.mark.parametrize(
    "damage",
    [
        break_key_missing,
        break_key_short,
        break_key_mode,
        break_key_link,
        break_registry_missing,
        break_registry_malformed,
        break_registry_mode,
        break_directory_mode,
    ],
    ids=lambda damage: damage.__name__.removeprefix("break_"),
)
def test_material_that_is_missing_malformed_or_unsafe(cluster: Cluster, tmp_path: Path, damage: Any) -> None:
    config, state, path = copy_of(cluster, tmp_path)
    damage(state)
    assert str(state) in refused(cluster, config, path, ExitCode.CONFIG) or damage is break_registry_malformed


def test_with_a_log_file_a_failed_start_is_told_in_the_file_and_to_people(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "serve.log"
    config, state, path = copy_of(cluster, tmp_path, log={"file": str(file)})
    break_key_mode(state)
    line = refused(cluster, config, path, ExitCode.CONFIG)
    (logged,) = [json.loads(text) for text in file.read_text().splitlines()]
    assert (logged["event"], logged["level"], logged["exit_code"]) == ("stopped", "error", ExitCode.CONFIG)
    assert line == f"sidecar: {logged['problem']}"


@pytest.mark.req("P12-24", "P12-21", "P12-23")
def test_no_witness_means_no_coordinator(cluster: Cluster, tmp_path: Path) -> None:
    config, _, path = copy_of(cluster, tmp_path, witness={"socket": str(tmp_path / "none.sock")})
    assert "witness" in refused(cluster, config, path, ExitCode.UNAVAILABLE)


@pytest.mark.req("P12-21")
@pytest.mark.parametrize("pin", ["witness_id", "public_key"])
def test_another_witness_than_the_pinned_one(cluster: Cluster, tmp_path: Path, pin: str) -> None:
    other = {"witness_id": "ab" * 16, "public_key": cluster.key("admin").public_key.hex()}
    config, _, path = copy_of(cluster, tmp_path, witness={pin: other[pin]})
    refused(cluster, config, path, ExitCode.UNAVAILABLE)


@pytest.mark.req("P12-21")
def test_a_damaged_store(cluster: Cluster, tmp_path: Path) -> None:
    config, _, path = copy_of(cluster, tmp_path)
    (tmp_path / "store").mkdir(mode=0o700)
    file = tmp_path / "store" / database.NAME
    file.write_bytes(b"no database at all" * 1000)
    file.chmod(0o600)
    assert str(file) in refused(cluster, config, path, ExitCode.STORE)


@pytest.mark.req("P12-21")
def test_a_health_port_that_is_taken_stops_the_start_before_the_socket(cluster: Cluster, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config, _, path = copy_of(cluster, tmp_path, metrics={"listen": f"127.0.0.1:{taken.getsockname()[1]}"})
        refused(cluster, config, path, ExitCode.CANNOT_BIND)
    # The token went back: the next start does not wait for a lease.
    cluster.configure(config, {"metrics": {"listen": "127.0.0.1:0"}})
    program = cluster.program("again", "serve", "--config", str(config))
    assert program.wait_ready()["epoch"] == 2
    assert program.stop() == ExitCode.OK


def test_a_wrong_command_line_and_a_missing_file(cluster: Cluster, tmp_path: Path) -> None:
    for arguments, code in ((["serve"], ExitCode.USAGE), (["serve", "--config", str(tmp_path / "x")], ExitCode.CONFIG)):
        program = cluster.program("usage", *arguments)
        with pytest.raises(DidNotStart) as caught:
            program.wait_ready()
        assert caught.value.exit_code == code


class Running:
    """A coordinator of its own beside the module's witness."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.config, self.state, self.path = copy_of(cluster, directory)
        self.program: Program = cluster.program("running", "serve", "--config", str(self.config))
        self.ready = self.program.wait_ready()


@pytest.mark.req("P12-21", "P2-06")
def test_a_second_process_on_the_same_store_or_socket_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    first = Running(cluster, tmp_path)
    try:
        program = cluster.program("second", "serve", "--config", str(first.config))
        with pytest.raises(DidNotStart) as caught:
            program.wait_ready()
        assert caught.value.exit_code == ExitCode.STORE
        other = tmp_path / "other.toml"
        shutil.copy(first.config, other)
        cluster.configure(other, {"coordinator": {"store_dir": str(tmp_path / "store2")}})
        program = cluster.program("third", "serve", "--config", str(other))
        with pytest.raises(DidNotStart) as caught:
            program.wait_ready()
        assert caught.value.exit_code == ExitCode.CANNOT_BIND
        with Peer(first.path) as peer:
            peer.login(cluster.key("admin")).ping()
    finally:
        first.program.stop()


@pytest.mark.req("P12-21", "P12-24")
def test_a_copied_store_does_not_start_beside_the_original(cluster: Cluster, tmp_path: Path) -> None:
    first = Running(cluster, tmp_path)
    copy = tmp_path / "copy"
    copy.mkdir(mode=0o700)
    try:
        shutil.copytree(tmp_path / "store", copy / "store")
        config = copy / "serve.toml"
        shutil.copy(first.config, config)
        cluster.configure(
            config, {"coordinator": {"store_dir": str(copy / "store"), "socket": str(copy / "run" / "c.sock")}}
        )
        message = refused(cluster, config, copy / "run" / "c.sock", ExitCode.UNAVAILABLE)
        assert "lease_active" in message
    finally:
        epoch = first.ready["epoch"]
        assert first.program.stop() == ExitCode.OK
    program = cluster.program("copy", "serve", "--config", str(config))
    ready = program.wait_ready()
    assert ready["epoch"] > epoch
    assert ready["coordinator_id"] == first.ready["coordinator_id"]
    assert program.stop() == ExitCode.OK


@pytest.mark.req("P2-06", "W9-08", "P2-12")
def test_what_a_running_coordinator_opens(cluster: Cluster, tmp_path: Path) -> None:
    running = Running(cluster, tmp_path)
    try:
        assert set(running.ready) == {
            "ready", "pid", "socket", "coordinator_id", "authority_fingerprint", "epoch", "incarnation_id",
            "admin_socket", "metrics_url", "health_url",
        }  # fmt: skip
        assert running.ready["pid"] == running.program.pid
        assert running.ready["socket"] == str(running.path)
        assert running.path.stat().st_mode & 0o777 == 0o600
        assert running.path.parent.stat().st_mode & 0o777 == 0o700
        admin = Path(running.ready["admin_socket"])
        assert admin == running.path.parent / "admin.sock"
        assert admin.stat().st_mode & 0o777 == 0o600
        listening = listening_addresses(running.program.pid)
        port = int(running.ready["metrics_url"].split(":")[2].split("/")[0])
        assert listening == {f"0100007F:{port:04X}"}, "only health listens on TCP, on loopback"
    finally:
        assert running.program.stop() == ExitCode.OK
    assert running.program.rest_of_stdout() == b"", "exactly one line on standard output"
    assert not running.path.exists()
    assert not admin.exists()


def listening_addresses(pid: int) -> set[str]:
    """Local addresses of the TCP listeners that belong to a process, as the kernel writes them."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        rows = Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
        for columns in (row.split() for row in rows):
            if columns[9] in inodes and (table.startswith("udp") or columns[3] == "0A"):
                found.add(columns[1])
    return found


def test_log_lines_are_json_and_hold_no_key(cluster: Cluster, tmp_path: Path) -> None:
    running = Running(cluster, tmp_path)
    seed = (running.state / KEY_NAME).read_bytes()
    running.program.stop()
    text = running.program.stderr
    assert [json.loads(line)["event"] for line in text.splitlines()] == ["activating", "serving", "stopped"]
    assert seed.hex() not in text


def test_a_start_that_nobody_can_be_told_of_says_so_in_the_log(cluster: Cluster, tmp_path: Path) -> None:
    """The reader of the ready line is gone: the log still tells why the process ended."""
    config, _, path = copy_of(cluster, tmp_path)
    program = cluster.program("unheard", "serve", "--config", str(config))
    assert program.process.stdout is not None
    program.process.stdout.close()
    assert program.wait() == ExitCode.INTERNAL
    last = program.lines()[-1]
    assert (last["event"], last["exit_code"]) == ("stopped", ExitCode.INTERNAL)
    assert "BrokenPipe" in last["problem"]
    assert not path.exists()
