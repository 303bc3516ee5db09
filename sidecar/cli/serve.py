"""``sidecar serve``: run the coordinator."""

from __future__ import annotations

from pathlib import Path

import click

from sidecar.ops.exitcodes import ExitCode, documentation


class _ConfigRefused(click.ClickException):
    exit_code = ExitCode.CONFIG


@click.command(name="serve", epilog="\b\nExit codes:\n" + documentation())
@click.option("--config", "file", type=click.Path(path_type=Path, dir_okay=False), required=True, help="TOML file.")
def command(file: Path) -> None:
    """Run the coordinator next to a nats-server until SIGTERM or SIGINT.

    Prints one JSON line on standard output once clients can connect. An example of the configuration with every key
    explained is printed by `sidecar config example`.
    """
    from sidecar.app.config import ServeConfig
    from sidecar.app.serve import serve
    from sidecar.ops import config

    try:
        settings = config.load(file, ServeConfig)
    except config.ConfigError as error:
        raise _ConfigRefused(str(error)) from None
    serve(settings)
