"""Configuration files: strict reading, exact refusals, and an example that is the table itself."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import get_type_hints

import pytest

from sidecar.app.config import ServeConfig
from sidecar.ops.config import Address, ConfigError, example, load, parse

GOOD = example(ServeConfig)


def read(text: str, base: Path = Path("/srv")) -> ServeConfig:
    return parse(text, ServeConfig, source="serve.toml", base=base)


def with_line(section: str, line: str) -> str:
    return GOOD.replace(f"[{section}]\n", f"[{section}]\n{line}\n", 1)


def test_the_example_is_a_working_configuration() -> None:
    config = read(GOOD)
    assert config.coordinator.mode == "paired"
    assert config.coordinator.state_dir == Path("/srv/coordinator/state")
    assert config.witness.public_key == bytes.fromhex("d7" * 32)
    assert config.metrics.listen == Address("127.0.0.1", 0)


def test_the_example_explains_every_key() -> None:
    lines = GOOD.splitlines()
    shown = [i for i, line in enumerate(lines) if " = " in line]
    assert len(shown) == sum(len(dataclasses.fields(section)) for section in get_type_hints(ServeConfig).values())
    assert all(lines[i - 1].startswith("# ") and " = " not in lines[i - 1] for i in shown)


def test_the_commented_keys_of_the_example_show_values_that_are_accepted() -> None:
    uncommented = "\n".join(line.removeprefix("# ") if " = " in line else line for line in GOOD.splitlines())
    assert set(tomllib.loads(uncommented)) == set(get_type_hints(ServeConfig))
    assert read(uncommented).limits == read(GOOD).limits


def test_relative_paths_start_at_the_directory_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(GOOD)
    assert load(file, ServeConfig).coordinator.socket == tmp_path / "run" / "coordinator.sock"


@pytest.mark.req("W9-01", "W9-02", "P2-04", "W3-18")
@pytest.mark.parametrize("mode", ["local", "bearer", "hybrid", "ssh", "", "PAIRED"])
def test_only_the_paired_mode_can_be_spelt(mode: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(GOOD.replace('mode = "paired"', f'mode = "{mode}"'))
    assert str(caught.value).startswith("serve.toml:coordinator.mode: ")


@pytest.mark.req("W9-03")
def test_an_unset_mode_is_an_error_and_not_a_default() -> None:
    with pytest.raises(ConfigError) as caught:
        read(GOOD.replace('mode = "paired"\n', ""))
    assert str(caught.value) == "serve.toml:coordinator.mode: this key is required"


@pytest.mark.req("P2-08", "P2-09", "W9-04", "W9-08", "W5-11")
@pytest.mark.parametrize(
    "line",
    [
        'listen = "0.0.0.0:7000"',
        'transport = "tcp"',
        "stdin = true",
        'ssh = "host"',
        'websocket = "ws://x"',
        'nats = "x"',
    ],
)
def test_no_other_transport_can_be_spelt(line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(with_line("coordinator", line))
    assert str(caught.value).startswith(f"serve.toml:coordinator.{line.split(' ')[0]}: unknown key; known here: mode, ")


def test_an_unknown_section_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"^serve\.toml:quic: unknown key"):
        read(GOOD + "\n[quic]\nport = 1\n")


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('socket = "run/witness.sock"', "socket = 3", "witness.socket"),
        ('"run/coordinator.sock"', '""', "coordinator.socket"),
        ("# max_sockets = 1024", "max_sockets = 0", "coordinator.max_sockets"),
        ("# max_sockets = 1024", "max_sockets = true", "coordinator.max_sockets"),
        ("# frame = 1048576", "frame = 1048577", "limits.frame"),
        (
            "# result_retention_seconds = 2592000",
            "result_retention_seconds = 2591999",
            "coordinator.result_retention_seconds",
        ),
        (f'"{"d7" * 32}"', f'"{"D7" * 32}"', "witness.public_key"),
        (f'"{"d7" * 32}"', f'"{"zz" * 32}"', "witness.public_key"),
        (f'"{"d7" * 32}"', '"d7"', "witness.public_key"),
        ('# listen = "127.0.0.1:0"', 'listen = "0.0.0.0:9400"', "metrics.listen"),
        ('# listen = "127.0.0.1:0"', 'listen = "127.0.0.1"', "metrics.listen"),
        ('# listen = "127.0.0.1:0"', 'listen = "127.0.0.1:99999"', "metrics.listen"),
        ('# listen = "127.0.0.1:0"', "listen = 9400", "metrics.listen"),
        ('# level = "info"', 'level = "trace"', "log.level"),
    ],
)
def test_a_bad_value_is_refused_with_file_and_key(old: str, new: str, key: str) -> None:
    assert old in GOOD
    with pytest.raises(ConfigError) as caught:
        read(GOOD.replace(old, new, 1))
    assert str(caught.value).startswith(f"serve.toml:{key}: must be ") or '" is refused' in str(caught.value)


def test_missing_sections_and_values_that_are_no_section_are_named() -> None:
    with pytest.raises(ConfigError, match=r"^serve\.toml:witness: this section is required$"):
        read(GOOD[: GOOD.index("[witness]")])
    with pytest.raises(ConfigError, match=r"^serve\.toml:log: must be a section$"):
        read("log = 1\n" + GOOD.replace("[log]", "[log2]").split("[log2]")[0])


def test_ipv6_loopback_is_a_loopback() -> None:
    config = read(GOOD.replace('# listen = "127.0.0.1:0"', 'listen = "[::1]:9400"'))
    assert config.metrics.listen == Address("::1", 9400)


def test_unreadable_files_and_broken_toml_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load(tmp_path / "none.toml", ServeConfig)
    (tmp_path / "latin.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read: not UTF-8"):
        load(tmp_path / "latin.toml", ServeConfig)
    with pytest.raises(ConfigError, match="is longer than"):
        load(Path("/dev/zero"), ServeConfig)
    with pytest.raises(ConfigError, match=r"^serve\.toml: "):
        read("[coordinator")


def test_limits_come_from_the_file_or_the_hard_caps() -> None:
    config = read(GOOD.replace("# page_records = 1024", "page_records = 7"))
    assert config.limits.limits().page_records == 7
    assert config.limits.limits().frame == 1_048_576
