"""What the commands at an endpoint have in common: names, arguments, options of a call, and how each of them ends."""

from __future__ import annotations

import asyncio
import functools
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from sidecar.app.ep_args import (
    MAX_ARGUMENT_BYTES,
    BadArguments,
    Given,
    checked,
    read_bind,
    read_object,
    read_target,
    read_words,
)
from sidecar.app.ep_calls import Asked, check_traceparent
from sidecar.cli.connection_options import CommandFailed, FiniteType
from sidecar.cli.ep_complete import command_names, endpoint_names
from sidecar.cli.ep_view import show_error
from sidecar.cli.main import one_line
from sidecar.cli.messaging_target import Target, run
from sidecar.ops.exitcodes import CallCode, call_documentation
from sidecar.rails.endpoint.calls_types import CALL_SECONDS, To
from sidecar.rails.endpoint.codes import CallError
from sidecar.rails.endpoint.envelope import Bind
from sidecar.rails.names.tokens import ENDPOINT_NAME, GRAMMARS, Grammar

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

CALL_EXIT_HELP: Final = f"\b\nExit codes:\n{call_documentation()}\n"
LONGEST_SECONDS: Final = 3_600.0


class ReadType(click.ParamType[T]):
    """What a function makes of a word; its BadArguments is wrong usage."""

    def __init__(self, name: str, read: Callable[[str], T]) -> None:
        self.name, self._read = name, read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        if not isinstance(value, str):
            made: T = value
            return made
        try:
            return self._read(value)
        except BadArguments as error:
            self.fail(str(error), param, ctx)


class NameType(ReadType[str]):
    """A name of one grammar, completed from the registry's listing."""

    def __init__(self, grammar: Grammar, names: Callable[[click.Context], list[str]] | None = None) -> None:
        super().__init__(grammar.name, functools.partial(checked, grammar))
        self._names = names

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        found = [] if self._names is None else self._names(ctx)
        return [CompletionItem(one) for one in found if one.startswith(incomplete)]


ENDPOINT: Final = NameType(ENDPOINT_NAME, endpoint_names)
ENDPOINT_TYPE: Final = NameType(ENDPOINT_NAME)
"""Without completion: what is named need not be listed."""
COMMAND: Final = NameType(GRAMMARS["command"], command_names)
INSTANCE: Final = NameType(GRAMMARS["instance"])

instance_option = click.option("--instance", type=INSTANCE, help="This instance, and no other.")
seconds_option = click.option(
    "--seconds",
    type=FiniteType(0.001, LONGEST_SECONDS),
    default=CALL_SECONDS,
    show_default=True,
    help="Deadline, from the moment that there is a connection.",
)
_CALL_OPTIONS: Final = (
    click.option(
        "--target",
        "to",
        type=ReadType("mode", lambda text: To(*read_target(text))),
        metavar="MODE[=OWNER.ACTOR[.UID[@REVISION]]]",
        help="Whom a targeted command is about: self, or a mode with a principal. Without UID its present lifecycle.",
    ),
    seconds_option,
    click.option("--id", "request_id", type=NameType(GRAMMARS["id"]), help="The request id.  [default: a fresh one]"),
    click.option(
        "--traceparent", type=ReadType("traceparent", check_traceparent), help="W3C trace that the call belongs to."
    ),
)
ONE_OPTIONS: Final = (
    instance_option,
    click.option(
        "--bind",
        type=ReadType("bind", lambda text: Bind(*read_bind(text))),
        metavar="INSTANCE@EPOCH",
        help="Answered by this incarnation, or not at all.",
    ),
)


