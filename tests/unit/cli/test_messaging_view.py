"""What a terminal and a program are shown of messages: everything, and nothing that moves a cursor."""

from __future__ import annotations

import json

import pytest

from sidecar.app.conversation import Said, Told
from sidecar.cli.messaging_view import MAX_TEXT, document_of, lines_of, show, table
from sidecar.rails.envelopes.message import (
    ArtifactPart,
    DataPart,
    EndpointRef,
    ExtensionPart,
    Message,
    OddPart,
    Part,
    TextPart,
)
from sidecar.rails.envelopes.receive import Meta
from sidecar.rails.messaging.desk import Via

SENDER = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa.alice"


def said(
    *parts: Part,
    name: str = "alice",
    kind: str = "channel",
    ways: tuple[Via, ...] = (Via.LIVE,),
    mentioned: bool = False,
    mismatched: bool = False,
    ts: float = 0,
) -> Said:
    message = Message("m1", ts, "main", EndpointRef(SENDER, name), parts or (TextPart("hi"),), channel="general")
    historical = ways[0] is Via.HISTORY
    return Said(message, Meta(kind, "main", SENDER, "general", historical, mismatched), ways, mentioned)


def shown(one: Said, *, ids: bool = False) -> list[str]:
    lines = list(lines_of(one, ids=ids))
    assert all(line.isprintable() for line in lines)
    return lines


@pytest.mark.parametrize(
    ("ways", "marks"),
    [
        ((Via.LIVE,), ()),
        ((Via.LIVE, Via.BACKSTOP), ()),
        ((Via.HISTORY,), ("history",)),
        ((Via.BACKSTOP,), ("durable",)),
        ((Via.HISTORY, Via.BACKSTOP), ("history", "durable")),
        ((Via.HISTORY, Via.LIVE), ()),
    ],
)
def test_marks_say_what_did_not_come_live(ways: tuple[Via, ...], marks: tuple[str, ...]) -> None:
    assert said(ways=ways).marks == marks
    assert said(ways=ways, mentioned=True, mismatched=True).marks == (*marks, "mention", "mismatch")
    assert said(ways=(Via.DURABLE,), kind="dm").marks == ()


def test_each_kind_of_part_has_its_lines() -> None:
    assert shown(said(TextPart("one\ntwo")))[0].endswith("#general alice: one")
    assert shown(said(TextPart("one\ntwo")))[1].strip() == "two"
    assert shown(said(DataPart({"a": [1, "ü"]})))[0].endswith(': {"a": [1, "ü"]}')
    artifact = ArtifactPart("log\x1b", "text/plain", "sha256:00", 7)
    assert shown(said(artifact))[0].endswith("artifact log\\x1b (text/plain, 7 bytes claimed) sha256:00")
    assert shown(said(ExtensionPart("com.example.x", {"v": 1})))[0].endswith('com.example.x {"v": 1}')
    assert shown(said(OddPart("te\x07xt", {})))[0].endswith("te\\x07xt {}")
    assert shown(said(TextPart("x" * (MAX_TEXT + 5))))[1].strip() == "(5 characters more; --json shows all)"
    assert shown(said(TextPart("")))[0].endswith("#general alice: ")


@pytest.mark.parametrize("text", ["\x1b[2J", "\u202e", "\x9b", "\r", "\x00", "\u2028", "\ud800"])
def test_nothing_that_is_not_printable_reaches_a_terminal(text: str) -> None:
    for one in (said(TextPart(text + "x")), said(name=text + "x"), said(DataPart(text + "x"))):
        assert text not in "".join(shown(one, ids=True))


def test_a_name_that_is_not_the_actors_shows_the_actor() -> None:
    assert shown(said(name="bob"))[0].endswith("#general bob (alice): hi")
    assert shown(said(name=""))[0].endswith("#general (no name) (alice): hi")
    assert shown(said(), ids=True)[1].strip() == f"from {SENDER}, id m1"


@pytest.mark.parametrize("ts", [float("nan"), float("inf"), 1e300, -1e300])
def test_a_time_that_is_none_hides_no_message(ts: float) -> None:
    assert shown(said(ts=ts))[0].startswith("--:--:-- #general")


def test_programs_get_everything_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    show(said(TextPart("a\nb\x1b"), ways=(Via.HISTORY,)), as_json=True)
    show(Told("joined", "general: joined durable", {"channel": "general"}), as_json=True)
    out, err = capsys.readouterr()
    first, second = (json.loads(line) for line in out.splitlines())
    assert err == ""
    assert "\x1b" not in out
    assert (first["parts"], first["ways"], first["historical"]) == (
        [{"text": "a\nb\x1b", "kind": "text"}],
        ["history"],
        True,
    )
    assert second == {"type": "notice", "event": "joined", "text": "general: joined durable", "channel": "general"}
    assert document_of(said(ExtensionPart("com.example.x", {"v": 1})))["parts"] == [{"kind": "com.example.x", "v": 1}]


def test_notices_do_not_mix_with_messages(capsys: pytest.CaptureFixture[str]) -> None:
    show(Told("gap", "posts may be\nmissing\x1b"), as_json=False)
    show(said(), as_json=False)
    out, err = capsys.readouterr()
    assert err == "-- posts may be missing\\x1b\n"
    assert out.endswith("#general alice: hi\n")


def test_a_table_is_safe_too() -> None:
    assert table([("A", "B"), ("long", "x\x1b")]) == "A     B\nlong  x\\x1b"
