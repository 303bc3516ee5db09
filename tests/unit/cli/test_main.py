"""The top of the command line: lazy loading, exit codes, one line per known error."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from sidecar import __version__
from sidecar.base.safefile import UnsafeFile
from sidecar.cli import main as module
from sidecar.cli.main import SUBCOMMANDS, exit_code_of, main, one_line

ROOT = Path(__file__).resolve().parents[3]


def run(*arguments: str, python: tuple[str, ...] = ("-m", "sidecar")) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *python, *arguments], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"sidecar {__version__}\n", "")


def test_help_lists_the_subcommands_without_loading_them() -> None:
    code = (
        "import sys; from sidecar.cli.main import main\n"
        "try: main(['--help'])\n"
        "finally: print(*[m for m in sys.modules if m.startswith('sidecar.') and 'cli.main' not in m], file=sys.stderr)"
    )
    done = run(python=("-c", code))
    assert done.returncode == 0
    for name, text in SUBCOMMANDS.items():
        assert f"  {name}" in done.stdout
        assert text.split(":")[0].rstrip(".") in done.stdout.replace("\n", " ")
    assert done.stderr.split() == ["sidecar.cli"]


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_subcommand_has_its_module(name: str) -> None:
    command = importlib.import_module(f"sidecar.cli.{name}").command
    assert isinstance(command, click.Command)


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        assert child is not None
        yield from leaves(child, (*path, name))


def test_every_command_that_answers_can_answer_in_json() -> None:
    without = {
        name
        for name, command in leaves(module.command)
        if not any("--json" in parameter.opts for parameter in command.params)
    }
    # The ready line of what keeps running is JSON anyway; the example is a file.
    assert without == {"serve", "delivery", "registry", "bridge", "witness serve", "ep serve", "dev", "config example"}


def test_every_command_tells_its_exit_codes() -> None:
    for name, command in leaves(module.command):
        text = command.get_help(click.Context(command, info_name=name))
        assert "Exit codes:" in text, name
        assert text.count("Exit codes:") == 1, name


def test_the_options_of_a_command_come_before_those_of_every_command() -> None:
    names = ("watch", "objective create", "objective update")
    found = {name: command for name, command in leaves(module.command) if name.removeprefix("coordinator ") in names}
    assert len(found) == len(names)
    for command in found.values():
        options = [parameter.opts[0] for parameter in command.params if isinstance(parameter, click.Option)]
        assert options.index("--dev") > 0
        assert options[-1] == "--json"


OWN_OPTIONS = {
    "hello": [],
    "ping": [],
    "snapshot": [],
    "watch": ["--after", "--no-heal", "--no-records"],
    "objective create": ["--file", "--id", "--operation-id"],
    "objective update": ["--file", "--revision", "--operation-id"],
    "operation get": [],
    "run pause": ["--operation-id"],
    "run resume": ["--operation-id"],
    "run cancel": ["--operation-id"],
    "signal ack": ["--note", "--operation-id"],
    "signal suppress": ["--note", "--operation-id"],
    "artifact register": ["--file", "--id", "--revision", "--session", "--session-revision", "--operation-id"],
    "retention show": [],
    "retention set": ["--result-seconds", "--event-bytes", "--artifact-bytes", "--operation-id"],
}
CONNECTION_OPTIONS = [
    "--dev", "--as", "--socket", "--key-file", "--key-fd", "--key-credential", "--pins", "--witness-id",
    "--witness-key", "--authority", "--scopes", "--require", "--wait", "--recover", "--timeout",
]  # fmt: skip


def test_the_options_of_the_connection_have_a_section_of_their_own() -> None:
    found = {name.removeprefix("coordinator "): command for name, command in leaves(module.command)}
    for name, own in OWN_OPTIONS.items():
        context = click.Context(found[name], help_option_names=["-h", "--help"])
        text = found[name].get_help(context).split("\nExit codes:")[0]
        before, shared = text.split("\nConnection options:\n")
        assert re.findall(r"^  (?:-h, )?(--[a-z-]+)", before.split("\nOptions:\n")[1], re.MULTILINE) == [
            *own,
            "--json",
            "--help",
        ]
        assert re.findall(r"^  (--[a-z-]+)", shared, re.MULTILINE) == CONNECTION_OPTIONS


def test_every_command_that_talks_to_a_coordinator_is_among_them() -> None:
    talking = {name for name, command in leaves(module.command) if any(p.name == "socket" for p in command.params)}
    assert talking == {f"coordinator {name}" for name in OWN_OPTIONS}


def groups(command: click.Group) -> Iterator[click.Group]:
    yield command
    for name in command.list_commands(click.Context(command)):
        child = command.get_command(click.Context(command), name)
        if isinstance(child, click.Group):
            yield from groups(child)


def test_no_line_in_a_list_of_commands_is_cut_short() -> None:
    found = list(groups(module.command))
    assert len(found) > 10
    for group in found:
        text = group.get_help(click.Context(group, terminal_width=80))
        assert not re.findall(r"^.*\.\.\.$", text.split("\nCommands:\n")[1], re.MULTILINE), group.name


def test_no_arguments_show_the_help_and_are_wrong_usage() -> None:
    for arguments in ((), ("workload",)):
        done = run(*arguments)
        assert done.returncode == 2
        assert done.stderr.startswith("Usage: sidecar")


@pytest.mark.parametrize("arguments", [["nope"], ["--nope"], ["workload", "nope"], ["workload", "list", "--nope"]])
def test_wrong_usage_is_one_line_with_code_2(arguments: list[str]) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("sidecar: ")
    assert re.search(r"[^.]; see: sidecar[a-z ]* --help\n\Z", done.stderr)
    assert done.stderr.count("\n") == 1


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    @click.command()
    def failing() -> None:
        raise error

    monkeypatch.setattr(module, "command", failing)


class Declared(UnsafeFile):
    """As an error of the product, with an exit code of its own."""

    exit_code = 78


Declared.__module__ = "sidecar.base.safefile"


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UnsafeFile("/x", "is unsafe"), 1, "sidecar: /x is unsafe\n"),
        (Declared("/x", "is\nunsafe\x1b[2J"), 78, "sidecar: /x is unsafe\\x1b[2J\n"),
        (FileNotFoundError(2, "No such file or directory", "/y"), 1, "sidecar: /y: No such file or directory\n"),
        (PermissionError(13, "Permission denied", b"/z"), 1, "sidecar: /z: Permission denied\n"),
        (OSError("no number"), 1, "sidecar: no number\n"),
        (click.ClickException("as told"), 1, "sidecar: as told\n"),
        (click.Abort(), 130, ""),
        (KeyboardInterrupt(), 130, "\n"),  # after the ^C that the terminal shows
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_known_errors_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, line: str
) -> None:
    fail_with(monkeypatch, error)
    with pytest.raises(SystemExit) as exited:
        main([])
    assert exited.value.code == code
    assert capsys.readouterr() == ("", line)


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        main([])


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (lambda: None, 0),
        (lambda: sys.exit(75), 75),
        (lambda: click.get_current_context().exit(3), 3),
        (lambda: 4, 4),
        (lambda: "done", 0),
    ],
)
def test_exit_codes_of_commands(monkeypatch: pytest.MonkeyPatch, body: Callable[[], object], code: int) -> None:
    monkeypatch.setattr(module, "command", click.command()(lambda: body()))
    with pytest.raises(SystemExit) as exited:
        main([])
    assert exited.value.code == code


def test_exit_code_of_ignores_other_values() -> None:
    class Strange(Exception):  # noqa: N818
        exit_code = "many"

    assert exit_code_of(Strange()) == 1


def test_a_reader_that_went_away_is_no_crash(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "sidecar", "--help"], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_one_line_is_printable() -> None:
    assert one_line("a\n b\t\tc") == "a b c"
    assert one_line("red \x1b[31m \x9b \u202e \udcff") == "red \\x1b[31m \\x9b \\u202e \\udcff"
    assert one_line("grün 日本") == "grün 日本"


def entry_point() -> tuple[str, ...]:
    """What the console script does, as the package declares it."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["sidecar"]
    module_name, _, function = declared.partition(":")
    return ("-c", f"import sys; from {module_name} import {function}; sys.exit({function}())")


