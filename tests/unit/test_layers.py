"""Imports go down only: cli -> app -> rooms -> ops -> base -> cext, and cores stay free of I/O."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Room -> rooms that it may import. A room may always import itself.
ALLOWED: dict[str, set[str]] = {
    "cext": set(),
    "sidecar.base": {"cext"},
    "sidecar.ops": {"sidecar.base", "sidecar.coordinator.wire", "sidecar.coordinator.engine.observer"},
    "sidecar.coordinator": {"sidecar.ops", "sidecar.base", "cext"},
    "sidecar.witness": {"sidecar.ops", "sidecar.base", "sidecar.coordinator.wire", "cext"},
    "sidecar.rails": {"sidecar.ops", "sidecar.base", "cext"},
    "sidecar.bridge": {"sidecar.coordinator", "sidecar.rails", "sidecar.ops", "sidecar.base"},
    "sidecar.app": {
        "sidecar.bridge",
        "sidecar.coordinator",
        "sidecar.witness",
        "sidecar.rails",
        "sidecar.ops",
        "sidecar.base",
        "cext",
    },
    "sidecar.cli": {
        "sidecar.app",
        "sidecar.coordinator",
        "sidecar.witness",
        "sidecar.rails",
        "sidecar.ops",
        "sidecar.base",
    },
}

# Cores: values in, values out. Time, entropy and I/O come in as arguments.
CORES = [
    "sidecar/bridge/pages.py",
    "sidecar/coordinator/wire",
    "sidecar/coordinator/engine",
    "sidecar/coordinator/machines",
    "sidecar/coordinator/session.py",
    "sidecar/coordinator/client_connection.py",
    "sidecar/coordinator/client_core.py",
    "sidecar/coordinator/client_events.py",
    "sidecar/coordinator/client_handshake.py",
    "sidecar/coordinator/client_healing.py",
    "sidecar/coordinator/client_replay.py",
    "sidecar/coordinator/client_requests.py",
    "sidecar/coordinator/client_snapshot.py",
    "sidecar/coordinator/client_stream.py",
    "sidecar/coordinator/client_trust.py",
    "sidecar/coordinator/values.py",
    "sidecar/rails/connection/faults.py",
    "sidecar/rails/connection/ordered.py",
    "sidecar/rails/connection/overlap.py",
    "sidecar/rails/connection/policy.py",
    "sidecar/rails/endpoint/artifacts.py",
    "sidecar/rails/endpoint/clusters.py",
    "sidecar/rails/endpoint/calls_joining.py",
    "sidecar/rails/endpoint/calls_kept.py",
    "sidecar/rails/endpoint/calls_repeat.py",
    "sidecar/rails/endpoint/calls_replies.py",
    "sidecar/rails/endpoint/calls_request.py",
    "sidecar/rails/endpoint/calls_trace.py",
    "sidecar/rails/endpoint/calls_types.py",
    "sidecar/rails/endpoint/codes.py",
    "sidecar/rails/endpoint/contract.py",
    "sidecar/rails/endpoint/contracts.py",
    "sidecar/rails/endpoint/descriptor.py",
    "sidecar/rails/endpoint/envelope.py",
    "sidecar/rails/endpoint/identity.py",
    "sidecar/rails/endpoint/judge.py",
    "sidecar/rails/endpoint/serve_results.py",
    "sidecar/rails/endpoint/registry_contracts.py",
    "sidecar/rails/endpoint/schema_cost.py",
    "sidecar/rails/endpoint/schema_patterns.py",
    "sidecar/rails/endpoint/schema_walk.py",
    "sidecar/rails/endpoint/schemas.py",
    "sidecar/rails/endpoint/service_record.py",
    "sidecar/rails/endpoint/scatter.py",
    "sidecar/rails/endpoint/shapes.py",
    "sidecar/rails/endpoint/slots.py",
    "sidecar/rails/messaging/joinlink.py",
    "sidecar/rails/messaging/slots.py",
    "sidecar/rails/planes/delivery/anycast.py",
    "sidecar/rails/planes/delivery/connections.py",
    "sidecar/rails/planes/delivery/feed_rows.py",
    "sidecar/rails/planes/registration/census.py",
    "sidecar/rails/planes/registration/faults.py",
    "sidecar/rails/planes/registration/gates.py",
    "sidecar/rails/planes/registration/govern.py",
    "sidecar/rails/planes/registration/merged.py",
    "sidecar/rails/planes/registration/naming.py",
    "sidecar/rails/planes/registration/record_status.py",
    "sidecar/rails/messaging/desk.py",
    "sidecar/rails/messaging/drafts.py",
    "sidecar/rails/messaging/identity.py",
    "sidecar/rails/messaging/roster.py",
    "sidecar/rails/messaging/membership.py",
    "sidecar/rails/planes/delivery/membership.py",
    "sidecar/rails/planes/delivery/index.py",
    "sidecar/rails/planes/registry/coverage.py",
    "sidecar/rails/planes/registry/listing.py",
    "sidecar/rails/space/audit.py",
    "sidecar/rails/space/claims.py",
    "sidecar/rails/space/floor.py",
    "sidecar/rails/space/grants.py",
    "sidecar/rails/space/holder.py",
    "sidecar/rails/space/layout.py",
    "sidecar/rails/space/matrix.py",
    "sidecar/rails/space/nkeys.py",
    "sidecar/rails/messaging/held.py",
    "sidecar/rails/messaging/pacing.py",
    "sidecar/rails/messaging/take_steps.py",
    "sidecar/rails/names",
    "sidecar/witness/protocol.py",
    "sidecar/witness/state.py",
    "sidecar/rails/space/ceilings.py",
    "sidecar/rails/space/evidence.py",
    "sidecar/rails/space/fixtures.py",
    "sidecar/rails/space/heads.py",
    "sidecar/rails/space/layout_control.py",
    "sidecar/rails/space/matrix_calls.py",
    "sidecar/rails/space/matrix_control.py",
    "sidecar/rails/space/matrix_hosts.py",
    "sidecar/rails/space/matrix_serve.py",
    "sidecar/rails/space/may.py",
    "sidecar/rails/space/reading.py",
    "sidecar/rails/space/rows.py",
]
FORBIDDEN_IN_CORES = {
    "apsw",
    "asyncio",
    "nats",
    "os",
    "random",
    "secrets",
    "socket",
    "sqlite3",
    "subprocess",
    "threading",
    "time",
    "uvloop",
}


def module_name(path: Path) -> str:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> Iterator[str]:
    package = module_name(path) if path.name == "__init__.py" else module_name(path).rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def room_of(module: str) -> str | None:
    candidates = [room for room in ALLOWED if module == room or module.startswith(room + ".")]
    return max(candidates, key=len) if candidates else None


def within(module: str, rooms: set[str]) -> bool:
    return any(module == room or module.startswith(room + ".") for room in rooms)


SOURCES = sorted([*(ROOT / "sidecar").rglob("*.py"), *(ROOT / "cext").rglob("*.py")])


def test_the_tree_is_found() -> None:
    rooms = {room_of(module_name(path)) for path in SOURCES}
    assert set(ALLOWED) <= rooms


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down(path: Path) -> None:
    own = room_of(module_name(path))
    if own is None:  # sidecar/__init__.py and __main__.py stand above the rooms
        return
    wrong = [
        name
        for name in imports_of(path)
        if name.split(".")[0] in {"sidecar", "cext"}
        and name not in {"sidecar", "sidecar.__version__"}
        and not within(name, {own} | ALLOWED[own])
        # `from sidecar.coordinator import wire` names the package first and the allowed room second
        and not any(allowed.startswith(name + ".") for allowed in ALLOWED[own])
    ]
    assert not wrong, f"{path}: {own} may not import {wrong}"


def core_files() -> list[Path]:
    files: list[Path] = []
    for core in CORES:
        path = ROOT / core
        files.extend(sorted(path.rglob("*.py")) if path.is_dir() else [path])
    return files


@pytest.mark.parametrize("path", core_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_cores_do_no_io(path: Path) -> None:
    roots = {name.split(".")[0] for name in imports_of(path)}
    assert not roots & FORBIDDEN_IN_CORES
