"""``sidecar principal``: what is refused before anything is looked at."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from sidecar.cli.principal import command


@pytest.mark.parametrize("days", ["inf", "nan", "-1", "0", "1e308", "x"])
def test_a_life_that_is_none_is_wrong_usage(tmp_path: Path, days: str) -> None:
    wanted = ["creds", "local.ann", "--space", "main", "--root", str(tmp_path), f"--days={days}"]
    found = CliRunner().invoke(command, wanted)
    assert (found.exit_code, "--days" in found.output) == (2, True)