@pytest.mark.parametrize("python", [("-m", "sidecar"), entry_point()], ids=["module", "script"])
@pytest.mark.parametrize("loading", ["click", "ctypes"])
def test_ctrl_c_while_modules_are_loaded_shows_no_traceback(
    tmp_path: Path, python: tuple[str, ...], loading: str
) -> None:
    """The first import of the command line, and one of the command `dev`, are where the signal comes."""
    (tmp_path / f"{loading}.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nsignal.pause()\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, *python, "dev", "--dir", str(tmp_path / "dev")],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "")
    assert not (tmp_path / "dev").exists()


def shell(command: str) -> subprocess.CompletedProcess[str]:
    """`command` in a shell in which `$S` is this command line; nothing is on its standard input."""
    return subprocess.run(
        ["sh", "-c", command],
        env={**os.environ, "S": f"{sys.executable} -m sidecar"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("streams", [">&-", ">&- <&-"])
def test_a_closed_standard_output_is_one_line(streams: str) -> None:
    for arguments in ("--version", "coordinator explain 0000000151"):
        done = shell(f"$S {arguments} {streams}")
        assert (done.returncode, done.stderr) == (1, "sidecar: Bad file descriptor\n"), arguments


def test_output_that_can_not_be_written_is_one_line() -> None:
    done = shell("$S coordinator explain 0000000151 >/dev/full")
    assert (done.returncode, done.stderr) == (1, "sidecar: No space left on device\n")


def test_whatever_stream_is_closed_no_file_is_opened_in_its_place(tmp_path: Path) -> None:
    """What a command opens first would be descriptor 0, 1 or 2, and what is printed would go there."""
    (tmp_path / "click.py").write_text("import os\nos._exit(os.open('click.py', os.O_RDONLY))\n")
    for streams in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        done = shell(f"cd {tmp_path} && PYTHONPATH={tmp_path}:{ROOT} $S {streams}")
        assert done.returncode > 2, streams


def test_a_closed_standard_error_takes_nothing_away() -> None:
    done = shell("$S coordinator explain 0000000151 2>&-; $S nonsense 2>&-; echo $?")
    assert done.stdout.endswith("1 frame, 1 fault\n2\n")


SEED = "SU" + "A2B3C4D5" * 7
TOKEN = f"eyJ{'a' * 40}.{'b' * 60}.{'c' * 86}"
"""In place of a user's token: three parts in base64url."""


@pytest.mark.parametrize(
    ("typed", "secret", "instead"),
    [
        (SEED, SEED, "(the seed of an nkey)"),
        (TOKEN, TOKEN, "(a token)"),
        ("ab" * 32, "ab" * 32, "(64 hex digits)"),
        ("cotal://ann:pass-word@host:4222/main", "pass-word", "cotal://(a login)@host:4222/main"),
        ("cotals://ann:pass/word@host/main", "word", "cotals://(a login)@host/main"),
        ("nats://s3cret@host", "s3cret", "nats://(a login)@host"),
    ],
)
def test_a_secret_that_was_typed_is_not_said_again(
    typed: str, secret: str, instead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Arguments are public already; a log that keeps what a command said is another copy."""
    with pytest.raises(SystemExit) as ended:
        main(["space", "list", typed])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert secret not in said
    assert instead in said
