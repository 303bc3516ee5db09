"""``sidecar ep new``: a directory with an endpoint that works, its test, and how to go on."""

from __future__ import annotations

from pathlib import Path
from string import Template
from typing import Final

from sidecar.rails.names.tokens import ENDPOINT_NAME

DEFAULT_NAME: Final = "com.example.hello"

_ENDPOINT: Final = '''\
"""An endpoint: what it takes and gives, and what it does. Serve it with: sidecar ep serve endpoint.py:endpoint"""

from sidecar.rails import Call, Endpoint

endpoint = Endpoint("$name", protocol=2)
NAME = {"type": "string", "maxLength": 64}
TEXT = {"type": "string", "maxLength": 128}


@endpoint.command(
    input={"type": "object", "properties": {"name": NAME}, "required": ["name"], "additionalProperties": False},
    output={"type": "object", "properties": {"text": TEXT}, "required": ["text"], "additionalProperties": False},
    effect="read",
)
async def hello(call: Call):
    return {"text": f"Hello, {call.args['name']}!"}
'''

_TEST: Final = '''\
"""The endpoint in a space of its own, at a real broker."""

import pytest

from sidecar.app.ep_trial import trial


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    with trial("endpoint.py:endpoint", tmp_path_factory.mktemp("space")) as running:
        yield running


def test_hello(here):
    assert here.call("hello", {"name": "world"}) == {"text": "Hello, world!"}


def test_arguments_are_checked(here):
    assert here.refused("hello", {"name": 7}) == "BAD_ARGUMENTS"
'''

_README: Final = """\
# $name

`endpoint.py` is the endpoint: each command says what it takes and gives (JSON Schema), and whether it only reads.
With the `.venv/bin` of Sidecar in the `PATH`:

```
pytest                                              # the test, in a space of its own
sidecar dev                                         # a broker with spaces, in .sidecar; leave it running

sidecar ep domain claim $domain --owner local --space main --dev .sidecar
sidecar ep serve endpoint.py:endpoint --space main --dev .sidecar

sidecar principal add --actor carol --owner local --may '$name:*' --space main --dev .sidecar
sidecar ep describe $name --dev .sidecar --as carol
sidecar ep call $name hello name=world --dev .sidecar --as carol
```

`sidecar ep serve` registers an instance and serves it until Ctrl-C. Started again it takes up one that nobody serves; a
second one beside it shares the work. With the `--instance` of a ready line it takes that one over, whoever serves it.
"""


class NotEmpty(Exception):  # noqa: N818 - a state
    """Something is there already; nothing was written."""


def files(name: str) -> dict[str, str]:
    """What is made, by file name. Raises InvalidName for what is no endpoint name of at least two labels."""
    ENDPOINT_NAME.check(name)
    domain = name.rpartition(".")[0] if name.count(".") > 1 else name
    values = {"name": name, "domain": domain}
    return {
        "endpoint.py": Template(_ENDPOINT).substitute(values),
        "test_endpoint.py": Template(_TEST).safe_substitute(values),
        "README.md": Template(_README).substitute(values),
    }


def make(directory: Path, name: str) -> list[Path]:
    """Write the files into a directory that is new or empty. Raises NotEmpty, OSError, InvalidName."""
    made = files(name)
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise NotEmpty(f"{directory} is not empty; nothing was written")
    for file, text in made.items():
        (directory / file).write_text(text, encoding="utf-8")
    return [directory / file for file in made]
