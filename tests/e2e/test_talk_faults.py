"""The commands of messaging when something is wrong: the broker, the credential, the output, the delivery plane."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.space.creds import write_creds
from sidecar.rails.space.holder import Form, Holder, Profile
from sidecar.rails.space.trust import SpaceTrust, new_user
from tests.e2e.cluster import eventually
from tests.e2e.devset import SIDECAR, DevSet, dev_set
from tests.e2e.talk import PATIENCE, Terminal, sidecar


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevSet]:
    with dev_set(tmp_path_factory.mktemp("faults") / "dev") as found:
        yield found


@pytest.fixture(params=["main", "guarded"])
def here(request: pytest.FixtureRequest, running: DevSet) -> Terminal:
    return Terminal(running, request.param)


@pytest.mark.req("C4-26", "C12-12")
def test_a_tail_outlives_a_killed_broker(here: Terminal) -> None:
    observed = here.follow("observer", "channel", "tail", "team.kill")
    with here.follow("bob", "channel", "tail", "team.kill") as bob, observed as observer:
        bob.notice("joined")
        observer.notice("observing")
        here.done("alice", "channel", "send", "team.kill", "before")
        bob.message("before")
        observer.message("before")
        killed = server_pid(here)
        os.kill(killed, signal.SIGKILL)
        for one in (bob, observer):
            one.notice("disconnected")
            one.notice("restored")
        sent = here.done("alice", "channel", "send", "team.kill", "after", "--timeout", "30")
        assert sent[0]["type"] == "sent"
        for one in (bob, observer):
            one.message("after")
            assert one.stop() == 0
            assert one.texts == ["before", "after"]
    os.kill(eventually(lambda: (pid := server_pid(here)) != killed and pid), 0)


def server_pid(here: Terminal) -> int:
    """The broker that runs now, as the ready line says: the set starts another one when it was killed."""
    pid: int = json.loads((here.running.directory / "ready.json").read_bytes())["nats"]["server_pid"]
    return pid


def test_what_was_not_printed_is_not_acked(here: Terminal) -> None:
    assert here.run("bob", "channel", "join", "team.pipe").returncode == 0
    for number in range(3):
        here.done("alice", "channel", "send", "team.pipe", f"post {number}")
    words = here.words("bob", "channel", "tail", "team.pipe", "--count", "3")
    reader = subprocess.Popen([*SIDECAR, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert reader.stdout is not None
    assert reader.stderr is not None
    reader.stdout.close()
    with reader.stderr as errors:
        said = errors.read()
    assert (reader.wait(PATIENCE), "Traceback" in said) == (1, False), said
    again = here.done("bob", "channel", "tail", "team.pipe", "--count", "3")
    posts = [line["parts"][0]["text"] for line in again if line["type"] == "message"]
    assert sorted(posts) == ["post 0", "post 1", "post 2"]


def test_a_message_moves_no_cursor(here: Terminal) -> None:
    nasty = "\x1b[2Jgone\r\nsecond\x07 \u202etxt\tend"
    here.done("alice", "channel", "send", "team.nasty", "-", "--name", "ali\x1b[31mce", stdin=nasty)
    shown = here.run("bob", "channel", "history", "team.nasty", "--ids")
    assert shown.returncode == 0
    assert not any(ord(one) < 32 and one != "\n" for one in shown.stdout)
    lines = shown.stdout.splitlines()
    assert lines[0].endswith("#team.nasty ali\\x1b[31mce (alice): \\x1b[2Jgone [history]")
    assert lines[1].strip() == "second\\x07 \\u202etxt    end"
    assert lines[2].strip().startswith(f"from {here.principal('alice')}, id ")


@pytest.mark.req("C7-13", "C9-07")
def test_a_channel_that_is_not_granted_is_refused(here: Terminal) -> None:
    for words in (
        ("channel", "send", "bob-only", "hi"),
        ("channel", "tail", "bob-only"),
        ("channel", "join", "bob-only"),
    ):
        refused = here.run("alice", *words)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "sidecar channel list" in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
    refused = here.run("alice", "channel", "history", "bob-only", "--json")
    assert (refused.returncode, json.loads(refused.stdout)["name"]) == (1, "DENIED")


def test_nobody_of_that_name_is_told_with_the_remedy(here: Terminal) -> None:
    refused = here.run("alice", "dm", "send", "nobody", "hi")
    assert refused.returncode == 1
    assert "sidecar peers --all" in refused.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("channel", "tail", "general"), "--as takes one of alice, bob, reviewer, observer, operator"),
        (("channel", "tail", "--as", "bob"), "name at least one channel"),
        (("channel", "tail", "a..b", "--as", "bob"), "empty segment"),
        (("channel", "tail", "general", "--as", "bob", "--since", "1w"), "one of s, m, h and d"),
        (("channel", "tail", "general", "--as", "bob", "--since", "1h", "--replay"), "give one of"),
        (("peers", "--as", "bob", "--space", "nowhere"), "--space takes one of main, guarded"),
        (("peers", "--as", "bob", "--creds", "x"), "--dev takes --as and --space"),
        (("channel", "send", "team.>", "hi", "--as", "bob"), "concrete channel"),
        (("channel", "send", "general", "hi", "--as", "bob", "--id", "a b"), "id"),
    ],
)
def test_wrong_usage_is_one_line(running: DevSet, words: tuple[str, ...], said: str) -> None:
    refused = running.cli(*words)
    assert (refused.returncode, refused.stdout) == (2, ""), refused.stderr
    assert said in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def creds(directory: Path, *, issued: int, trust: Path) -> Path:
    """Creds of an agent of the space main, made here."""
    key = new_user(os.urandom)
    life = Lifecycle(Principal("local", "stranger"), "a1" * 13)
    holder = Holder("main", life, key.public, Form.COMPATIBLE, allow_publish=("general",), allow_subscribe=("general",))
    path = directory / "stranger.creds"
    token = SpaceTrust.open(trust, "main", os.urandom).issue(Profile.AGENT, holder, key, issued, 600)
    write_creds(path, token, key)
    return path


def test_a_credential_that_the_broker_does_not_take(running: DevSet, tmp_path: Path) -> None:
    url = running.ready["nats"]["url"]
    tmp_path.chmod(0o700)
    foreign = creds(tmp_path, issued=int(time.time()), trust=tmp_path / "trust")
    refused = sidecar("channel", "send", "general", "hi", "--creds", str(foreign), "--url", url)
    assert (refused.returncode, "sidecar principal creds" in refused.stderr) == (4, True), refused.stderr
    ended = creds(tmp_path, issued=int(time.time()) - 1_000, trust=Path(running.ready["nats"]["root"]) / "spaces/main")
    refused = sidecar("channel", "tail", "general", "--creds", str(ended), "--url", url)
    assert (refused.returncode, "has ended; renew it" in refused.stderr) == (4, True), refused.stderr
    ended.chmod(0o644)
    assert sidecar("peers", "--creds", str(ended), "--url", url).returncode == 2
    assert sidecar("peers", "--creds", str(tmp_path / "none"), "--url", url).returncode == 2
    good = running.ready["nats"]["creds"]["alice"]
    nobody = sidecar("peers", "--creds", good, "--url", "nats://127.0.0.1:1", "--timeout", "1")
    assert (nobody.returncode, "is the broker up" in nobody.stderr) == (3, True), nobody.stderr


@pytest.mark.req("C10-04", "C10-07")
def test_a_join_link_says_where(running: DevSet) -> None:
    url = running.ready["nats"]["url"].removeprefix("nats://")
    good = running.ready["nats"]["spaces"]["guarded"]["creds"]["alice"]
    link = f"cotal://{url}/guarded?channel=team.link"
    sent = sidecar("channel", "send", "team.link", "through a link", "--creds", good, "--link", link)
    assert sent.returncode == 0, sent.stderr
    shown = sidecar("channel", "tail", "--from-start", "--count", "1", "--creds", good, "--link", link)
    assert "through a link" in shown.stdout
    other = sidecar("peers", "--creds", good, "--link", f"cotal://{url}/main")
    assert (other.returncode, "guarded" in other.stderr) == (2, True)
    login = sidecar("peers", "--creds", good, "--link", f"cotal://secret@{url}/guarded")
    assert (login.returncode, "secret" in login.stderr, "members of a space use creds" in login.stderr) == (
        2,
        False,
        True,
    )


@pytest.mark.req("C7-37")
def test_a_join_without_the_delivery_plane_says_what_is_missing(here: Terminal) -> None:
    plane = here.running.ready["delivery"]["pid"]
    os.kill(plane, signal.SIGSTOP)
    try:
        with here.follow("bob", "channel", "tail", "team.apart") as bob:
            joined = bob.notice("joined")
            assert (joined["state"], joined["text"].split(":")[1]) == ("live", " joined live")
            assert "durable backstop unavailable" in joined["shortfall"]
            os.kill(plane, signal.SIGCONT)
            joined = bob.notice("joined")
            assert (joined["state"], joined["shortfall"]) == ("durable", None)
            assert bob.stop() == 0
    finally:
        os.kill(plane, signal.SIGCONT)
    eventually(lambda: here.run("bob", "liveness").returncode == 0)
