"""The part of the tour in which two peers talk, and one of them goes offline and misses nothing."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from sidecar.app.access import Access
from sidecar.app.dev import Dev
from sidecar.rails.envelopes.message import TextPart
from sidecar.rails.messaging.channel import NO_PAST
from sidecar.rails.messaging.durables import From
from sidecar.rails.messaging.inbox import Delivered
from sidecar.rails.messaging.peer import Peer
from sidecar.rails.messaging.sending import Sent

Say = Callable[[str], None]
SPACE: Final = "guarded"
CHANNEL: Final = "team.backend"
_READ: Final = frozenset({From.DM, From.BACKSTOP})
_SECONDS: Final = 20.0
"""The longest wait of a step."""


async def talk(dev: Dev, say: Say, first: int) -> None:
    """Steps ``first`` and ``first + 1``. Raises what fails: a failing tour is a failing product."""
    space = dev.spaces[SPACE]
    alice, bob = (Access.of(dev.broker.url, Path(space["creds"][name])) for name in ("alice", "bob"))
    async with alice.peer(_SECONDS, present=True) as sender:
        async with bob.peer(_SECONDS, sources=_READ, present=True) as receiver:
            joined = await receiver.join(CHANNEL, NO_PAST)
            say(f"{first}. Two agents talk in the space {SPACE}")
            say(f"   bob           joined {joined.state}: {CHANNEL}")
            question = await sender.post(CHANNEL, "Can you review this?", mentions=("bob",))
            for heard in await _heard(receiver, question):
                say(f"   {heard}")
        say(by_hand(dev, "bob", "channel", "tail", CHANNEL))
        say(by_hand(dev, "alice", "channel", "send", CHANNEL, "Can you review this?"))
        missed = [await sender.post(CHANNEL, "It is merged."), await sender.tell(bob.identity.principal, "Thank you!")]
        say(f"{first + 1}. Bob was offline while alice posted and wrote to him; he is back")
        async with bob.peer(_SECONDS, sources=_READ, present=True) as receiver:
            await receiver.join(CHANNEL, NO_PAST)
            live = await sender.post(CHANNEL, "Welcome back.")
            for heard in await _heard(receiver, *missed, live):
                say(f"   {heard}")
        say("   each of them  once, and none lost")
        say(by_hand(dev, "bob", "dm", "inbox"))


async def _heard(peer: Peer, *sent: Sent) -> list[str]:
    """These messages in the order in which they were sent, each handled. Those of an earlier tour are left out."""
    found: dict[str, str] = {}
    wanted = [one.id for one in sent]
    async with asyncio.timeout(_SECONDS):
        while found.keys() < set(wanted):
            delivered = await peer.next()
            if (known := delivered.message.id) in found:
                raise RuntimeError("a message came twice")
            if known in wanted:
                found[known] = _line(delivered)
            await delivered.handled()
    return [found[one] for one in wanted]


def _line(delivered: Delivered) -> str:
    meta, message = delivered.meta, delivered.message
    text = " ".join(part.text for part in message.parts if isinstance(part, TextPart))
    kind = f"#{meta.target}" if meta.kind == "channel" else meta.kind
    return f"bob hears     {message.sender.name} {kind}: {text}"


def by_hand(dev: Dev, who: str, *words: str, space: str = SPACE) -> str:
    """What to type for the same."""
    return f"   by hand:      {command_line(dev, who, *words, space=space)}"


def command_line(dev: Dev, who: str, *words: str, space: str = SPACE) -> str:
    """A command line of messaging for the shell, with the program as it was called here."""
    program = sys.argv[0] if Path(sys.argv[0]).name == "sidecar" else "sidecar"
    where: list[Any] = ["--dev", os.fspath(dev.layout.root), "--as", who, "--space", space]
    return shlex.join([program, *words, *where])
