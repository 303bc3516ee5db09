"""The handshake, its order and its refusals, seen by an independent client (W3, W4, W7, W10, P5, P6)."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.interop.logins import Answer, answered, challenged, hello, send
from tests.interop.phux import enums as e
from tests.interop.phux import proof
from tests.interop.phux.connection import Connection, Fatal
from tests.interop.phux.digests import sha256
from tests.interop.phux.frames import SHAPES, State, Type, encode, encode_body, message
from tests.interop.phux.tlv import U16, U32, U64, field_bytes, leaf, text
from tests.interop.raw import Fields, answer, body_of, header, refuses, verdict
from tests.interop.server import Server

MALFORMED, FAILED = e.ErrorCode.MALFORMED_MESSAGE, e.ErrorCode.AUTHENTICATION_FAILED
VERSION_FIELD = {"major": 1, "minor": 2, "patch": 3}


@pytest.fixture
def connection(server: Server) -> Iterator[Connection]:
    """A connection before HELLO."""
    made = Connection(server.path)
    yield made
    made.close()


# ---- before the challenge ----


@pytest.mark.req("P5-02", "P7-07", "P3-06")
def test_before_hello_there_is_only_ping(connection: Connection) -> None:
    connection.send(Type.COORD_PONG, nonce=1)
    assert answer(connection, encode(Type.COORD_PING, nonce=2))["nonce"] == 2
    challenged(connection)


ILLEGAL = [
    (state, frame_type)
    for state in (State.PRE, State.CHAL)
    for frame_type, shape in SHAPES.items()
    if not (shape.to_server and state in shape.legal)
]


@pytest.mark.req("P5-02", "P7-03", "P7-04", "P3-04", "P13-05")
@pytest.mark.parametrize(("state", "frame_type"), ILLEGAL, ids=str)
def test_any_other_frame_in_the_handshake_is_fatal(connection: Connection, state: State, frame_type: Type) -> None:
    if state is State.CHAL:
        challenged(connection)
    refuses(connection, header(16_384, frame_type), e.ErrorCode.PROTOCOL_ERROR)


@pytest.mark.req("P3-06", "P3-26")
def test_the_size_of_a_handshake_frame(server: Server, connection: Connection) -> None:
    body = body_of(hello())
    filled = body + field_bytes(99, bytes(16_384 - 1 - len(body) - 4))
    assert len(message(Type.COORD_HELLO, filled)) == 4 + 16_384
    assert answer(connection, message(Type.COORD_HELLO, filled)).type is Type.WORKLOAD_CHALLENGE
    for frame_type in (Type.COORD_HELLO, Type.COORD_PING):
        refuses(Connection(server.path), header(16_385, frame_type), e.ErrorCode.FRAME_TOO_LARGE)
    challenged(late := Connection(server.path))
    refuses(late, header(16_385, Type.WORKLOAD_RESPONSE), e.ErrorCode.FRAME_TOO_LARGE)


@pytest.mark.req("P5-03", "W3-03", "W10-01", "P14-03")
@pytest.mark.parametrize(("field", "value"), [("major", 1), ("minor", 0), ("minor", 2), ("major", 0xFFFF)])
def test_the_version_is_judged_first(connection: Connection, field: str, value: int) -> None:
    garbage = {**hello(), VERSION_FIELD[field]: U16.write(value), 7: U32.write(0), 13: b"garbage"}
    refuses(connection, send(garbage), e.ErrorCode.VERSION_INCOMPATIBLE)


@pytest.mark.req("P5-04", "P1-01")
def test_the_patch_may_differ(connection: Connection) -> None:
    challenged(connection, protocol_patch=9)


OFFERS: dict[str, tuple[Callable[[], Fields], e.ErrorCode]] = {
    "no offer": (lambda: {k: v for k, v in hello().items() if k != 13}, FAILED),
    "another profile": (lambda: {**hello(), 13: leaf().write(b"phux-workload/v2") + bytes(range(32))}, FAILED),
    "a short offer": (lambda: {**hello(), 13: hello()[13][:-1]}, MALFORMED),
    "a long offer": (lambda: {**hello(), 13: hello()[13] + b"\0"}, MALFORMED),
    "no version": (lambda: {k: v for k, v in hello().items() if k != 1}, MALFORMED),
    "a name of 129 bytes": (lambda: {**hello(), 4: text().write("n" * 129)}, MALFORMED),
    "a name with an overlong form": (lambda: {**hello(), 4: leaf().write(b"\xc0\xaf")}, MALFORMED),
    "a name with a surrogate": (lambda: {**hello(), 4: leaf().write(b"\xed\xa0\x80")}, MALFORMED),
    "a raw name": (lambda: {**hello(), 4: b"interop"}, MALFORMED),
    "a limit of 8 bytes": (lambda: {**hello(), 7: U64.write(524_288)}, MALFORMED),
    "a page over the frame": (
        lambda: hello(max_frame_bytes=4_096, max_page_bytes=3_585, max_typed_payload_bytes=3_584),
        MALFORMED,
    ),
    "a payload over the frame": (
        lambda: hello(max_frame_bytes=4_096, max_page_bytes=3_584, max_typed_payload_bytes=3_585),
        MALFORMED,
    ),
    "credit below an event": (lambda: hello(max_event_credit_bytes=131_187), MALFORMED),
    "more required than offered": (lambda: hello(required_capabilities=1), e.ErrorCode.CAPABILITY_REQUIRED),
    "an unknown capability required": (
        lambda: hello(offered_capabilities=1 << 63, required_capabilities=1 << 63),
        e.ErrorCode.CAPABILITY_REQUIRED,
    ),
}


@pytest.mark.req("P3-22", "P3-23", "P3-24", "P3-31", "P5-05", "P5-06", "P5-13", "P5-14", "E-18", "W3-17", "W10-02")
@pytest.mark.parametrize("offer", OFFERS.values(), ids=OFFERS)
def test_a_hello_that_cannot_work(connection: Connection, offer: tuple[Callable[[], Fields], e.ErrorCode]) -> None:
    fields, code = offer
    refuses(connection, send(fields()), code)


@pytest.mark.req("P5-06", "E-13")
@pytest.mark.parametrize("field", range(2, 13))
def test_a_hello_without_one_of_its_fields(connection: Connection, field: int) -> None:
    refuses(connection, send({k: v for k, v in hello().items() if k != field}), MALFORMED)


@pytest.mark.req("P3-22", "P3-23", "P3-24", "P3-31", "P5-12")
@pytest.mark.parametrize(
    "values",
    [
        {"max_frame_bytes": 4_096, "max_page_bytes": 3_584, "max_typed_payload_bytes": 3_584},
        {"max_event_credit_bytes": 131_188},
        {"client_name": "n" * 128},
        {"client_name": ""},
        {"offered_capabilities": 1 << 63},
    ],
)
def test_a_hello_at_its_limits(connection: Connection, values: dict[str, Any]) -> None:
    challenged(connection, **values)


HARD = {
    "max_frame_bytes": 1_048_576,
    "max_page_bytes": 524_288,
    "max_page_records": 1_024,
    "max_typed_payload_bytes": 262_144,
    "max_event_credit_count": 4_096,
    "max_event_credit_bytes": 8_388_608,
}


@pytest.mark.req("P3-20", "P3-21", "P3-25", "P3-27", "P3-28", "P3-29", "P3-35")
@pytest.mark.parametrize("name", HARD)
def test_each_offer_has_its_range(server: Server, name: str) -> None:
    for value in (0, HARD[name] + 1):
        refuses(Connection(server.path), send(hello(**{name: value})), MALFORMED)
    with server.client(limits=HARD) as client:
        assert 0 < client.session.hello_ok[name] <= HARD[name]
    if name == "max_page_records":
        with server.client(limits={name: 1}) as client:
            assert client.session.hello_ok[name] == 1


@pytest.mark.req("W3-08")
def test_a_nonce_of_zeros_is_refused(connection: Connection) -> None:
    fields = {**hello(), 13: leaf().write(e.PROFILE) + bytes(32)}
    assert verdict(connection, send(fields))["code"] in {MALFORMED, FAILED}


# ---- the response ----


@pytest.mark.req("W3-01", "W3-15", "P5-01", "P5-07", "P5-08", "W7-06", "P12-06", "P12-10", "W6-03", "P5-10", "W5-06")
def test_a_good_response_is_welcome(server: Server, connection: Connection) -> None:
    answer_ = answered(server, connection)
    ok = answer(connection, answer_.bytes())
    assert ok.type is Type.COORD_HELLO_OK
    assert ok["incarnation_id"] == answer_.session.server_incarnation
    assert ok["workload_grant"].expires_at == answer_.expiry
    proof.check_certificate(ok["activation_certificate"], server.pins, time.time())


def flip(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def _other_pid(session: proof.Session) -> proof.Session:
    preimage = proof.uds_preimage(session.server_nonce, os.geteuid(), os.getegid(), os.getpid() + 1)
    return replace(session, binding=sha256(preimage))


SESSIONS: dict[str, Callable[[proof.Session], proof.Session]] = {
    "major": lambda s: replace(s, version=(1, 1)),
    "minor": lambda s: replace(s, version=(0, 2)),
    "client nonce": lambda s: replace(s, client_nonce=flip(s.client_nonce)),
    "server nonce": lambda s: replace(s, server_nonce=flip(s.server_nonce)),
    "incarnation": lambda s: replace(s, server_incarnation=flip(s.server_incarnation)),
    "kind of binding": lambda s: replace(s, binding_kind=e.ChannelBinding.TLS_EXPORTER),
    "binding": lambda s: replace(s, binding=flip(s.binding)),
    "pid": _other_pid,
    "authority": lambda s: replace(s, authority_public_key=flip(s.authority_public_key)),
}


@pytest.mark.req("W4-05", "W4-08", "W4-10", "W10-04", "P5-05", "P14-04", "W8-02")
@pytest.mark.parametrize("change", SESSIONS.values(), ids=SESSIONS)
def test_a_proof_of_another_session_fails(
    server: Server, connection: Connection, change: Callable[[proof.Session], proof.Session]
) -> None:
    good = answered(server, connection)
    good.session = change(good.session)
    refuses(connection, good.bytes(), FAILED)


def _service(answer_: Answer) -> bytes:
    return answer_.bytes(answer_.transcript().replace(e.SERVICE, b"phux-terminal-00"))


def _said_otherwise(field: int, value: Callable[[Answer], bytes]) -> Callable[[Answer], bytes]:
    """The proof is over one value, the field says another."""
    return lambda a: message(Type.WORKLOAD_RESPONSE, body_of({**a.fields(), field: value(a)}))


def _as(**changes: Any) -> Callable[[Answer], bytes]:
    def build(answer_: Answer) -> bytes:
        for name, value in changes.items():
            setattr(answer_, name, value)
        return answer_.bytes()

    return build


UNKNOWN_SEED = b"\x07" * 32
FAILURES: dict[str, Callable[[Answer], bytes]] = {
    "another service": _service,
    "another authority proof": lambda a: _as(authority_proof=flip(a.authority_proof))(a),
    "another key id in the field": _said_otherwise(1, lambda a: flip(a.key_id)),
    "more scopes in the field": _said_otherwise(2, lambda a: U32.write(8) + U64.write(7)),
    "a later expiry in the field": _said_otherwise(3, lambda a: U64.write(a.expiry + 1)),
    "an unknown key": lambda a: _as(seed=UNKNOWN_SEED, key_id=sha256(proof.public_key(UNKNOWN_SEED)))(a),
    "an unknown key under a known id": _as(seed=UNKNOWN_SEED),
    "an expiry in the past": _as(expiry=1),
    "an expiry of now": lambda a: _as(expiry=int(time.time()))(a),
    "no scope at all": _as(scopes=0),
    "a scope that the key has not": _as(scopes=e.Scope.ADMIN),
    "a proof of zeros": _said_otherwise(4, lambda a: bytes(64)),
    "a small-order R": _said_otherwise(4, lambda a: b"\1" + bytes(63)),
    "S over the order": _said_otherwise(4, lambda a: a.fields()[4][:32] + b"\xff" * 32),
}


@pytest.mark.req("W4-05", "W4-07", "W4-08", "W6-02", "W8-02", "W10-04", "W10-05", "W10-08", "P5-05", "P6-06", "P14-04")
def test_every_failed_proof_is_told_in_one_form(server: Server) -> None:
    told = set()
    for name, build in FAILURES.items():
        connection = Connection(server.path)
        error = refuses(connection, build(answered(server, connection)), FAILED)
        told.add(encode_body(Type.COORD_ERROR, error.values))
        assert len(told) == 1, name
    expired = Connection(server.path)
    error = refuses(expired, answered(server, expired, "expired").bytes(), FAILED)
    assert {encode_body(Type.COORD_ERROR, error.values)} == told


IMAGES: dict[str, Callable[[Fields], Any]] = {
    "an unknown field": lambda f: {**f, 5: b""},
    "no key id": lambda f: {k: v for k, v in f.items() if k != 1},
    "no proof": lambda f: {k: v for k, v in f.items() if k != 4},
    "fields out of order": lambda f: list(f.items())[::-1],
    "a field twice": lambda f: [*f.items(), (4, f[4])],
    "a short key id": lambda f: {**f, 1: f[1][:-1]},
    "a long proof": lambda f: {**f, 4: f[4] + b"\0"},
    "an expiry of four bytes": lambda f: {**f, 3: f[3][4:]},
    "scopes of seven bytes": lambda f: {**f, 2: U32.write(7) + bytes(6) + b"\3"},
    "scopes of nine bytes": lambda f: {**f, 2: U32.write(9) + bytes(8) + b"\3"},
    "scopes of no bytes": lambda f: {**f, 2: U32.write(0)},
    "scopes with a byte after them": lambda f: {**f, 2: f[2] + b"\0"},
    "an unknown scope": lambda f: {**f, 2: U32.write(8) + U64.write(0x41), 4: bytes(64)},
    "every scope bit": lambda f: {**f, 2: U32.write(8) + U64.write(2**64 - 1)},
}


@pytest.mark.req("W7-03", "W7-04", "W8-01", "W3-05", "W3-06", "P6-01", "P6-02", "P6-03", "W10-07", "E-25")
@pytest.mark.parametrize("spoil", IMAGES.values(), ids=IMAGES)
def test_a_malformed_response(server: Server, connection: Connection, spoil: Callable[[Fields], Any]) -> None:
    fields = answered(server, connection).fields()
    refuses(connection, message(Type.WORKLOAD_RESPONSE, body_of(spoil(fields))), MALFORMED)


@pytest.mark.req("W3-14", "P5-02")
@pytest.mark.parametrize("frame_type", [Type.COORD_PING, Type.COORD_HELLO])
def test_nothing_comes_between_challenge_and_response(connection: Connection, frame_type: Type) -> None:
    challenged(connection)
    data = send(hello()) if frame_type is Type.COORD_HELLO else encode(Type.COORD_PING, nonce=1)
    refuses(connection, data, e.ErrorCode.PROTOCOL_ERROR)


@pytest.mark.req("W3-11", "W3-12")
def test_a_second_response_is_not_heard(server: Server, connection: Connection) -> None:
    good = answered(server, connection)
    refuses(connection, good.bytes(good.transcript() + b"\0") + good.bytes(), FAILED)


@pytest.mark.req("W3-10", "W10-03", "W3-08", "P14-04")
def test_a_response_is_for_its_own_connection(server: Server, connection: Connection) -> None:
    good = answered(server, connection)
    other = Connection(server.path)
    challenge = challenged(other)
    assert challenge["server_nonce"] != good.session.server_nonce
    refuses(other, good.bytes(), FAILED)
    assert answer(connection, good.bytes()).type is Type.COORD_HELLO_OK


@pytest.mark.req("W10-08", "P6-05", "P6-06", "W6-03", "W2-01")
def test_a_grant_is_what_is_asked_and_allowed(server: Server) -> None:
    with (
        server.client("reader", scopes=e.SCOPE_MASK) as reader,
        server.client("admin", scopes=e.Scope.ADMIN) as admin,
        server.client(scopes=e.SCOPE_MASK, life_seconds=60) as operator,
    ):
        assert reader.session.grant.scopes == e.Scope.WORK_READ
        assert admin.session.grant.scopes == e.Scope.ADMIN
        assert operator.session.grant.scopes == e.SCOPE_MASK & ~e.Scope.ADMIN
        assert operator.session.grant.expires_at <= time.time() + 60
        assert len({client.session.grant.key_id for client in (reader, admin, operator)}) == 3


@pytest.mark.req("P5-12", "P3-20")
def test_unknown_capabilities_are_not_echoed(server: Server) -> None:
    with server.client(capabilities=1 << 63 | e.Capability.EVENT_REPLAY) as client:
        assert client.session.capabilities == e.Capability.EVENT_REPLAY


@pytest.mark.req("P3-41", "P14-14")
def test_connections_of_a_principal_are_counted(server: Server) -> None:
    clients = [server.client("commander", scopes=e.Scope.WORK_COMMAND) for _ in range(16)]
    try:
        with pytest.raises(Fatal) as caught:
            server.client("commander", scopes=e.Scope.WORK_COMMAND)
        assert caught.value.code is e.ErrorCode.RESOURCE_EXHAUSTED
        server.client().close()
        clients[0].connection.send(Type.COORD_ERROR, code=e.ErrorCode.INTERNAL, message="")
        assert clients[0].wait_closed() is None
        server.client("commander", scopes=e.Scope.WORK_COMMAND).close()
    finally:
        for client in clients:
            client.close()


@pytest.mark.req("P2-06", "W5-06")
def test_the_socket_is_the_owners_and_names_its_peer(server: Server) -> None:
    assert server.path.stat().st_mode & 0o777 == 0o600
    with socket.socket(socket.AF_UNIX) as plain:
        plain.connect(str(server.path))
        pid, uid, _ = struct.unpack("3i", plain.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    assert uid == os.geteuid()
    assert pid > 0
