"""What `sidecar ep new` writes: ten lines of code that load, and nothing over somebody's files."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from sidecar.app.ep_load import load
from sidecar.app.scaffold import DEFAULT_NAME, NotEmpty, files, make
from sidecar.rails.endpoint.call import Call
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.principals import Lifecycle, Principal


def test_it_makes_an_endpoint_that_loads(tmp_path: Path) -> None:
    made = make(tmp_path / "deep" / "new", "com.acme.greeter")
    assert [one.name for one in made] == ["endpoint.py", "test_endpoint.py", "README.md"]
    endpoint = load(f"{made[0]}:endpoint")
    assert endpoint.name == "com.acme.greeter"
    assert endpoint.surface.commands["hello"].effect == "read"


def test_the_endpoint_is_ten_lines_of_code() -> None:
    tree = ast.parse(files(DEFAULT_NAME)["endpoint.py"])
    text = files(DEFAULT_NAME)["endpoint.py"].splitlines()
    code = {line for node in ast.walk(tree) if hasattr(node, "lineno") for line in range(node.lineno, node.lineno + 1)}
    docstring = 1
    assert len([line for line in code if text[line - 1].strip()]) - docstring <= 10


@pytest.mark.asyncio
async def test_whatever_it_takes_has_an_answer_within_its_contract(tmp_path: Path) -> None:
    made = make(tmp_path / "new", "com.acme.longest")
    endpoint = load(f"{made[0]}:endpoint")
    contract, args = endpoint.contracts["hello"], {"name": "x" * 64}
    assert contract.input.check(args) is None
    assert contract.input.check({"name": "x" * 65}) is not None
    life = Lifecycle(Principal("local", "alice"), "a" * 26)
    assert contract.output.check(await endpoint.handlers["hello"](Call(life, "alice", args, "r1"))) is None


def test_a_directory_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".hidden").write_text("mine")
    with pytest.raises(NotEmpty):
        make(tmp_path, DEFAULT_NAME)
    assert [one.name for one in tmp_path.iterdir()] == [".hidden"]


def test_nothing_is_made_for_a_name_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidName):
        make(tmp_path / "x", "Not a name")
    assert not (tmp_path / "x").exists()


def test_the_readme_names_the_domain_to_claim() -> None:
    assert "domain claim com.acme " in files("com.acme.greeter")["README.md"]
    assert "domain claim acme.greeter " in files("acme.greeter")["README.md"]
