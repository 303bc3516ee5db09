"""One received message from its bytes to what is shown, beside orjson alone, and one message on its way out."""

from __future__ import annotations

import json
import random

import orjson
import pytest
import rfc8785

from cext.json_scan import check
from sidecar.base.strictjson import MAX_BYTES, MAX_DEPTH, JsonError, JsonValue, canonical, parse
from sidecar.rails.envelopes.message import Message, TextPart, encode, read_received
from sidecar.rails.envelopes.presence import decode_presence, encode_presence
from sidecar.rails.envelopes.receive import Received, Source, receive
from sidecar.rails.names.subjects import delivery_of
from tests.bench.measure import report
from tests.oracles import json_scan as oracle
from tests.oracles.json_schema import Schema
from tests.unit.rails.envelopes.samples import ALICE, MULTICAST
from tests.unit.rails.envelopes.test_presence import FULL
from tests.unit.rails.envelopes.test_schema import SCHEMA

SUBJECT = f"cotal.main.chat.{ALICE}.team.backend"
HEADERS = ("Nats-Msg-Id",)


def received(data: bytes) -> Received:
    return receive(data, delivery_of(SUBJECT), Source.LIVE, header_names=HEADERS)


def plain(data: bytes, schema: Schema) -> JsonValue:
    value: JsonValue = oracle.parse(data, limit=MAX_BYTES, depth=MAX_DEPTH, safe_integers=False)  # type: ignore[assignment]
    assert schema.accepts(value)
    return value


@pytest.mark.parametrize("size", [20, 2_000])
def test_received(capsys: pytest.CaptureFixture[str], size: int) -> None:
    data = encode(MULTICAST._replace(parts=(TextPart("word " * (size // 5)),)), max_payload=MAX_BYTES)
    value = parse(data)
    assert received(data).message == read_received(value)
    report(
        capsys,
        f"envelope: a post of {len(data)} bytes, from the frame to what is shown",
        {
            "receive": lambda: received(data),
            "plain Python, schema interpreted": lambda: plain(data, SCHEMA),
            "floor: orjson.loads": lambda: orjson.loads(data),
            "strict parse": lambda: parse(data),
            "strict scan": lambda: check(data, limit=MAX_BYTES, depth=MAX_DEPTH, safe_integers=False),
            "check of the shape, and values": lambda: read_received(value),
            "json.loads": lambda: json.loads(data),
        },
    )


def test_sent(capsys: pytest.CaptureFixture[str]) -> None:
    def build() -> Message:
        return MULTICAST._replace(mentions=("Bob",))

    document = orjson.loads(encode(MULTICAST, max_payload=MAX_BYTES))
    report(
        capsys,
        "envelope: the same post on its way out",
        {
            "encode": lambda: encode(build(), max_payload=MAX_BYTES),
            "floor: orjson.dumps": lambda: orjson.dumps(document),
            "json.dumps": lambda: json.dumps(document).encode(),
        },
    )


def test_presence(capsys: pytest.CaptureFixture[str]) -> None:
    data = encode_presence(FULL)
    report(
        capsys,
        f"envelope: a presence record of {len(data)} bytes with every member",
        {
            "decode_presence": lambda: decode_presence(ALICE, data),
            "floor: orjson.loads": lambda: orjson.loads(data),
            "encode_presence": lambda: encode_presence(FULL),
        },
    )


def test_canonical(capsys: pytest.CaptureFixture[str]) -> None:
    value: JsonValue = orjson.loads(encode(MULTICAST, max_payload=MAX_BYTES))
    odd: JsonValue = {"é": value, "f": 0.5}
    report(
        capsys,
        "canonical JSON of a post",
        {
            "canonical": lambda: canonical(value),
            "plain Python: rfc8785": lambda: rfc8785.dumps(value),
            "floor: orjson, sorted, unchecked": lambda: orjson.dumps(value, option=orjson.OPT_SORT_KEYS),
            "canonical, with a float and a name that is not ASCII": lambda: canonical(odd),
        },
    )


def test_hostile_text(capsys: pytest.CaptureFixture[str]) -> None:
    names = random.Random(1).sample(range(10**6), 60_000)
    data = b"{" + b",".join(b'"%d":0' % name for name in names) + b',"x":0,"x":0}'

    def scan() -> None:
        with pytest.raises(JsonError):
            check(data, limit=MAX_BYTES, depth=MAX_DEPTH, safe_integers=False)

    report(
        capsys,
        f"strict scan of 60,000 names, the last one twice, {len(data)} bytes",
        {"cext.json_scan": scan, "floor: orjson.loads": lambda: orjson.loads(data)},
    )
