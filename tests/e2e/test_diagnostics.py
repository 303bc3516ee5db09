"""The admin socket of a real server, and ``top`` and ``quota`` as an operator runs them, on a terminal too."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.coordinator.authority.keyfile import KEY_NAME
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode
from sidecar.coordinator.wire.ids import SubscriptionId
from sidecar.ops.admin import MAX_CONNECTIONS, MAX_REQUEST, fetch
from tests.e2e.clients import cli, start_cli, write_ready
from tests.e2e.cluster import Cluster, eventually
from tests.e2e.peer import Peer
from tests.e2e.terminal import Terminal

GET = b"GET /stats HTTP/1.1\r\n\r\n"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, certificate_seconds=3) as running:
        write_ready(running)
        yield running


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[Cluster]:
    """Its certificate outlasts a client that is held still for a while."""
    with Cluster(tmp_path, certificate_seconds=60) as running:
        write_ready(running)
        yield running


def dev(cluster: Cluster) -> tuple[str, str]:
    return "--dev", str(cluster.layout.root)


def admin(cluster: Cluster) -> Path:
    return Path(cluster.ready["admin_socket"])


def subscriptions(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [sub for conn in document["connections"] for sub in conn["subscriptions"]]


def create(peer: Peer, count: int) -> None:
    for _ in range(count):
        peer.send(peer.create())
        peer.expect(fr.CoordCommandResult)


@contextlib.contextmanager
def stalled(cluster: Cluster) -> Iterator[tuple[Peer, bytes]]:
    """A subscription that gave credit for one event, with more behind it."""
    with Peer(cluster.socket) as reader, Peer(cluster.socket) as writer:
        reader.login(cluster.key("reader"), scopes=1)
        writer.login(cluster.key("operator"), scopes=3)
        sub = reader.subscribe(count=1)
        create(writer, 3)
        reader.expect(fr.CoordEvent)
        yield reader, sub


# -- what is told ------------------------------------------------------------------------------------------------------


def test_a_stalled_subscription_is_seen_with_its_lag_until_it_gets_credit(cluster: Cluster) -> None:
    with stalled(cluster) as (reader, sub):
        document = fetch(admin(cluster))
        (told,) = subscriptions(document)
        assert (told["id"], told["stalled"], told["deliveries"]) == (sub.hex(), True, 1)
        assert told["queue_frames"] <= told["lag"] < document["events"]["durable"]
        assert told["queue_frames"] == 2, "what is hidden from it counts in the lag alone"
        once = cli("top", "--once", *dev(cluster))
        assert once.returncode == 0, once.stderr
        (line,) = [line for line in once.stdout.splitlines() if sub.hex()[:12] in line]
        assert line.split()[:3] == [str(told["lag"]), "LIVE", "STALLED"]
        assert "\x1b" not in once.stdout
        as_json = json.loads(cli("top", "--once", "--json", *dev(cluster)).stdout)
        assert subscriptions(as_json)[0]["stalled"] is True
        assert as_json["rates"] is None
        reader.send(fr.CreditFrame(subscription_id=SubscriptionId(sub), add_count=100, add_bytes=0))
        eventually(lambda: subscriptions(fetch(admin(cluster)))[0]["lag"] == 0)
        assert subscriptions(fetch(admin(cluster)))[0]["stalled"] is False
    eventually(lambda: not fetch(admin(cluster))["connections"])
    assert fetch(admin(cluster))["principals"] == []


def test_a_connection_is_told_with_who_is_at_its_end(cluster: Cluster) -> None:
    with Peer(cluster.socket) as peer:
        eventually(lambda: fetch(admin(cluster))["sockets"] == {"handshake": 1, "active": 0})
        peer.login(cluster.key("operator"), scopes=3)
        document = eventually(lambda: (one := fetch(admin(cluster)))["connections"] and one)
        (conn,) = document["connections"]
        listed = cluster.provisioned.workloads["operator"]["key_id"]
        assert (conn["key_id"], document["principals"][0]["key_id"]) == (listed, listed)
        assert (conn["pid"], conn["uid"]) == (os.getpid(), os.geteuid())
        assert conn["scopes"] == ["WORK_READ", "WORK_COMMAND"]
        assert conn["age_seconds"] >= 0
    assert document["pid"] == cluster.ready["pid"]
    assert document["authority"]["epoch"] == cluster.ready["epoch"]
    assert document["authority"]["incarnation_id"] == cluster.ready["incarnation_id"]
    assert 0 < document["authority"]["lease_seconds"] <= 3


def test_counters_are_those_of_the_metrics(cluster: Cluster) -> None:
    with Peer(cluster.socket) as peer:
        peer.login(cluster.key("commander"), scopes=2)
        create(peer, 2)
    with Peer(cluster.socket) as peer:
        peer.login(cluster.key("reader"), scopes=1)
        peer.send(peer.create())
        assert peer.expect(fr.CoordErrorFrame).code is ErrorCode.SCOPE_DENIED
    counters = fetch(admin(cluster))["counters"]
    metrics = cluster.metrics()
    assert counters["commands"] == {"succeeded": 2, "scope_denied": 1}
    assert counters["refusals"] == {"scope_denied": 1}
    assert metrics['sidecar_refusals_total{code="scope_denied"}'] == 1
    assert counters["handshakes"]["ok"] == 2
    assert counters["frames_in"] == sum(
        value for name, value in metrics.items() if name.startswith('sidecar_frames_total{direction="in"')
    )
    assert metrics['sidecar_admin_requests_total{outcome="ok"}'] == 1


def test_nothing_secret_is_told(cluster: Cluster) -> None:
    with stalled(cluster) as (reader, _):
        assert reader.welcome is not None
        secrets = [Path(workload["key_file"]).read_bytes() for workload in cluster.provisioned.workloads.values()]
        secrets.append((cluster.state_dir / KEY_NAME).read_bytes())
        secrets.append(reader.welcome.activation_certificate.fencing_token)
        secrets.append(b'{"title":"x"}')
        shown = json.dumps(fetch(admin(cluster))) + cli("top", "--once", *dev(cluster)).stdout
        shown += cli("quota", "--connections", *dev(cluster)).stdout
    for secret in secrets:
        assert secret.hex() not in shown
        assert base64.b64encode(secret).decode()[:16] not in shown
        assert secret not in shown.encode()


# -- quota -------------------------------------------------------------------------------------------------------------


def test_quota_moves_with_what_is_held_and_can_be_checked(cluster: Cluster) -> None:
    key_id = cluster.provisioned.workloads["reader"]["key_id"]

    def used(*options: str) -> dict[tuple[str, str, str], int]:
        rows = json.loads(cli("quota", "--json", *options, *dev(cluster)).stdout)["quotas"]
        assert [row["percent"] for row in rows] == sorted((row["percent"] for row in rows), reverse=True)
        return {(row["level"], row["who"], row["resource"]): row["used"] for row in rows}

    assert set(used().values()) == {0}
    with Peer(cluster.socket) as peer:
        peer.login(cluster.key("reader"), scopes=1)
        for _ in range(30):
            peer.subscribe()
        found = used("--connections")
        assert found["server", "-", "subscriptions"] == found["principal", key_id, "subscriptions"] == 30
        (own,) = [
            count for (level, _, name), count in found.items() if (level, name) == ("connection", "subscriptions")
        ]
        assert own == 30
        table = cli("quota", "--connections", *dev(cluster))
        assert table.returncode == 0
        first = table.stdout.splitlines()[1]
        assert first.split()[:5] == ["subscriptions", "30", "32", "94", "%"]
        assert " ! " in first
        assert cli("quota", "--check", "50", *dev(cluster)).returncode == 0
        full = cli("quota", "--connections", "--check", "90", *dev(cluster))
        assert full.returncode == 1
        assert full.stderr.startswith("sidecar: 1 above 90 %, the fullest is subscriptions of the connection pid ")
        assert full.stdout == table.stdout
    eventually(lambda: set(used().values()) == {0})


# -- top, followed -----------------------------------------------------------------------------------------------------


def read_json(running: subprocess.Popen[str]) -> dict[str, Any]:
    assert running.stdout is not None
    found: dict[str, Any] = json.loads(running.stdout.readline())
    return found


def read_until(running: subprocess.Popen[str], needle: str) -> str:
    assert running.stdout is not None
    for line in running.stdout:
        if needle in line:
            return line
    raise AssertionError(f"it ended without {needle!r}")


def interrupted(running: subprocess.Popen[str]) -> int:
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=30)
    return running.returncode


def test_top_follows_over_a_kill_and_a_restart(cluster: Cluster) -> None:
    with start_cli("top", "--json", "--interval", "0.1", *dev(cluster)) as running:
        first = read_json(running)
        assert (first["version"], first["rates"]) == (1, None)
        with Peer(cluster.socket) as peer:
            peer.login(cluster.key("operator"), scopes=3)
            create(peer, 5)
        eventually(lambda: (read_json(running)["rates"] or {}).get("commands", {}).get("succeeded", 0) > 0)
        cluster.kill()
        lost = eventually(lambda: read_json(running).get("error"))
        assert (lost["name"], lost["exit_code"]) == ("NO_CONNECTION", 3)
        epoch = cluster.start_serve()["epoch"]
        found = eventually(lambda: (one := read_json(running)).get("version") and one)
        assert (found["authority"]["epoch"], found["rates"]) == (epoch, None)
        assert interrupted(running) == 0


def test_top_prints_plain_lines_where_there_is_no_terminal(cluster: Cluster) -> None:
    with start_cli("top", "--interval", "0.1", *dev(cluster)) as running:
        assert read_until(running, "so far").startswith("so far     commands 0")
        assert read_until(running, "per second").startswith("per second commands 0")
        assert cluster.stop() == 0
        assert read_until(running, "NO ANSWER").startswith("NO ANSWER, trying again: ")
        cluster.start_serve()
        assert "\x1b" not in read_until(running, "per second")
        assert interrupted(running) == 0


def test_top_on_a_terminal_is_refreshed_in_place(cluster: Cluster) -> None:
    with Terminal("coordinator", "top", "--interval", "0.1", *dev(cluster), rows=30, columns=100) as screen:
        screen.wait_for("so far     commands 0")
        assert not screen.cursor
        with stalled(cluster) as (_, sub):
            screen.wait_for("LIVE STALLED")
            screen.wait_for(sub.hex()[:12])
            assert screen.rows_with("coordinator ") == [0], "one view, drawn over the last one"
            assert screen.raw.count("\x1b[2J") == 1, "and never wiped in between"
            assert "\x1b[33m" in screen.raw
            screen.resize(rows=8, columns=40)
            screen.wait_for("more lines")
            assert max(len(line) for line in screen.lines) <= 40
            screen.resize(rows=30, columns=100)
            screen.wait_for(sub.hex()[:12])
        screen.wait_for_not("STALLED")
        cluster.kill()
        screen.wait_for("NO ANSWER, trying again: ")
        assert screen.rows_with("coordinator ") == [1], "what was seen last stays below"
        cluster.start_serve()
        screen.wait_for_not("NO ANSWER")
        screen.type("\x03")
        assert screen.wait() == 0
        assert screen.cursor, "the cursor is back"
        assert "\x1b[?1049h" not in screen.raw, "what was on the screen before is left in its scrollback"


def test_another_size_of_the_window_is_drawn_at_once(cluster: Cluster) -> None:
    with Terminal("coordinator", "top", "--interval", "3600", *dev(cluster), rows=30, columns=100) as screen:
        screen.wait_for("so far")
        for _ in range(3):
            screen.resize(rows=4, columns=30)
            screen.wait_for("more lines")
            screen.resize(rows=30, columns=100)
            screen.wait_for_not("more lines")
        assert cluster.metrics()['sidecar_admin_requests_total{outcome="ok"}'] == 1, "drawn anew, not asked anew"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_cursor_comes_back_when_it_is_ended(cluster: Cluster, number: signal.Signals) -> None:
    with Terminal("coordinator", "top", *dev(cluster)) as screen:
        screen.wait_for("so far")
        screen.process.send_signal(number)
        assert screen.wait() == 0
        assert screen.cursor


def test_no_color_and_a_dumb_terminal_are_respected(cluster: Cluster) -> None:
    with Terminal("coordinator", "top", *dev(cluster), environ={"NO_COLOR": "1"}) as screen:
        screen.wait_for("so far")
        assert "m" not in {part[-1] for part in screen.sequences}
    with Terminal("coordinator", "top", *dev(cluster), environ={"TERM": "dumb"}) as screen:
        screen.wait_for("so far")
        assert screen.sequences == []


# -- errors ------------------------------------------------------------------------------------------------------------


def one_line(done: subprocess.CompletedProcess[str], code: int) -> str:
    assert (done.returncode, done.stdout) == (code, ""), done
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.mark.parametrize("command", [["top"], ["top", "--once"], ["top", "--json"], ["quota"]])
def test_without_a_server_the_reason_is_said(cluster: Cluster, command: list[str]) -> None:
    cluster.stop()
    assert "there is no admin socket; is the coordinator running?" in one_line(cli(*command, *dev(cluster)), 3)


def test_a_socket_that_is_not_ours_alone_is_not_asked(cluster: Cluster) -> None:
    path = admin(cluster)
    path.chmod(0o666)
    assert "open to others; run: chmod 600" in one_line(cli("quota", "--admin-socket", str(path)), 4)
    path.chmod(0o600)
    path.parent.chmod(0o750)
    assert "run: chmod 700" in one_line(cli("top", "--once", "--admin-socket", str(path)), 4)
    path.parent.chmod(0o700)
    assert "is not a socket" in one_line(cli("quota", "--admin-socket", str(cluster.serve_config)), 4)
    assert cli("quota", "--admin-socket", str(path)).returncode == 0
    assert "give --admin-socket, or --dev" in one_line(cli("quota"), 2)


def test_a_taken_admin_socket_stops_the_start_and_it_can_be_turned_off(cluster: Cluster) -> None:
    cluster.stop()
    path = admin(cluster)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(path))
        other.listen()
        program = cluster.program("second", "serve", "--config", str(cluster.serve_config))
        assert program.wait() == 73
        assert "admin.sock: another server listens here" in program.stderr
    path.unlink()
    cluster.configure(cluster.serve_config, {"admin": {"socket": str(path.parent / "other.sock")}})
    assert cluster.start_serve()["admin_socket"] == str(path.parent / "other.sock")
    assert fetch(path.parent / "other.sock")["version"] == 1
    cluster.stop()
    text = cluster.serve_config.read_text() + "enabled = false\n"
    cluster.serve_config.write_text(text)
    assert cluster.start_serve()["admin_socket"] is None
    assert sorted(file.name for file in path.parent.iterdir()) == ["coordinator.sock", "witness.sock"]
    write_ready(cluster)
    assert "runs without an admin socket" in one_line(cli("quota", *dev(cluster)), 2)


# -- a hostile or careless owner ---------------------------------------------------------------------------------------


def ask(path: Path, request: bytes) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(30)
        peer.connect(str(path))
        with contextlib.suppress(BrokenPipeError):
            peer.sendall(request)
        return status(peer)


def status(peer: socket.socket) -> int:
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while part := peer.recv(65536):
            data += part
    return int(data.split(b" ")[1])


def test_wrong_requests_are_refused_and_work_goes_on(cluster: Cluster) -> None:
    path = admin(cluster)
    assert ask(path, b"GET /metrics HTTP/1.1\r\n\r\n") == 404
    assert ask(path, b"DELETE /stats HTTP/1.1\r\n\r\n") == 405
    assert ask(path, fr.CoordPing(nonce=1).encode() + b"\r\n\r\n") == 400
    assert ask(path, GET[:-2] + b"X: " + b"y" * MAX_REQUEST) == 431
    assert ask(path, GET) == 200
    with urlopen_refused(cluster) as code:
        assert code == 404, "nothing of it on the health listener"


@contextlib.contextmanager
def urlopen_refused(cluster: Cluster) -> Iterator[int]:
    yield cluster.health("/stats")[0]


def test_connections_that_say_nothing_are_bounded_and_ended_and_block_no_client(cluster: Cluster) -> None:
    path = admin(cluster)
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) for _ in range(MAX_CONNECTIONS)]
        for peer in idle:
            peer.settimeout(30)
            peer.connect(str(path))
            peer.sendall(b"GET")
        eventually(lambda: ask(path, GET) == 503)
        with Peer(cluster.socket) as client:
            client.login(cluster.key("operator"), scopes=3)
            create(client, 1)
        assert [status(peer) for peer in idle] == [408] * MAX_CONNECTIONS
    eventually(lambda: ask(path, GET) == 200)
    assert cluster.metrics()['sidecar_admin_requests_total{outcome="timeout"}'] == MAX_CONNECTIONS
    assert cluster.stop() == 0


# -- watch -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def frozen_watch(cluster: Cluster, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A watch that did not run while more happened than its queue holds; it runs again."""
    with start_cli("watch", "--json", *options, "--as", "reader", *dev(cluster)) as running:
        read_until(running, '"why": "start"')
        running.send_signal(signal.SIGSTOP)
        try:
            with Peer(cluster.socket) as writer:
                writer.login(cluster.key("operator"), scopes=3)

                def overflown() -> bool:
                    create(writer, 200)
                    return any(sub["state"] == "PAUSED_GAP" for sub in subscriptions(fetch(admin(cluster))))

                eventually(overflown, seconds=60)
        finally:
            running.send_signal(signal.SIGCONT)
        yield running


