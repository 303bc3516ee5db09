"""Presence records: what is written, and for what a reader drops one."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import orjson
import pytest

import sidecar
from sidecar.base.strictjson import JsonError, parse
from sidecar.rails.envelopes.errors import EnvelopeError
from sidecar.rails.envelopes.presence import (
    MAX_RECORD,
    Card,
    Presence,
    ReportedCondition,
    Runtime,
    Skill,
    decode_presence,
    encode_presence,
    read_presence,
)
from sidecar.rails.envelopes.schema import PRESENCE, Attention, ChannelMode, EndpointKind, Status
from tests.unit.rails.envelopes.samples import ALICE, BOB, OWNER_A

CARD: dict[str, Any] = {"id": ALICE, "name": "alice", "kind": "agent"}
NONE: Any = None
BOT: Any = "bot"
RECORD: dict[str, Any] = {"card": CARD, "status": "idle", "ts": 1710000000000}
SMALL = Presence(Card(ALICE, "alice", EndpointKind.AGENT), Status.IDLE, 1710000000000)
FULL = Presence(
    Card(
        ALICE,
        "alice",
        EndpointKind.AGENT,
        role="planner",
        description="plans",
        tags=("a", "b"),
        skills=(Skill("s1", "one"), Skill("s2", "two", "more")),
        meta={"model": "m", "com.acme.region": {"x": 1}},
        protocol_version="0.4",
    ),
    Status.WORKING,
    1710000000000,
    condition=ReportedCondition("rate_limit", "429", "slow down", 5),
    environment="opaque:1",
    activity="reviewing",
    status_since=1,
    activity_since=2,
    active_at=3,
    attention=Attention.DND,
    lifecycle_uid="a" * 26,
    runtime=Runtime("r-1", 4),
    channel_modes={"general": ChannelMode.MUTED},
)


def record(**changes: Any) -> dict[str, Any]:
    return {name: value for name, value in {**RECORD, **changes}.items() if value is not ...}


def card(**changes: Any) -> dict[str, Any]:
    return record(card={name: value for name, value in {**CARD, **changes}.items() if value is not ...})


def dropped(value: Any, key: str = ALICE) -> str:
    with pytest.raises(EnvelopeError) as error:
        read_presence(key, value)
    return error.value.field


@pytest.mark.req("C6-02", "C6-03", "C6-23", "C6-25")
@pytest.mark.parametrize("presence", [SMALL, FULL])
def test_a_record_that_is_written_is_read_as_it_was(presence: Presence) -> None:
    data = encode_presence(presence)
    assert PRESENCE.check(json.loads(data)) is None
    assert decode_presence(ALICE, data) == presence


@pytest.mark.req("C6-20", "C6-26", "CS-01")
def test_the_members_of_a_record() -> None:
    sent = json.loads(encode_presence(FULL))
    assert set(sent) == {
        *("card", "status", "ts", "condition", "environment", "activity", "statusSince", "activitySince", "activeAt"),
        *("attention", "lifecycleUid", "runtime", "channelModes"),
    }
    assert (sent["card"]["owner"], sent["card"]["actor"]) == (OWNER_A, "alice")
    assert sent["card"]["protocolVersion"] == "0.4"
    assert sent["runtime"] == {"id": "r-1", "startedAt": 4, "source": "endpoint-process"}
    assert set(json.loads(encode_presence(SMALL))) == {"card", "status", "ts"}


@pytest.mark.req("C6-02", "C6-03", "C6-08", "C6-18", "C6-23", "C6-24", "C6-27", "C6-49")
@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"card": SMALL.card._replace(id="alice")}, "card.id"),
        ({"card": SMALL.card._replace(name="n" * 129)}, "card.name"),
        ({"card": Card(ALICE, NONE)}, "card.name"),
        ({"card": Card(ALICE, "alice", BOT)}, "card.kind"),
        ({"card": SMALL.card._replace(meta={"x": float("nan")})}, "card.meta.x"),
        ({"card": SMALL.card._replace(tags=("a", NONE))}, "card.tags[1]"),
        ({"card": SMALL.card._replace(meta={"model": 5})}, "card.meta.model"),
        ({"card": SMALL.card._replace(meta={"repo": {"url": "x"}})}, "card.meta.repo"),
        ({"card": SMALL.card._replace(meta={"terminal": "tty"})}, "card.meta.terminal"),
        ({"card": SMALL.card._replace(meta={"region": "north"})}, "card.meta"),
        ({"card": SMALL.card._replace(meta={"com.acme.": "x"})}, "card.meta"),
        ({"status": "busy"}, "status"),
        ({"ts": 1.5}, "ts"),
        ({"ts": -1}, "ts"),
        ({"ts": None}, "ts"),
        ({"ts": float("inf")}, "ts"),
        ({"ts": 2**53}, "ts"),
        ({"status": Status.OFFLINE, "status_since": 5}, "statusSince"),
        ({"condition": ReportedCondition("tired")}, "condition.code"),
        ({"runtime": Runtime("r", 1, "another")}, "runtime.source"),
        ({"attention": "away"}, "attention"),
        ({"channel_modes": {"general": "loud"}}, "channelModes"),
        ({"activity": 5}, "activity"),
    ],
)
def test_what_is_not_written(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(EnvelopeError) as error:
        encode_presence(SMALL._replace(**changes))
    assert error.value.field == field


@pytest.mark.req("C6-27", "C11-16", "C11-17")
def test_reserved_keys_of_meta_are_flat_strings_and_others_have_a_domain() -> None:
    names = ("connector", "model", "provider", "host", "cwd", "repo", "branch", "head", "sessionKind", "sessionId")
    meta: dict[str, Any] = {**dict.fromkeys(names, "x"), "terminal": "stream", "com.acme.region": {"any": ["thing"]}}
    card = SMALL.card._replace(meta=meta)
    assert json.loads(encode_presence(SMALL._replace(card=card)))["card"]["meta"] == meta
    encode_presence(SMALL._replace(card=SMALL.card._replace(meta={"terminal": "none"})))


@pytest.mark.req("C6-27", "C6-14")
def test_nothing_but_envelopes_reads_meta_or_the_lifecycle_of_a_record() -> None:
    """They are for a person to look at: no decision may hang on what somebody says of itself."""
    root = Path(sidecar.__file__).parent
    for path in sorted(root.rglob("*.py")):
        if path.parent.name in ("envelopes", "cli"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                of = ast.unparse(node.value).rpartition(".")[2]
                assert (of, node.attr) != ("card", "meta"), path
                assert (of, node.attr) != ("presence", "lifecycle_uid"), path


@pytest.mark.req("C6-08", "C6-24")
def test_what_may_just_be_written() -> None:
    encode_presence(SMALL._replace(status=Status.OFFLINE))
    encode_presence(SMALL._replace(card=SMALL.card._replace(name="n" * 128)))
    encode_presence(SMALL._replace(ts=0))


@pytest.mark.req("C6-37")
def test_the_key_is_the_id() -> None:
    assert read_presence(ALICE, record()).card.id == ALICE
    assert dropped(record(), BOB) == "card.id"
    for odd in (..., None, 5, [ALICE], ALICE.upper()):
        assert dropped(card(id=odd)) == "card.id"
    for odd in (..., None, "card", []):
        assert dropped(record(card=odd)) == "card.id"
    wholes: tuple[Any, ...] = (None, [], "x", 5)
    for whole in wholes:
        assert dropped(whole) == "card.id"


@pytest.mark.req("C6-38")
@pytest.mark.parametrize("name", [..., None, {}, 5, ["alice"]])
def test_the_name_is_a_string(name: object) -> None:
    assert dropped(card(name=name)) == "card.name"


@pytest.mark.req("C6-39", "C6-03")
@pytest.mark.parametrize("status", [..., None, 3, "busy", "Idle", {}, ["idle"], True])
def test_the_status_is_one_of_four(status: object) -> None:
    assert dropped(record(status=status)) == "status"


@pytest.mark.req("C6-40")
@pytest.mark.parametrize("ts", [..., None, "nope", True, {}, [1]])
def test_the_time_is_a_number(ts: object) -> None:
    assert dropped(record(ts=ts)) == "ts"


@pytest.mark.req("C6-40")
@pytest.mark.parametrize("text", [b"NaN", b"Infinity", b"1e999", b"-1e999"])
def test_the_time_is_finite(text: bytes) -> None:
    with pytest.raises(JsonError):
        decode_presence(ALICE, orjson.dumps(record()).replace(b"1710000000000", text))


@pytest.mark.req("C6-41")
@pytest.mark.parametrize("odd", [None, 5, {"toString": None}, [], True])
def test_texts_that_are_printed_are_strings(odd: object) -> None:
    assert dropped(card(role=odd)) == "card.role"
    assert dropped(record(activity=odd)) == "activity"
    assert dropped(record(attention=odd)) == "attention"


@pytest.mark.req("C6-42")
@pytest.mark.parametrize("condition", [None, "failed", {}, {"code": None}, {"code": 5}, [], {"source": "x"}])
def test_a_condition_has_a_code(condition: object) -> None:
    assert dropped(record(condition=condition)) == "condition"


@pytest.mark.req("C6-42", "C6-04")
def test_an_unknown_code_stays_and_none_is_made_up() -> None:
    assert read_presence(ALICE, record(condition={"code": "tired", "since": "x"})).condition == ReportedCondition(
        "tired"
    )
    assert read_presence(ALICE, record()).condition is None


def test_an_unknown_attention_receives_everything() -> None:
    assert read_presence(ALICE, record(attention="away")).attention is Attention.OPEN
    assert read_presence(ALICE, record(attention="focus")).attention is Attention.FOCUS
    assert read_presence(ALICE, record()).attention is None


@pytest.mark.req("C6-18")
def test_an_unknown_source_of_the_runtime_is_no_reason_to_drop() -> None:
    runtime = read_presence(ALICE, record(runtime={"id": "r", "startedAt": 1, "source": "vm", "pid": 1})).runtime
    assert runtime == Runtime("r", 1, "vm")
    assert not runtime.supported
    assert Runtime("r", 1).supported
    for odd in (None, 5, {}, {"id": "r", "startedAt": 1}, {"id": 1, "startedAt": 1, "source": "vm"}):
        assert read_presence(ALICE, record(runtime=odd)).runtime is None


@pytest.mark.req("C6-05", "C6-26", "C6-28", "C11-12")
def test_other_members_of_a_wrong_type_count_as_absent() -> None:
    odd = record(
        environment=5,
        statusSince="x",
        activitySince=None,
        activeAt=True,
        lifecycleUid=[],
        channelModes={"a": "loud", "b": "quiet", "c": 5},
        extra={},
        card={
            **CARD,
            "kind": "bot",
            "tags": ["a", 5],
            "skills": [{"id": "s"}, 5, {"id": "s", "name": "n"}],
            "meta": [],
        },
    )
    expected = SMALL._replace(
        card=SMALL.card._replace(kind=EndpointKind.ENDPOINT, tags=("a",), skills=(Skill("s", "n"),)),
        channel_modes={"b": ChannelMode.QUIET},
    )
    assert read_presence(ALICE, odd) == expected
    assert read_presence(ALICE, card(protocolVersion=4)).card.protocol_version is None
    # Half of the id is no second id.
    assert read_presence(ALICE, card(owner="other", actor="other")).card.id == ALICE


@pytest.mark.req("C6-05")
def test_the_environment_is_not_read() -> None:
    opaque = "\x00{'é😀\u2028'"
    assert decode_presence(ALICE, encode_presence(SMALL._replace(environment=opaque))).environment == opaque


def test_a_record_has_a_size() -> None:
    room = 262_144 - len(orjson.dumps(record(activity="")))
    assert decode_presence(ALICE, orjson.dumps(record(activity="x" * room))).activity == "x" * room
    with pytest.raises(JsonError, match="size"):
        decode_presence(ALICE, orjson.dumps(record(activity="x" * (room + 1))))


TAILS = (
    *(b'"ts":1710000000001}', b'"ts":7}', b'"ts":0}', b'"ts":01}', b'"ts":-1}', b'"ts":1.5}', b'"ts":1e3}', b'"ts":}'),
    *(b'"ts": 5}', b'"ts":5 }', b'"ts":5} ', b'"ts":5}}', b'"ts":5]', b'"ts":5', b'"ts":"5"}', b'"ts":null}'),
    *(b'"ts":123456789012345}', b'"ts":1234567890123456}', b'"ts":99999999999999999999}', b'"ts":\xd9\xa1}'),
    *(b'"x":{"ts":5}', b'"x":{"a":1,"ts":5}}', b'"x\\",\\"ts":5}', b'"x,"ts":5}', b'"x,\\"ts":5}', b'"x":[1,"ts":5}'),
    *(b'"ts":1,"ts":5}', b'"ts":5,"x":1}', b'"ts":5,"x":",\\"ts\\":6"}', b'"ts":5,"x\\",\\"ts":6}', b'"x":1}'),
    *(b'"ts":4,"x":{"a":1,"ts":5}}', b'"ts":4,"x\\"":0,"\\",\\"ts":5}', b'"ts":5,"pad":"%b","ts":6}' % (b"x" * 3_000)),
)


@pytest.mark.parametrize("tail", TAILS, ids=range(len(TAILS)))
@pytest.mark.req("C6-43")
def test_a_record_of_which_all_but_the_time_was_read_before_is_read_as_anew(tail: bytes) -> None:
    def told(read: Any) -> object:
        try:
            return read()
        except (EnvelopeError, JsonError) as error:
            return type(error), str(error)

    for card in (CARD, {**CARD, "id": BOB}, {**CARD, "role": 5}):
        data = b'{"card":%b,"status":"idle",%b' % (orjson.dumps(card), tail)
        expected = told(lambda data=data: read_presence(ALICE, parse(data, limit=MAX_RECORD)))
        for again in range(2):
            assert told(lambda data=data: decode_presence(ALICE, data)) == expected, again
        other = encode_presence(SMALL)
        assert decode_presence(ALICE, other) == SMALL
        assert decode_presence(ALICE, other.replace(b"1710000000000", b"1710000000002")).ts == 1710000000002