def asked_options(*more: Callable[[Any], Any]) -> Callable[[F], F]:
    """ENDPOINT, COMMAND, ARGS and the options of a call, above ``access_options``: the command is given them as one
    ``asked``. What is typed wrongly is refused before the creds are read."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def command(endpoint: str, command_name: str, words: tuple[str, ...], **options: Any) -> Any:
            given = read_given(words, as_json=options["as_json"])
            names = {"id": options.pop("request_id"), "to": options.pop("to")}
            named = {name: options.pop(name) for name in ("instance", "bind") if name in options}
            asked = Asked(
                endpoint,
                command_name,
                given,
                seconds=options.pop("seconds"),
                traceparent=options.pop("traceparent"),
                **names,
                **named,
            )
            return function(asked=asked, **options)

        decorated: Any = command
        options_of: tuple[Callable[[Any], Any], ...] = (*more, *_CALL_OPTIONS)
        for option in reversed(options_of):
            decorated = option(decorated)
        decorated = click.argument("words", nargs=-1, metavar="[ARGS]...")(decorated)
        decorated = click.argument("command_name", metavar="COMMAND", type=COMMAND)(decorated)
        wrapped: F = click.argument("endpoint", type=ENDPOINT)(decorated)
        return wrapped

    return decorate


def read_given(words: tuple[str, ...], *, as_json: bool) -> Given:
    """Arguments as they were typed: nothing, NAME=VALUE words, or one JSON object: in the word itself, in @FILE, or on
    standard input for ``-``. Ends the command for what is none."""
    try:
        if len(words) == 1 and words[0].lstrip()[:1] in ("{", "["):
            return read_object(words[0].encode("utf-8", "surrogateescape"), "on the command line")
        if len(words) == 1 and words[0] == "-":
            return read_object(sys.stdin.buffer.read(MAX_ARGUMENT_BYTES + 1), "on standard input")
        if len(words) == 1 and words[0].startswith("@"):
            return _of_file(Path(words[0][1:]))
        return read_words(words) if words else None
    except BadArguments as error:
        raise refused_words(error, as_json=as_json) from None


def _of_file(path: Path) -> Given:
    try:
        with path.open("rb") as file:
            return read_object(file.read(MAX_ARGUMENT_BYTES + 1), f"of {path}")
    except OSError as error:
        raise BadArguments(f"{path}: {error.strerror}") from None


def refused_words(error: BadArguments, *, as_json: bool) -> CommandFailed:
    """How a command ends for arguments that the command at the endpoint does not take."""
    text = str(error)
    if as_json:
        document = {"type": "error", "name": "BAD_ARGUMENTS", "message": one_line(text), "outcome": "not-executed"}
        click.echo(json.dumps({**document, "exit_code": int(CallCode.USAGE)}))
    return CommandFailed(f"{text}; nothing was sent", CallCode.USAGE)


class Sent:
    """Whether the command itself has been sent. What Ctrl-C may have cut off depends on it."""

    def __init__(self) -> None:
        self.out = False


def run_asked(
    target: Target,
    work: Callable[[asyncio.Event, Sent], Awaitable[int | None]],
    *,
    what: str = "",
    follows: bool = False,
) -> int:
    """Do the work at an endpoint and end as it ends: errors of calls with their outcome, Ctrl-C with what is known."""

    async def body(stop: asyncio.Event) -> int | None:
        sent = Sent()
        try:
            return await work(stop, sent)
        except CallError as error:
            return show_error(error, as_json=target.as_json, what=what)
        except BadArguments as error:
            raise refused_words(error, as_json=target.as_json) from None
        except asyncio.CancelledError:
            outcome = "unknown" if sent.out else "not-executed"
            why = "the outcome is unknown: it was sent" if sent.out else "nothing was sent: it was not executed"
            _say_interrupted(target, "INTERRUPTED", f"interrupted; {why}", outcome)
            raise

    return run(body, follows=follows)


def _say_interrupted(target: Target, name: str, text: str, outcome: str | None) -> None:
    if target.as_json:
        document = {"type": "error", "name": name, "message": one_line(text), "outcome": outcome}
        click.echo(json.dumps({one: value for one, value in document.items() if value is not None}))
    click.echo(f"-- {one_line(text)}", err=True)
