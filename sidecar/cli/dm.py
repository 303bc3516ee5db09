"""``sidecar dm``: direct messages."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from sidecar.cli.channel import read_text
from sidecar.cli.messaging_follow import Follow, follow_options
from sidecar.cli.messaging_target import EXIT_HELP, Group, Target, access_options, run
from sidecar.rails.messaging.durables import From
from sidecar.rails.messaging.identity import Stance


@click.group(name="dm", cls=Group)
def command() -> None:
    """Direct messages: send one, or read your own."""


@command.command(epilog=EXIT_HELP)
@click.argument("to")
@click.argument("text")
@click.option("--reply-to", metavar="ID", help="The message that this one answers.")
@click.option("--context", "context_id", metavar="ID", help="The context that it belongs to.")
@click.option("--id", "message_id", help="The message id: sending again under one id stores it once.")
@access_options
def send(target: Target, to: str, text: str, **more: str | None) -> int:
    """Send TEXT to one principal, or standard input for -. It is kept for one that is offline.

    TO is a principal as OWNER.ACTOR, or the name of exactly one peer that is here; with --dev also one of its names.
    """
    target.access.must_be("send", Stance.MEMBER, Stance.SENDER)
    content = read_text(text)

    async def work(_: asyncio.Event) -> None:
        async with target.access.peer(target.patience) as peer:
            principal = await target.access.resolve(peer, to)
            sent = await peer.tell(principal, content, **more)
        again = " (it was stored before)" if sent.duplicate else ""
        text = f"stored for {principal.dot} as {sent.id}{again}"
        target.say(text, type="sent", to=principal.dot, **sent._asdict())

    return run(work)


@command.command(epilog=EXIT_HELP, short_help="Show your direct messages until Ctrl-C.")
@follow_options
@access_options
def inbox(target: Target, **more: Any) -> int:
    """Show your direct messages until Ctrl-C: those that waited first, then what comes.

    A message is acked when it was printed, and not shown again. What an agent of the same identity has taken is not
    shown here. Words of the delivery plane about your requests to a role are shown as notices. With the creds of a
    dm-reader nothing appears in the roster, and nothing else is read.
    """
    target.access.must_be("read direct messages", Stance.MEMBER, Stance.DM_READER)

    async def work(stop: asyncio.Event) -> None:
        follow = Follow(target, stop, **more)
        if target.identity.stance is Stance.DM_READER:
            await follow.dm_reader()
        else:
            await follow.member({From.DM})

    return run(work, follows=True)
