"""What is fuzzed. A target draws one case and raises when the product and its oracle do not agree."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import orjson

from cext import credit, digest, frame, json_scan, tlv
from sidecar.coordinator.explain import explain, text_of
from sidecar.coordinator.wire.errors import CapabilityRequired, ProtocolError
from sidecar.coordinator.wire.frames import FRAMES, CoordCommand, decode_frame
from sidecar.coordinator.wire.payloads import decode_command
from tests.fuzz.contract_targets import closures, contracts
from tests.fuzz.mutate import mutated
from tests.oracles import credit as plain_credit
from tests.oracles import digest as plain_digest
from tests.oracles import frame as plain_frame
from tests.oracles import json_scan as plain_json
from tests.oracles import tlv as plain_tlv
from tests.oracles import wire as plain_wire
from tests.unit.wire.samples import FRAME_SAMPLES

T = TypeVar("T")
U64 = 2**64 - 1
MESSAGES = [sample.encode() for sample in FRAME_SAMPLES.values()]


def attempt(call: Callable[[], T], *refusals: type[Exception]) -> tuple[T | None, tuple[object, ...] | None]:
    """(result, None), or (None, name and arguments of the refusal): what the product and its oracle must share."""
    try:
        return call(), None
    except refusals as error:
        return None, (type(error).__name__, *error.args)


def shuffled(draw: random.Random, body: bytes) -> bytes:
    """The body with its fields moved, dropped, doubled, or joined by unknown ones."""
    fields = plain_wire.split(body)
    for _ in range(draw.randrange(3)):
        step = draw.randrange(4)
        if step == 0:
            draw.shuffle(fields)
        elif step == 1 and fields:
            fields.pop(draw.randrange(len(fields)))
        elif step == 2 and fields:
            fields.append(draw.choice(fields))
        else:
            fields.append((draw.choice([30, 127, 128, 255, 256, 16384, 2**32 - 1]), draw.randbytes(draw.randrange(9))))
    return plain_wire.join(fields)


def wire(draw: random.Random) -> None:
    """Every frame type: accepted and refused bodies are those of the oracle, and nothing else is raised."""
    message = draw.choice(MESSAGES)
    frame_type = message[4] if draw.random() < 0.9 else draw.choice(list(FRAMES))
    body = mutated(draw, shuffled(draw, message[5:]) if draw.random() < 0.5 else message[5:], 2)
    expected, unexpected = attempt(lambda: plain_wire.decode(frame_type, body), plain_wire.Refused)
    decoded, refusal = attempt(lambda: decode_frame(frame_type, body), ProtocolError)
    assert (refusal is None) == (unexpected is None), body.hex()
    if decoded is not None:
        assert plain_wire.decode(frame_type, decoded.encode()[5:]) == expected, body.hex()


def explained(draw: random.Random) -> None:
    """What people are told of a frame: the verdict of the decoder, and for every bad one a place and a row."""
    message = draw.choice(MESSAGES)
    frame_type = message[4] if draw.random() < 0.9 else draw.choice(list(FRAMES))
    body = mutated(draw, shuffled(draw, message[5:]) if draw.random() < 0.5 else message[5:], 2)
    data = frame.encode_frame(frame_type, body)
    _, refusal = attempt(lambda: _decoded(frame_type, body), ProtocolError)
    (found,) = explain(data)
    assert (found.fault is None) == (refusal is None), (data.hex(), found.fault, refusal)
    assert found.fault is None or (0 <= found.fault.offset <= len(data) and found.fault.row)
    assert all(line.isprintable() for line in text_of(found))


def _decoded(frame_type: int, body: bytes) -> object:
    decoded = decode_frame(frame_type, body)
    if isinstance(decoded, CoordCommand):
        with contextlib.suppress(CapabilityRequired):  # not known to this version, which is no fault of the bytes
            return decode_command(decoded.command_kind, decoded.payload)
    return decoded


def _schema(draw: random.Random) -> list[plain_tlv.FieldSpec]:
    fields: list[plain_tlv.FieldSpec] = []
    for field_id in sorted(draw.sample(range(1, 256), draw.randrange(1, 8))):
        kind = draw.choice([tlv.FIXED, tlv.FIXED | tlv.NONZERO, tlv.LEAF, tlv.STR, tlv.BOOL, tlv.RAW])
        lo = draw.choice([1, 2, 4, 8, 16, 32])
        hi = lo if kind & 0x0F == tlv.FIXED else lo + draw.randrange(20)
        bounds = (1, 1) if kind == tlv.BOOL else (lo, hi)
        fields.append((field_id, kind, *bounds, draw.random() < 0.3))
    return fields


def _value(draw: random.Random, spec: plain_tlv.FieldSpec) -> bytes:
    _, kind, lo, hi, _ = spec
    size = draw.randrange(lo, hi + 1)
    if kind == tlv.BOOL:
        return draw.choice([b"\0", b"\1"])
    if kind == tlv.STR:
        return plain_tlv.leaf(bytes(draw.choice(b"aZ~\x7f") for _ in range(size)))
    return plain_tlv.leaf(draw.randbytes(size)) if kind == tlv.LEAF else draw.randbytes(size)


def tlv_scan(draw: random.Random) -> None:
    """Bodies of arbitrary schemas: same verdict, same values, same canonical form."""
    specs, strict = _schema(draw), draw.random() < 0.3
    known = [(spec[0], _value(draw, spec)) for spec in specs if draw.random() < 0.8]
    unknown = [(draw.choice([3, 200, 256, 70_000]), draw.randbytes(3)) for _ in range(draw.randrange(3))]
    fields = known if strict else [*known, *unknown]
    if draw.random() < 0.3:
        draw.shuffle(fields)
    body = mutated(draw, plain_tlv.body(fields), 2)
    expected, unexpected = attempt(lambda: plain_tlv.scan(specs, body, strict=strict), plain_tlv.TlvError)
    found, refusal = attempt(lambda: tlv.Schema(specs, strict=strict).scan(body), tlv.TlvError)
    assert refusal == unexpected, body.hex()
    if found is None or expected is None:
        return
    assert found.canonical() == expected.canonical()
    assert found.unknown() == expected.unknown()
    for field_id, *_ in specs:
        assert found.has(field_id) == (field_id in expected.values)
        if found.has(field_id):
            assert found.raw(field_id) == bytes(found.view(field_id)) == expected.values[field_id]


def image(draw: random.Random) -> None:
    """The positional reader: same values, same refusal, at every step of a random walk."""
    data = draw.randbytes(draw.randrange(40))
    real, plain = tlv.Cursor(data), plain_tlv.Cursor(data)
    steps: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "u8": (real.u8, lambda: plain.number(1)),
        "u16": (real.u16, lambda: plain.number(2)),
        "u32": (real.u32, lambda: plain.number(4)),
        "u64": (real.u64, lambda: plain.number(8)),
        "i32": (real.i32, lambda: plain.number(4, signed=True)),
        "take": (lambda: real.take(3), lambda: plain.take(3)),
        "leaf": (lambda: real.leaf(9), lambda: plain.leaf(9)),
        "text": (lambda: real.text(9), lambda: plain.text(9)),
        "count": (lambda: real.count(300), lambda: plain.bounded(2, 300, "count")),
        "finish": (real.finish, plain.finish),
    }
    for _ in range(12):
        left, right = steps[draw.choice(list(steps))]
        expected, unexpected = attempt(right, plain_tlv.TlvError)
        found, refusal = attempt(left, tlv.TlvError)
        assert (found, refusal) == (expected, unexpected)
        if refusal is not None:
            return
        assert real.remaining == plain.remaining


def split(draw: random.Random) -> None:
    """A stream in random fragments through both inputs of the splitter, with broken headers and changing caps."""
    caps = [draw.choice([0, 1, 2, 40, 5000, frame.MAX_LENGTH]) for _ in range(256)]
    likely = [number for number, cap in enumerate(caps) if cap] or [0]
    stream = bytearray()
    for _ in range(draw.randrange(1, 12)):
        body = draw.randbytes(draw.choice([0, 1, 30, 300, 5000, 70_000]))
        stream += frame.encode_frame(draw.choice(likely), body)
    if draw.random() < 0.2:
        stream[:] = mutated(draw, bytes(stream), 1)
    real, plain = frame.Splitter(caps), plain_frame.Splitter(caps)
    held: list[tuple[memoryview, bytes]] = []
    at = 0
    while at < len(stream):
        size = draw.choice([1, 2, 3, 5, 100, 4096, 100_000])
        if draw.random() < 0.5:
            part = bytes(stream[at : at + size])
            real.feed(part)
        else:
            buffer = real.get_buffer(size)
            part = bytes(stream[at : at + min(size, len(buffer))])
            buffer[: len(part)] = part
            real.buffer_updated(len(part))
        plain.feed(part)
        at += len(part)
        if not _frames_agree(real, plain, held):
            break
    assert all(bytes(view) == copy for view, copy in held)


def _frames_agree(real: frame.Splitter, plain: plain_frame.Splitter, held: list[tuple[memoryview, bytes]]) -> bool:
    """Take every whole frame from both; False after a refusal, which ends the stream."""
    while True:
        expected, unexpected = attempt(plain.next_frame, plain_frame.FrameTooLarge, plain_frame.FrameTypeRefused)
        found, refusal = attempt(real.next_frame, frame.FrameTooLarge, frame.FrameTypeRefused)
        assert refusal == unexpected
        assert (found is None) == (expected is None)
        if found is None or expected is None:
            return refusal is None
        assert (found[0], bytes(found[1])) == expected
        held.append((found[1], expected[1]))


def numbered(draw: random.Random) -> None:
    """Rows of numbered frames, also at the end of the numbers."""
    prefix, first = draw.randbytes(draw.randrange(1, 40)), draw.choice([0, 1, U64 - 2, U64, draw.randrange(U64)])
    tails = [draw.randbytes(draw.choice([0, 1, 150, 5_000])) for _ in range(draw.randrange(6))]
    expected, unexpected = attempt(partial(plain_frame.numbered_frames, prefix, first, tails), OverflowError)
    made, refusal = attempt(partial(frame.numbered_frames, prefix, first, tails), OverflowError)
    assert (refusal is None) == (unexpected is None)
    assert made == expected


def credits(draw: random.Random) -> None:
    """Balances under random calls near their bounds."""
    maxima = draw.choice([0, 3, 4096, U64]), draw.choice([0, 100, U64])
    real, plain = credit.Credit(*maxima), plain_credit.Credit(*maxima)
    for _ in range(20):
        amounts = draw.choice([0, 1, 2, 4095, U64, draw.randrange(U64)]), draw.choice([0, 1, 50, U64])
        if draw.random() < 0.5:
            spent = amounts[1], draw.choice([1, amounts[0]])
            assert real.spend(*spent) == plain.spend(*spent)
        else:
            _, unexpected = attempt(partial(plain.add, *amounts), plain_credit.CreditOverflow)
            _, refusal = attempt(partial(real.add, *amounts), credit.CreditOverflow)
            assert (refusal is None) == (unexpected is None)
        assert (real.count, real.nbytes) == (plain.count, plain.nbytes)


def quotas(draw: random.Random) -> None:
    """A random tree of quotas; levels come and go."""
    resources = draw.randrange(1, 5)

    def limits() -> list[int]:
        return [draw.choice([0, 3, 10, U64]) for _ in range(resources)]

    top = limits()
    levels = [(credit.Quota(top), plain_credit.Quota(top))]
    for _ in range(25):
        real, plain = draw.choice(levels)
        step = draw.randrange(4)
        if step == 0:
            given = limits()
            levels.append((credit.Quota(given, real), plain_credit.Quota(given, plain)))
        elif step == 1:
            pairs = [(draw.randrange(resources), draw.choice([0, 1, 4, U64])) for _ in range(draw.randrange(4))]
            assert real.charge_many(pairs) == plain.charge_many(pairs)
        elif step == 2:
            resource = draw.randrange(resources)
            amount = draw.randrange(plain.own[resource] + 1)
            real.release(resource, amount)
            plain.release(resource, amount)
        else:
            real.release_all()
            plain.release_all()
        for left, right in levels:
            assert [left.used(index) for index in range(resources)] == [right.used(index) for index in range(resources)]


def digests(draw: random.Random) -> None:
    """Preimages of random parts."""
    images = sorted({draw.randbytes(18): draw.randbytes(8) for _ in range(draw.randrange(5))}.items())
    preconditions = b"".join(key + revision for key, revision in images)
    parts = draw.randrange(65536), draw.randbytes(draw.randrange(3000)), preconditions, len(images)
    extensions = draw.randbytes(draw.randrange(50))
    assert digest.operation_preimage(*parts, extensions) == plain_digest.operation_preimage(*parts, extensions)
    target, payload = draw.randbytes(draw.randrange(200)), draw.randbytes(draw.randrange(200))
    assert digest.effect_preimage(3, target, payload) == plain_digest.effect_preimage(3, target, payload)
    nonce, service = draw.randbytes(32), draw.randbytes(draw.randrange(70))
    fields = service, 0, 1, nonce, nonce, draw.randbytes(16), draw.randrange(256), nonce, nonce
    assert digest.server_transcript(*fields) == plain_digest.server_transcript(*fields)
    rest = draw.randbytes(64), nonce, draw.randrange(U64), target
    assert digest.client_transcript(*fields, *rest) == plain_digest.client_transcript(*fields, *rest)
    records = [draw.randbytes(draw.randrange(300)) for _ in range(draw.randrange(5))]
    domain = draw.randbytes(16), draw.randrange(U64), 7, 9
    fold = digest.SnapshotDigest(*domain, len(records))
    for record in records:
        fold.update(record)
    assert fold.digest() == plain_digest.sha256(plain_digest.snapshot_preimage(*domain, records))


def _json(draw: random.Random, room: int) -> object:
    step = draw.randrange(9 if room else 6)
    if step < 3:
        return draw.choice([None, True, 0, -1, 2**53, 2**64, 0.5, -1e300, 1e-7])
    if step < 6:
        return "".join(chr(draw.choice([10, 34, 47, 92, 97, 0xE9, 0xFB33, 0x1F600])) for _ in range(draw.randrange(12)))
    if step == 6:
        return [_json(draw, room - 1) for _ in range(draw.randrange(5))]
    return {draw.choice("abcdefghijé😀") * draw.randrange(3): _json(draw, room - 1) for _ in range(draw.randrange(15))}


def json_text(draw: random.Random) -> None:
    """JSON in several spellings, with names that are given twice and with damage: same verdict, place and value."""
    text = json.dumps(_json(draw, 4), ensure_ascii=draw.random() < 0.5, indent=draw.choice([None, None, 1]))
    if draw.random() < 0.3:
        text = text.replace(draw.choice("abcdefghij"), draw.choice(["a", "\\u0061"]))
    data = mutated(draw, text.encode(), 2)
    limit, depth, safe = draw.choice([20, 100_000]), draw.choice([1, 3, 128]), draw.random() < 0.5
    plain = partial(plain_json.parse, limit=limit, depth=depth, safe_integers=safe)
    real = partial(json_scan.check, limit=limit, depth=depth, safe_integers=safe)
    expected, unexpected = attempt(partial(plain, data), plain_json.JsonError)
    _, refusal = attempt(partial(real, data), json_scan.JsonError)
    assert refusal == unexpected, data
    if refusal is None:
        assert orjson.loads(data) == expected, data


TARGETS: dict[str, Callable[[random.Random], None]] = {
    target.__name__: target
    for target in (
        *(wire, explained, tlv_scan, image, split, numbered, credits, quotas, digests, json_text),
        *(contracts, closures),
    )
}
