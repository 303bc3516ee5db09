"""``sidecar registry``: run the registries of spaces."""

from __future__ import annotations

from pathlib import Path

import click

from sidecar.ops.exitcodes import ExitCode

_EXIT_HELP = """\b
Exit codes:
  0  stopped on request; what was asked already was answered
  1  unexpected failure; the log has the details
  2  wrong usage
 73  the health listener cannot be opened
 78  the configuration is missing or not valid
"""


class _ConfigRefused(click.ClickException):
    exit_code = ExitCode.CONFIG


@click.command(name="registry", epilog=_EXIT_HELP)
@click.option("--config", "file", type=click.Path(path_type=Path, dir_okay=False), required=True, help="JSON file.")
def command(file: Path) -> None:
    """Run the registries of one or more spaces until SIGTERM or SIGINT.

    A registry tells callers which endpoints they may call, and instances what their callers hold. The file names its
    lanes: {"lanes": [{"space": NAME, "url": nats://HOST:PORT, "root": DIR}]}, where DIR holds the keys of the spaces.
    Prints one JSON line on standard output when every lane serves. A second process of the same space serves beside
    the first one.
    """
    from sidecar.app.registry import registry
    from sidecar.app.registry_config import load
    from sidecar.ops.config import ConfigError

    try:
        config = load(file)
    except ConfigError as error:
        raise _ConfigRefused(str(error)) from None
    registry(config)
