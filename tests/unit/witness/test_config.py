"""The witness's configuration file."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.ops import config
from sidecar.ops.config import ConfigError
from sidecar.witness.config import EXAMPLE, WitnessConfig
from tests.unit.witness.rig import client_key

KEYS = [client_key(1).public_key, client_key(2).public_key]
MINIMAL = f"""
[witness]
state_dir = "state"
socket = "run/witness.sock"
clients = ["{KEYS[0].hex()}", "{KEYS[1].hex()}"]
"""


def parse(text: str) -> WitnessConfig:
    return config.parse(text, WitnessConfig, source="witness.toml", base=Path("/srv"))


def test_a_minimal_file_and_its_defaults() -> None:
    settings = parse(MINIMAL).witness
    assert settings.state_dir == Path("/srv/state")
    assert settings.socket == Path("/srv/run/witness.sock")
    assert settings.clients == frozenset(KEYS)
    assert (settings.certificate_seconds, settings.request_milliseconds, settings.max_connections) == (60, 2000, 64)


def test_the_example_is_a_valid_file_that_names_every_key() -> None:
    uncommented = "\n".join(
        line.removeprefix("# ") if " = " in line and line.startswith("# ") else line for line in EXAMPLE.splitlines()
    )
    assert parse(EXAMPLE).witness.certificate_seconds == 60
    for name in WitnessConfig.__annotations__:
        assert f"[{name}]" in EXAMPLE
    for name in type(parse(EXAMPLE).witness).__dataclass_fields__:
        assert f"\n{name} = " in uncommented


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("certificate_secs = 30", "witness.certificate_secs"),
        ("certificate_seconds = 61", "witness.certificate_seconds"),
        ("certificate_seconds = 1", "witness.certificate_seconds"),
        ("request_milliseconds = 0", "witness.request_milliseconds"),
        ("max_connections = 0", "witness.max_connections"),
    ],
)
@pytest.mark.req("P12-10")
def test_unknown_keys_and_values_out_of_bounds_are_refused(line: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(MINIMAL + line)
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("clients", "problem"),
    [
        ("[]", "at least one"),
        ('"all"', "must be a list"),
        ('["abc"]', "64 lowercase"),
        (f'["{"00" * 32}"]', "small order"),
        (f'["{KEYS[0].hex().upper()}"]', "64 lowercase"),
    ],
)
def test_clients_are_public_keys(clients: str, problem: str) -> None:
    text = MINIMAL[: MINIMAL.index("clients")] + f"clients = {clients}\n"
    with pytest.raises(ConfigError, match=problem):
        parse(text)


def test_a_socket_path_that_no_address_can_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match="longer than the 107 bytes"):
        parse(MINIMAL.replace("run/", "r" * 120 + "/"))


@pytest.mark.parametrize("text", ["", "[witness]\n", MINIMAL + "[coordinator]\n"])
def test_missing_and_foreign_sections_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse(text)
