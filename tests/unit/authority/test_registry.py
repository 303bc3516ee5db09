"""The workload registry: its document, its file, its live snapshots and what it grants."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.base.ed25519 import InvalidKey, SigningKey, digest_text, fingerprint
from sidecar.base.safefile import UnsafeFile
from sidecar.base.secret import Secret
from sidecar.coordinator.authority.registry import (
    EMPTY,
    REGISTRY_LIMIT,
    REGISTRY_NAME,
    Grant,
    KeyRecord,
    Registry,
    RegistryMalformed,
    RegistryRefused,
    RegistryWatcher,
    add_key,
    format_registry,
    load_registry,
    parse_registry,
    revoke_key,
)
from sidecar.coordinator.wire.enums import Scope
from tests.canary import CANARY, spellings_in
from tests.oracles import ed25519 as oracle

NOW = 1_900_000_000.0
LATER = int(NOW) + 1000
KEYS = [SigningKey(Secret(bytes([number]) * 32)).public_key for number in range(1, 12)]
IDS = [fingerprint(key) for key in KEYS]
SMALL_KEY = bytes(32)
OFF_CURVE = (2).to_bytes(32, "little")
BOTH = int(Scope.WORK_READ | Scope.WORK_COMMAND)


def entry(number: int = 0, **changes: object) -> dict[str, Any]:
    """One valid member of "keys", with changes; a change to ``...`` leaves the member out."""
    members: dict[str, Any] = {
        "public_key": KEYS[number].hex(),
        "key_id": digest_text(IDS[number]),
        "service": "phux-coordinator",
        "scopes": 3,
        "expires_at": LATER,
        "revoked_at": None,
    }
    members.update(changes)
    return {name: value for name, value in members.items() if value is not ...}


def document(*entries: object, version: object = 1) -> bytes:
    return json.dumps({"version": version, "keys": list(entries)}).encode()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    path.mkdir(mode=0o700)
    return path


def enrol(state: Path, number: int = 0, scopes: int = BOTH, expires_at: int = LATER, **options: Any) -> KeyRecord:
    return add_key(state, KEYS[number], scopes, expires_at, now=NOW, **options)


def put(state: Path, data: bytes) -> None:
    """Replace the file as an editor would, without the product's help."""
    fresh = state / "fresh"
    fresh.write_bytes(data)
    fresh.chmod(0o600)
    fresh.rename(state / REGISTRY_NAME)


# ---- the document ----


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
    "small order": entry(public_key=SMALL_KEY.hex(), key_id=digest_text(fingerprint(SMALL_KEY))),
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


RECORDS = st.builds(
    lambda number, scopes, expires_at, revoked_at: KeyRecord.of(
        KEYS[number], scopes, expires_at, revoked_at=revoked_at
    ),
    st.integers(0, len(KEYS) - 1),
    st.integers(0, 63),
    st.integers(0, 2**64 - 1),
    st.none() | st.integers(0, 2**64 - 1),
)


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


# ---- what is granted ----


def registry(*records: KeyRecord) -> Registry:
    return Registry(records, generation=7)


RECORD = KeyRecord.of(KEYS[0], BOTH, LATER)


@pytest.mark.req("W6-02", "W6-01")
@pytest.mark.parametrize("expiry", [0, int(NOW) - 1, int(NOW)])
def test_both_expiries_must_lie_in_the_future(expiry: int) -> None:
    assert registry(RECORD).grant(IDS[0], BOTH, expiry, NOW) is None
    assert registry(replace(RECORD, expires_at=expiry)).grant(IDS[0], BOTH, LATER, NOW) is None
    assert registry(RECORD).grant(IDS[0], BOTH, int(NOW) + 1, NOW) is not None
    assert registry(replace(RECORD, expires_at=int(NOW) + 1)).grant(IDS[0], BOTH, LATER, NOW) is not None


@pytest.mark.req("W6-03")
@pytest.mark.parametrize(("requested", "granted"), [(LATER + 5, LATER), (LATER - 5, LATER - 5), (2**64 - 1, LATER)])
def test_the_grant_expires_with_the_earlier_of_both(requested: int, granted: int) -> None:
    grant = registry(RECORD).grant(IDS[0], BOTH, requested, NOW)
    assert grant is not None
    assert grant.expires_at == granted


@pytest.mark.req("W6-04")
def test_the_grant_carries_key_and_generation() -> None:
    assert registry(RECORD).grant(IDS[0], BOTH, LATER, NOW) == Grant(IDS[0], BOTH, LATER, 7)


