"""``sidecar channel``: channels of a space."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Final

import click

from sidecar.app import channel_table
from sidecar.app.conversation import Said
from sidecar.base.clock import system_now
from sidecar.cli import channel_set
from sidecar.cli.messaging_follow import Follow, follow_options
from sidecar.cli.messaging_target import EXIT_HELP, AgoType, Group, Target, access_options, run
from sidecar.cli.messaging_view import document_of, show, table
from sidecar.ops.exitcodes import CommandCode
from sidecar.rails.endpoint.codes import CallError
from sidecar.rails.envelopes.receive import Rejected, Source, receive
from sidecar.rails.messaging.channel import NO_PAST, Past
from sidecar.rails.messaging.desk import Via
from sidecar.rails.messaging.durables import From
from sidecar.rails.messaging.frames import Frame
from sidecar.rails.messaging.identity import Stance
from sidecar.rails.messaging.observing import frontier_of
from sidecar.rails.messaging.peer import Peer
from sidecar.rails.messaging.readers import HistoryReader
from sidecar.rails.names.subjects import delivery_of
from sidecar.rails.names.tokens import GRAMMARS, subscribe_channel

MAX_INPUT: Final = 1_048_576
"""Bytes of a text that is read from standard input."""
_READERS: Final = (Stance.OBSERVER, Stance.ADMIN)


@click.group(name="channel", cls=Group)
def command() -> None:
    """Channels of a space: what there is, who may, posts and history."""


def read_text(text: str) -> str:
    """The text of a message: the argument, or standard input for ``-``."""
    if text != "-":
        return text
    data = sys.stdin.buffer.read(MAX_INPUT + 1)
    if len(data) > MAX_INPUT:
        raise click.UsageError(f"a text has at most {MAX_INPUT} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise click.UsageError("the text on standard input is no UTF-8") from None


async def _memberships(target: Target, peer: Peer) -> set[str] | None:
    """The durable memberships; None where they cannot be found out."""
    if target.identity.stance is not Stance.MEMBER:
        return set()
    try:
        return set(await peer.memberships())
    except CallError as error:
        click.echo(f"-- memberships are not known: {error.message}", err=True)
        return None


@command.command(name="list", epilog=EXIT_HELP, short_help="Channels, and what you may do there.")
@access_options
def list_channels(target: Target) -> int:
    """Channels, what is in force for each, and what these creds may do there.

    MEMBER: a durable membership is open, so that posts are kept while nobody is connected. READ: may be joined, and
    mentions reach it, joined or not. A row that ends in > stands for everything below.
    """

    async def work(_: asyncio.Event) -> None:
        async with target.access.peer(target.patience) as peer:
            registry = await target.access.reads(peer).registry()
            rows = channel_table.rows(target.identity, registry, await _memberships(target, peer))
        if target.as_json:
            for row in rows:
                target.say("", **_row_document(row))
            return
        click.echo(table([("CHANNEL", "CLASS", "REPLAY", "MEMBER", "READ", "POST", "DESCRIPTION"), *map(_cells, rows)]))
        for unread in registry.unread:
            click.echo(f"-- the entry of {unread.key} is not valid and counts as absent", err=True)

    return run(work)


def _cells(row: channel_table.ChannelRow) -> tuple[str, ...]:
    told = {"class": "(each its own)", "replay": "-"}
    if row.effective is not None:
        told = dict(channel_table.effective_text(row.effective))
    member = "?" if row.member is None else _yes(row.member)
    return (
        *(row.name, told["class"], told["replay"], member),
        *(_yes(row.readable), _yes(row.postable), row.config.description or ""),
    )


def _yes(value: bool) -> str:
    return "yes" if value else "-"


def _row_document(row: channel_table.ChannelRow) -> dict[str, Any]:
    effective = row.effective
    return {
        "type": "channel",
        "channel": row.name,
        "class": None if effective is None else effective.delivery_class.value,
        "replay": None if effective is None else effective.replay,
        "window_seconds": None if effective is None else effective.window_seconds,
        "member": row.member,
        "readable": row.readable,
        "postable": row.postable,
        "description": row.config.description,
        "instructions": row.config.instructions,
    }


@command.command(name="show", epilog=EXIT_HELP, short_help="What is in force for CHANNEL, and what you may do.")
@click.argument("channel")
@access_options
def show_channel(target: Target, channel: str) -> int:
    """One CHANNEL: what is in force, what the registry says, and what these creds may do there."""
    GRAMMARS["channel"].check(channel)

    async def work(_: asyncio.Event) -> None:
        async with target.access.peer(target.patience) as peer:
            registry = await target.access.reads(peer).registry()
            row = channel_table.row_of(channel, target.identity, registry, await _memberships(target, peer))
        if target.as_json:
            target.say("", **_row_document(row))
            return
        assert row.effective is not None
        lines = {"channel": row.name, **channel_table.effective_text(row.effective)}
        lines |= {"description": row.config.description or "-", "instructions": row.config.instructions or "-"}
        lines |= {"member": "?" if row.member is None else _yes(row.member)}
        lines |= {"readable": _yes(row.readable), "postable": _yes(row.postable)}
        click.echo(table([(name, value) for name, value in lines.items()]))

    return run(work)


@command.command(epilog=EXIT_HELP)
@click.argument("channel")
@click.argument("text")
@click.option("--mention", "mentions", multiple=True, metavar="NAME", help="Mention a peer; may be given again.")
@click.option("--reply-to", metavar="ID", help="The message that this one answers.")
@click.option("--context", "context_id", metavar="ID", help="The context that it belongs to.")
@click.option("--id", "message_id", help="The message id: sending again under one id stores it once.")
@access_options
def send(target: Target, channel: str, text: str, mentions: tuple[str, ...], **more: str | None) -> int:
    """Post TEXT on CHANNEL, or standard input for -. Done means stored."""
    target.access.must_be("post", Stance.MEMBER, Stance.SENDER)
    content = read_text(text)

    async def work(_: asyncio.Event) -> None:
        async with target.access.peer(target.patience) as peer:
            sent = await peer.post(channel, content, mentions=mentions, **more)
        again = " (it was stored before)" if sent.duplicate else ""
        target.say(f"stored as {sent.id}, number {sent.sequence} of the space{again}", type="sent", **sent._asdict())

    return run(work)


def _past(since: int | None, from_start: bool, replay: bool) -> Past | None:
    if sum((since is not None, from_start, replay)) > 1:
        raise click.UsageError("give one of --since, --from-start and --replay")
    if replay:
        return None
    if from_start:
        return Past()
    return NO_PAST if since is None else Past(int((system_now().wall - since) * 1000))


@command.command(epilog=EXIT_HELP, short_help="Join CHANNELS and show their posts until Ctrl-C.")
@click.argument("channels", nargs=-1)
@click.option("--since", type=AgoType(), help="Show history of so long first, as 90m or 2d.")
@click.option("--from-start", is_flag=True, help="Show all history that is kept first.")
@click.option("--replay", is_flag=True, help="Show the history first that the channel's settings give a new member.")
@follow_options
@access_options
def tail(
    target: Target, channels: tuple[str, ...], since: int | None, from_start: bool, replay: bool, **more: Any
) -> int:
    """Join CHANNELS (names or patterns, as team.>) and show posts until Ctrl-C.

    Live posts, history and durable copies are one stream, each message once: [history] and [durable] mark what did not
    come live, [mention] what names you, [mismatch] what names another channel than it was posted on. Durable copies are
    acked when they were printed. The membership stays when the command ends: what is posted meanwhile is shown by
    the next tail; `channel leave` ends it. An observer sees posts and joins nothing.
    """
    names = channels or (() if target.link is None else target.link.channels)
    if not names:
        raise click.UsageError("name at least one channel")
    for name in names:
        subscribe_channel(name)
    past = _past(since, from_start, replay)
    target.access.must_be("read channels", Stance.MEMBER, *_READERS)

    async def work(stop: asyncio.Event) -> None:
        follow = Follow(target, stop, **more)
        if target.identity.stance in _READERS:
            await follow.observer(names, past or Past())
        else:
            await follow.member({From.BACKSTOP}, names, past)

    return run(work, follows=True)


@command.command(epilog=EXIT_HELP, short_help="Have posts of CHANNEL kept, connected or not.")
@click.argument("channel")
@access_options
def join(target: Target, channel: str) -> int:
    """Open the durable membership of CHANNEL: posts are kept from now on, connected or not.

    Exit code 1 when it is a live channel, or the membership could not be opened; the line says why.
    """
    target.access.must_be("join", Stance.MEMBER)

    async def work(_: asyncio.Event) -> int:
        async with target.access.peer(target.patience) as peer:
            joined = await peer.join(channel, NO_PAST)
        why = f": {joined.shortfall}" if joined.shortfall else ""
        document = {"channel": joined.channel, "state": joined.state.value, "shortfall": joined.shortfall}
        target.say(f"{joined.channel}: joined {joined.state}{why}", type="joined", **document)
        return CommandCode.OK if joined.durable else CommandCode.REFUSED

    return run(work)


@command.command(epilog=EXIT_HELP, short_help="Close the durable membership of CHANNEL.")
@click.argument("channel")
@access_options
def leave(target: Target, channel: str) -> int:
    """Close the durable membership of CHANNEL, also one that an earlier process opened."""
    target.access.must_be("leave", Stance.MEMBER)

    async def work(_: asyncio.Event) -> int:
        async with target.access.peer(target.patience) as peer:
            left = await peer.leave(channel)
        text = "left" if left.closed else "not left: the delivery plane does not answer; run it again"
        target.say(f"{left.channel}: {text}", type="left", channel=left.channel, closed=left.closed)
        return CommandCode.OK if left.closed else CommandCode.UNKNOWN

    return run(work)


@command.command(epilog=EXIT_HELP)
@click.argument("channel")
@click.option("--since", type=AgoType(), help="Not older than so long, as 90m or 2d.")
@click.option("--after", type=click.IntRange(0), default=0, help="Behind this number of the space.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="The newest so many.")
@click.option("--ids", is_flag=True, help="Show the principal and the message id of each message.")
@access_options
def history(target: Target, channel: str, since: int | None, after: int, limit: int, ids: bool) -> int:
    """Show what is stored of CHANNEL, the oldest first. Joins nothing and acks nothing."""
    target.access.must_be("read history", Stance.MEMBER, *_READERS)
    subscribe_channel(channel)
    since_ms = None if since is None else int((system_now().wall - since) * 1000)

    async def work(_: asyncio.Event) -> None:
        newest: deque[tuple[Frame, Said]] = deque(maxlen=limit)
        refused = 0
        async with target.access.peer(target.patience) as peer:
            async for frame in await _frames(target, peer, channel, after, since_ms):
                said = _said(frame, mediated=target.access.mediated)
                if said is None:
                    refused += 1
                elif since_ms is None or frame.time_ms >= since_ms:
                    newest.append((frame, said))
        for frame, said in newest:
            if target.as_json:
                target.say("", **{**document_of(said), "sequence": frame.sequence, "stored": frame.time_ms})
            else:
                show(said, as_json=False, ids=ids)
        if refused:
            click.echo(f"-- {refused} messages are refused and not shown", err=True)

    return run(work)


async def _frames(target: Target, peer: Peer, channel: str, after: int, since_ms: int | None) -> AsyncIterator[Frame]:
    if target.identity.stance is Stance.MEMBER:
        return await peer.history(channel, after=after, since_ms=since_ms)
    reader = HistoryReader(peer.connection, target.identity.space, target.identity.connection)
    frontier = await frontier_of(peer.connection, target.identity.space)
    return reader.chat(channel, after=after, up_to=frontier)


def _said(frame: Frame, *, mediated: bool) -> Said | None:
    try:
        found = receive(
            frame.data, delivery_of(frame.subject), Source.HISTORY, header_names=frame.headers, mediated=mediated
        )
    except Rejected:
        return None
    return Said(found.message, found.meta, (Via.HISTORY,))


command.add_command(channel_set.command)
