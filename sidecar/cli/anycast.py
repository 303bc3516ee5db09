"""``sidecar anycast``: work for one holder of a role."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from sidecar.app.access import WrongStance
from sidecar.app.conversation import Said
from sidecar.cli.channel import read_text
from sidecar.cli.main import one_line
from sidecar.cli.messaging_follow import Follow, follow_options
from sidecar.cli.messaging_target import EXIT_HELP, Group, Target, access_options, run
from sidecar.rails.messaging.anycast import State, Status
from sidecar.rails.messaging.durables import From
from sidecar.rails.messaging.identity import Stance
from sidecar.rails.messaging.peer import Peer
from sidecar.rails.names import Principal


@click.group(name="anycast", cls=Group)
def command() -> None:
    """Requests to a role: exactly one of its holders takes each."""


@command.command(epilog=EXIT_HELP)
@click.argument("role")
@click.argument("text")
@click.option("--reply-to", metavar="ID", help="The message that this one answers.")
@click.option("--context", "context_id", metavar="ID", help="The context that it belongs to.")
@click.option("--id", "message_id", help="The message id: sending again under one id stores it once.")
@access_options
def send(target: Target, role: str, text: str, **more: str | None) -> int:
    """Ask a holder of ROLE. TEXT, or standard input for -.

    The answer names the request by number and id: what `anycast status` and `anycast cancel` take.
    """
    target.access.must_be("ask", Stance.MEMBER, Stance.SENDER)
    content = read_text(text)

    async def work(_: asyncio.Event) -> None:
        async with target.access.peer(target.patience) as peer:
            sent = await peer.ask_role(role, content, **more)
        status = target.follow_up("anycast", "status", str(sent.sequence), sent.id)
        again = " (it was stored before)" if sent.duplicate else ""
        lines = f"request {sent.sequence} {sent.id} waits for {role}{again}\nwhat becomes of it: {status}"
        target.say(lines, type="sent", role=role, **sent._asdict())

    return run(work)


@command.command(epilog=EXIT_HELP, short_help="What became of your request.")
@click.argument("sequence", type=click.IntRange(1))
@click.argument("id", required=True)
@access_options
def status(target: Target, sequence: int, id: str) -> int:
    """What became of your request SEQUENCE with the message ID: waiting, taken, cancelled or unknown.

    Taken means that a holder's connector was about to show it, not that anybody has read or finished it.
    """
    return _ask(target, "status", sequence, id)


@command.command(epilog=EXIT_HELP)
@click.argument("sequence", type=click.IntRange(1))
@click.argument("id", required=True)
@access_options
def cancel(target: Target, sequence: int, id: str) -> int:
    """Take your request back. One that is taken stays taken; may be repeated.

    Exit code 1 when it is not cancelled.
    """
    return _ask(target, "cancel", sequence, id)


def _ask(target: Target, what: str, sequence: int, message_id: str) -> int:
    target.access.must_be("ask about requests", Stance.MEMBER)

    async def work(_: asyncio.Event) -> int:
        async with target.access.peer(target.patience) as peer:
            ask = peer.anycast_status if what == "status" else peer.anycast_cancel
            found = await ask(sequence, message_id)
        target.say(_text(found), type="status", **_document(found))
        return int(what == "cancel" and found.state is not State.CANCELLED)

    return run(work)


def _text(found: Status) -> str:
    text = f"request {found.sequence}: {found.state}"
    if found.taker is not None:
        before = "" if found.previous is None else f", before that by {found.previous.name} ({found.previous.id})"
        text += f" by {found.taker.name} ({found.taker.id}){before}"
    if found.removal is not None:
        text += f", its copy in the queue is {found.removal.replace('-', ' ')}"
    return one_line(text)


def _document(found: Status) -> dict[str, Any]:
    document = {name: value for name, value in found._asdict().items() if value is not None}
    for name in ("taker", "previous"):
        if name in document:
            document[name] = {"id": document[name].id, "name": document[name].name}
    return document


@command.command(epilog=EXIT_HELP, short_help="Take and show requests to your roles until Ctrl-C.")
@click.option("--reply", metavar="TEXT", help="Answer each request with this direct message.")
@follow_options
@access_options
def serve(target: Target, *, reply: str | None, **more: Any) -> int:
    """Hold your roles at the terminal: take requests, show them, and count each as done when it is printed.

    A request is taken before it is shown, so that one holder shows it. With --reply its sender is answered before it is
    acked; a request that was not acked comes again, to any holder.
    """
    target.access.must_be("hold a role", Stance.MEMBER)
    if not target.identity.roles:
        raise WrongStance("this credential holds no role; use one that does (with --dev: --as reviewer)")

    async def answer(peer: Peer, said: Said) -> None:
        assert reply is not None
        sender = Principal.from_dot(said.meta.sender)
        again = (
            f"reply-{said.message.id}"[:256] if said.message.id else None
        )  # a request that comes again is answered once
        await peer.tell(sender, reply, reply_to=said.message.id or None, message_id=again)

    async def work(stop: asyncio.Event) -> None:
        await Follow(target, stop, **more).member({From.ROLE}, handle=None if reply is None else answer)

    return run(work, follows=True)
