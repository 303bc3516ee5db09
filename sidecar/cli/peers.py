"""``sidecar peers``: who is in a space."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any, Final

import click

from sidecar.app.conversation import Told
from sidecar.base.clock import system_now
from sidecar.cli.main import one_line
from sidecar.cli.messaging_target import EXIT_HELP, Command, Target, access_options, run
from sidecar.cli.messaging_view import show, table
from sidecar.rails.messaging.reads import Reads
from sidecar.rails.messaging.roster import Roster, RosterUnreadable, Row
from sidecar.rails.messaging.watcher import Transition, changes

WATCH_SECONDS: Final = 2.0


@click.command(name="peers", cls=Command, epilog=EXIT_HELP)
@click.option(
    "--all", "everybody", is_flag=True, help="Those who are offline too, as long as the space remembers them."
)
@click.option("--watch", is_flag=True, help="Go on, and tell who comes, changes and goes, until Ctrl-C.")
@access_options
def command(target: Target, *, everybody: bool, watch: bool) -> int:
    """Who is here: name, principal, status and what each one does.

    The list is complete or not shown at all. Names are chosen by their owners; the principal is not.
    """

    async def work(stop: asyncio.Event) -> None:
        async with target.access.peer(target.patience) as peer:
            reads = target.access.reads(peer)
            roster = await reads.roster()
            _show(target, roster, everybody=everybody)
            if watch:
                show(Told("watching", "watching; Ctrl-C ends it"), as_json=target.as_json)
                await _watch(target, reads, roster, stop)

    return run(work, follows=watch)


async def _watch(target: Target, reads: Reads, roster: Roster, stop: asyncio.Event) -> None:
    readable = True
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WATCH_SECONDS):
                await stop.wait()
                return
        try:
            now = await reads.roster()
        except RosterUnreadable as error:
            if readable:
                text = f"the roster cannot be read: {error}; trying again"
                show(Told("unread", text, {"why": str(error)}), as_json=target.as_json)
            readable = False
            continue
        if not readable:
            show(Told("read", "the roster is read again"), as_json=target.as_json)
        readable = True
        for change in changes(roster, now):
            _show_change(target, change)
        roster = now


def _show(target: Target, roster: Roster, *, everybody: bool) -> None:
    rows = sorted(
        (row for row in roster if everybody or row.live), key=lambda row: (row.presence.card.name, row.principal)
    )
    now = int(system_now().wall * 1000)
    if target.as_json:
        for row in rows:
            click.echo(json.dumps({"type": "peer", **_document(row, now)}))
        return
    head = ("NAME", "PRINCIPAL", "ROLE", "STATUS", "UP", "ACTIVITY")
    click.echo(table([head, *(_cells(row, now) for row in rows)]) if rows else "nobody is here")
    if roster.dropped:
        click.echo(f"-- {len(roster.dropped)} records cannot be read and are left out", err=True)


def _show_change(target: Target, change: Transition) -> None:
    row = change.row
    if target.as_json:
        click.echo(json.dumps({"type": change.change.value, **_document(row, int(system_now().wall * 1000))}))
        return
    presence = row.presence
    doing = f": {presence.activity}" if presence.activity else ""
    click.echo(one_line(f"{change.change} {presence.card.name} ({row.principal.dot}) {presence.status}{doing}"))


def _cells(row: Row, now: int) -> tuple[str, ...]:
    presence = row.presence
    up = row.uptime_ms(now)
    return (
        presence.card.name,
        row.principal.dot,
        presence.card.role or "-",
        presence.status.value,
        "-" if up is None else _span(up),
        presence.activity or "",
    )


def _span(milliseconds: int) -> str:
    seconds = milliseconds // 1000
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _document(row: Row, now: int) -> dict[str, Any]:
    presence = row.presence
    return {
        "principal": row.principal.dot,
        "name": presence.card.name,
        "kind": presence.card.kind.value,
        "role": presence.card.role,
        "description": presence.card.description,
        "status": presence.status.value,
        "activity": presence.activity,
        "live": row.live,
        "uptime_ms": row.uptime_ms(now),
    }
