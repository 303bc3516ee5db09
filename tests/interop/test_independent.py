"""The client is worth something as a second reading only while it shares no code with the first."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PHUX = Path(__file__).parent / "phux"
MODULES = sorted(PHUX.glob("*.py"))
# What a reader of the specification has: the standard library, one vetted signature library, and the package itself.
LIBRARIES = {
    "__future__",
    "collections",
    "contextlib",
    "cryptography",
    "dataclasses",
    "enum",
    "hashlib",
    "hmac",
    "os",
    "pathlib",
    "secrets",
    "socket",
    "time",
    "types",
    "typing",
}


def imported(source: str) -> set[str]:
    """Full names of the modules that a source imports; a relative import counts as the dots it starts with."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add("." * node.level + (node.module or ""))
    return names


def strangers(source: str) -> set[str]:
    return {
        name
        for name in imported(source)
        if name.split(".")[0] not in LIBRARIES and not f"{name}.".startswith("tests.interop.phux.")
    }


def test_there_are_modules() -> None:
    assert {"tlv.py", "frames.py", "proof.py", "client.py"} <= {path.name for path in MODULES}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_the_client_imports_nothing_of_the_server(path: Path) -> None:
    source = path.read_text()
    assert not strangers(source)
    assert "importlib" not in source
    assert "__import__" not in source


@pytest.mark.parametrize(
    "line",
    [
        "import sidecar",
        "from cext import tlv",
        "import sidecar.base as x",
        "from tests.oracles import tlv",
        "from .. import server",
        "from tests.interop import server",
    ],
)
def test_a_stranger_is_noticed(line: str) -> None:
    assert strangers(line)
