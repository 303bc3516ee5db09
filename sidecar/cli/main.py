"""The ``sidecar`` command: loads the module of a subcommand only when it is used, reports known errors in one line."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Sequence
from typing import Final

import click

from sidecar import __version__

SUBCOMMANDS: Final = {
    "workload": "Keys that may log in: the authority, enrolment, revocation.",
    "coordinator": "Durable work, and what goes on: snapshot, watch, objectives, runs, signals, top, quota, explain.",
    "serve": "Run the coordinator next to a nats-server.",
    "delivery": "Run the delivery planes of spaces.",
    "registry": "Run the registries of spaces: which endpoints there are, and what callers may ask of them.",
    "bridge": "Serve a coordinator as an endpoint of a space, for reading.",
    "witness": "Run the activation witness, or ask it.",
    "space": "Spaces of a broker: make one, prove it, its limits and its backup.",
    "principal": "Principals of a space: add one, renew its creds, revoke it.",
    "peers": "Who is in a space.",
    "channel": "Channels of a space: list, show, set, join, leave, tail, send, history.",
    "dm": "Direct messages: send one, read your own.",
    "anycast": "Requests to a role: send, status, cancel, serve.",
    "ep": "Endpoints of a space: list, describe, call, cast, scatter, watch, and serve your own.",
    "liveness": "Whether a plane of a space is served.",
    "doctor": "Examine a broker, its spaces and their credentials: what is wrong, and what to do.",
    "dev": "Run everything on loopback in one directory.",
    "config": "Print an example configuration with every key explained.",
}
"""Module ``sidecar.cli.NAME`` has the command as ``command``; the text stands here so that help loads none of them."""

_SECRET_LIKE: Final = (
    (re.compile(r"eyJ[\w-]{8,}\.[\w-]+\.[\w-]+"), "(a token)"),
    (re.compile(r"(?<=://)[^\s/@]+(?:/[^\s@]*)?(?=@)"), "(a login)"),
    (re.compile(r"(?<![A-Z2-7])S[A-Z2-7]{57}(?![A-Z2-7])"), "(the seed of an nkey)"),
    (re.compile(r"(?<!sha256:)(?<![0-9A-Fa-f])[0-9A-Fa-f]{64,}"), "(64 hex digits)"),
)
"""What looks like a secret in something that was typed, and what stands in its place."""

REFUSED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130


class LazyGroup(click.Group):
    """A group whose commands are imported when they run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUBCOMMANDS:
            return None
        command: click.Command = importlib.import_module(f"sidecar.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(SUBCOMMANDS.items()))


class ExplainedGroup(click.Group):
    """A group with its exit codes as ``epilog``; each of its commands without codes of its own shows them too."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        if cmd.epilog is None:
            cmd.epilog = self.epilog
        super().add_command(cmd, name)


@click.group(name="sidecar", cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sidecar", message="%(prog)s %(version)s")
def command() -> None:
    """Durable work for agents, next to a nats-server.

    Exit codes: 0 done, 1 refused or failed, 2 wrong usage; coordinator, serve, delivery, witness, dev and the commands
    of messaging add their own (see their help).
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the console script; exits the process.

    Errors that Sidecar itself declares and those of the operating system become one line on stderr. Any other exception
    is a bug and keeps its traceback, which shows source lines and no values of variables (W9-17).
    """
    try:
        code = command.main(arguments, prog_name="sidecar", standalone_mode=False)
        # In this mode click returns the code of ctx.exit() or whatever the command returned.
        sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else 0)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        _fail(_click_text(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        _give_up_output()
        sys.exit(REFUSED)
    except Exception as error:
        if not _declared(error):
            raise
        _fail(_text(error), exit_code_of(error))


def exit_code_of(error: BaseException) -> int:
    """An error class may carry its own ``exit_code``; 1 otherwise."""
    code = getattr(error, "exit_code", REFUSED)
    return code if isinstance(code, int) else REFUSED


def one_line(text: str) -> str:
    """``text`` as one printable line: peers and files must not move the operator's cursor."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in " ".join(text.split()))


def _declared(error: BaseException) -> bool:
    return isinstance(error, OSError) or type(error).__module__.split(".")[0] in ("sidecar", "cext")


def _text(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        return f"{where}{error.strerror}"
    return str(error) or type(error).__name__


def _click_text(error: click.ClickException) -> str:
    if not isinstance(error, click.UsageError):
        return error.format_message()
    # click quotes what was typed. A private key pasted as an argument is bad enough without a copy in a log.
    text = error.format_message()
    for secret, instead in _SECRET_LIKE:
        text = secret.sub(instead, text)
    return text if error.ctx is None else f"{text.rstrip('.')}; see: {error.ctx.command_path} --help"


def _give_up_output() -> None:
    """What nobody takes is dropped: the interpreter must not fail on it a second time at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(text: str, code: int) -> None:
    click.echo(f"sidecar: {one_line(text)}", err=True)
    _give_up_output()
    sys.exit(code)