@pytest.mark.req("W6-05")
def test_a_grant_has_no_serial_form() -> None:
    grant = Grant(IDS[0], BOTH, LATER, 7)
    serialisers: list[Callable[[Any], object]] = [pickle.dumps, json.dumps, copy.copy, bytes]
    for serialise in serialisers:
        with pytest.raises(TypeError):
            serialise(grant)


@pytest.mark.req("P6-05", "P6-06", "W6-06", "W10-08")
@settings(max_examples=200)
@given(requested=st.integers(0, 63), ceiling=st.integers(0, 63))
def test_the_scopes_are_the_exact_intersection(requested: int, ceiling: int) -> None:
    grant = registry(replace(RECORD, scopes=ceiling)).grant(IDS[0], requested, LATER, NOW)
    if requested & ceiling:
        assert grant is not None
        assert grant.scopes == requested & ceiling
    else:
        assert grant is None


@pytest.mark.req("P6-05")
def test_admin_implies_nothing_else() -> None:
    admin = registry(replace(RECORD, scopes=int(Scope.ADMIN)))
    grant = admin.grant(IDS[0], 63, LATER, NOW)
    assert grant is not None
    assert grant.scopes == Scope.ADMIN
    for scope in set(Scope) - {Scope.ADMIN}:
        assert admin.grant(IDS[0], int(scope), LATER, NOW) is None


@pytest.mark.req("W10-09", "P6-06", "W2-18")
def test_unknown_revoked_and_foreign_service_keys_get_nothing() -> None:
    assert registry(RECORD).grant(IDS[1], BOTH, LATER, NOW) is None
    assert registry(replace(RECORD, revoked_at=int(NOW) + 999)).grant(IDS[0], BOTH, LATER, NOW) is None
    assert registry(replace(RECORD, service="phux-terminal")).grant(IDS[0], BOTH, LATER, NOW) is None
    assert EMPTY.grant(IDS[0], BOTH, LATER, NOW) is None
    assert EMPTY.lookup(IDS[0]) is None


GRANT = Grant(IDS[0], BOTH, LATER - 10, 1)


@pytest.mark.req("W8-12")
@pytest.mark.parametrize(
    "change", [{"scopes": 63}, {"expires_at": LATER + 1000}, {"expires_at": LATER - 10}, {}], ids=str
)
def test_a_ceiling_that_contains_the_grant_leaves_it(change: dict[str, int]) -> None:
    assert registry(replace(RECORD, **change)).still_grants(GRANT, NOW)  # type: ignore[arg-type]


@pytest.mark.req("W8-07", "W10-09")
@pytest.mark.parametrize(
    "change",
    [
        {"scopes": int(Scope.WORK_READ)},
        {"scopes": 63 & ~int(Scope.WORK_COMMAND)},
        {"scopes": 0},
        {"expires_at": LATER - 11},
        {"expires_at": int(NOW)},
        {"revoked_at": 1},
        {"revoked_at": LATER + 1000},
        {"service": "phux-terminal"},
    ],
    ids=str,
)
def test_a_ceiling_that_does_not_contain_the_grant_ends_it(change: dict[str, Any]) -> None:
    assert not registry(replace(RECORD, **change)).still_grants(GRANT, NOW)


@pytest.mark.req("W8-07", "W2-22")
def test_removal_emptiness_and_time_end_a_grant() -> None:
    assert not registry(KeyRecord.of(KEYS[1], 63, LATER)).still_grants(GRANT, NOW)
    assert not EMPTY.still_grants(GRANT, NOW)
    assert registry(RECORD).still_grants(GRANT, GRANT.expires_at - 0.001)
    assert not registry(RECORD).still_grants(GRANT, GRANT.expires_at)


@pytest.mark.req("W8-07", "W8-12")
@settings(max_examples=200)
@given(
    old=RECORDS, new=RECORDS, requested=st.integers(0, 63), expiry=st.integers(0, 2**64 - 1), now=st.integers(0, 2**64)
)
def test_still_granted_means_that_the_new_record_would_allow_it(
    old: KeyRecord, new: KeyRecord, requested: int, expiry: int, now: int
) -> None:
    grant = registry(old).grant(old.key_id, requested, expiry, now)
    if grant is None:
        return
    again = registry(new).grant(grant.key_id, grant.scopes, grant.expires_at, now)
    assert registry(new).still_grants(grant, now) == (again == grant)


# ---- the file ----


