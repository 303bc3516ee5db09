"""As whom the commands of the messaging plane connect, where, and how their work ends."""

from __future__ import annotations

import asyncio
import functools
import json
import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import uvloop

from sidecar.app.access import Access
from sidecar.app.principals import principals
from sidecar.cli.connection_options import Command, CommandFailed, FiniteType, Group, connection_option, read_ready
from sidecar.cli.main import INTERRUPTED, one_line
from sidecar.cli.messaging_errors import EXPECTED, explain
from sidecar.cli.space_options import BrokerType
from sidecar.ops.exitcodes import CommandCode, command_documentation
from sidecar.ops.signals import on_stop
from sidecar.rails.messaging.identity import Identity
from sidecar.rails.messaging.joinlink import InvalidLink, JoinLink, parse_link
from sidecar.rails.messaging.registry import window_seconds
from sidecar.rails.names import Principal
from sidecar.rails.names.tokens import REPLAY_WINDOW

F = TypeVar("F", bound=Callable[..., Any])

EXIT_HELP: Final = f"\b\nExit codes:\n{command_documentation()}\n"

__all__ = ["EXIT_HELP", "Command", "Group", "Target", "access_options", "run", "target_of"]


class LinkType(click.ParamType[JoinLink]):
    """A join link; nothing of it is shown in an error."""

    name = "link"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> JoinLink:
        try:
            link = parse_link(value)
        except InvalidLink as error:
            self.fail(str(error), param, ctx)
        if link.has_login:
            self.fail("a link with a login of its own is for open brokers; members of a space use creds", param, ctx)
        return link


class AgoType(click.ParamType[int]):
    """A duration as the registry writes it, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if not REPLAY_WINDOW.accepts(str(value)):
            self.fail("write a whole number with one of s, m, h and d behind it, as 90m or 2d", param, ctx)
        return window_seconds(str(value))


@dataclass(frozen=True, slots=True)
class Target:
    """What a command line says about the connection. ``again`` are the words that say the same on another one."""

    access: Access
    as_json: bool
    patience: float
    again: tuple[str, ...]
    link: JoinLink | None = None

    @property
    def identity(self) -> Identity:
        return self.access.identity

    def follow_up(self, *words: str) -> str:
        """A command line with the same connection, for the shell."""
        return shlex.join(["sidecar", *words, *self.again])

    def say(self, text: str, **document: Any) -> None:
        """One result: for people, or with --json as one line for programs."""
        click.echo(json.dumps(document) if self.as_json else text)


_OPTIONS: Final = (
    connection_option(
        "--dev",
        type=click.Path(path_type=Path, file_okay=False),
        help="Directory of a running `sidecar dev`: gives the broker and creds.",
    ),
    connection_option(
        "--as", "who", metavar="NAME", help="With --dev: whose creds to use (alice, bob, observer, ...)."
    ),
    connection_option("--space", help="With --dev: the space.  [default: main]"),
    connection_option(
        "--creds",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Creds file: owner-only, names space and holder.",
    ),
    connection_option("--url", type=BrokerType(), help="With --creds: the broker, as nats://HOST:PORT."),
    connection_option(
        "--link", type=LinkType(), help="With --creds: a join link (cotal://HOST/SPACE) instead of --url."
    ),
    connection_option("--name", default="", help="Display name.  [default: the actor of the creds]"),
    connection_option(
        "--timeout",
        "patience",
        type=FiniteType(0.1, 3_600),
        default=10.0,
        show_default=True,
        help="Seconds to connect within.",
    ),
    click.option("--json", "as_json", is_flag=True, help="JSON lines instead of text."),
)


def access_options(function: F) -> F:
    """The options of the connection, and --json, that every command has."""

    @functools.wraps(function)
    def command(*arguments: Any, **options: Any) -> Any:
        as_json = options["as_json"]
        try:
            return function(target_of(options), *arguments, **options)
        except BrokenPipeError:
            raise
        except EXPECTED as error:
            raise failed(error, as_json=as_json) from error

    decorated: Any = command
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    wrapped: F = decorated
    return wrapped


def target_of(options: dict[str, Any]) -> Target:
    """Takes the connection options out of a command's options. Raises UsageError for what does not fit together, and
    what reading the creds raises."""
    dev, who, space = options.pop("dev"), options.pop("who"), options.pop("space")
    creds, url, link, name = (options.pop(one) for one in ("creds", "url", "link", "name"))
    as_json, patience = options.pop("as_json"), options.pop("patience")
    if dev is not None:
        if creds is not None or url is not None or link is not None:
            raise click.UsageError("--dev takes --as and --space; --creds goes with --url or --link")
        access, again = _of_dev(dev, who, space, name)
    else:
        if creds is None or (url is None) is (link is None):
            raise click.UsageError("say as whom: --dev DIR --as NAME, or --creds FILE with --url or --link")
        if who is not None or space is not None:
            raise click.UsageError("--as and --space go with --dev; the creds name their space and holder")
        access = Access.of(url, creds, name=name) if link is None else Access.through(link, creds, name=name)
        again = ("--creds", str(creds), "--url", access.url)
    return Target(access, as_json, patience, again, link)


def _of_dev(dev: Path, who: str | None, space: str | None, name: str) -> tuple[Access, tuple[str, ...]]:
    nats = read_ready(dev)["nats"]
    spaces: dict[str, Any] = nats["spaces"]
    if space is not None and space not in spaces:
        raise click.UsageError(f"--space takes one of {', '.join(spaces)}")
    place = space or nats["space"]
    own: dict[str, dict[str, str]] = spaces[place]["principals"]
    known = {one: Principal(member["owner"], member["actor"]) for one, member in own.items()}
    creds = {one: Path(member["creds"]) for one, member in own.items()}
    for info in principals(Path(nats["root"]), place):  # who was added beside those, under the name that is free
        added = info.record.wanted.principal
        if info.user is not None and added not in known.values():
            short = added.actor if added.actor not in known else added.dot
            known[short], creds[short] = added, info.creds
    if who is None:
        raise click.UsageError(f"say as whom: --as takes one of {', '.join(creds)}")
    if who not in creds:
        raise click.UsageError(f"--as takes one of {', '.join(creds)}")
    access = Access.of(nats["url"], creds[who], known=known, name=name)
    return access, ("--dev", str(dev), "--as", who, *(("--space", space) if space else ()))


def failed(error: Exception, *, as_json: bool) -> CommandFailed:
    """How a command ends for an error: one line, with --json a document too, and the exit code."""
    code, name, text = explain(error)
    if as_json:
        click.echo(json.dumps({"type": "error", "name": name, "message": one_line(text), "exit_code": int(code)}))
    return CommandFailed(text, code)


def run(work: Callable[[asyncio.Event], Awaitable[int | None]], *, follows: bool = False) -> int:
    """Do the work. Ctrl-C and SIGTERM end it at once, with 130; work that ``follows`` is given an event that they set,
    and ends by itself. Who asks a second time does not wait for that."""

    async def body() -> int:
        stop = asyncio.Event()
        working = asyncio.ensure_future(work(stop))

        def stopped(_: object) -> None:
            if stop.is_set() or not follows:
                working.cancel()
            stop.set()

        undo = on_stop(asyncio.get_running_loop(), stopped)
        try:
            return await working or CommandCode.OK
        except asyncio.CancelledError:
            if not stop.is_set():
                raise
            return INTERRUPTED
        finally:
            undo()

    return uvloop.run(body())
