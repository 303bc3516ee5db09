"""``sidecar ep call``, ``cast`` and ``scatter``: one command at an endpoint."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Final

import click

from sidecar.app.ep_access import calling
from sidecar.app.ep_calls import Asked, called, prepared
from sidecar.cli.connection_options import Command
from sidecar.cli.ep_options import CALL_EXIT_HELP, ONE_OPTIONS, Sent, asked_options, run_asked
from sidecar.cli.ep_view import code_of, error_document, error_lines, pretty, reply_document, show_reply
from sidecar.cli.main import one_line
from sidecar.cli.messaging_target import Target, access_options
from sidecar.ops.exitcodes import CallCode
from sidecar.rails.endpoint.calls_types import Answer, Scattered

_WORST: Final = (CallCode.UNKNOWN, CallCode.EXECUTED, CallCode.REFUSED, CallCode.NO_CONNECTION)
"""Which exit code stands for several refusals."""


@click.command(name="call", cls=Command, epilog=CALL_EXIT_HELP)
@asked_options(*ONE_OPTIONS)
@access_options
def call(target: Target, asked: Asked) -> int:
    """Call COMMAND of ENDPOINT and show its answer.

    ARGS are one JSON object (or @FILE, or - for standard input), or words NAME=VALUE, typed by the input schema of the
    command; NAME:=JSON is JSON as it stands. They are checked before anything is sent. The answer goes to standard
    output; the outcome, and who answered, to standard error.
    """

    async def work(_: asyncio.Event, sent: Sent) -> int:
        async with calling(target.access, target.patience) as caller:
            args = await prepared(caller, asked)
            sent.out = True
            answer = await called(caller, asked, args)
        return show_reply(answer, as_json=target.as_json)

    return run_asked(target, work, what=f"{asked.endpoint} {asked.command}")


@click.command(name="cast", cls=Command, epilog=CALL_EXIT_HELP)
@asked_options(*ONE_OPTIONS)
@access_options
def cast(target: Target, asked: Asked) -> int:
    """Send COMMAND to ENDPOINT without asking for an answer.

    At most once, and nobody says what became of it: exit code 0 says that the broker took it, not that anybody did it.
    ARGS are those of call.
    """

    async def work(_: asyncio.Event, sent: Sent) -> None:
        async with calling(target.access, target.patience) as caller:
            args = await prepared(caller, asked)
            sent.out = True
            identity = await caller.cast(asked.endpoint, asked.command, args, **asked.how, **asked.where)
        text = f"-- cast as {identity}: the broker took it; whether it is executed is unknown"
        if target.as_json:
            click.echo(json.dumps({"type": "cast", "id": identity, "outcome": "unknown"}))
        click.echo(text, err=True)

    return run_asked(target, work, what=f"{asked.endpoint} {asked.command}")


@click.command(name="scatter", cls=Command, epilog=CALL_EXIT_HELP)
@asked_options()
@access_options
def scatter(target: Target, asked: Asked) -> int:
    """Call COMMAND of every live instance of ENDPOINT and show what each of them answered.

    Who is to answer is read from the registry first. Instances that are missing, late, or were replaced meanwhile are
    named; the exit code is 7 then. ARGS are those of call.
    """

    async def work(_: asyncio.Event, sent: Sent) -> int:
        async with calling(target.access, target.patience) as caller:
            args = await prepared(caller, asked)
            sent.out = True
            found = await caller.scatter(asked.endpoint, asked.command, args, **asked.how)
        return _show(found, as_json=target.as_json)

    return run_asked(target, work, what=f"{asked.endpoint} {asked.command}")


def _show(found: Scattered, *, as_json: bool) -> int:
    if as_json:
        for instance, reply in found.replies.items():
            told = reply_document(reply) if isinstance(reply, Answer) else error_document(reply)
            click.echo(json.dumps({**told, "instance": instance}))
        click.echo(json.dumps({"type": "scattered", **_summary(found)}))
    else:
        for instance, reply in sorted(found.replies.items()):
            for line in _lines(instance, reply):
                click.echo(line)
    for line in scatter_lines(found):
        click.echo(line, err=True)
    codes = [code_of(one) for one in found.replies.values() if not isinstance(one, Answer)]
    if not found.complete:
        return CallCode.PARTIAL
    return min(codes, key=_WORST.index, default=CallCode.OK)


def _lines(instance: str, reply: Any) -> Iterator[str]:
    if isinstance(reply, Answer):
        yield f"{one_line(instance)} at epoch {reply.epoch}:"
        yield from (f"  {line}" for line in pretty(reply.data).split("\n"))
    else:
        yield from error_lines(reply)


def _summary(found: Scattered) -> dict[str, Any]:
    return {
        "id": found.id,
        "complete": found.complete,
        "answered": len(found.replies),
        "missing": list(found.missing),
        "churn": list(found.churn),
        "late": list(found.late),
        "unexpected": [{"instance": instance, "epoch": epoch} for instance, epoch in found.unexpected],
        "duplicate": [{"instance": instance, "epoch": epoch} for instance, epoch in found.duplicate],
    }


def scatter_lines(found: Scattered) -> Iterator[str]:
    """What else there is to say: who did not answer, and what does not count."""
    refused = sum(not isinstance(one, Answer) for one in found.replies.values())
    expected = len(found.replies) + len(found.missing) + len(found.churn) + len(found.late)
    complete = "complete" if found.complete else "not complete"
    yield f"-- {complete}: {len(found.replies)} of {expected} instances answered, {refused} of them refused"
    whats = {
        "missing": "did not answer: whether it was executed there is unknown",
        "late": "answered too late",
        "churn": "was replaced meanwhile",
    }
    for name, text in whats.items():
        for instance in getattr(found, name):
            yield f"--   {one_line(instance)} {text}"
    for name in ("unexpected", "duplicate"):
        for instance, epoch in getattr(found, name):
            yield f"--   {one_line(instance)} at epoch {epoch}: {name} reply, not counted"
