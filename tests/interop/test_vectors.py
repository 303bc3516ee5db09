"""The client's codec, digests and proofs give every vector of the specification, and read it back."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.interop import values as v
from tests.interop.phux import digests, frames, proof, tlv
from tests.interop.phux import enums as e
from tests.interop.phux import records as r
from tests.interop.phux.digests import sha256
from tests.interop.phux.frames import Type

VECTORS = Path(__file__).parents[1] / "vectors"
FILE = dict(line.split("\t") for line in (VECTORS / "coordinator.tsv").read_text().splitlines())


def operation(kind: e.CommandKind, payload: bytes, preconditions: Any = (), extensions: bytes = b"") -> bytes:
    return digests.operation_digest(kind, payload, preconditions, extensions)


def effect(kind: e.EffectKind, target: Any, payload: bytes) -> bytes:
    return sha256(digests.effect_preimage(kind, target, payload))


def exporter(master: bytes, context: bytes) -> bytes:
    """RFC 8446 section 7.5 with SHA-256."""

    def expand(secret: bytes, label: bytes, value: bytes) -> bytes:
        info = b"\0\x20" + bytes([6 + len(label)]) + b"tls13 " + label + bytes([len(value)]) + value
        return hmac.digest(secret, info + b"\x01", hashlib.sha256)

    return expand(expand(master, e.PROFILE, sha256(b"")), b"exporter", sha256(context))


CREATE = e.CommandKind.CREATE_OBJECTIVE
SN_5 = digests.snapshot_preimage(v.GUARD, 9, v.RECORDS)
TLS_SESSION = proof.Session(
    v.CLIENT_NONCE,
    v.SERVER_NONCE,
    v.INCARNATION,
    e.ChannelBinding.TLS_EXPORTER,
    exporter(b"\xc3" * 32, proof.tls_context()),
    v.AUTHORITY_KEY,
)
KILL = b""
COMMON = {"authority_guard": v.GUARD, "operation_id": v.OPERATION}
EVENT = dict(zip(r.ReplayEvent._fields, v.EVENTS[0], strict=True))
DELIVERED = frames.encode(Type.COORD_EVENT, subscription_id=v.SUBSCRIPTION, delivery_sequence=1, **EVENT)


def biggest_event(typed: int) -> str:
    size = len(
        frames.encode(
            Type.COORD_EVENT, subscription_id=v.SUBSCRIPTION, delivery_sequence=1, **{**EVENT, "payload": bytes(typed)}
        )
    )
    return f"{size} (overhead {size - typed})"


def gap(**values: Any) -> bytes:
    return frames.encode(Type.GAP, subscription_id=v.SUBSCRIPTION, **values)


FRAMES: dict[str, bytes] = {
    "COORD_PING nonce 0102030405060708": frames.encode(Type.COORD_PING, nonce=0x0102030405060708),
    "COORD_PONG same nonce": frames.encode(Type.COORD_PONG, nonce=0x0102030405060708),
    "COORD_HELLO (reference offers, caps 1f/01)": frames.encode(
        Type.COORD_HELLO,
        **v.VERSION,
        client_name="golden",
        offered_capabilities=0x1F,
        required_capabilities=1,
        **v.LIMITS,
        workload_offer=r.WorkloadOffer(e.PROFILE, v.CLIENT_NONCE),
    ),
    "WORKLOAD_CHALLENGE": frames.encode(
        Type.WORKLOAD_CHALLENGE,
        profile=e.PROFILE,
        service=e.SERVICE,
        negotiated_major=0,
        negotiated_minor=1,
        client_nonce=v.CLIENT_NONCE,
        server_nonce=v.SERVER_NONCE,
        server_incarnation=v.INCARNATION,
        channel_binding_kind=1,
        channel_binding=v.SESSION.binding,
        authority_public_key=v.AUTHORITY_KEY,
        authority_proof=v.AUTHORITY_PROOF,
    ),
    "WORKLOAD_RESPONSE": frames.encode(
        Type.WORKLOAD_RESPONSE,
        key_id=v.KEY_ID,
        scope=v.SCOPES,
        requested_expiry=v.REQUESTED_EXPIRY,
        workload_proof=proof.sign(v.WORKLOAD_SEED, v.CLIENT_TRANSCRIPT),
    ),
    "COORD_HELLO_OK": frames.encode(
        Type.COORD_HELLO_OK,
        **v.VERSION,
        negotiated_capabilities=0x1F,
        coordinator_id=v.COORDINATOR,
        authority_epoch=v.EPOCH,
        incarnation_id=v.INCARNATION,
        **v.LIMITS,
        workload_grant=v.GRANT,
        operation_result_retention_secs=v.RETENTION,
        activation_certificate=v.CERTIFICATE,
    ),
    "ACK request 7": frames.encode(Type.ACK, request_id=7),
    "COORD_COMMAND (OP-A)": frames.encode(
        Type.COORD_COMMAND, request_id=7, **COMMON, command_kind=CREATE, payload=v.CREATE
    ),
    "COORD_COMMAND_RESULT request 7, SUCCEEDED at event 10, OBJECT_REF OBJECTIVE 22..": frames.encode(
        Type.COORD_COMMAND_RESULT, request_id=7, operation=r.Succeeded(10, v.OBJECTIVE_REF)
    ),
    "OPERATION_RESULT request 8, UNKNOWN": frames.encode(Type.OPERATION_RESULT, request_id=8, operation=r.Unknown()),
    "GET_OPERATION_RESULT request 8": frames.encode(Type.GET_OPERATION_RESULT, request_id=8, **COMMON),
    "OPEN_SNAPSHOT request 1, reserve, no replace": frames.encode(
        Type.OPEN_SNAPSHOT, request_id=1, authority_guard=v.GUARD, selector=0, reserve_subscription=True
    ),
    "SUBSCRIBE request 2, after 9, credit 16/65536": frames.encode(
        Type.SUBSCRIBE,
        request_id=2,
        authority_guard=v.GUARD,
        after_event_sequence=9,
        initial_credit_count=16,
        initial_credit_bytes=65_536,
    ),
    "CREDIT 8/4096": frames.encode(Type.CREDIT, subscription_id=v.SUBSCRIPTION, add_count=8, add_bytes=4_096),
    "GAP pre-first-event, RETENTION, no observed event": gap(
        last_contiguous_delivery=0, last_contiguous_event=9, reason=e.GapReason.RETENTION
    ),
    "GAP after delivery 3/event 12, observed 13, QUEUE_OVERFLOW": gap(
        last_contiguous_delivery=3, last_contiguous_event=12, observed_event=13, reason=e.GapReason.QUEUE_OVERFLOW
    ),
    "COORD_EVENT delivery 1": DELIVERED,
    'COORD_ERROR SCOPE_DENIED request 7, message ""': frames.encode(
        Type.COORD_ERROR, request_id=7, code=e.ErrorCode.SCOPE_DENIED, message=""
    ),
    'COORD_ERROR uncorrelated PROTOCOL_ERROR, message ""': frames.encode(
        Type.COORD_ERROR, code=e.ErrorCode.PROTOCOL_ERROR, message=""
    ),
}

IMAGES: dict[str, tuple[tlv.Codec, Any]] = {
    "ResourceId Local id=1": (r.RESOURCE_ID, v.LOCAL),
    'ResourceId Satellite host="edge-1" id=7': (r.RESOURCE_ID, v.SATELLITE),
    "GroupId 1": (r.GROUP_ID, 1),
    "AuthorityGuard (64 bytes)": (r.GUARD, v.GUARD),
    "OP-B preconditions image (sorted)": (r.PRECONDITIONS, v.PRECONDITIONS),
    "TerminalBindingRef (Local id 1)": (r.BINDING_REF, v.BINDING_REF),
    "SPAWN target": (r.EFFECT_TARGET, v.SPAWN_TARGET),
    "SPAWN payload": (r.EFFECT_PAYLOADS[e.EffectKind.SPAWN], r.SpawnPayload(v.WORK_SESSION, 1, b"sh")),
    "EF-B target (ACTIVE_BINDING)": (r.EFFECT_TARGET, r.ActiveBinding(v.BINDING_REF)),
    "EffectAttempt row (SPAWN, READY)": (
        r.EFFECT_ATTEMPT,
        r.EffectAttempt(
            v.EFFECT_ATTEMPT,
            v.OPERATION,
            e.EffectKind.SPAWN,
            v.SPAWN_TARGET,
            effect(e.EffectKind.SPAWN, v.SPAWN_TARGET, v.SPAWN_PAYLOAD),
            v.SPAWN_PAYLOAD,
            e.EffectState.READY,
        ),
    ),
    "record OBJECTIVE": (r.SNAPSHOT_RECORD, v.RECORDS[0]),
    "record RUN (no outcome)": (r.SNAPSHOT_RECORD, v.RECORDS[1]),
    "record WORK_SESSION (active binding)": (r.SNAPSHOT_RECORD, v.RECORDS[2]),
    "record BINDING (active)": (r.SNAPSHOT_RECORD, v.RECORDS[3]),
    "record SIGNAL": (r.SNAPSHOT_RECORD, v.RECORDS[4]),
    "ReplayEvent 10 OBJECTIVE_CHANGED": (r.REPLAY_EVENT, v.EVENTS[0]),
    "ReplayEvent 12 SOURCE_FACT_ADMITTED": (r.REPLAY_EVENT, v.EVENTS[1]),
    "TerminalSourceFact OPENED seq 1": (r.SOURCE_FACT, r.SOURCE_FACT.parse(v.FACT)),
    "SOURCE_GAP payload (expected 2, observed 5, Jump)": (r.SOURCE_GAP, v.SOURCE_GAP),
    "WorkloadOffer image": (r.WORKLOAD_OFFER, r.WorkloadOffer(e.PROFILE, v.CLIENT_NONCE)),
    "WorkloadGrant image": (r.WORKLOAD_GRANT, v.GRANT),
}

PAYLOADS: dict[str, tuple[e.CommandKind, bytes]] = {
    "CREATE_OBJECTIVE payload": (CREATE, v.CREATE),
    "OP-E payload (unknown field 9)": (CREATE, v.CREATE_EXTENDED),
    "START_RUN payload": (e.CommandKind.START_RUN, v.START),
    "ACK_SIGNAL payload, note absent": (e.CommandKind.ACK_SIGNAL, v.ACK_BARE),
    'ACK_SIGNAL payload, note "ok"': (e.CommandKind.ACK_SIGNAL, v.ACK_NOTED),
}

COMPUTED: dict[str, bytes] = {
    "TLV field 2 = u16 1": tlv.field_bytes(2, tlv.U16.write(1)),
    'TLV field 4 = str "ab" (leaf image)': tlv.field_bytes(4, tlv.text().write("ab")),
    "TLV field 1 = u32 request_id 7": tlv.field_bytes(1, tlv.REQUEST_ID.write(7)),
    "fencing_token_sha256": v.GUARD.fencing_token_sha256,
    "OP-A preimage": digests.operation_preimage(CREATE, v.CREATE),
    "OP-A digest": operation(CREATE, v.CREATE),
    "OP-B digest": operation(CREATE, v.CREATE, v.PRECONDITIONS),
    "OP-B2 digest (same set, other order)": operation(CREATE, v.CREATE, v.PRECONDITIONS[::-1]),
    "OP-C extension bytes": v.EXTENSION_C,
    "OP-C digest": operation(CREATE, v.CREATE, (), v.EXTENSION_C),
    "OP-D extension bytes (ids 7, 300)": v.EXTENSION_D,
    "OP-D digest": operation(CREATE, v.CREATE, (), v.EXTENSION_D),
    "OP-E digest": operation(CREATE, v.CREATE_EXTENDED),
    "OP-F digest (kind UPDATE_OBJECTIVE=2, payload of A)": operation(e.CommandKind.UPDATE_OBJECTIVE, v.CREATE),
    "OP-A-raw payload (rejected reading, no u32 prefix)": v.CREATE_RAW,
    "OP-A-raw digest": operation(CREATE, v.CREATE_RAW),
    "OP-G digest (START_RUN, no preconditions)": operation(e.CommandKind.START_RUN, v.START),
    "OP-H digest (CANCEL_RUN run=33.., precondition RUN rev 2)": operation(
        e.CommandKind.CANCEL_RUN, v.CANCEL, [r.Precondition(v.RUN_REF, 2)]
    ),
    "OP-I digest": operation(e.CommandKind.ACK_SIGNAL, v.ACK_BARE),
    "OP-J digest": operation(e.CommandKind.ACK_SIGNAL, v.ACK_NOTED),
    "EF-A preimage": digests.effect_preimage(e.EffectKind.SPAWN, v.SPAWN_TARGET, v.SPAWN_PAYLOAD),
    "EF-A digest (SPAWN)": effect(e.EffectKind.SPAWN, v.SPAWN_TARGET, v.SPAWN_PAYLOAD),
    "EF-B digest (KILL)": effect(e.EffectKind.KILL, r.ActiveBinding(v.BINDING_REF), KILL),
    "EF-C digest (PROCESS_SIGNAL Terminate=1)": effect(
        e.EffectKind.PROCESS_SIGNAL, r.ActiveBinding(v.BINDING_REF), bytes([e.ProcessSignal.TERMINATE])
    ),
    "EF-D digest (KILL, Satellite edge-1/7)": effect(
        e.EffectKind.KILL, r.ActiveBinding(v.BINDING_REF._replace(resource=v.SATELLITE)), KILL
    ),
    "SN-0 preimage (empty, base 0)": digests.snapshot_preimage(v.GUARD, 0, []),
    "SN-0 digest": sha256(digests.snapshot_preimage(v.GUARD, 0, [])),
    "SN-0b digest (empty, base 9)": sha256(digests.snapshot_preimage(v.GUARD, 9, [])),
    "SN-1 digest (OBJECTIVE only, base 9)": sha256(digests.snapshot_preimage(v.GUARD, 9, v.RECORDS[:1])),
    "SN-5 digest (5 records, base 9; same for 1, 2, 3 or 5 pages)": sha256(SN_5),
    "RP-0 preimage (empty, after 9, cut 9)": digests.replay_preimage(v.GUARD, v.SUBSCRIPTION, 9, 9, []),
    "RP-0 digest": sha256(digests.replay_preimage(v.GUARD, v.SUBSCRIPTION, 9, 9, [])),
    "RP-1 digest (after 9, cut 10, event 10)": sha256(
        digests.replay_preimage(v.GUARD, v.SUBSCRIPTION, 9, 10, v.EVENTS[:1])
    ),
    "RP-2 digest (after 9, cut 12, events 10 and 12)": sha256(
        digests.replay_preimage(v.GUARD, v.SUBSCRIPTION, 9, 12, v.EVENTS)
    ),
    "witness public key (seed a0*32)": v.WITNESS_KEY,
    "witness_key_id = SHA-256(pub)": sha256(v.WITNESS_KEY),
    "AC preimage": proof.certificate_preimage(v.CERTIFICATE),
    "AC preimage SHA-256": sha256(proof.certificate_preimage(v.CERTIFICATE)),
    "AC signature": v.CERTIFICATE.signature,
    "AC certificate SHA-256": sha256(r.CERTIFICATE.write(v.CERTIFICATE)),
    "uds-peer preimage (uid 1000 gid 1000 pid 4242)": proof.uds_preimage(v.SERVER_NONCE, v.UID, v.GID, v.PID),
    "uds-peer channel_binding": v.SESSION.binding,
    "tls-context": proof.tls_context(),
    "TLS-Exporter over exporter_master_secret c3*32 (SHA-256 suite)": TLS_SESSION.binding,
    "authority public key (seed a1*32)": v.AUTHORITY_KEY,
    "authority fingerprint": v.FINGERPRINT,
    "SERVER_TRANSCRIPT (UDS)": v.SESSION.server_transcript(),
    "SERVER_TRANSCRIPT SHA-256": sha256(v.SESSION.server_transcript()),
    "authority_proof": v.AUTHORITY_PROOF,
    "workload public key (seed a2*32)": v.WORKLOAD_KEY,
    "workload key_id": v.KEY_ID,
    "CLIENT_TRANSCRIPT (UDS, scope 3, expiry 2000000000)": v.CLIENT_TRANSCRIPT,
    "CLIENT_TRANSCRIPT SHA-256": sha256(v.CLIENT_TRANSCRIPT),
    "workload_proof": proof.sign(v.WORKLOAD_SEED, v.CLIENT_TRANSCRIPT),
    "SERVER_TRANSCRIPT (TLS) SHA-256": sha256(TLS_SESSION.server_transcript()),
    "authority_proof (TLS)": proof.sign(v.AUTHORITY_SEED, TLS_SESSION.server_transcript()),
}

TEXTS: dict[str, str] = {
    "authority fingerprint text": proof.fingerprint_text(v.FINGERPRINT),
    "SN-5 preimage length": str(len(SN_5)),
    "AC certificate length": str(len(r.CERTIFICATE.write(v.CERTIFICATE))),
    "SERVER_TRANSCRIPT length": str(len(v.SESSION.server_transcript())),
    "CLIENT_TRANSCRIPT length": str(len(v.CLIENT_TRANSCRIPT)),
    "WorkloadOffer/WorkloadGrant lengths": "/".join(
        str(len(IMAGES[name][0].write(IMAGES[name][1]))) for name in ("WorkloadOffer image", "WorkloadGrant image")
    ),
    "COORD_EVENT outer length debited (4+length)": str(len(DELIVERED)),
    **{f"max COORD_EVENT bytes for typed payload {n}": biggest_event(n) for n in (1_024, 131_072, 262_144)},
    "COORD_HELLO frame bytes": str(len(FRAMES["COORD_HELLO (reference offers, caps 1f/01)"])),
    "CHALLENGE frame bytes": str(len(FRAMES["WORKLOAD_CHALLENGE"])),
    "RESPONSE frame bytes": str(len(FRAMES["WORKLOAD_RESPONSE"])),
    "HELLO_OK frame bytes": str(len(FRAMES["COORD_HELLO_OK"])),
}
VARINTS = {f"varint({n})": n for n in (0, 1, 127, 128, 300, 16_383, 16_384, 1_048_576)}


def test_every_vector_is_covered() -> None:
    assert {*FRAMES, *IMAGES, *PAYLOADS, *COMPUTED, *TEXTS, *VARINTS} == set(FILE)


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame(name: str) -> None:
    golden = bytes.fromhex(FILE[name])
    assert FRAMES[name] == golden
    frame = frames.decode(golden)
    assert frames.encode(frame.type, **frame.values) == golden


@pytest.mark.parametrize("name", IMAGES)
def test_an_image(name: str) -> None:
    codec, value = IMAGES[name]
    golden = bytes.fromhex(FILE[name])
    assert codec.write(value) == golden
    assert codec.parse(golden) == value


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_is_refused_when_cut_or_continued(name: str) -> None:
    codec, _ = IMAGES[name]
    golden = bytes.fromhex(FILE[name])
    for broken in [golden + b"\0", *[golden[:size] for size in range(len(golden))]]:
        with pytest.raises(tlv.Malformed):
            codec.parse(broken)


@pytest.mark.parametrize("name", PAYLOADS)
def test_a_command_payload(name: str) -> None:
    kind, payload = PAYLOADS[name]
    body = r.COMMAND_PAYLOADS[kind]
    golden = bytes.fromhex(FILE[name])
    assert payload == golden
    assert body.encode(body.decode(golden)) == golden


@pytest.mark.parametrize("name", COMPUTED)
def test_a_computed_value(name: str) -> None:
    assert COMPUTED[name].hex() == FILE[name]


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_value(name: str) -> None:
    assert TEXTS[name] == FILE[name]


@pytest.mark.parametrize("name", VARINTS)
def test_a_varint(name: str) -> None:
    assert tlv.varint(VARINTS[name]).hex() == FILE[name]
    image = tlv.Image(bytes.fromhex(FILE[name]))
    assert (image.varint(), image.left) == (VARINTS[name], 0)


def test_the_raw_reading_is_refused() -> None:
    with pytest.raises(tlv.Malformed):
        r.COMMAND_PAYLOADS[CREATE].decode(bytes.fromhex(FILE["OP-A-raw payload (rejected reading, no u32 prefix)"]))


def test_events_and_records_hold_their_payloads() -> None:
    for event, after in zip(v.EVENTS, (v.objective_record(2), None), strict=True):
        assert r.event_record(event) == after
    assert [record.values["state"] for record in v.RECORDS] == [0, 1, 0, 0, 0]


def test_verification_is_strict() -> None:
    cases = json.loads((VECTORS / "ed25519-speccheck.json").read_text())["cases"]
    answers = [
        proof.verifies(*(bytes.fromhex(case[name]) for name in ("public_key", "signature", "message")))
        for case in cases
    ]
    assert answers == [index == 3 for index in range(12)]


MUTATIONS: dict[str, Callable[[bytes], bytes]] = {
    "an id in a longer varint": lambda body: bytes([body[0] | 0x80, 0]) + body[1:],
    "a field twice": lambda body: body + body[: 3 + body[2]],
    "a wire type that is not BYTES": lambda body: body[:1] + b"\2" + body[2:],
    "the body cut by a byte": lambda body: body[:-1],
    "a required field missing": lambda body: body[3 + body[2] :],
    "a byte at the end of a value": lambda body: (
        body[:2] + bytes([body[2] + 1]) + body[3 : 3 + body[2]] + b"\0" + body[3 + body[2] :]
    ),
    "field id zero": lambda body: b"\0" + body[1:],
    "an unknown field of another wire type": lambda body: body + b"\x63\0\0",
}


@pytest.mark.parametrize("mutation", MUTATIONS)
@pytest.mark.parametrize("name", [name for name in FRAMES if not name.startswith("COORD_ERROR SCOPE")])
def test_a_mutated_frame_is_refused(name: str, mutation: str) -> None:
    golden = bytes.fromhex(FILE[name])
    with pytest.raises(tlv.Malformed):
        frames.decode(frames.message(golden[4], MUTATIONS[mutation](golden[5:])))


@pytest.mark.parametrize("name", FRAMES)
def test_an_unknown_field_is_skipped_except_in_workload_frames(name: str) -> None:
    golden = bytes.fromhex(FILE[name])
    grown = frames.message(golden[4], golden[5:] + tlv.field_bytes(99, b"new"))
    if golden[4] in {Type.WORKLOAD_CHALLENGE, Type.WORKLOAD_RESPONSE}:
        with pytest.raises(tlv.Malformed):
            frames.decode(grown)
    else:
        frame = frames.decode(grown)
        assert frames.encode(frame.type, **frame.values) == grown
