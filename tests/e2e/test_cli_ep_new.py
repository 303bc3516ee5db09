"""`sidecar ep new`: what it makes passes its own test, at a real broker, and can be called."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.app.ep_trial import Refused, TrialFailed, trial
from tests.e2e.talk import sidecar

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("new") / "greeter"
    done = sidecar("ep", "new", str(directory), "--name", "com.acme.greeter", "--json")
    assert done.returncode == 0, done.stderr
    assert [Path(one).name for one in json.loads(done.stdout)["files"]] == [
        "endpoint.py",
        "test_endpoint.py",
        "README.md",
    ]
    return directory


@pytest.mark.req("C13-02")
def test_its_own_test_passes(made: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=made, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.mark.req("C13-02", "C13.7-65")
def test_it_is_described_and_called(made: Path, tmp_path: Path) -> None:
    with trial(f"{made / 'endpoint.py'}:endpoint", tmp_path) as here:
        assert here.ready["endpoint"] == "com.acme.greeter"
        assert here.call("hello", {"name": "world"}) == {"text": "Hello, world!"}
        assert here.call("hello", {"name": "x"}, "--instance", here.ready["instance_id"]) == {"text": "Hello, x!"}
        with pytest.raises(Refused) as caught:
            here.call("hello", {"name": 7})
        assert (caught.value.code, caught.value.outcome) == ("BAD_ARGUMENTS", "not-executed")
        assert here.refused("goodbye") == "unimplemented"
        with pytest.raises(TrialFailed, match="was not refused"):
            here.refused("hello", {"name": "world"})


def test_a_trial_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("from sidecar.rails import Endpoint\nendpoint = Endpoint('com.acme.empty')\n")
    with pytest.raises(TrialFailed, match="sidecar ep did not start"), trial(f"{tmp_path / 'bad.py'}", tmp_path):
        pass


@pytest.mark.parametrize("words", [["--name", "single"], ["--name", "Not.A.Name"], ["--name", "a..b"]])
def test_a_name_that_is_none_is_wrong_usage(tmp_path: Path, words: list[str]) -> None:
    done = sidecar("ep", "new", str(tmp_path / "x"), *words)
    assert done.returncode == 2
    assert not (tmp_path / "x").exists()


def test_a_directory_that_is_not_empty_is_refused(made: Path) -> None:
    before = {one.name: one.read_bytes() for one in made.iterdir() if one.is_file()}
    done = sidecar("ep", "new", str(made))
    assert done.returncode == 1
    assert "is not empty; nothing was written" in done.stderr
    assert {one.name: one.read_bytes() for one in made.iterdir() if one.is_file()} == before
