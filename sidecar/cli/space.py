"""``sidecar space``: spaces of a broker, with their keys, accounts and streams."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import click

from sidecar.app import spaces as work
from sidecar.cli import space_upkeep
from sidecar.cli.main import ExplainedGroup
from sidecar.cli.space_options import json_option, root_option, server_option
from sidecar.rails.space.holder import Form

_EXIT_HELP = """\b
Exit codes:
  0  done
  1  the broker refused or does not answer, a file is unsafe, or a stream is missing or has another shape
  2  wrong usage
"""


@click.group(name="space", cls=ExplainedGroup, epilog=_EXIT_HELP)
def command() -> None:
    """Spaces of a broker: make one, list them, prove their shape; their history limits and backups."""


@command.command()
@root_option
@json_option
def trust(root: Path, as_json: bool) -> None:
    """Print what a broker needs to trust this directory.

    The lines belong into its configuration; nothing in them is secret. Makes the operator and the system account at the
    first call.
    """
    lines = work.trust_lines(root)
    click.echo(json.dumps({"configuration": lines}) if as_json else lines, nl=as_json)


@command.command()
@click.argument("name")
@root_option
@server_option
@click.option("--form", type=click.Choice([form.value for form in Form]), help="How agents read.  [default: mediated]")
@click.option(
    "--delivery-class",
    type=click.Choice(work.DELIVERY_CLASSES),
    default=work.DELIVERY_CLASSES[0],
    show_default=True,
    help="Default of its channels; one that is set already stays.",
)
@json_option
def create(name: str, root: Path, server: str | None, form: str | None, delivery_class: str, as_json: bool) -> None:
    """Make the space NAME: keys, account, streams and buckets. Run it again to finish or to prove it.

    What exists is never changed: a stream of another shape is reported, exit code 1.
    """
    if server is None:
        raise click.UsageError("the broker is needed: --server nats://HOST:PORT", click.get_current_context())
    wanted = None if form is None else Form(form)
    info, made = asyncio.run(work.create_space(root, name, wanted, server, delivery_class))
    if as_json:
        click.echo(json.dumps({**_object(info), "made": made}))
    else:
        click.echo(f"space {info.name} ({info.form}): {len(made)} streams made, all have their shape")


@command.command(name="list")
@root_option
@json_option
def list_spaces(root: Path, as_json: bool) -> None:
    """The spaces of this directory."""
    found = work.spaces(root)
    if as_json:
        click.echo(json.dumps({"spaces": [_object(info) for info in found]}))
    for info in [] if as_json else found:
        click.echo(f"{info.name}\t{info.form}\t{info.account}")


@command.command()
@click.argument("name")
@root_option
@server_option
@json_option
def show(name: str, root: Path, server: str | None, as_json: bool) -> None:
    """Show the space NAME.

    With --server the shape of its streams too; exit code 1 when one is missing or differs.
    """
    info = work.space_info(root, name)
    found = None if server is None else asyncio.run(work.space_shape(root, name, server))
    faults = {stream: state for stream, state in (found or {}).items() if state != []}
    if as_json:
        click.echo(json.dumps({**_object(info), "streams": found}))
    else:
        click.echo(
            f"space    {info.name}\nform     {info.form}\naccount  {info.account}\nrevoked  {info.revoked} users"
        )
        for stream, state in (found or {}).items():
            text = "missing" if state is None else "; ".join(state) or "as it must be"
            click.echo(f"{stream}: {text}")
    if faults:
        click.get_current_context().exit(1)


def _object(info: work.SpaceInfo) -> dict[str, Any]:
    return {
        "space": info.name,
        "form": info.form,
        "account": info.account,
        "issued_at": info.issued_at,
        "revoked": info.revoked,
    }


command.add_command(space_upkeep.limits)
command.add_command(space_upkeep.backup_info)
