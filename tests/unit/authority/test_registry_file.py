"""The registry file: locked changes, strict reads, live snapshots."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sidecar.base.ed25519 import InvalidKey
from sidecar.base.safefile import UnsafeFile
from sidecar.coordinator.authority.registry import (
    EMPTY,
    REGISTRY_NAME,
    KeyRecord,
    RegistryMalformed,
    RegistryRefused,
    RegistryWatcher,
    add_key,
    load_registry,
    revoke_key,
)
from sidecar.coordinator.wire.enums import Scope
from tests.oracles import ed25519 as oracle
from tests.unit.authority.keys import (
    BOTH,
    IDS,
    KEYS,
    LATER,
    NOW,
    OFF_CURVE,
    RECORD,
    SMALL_ORDER_ENTRY,
    document,
    enrol,
    entry,
    put,
)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    path.mkdir(mode=0o700)
    return path


# ---- changes ----


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
        with pytest.raises(UnsafeFile, match=f"chmod 600 {path}"):
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
    "weak key": lambda path: put(path.parent, document(SMALL_ORDER_ENTRY)),
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


OUT_OF_DESCRIPTORS = """
import resource, sys
from sidecar.coordinator.authority.registry import EMPTY, RegistryWatcher
watcher = RegistryWatcher(sys.argv[1])
print("started", flush=True)
sys.stdin.readline()  # the file is changed meanwhile
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
assert watcher.poll() is EMPTY and "Too many open files" in watcher.fault
assert watcher.poll() is None
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
assert len(watcher.poll().records) == 2
"""


@pytest.mark.req("W2-22")
def test_a_failure_that_leaves_no_trace_in_the_file_is_tried_again(state: Path) -> None:
    enrol(state)
    argv = [sys.executable, "-c", OUT_OF_DESCRIPTORS, str(state)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        enrol(state, 1)
        process.communicate("go\n")
        assert process.returncode == 0


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


@pytest.mark.req("W2-22")
def test_a_failure_of_any_kind_leaves_no_older_generation_in_force(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enrol(state)
    watcher = RegistryWatcher(state)
    enrol(state, 1)

    def exhausted(*_: object, **__: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr("sidecar.coordinator.authority.registry.load_registry", exhausted)
        assert watcher.poll() is EMPTY
        assert watcher.fault == "MemoryError"
        assert watcher.poll() is None
    again = watcher.poll()
    assert again is not None
    assert len(again.records) == len(load_registry(state).records) > 0
    assert watcher.fault is None
