"""Contracts of the delivery endpoint: digests, and that schema and check say the same."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.rails.endpoint import contracts
from sidecar.rails.endpoint.contracts import DELIVERY, Contract, closure_digest, digest, document
from sidecar.rails.endpoint.shapes import VOID, array, by_word, closed, mapping, nullable, text, texts, whole
from sidecar.rails.endpoint.slots import Slots
from sidecar.rails.envelopes.shapes import TEXT, Shape, constant
from sidecar.rails.names import InvalidName
from sidecar.rails.space.matrix import DELIVERY_COMMANDS, READ_COMMANDS
from tests.oracles.json_schema import Schema

FRAME: dict[str, Any] = {
    "subject": "cotal.main.inst.local.alice.local.bob",
    "data": "aGk=",
    "headers": {"Nats-Msg-Id": "m1"},
    "sequence": 1,
    "delivered": 1,
    "pending": 0,
    "timeMs": 1,
}
REF = {"id": "local.bob", "name": "bob"}
FITS: dict[str, tuple[list[Any], list[Any]]] = {
    "durable-join": (
        [{"channel": "general", "joinCursor": 0}],
        [{"durable": True, "generation": 1}, {"durable": False, "reason": "evicted"}],
    ),
    "durable-leave": (
        [{"channel": "a.>", "generation": 1}],
        [{"channel": "a.>"}, {"channel": "a", "alreadyLeft": True}],
    ),
    "list-memberships": ([None], [{"memberships": [{"channel": "a", "generation": 1, "activated": True}]}]),
    "lifecycle-memberships": ([{"lifecycle": "local.bob." + "b2" * 13}], [{"memberships": []}]),
    "anycast-status": (
        [{"seq": 1}, {"seq": 1, "id": "m1"}],
        [
            {"state": "waiting", "seq": 1, "role": "r"},
            {"state": "taken", "seq": 1, "role": "r", "taker": REF, "at": 1, "previous": REF},
            {"state": "cancelled", "seq": 1, "role": "r", "removal": "already-gone"},
            {"state": "unknown", "seq": 1},
        ],
    ),
    "anycast-cancel": ([{"seq": 1}], [{"state": "unknown", "seq": 1}]),
    "anycast-takes": ([None], [{"takes": True}]),
    "fetch": ([{"source": "dm", "batch": 64, "waitMs": 25_000}], [{"frames": [FRAME, {**FRAME, "token": "1.2.3"}]}]),
    "settle": (
        [{"source": "role", "role": "r", "items": [{"token": "1.2", "how": "nak", "delayMs": 5}]}],
        [{"settled": [True, False]}],
    ),
    "read-history": (
        [{"channel": "a", "limit": 0}, {"channel": "a", "limit": 256, "after": 1, "upTo": 2, "sinceMs": 3}],
        [{"frames": [{**FRAME, "data": "", "omitted": 9}], "frontier": 1, "complete": True}],
    ),
    "read-registry": (
        [{}, {"after": "k"}],
        [
            {"defaults": None, "channels": [{"channel": "a", "config": {}}]},
            {"defaults": {}, "channels": [], "next": "k"},
        ],
    ),
    "read-roster": ([{}], [{"entries": [{"key": "k", "value": "e30=", "revision": 1, "timeMs": 1}], "next": "k"}]),
    "task-epoch": ([None], [{"epoch": "2026-01-01T00:00:00Z"}]),
    "lease-holder": ([None], [{"holder": "local.daemon"}, {}]),
}
ODD: tuple[Any, ...] = (None, True, 0, -1, "", "x" * 9_000, [], [1], {}, {"": 1}, {"id": "x"}, 2**53)


@pytest.mark.req("C13.7-26", "C13.7-27", "C13.7-28", "C13.7-30")
def test_digests_are_those_of_the_vectors() -> None:
    assert digest({"type": "null"}) == "sha256:bcde375ebd4cbacf651311181173836b169d5a360c6ac158c6a2cdaf49be3f61"
    void = "sha256:1db0472aaee8e6b9d8d3d430ee021a1b6efc559ab7c0b99186898c972c53dd2d"
    assert closure_digest(document(VOID)) == void
    echo: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "additionalProperties": False,
        "properties": {"at": {"minimum": 0, "type": "integer"}, "text": {"type": "string"}},
        "required": ["text", "at"],
        "type": "object",
    }
    assert digest(echo) == "sha256:56f73cb56522af47ce6b5c1c44eaac9ce366a7d72d0b4a164c8de119359cb62e"
    assert closure_digest(echo) == "sha256:84edcc84c2124c953c9cfaba78a70c42e5e86203d1d2bf606ffc460618ed5fcf"
    assert DELIVERY["list-memberships"].input_digest == void
    assert Contract("x", VOID, VOID).output_digest == void


@pytest.mark.req("C13.2-08", "C13.2-07")
def test_reserved_and_malformed_commands_have_no_contract() -> None:
    for name in ("describe", "cancel"):
        with pytest.raises(ValueError, match="reserved"):
            Contract(name, VOID, VOID)
    for name in ("Foo", "a.b", "x" * 33, ""):
        with pytest.raises(InvalidName):
            Contract(name, VOID, VOID)


def test_every_command_that_a_grant_names_has_a_contract() -> None:
    assert {*DELIVERY_COMMANDS, *READ_COMMANDS} | {"lifecycle-memberships"} == set(DELIVERY)
    assert [one.command for one in DELIVERY.values() if one.waits] == ["fetch"]
    assert set(FITS) == set(DELIVERY)


def spoilt(value: Any) -> list[Any]:
    """The value with one thing changed, everywhere."""
    found = [odd for odd in ODD if type(odd) is not type(value)]
    if isinstance(value, dict):
        found += [{**value, "whatever": 1}, *({k: v for k, v in value.items() if k != name} for name in value)]
        found += [{**value, name: odd} for name, member in value.items() for odd in spoilt(member)]
    elif isinstance(value, list):
        found += [[*value[:at], odd, *value[at + 1 :]] for at, one in enumerate(value) for odd in spoilt(one)]
        found += [value * 5_000]
    elif isinstance(value, str):
        found += [value * 9_000, "", "\n", "ä"]
    elif isinstance(value, int) and not isinstance(value, bool):
        found += [-1, 2**53, 10**30]
    return found


@pytest.mark.req("C13.7-25")
@pytest.mark.parametrize("command", DELIVERY)
def test_schema_and_check_agree(command: str) -> None:
    contract = DELIVERY[command]
    for shape, good in zip((contract.input, contract.output), FITS[command], strict=True):
        schema = Schema(document(shape))
        for value in good:
            assert shape.check(value) is None
            assert schema.accepts(value)
            wrong = 0
            for one in spoilt(value):
                accepted = shape.check(one) is None
                assert accepted == schema.accepts(one), one
                wrong += not accepted
            assert wrong


@pytest.mark.parametrize(
    ("shape", "good", "bad"),
    [
        (text(3, 1), ["a", "äöü"], ["", "abcd", 1, None]),
        (whole(1, 3), [1, 3], [0, 4, True, "1", 1.5]),
        (array(TEXT, 2, 1), [["a"], ["a", "b"]], [[], ["a"] * 3, [1], {}, None]),
        (closed({"a": TEXT}, {"b": TEXT}), [{"a": ""}, {"a": "", "b": ""}], [{}, {"a": 1}, {"a": "", "c": ""}, []]),
        (closed({}), [{}], [{"a": 1}, None]),
        (texts(1, 2), [{}, {"a": "bc"}], [{"a": "bcd"}, {"a": 1}, {"a": "", "b": ""}, []]),
        (nullable(TEXT), [None, ""], [1]),
        (mapping(1), [{}, {"a": [1]}], [{"a": 1, "b": 2}, []]),
        (by_word("t", {"x": closed({"t": constant("x")})}), [{"t": "x"}], [{"t": "y"}, {}, {"t": "x", "a": 1}, []]),
    ],
)
def test_shapes_and_their_schemas(shape: Shape, good: list[Any], bad: list[Any]) -> None:
    schema = Schema(shape.schema)
    for value in good:
        assert (shape.check(value), schema.accepts(value)) == (None, True)
    for value in bad:
        assert shape.check(value) is not None
        assert not schema.accepts(value)


def test_a_whole_number_is_written_without_a_fraction() -> None:
    assert whole().check(1.0) is not None


def test_places_are_counted_in_all_and_for_each_caller() -> None:
    one, two, three = "local.one.x", "local.two.x", "local.three.x"
    slots = Slots(3, 2)
    assert [slots.take(one) for _ in range(3)] == [True, True, False]
    assert [slots.take(two), slots.take(three)] == [True, False]
    slots.give_back(one)
    assert [slots.take(three), slots.take(one)] == [True, False]
    for caller in (one, two, three):
        slots.give_back(caller)
    assert slots.used == 0
    assert slots._by_caller == {}
    assert contracts.MAX_BATCH == 64
