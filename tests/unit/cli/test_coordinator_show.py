"""How wire values look at the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from sidecar.base.ed25519 import digest_text, parse_digest_text
from sidecar.cli import coordinator_show as show
from sidecar.cli.coordinator import hello
from sidecar.coordinator.client_trust import Admission
from sidecar.coordinator.wire.enums import AdminKind, ObjectKind, Scope
from sidecar.coordinator.wire.fields import Body
from sidecar.coordinator.wire.ids import KeyId, ObjectId, ObjectRevision
from sidecar.coordinator.wire.images import Record
from sidecar.coordinator.wire.payloads import AdminRecord
from sidecar.coordinator.wire.records import AdminCredential, AdminRetention, SnapshotRecord
from tests.unit.wire import samples


def members(value: Any) -> Iterator[tuple[str, Any]]:
    """Every named member, at any depth."""
    if isinstance(value, list):
        for item in value:
            yield from members(item)
    if isinstance(value, dict):
        for name, item in value.items():
            yield name, item
            yield from members(item)


def keys_in(value: Any) -> list[str]:
    return [item for name, item in members(value) if re.search("key_id$|fingerprint$", name)]


@pytest.mark.parametrize(
    "body",
    [*samples.PAYLOAD_SAMPLES.values(), *samples.COMMAND_SAMPLES.values()],
    ids=lambda value: type(value).__name__,
)
def test_key_ids_in_bodies_have_their_one_text_form(body: Body) -> None:
    for text in keys_in(show.body_of(body)):
        parse_digest_text(text)


@pytest.mark.parametrize("record", samples.RECORDS, ids=lambda value: type(value).__name__)
def test_key_ids_in_records_have_their_one_text_form(record: Record) -> None:
    for text in keys_in(show.value_of(record)):
        parse_digest_text(text)


def test_there_are_key_ids_among_the_samples() -> None:
    assert any(keys_in(show.body_of(body)) for body in samples.PAYLOAD_SAMPLES.values())
    assert any(keys_in(show.value_of(record)) for record in samples.RECORDS)


def test_the_table_shows_the_whole_key_id_of_an_operation() -> None:
    record = samples.record(ObjectKind.OPERATION)
    *_, detail = show.record_row(record)
    assert detail == f"principal={show.record_of(record)['principal_key_id']}"
    parse_digest_text(detail.removeprefix("principal="))


def test_an_administrative_record_shows_what_it_says() -> None:
    values = AdminRetention(2_592_000, 7, 8)
    payload = AdminRecord(admin_kind=AdminKind.RETENTION, payload=values.encode())
    record = SnapshotRecord(ObjectKind.ADMIN, ObjectId(b"\x11" * 16), ObjectRevision(3), 1, payload.body())
    shown = {"operation_result_secs": 2_592_000, "event_bytes": 7, "artifact_bytes": 8}
    assert show.body_of(payload) == {"admin_kind": "RETENTION", **shown}
    kind, _, revision, state, detail = show.record_row(record)
    assert (kind, revision, state) == ("ADMIN", "3", "RETENTION")
    assert detail == "operation_result_secs=2592000 event_bytes=7 artifact_bytes=8", "nothing of it is cut"


def test_a_registered_key_shows_its_whole_id_its_scopes_and_when_it_ends() -> None:
    key = KeyId(bytes(range(32)))
    for revoked, told in ((None, ""), (1, " revoked_at=1970-01-01T00:00:01Z")):
        values = AdminCredential(key, Scope.WORK_READ | Scope.ADMIN, 86_400, revoked)
        payload = AdminRecord(admin_kind=AdminKind.CREDENTIAL, payload=values.encode())
        record = SnapshotRecord(ObjectKind.ADMIN, ObjectId(key[:16]), ObjectRevision(1), 1, payload.body())
        *_, detail = show.record_row(record)
        assert detail == f"key_id={digest_text(key)} scopes=WORK_READ,ADMIN expires_at=1970-01-02T00:00:00Z{told}"


def test_every_admission_has_its_words_and_the_help_has_both() -> None:
    assert set(show.ADMISSION) == set(Admission)
    assert [admission.value for admission in Admission] == ["first", "same", "higher"], "scripts read these"
    for admission, words in show.ADMISSION.items():
        assert f"{admission.value:<10}{words.split(';')[0]}\n" in (hello.help or "") + "\n"
