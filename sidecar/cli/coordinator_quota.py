"""``sidecar coordinator quota``: how full every limit is."""

from __future__ import annotations

from pathlib import Path

import click

from sidecar.cli.connection_options import Command, CommandFailed, FiniteType
from sidecar.cli.coordinator_show import table
from sidecar.cli.coordinator_stats import (
    EXIT_HELP,
    NEAR,
    admin_options,
    admin_socket,
    document_line,
    levels_of,
    look,
    number,
)
from sidecar.cli.coordinator_target import Exit


@click.command(name="quota", cls=Command, epilog=EXIT_HELP, short_help="How full each limit is, and whose it is.")
@click.option("--connections", is_flag=True, help="Also the limits of each connection.")
@click.option(
    "--check",
    "limit",
    type=FiniteType(0, 100),
    metavar="PERCENT",
    help="End with exit code 1 when one is fuller than this.",
)
@click.option("--json", "as_json", is_flag=True, help="JSON instead of a table.")
@admin_options
def quota(connections: bool, limit: float | None, as_json: bool, dev: Path | None, admin_path: Path | None) -> None:
    """Show used and cap of every resource of the server and of each key, the fullest first.

    A full quota refuses what is new with RESOURCE_EXHAUSTED and takes nothing from what is there. A key's share is its
    own: connecting again does not reset it.
    """
    rows = levels_of(look(admin_socket(dev, admin_path)).document, connections=connections)
    if as_json:
        click.echo(document_line({"quotas": [row.as_json() for row in rows]}))
    else:
        shown = [
            (
                row.resource,
                number(row.used),
                number(row.cap),
                f"{row.percent:.0f} %{' !' if row.percent >= NEAR else ''}",
                row.level,
                row.who,
            )
            for row in rows
        ]
        click.echo(table(("RESOURCE", "USED", "CAP", "FULL", "LEVEL", "WHOSE"), shown))
    above = [row for row in rows if limit is not None and row.percent > limit]
    if above:
        first = above[0]
        raise CommandFailed(
            f"{len(above)} above {limit:g} %, the fullest is {first.resource} of the {first.level}"
            f"{'' if first.who == '-' else ' ' + first.who} at {first.percent:.0f} %",
            Exit.REFUSED,
        )
