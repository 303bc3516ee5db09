"""The document of the registry: exactly one form, all or nothing."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.base.ed25519 import digest_text, fingerprint
from sidecar.coordinator.authority.registry import (
    REGISTRY_LIMIT,
    KeyRecord,
    RegistryMalformed,
    format_registry,
    parse_registry,
)
from tests.canary import CANARY, spellings_in
from tests.unit.authority.keys import IDS, KEYS, LATER, OFF_CURVE, RECORDS, SMALL_ORDER_ENTRY, document, entry


@pytest.mark.req("W2-18")
def test_the_canonical_document() -> None:
    record = KeyRecord.of(KEYS[0], 3, LATER)
    revoked = replace(KeyRecord.of(KEYS[1], 1, LATER, service="other/service.1"), revoked_at=17)
    data = format_registry([record, revoked])
    first, second = sorted([record, revoked], key=lambda item: item.key_id)
    assert (
        data
        == b'{"version":1,"keys":['
        + b",".join(
            (
                f'{{"public_key":"{item.public_key.hex()}","key_id":"{digest_text(item.key_id)}",'
                f'"service":"{item.service}","scopes":{item.scopes},"expires_at":{item.expires_at},'
                f'"revoked_at":{"null" if item.revoked_at is None else item.revoked_at}}}'
            ).encode()
            for item in (first, second)
        )
        + b"]}"
    )
    assert parse_registry(data).records == (first, second)


@pytest.mark.req("W2-18")
def test_an_empty_document_is_valid() -> None:
    assert parse_registry(format_registry([])).records == ()


@pytest.mark.req("W2-18")
def test_white_space_and_member_order_do_not_matter() -> None:
    pretty = json.dumps({"keys": [entry()], "version": 1}, indent=2, sort_keys=True).encode()
    assert parse_registry(pretty + b"\n").records == parse_registry(document(entry())).records


MALFORMED_ENTRIES: dict[str, object] = {
    "unknown member": entry(note="x"),
    "no revoked_at": entry(revoked_at=...),
    "no service": entry(service=...),
    "not an object": [],
    "null": None,
    "key id of another key": entry(key_id=digest_text(IDS[1])),
    "key id upper case": entry(key_id="sha256:" + IDS[0].hex().upper()),
    "key id without prefix": entry(key_id=IDS[0].hex()),
    "key id surrogate": entry(key_id="\ud800"),
    "key upper case": entry(public_key=KEYS[0].hex().upper()),
    "key short": entry(public_key=KEYS[0].hex()[:-2]),
    "key base64": entry(public_key="A" * 43 + "="),
    "key number": entry(public_key=1),
    "small order": SMALL_ORDER_ENTRY,
    "off curve": entry(public_key=OFF_CURVE.hex(), key_id=digest_text(fingerprint(OFF_CURVE))),
    "non-canonical": entry(public_key="ff" * 32, key_id=digest_text(fingerprint(b"\xff" * 32))),
    "unknown scope bit": entry(scopes=0x40),
    "unknown high scope bit": entry(scopes=1 << 63),
    "negative scopes": entry(scopes=-1),
    "scopes beyond u64": entry(scopes=1 << 64, service="other"),
    "scopes bool": entry(scopes=True),
    "scopes float": entry(scopes=3.0),
    "scopes names": entry(scopes="WORK_READ"),
    "expiry bool": entry(expires_at=False),
    "expiry negative": entry(expires_at=-1),
    "expiry beyond u64": entry(expires_at=1 << 64),
    "expiry null": entry(expires_at=None),
    "revocation float": entry(revoked_at=1e3),
    "revocation beyond u64": entry(revoked_at=1 << 64),
    "service upper case": entry(service="Phux-coordinator"),
    "service empty": entry(service=""),
    "service long": entry(service="a" * 65),
    "service NUL": entry(service="a\0"),
    "service not ascii": entry(service="caf\u00e9"),
    "service surrogate": entry(service="\ud800"),
    "service newline": entry(service="phux-coordinator\n"),
}


@pytest.mark.req("W2-18", "W2-19", "W2-20", "W10-06")
@pytest.mark.parametrize("bad", MALFORMED_ENTRIES.values(), ids=MALFORMED_ENTRIES)
def test_one_bad_record_among_ten_spoils_the_snapshot(bad: object) -> None:
    good = [entry(number) for number in range(1, 10)]
    assert len(parse_registry(document(*good)).records) == 9
    for place in (0, 5, 9):
        with pytest.raises(RegistryMalformed) as refused:
            parse_registry(document(*good[:place], bad, *good[place:]))
        assert "\n" not in str(refused.value)


@pytest.mark.req("W1-04")
@pytest.mark.parametrize("service", ["a", "a" * 64, "phux-coordinator", "x/y.z-0"])
def test_services_of_the_grammar_are_accepted_byte_for_byte(service: str) -> None:
    assert parse_registry(document(entry(service=service))).records[0].service == service


GOOD_ENTRY = json.dumps(entry())
MALFORMED_DOCUMENTS: dict[str, bytes] = {
    "empty": b"",
    "not JSON": b"workload keys",
    "two documents": document() + document(),
    "not UTF-8": document(entry()).replace(b"phux", b"ph\xffx"),
    "UTF-16": json.dumps({"version": 1, "keys": []}).encode("utf-16"),
    "byte order mark": b"\xef\xbb\xbf" + document(),
    "array": b"[]",
    "version 2": document(version=2),
    "version true": document(version=True),
    "version 1.0": document(version=1.0),
    "version text": document(version="1"),
    "no version": b'{"keys":[]}',
    "no keys": b'{"version":1}',
    "unknown member": b'{"version":1,"keys":[],"x":0}',
    "keys object": b'{"version":1,"keys":{}}',
    "duplicate member": b'{"version":1,"keys":[],"keys":[]}',
    "duplicate member of a key": b'{"version":1,"keys":[' + GOOD_ENTRY[:-1].encode() + b',"scopes":3}]}',
    "duplicate key id": document(entry(), entry(1), entry(scopes=1)),
    "NaN": document(entry()).replace(b'"scopes": 3', b'"scopes": NaN'),
    "Infinity": document(entry()).replace(b'"scopes": 3', b'"scopes": Infinity'),
    "huge number": document(entry()).replace(b'"scopes": 3', b'"scopes": ' + b"9" * 9000),
    "exponent": document(entry()).replace(b'"scopes": 3', b'"scopes": 3e0'),
    "deep": b"[" * 100_000 + b"]" * 100_000,
    "too long": document(entry()) + b" " * REGISTRY_LIMIT,
}


@pytest.mark.req("W2-18", "W2-20", "W10-06", "W10-07")
@pytest.mark.parametrize("data", MALFORMED_DOCUMENTS.values(), ids=MALFORMED_DOCUMENTS)
def test_malformed_documents(data: bytes) -> None:
    with pytest.raises(RegistryMalformed) as refused:
        parse_registry(data)
    assert len(str(refused.value)) < 200


@pytest.mark.req("W2-18")
def test_the_size_limit_is_exact() -> None:
    data = document(entry())
    assert parse_registry(data.ljust(REGISTRY_LIMIT)).records
    with pytest.raises(RegistryMalformed, match="longer than"):
        parse_registry(data.ljust(REGISTRY_LIMIT + 1))


@pytest.mark.req("W9-17")
@pytest.mark.parametrize(
    "data",
    [
        CANARY,
        CANARY.hex().encode(),
        document(entry(public_key=CANARY.hex())),
        document(entry(note=CANARY.hex())),
        document(entry(key_id=CANARY.hex())),
        b'{"version":1,"keys":[' + CANARY,
        b"\xff" + CANARY,
    ],
)
def test_a_private_key_in_the_wrong_place_is_not_repeated(data: bytes) -> None:
    with pytest.raises(RegistryMalformed) as refused:
        parse_registry(data)
    chain: BaseException | None = refused.value
    while chain is not None:
        assert not spellings_in(f"{chain} {chain!r}")
        chain = chain.__cause__ or (None if chain.__suppress_context__ else chain.__context__)


@settings(max_examples=200, deadline=None)
@given(data=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace"))))
def test_any_bytes_are_a_registry_or_malformed(data: bytes) -> None:
    try:
        registry = parse_registry(data)
    except RegistryMalformed:
        return
    assert parse_registry(format_registry(registry.records)) == registry


@pytest.mark.req("W2-18")
@settings(max_examples=100, deadline=None)
@given(records=st.lists(RECORDS, unique_by=lambda record: record.key_id, max_size=6))
def test_the_document_round_trips(records: list[KeyRecord]) -> None:
    parsed = parse_registry(format_registry(records))
    assert set(parsed.records) == set(records)
    assert format_registry(parsed.records) == format_registry(reversed(records))


@pytest.mark.req("W2-20")
@settings(max_examples=150, deadline=None)
@given(position=st.integers(0, 2**31), byte=st.integers(0, 255))
def test_a_changed_byte_never_changes_a_key_silently(position: int, byte: int) -> None:
    """Whatever one byte of damage does, a key id stays the hash of its key and an acceptable point."""
    data = bytearray(format_registry([KeyRecord.of(KEYS[0], 3, LATER)]))
    data[position % len(data)] = byte
    try:
        registry = parse_registry(bytes(data))
    except RegistryMalformed:
        return
    for record in registry.records:
        assert fingerprint(record.public_key) == record.key_id == IDS[0]
