"""`sidecar config example` prints what `serve` and `witness` read; `serve` explains its exit codes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sidecar.app.config import ServeConfig
from sidecar.cli.config import command as config_command
from sidecar.cli.serve import command as serve_command
from sidecar.ops.config import parse
from sidecar.ops.exitcodes import ExitCode
from sidecar.witness.config import WitnessConfig


@pytest.mark.parametrize(
    ("arguments", "model"), [([], ServeConfig), (["serve"], ServeConfig), (["witness"], WitnessConfig)]
)
def test_the_printed_example_is_read_as_it_stands(arguments: list[str], model: type[Any]) -> None:
    result = CliRunner().invoke(config_command, ["example", *arguments])
    assert result.exit_code == 0
    parse(result.output, model, source="printed", base=Path("/srv"))


@pytest.mark.parametrize(("name", "model"), [("serve", ServeConfig), ("witness", WitnessConfig)])
def test_the_keys_that_are_commented_out_show_their_defaults(name: str, model: type[Any]) -> None:
    text = CliRunner().invoke(config_command, ["example", name]).output
    every_key, shown = re.subn(r"^# (?=[a-z_]+ = )", "", text, flags=re.MULTILINE)
    assert shown
    as_printed, spelt_out = (parse(it, model, source="printed", base=Path("/srv")) for it in (text, every_key))
    assert spelt_out == as_printed


def test_an_unknown_process_is_a_usage_error() -> None:
    assert CliRunner().invoke(config_command, ["example", "owner"]).exit_code == 2


def test_serve_explains_every_exit_code() -> None:
    text = CliRunner().invoke(serve_command, ["--help"]).output
    for code in ExitCode:
        assert f"{code.value:>3}  {code.help_text}" in text


def test_a_bad_configuration_is_one_line_with_file_and_key(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('[coordinator]\nmode = "local"\n')
    result = CliRunner().invoke(serve_command, ["--config", str(file)])
    assert result.exit_code == ExitCode.CONFIG
    assert result.output == f'Error: {file}:coordinator.mode: "local" is refused, only "paired"\n'
