"""``sidecar ep new``: a working endpoint to begin with."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import click

from sidecar.app.ep_args import BadArguments, checked
from sidecar.app.scaffold import DEFAULT_NAME, NotEmpty, make
from sidecar.cli.connection_options import Command, CommandFailed
from sidecar.cli.main import REFUSED
from sidecar.cli.space_options import json_option
from sidecar.rails.names.tokens import ENDPOINT_NAME

_EXIT_HELP = """\b
Exit codes:
  0  made
  1  the directory is not empty, or cannot be written
  2  wrong usage
"""


@click.command(name="new", cls=Command, epilog=_EXIT_HELP)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option("--name", default=DEFAULT_NAME, show_default=True, help="Name of the endpoint, as your domain reversed.")
@json_option
def command(directory: Path, name: str, as_json: bool) -> None:
    """Make DIR with an endpoint of ten lines, its test and a README. DIR is new or empty."""
    try:
        checked(ENDPOINT_NAME, name)
    except BadArguments as error:
        raise click.UsageError(str(error)) from None
    if "." not in name:
        raise click.UsageError(
            f"{name} has one label; such names are kept. Write your domain reversed: com.example.{name}"
        )
    try:
        made = make(directory, name)
    except NotEmpty as error:
        raise CommandFailed(str(error), REFUSED) from None
    if as_json:
        click.echo(json.dumps({"type": "made", "name": name, "files": [str(one) for one in made]}))
        return
    for one in made:
        click.echo(str(one))
    click.echo(f"-- its test: cd {shlex.quote(str(directory))} && {shlex.quote(sys.executable)} -m pytest", err=True)
