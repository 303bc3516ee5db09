"""Two people at two terminals, each command a process of its own, in both spaces of ``sidecar dev``."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.e2e.devset import DevSet, dev_set
from tests.e2e.talk import Terminal, sidecar


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevSet]:
    with dev_set(tmp_path_factory.mktemp("talk") / "dev", "--without-endpoints") as found:
        yield found


@pytest.fixture(params=["main", "guarded"])
def here(request: pytest.FixtureRequest, running: DevSet) -> Terminal:
    return Terminal(running, request.param)


@pytest.mark.req("C12-25", "C12-26", "C12-27")
def test_alice_and_bob_talk_from_two_processes(here: Terminal) -> None:
    with here.follow("alice", "channel", "tail", "team.backend") as alice:
        joined = alice.notice("joined")
        assert (joined["channel"], joined["state"], joined["shortfall"]) == ("team.backend", "durable", None)
        with here.follow("bob", "channel", "tail", "team.backend") as bob, here.follow("bob", "dm", "inbox") as inbox:
            bob.notice("joined")
            names = {peer["name"]: peer for peer in here.done("observer", "peers")}
            assert {"alice", "bob"} <= names.keys()
            assert names["alice"]["principal"] == here.principal("alice")
            here.done("alice", "channel", "send", "team.backend", "Can you review this?", "--mention", "Bob")
            for one in (alice, bob):
                post = one.message("Can you review this?")
                assert (post["kind"], post["target"], post["historical"]) == ("channel", "team.backend", False)
                assert post["from"]["id"] == here.principal("alice")
                assert post["marks"] == (["mention"] if one is bob else [])
            here.done("alice", "dm", "send", "bob", "and quietly, too")
            direct = inbox.message("and quietly, too")
            assert (direct["kind"], direct["target"]) == ("dm", here.principal("bob"))
            assert [one.stop() for one in (inbox, bob)] == [0, 0]
            assert bob.texts == ["Can you review this?"]
        assert alice.stop(signal.SIGTERM) == 0
        assert alice.texts == ["Can you review this?"]


@pytest.mark.req("C12-28")
def test_exactly_one_holder_takes_a_request(here: Terminal) -> None:
    with here.follow("reviewer", "anycast", "serve", "--reply", "on it") as holder:
        (sent,) = here.done("alice", "anycast", "send", "reviewer", "look at this")
        taken = holder.message("look at this")
        assert (taken["kind"], taken["target"]) == ("anycast", "reviewer")
        with here.follow("alice", "dm", "inbox") as inbox:
            assert inbox.message("on it")["replyTo"] == sent["id"]
            if not any(line.get("event") == "anycast" for line in inbox.seen):
                inbox.notice("anycast")
            (told,) = (line for line in inbox.seen if line.get("event") == "anycast")
            assert (told["seq"], told["turn"]) == (sent["sequence"], "taken")
        assert holder.stop() == 0
    (status,) = here.done("alice", "anycast", "status", str(sent["sequence"]), sent["id"])
    assert (status["state"], status["taker"]["id"]) == ("taken", here.principal("reviewer"))
    late = here.run("alice", "anycast", "cancel", str(sent["sequence"]), sent["id"])
    assert late.returncode == 1
    assert "taken by reviewer" in late.stdout


def test_a_request_that_nobody_took_is_taken_back(here: Terminal) -> None:
    asked = here.run("alice", "anycast", "send", "reviewer", "never mind")
    follow_up = asked.stdout.split("what becomes of it: sidecar ")[1].split()
    assert "waiting" in sidecar(*follow_up).stdout
    cancelled = sidecar("anycast", "cancel", *follow_up[2:])
    assert (cancelled.returncode, "cancelled" in cancelled.stdout) == (0, True)
    assert here.done("reviewer", "anycast", "serve", "--idle", "1") == []


@pytest.mark.req("C12-29", "C4-18", "C12-12")
def test_what_is_said_while_one_is_offline_is_there_once_when_it_is_back(here: Terminal) -> None:
    assert here.run("bob", "channel", "join", "team.offline").returncode == 0
    for number in range(3):
        here.done("alice", "channel", "send", "team.offline", f"post {number}")
    here.done("alice", "dm", "send", here.principal("bob"), "direct")
    back = here.done("bob", "channel", "tail", "team.offline", "--idle", "1.5")
    posts = [line for line in back if line["type"] == "message"]
    assert [line["parts"][0]["text"] for line in posts] == ["post 0", "post 1", "post 2"]
    assert all(line["marks"] == ["durable"] for line in posts)
    again = here.done("bob", "channel", "tail", "team.offline", "--replay", "--idle", "1.5")
    replayed = [line for line in again if line["type"] == "message"]
    assert [(line["parts"][0]["text"], line["historical"]) for line in replayed] == [
        (f"post {number}", True) for number in range(3)
    ]
    assert [line["parts"][0]["text"] for line in here.done("bob", "dm", "inbox", "--count", "1")] == ["direct"]
    assert here.done("bob", "dm", "inbox", "--idle", "1") == []
    assert "left" in here.run("bob", "channel", "leave", "team.offline").stdout
    here.done("alice", "channel", "send", "team.offline", "after")
    quiet = here.done("bob", "channel", "tail", "team.offline", "--idle", "1.5")
    assert [line for line in quiet if line["type"] == "message"] == []


@pytest.mark.req("C4-17")
def test_a_list_tells_membership_apart_from_what_may_be_read(here: Terminal) -> None:
    assert here.run("bob", "channel", "join", "team.listed").returncode == 0
    listed = {line["channel"]: line for line in here.done("bob", "channel", "list")}
    assert (listed["team.listed"]["member"], listed["team.listed"]["readable"]) == (True, True)
    assert (listed["bob-only"]["member"], listed["bob-only"]["readable"], listed["bob-only"]["postable"]) == (
        False,
        True,
        True,
    )
    assert listed["team.>"]["class"] is None
    (shown,) = here.done("alice", "channel", "show", "bob-only")
    assert (shown["class"], shown["readable"], shown["postable"]) == ("durable", False, False)
    text = here.run("bob", "channel", "list").stdout.splitlines()
    assert text[0].split() == ["CHANNEL", "CLASS", "REPLAY", "MEMBER", "READ", "POST", "DESCRIPTION"]


@pytest.mark.req("CB-61", "CD-11")
def test_an_observer_sees_posts_and_joins_nothing(here: Terminal) -> None:
    here.done("alice", "channel", "send", "team.seen", "before")
    with here.follow("observer", "channel", "tail", "team.>", "--since", "1h") as observer:
        assert observer.message("before")["marks"] == ["history"]
        here.done("alice", "channel", "send", "general", "not asked for")
        here.done("alice", "channel", "send", "team.seen", "after")
        assert observer.message("after")["marks"] == []
        assert observer.stop() == 0
        assert "not asked for" not in observer.texts
        ids = [line["id"] for line in observer.seen if line["type"] == "message"]
        assert len(ids) == len(set(ids))
    refused = here.run("observer", "dm", "inbox")
    assert (refused.returncode, "use the creds of an agent" in refused.stderr) == (1, True)


def test_history_shows_what_is_stored(here: Terminal) -> None:
    for number in range(4):
        here.done("alice", "channel", "send", "team.told", f"told {number}")
    for who in ("bob", "observer"):
        found = here.done(who, "channel", "history", "team.told", "--limit", "3")
        assert [line["parts"][0]["text"] for line in found] == ["told 1", "told 2", "told 3"]
        later = here.done(who, "channel", "history", "team.told", "--after", str(found[1]["sequence"]), "--since", "1h")
        assert [line["parts"][0]["text"] for line in later] == ["told 3"]


@pytest.mark.req("C7-02", "C7-04", "C7-05", "C4-06")
def test_an_operator_says_what_is_in_force(here: Terminal) -> None:
    def change(*words: str) -> list[str]:
        done = sidecar("channel", "set", *words, "--dev", str(here.running.directory), "--space", here.space)
        return [str(done.returncode), done.stdout, done.stderr]

    code, out, _ = change("team.set", "--class", "live", "--window", "24h", "--description", "For the set")
    assert code == "0"
    assert out.splitlines()[0] == "before  -"
    assert 'class "live"' in out.splitlines()[1]
    assert out.splitlines()[2] == "so now  class live, replay on, window 86400 s"
    (shown,) = here.done("alice", "channel", "show", "team.set")
    assert (shown["class"], shown["window_seconds"], shown["description"]) == ("live", 86_400, "For the set")
    live = here.run("bob", "channel", "join", "team.set")
    assert (live.returncode, live.stdout) == (1, "team.set: joined live\n")
    for words, said in (
        (("team.set", "--window", "24 h"), "replayWindow is no whole number"),
        (("team.set", "--window", "1w"), "replayWindow is no whole number"),
        (("team.set", "--description", "x" * 201), "description has more than 200 characters"),
        (("team.set", "--instructions", "x" * 2001), "instructions has more than 2000 characters"),
        (("--defaults", "--description", "x"), "the defaults of a space have no description"),
        (("team.>", "--class", "live"), ""),
        (("team.set",), "say what to set"),
    ):
        code, out, err = change(*words)
        assert (code, out) == ("2", ""), (words, err)
        assert said in err
        assert len(err.splitlines()) == 1
    assert change("team.set", "--unset", "window", "--class", "durable")[1].splitlines()[2] == (
        "so now  class durable, replay on, window all that is kept"
    )
    assert change("team.set", "--remove")[1].splitlines()[1] == "after   -"


def test_a_plane_is_asked(here: Terminal) -> None:
    (found,) = here.done("alice", "liveness")
    assert (found["plane"], found["verdict"]) == ("delivery", "bound")
    manager = here.run("alice", "liveness", "manager")
    assert (manager.returncode, manager.stdout) == (1, "manager: unbound (nobody listens)\n")


def test_who_comes_and_goes_is_told(here: Terminal) -> None:
    with here.follow("observer", "peers", "--watch") as watch:
        watch.notice("watching")
        with here.follow("bob", "dm", "inbox", "--name", "Bob's desk"):
            came = watch.until(lambda line: line["type"] == "joined")
            assert (came["name"], came["principal"]) == ("Bob's desk", here.principal("bob"))
        watch.process.send_signal(signal.SIGINT)
        assert watch.ended() == 0


def test_silence_of_a_plane_that_hangs_is_no_empty_inbox(running: DevSet) -> None:
    here = Terminal(running, "guarded")
    here.done("bob", "dm", "inbox", "--idle", "1")
    plane = running.ready["delivery"]["pid"]
    os.kill(plane, signal.SIGSTOP)
    try:
        here.done("alice", "dm", "send", here.principal("bob"), "it waits")
        silent = here.run("bob", "dm", "inbox", "--idle", "0.5")
        assert (silent.returncode, silent.stdout) == (3, "")
        assert "sidecar liveness" in silent.stderr
    finally:
        os.kill(plane, signal.SIGCONT)
    assert [line["parts"][0]["text"] for line in here.done("bob", "dm", "inbox", "--count", "1")] == ["it waits"]
