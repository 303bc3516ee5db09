"""``sidecar ep register``, ``serve`` and ``deregister``: the instances of an endpoint of your own."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
from pathlib import Path
from typing import Final

import click

from sidecar.app.ep_load import load
from sidecar.cli.connection_options import Command
from sidecar.cli.ep_domain import OWNER, space_option
from sidecar.cli.ep_options import ENDPOINT_TYPE, INSTANCE
from sidecar.cli.space_options import json_option, needed, root_option, server_option
from sidecar.ops.exitcodes import ExitCode

LEVELS: Final = ("debug", "info", "warning", "error")
_STEP_EXIT_HELP: Final = """\b
Exit codes:
  0  done
  1  refused: no claim, another owner, a contract that does not fit; or the broker does not answer: run it again
  2  wrong usage, or there is no endpoint in that file
"""
_SERVE_EXIT_HELP: Final = f"""\b
Exit codes:
  0  stopped on request; what was begun was answered
  1  it was not registered: no claim, another owner, a contract that does not fit
  2  wrong usage, or there is no endpoint in that file
 {int(ExitCode.FENCED)}  superseded: another process took the instance over, or its registration was ended
"""
_owner_option = click.option(
    "--owner", type=OWNER, help="Owner of the endpoint.  [default: whoever has claimed its domain]"
)


@click.command(name="register", cls=Command, epilog=_STEP_EXIT_HELP)
@click.argument("where", metavar="FILE.py:NAME|MODULE:NAME")
@root_option
@server_option
@space_option
@_owner_option
@click.option("--instance", type=INSTANCE, help="The instance to take over.  [default: a new one]")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="Creds file to write.  [default: beside the space]"
)
@json_option
def register(
    where: str,
    root: Path,
    server: str | None,
    space: str,
    owner: str | None,
    instance: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Register an instance of an endpoint for a process without the keys of the space.

    It gives the creds that serve it. Whoever served the instance before is evicted first. Run it again to finish what
    was begun.
    """
    from sidecar.app import endpoint_host
    from sidecar.app.endpoint_records import EndpointShelf
    from sidecar.app.ep_serve import owner_of

    endpoint, broker = load(where), needed(server)
    chosen = instance or os.urandom(16).hex()
    file = out or EndpointShelf(root, space, endpoint.name, chosen).creds_file
    token = owner or owner_of(root, space, endpoint.name)
    done = asyncio.run(endpoint_host.register(root, space, broker, endpoint, owner=token, out=file, instance=chosen))
    told = {"endpoint": endpoint.name, "owner": token, "instance_id": done.instance, "epoch": done.epoch}
    _say({"type": "registered", **told, "evicted": done.evicted, "creds": str(file)}, as_json)
    if not as_json:
        serving = shlex.join(("sidecar", "ep", "serve", where, "--creds", str(file), "--server", broker))
        click.echo(f"-- it is served within a day, with: {serving}", err=True)


@click.command(name="serve", cls=Command, epilog=_SERVE_EXIT_HELP)
@click.argument("where", metavar="FILE.py:NAME|MODULE:NAME")
@root_option
@server_option
@click.option("--space", help="The space; the instance is registered in it.")
@_owner_option
@click.option(
    "--instance",
    type=INSTANCE,
    help="The instance to take over.  [default: one of this directory that nobody serves, or a new]",
)
@click.option(
    "--creds",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Serve the instance that `sidecar ep register` gave these creds for, without the keys of a space.",
)
@click.option(
    "--log-level", type=click.Choice(LEVELS), default="warning", show_default=True, help="What goes to stderr."
)
def serve(
    where: str,
    root: Path,
    server: str | None,
    space: str | None,
    owner: str | None,
    instance: str | None,
    creds: Path | None,
    log_level: str,
) -> None:
    """Run an instance of an endpoint until SIGTERM or SIGINT.

    It is registered first, which evicts whoever served the instance before; then it serves, and says in its record that
    it is ready. Prints one JSON line on standard output when it serves. A broker that is away is waited for.
    """
    from sidecar.app.ep_serve import owner_of, serve_creds, serve_registered
    from sidecar.app.json_config import Where

    if (creds is None) == (space is None):
        raise click.UsageError("one of --space and --creds is needed", click.get_current_context())
    endpoint, broker = load(where), needed(server)
    if creds is not None:
        if owner is not None or instance is not None:
            raise click.UsageError("--owner and --instance go with --space; the creds name theirs")
        serve_creds(endpoint, creds, broker, level=log_level)
        return
    assert space is not None
    token = owner or owner_of(root, space, endpoint.name)
    serve_registered(Where(root, space, broker), endpoint, token, instance, level=log_level)


@click.command(name="deregister", cls=Command, epilog=_STEP_EXIT_HELP)
@click.argument("endpoint", type=ENDPOINT_TYPE)
@click.argument("instance", type=INSTANCE)
@root_option
@server_option
@space_option
@click.option("--for-good", is_flag=True, help="Retire it: this id never comes back.")
@json_option
def deregister(
    endpoint: str, instance: str, root: Path, server: str | None, space: str, for_good: bool, as_json: bool
) -> None:
    """End the registration of INSTANCE of ENDPOINT. Its process stops serving. Run it again to finish it."""
    from sidecar.app import endpoint_host

    end = endpoint_host.retire if for_good else endpoint_host.deregister
    found = asyncio.run(end(root, space, needed(server), endpoint, instance))
    told = {"endpoint": endpoint, "instance_id": instance}
    _say({"type": "retired" if for_good else "deregistered", **told, "was_registered": found}, as_json)


def _say(document: dict[str, object], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(document))
        return
    for name, value in document.items():
        shown = ("no", "yes")[value] if isinstance(value, bool) else value
        click.echo(f"{name:<14} {shown}")
