"""The schema tables as plain data for the oracle: frames, command and record payloads, positional records.

A line of a schema is ``id name type`` with ``?`` behind an optional one. Types: numbers and widths (``u8 u16 u32 u64
i32 b32 b64``), ``id`` (16 bytes, nonzero), ``n32`` (nonzero), ``seq`` (nonzero u64), ``req`` (nonzero u32) and the
names in ``TYPES``.
"""

from __future__ import annotations

from typing import Any

Spec = Any
Schema = dict[int, tuple[str, Spec, bool]]

TYPED = 262_144
PAGE = 524_288


def codes(first: int, last: int) -> frozenset[int]:
    return frozenset(range(first, last + 1))


TYPES: dict[str, Spec] = {
    "bool": ("enum", "u8", codes(0, 1)),
    "zero": ("enum", "u8", codes(0, 0)),
    "schema": ("enum", "u16", codes(1, 1)),
    "retention": ("enum", "u64", range(2_592_000, 1 << 64)),
    "object_kind": ("enum", "u16", codes(1, 10)),
    "event_kind": ("enum", "u16", codes(1, 14)),
    "gap_reason": ("enum", "u8", codes(0, 7)),
    "code": ("enum", "u16", codes(1, 14) | {255}),
    "end_reason": ("enum", "u8", codes(0, 3)),
    "state_2": ("enum", "u8", codes(0, 1)),
    "state_3": ("enum", "u8", codes(0, 2)),
    "state_4": ("enum", "u8", codes(0, 3)),
    "state_6": ("enum", "u8", codes(0, 5)),
    "signal_kind": ("enum", "u16", codes(1, 4)),
    "admin_kind": ("enum", "u16", codes(1, 3)),
    "binding_kind": ("enum", "u8", codes(0, 1)),
    "scope": ("enum", "u64", codes(0, 0x3F)),
    "name": ("str", 128),
    "diagnostic": ("str", 1_024),
    "cursor": ("leaf", 4_096),
    "typed": ("leaf", TYPED),
    "host": ("str", 255),
    "profile": ("const", b"\x00\x00\x00\x10phux-workload/v1"),
    "service": ("const", b"\x00\x00\x00\x10phux-coordinator"),
    "scopes": ("framed", "scope"),
    "guard": ("rec", "id", "seq", "seq", "b32"),
    "ref": ("rec", "object_kind", "id"),
    "precondition": ("rec", "ref", "u64"),
    "preconditions": ("list", "precondition", 64),
    "offer": ("rec", "profile", "n32"),
    "grant": ("rec", "b32", "b32", "u64", "scopes"),
    "certificate": ("rec", ("const", b"\x01"), "id", "id", "seq", "seq", "id", "b32", "u64", "u64", "b32", "b64"),
    "operation": (
        "union",
        {
            0: ("seq", "seq"),
            1: ("seq", ("enum", "u16", codes(0, 3)), "typed"),
            2: ("seq", "code", "diagnostic"),
            3: ("state_3", ("opt", "id")),
            4: ("b32", ("enum", "u8", codes(1, 3))),
            5: (),
        },
    ),
    "record": ("rec", "object_kind", "id", "seq", "schema", ("leaf", PAGE)),
    "records": ("list", "record", 1_024),
    "event": ("rec", "seq", "id", "event_kind", "ref", "seq", "schema", "typed"),
    "events": ("list", "event", 1_024),
    "resource": ("union", {0: ("u32",), 1: ("host", "u32")}),
    "group": ("framed", "u32"),
    "binding": ("rec", "id", "id", "b32", "id", ("framed", "resource")),
    "source": ("rec", "id", "b32", "id", "seq"),
    "fact": ("rec", "source", ("enum", "u16", codes(1, 6)), "schema", "typed"),
    "source_gap": ("rec", "id", "seq", "seq", "state_3"),
    "target": ("union", {0: ("id", "b32", "id", "group"), 1: ("binding",)}),
    "attempt": (
        "rec",
        "id",
        "id",
        ("enum", "u8", codes(1, 3)),
        "target",
        "b32",
        ("leaf", TYPED + 22),
        ("enum", "u8", codes(0, 4)),
    ),
    "admin_1": ("rec", "seq", "seq", "id", "b32", "u64"),
    "admin_2": ("rec", "retention", "u64", "u64"),
    "admin_3": ("rec", "b32", "scope", "u64", ("opt", "u64")),
}