@pytest.mark.req("W2-18", "W2-23", "W9-12")
def test_added_keys_are_in_the_file(state: Path) -> None:
    record = enrol(state)
    assert record == KeyRecord.of(KEYS[0], BOTH, LATER)
    enrol(state, 1, int(Scope.ADMIN))
    assert {item.key_id for item in load_registry(state).records} == {IDS[0], IDS[1]}
    assert (state / REGISTRY_NAME).stat().st_mode & 0o7777 == 0o600
    assert os.listdir(state) == [REGISTRY_NAME]


@pytest.mark.req("W2-19")
@pytest.mark.parametrize("key", [*(oracle.encode(point) for point in oracle.small_points()), OFF_CURVE, b"\xff" * 32])
def test_unacceptable_keys_are_not_added(state: Path, key: bytes) -> None:
    with pytest.raises(InvalidKey):
        add_key(state, key, BOTH, LATER, now=NOW)
    assert not list(state.iterdir())


@pytest.mark.req("W9-12")
def test_a_known_key_is_changed_only_on_request(state: Path) -> None:
    enrol(state)
    with pytest.raises(RegistryRefused, match="--replace"):
        enrol(state, scopes=63)
    assert load_registry(state).records[0].scopes == BOTH
    enrol(state, scopes=63, replace_existing=True)
    assert load_registry(state).records[0].scopes == 63


@pytest.mark.req("W9-12")
@pytest.mark.parametrize(("scopes", "expires_at"), [(0, LATER), (BOTH, int(NOW)), (64, LATER), (BOTH, 2**64)])
def test_useless_or_impossible_records_are_refused(state: Path, scopes: int, expires_at: int) -> None:
    with pytest.raises(ValueError, match=r"scope|expiry|time"):
        enrol(state, scopes=scopes, expires_at=expires_at)
    assert not list(state.iterdir())


@pytest.mark.req("W9-13", "W2-18")
def test_revocation_is_for_good(state: Path) -> None:
    enrol(state)
    enrol(state, 1)
    assert revoke_key(state, IDS[0], now=NOW).revoked_at == int(NOW)
    assert revoke_key(state, IDS[0], now=NOW + 100).revoked_at == int(NOW)
    loaded = load_registry(state)
    assert loaded.lookup(IDS[0]) == replace(RECORD, revoked_at=int(NOW))
    assert loaded.grant(IDS[1], BOTH, LATER, NOW) is not None
    for again in (False, True):
        with pytest.raises(RegistryRefused, match="revoked for good"):
            enrol(state, replace_existing=again)
    with pytest.raises(RegistryRefused, match="not enrolled"):
        revoke_key(state, IDS[2], now=NOW)


@pytest.mark.req("W2-20", "W2-21")
def test_a_malformed_file_is_not_repaired_by_a_change(state: Path) -> None:
    put(state, document(entry(scopes=64)))
    before = (state / REGISTRY_NAME).read_bytes()
    with pytest.raises(RegistryMalformed):
        enrol(state, 1)
    with pytest.raises(RegistryMalformed):
        revoke_key(state, IDS[0], now=NOW)
    assert (state / REGISTRY_NAME).read_bytes() == before


@pytest.mark.req("W2-21")
def test_an_unsafe_registry_is_refused(state: Path) -> None:
    enrol(state)
    path = state / REGISTRY_NAME
    path.chmod(0o640)
    for use in (lambda: load_registry(state), lambda: enrol(state, 1), lambda: revoke_key(state, IDS[0], now=NOW)):
        with pytest.raises(UnsafeFile, match="chmod 600"):
            use()
    real = path.rename(state / "real")
    real.chmod(0o600)
    path.symlink_to(real)
    with pytest.raises(UnsafeFile, match="not a regular file"):
        load_registry(state)
    path.unlink()
    real.rename(path)
    state.chmod(0o750)
    with pytest.raises(UnsafeFile, match="open to others"):
        load_registry(state)


@pytest.mark.req("W2-14", "W2-21")
def test_a_missing_registry_is_refused_and_not_created_by_loading(state: Path) -> None:
    with pytest.raises(UnsafeFile, match="add-key"):
        load_registry(state)
    with pytest.raises(UnsafeFile, match="add-key"):
        RegistryWatcher(state)
    assert not list(state.iterdir())


