"""``sidecar bridge``: serve a coordinator as an endpoint of a space."""

from __future__ import annotations

from pathlib import Path

import click

from sidecar.ops.exitcodes import ExitCode

_EXIT_HELP = """\b
Exit codes:
  0  stopped on request
  1  unexpected failure; the log has the details
  2  wrong usage
 69  the instance has ended: another process serves it now, or its credentials are not taken; start again
 73  the health listener cannot be opened
 78  the configuration, the key or the owner of the endpoint's name is missing or not valid
"""


class _ConfigRefused(click.ClickException):
    exit_code = ExitCode.CONFIG


@click.command(name="bridge", epilog=_EXIT_HELP)
@click.option("--config", "file", type=click.Path(path_type=Path, dir_okay=False), required=True, help="JSON file.")
def command(file: Path) -> None:
    """Serve a coordinator as the endpoint dev.sidecar.coordinator of a space, until SIGTERM or SIGINT.

    Callers that hold its commands ask for `status`, page through `objects` and look an `operation` up; the bridge logs
    in for reading alone. The file names the space (space, url, root), the owner of the endpoint's name, and the
    coordinator (socket, key, pins, witnessId, witnessPublicKey). Prints one JSON line on standard output when it
    serves.
    """
    from sidecar.app.bridge import bridge
    from sidecar.app.bridge_config import load
    from sidecar.ops.config import ConfigError

    try:
        config = load(file)
    except ConfigError as error:
        raise _ConfigRefused(str(error)) from None
    bridge(config)