RESULTS: dict[int, Spec] = {
    0: ("rec",),
    1: "ref",
    2: ("rec", "id", "id", ("opt", "id")),
    3: ("rec", "u16", "typed"),
}
FACTS: dict[int, Spec] = {
    1: ("rec",),
    2: ("rec", ("opt", "i32")),
    3: ("rec", "id", "state_3"),
    4: ("rec", "id", "state_3"),
    5: ("rec", "u64", "u64", "u64", "b32"),
    6: ("rec", ("enum", "u16", codes(1, 3))),
}
EFFECT_PAYLOADS: dict[int, Spec] = {
    1: ("rec", "id", "u16", "typed"),
    2: ("rec",),
    3: ("rec", ("enum", "u8", codes(0, 2))),
}
EVENTS: dict[int, tuple[set[int], str]] = {
    1: ({1}, "record"),
    2: ({2}, "record"),
    3: ({3}, "record"),
    4: ({4}, "record"),
    5: ({4}, "record"),
    6: ({5, 10}, "record"),
    7: ({6}, "record"),
    8: ({6}, "record"),
    9: ({6}, "record"),
    10: ({6}, "record"),
    11: ({7}, "record"),
    12: ({4}, "fact"),
    13: ({4}, "source_gap"),
    14: ({8}, "record"),
}


def schema(lines: str) -> Schema:
    found: Schema = {}
    for line in lines.split(" · "):
        number, name, spec = line.split()
        found[int(number)] = (name, spec.removesuffix("?"), not spec.endswith("?"))
    return found


LIMITS = (
    "{0} max_frame_bytes u32 · {1} max_page_bytes u32 · {2} max_page_records u16 · "
    "{3} max_typed_payload_bytes u32 · {4} max_event_credit_count u32 · {5} max_event_credit_bytes u32"
)
VERSION = "1 protocol_major u16 · 2 protocol_minor u16 · 3 protocol_patch u16"
ASK = "1 request_id req · 2 authority_guard guard"

FRAMES: dict[int, Schema] = {
    0x01: schema(
        f"{VERSION} · 4 client_name name · 5 offered_capabilities u64 · 6 required_capabilities u64 · "
        f"{LIMITS.format(*range(7, 13))} · 13 workload_offer offer"
    ),
    0x04: schema("1 key_id b32 · 2 requested_scope_bytes scopes · 3 requested_expiry u64 · 4 workload_proof b64"),
    0x10: schema(f"{ASK} · 3 operation_id id · 4 command_kind u16 · 5 payload typed · 6 preconditions preconditions?"),
    0x11: schema(f"{ASK} · 3 operation_id id"),
    0x20: schema(f"{ASK} · 3 selector zero · 4 reserve_subscription bool · 5 replace_paused_subscription id?"),
    0x21: schema("1 request_id req · 2 snapshot_id id · 3 cursor cursor"),
    0x22: schema(
        "1 request_id req · 2 snapshot_id id · 3 subscription_id id? · 4 initial_credit_count u32 · "
        "5 initial_credit_bytes u32"
    ),
    0x23: schema(f"{ASK} · 3 after_event_sequence u64 · 4 initial_credit_count u32 · 5 initial_credit_bytes u32"),
    0x24: schema("1 subscription_id id · 2 add_count u32 · 3 add_bytes u32"),
    0x25: schema(f"{ASK} · 3 subscription_id id · 4 after_event_sequence u64"),
    0x26: schema("1 request_id req · 2 replay_id id · 3 cursor cursor"),
    0x27: schema(
        "1 request_id req · 2 replay_id id · 3 subscription_id id · 4 initial_credit_count u32 · "
        "5 initial_credit_bytes u32"
    ),
    0x7F: schema("1 nonce u64"),
    0x80: schema(
        f"{VERSION} · 4 negotiated_capabilities u64 · 5 coordinator_id id · 6 authority_epoch seq · "
        f"7 incarnation_id id · {LIMITS.format(*range(8, 14))} · 14 workload_grant grant · "
        "15 operation_result_retention_secs retention · 16 activation_certificate certificate"
    ),
    0x82: schema("1 request_id req"),
    0x83: schema("1 activation_certificate certificate"),
    0x84: schema(
        "1 profile profile · 2 service service · 3 negotiated_major u16 · 4 negotiated_minor u16 · "
        "5 client_nonce n32 · 6 server_nonce n32 · 7 server_incarnation id · 8 channel_binding_kind binding_kind · "
        "9 channel_binding b32 · 10 authority_public_key b32 · 11 authority_proof b64"
    ),
    0x90: schema("1 request_id req · 2 operation operation"),
    0x91: schema("1 request_id req · 2 operation operation"),
    0xA0: schema(
        "1 request_id req · 2 snapshot_id id · 3 authority_guard guard · 4 base_event_sequence u64 · "
        "5 first_cursor cursor? · 6 subscription_id id? · 7 lease_expires_at u64"
    ),
    0xA1: schema(
        "1 request_id req · 2 snapshot_id id · 3 cursor cursor · 4 page_index u32 · 5 records records · "
        "6 next_cursor cursor?"
    ),
    0xA2: schema(
        "1 request_id req · 2 snapshot_id id · 3 page_count u32 · 4 record_count u64 · 5 canonical_sha256 b32"
    ),
    0xA3: schema("1 request_id req · 2 subscription_id id · 3 next_delivery_sequence seq"),
    0xA4: schema(
        "1 request_id req · 2 replay_id id · 3 subscription_id id · 4 first_event seq? · 5 replay_cut u64 · "
        "6 first_cursor cursor? · 7 lease_expires_at u64"
    ),
    0xA5: schema(
        "1 request_id req · 2 replay_id id · 3 cursor cursor · 4 page_index u32 · 5 events events · "
        "6 next_cursor cursor?"
    ),
    0xA6: schema("1 request_id req · 2 replay_id id · 3 page_count u32 · 4 event_count u64 · 5 canonical_sha256 b32"),
    0xB0: schema(
        "1 subscription_id id · 2 delivery_sequence seq · 3 event_sequence seq · 4 event_id id · "
        "5 event_kind event_kind · 6 object ref · 7 object_revision seq · 8 schema schema · 9 payload typed"
    ),
    0xB1: schema(
        "1 subscription_id id · 2 last_contiguous_delivery u64 · 3 last_contiguous_event u64 · 4 observed_event seq? · "
        "5 reason gap_reason"
    ),
    0xC0: schema("1 request_id req? · 2 code code · 3 message diagnostic"),
    0xFF: schema("1 nonce u64"),
}

