"""What ``channel tail``, ``dm inbox`` and ``anycast serve`` have in common: show, then settle, until it is enough."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Any, TypeVar

import click

from sidecar.app.conversation import Conversation, Event, Notices, Said, observed
from sidecar.app.direct import directs
from sidecar.cli.connection_options import FiniteType
from sidecar.cli.messaging_target import Target
from sidecar.cli.messaging_view import show
from sidecar.rails.messaging.channel import Past
from sidecar.rails.messaging.durables import From
from sidecar.rails.messaging.identity import Stance
from sidecar.rails.messaging.observing import Observation
from sidecar.rails.messaging.peer import Peer

F = TypeVar("F", bound=Callable[..., Any])


def follow_options(function: F) -> F:
    """When it is enough, and what is shown."""
    for option in (
        click.option("--ids", is_flag=True, help="Show the principal and the message id of each message."),
        click.option("--hidden", is_flag=True, help="Do not appear in the roster."),
        click.option(
            "--idle", type=FiniteType(0.1, 86_400), help="End when nothing came for so many seconds.  [default: Ctrl-C]"
        ),
        click.option("--count", type=click.IntRange(1), help="End after so many messages."),
    ):
        function = option(function)
    return function


class Follow:
    """One command that follows. Only what was printed is acked: whatever stops it, the rest comes again."""

    def __init__(
        self, target: Target, stop: asyncio.Event, *, count: int | None, idle: float | None, hidden: bool, ids: bool
    ) -> None:
        self._target, self._stop = target, stop
        self._count, self._idle, self._hidden, self._ids = count, idle, hidden, ids
        self._notices = Notices()

    async def member(
        self,
        sources: Collection[From],
        channels: tuple[str, ...] = (),
        past: Past | None = None,
        handle: Callable[[Peer, Said], Awaitable[None]] | None = None,
    ) -> None:
        """The stream of a member. ``handle`` does more with a message that was printed, before it is acked."""
        async with self._target.access.peer(
            self._target.patience, sources=sources, present=not self._hidden, watch=self._notices.watch
        ) as peer:
            conversation = Conversation(peer, self._notices, self._stop, channels=channels, past=past)
            work = None if handle is None else lambda said: handle(peer, said)
            await self._print(conversation.events(self._idle), work)

    async def dm_reader(self) -> None:
        """The stream of a reader of direct messages."""
        async with self._target.access.peer(self._target.patience, watch=self._notices.watch) as peer:
            await self._print(directs(peer, self._notices, self._stop, idle=self._idle), None)

    async def observer(self, channels: tuple[str, ...], past: Past | None) -> None:
        """The stream of an observer or admin."""
        identity = self._target.identity
        async with self._target.access.peer(self._target.patience, watch=self._notices.watch) as peer:
            observation = await Observation.open(
                peer.connection,
                identity.space,
                identity.connection,
                channels,
                admin=identity.stance is Stance.ADMIN,
                metrics=peer.metrics,
            )
            self._notices.tell("observing", f"observing {', '.join(channels)}: live posts", channels=list(channels))
            await self._print(observed(observation, self._notices, self._stop, past=past, idle=self._idle), None)

    async def _print(self, events: AsyncIterator[Event], work: Callable[[Said], Awaitable[None]] | None) -> None:
        shown = 0
        async with contextlib.aclosing(events) as stream:  # type: ignore[type-var]
            async for event in stream:
                show(event, as_json=self._target.as_json, ids=self._ids)
                if isinstance(event, Said):
                    if work is not None:
                        await work(event)
                    await event.handled()
                    shown += 1
                    if shown == self._count:
                        return
