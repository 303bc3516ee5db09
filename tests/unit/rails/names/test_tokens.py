"""Grammars: what is refused, what is sanitized, and every length at, below and above its bound (C2, C3, D5, D6)."""

from __future__ import annotations

import pytest

from sidecar.rails.names import InvalidName, tokens
from sidecar.rails.names.limits import MAX_CHANNEL
from sidecar.rails.names.tokens import GRAMMARS
from tests.unit.rails.names.samples import SAMPLES

BOUNDED = {
    "space": "s",
    "owner": "o",
    "actor": "a",
    "caller_owner": "o",
    "uid": "0",
    "instance": "z",
    "role": "r",
    "word": "w",
    "channel": "c",
    "member_channel": "c",
    "connection": "c",
    "nonce": "n",
    "id": "-",
    "endpoint": "e",
    "command": "c",
    "pool": "p",
    "grant": "g",
    "generation": "0",
    "hex": "f",
    "base32": "7",
    "hash": "9",
    "topic": "t",
    "epoch_token": "1",
    "meta_name": "b",
    "stream": "S",
    "consumer": "c",
    "bucket": "b",
    "key": "k",
    "filter": "f",
}


@pytest.mark.req("C13.2-09", "C13.2-11", "C13.2-12", "C13.2-17", "C2-17", "C3-15")
@pytest.mark.parametrize("name", BOUNDED)
def test_a_length_at_below_and_above_each_bound(name: str) -> None:
    grammar, unit = GRAMMARS[name], BOUNDED[name]
    for size in range(max(grammar.longest - 1, grammar.shortest), grammar.longest + 1):
        assert grammar.accepts(unit * size)
    for size in (0, grammar.shortest - 1, grammar.longest + 1, grammar.longest * 1000):
        assert not grammar.accepts(unit * size)
    assert grammar.accepts(unit * grammar.shortest)


@pytest.mark.req("C13.2-09", "C13.2-11", "C13.2-17", "C13.2-07", "C2-17")
def test_the_published_lengths() -> None:
    published = {
        **dict.fromkeys(("owner", "actor", "id", "endpoint"), (1, 64)),
        **dict.fromkeys(("command", "pool", "grant"), (1, 32)),
        **dict.fromkeys(("uid", "instance"), (26, 32)),
        "nonce": (22, 64),
        "connection": (8, 120),
        "channel": (1, 4096),
        "derived_owner": (28, 28),
        "generation": (32, 32),
        "hex": (64, 64),
    }
    assert {name: (GRAMMARS[name].shortest, GRAMMARS[name].longest) for name in published} == published


@pytest.mark.parametrize("name", GRAMMARS)
def test_every_grammar_refuses_what_is_no_text_and_what_has_a_line_end(name: str) -> None:
    grammar = GRAMMARS[name]
    for value in (None, b"abc", 1.0, True, ["a"], object()):
        assert not grammar.accepts(value)
    if name in SAMPLES:
        assert grammar.accepts(SAMPLES[name])
        for value in (SAMPLES[name] + "\n", "\n" + SAMPLES[name], SAMPLES[name] + "\0", SAMPLES[name] + " "):
            assert not grammar.accepts(value)


@pytest.mark.req("C13.2-13")
@pytest.mark.parametrize(
    "value",
    [
        "01",
        "-1",
        "+1",
        "1e3",
        "1_0",
        "",
        "1.0",
        "9007199254740992",
        "\u0661",
        -1,
        2**53,
        pytest.param(10**5000, id="huge"),
    ],
)
def test_numbers_that_are_none(value: object) -> None:
    assert not GRAMMARS["number"].accepts(value)


@pytest.mark.req("C13.2-13")
@pytest.mark.parametrize("value", ["0", "1", "10", "9007199254740991", "9007199254740990", 0, 2**53 - 1])
def test_numbers_of_the_wire(value: object) -> None:
    assert GRAMMARS["number"].check(value) == str(value)


@pytest.mark.req("C13.2-01", "C13.2-04")
def test_endpoint_names_and_their_wire_tokens() -> None:
    assert tokens.endpoint_token("com.acme-x.deploy") == "com_acme-x_deploy"
    for name in ("com.acme.deploy", "manager", "a", "a-b.c", "0.1", "x" * 64):
        assert tokens.endpoint_name(tokens.endpoint_token(name)) == name
    for name in ("a_b", "-a", "a-", "A", "a..b", "", ".a", "a.", "a.-b", "x" * 65):
        with pytest.raises(InvalidName):
            tokens.endpoint_token(name)
    for token in ("a__b", "_a", "a_", "a.b", "A", "", "x" * 65):
        with pytest.raises(InvalidName):
            tokens.endpoint_name(token)


@pytest.mark.req("C13.2-07", "C13.2-12")
def test_command_and_pool_words() -> None:
    for name in ("command", "pool"):
        for value in ("Foo", "a.b", "a_b", "c" * 33, ""):
            assert not GRAMMARS[name].accepts(value)


@pytest.mark.req("C3-02")
@pytest.mark.parametrize(
    ("name", "token"),
    [
        ("my space!", "my_space_"),
        ("  main\t", "main"),
        ("", "_"),
        (" \u3000\ufeff ", "_"),
        ("a.b/c*>", "a_b_c__"),
        ("ä", "_"),
        ("\U0001f600", "__"),
        ("\x1cmain\x85", "_main_"),
        ("Main-1_x", "Main-1_x"),
    ],
)
def test_a_space_name_is_sanitized(name: str, token: str) -> None:
    assert tokens.space_token(name) == token