@pytest.mark.req("W2-13", "W2-21")
def test_concurrent_additions_all_arrive(state: Path) -> None:
    code = (
        "import sys; from sidecar.coordinator.authority.registry import add_key\n"
        f"for key in sys.argv[2:]: add_key(sys.argv[1], bytes.fromhex(key), 3, {LATER}, now={NOW})"
    )
    halves = KEYS[:5], KEYS[5:10]
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(state), *(key.hex() for key in half)]) for half in halves
    ]
    assert [process.wait() for process in processes] == [0, 0]
    assert len(load_registry(state).records) == 10
    assert os.listdir(state) == [REGISTRY_NAME]


@pytest.mark.req("W2-24")
def test_admission_opens_no_socket_and_starts_no_process(state: Path) -> None:
    """The whole use of the registry, under an audit hook that lists what the interpreter was asked to do."""
    enrol(state)
    code = (
        "import sys; from sidecar.coordinator.authority.registry import RegistryWatcher\n"
        "seen = []; sys.addaudithook(lambda event, _: seen.append(event))\n"
        f"watcher = RegistryWatcher(sys.argv[1]); watcher.poll()\n"
        f"assert watcher.current.grant(bytes.fromhex('{IDS[0].hex()}'), 3, {LATER}, {NOW}) is not None\n"
        "print(*{event for event in seen if event.split('.')[0] in ('socket', 'subprocess', 'os')})\n"
        "assert 'open' in seen"
    )
    done = subprocess.run([sys.executable, "-c", code, str(state)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


# ---- live snapshots ----


@pytest.mark.req("W2-23", "W6-04")
def test_changes_are_seen_without_a_restart(state: Path) -> None:
    enrol(state)
    watcher = RegistryWatcher(state)
    assert watcher.poll() is None
    assert watcher.current.lookup(IDS[0]) is not None
    generations = [watcher.current.generation]
    changes: list[Callable[[], KeyRecord]] = [
        lambda: enrol(state, 1),
        lambda: revoke_key(state, IDS[0], now=NOW),
        lambda: enrol(state, 1, 63, replace_existing=True),
    ]
    for change in changes:
        change()
        changed = watcher.poll()
        assert changed is watcher.current
        assert changed is not None
        assert changed.records == load_registry(state).records
        generations.append(changed.generation)
        assert watcher.poll() is None
    assert len(set(generations)) == len(generations)
    assert generations == sorted(generations)


Breakage = Callable[[Path], object]


def link_away(path: Path) -> None:
    path.rename(path.with_name("real"))
    path.symlink_to(path.with_name("real"))


BREAKAGES: dict[str, Breakage] = {
    "malformed": lambda path: path.write_bytes(b"{"),
    "one bad record": lambda path: put(path.parent, document(entry(1), entry(0, scopes=64))),
    "weak key": lambda path: put(path.parent, document(MALFORMED_ENTRIES["small order"])),
    "mode": lambda path: path.chmod(0o644),
    "removed": lambda path: path.unlink(),
    "link": link_away,
    "directory mode": lambda path: path.parent.chmod(0o750),
    "directory gone": lambda path: path.parent.rename(path.parent.with_name("gone")),
}


@pytest.mark.req("W2-22", "W2-20", "W2-21")
@pytest.mark.parametrize("breakage", BREAKAGES.values(), ids=BREAKAGES)
def test_a_broken_registry_is_empty_at_once_and_until_repaired(state: Path, breakage: Breakage) -> None:
    enrol(state)
    watcher = RegistryWatcher(state)
    grant = watcher.current.grant(IDS[0], BOTH, LATER, NOW)
    assert grant is not None
    breakage(state / REGISTRY_NAME)
    assert watcher.poll() is EMPTY
    assert watcher.current is EMPTY
    assert watcher.fault
    assert not watcher.current.still_grants(grant, NOW)
    assert watcher.poll() is None  # still empty: nothing new
    assert watcher.current is EMPTY

    state.mkdir(mode=0o700, exist_ok=True)
    state.chmod(0o700)
    put(state, document(entry(2)))
    repaired = watcher.poll()
    assert repaired is not None
    assert [record.key_id for record in repaired.records] == [IDS[2]]
    assert watcher.fault is None
    assert repaired.generation > grant.generation


@pytest.mark.req("W2-22")
def test_an_unreadable_moment_is_looked_at_again(state: Path) -> None:
    """Unsafe by its mode and repaired within one clock tick of the file system: no cached verdict may survive that."""
    enrol(state)
    watcher = RegistryWatcher(state)
    path = state / REGISTRY_NAME
    path.chmod(0o644)
    assert watcher.poll() is EMPTY
    path.chmod(0o600)
    assert watcher.poll() is watcher.current is not EMPTY
