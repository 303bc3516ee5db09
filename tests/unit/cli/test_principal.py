"""``sidecar principal``: what is refused before anything is looked at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from sidecar.app.spaces import SpaceFailed
from sidecar.base.safefile import write_private
from sidecar.cli.connection_options import CommandFailed
from sidecar.cli.principal import command


@pytest.mark.parametrize("days", ["inf", "nan", "-1", "0", "1e308", "x"])
def test_a_life_that_is_none_is_wrong_usage(tmp_path: Path, days: str) -> None:
    wanted = ["creds", "local.ann", "--space", "main", "--root", str(tmp_path), f"--days={days}"]
    found = CliRunner().invoke(command, wanted)
    assert (found.exit_code, "--days" in found.output) == (2, True)


def _development(directory: Path) -> Path:
    nats = {"url": "nats://127.0.0.1:4222", "root": str(directory / "nats")}
    ready = {"coordinator": {}, "workloads": {}, "nats": nats}
    (directory / "ready.json").write_text(json.dumps(ready))
    return directory


def test_a_development_run_says_where_its_spaces_are(tmp_path: Path) -> None:
    dev, ann = str(_development(tmp_path)), tmp_path / "nats" / "spaces" / "main" / "principals" / "local.ann"
    ann.mkdir(mode=0o700, parents=True)
    write_private(ann / "record.json", b"{")
    found = CliRunner().invoke(command, ["list", "--space", "main", "--dev", dev])
    assert str(ann) in str(found.exception)
    other = CliRunner().invoke(command, ["list", "--space", "main", "--root", str(tmp_path / "no"), "--dev", dev])
    assert (other.exit_code, other.output) == (0, "")


def test_a_development_run_says_where_its_broker_is(tmp_path: Path) -> None:
    words = ["revoke", "local.ann", "--space", "main"]
    assert "--dev DIR" in CliRunner().invoke(command, words).output
    found = CliRunner().invoke(command, [*words, "--dev", str(_development(tmp_path))])
    assert isinstance(found.exception, SpaceFailed)


def test_a_directory_without_a_development_run_is_told(tmp_path: Path) -> None:
    found = CliRunner().invoke(command, ["list", "--space", "main", "--dev", str(tmp_path)])
    assert isinstance(found.exception, CommandFailed)
    assert (found.exception.exit_code, "sidecar dev --dir" in str(found.exception)) == (1, True)