COMMANDS: dict[int, str] = {
    1: "objective",
    2: "objective",
    3: "start",
    4: "run",
    5: "run",
    6: "run",
    7: "signal",
    8: "signal",
    9: "manifest",
    10: "end",
    11: "change",
}
RECORDS: dict[int, str] = {
    1: "OBJECTIVE",
    2: "RUN",
    3: "WORK_SESSION",
    4: "BINDING",
    5: "ARTIFACT",
    6: "SIGNAL",
    7: "OPERATION",
    8: "EVIDENCE",
    9: "ADMIN",
    10: "manifest",
}
BODIES: dict[str, Schema] = {
    "objective": schema("1 objective_id id · 2 schema u16 · 3 document typed"),
    "start": schema(
        "1 objective_id id · 2 run_id id · 3 work_session_id id · 4 executor_schema u16 · 5 executor_document typed · "
        "6 pending_binding_id id · 7 owner_authority_fingerprint b32 · 8 owner_incarnation id · 9 terminal_group group"
    ),
    "run": schema("1 run_id id"),
    "signal": schema("1 signal_id id · 2 note diagnostic?"),
    "manifest": schema("1 artifact_id id · 2 revision u64 · 3 schema u16 · 4 manifest typed"),
    "end": schema("1 binding_id id · 2 reason end_reason"),
    "change": schema("1 operation_result_secs retention · 2 event_bytes u64 · 3 artifact_bytes u64"),
    "OBJECTIVE": schema("1 document_schema u16 · 2 document typed · 3 state state_3"),
    "RUN": schema("1 objective_id id · 2 attempt u32 · 3 state state_6 · 4 outcome typed?"),
    "WORK_SESSION": schema("1 run_id id · 2 state state_2 · 3 active_binding id?"),
    "BINDING": schema("1 binding binding · 2 state state_2 · 3 end_reason end_reason?"),
    "ARTIFACT": schema("1 work_session_id id · 2 latest_revision u64"),
    "SIGNAL": schema("1 work_session_id id · 2 kind signal_kind · 3 state state_4 · 4 message diagnostic"),
    "OPERATION": schema("1 principal_key_id b32 · 2 result operation"),
    "EVIDENCE": schema("1 work_session_id id · 2 artifact_id id · 3 seal_sha256 b32"),
    "ADMIN": schema("1 admin_kind admin_kind · 2 payload typed"),
}
