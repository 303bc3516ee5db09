"""`sidecar space` as an operator runs it, against a real nats-server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.app.broker import free_port
from sidecar.base.safefile import write_private
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.space.creds import write_creds
from sidecar.rails.space.holder import Holder, Profile
from sidecar.rails.space.layout import Limits, configurations
from sidecar.rails.space.trust import SpaceTrust, new_user
from tests.e2e.cluster import eventually
from tests.e2e.space_broker import User, greets, run_broker


def sidecar(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sidecar", "space", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def answer(*arguments: object) -> dict[str, Any]:
    done = sidecar(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def refused(*arguments: object, code: int = 1) -> str:
    done = sidecar(*arguments)
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    return done.stderr


class Operator:
    """A directory and a broker that trusts it, made with the printed lines."""

    def __init__(self, directory: Path, replaced: tuple[str, str] = ("", "")) -> None:
        self.root = directory / "nats"
        self.url = f"nats://127.0.0.1:{(port := free_port('127.0.0.1'))}"
        lines = sidecar("trust", "--root", self.root)
        assert lines.returncode == 0, lines.stderr
        head = f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{directory / "js"}" }}\n'
        self.config = directory / "nats-server.conf"
        write_private(self.config, (head + lines.stdout.replace(*replaced)).encode())
        self.process = run_broker(self.config, directory / "nats-server.log")
        eventually(lambda: greets(port))

    @property
    def at(self) -> tuple[str, ...]:
        return ("--root", str(self.root), "--server", self.url)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(20)


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    made = Operator(tmp_path)
    yield made
    made.close()


@pytest.mark.req("C9-01", "C8-01", "C8-14")
def test_a_space_is_made_once_and_proved_afterwards(operator: Operator) -> None:
    first = answer("create", "main", *operator.at)
    assert first["form"] == "mediated"
    assert len(first["made"]) == 27
    again = answer("create", "main", *operator.at)
    assert again["made"] == []
    assert again["account"] == first["account"]
    shown = answer("show", "main", *operator.at)
    assert shown["streams"] == {name: [] for name in first["made"]}
    assert answer("show", "main", "--root", operator.root)["streams"] is None
    assert "as it must be" in sidecar("show", "main", *operator.at).stdout
    assert "0 streams made" in sidecar("create", "main", *operator.at).stdout


@pytest.mark.req("C9-03", "C9-04")
def test_spaces_have_accounts_of_their_own_under_one_trust(operator: Operator) -> None:
    one = answer("create", "main", "--form", "compatible", *operator.at)
    two = answer("create", "guarded", *operator.at)
    assert one["account"] != two["account"]
    listed = answer("list", "--root", operator.root)["spaces"]
    assert [(info["space"], info["form"]) for info in listed] == [("guarded", "mediated"), ("main", "compatible")]
    assert f"main\tcompatible\t{one['account']}\n" in sidecar("list", "--root", operator.root).stdout
    assert "form compatible" in refused("create", "main", "--form", "mediated", *operator.at)
    assert sorted(path.name for path in (operator.root / "spaces" / "main").iterdir()) == [
        "account.jwt", "account.nk", "signing.nk", "space.json",
    ]  # fmt: skip


def test_files_are_the_owners_alone_and_no_output_shows_a_seed(operator: Operator) -> None:
    done = sidecar("create", "main", *operator.at)
    said = done.stdout + done.stderr + sidecar("show", "main", *operator.at, "--json").stdout
    said += sidecar("trust", "--root", operator.root).stdout
    seeds = list(operator.root.rglob("*.nk"))
    assert len(seeds) == 6
    for path in operator.root.rglob("*"):
        if path.is_relative_to(operator.root / "accounts") and path != operator.root / "accounts":
            continue  # the broker's own
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    for seed in seeds:
        assert seed.read_text()[4:] not in said


@pytest.mark.parametrize("steps", range(1, 9))
def test_a_run_that_was_killed_is_finished_by_the_next(operator: Operator, steps: int) -> None:
    """Killed after each of the first writes, so with some of the files of the space there and others not."""
    code = (
        "import os, signal, sys, asyncio\n"
        "from pathlib import Path\n"
        "from sidecar.base import safefile\n"
        "left = int(sys.argv[1])\n"
        "real = safefile._sync_dir\n"
        "def dying(path):\n"
        "    global left\n"
        "    real(path)\n"
        "    left -= 1\n"
        "    if left == 0: os.kill(os.getpid(), signal.SIGKILL)\n"
        "safefile._sync_dir = dying\n"
        "from sidecar.app.spaces import create_space\n"
        "asyncio.run(create_space(Path(sys.argv[2]), 'main', None, sys.argv[3]))\n"
    )
    command = [sys.executable, "-c", code, str(steps), str(operator.root), operator.url]
    killed = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert killed.returncode in (0, -signal.SIGKILL), killed.stderr
    done = answer("create", "main", *operator.at)
    assert answer("create", "main", *operator.at)["account"] == done["account"]
    assert not [name for name, found in answer("show", "main", *operator.at)["streams"].items() if found != []]


def test_what_cannot_be_done_is_one_line(operator: Operator, tmp_path: Path) -> None:
    assert "no space" in refused("show", "main", "--root", operator.root)
    assert "letters" in refused("create", "my space", *operator.at)
    assert "--server" in refused("create", "main", "--root", operator.root, code=2)
    for url in ("http://x:1", "nats://user:secret@x:1", "x"):
        said = refused("create", "main", "--root", operator.root, "--server", url, code=2)
        assert "secret" not in said
    closed = f"nats://127.0.0.1:{free_port('127.0.0.1')}"
    assert "no connection" in refused("create", "main", "--root", operator.root, "--server", closed)
    elsewhere = ("--root", str(tmp_path / "other"), "--server", operator.url)
    assert "trust this directory" in refused("create", "main", *elsewhere)
    os.chmod(operator.root, 0o755)
    assert "chmod 700" in refused("create", "main", *operator.at)


@pytest.mark.req("C13.12-06")
def test_a_broker_with_small_messages_is_refused(tmp_path: Path) -> None:
    operator = Operator(tmp_path, ("max_payload: 1048576", "max_payload: 65536"))
    try:
        assert "max_payload" in refused("create", "main", *operator.at)
        assert answer("list", "--root", operator.root)["spaces"][0]["revoked"] == 0, (
            "the keys are kept for the next run"
        )
    finally:
        operator.close()


@pytest.mark.req("C13.12-02")
@pytest.mark.parametrize("version", ["2.11.9", None])
def test_an_older_broker_is_refused(tmp_path: Path, version: str | None) -> None:
    """Not a nats-server: it says what one says before and at login, and nothing more."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        said = {"server_id": "N", "max_payload": 1 << 20, "proto": 1, "headers": True, "nonce": "n"}
        if version is not None:
            said["version"] = version

        def serve() -> None:
            peer, _ = listener.accept()
            with peer, peer.makefile("rb") as lines:
                peer.sendall(b"INFO " + json.dumps(said).encode() + b"\r\n")
                for line in lines:
                    if line.startswith(b"PING"):
                        peer.sendall(b"PONG\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        server = f"nats://127.0.0.1:{listener.getsockname()[1]}"
        assert "2.12 or newer" in refused("create", "main", "--root", tmp_path / "nats", "--server", server)
        thread.join(20)


def test_a_record_that_says_nothing_is_told_and_left(operator: Operator) -> None:
    answer("create", "main", *operator.at)
    record = operator.root / "spaces" / "main" / "space.json"
    write_private(record, b"[]")
    assert "form" in refused("show", "main", "--root", operator.root)
    assert "form" in refused("create", "main", *operator.at)
    assert record.read_bytes() == b"[]"


@pytest.mark.req("C8-06")
def test_a_stream_of_another_shape_is_told_and_left(operator: Operator) -> None:
    answer("create", "main", *operator.at)
    asyncio.run(_open_direct_get(operator))
    assert "KV_cotal_presence_main: deny_purge is True, must be False" in refused("create", "main", *operator.at)
    done = sidecar("show", "main", *operator.at)
    assert done.returncode == 1
    assert "deny_purge is True" in done.stdout


async def _open_direct_get(operator: Operator) -> None:
    """Somebody changes a stream with the one update that a provisioner may do."""
    trust = SpaceTrust.open(operator.root / "spaces" / "main", "main", os.urandom)
    key = new_user(os.urandom)
    holder = Holder("main", Lifecycle(Principal("local", "p"), "p" * 26), key.public)
    creds = operator.root.parent / "p.creds"
    write_creds(creds, trust.issue(Profile.PROVISIONER, holder, key, int(time.time()), 300), key)
    user = User()
    await user.connect(operator.url, creds, f"_INBOX_{key.public}.>")
    config = configurations("main", Limits())["KV_cotal_presence_main"] | {"deny_purge": True}
    reply = await user.client.request(
        "$JS.API.STREAM.UPDATE.KV_cotal_presence_main", json.dumps(config).encode(), timeout=20
    )
    assert "error" not in json.loads(reply.data)
    await user.close()