@pytest.mark.req("P10-19", "P10-32")
def test_a_watch_that_was_too_slow_shows_its_gap_and_every_event_behind_it(patient: Cluster) -> None:
    with frozen_watch(patient) as running:
        seen: list[int] = []
        while (item := read_json(running))["type"] == "event":
            seen.append(item["event"])
        assert (item["type"], item["reason"]) == ("gap", "QUEUE_OVERFLOW")
        assert item["last_event"] == (seen[-1] if seen else item["last_event"])
        healed = read_json(running)
        assert (healed["type"], healed["why"]) == ("replay", "heal")
        assert healed["event_count"] > 0
        recovered = [read_json(running) for _ in range(healed["event_count"])]
        numbers = [one["event"] for one in recovered]
        assert numbers == sorted(set(numbers))
        assert item["last_event"] < numbers[0] <= numbers[-1] <= healed["through"]
        assert healed["through"] == fetch(admin(patient))["events"]["durable"]
        eventually(lambda: [sub["state"] for sub in subscriptions(fetch(admin(patient)))] == ["LIVE"])
        assert fetch(admin(patient))["counters"]["gaps"] == {"queue_overflow": 1}
        assert interrupted(running) == 0


@pytest.mark.req("P10-19")
def test_a_watch_that_must_not_heal_names_the_gap_and_ends_with_5(patient: Cluster) -> None:
    with frozen_watch(patient, "--no-heal") as running:
        gap = json.loads(read_until(running, '"type": "gap"'))
        assert gap["reason"] == "QUEUE_OVERFLOW"
        out, errors = running.communicate(timeout=30)
        assert running.returncode == 5
        assert json.loads(out)["error"]["name"] == "CONTINUITY_LOST"
        assert errors.count("\n") <= 2
