"""Bounds of `serve.toml` that lower what is not negotiated, up to the very hard bound (OPEN P3-e)."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from sidecar.app.config import ServeConfig
from sidecar.cli.serve import command as serve_command
from sidecar.coordinator.engine.policy import EVENT_BYTES, EVENT_COUNT, STORAGE_BYTES, Policy
from sidecar.coordinator.wire.limits import QUOTAS
from sidecar.ops.config import ConfigError, example, parse
from sidecar.ops.exitcodes import ExitCode

EXAMPLE = example(ServeConfig)
ROWS = [
    (f"{level}_quotas", resource, cap)
    for resource, caps in QUOTAS.items()
    for level, cap in caps._asdict().items()
    if cap is not None
]
STORED = [
    ("storage", "record_bytes", STORAGE_BYTES),
    ("storage", "event_bytes", EVENT_BYTES),
    ("storage", "event_count", EVENT_COUNT),
]


def with_value(section: str, key: str, value: object) -> str:
    head, found, tail = EXAMPLE.partition(f"[{section}]\n")
    assert found
    return f"{head}{found}{key} = {value}\n{tail}"


def policy_of(text: str) -> Policy:
    return parse(text, ServeConfig, source="serve.toml", base=Path("/srv")).policy()


def in_force(policy: Policy, section: str, key: str) -> int | None:
    if section == "storage":
        return int({"record_bytes": policy.storage_bytes}.get(key) or getattr(policy, key))
    cap: int | None = getattr(policy.quotas[key], section.removesuffix("_quotas"))
    return cap


def test_nothing_given_is_every_hard_bound() -> None:
    policy = policy_of(EXAMPLE)
    assert policy.quotas == QUOTAS
    assert (policy.storage_bytes, policy.event_bytes, policy.event_count) == (STORAGE_BYTES, EVENT_BYTES, EVENT_COUNT)


@pytest.mark.req("P3-33", "P3-34", "P3-38", "P3-41", "P3-42", "P3-43", "P3-44", "P3-45", "P3-46", "P3-47")
@pytest.mark.parametrize(("section", "key", "hard"), ROWS + STORED)
def test_a_bound_goes_down_to_one_and_up_to_the_hard_one(section: str, key: str, hard: int) -> None:
    for value in (1, hard - 1, hard):
        policy = policy_of(with_value(section, key, value))
        assert in_force(policy, section, key) == value
        others = [row for row in ROWS + STORED if row[:2] != (section, key)]
        assert all(in_force(policy, *row[:2]) == row[2] for row in others), "only the one that was given"
    for refused in (0, -1, hard + 1, f"{hard}.0", f'"{hard}"', "true"):
        with pytest.raises(ConfigError) as caught:
            policy_of(with_value(section, key, refused))
        assert str(caught.value) == f"serve.toml:{section}.{key}: must be a whole number from 1 to {hard}"


@pytest.mark.parametrize("key", ["connections", "pinned_bytes", "queue_frames", "queue_bytes", "pending_operations"])
def test_a_connection_has_no_bound_that_the_limits_table_does_not_give_it(key: str) -> None:
    assert QUOTAS[key].connection is None
    with pytest.raises(ConfigError, match=rf"^serve\.toml:connection_quotas\.{key}: unknown key; known here: requests"):
        policy_of(with_value("connection_quotas", key, 1))


@pytest.mark.parametrize("key", ["cursor", "name", "diagnostic", "preconditions", "control_frames"])
def test_structural_bounds_can_not_be_spelt(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"limits\.{key}: unknown key"):
        policy_of(with_value("limits", key, 1))


def test_a_bound_above_the_hard_one_ends_the_start_with_the_code_of_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(with_value("principal_quotas", "connections", 17))
    result = CliRunner().invoke(serve_command, ["--config", str(file)])
    assert result.exit_code == ExitCode.CONFIG
    assert result.output == f"Error: {file}:principal_quotas.connections: must be a whole number from 1 to 16\n"


@pytest.mark.parametrize(
    "values",
    [{"event_bytes": EVENT_BYTES + 1}, {"event_count": EVENT_COUNT + 1}, {"storage_bytes": STORAGE_BYTES + 1}],
)
def test_the_engine_holds_the_hard_bounds_as_well(values: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="hard bound"):
        Policy(**values)  # type: ignore[arg-type]
