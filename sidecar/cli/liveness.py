"""``sidecar liveness``: whether a plane of a space has somebody who serves it."""

from __future__ import annotations

import asyncio
from typing import Final

import click

from sidecar.cli.messaging_target import EXIT_HELP, Command, Target, access_options, run
from sidecar.ops.exitcodes import CommandCode
from sidecar.rails.messaging.identity import Stance
from sidecar.rails.messaging.liveness import Liveness, Verdict, Why
from sidecar.rails.names.tokens import PLANES

_CODES: Final = {
    Verdict.BOUND: CommandCode.OK,
    Verdict.UNBOUND: CommandCode.REFUSED,
    Verdict.STALE: CommandCode.REFUSED,
    Verdict.UNKNOWN: CommandCode.UNKNOWN,
}
_WHY: Final = {
    Why.ANSWERED: "it answered",
    Why.NOBODY: "nobody listens",
    Why.TIMEOUT: "no answer in two seconds",
    Why.DENIED: "these creds may not ask",
    Why.DISCONNECTED: "the connection was lost",
    Why.UNREADABLE: "its answer is none",
}


@click.command(name="liveness", cls=Command, epilog=EXIT_HELP)
@click.argument("plane", type=click.Choice(PLANES), default="delivery")
@access_options
def command(target: Target, plane: str) -> int:
    """Ask PLANE (delivery unless it is named) whether it is bound: bound, unbound, stale or unknown.

    Exit code 0 for bound, 1 for unbound and stale, 5 when nobody can tell.
    """
    target.access.must_be("ask planes", Stance.MEMBER)

    async def work(_: asyncio.Event) -> int:
        async with target.access.peer(target.patience) as peer:
            found = await peer.probe(plane)
        target.say(_text(found), type="liveness", **found._asdict())
        return _CODES[found.verdict]

    return run(work)


def _text(found: Liveness) -> str:
    instance = "" if found.instance is None else f", instance {found.instance}"
    return f"{found.plane}: {found.verdict} ({_WHY[found.why]}{instance})"
