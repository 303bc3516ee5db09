"""Commands, their identity and their refusals, seen by an independent client (P8-01 to P8-17, P7-16 to P7-26)."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from tests.interop.phux import enums as e
from tests.interop.phux import records as r
from tests.interop.phux import tlv
from tests.interop.phux.client import Client, Scoped
from tests.interop.phux.connection import Fatal
from tests.interop.phux.frames import Type, encode_body, message
from tests.interop.scenes import create, head, objective, refused, retain, update
from tests.interop.server import Server

CREATE, UPDATE = e.CommandKind.CREATE_OBJECTIVE, e.CommandKind.UPDATE_OBJECTIVE


def raw_command(client: Client, operation_id: bytes, kind: int, payload: bytes, **fields: Any) -> Any:
    """A command of already encoded parts; its operation result. Raises Scoped."""
    return client.call(Type.COORD_COMMAND, operation_id=operation_id, command_kind=kind, payload=payload, **fields)[
        "operation"
    ]


def conflicts(client: Client, code: e.ErrorCode, *command: Any, **fields: Any) -> None:
    with pytest.raises(Scoped) as caught:
        raw_command(client, *command, **fields)
    assert caught.value.code is code
    client.ping()


@pytest.mark.req("P8-01", "P8-02", "P8-12", "P8-14", "P8-17", "P14-08")
def test_a_repeated_command_has_one_result(client: Client, writer: Client) -> None:
    operation_id, values = secrets.token_bytes(16), objective()
    first = client.command(CREATE, values, operation_id=operation_id)
    base, _ = head(client)
    assert first == client.command(CREATE, values, operation_id=operation_id)
    assert first == writer.command(CREATE, values, operation_id=operation_id)
    assert first == client.lookup(operation_id) == writer.lookup(operation_id)
    assert head(client)[0] == base


@pytest.mark.req("P8-05", "P8-07", "P8-08", "P8-09", "P14-07", "E-06")
def test_what_does_not_change_the_command(client: Client, writer: Client) -> None:
    """Another field order, an empty precondition list and other request ids are the same command."""
    operation_id, values = secrets.token_bytes(16), objective()
    payload = r.COMMAND_PAYLOADS[CREATE].encode(values)
    first = raw_command(client, operation_id, CREATE, payload)
    turned = b"".join(tlv.field_bytes(*field) for field in reversed(tlv.split(payload)))
    assert first == raw_command(client, operation_id, CREATE, turned)
    assert first == raw_command(writer, operation_id, CREATE, payload, preconditions=[])


@pytest.mark.req("P8-06", "P8-07", "P8-10", "P14-07")
def test_what_does_change_the_command(client: Client) -> None:
    ref = create(client)
    operation_id = secrets.token_bytes(16)
    held = [r.Precondition(ref, 1)]
    payload = r.COMMAND_PAYLOADS[UPDATE].encode(objective(b"[1]", ref.id))
    extension = tlv.field_bytes(7, b"xyz")
    first = raw_command(client, operation_id, UPDATE, payload, preconditions=held, unknown=extension)
    assert first == raw_command(client, operation_id, UPDATE, payload, preconditions=held, unknown=extension)
    other = r.COMMAND_PAYLOADS[UPDATE].encode(objective(b"[2]", ref.id))
    same: dict[str, Any] = {"preconditions": held, "unknown": extension}
    for kind, body, fields in (
        (CREATE, payload, same),
        (UPDATE, other, same),
        (UPDATE, payload + tlv.field_bytes(9, b"\1"), same),
        (UPDATE, payload, {**same, "preconditions": None}),
        (UPDATE, payload, {**same, "preconditions": [r.Precondition(ref, 2)]}),
        (UPDATE, payload, {**same, "unknown": b""}),
        (UPDATE, payload, {**same, "unknown": tlv.field_bytes(8, b"xyz")}),
    ):
        conflicts(client, e.ErrorCode.OPERATION_CONFLICT, operation_id, kind, body, **fields)
    assert client.lookup(operation_id) == first


@pytest.mark.req("P8-05")
def test_preconditions_in_another_order_are_the_same(client: Client) -> None:
    refs = sorted((create(client) for _ in range(3)), key=lambda ref: ref.key)
    operation_id = secrets.token_bytes(16)
    payload = r.COMMAND_PAYLOADS[UPDATE].encode(objective(b"[1]", refs[0].id))
    images = [r.PRECONDITION.write(r.Precondition(ref, 1)) for ref in refs]
    results = []
    for order in (images, images[::-1]):
        known = encode_body(
            Type.COORD_COMMAND,
            {
                "request_id": 77,
                "authority_guard": client.guard,
                "operation_id": operation_id,
                "command_kind": UPDATE,
                "payload": payload,
                "unknown": tlv.field_bytes(6, tlv.U16.write(3) + b"".join(order)),
            },
        )
        client.connection.send_bytes(message(Type.COORD_COMMAND, known))
        frame = client.connection.receive()
        while frame.type is Type.COORD_AUTHORITY_RENEWED:
            frame = client.connection.receive()
        assert frame.type is Type.COORD_COMMAND_RESULT
        results.append(frame["operation"])
    assert results[0] == results[1]


@pytest.mark.req("P8-15", "P6-15", "P6-18")
def test_operations_belong_to_their_principal(server: Server, client: Client) -> None:
    operation_id, values = secrets.token_bytes(16), objective()
    result = client.command(CREATE, values, operation_id=operation_id)
    payload = r.COMMAND_PAYLOADS[CREATE].encode(values)
    with (
        server.client("admin", scopes=0x3F) as admin,
        server.client("reader", scopes=e.Scope.WORK_READ) as reader,
        server.client(scopes=e.Scope.ARTIFACT_READ) as blind,
    ):
        conflicts(admin, e.ErrorCode.OPERATION_CONFLICT, operation_id, CREATE, payload)
        assert admin.lookup(operation_id) == result
        assert reader.lookup(operation_id) == reader.lookup(secrets.token_bytes(16)) == r.Unknown()
        for wanted in (operation_id, secrets.token_bytes(16)):
            refused(e.ErrorCode.NOT_FOUND, blind, Type.GET_OPERATION_RESULT, operation_id=wanted)


@pytest.mark.req("P8-16", "P3-39", "P13-06", "P13-08")
def test_a_refused_command_leaves_nothing(client: Client) -> None:
    ref = create(client)
    update(client, ref, b"[1]")
    absent = r.ObjectRef(e.ObjectKind.OBJECTIVE, secrets.token_bytes(16))
    operation_id = secrets.token_bytes(16)
    payload = r.COMMAND_PAYLOADS[UPDATE].encode(objective(b"[2]", ref.id))
    for wrong in ((ref, 1), (ref, 3), (ref, 0), (absent, 1)):
        held = [r.Precondition(*wrong)]
        conflicts(client, e.ErrorCode.REVISION_CONFLICT, operation_id, UPDATE, payload, preconditions=held)
        assert client.lookup(operation_id) == r.Unknown()
    held = [r.Precondition(ref, 2), r.Precondition(absent, 0)]
    assert isinstance(raw_command(client, operation_id, UPDATE, payload, preconditions=held), r.Succeeded)
    again = r.COMMAND_PAYLOADS[CREATE].encode(objective(b"[3]", ref.id))
    conflicts(client, e.ErrorCode.REVISION_CONFLICT, secrets.token_bytes(16), CREATE, again)
    missing = r.COMMAND_PAYLOADS[UPDATE].encode(objective(b"[3]"))
    conflicts(client, e.ErrorCode.NOT_FOUND, secrets.token_bytes(16), UPDATE, missing)


@pytest.mark.req("P6-10", "P6-05", "W8-03", "W1-05", "P13-06")
def test_a_command_needs_its_scope(server: Server) -> None:
    payload = r.COMMAND_PAYLOADS[CREATE].encode(objective())
    operation_id = secrets.token_bytes(16)
    with (
        server.client("reader", scopes=e.Scope.WORK_READ) as reader,
        server.client("admin", scopes=e.Scope.ADMIN) as admin,
    ):
        for client in (reader, admin):
            conflicts(client, e.ErrorCode.SCOPE_DENIED, operation_id, CREATE, payload)
        assert admin.lookup(operation_id) == r.Unknown()


@pytest.mark.req("P5-17", "P7-26", "P5-16", "W1-05")
def test_a_command_needs_its_capability(server: Server) -> None:
    note = r.COMMAND_PAYLOADS[e.CommandKind.ACK_SIGNAL].encode({"signal_id": secrets.token_bytes(16)})
    with server.client(capabilities=0, scopes=0x1F) as client:
        create(client)
        operation_id = secrets.token_bytes(16)
        conflicts(client, e.ErrorCode.CAPABILITY_REQUIRED, operation_id, e.CommandKind.ACK_SIGNAL, note)
        assert client.lookup(operation_id) == r.Unknown()


@pytest.mark.req("P7-17")
def test_the_same_payload_under_another_operation_is_another_command(client: Client) -> None:
    ref = create(client)
    with pytest.raises(Scoped) as caught:
        create(client, b"{}", ref.id)
    assert caught.value.code is e.ErrorCode.REVISION_CONFLICT


@pytest.mark.req("P4-11", "P4-12", "P4-14")
@pytest.mark.parametrize("member", ["coordinator_id", "authority_epoch", "activation_sequence", "fencing_token_sha256"])
def test_a_command_under_another_guard_is_stale(client: Client, writer: Client, member: str) -> None:
    value = getattr(client.guard, member)
    wrong: dict[str, Any] = {member: value + 1 if isinstance(value, int) else value[::-1]}
    operation_id = secrets.token_bytes(16)
    payload = r.COMMAND_PAYLOADS[CREATE].encode(objective())
    with pytest.raises(Fatal) as caught:
        raw_command(client, operation_id, CREATE, payload, authority_guard=client.guard._replace(**wrong))
    assert caught.value.code is e.ErrorCode.STALE_AUTHORITY
    assert writer.lookup(operation_id) == r.Unknown()


@pytest.mark.req("P6-05", "P6-09", "P6-16", "P6-17", "P5-18")
def test_the_administration_is_seen_with_its_scope_and_capability(server: Server) -> None:
    admin = e.ObjectKind.ADMIN
    with (
        server.client("admin", scopes=0x3F, capabilities=0x1F) as full,
        server.client("admin", scopes=0x3F, capabilities=0) as incapable,
        server.client("admin", scopes=0x1F, capabilities=0x1F) as unscoped,
    ):
        retain(full, 1 << 20)
        assert admin in {record.object.kind for record in full.read_snapshot().records}
        for client in (incapable, unscoped):
            assert admin not in {record.object.kind for record in client.read_snapshot().records}


@pytest.mark.req("P5-10")
def test_results_cannot_be_kept_shorter_than_promised(server: Server) -> None:
    with server.client("admin", scopes=0x3F, capabilities=0x1F) as admin:
        values = {"operation_result_secs": 2_591_999, "event_bytes": 1 << 20, "artifact_bytes": 1 << 20}
        with pytest.raises(Fatal) as caught:
            admin.command(e.CommandKind.CHANGE_RETENTION, values)
        assert caught.value.code is e.ErrorCode.MALFORMED_MESSAGE
