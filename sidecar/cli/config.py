"""``sidecar config``: configuration files explained."""

from __future__ import annotations

import click

from sidecar.app.config import ServeConfig
from sidecar.cli.main import ExplainedGroup
from sidecar.ops.config import example
from sidecar.witness.config import WitnessConfig

_MODELS = {"serve": ServeConfig, "witness": WitnessConfig}


@click.group(name="config", cls=ExplainedGroup, epilog="Exit codes: 0 done, 2 wrong usage.")
def command() -> None:
    """Configuration files explained."""


@command.command(name="example", short_help="Print one: of `serve` or of `witness`.")
@click.argument("process", type=click.Choice(list(_MODELS)), default="serve")
def print_example(process: str) -> None:
    """Print a commented configuration with every key explained: of `serve` (the default) or of `witness`.

    It is read as it stands; keys that have a default are commented out and show it.
    """
    click.echo(example(_MODELS[process]), nl=False)