def test_a_space_token_has_a_bound() -> None:
    assert tokens.space_token("s" * 64) == "s" * 64
    for name in ("s" * 65, "\U0001f600" * 33, "s" * 10_000):
        with pytest.raises(InvalidName):
            tokens.space_token(name)


@pytest.mark.req("C3-11", "C3-12")
@pytest.mark.parametrize(
    ("typed", "channel"),
    [
        ("team.backend", "team.backend"),
        ("Team A.back/end", "Team_A.back_end"),
        ("a*b", "a_b"),
        ("a>.b", "a_.b"),
        ("x. .y", "x._.y"),
        pytest.param("c" * MAX_CHANNEL, "c" * MAX_CHANNEL, id="longest"),
    ],
)
def test_a_publish_channel_is_sanitized_segment_by_segment(typed: str, channel: str) -> None:
    assert tokens.publish_channel(typed) == channel


@pytest.mark.req("C3-12", "C3-13", "C3-15")
@pytest.mark.parametrize(
    "typed",
    [
        "team.>",
        "team.*",
        ">",
        "*",
        "a.>.b",
        "",
        "a..b",
        ".a",
        "a.",
        pytest.param("c" * 4097, id="long"),
        pytest.param("\U0001f600" * 2049, id="astral"),
        None,
        7,
    ],
)
def test_a_publish_channel_is_concrete_whole_and_bounded(typed: object) -> None:
    with pytest.raises(InvalidName):
        tokens.publish_channel(typed)


@pytest.mark.req("C3-12", "C3-14", "C3-15")
def test_a_channel_that_is_joined_may_be_a_pattern() -> None:
    for pattern in ("team.>", "team.*", "*.backend", ">", "*", "a.*.b", "team.backend", "c" * 4096):
        assert tokens.subscribe_channel(pattern) == pattern
        assert tokens.policy_channel(pattern) == pattern
    assert tokens.subscribe_channel("Team A.*") == "Team_A.*"
    for pattern in ("a.>.b", ">.a", "a..b", "", ".", "c" * 4097):
        for read in (tokens.subscribe_channel, tokens.policy_channel):
            with pytest.raises(InvalidName):
                read(pattern)


@pytest.mark.req("C3-12")
@pytest.mark.parametrize("entry", ["Team A", "a*b", "a>", "team.b*", " team", "team.**", "ä", "a/b", 5, None])
def test_a_policy_entry_is_refused_and_never_sanitized(entry: object) -> None:
    with pytest.raises(InvalidName):
        tokens.policy_channel(entry)


@pytest.mark.req("C3-16")
@pytest.mark.parametrize("role", [" probe ", "pro.be", "", "*", ">", "r" * 65, "a b", None])
def test_a_role_is_never_sanitized(role: object) -> None:
    with pytest.raises(InvalidName):
        GRAMMARS["role"].check(role)


@pytest.mark.req("C3-18")
def test_a_role_pattern_is_a_role_or_a_star() -> None:
    assert GRAMMARS["role"].check_pattern("*") == "*"
    assert GRAMMARS["role"].check_pattern("code-review_2") == "code-review_2"
    for role in (">", "a*", "**", ""):
        with pytest.raises(InvalidName):
            GRAMMARS["role"].check_pattern(role)


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        (tokens.REPLAY_WINDOW, ["30s", "10m", "1h", "0d"], ["", "s", "1", "1w", "1.5h", "-1h", "1h ", "\u0661h"]),
        (tokens.ARTIFACT_DIGEST, ["sha256:" + "a0" * 32], ["a0" * 32, "sha256:" + "A0" * 32, "sha256:" + "a" * 63]),
        (tokens.EXTENSION_KIND, ["com.acme.note", "a.b"], ["text", "a..b", ".a", "a_b.c", "a.", ""]),
        (GRAMMARS["family"], ["team.>", "a.b.>"], [">", "team", "*.>", "team.*", "a.>.>", ".>"]),
    ],
)
def test_other_grammars(grammar: tokens.Grammar, good: list[str], bad: list[str]) -> None:
    assert all(grammar.accepts(value) for value in good)
    assert not any(grammar.accepts(value) for value in bad)


def test_the_epoch_of_a_stream_is_its_creation_time_without_marks() -> None:
    assert tokens.epoch_token("2026-10-19T08:15:30.123456789Z") == "20261019T081530123456789Z"
    with pytest.raises(InvalidName):
        tokens.epoch_token("::")


def test_an_error_names_the_grammar_and_shows_little_of_the_value() -> None:
    with pytest.raises(InvalidName) as caught:
        GRAMMARS["actor"].check("a-b\x1b[31m\n")
    assert caught.value.row == "C2-08"
    assert str(caught.value) == r"actor: 'a-b\x1b[31m\n' does not fit the grammar (C2-08)"
    for value in ("\u2603" * 1_000_000, "a." * 60, "x" * 64 + "-"):
        with pytest.raises(InvalidName) as caught:
            GRAMMARS["actor"].check(value)
        assert len(str(caught.value)) < 200
    assert isinstance(caught.value, ValueError)
