"""Golden vectors, widths and bounds of the digests and transcripts."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cext import digest
from cext.tlv import FIXED, LEAF, RAW, Schema
from sidecar.base import ed25519
from sidecar.base.secret import Secret
from tests.oracles import digest as oracle

LINES = (Path(__file__).parents[2] / "vectors" / "coordinator.tsv").read_text("utf-8").splitlines()
VECTORS: dict[str, str] = dict(line.split("\t", 1) for line in LINES)


def vector(name: str) -> bytes:
    return bytes.fromhex(VECTORS[name])


COORDINATOR = b"\x11" * 16
SUBSCRIPTION = b"\x44" * 16
DOMAIN = (COORDINATOR, 5, 7)
PAYLOAD = vector("CREATE_OBJECTIVE payload")
PRECONDITIONS = vector("OP-B preconditions image (sorted)")[2:]  # the images after their u16 count
EXTENSION_C = vector("OP-C extension bytes")
EXTENSION_D = vector("OP-D extension bytes (ids 7, 300)")
CANCEL_RUN = bytes.fromhex("010410" + "33" * 16)
RUN_AT_2 = bytes.fromhex("0002" + "33" * 16 + "0000000000000002")

# name of the digest vector -> kind, payload, preconditions, count, extensions. The kinds are those of COORD_COMMAND.
OPERATIONS: dict[str, tuple[int, bytes, bytes, int, bytes]] = {
    "OP-A digest": (1, PAYLOAD, b"", 0, b""),
    "OP-B digest": (1, PAYLOAD, PRECONDITIONS, 2, b""),
    "OP-C digest": (1, PAYLOAD, b"", 0, EXTENSION_C),
    "OP-D digest": (1, PAYLOAD, b"", 0, EXTENSION_D),
    "OP-E digest": (1, vector("OP-E payload (unknown field 9)"), b"", 0, b""),
    "OP-F digest (kind UPDATE_OBJECTIVE=2, payload of A)": (2, PAYLOAD, b"", 0, b""),
    "OP-G digest (START_RUN, no preconditions)": (3, vector("START_RUN payload"), b"", 0, b""),
    "OP-H digest (CANCEL_RUN run=33.., precondition RUN rev 2)": (4, CANCEL_RUN, RUN_AT_2, 1, b""),
    "OP-I digest": (7, vector("ACK_SIGNAL payload, note absent"), b"", 0, b""),
    "OP-J digest": (7, vector('ACK_SIGNAL payload, note "ok"'), b"", 0, b""),
}
EFFECTS: dict[str, tuple[int, bytes, bytes]] = {
    "EF-A digest (SPAWN)": (1, vector("SPAWN target"), vector("SPAWN payload")),
    "EF-B digest (KILL)": (2, vector("EF-B target (ACTIVE_BINDING)"), b""),
    "EF-C digest (PROCESS_SIGNAL Terminate=1)": (3, vector("EF-B target (ACTIVE_BINDING)"), b"\x01"),
    "EF-D digest (KILL, Satellite edge-1/7)": (
        2,
        # the same binding with the other resource in its place, u32 length first
        vector("EF-B target (ACTIVE_BINDING)")[:-9] + b"\0\0\0\x0f" + vector('ResourceId Satellite host="edge-1" id=7'),
        b"",
    ),
}


@pytest.mark.req("P8-06")
@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_vectors(name: str) -> None:
    assert digest.operation_digest(*OPERATIONS[name]) == vector(name)
    assert digest.operation_preimage(*OPERATIONS[name]) == oracle.operation_preimage(*OPERATIONS[name])


@pytest.mark.req("P8-06")
def test_operation_preimage_vector() -> None:
    assert digest.operation_preimage(*OPERATIONS["OP-A digest"]) == vector("OP-A preimage")


ENVELOPE = Schema([(5, RAW, 0, 1000, True), (6, RAW, 0, 1000, False)])
OBJECTIVE = Schema([(1, FIXED, 16, 16, True), (2, FIXED, 2, 2, True), (3, LEAF, 0, 100, True)])


@pytest.mark.req("P8-07")
def test_unknown_envelope_fields_enter_in_increasing_order_however_they_were_sent() -> None:
    seven, three_hundred = EXTENSION_C, EXTENSION_D[len(EXTENSION_C) :]
    known = bytes.fromhex("050401aa")
    for body in (known + seven + three_hundred, three_hundred + seven + known, seven + known + three_hundred):
        unknown = ENVELOPE.scan(body).unknown()
        assert digest.operation_digest(1, PAYLOAD, b"", 0, unknown) == vector("OP-D digest")
    assert digest.operation_digest(1, PAYLOAD, b"", 0, three_hundred + seven) != vector("OP-D digest")


@pytest.mark.req("P8-08")
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]])
def test_a_payload_is_digested_in_its_canonical_order_with_its_unknown_fields(order: list[int]) -> None:
    canonical = vector("OP-E payload (unknown field 9)")
    parts = [canonical[:19], canonical[19:24], canonical[24:38], canonical[38:]]
    sent = b"".join(parts[index] for index in order)
    assert OBJECTIVE.scan(sent).canonical() == canonical
    assert digest.operation_digest(1, OBJECTIVE.scan(sent).canonical(), b"", 0, b"") == vector("OP-E digest")


@pytest.mark.req("P8-10")
def test_a_changed_kind_payload_precondition_or_extension_changes_the_digest() -> None:
    digests = {digest.operation_digest(*fields) for fields in OPERATIONS.values()}
    assert len(digests) == len(OPERATIONS)
    # Bytes moved from one part into the next are not the same command either.
    assert digest.operation_digest(1, PAYLOAD + b"\x07", b"", 0, b"") != digest.operation_digest(
        1, PAYLOAD, b"", 0, b"\x07"
    )


@pytest.mark.req("P8-09")
def test_the_digest_is_the_same_in_another_process() -> None:
    script = f"from cext import digest; print(digest.operation_digest(1, {PAYLOAD!r}, b'', 0, b'').hex())"
    fresh = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert fresh.stdout.strip() == VECTORS["OP-A digest"]


@pytest.mark.req("P8-06")
@pytest.mark.parametrize(
    ("images", "count"),
    [
        (PRECONDITIONS[26:] + PRECONDITIONS[:26], 2),  # not sorted
        (PRECONDITIONS[:26] * 2, 2),  # one object twice
        (PRECONDITIONS[:18] + bytes(8) + PRECONDITIONS[:26], 2),  # one object with two revisions
        (PRECONDITIONS, 1),
        (PRECONDITIONS, 3),
        (PRECONDITIONS[:-1], 2),
        (b"", 1),
    ],
)
def test_preconditions_that_are_not_canonical_are_refused(images: bytes, count: int) -> None:
    with pytest.raises(ValueError, match="preconditions"):
        digest.operation_digest(1, PAYLOAD, images, count, b"")


@pytest.mark.req("P8-27")
@pytest.mark.parametrize("name", EFFECTS)
def test_effect_vectors(name: str) -> None:
    assert digest.effect_digest(*EFFECTS[name]) == vector(name)


@pytest.mark.req("P8-27")
def test_effect_preimage_vector() -> None:
    assert digest.effect_preimage(*EFFECTS["EF-A digest (SPAWN)"]) == vector("EF-A preimage")


RECORDS = [vector(name) for name in VECTORS if name.startswith("record ")]


@pytest.mark.req("P9-15")
def test_an_empty_snapshot_hashes_the_header() -> None:
    assert digest.snapshot_header(*DOMAIN, 0, 0) == vector("SN-0 preimage (empty, base 0)")
    assert digest.SnapshotDigest(*DOMAIN, 0, 0).digest() == vector("SN-0 digest")
    assert digest.SnapshotDigest(*DOMAIN, 9, 0).digest() == vector("SN-0b digest (empty, base 9)")


@pytest.mark.req("P9-14")
@pytest.mark.parametrize("pages", [1, 2, 3, 5])
def test_snapshot_vectors_for_any_number_of_pages(pages: int) -> None:
    one = digest.SnapshotDigest(*DOMAIN, 9, 1)
    one.update(RECORDS[0])
    assert one.digest() == vector("SN-1 digest (OBJECTIVE only, base 9)")
    five = digest.SnapshotDigest(*DOMAIN, 9, 5)
    size = -(-len(RECORDS) // pages)
    for first in range(0, len(RECORDS), size):
        five.update(b"".join(RECORDS[first : first + size]))
    assert five.digest() == vector("SN-5 digest (5 records, base 9; same for 1, 2, 3 or 5 pages)")
    assert len(oracle.snapshot_preimage(*DOMAIN, 9, RECORDS)) == int(VECTORS["SN-5 preimage length"])


@pytest.mark.req("P10-31")
def test_an_empty_replay_hashes_the_header() -> None:
    assert digest.replay_header(*DOMAIN, SUBSCRIPTION, 9, 9, 0) == vector("RP-0 preimage (empty, after 9, cut 9)")
    assert digest.ReplayDigest(*DOMAIN, SUBSCRIPTION, 9, 9, 0).digest() == vector("RP-0 digest")


@pytest.mark.req("P10-30")
def test_replay_vectors() -> None:
    ten, twelve = vector("ReplayEvent 10 OBJECTIVE_CHANGED"), vector("ReplayEvent 12 SOURCE_FACT_ADMITTED")
    one = digest.ReplayDigest(*DOMAIN, SUBSCRIPTION, 9, 10, 1)
    one.update(ten)
    assert one.digest() == vector("RP-1 digest (after 9, cut 10, event 10)")
    two = digest.ReplayDigest(*DOMAIN, SUBSCRIPTION, 9, 12, 2)
    two.update(ten)
    two.update(memoryview(twelve))
    assert two.digest() == vector("RP-2 digest (after 9, cut 12, events 10 and 12)")


@pytest.mark.req("P9-14")
@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, 10_000])
def test_folding_goes_on_after_a_digest_and_holds_at_every_size(size: int) -> None:
    fold = digest.SnapshotDigest(*DOMAIN, 9, 3)
    plain = hashlib.sha256(digest.snapshot_header(*DOMAIN, 9, 3))
    for step in range(3):
        data = bytes([step]) * size
        fold.update(data)
        plain.update(data)
        assert fold.digest() == plain.digest()


def test_fold_takes_buffers_only() -> None:
    fold = digest.ReplayDigest(*DOMAIN, SUBSCRIPTION, 9, 9, 0)
    with pytest.raises(TypeError):
        fold.update("text")  # type: ignore[arg-type]
    with pytest.raises(BufferError):
        fold.update(memoryview(bytes(8))[::2])
    assert fold.digest() == vector("RP-0 digest")


WITNESS_KEY = vector("witness public key (seed a0*32)")


@pytest.mark.req("P12-07")
def test_certificate_vector_and_signature() -> None:
    preimage = vector("AC preimage")
    body = preimage[-145:]
    assert digest.certificate_preimage(body) == preimage
    assert len(preimage) == 176
    assert digest.sha256(preimage) == vector("AC preimage SHA-256")
    signature = vector("AC signature")
    assert digest.sha256(body + signature) == vector("AC certificate SHA-256")
    ed25519.verify(WITNESS_KEY, digest.certificate_preimage(body), signature)
    with pytest.raises(ed25519.InvalidSignature):
        ed25519.verify(WITNESS_KEY, body, signature)


AUTHORITY = ed25519.SigningKey(Secret(b"\xa1" * 32))
WORKLOAD = ed25519.SigningKey(Secret(b"\xa2" * 32))
CLIENT_NONCE, SERVER_NONCE, INCARNATION = b"\xb1" * 32, b"\xb2" * 32, b"\x55" * 16
BINDING = vector("uds-peer channel_binding")
SERVICE = b"phux-coordinator"
SCOPE = (3).to_bytes(8, "big")
ServerFields = tuple[bytes, int, int, bytes, bytes, bytes, int, bytes, bytes]
SERVER_FIELDS: ServerFields = (
    SERVICE,
    0,
    1,
    CLIENT_NONCE,
    SERVER_NONCE,
    INCARNATION,
    1,
    BINDING,
    AUTHORITY.public_key,
)
PROOF = vector("authority_proof")
KEY_ID = vector("workload key_id")
CLIENT_FIELDS = (*SERVER_FIELDS, PROOF, KEY_ID, 2_000_000_000, SCOPE)


def client_with(position: int, value: Any) -> bytes:
    fields: list[Any] = list(CLIENT_FIELDS)
    fields[position] = value
    return digest.client_transcript(*fields)


def server_with(position: int, value: Any) -> bytes:
    fields: list[Any] = list(SERVER_FIELDS)
    fields[position] = value
    return digest.server_transcript(*fields)


@pytest.mark.req("W4-01")
def test_server_transcript_vectors() -> None:
    uds = digest.server_transcript(*SERVER_FIELDS)
    assert uds == vector("SERVER_TRANSCRIPT (UDS)")
    assert len(uds) == int(VECTORS["SERVER_TRANSCRIPT length"]) == 197
    assert digest.sha256(uds) == vector("SERVER_TRANSCRIPT SHA-256")
    assert AUTHORITY.sign(uds) == PROOF
    exporter = vector("TLS-Exporter over exporter_master_secret c3*32 (SHA-256 suite)")
    tls = digest.server_transcript(*SERVER_FIELDS[:6], 0, exporter, AUTHORITY.public_key)
    assert digest.sha256(tls) == vector("SERVER_TRANSCRIPT (TLS) SHA-256")
    assert AUTHORITY.sign(tls) == vector("authority_proof (TLS)")


@pytest.mark.req("W4-03")
def test_client_transcript_vectors() -> None:
    transcript = digest.client_transcript(*CLIENT_FIELDS)
    assert transcript == vector("CLIENT_TRANSCRIPT (UDS, scope 3, expiry 2000000000)")
    assert len(transcript) == int(VECTORS["CLIENT_TRANSCRIPT length"]) == 313
    assert digest.sha256(transcript) == vector("CLIENT_TRANSCRIPT SHA-256")
    assert WORKLOAD.sign(transcript) == vector("workload_proof")


def flips(value: bytes | int, width: int) -> list[bytes | int]:
    """The value with each of its bits flipped in turn."""
    if isinstance(value, int):
        return [value ^ (1 << bit) for bit in range(8 * width)]
    number = int.from_bytes(value, "big")
    return [(number ^ (1 << bit)).to_bytes(width, "big") for bit in range(8 * width)]


INT_WIDTHS = {1: 2, 2: 2, 6: 1, 11: 8}  # position in the fields -> bytes on the wire
COMPONENTS = [
    "service",
    "major",
    "minor",
    "client_nonce",
    "server_nonce",
    "incarnation",
    "binding_kind",
    "binding",
    "authority_key",
    "authority_proof",
    "key_id",
    "requested_expiry",
    "scope",
]


@pytest.mark.req("W4-10")
@pytest.mark.parametrize("position", range(len(COMPONENTS)), ids=COMPONENTS)
def test_every_bit_of_every_component_breaks_the_proof(position: int) -> None:
    value = CLIENT_FIELDS[position]
    width = len(value) if isinstance(value, bytes) else INT_WIDTHS[position]
    proof = vector("workload_proof")
    ed25519.verify(WORKLOAD.public_key, digest.client_transcript(*CLIENT_FIELDS), proof)
    for flipped in flips(value, width):
        with pytest.raises(ed25519.InvalidSignature):
            ed25519.verify(WORKLOAD.public_key, client_with(position, flipped), proof)
        if position < len(SERVER_FIELDS):
            with pytest.raises(ed25519.InvalidSignature):
                ed25519.verify(AUTHORITY.public_key, server_with(position, flipped), PROOF)


@pytest.mark.req("W4-10")
def test_tags_and_lengths_keep_components_apart() -> None:
    server, client = digest.server_transcript(*SERVER_FIELDS), digest.client_transcript(*CLIENT_FIELDS)
    assert server[:30] == b"phux-workload/v1\0server-proof\0"
    assert client[:30] == b"phux-workload/v1\0client-proof\0"
    assert server_with(0, SERVICE + b"\0")[30:32] == b"\0\x11"
    assert client_with(12, SCOPE + b"\0")[-13:-9] == b"\0\0\0\x09"


@pytest.mark.req("W5-08")
def test_uds_binding_vector() -> None:
    preimage = digest.uds_peer_preimage(SERVER_NONCE, 1000, 1000, 4242)
    assert preimage == vector("uds-peer preimage (uid 1000 gid 1000 pid 4242)")
    assert digest.uds_peer_binding(SERVER_NONCE, 1000, 1000, 4242) == BINDING
    others = {(1001, 1000, 4242), (1000, 1001, 4242), (1000, 1000, 4243), (1000, 4242, 1000)}
    assert BINDING not in {digest.uds_peer_binding(SERVER_NONCE, *peer) for peer in others}


@pytest.mark.req("W5-03")
def test_tls_context_vector() -> None:
    assert digest.tls_context(SERVICE, 0, 1) == vector("tls-context")
    assert digest.tls_context_preimage(SERVICE, 0, 1) == oracle.tls_context_preimage(SERVICE, 0, 1)
    assert digest.tls_context(SERVICE, 1, 0) != vector("tls-context")


FIXED_WIDTHS: list[Callable[[bytes], object]] = [
    lambda other: digest.snapshot_header(other, 5, 7, 0, 0),
    lambda other: digest.replay_header(other, 5, 7, SUBSCRIPTION, 0, 0, 0),
    lambda other: digest.replay_header(COORDINATOR, 5, 7, other, 0, 0, 0),
    lambda other: digest.SnapshotDigest(other, 5, 7, 0, 0),
    lambda other: digest.ReplayDigest(COORDINATOR, 5, 7, other, 0, 0, 0),
    lambda other: digest.certificate_preimage(other),
    lambda other: digest.uds_peer_binding(other, 0, 0, 0),
    *(partial(client_with, position) for position in (3, 4, 5, 7, 8, 9, 10)),
    *(partial(server_with, position) for position in (3, 4, 5, 7, 8)),
]


@pytest.mark.parametrize("call", FIXED_WIDTHS)
@pytest.mark.parametrize("width", [0, 15, 17, 31, 33, 63, 65, 144, 146])
def test_a_wrong_width_is_refused(call: Callable[[bytes], object], width: int) -> None:
    with pytest.raises(ValueError, match="bytes"):
        call(bytes(width))


@pytest.mark.parametrize(
    "call",
    [
        lambda: digest.operation_digest(1 << 16, b"", b"", 0, b""),
        lambda: digest.operation_digest(-1, b"", b"", 0, b""),
        lambda: digest.operation_digest(1, b"", b"", 1 << 16, b""),
        lambda: digest.effect_digest(256, b"", b""),
        lambda: digest.snapshot_header(COORDINATOR, 1 << 64, 1, 0, 0),
        lambda: digest.uds_peer_binding(SERVER_NONCE, -1, 0, 0),
        lambda: digest.tls_context(SERVICE, 1 << 16, 0),
    ],
)
def test_a_number_outside_its_field_is_refused(call: Callable[[], object]) -> None:
    with pytest.raises(OverflowError):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: digest.tls_context(bytes(1 << 16), 0, 1),
        lambda: digest.server_transcript(bytes(1 << 16), *SERVER_FIELDS[1:]),
        lambda: digest.operation_digest(1, None, b"", 0, b""),  # type: ignore[arg-type]
        lambda: digest.operation_digest(1, b"", None, 0, b""),  # type: ignore[arg-type]
        lambda: digest.effect_digest(1, None, b""),  # type: ignore[arg-type]
        lambda: digest.certificate_preimage(None),  # type: ignore[arg-type]
    ],
)
def test_a_part_that_its_length_cannot_hold_is_refused(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="bytes"):
        call()
