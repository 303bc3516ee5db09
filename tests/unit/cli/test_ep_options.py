"""What the commands at an endpoint take, and what is refused before anything is connected."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import click
import pytest

from sidecar.app.ep_args import Words
from sidecar.app.ep_calls import check_traceparent
from sidecar.cli import ep_complete
from sidecar.cli.connection_options import CommandFailed
from sidecar.cli.ep import COMMANDS, command
from sidecar.cli.ep_options import ENDPOINT, ReadType, read_given
from sidecar.ops.exitcodes import CallCode

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def given(*words: str) -> Any:
    return read_given(words, as_json=False)


def test_nothing_words_and_objects() -> None:
    assert given() is None
    assert given("a=1", "b:=2") == Words({"a": "1"}, {"b": 2})
    assert given('  {"a": 1}') == {"a": 1}


def test_a_file_and_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "args.json"
    file.write_bytes(b'{"a": 1}')
    assert given(f"@{file}") == {"a": 1}
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"a": 2}')))
    assert given("-") == {"a": 2}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["[1]"], "the arguments on the command line are no JSON object"),
        (["{"], "the arguments on the command line are no JSON"),
        (["@/not/there.json"], "/not/there.json: No such file or directory"),
        (["@."], "Is a directory"),
        (["{}", "a=1"], "argument 1 is no NAME=VALUE"),
        (["a"], "argument 1 is no NAME=VALUE"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_arguments_that_are_none_end_the_command(
    words: list[str], why: str, as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CommandFailed) as caught:
        read_given(tuple(words), as_json=as_json)
    assert caught.value.exit_code == CallCode.USAGE
    assert why in str(caught.value)
    assert str(caught.value).endswith("; nothing was sent")
    said = capsys.readouterr().out
    if as_json:
        told = json.loads(said)
        assert (told["name"], told["outcome"], told["exit_code"]) == ("BAD_ARGUMENTS", "not-executed", 2)
    else:
        assert said == ""


@pytest.mark.req("C13.3-32")
@pytest.mark.parametrize(
    "text",
    [
        *("", TRACE[:-1], TRACE + "-x", TRACE.upper(), "ff" + TRACE[2:], "0" * 300),
        *(f"00-{'0' * 32}-b7ad6b7169203331-01", f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01"),
        f"01{TRACE[2:]}-{'x' * 300}",
    ],
)
def test_a_trace_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="traceparent"):
        check_traceparent(text)


@pytest.mark.req("C13.3-32")
def test_a_trace() -> None:
    assert check_traceparent(TRACE) == TRACE
    assert check_traceparent(f"01{TRACE[2:]}-more")


def test_every_command_is_there_and_tells_the_same_as_the_group() -> None:
    context = click.Context(command)
    assert command.list_commands(context) == list(COMMANDS)
    for name in COMMANDS:
        found = command.get_command(context, name)
        assert found is not None
        assert found.name == name
    assert command.get_command(context, "nothing") is None


def test_a_type_keeps_what_is_no_text() -> None:
    assert ReadType("x", int).convert(7, None, None) == 7
    with pytest.raises(click.BadParameter, match="this is no endpoint name"):
        ENDPOINT.convert("Not A Name", None, None)


def test_completion_says_nothing_when_it_cannot() -> None:
    context = click.Context(click.Command("call"))
    context.params = {"dev": Path("/not/there"), "who": "alice"}
    assert ep_complete.endpoint_names(context) == []
    context.params = {"endpoint": "com.acme.x"}
    assert ep_complete.command_names(context) == []


def test_the_commands_of_a_row_stand_once_and_without_forms_too() -> None:
    row = {"endpoint": "a.b", "commands": [{"name": "x"}, {"name": "x"}, {"name": "y"}], "unprojected": ["z"]}
    assert ep_complete.names_of(row) == ["x", "y", "z"]
