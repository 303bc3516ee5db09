"""``sidecar dev``: everything on loopback in one directory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from sidecar.app.dev import Dev, DevOptions, run_dev

_DEMO_CERTIFICATE_SECONDS = 4
_CERTIFICATE_SECONDS = 10


_EXIT_HELP = """\b
Exit codes:
  0  stopped on request, or the tour of --once is through
  1  something did not start, or the tour failed; the line names the log
  2  wrong usage
 74  the witness's state in DIR cannot be used (damaged, or an older copy)
"""


@click.command(name="dev", epilog=_EXIT_HELP)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    default=Path(".sidecar"),
    show_default=True,
    help="State directory; made when missing, continued when there.",
)
@click.option("--demo", is_flag=True, help="Walk through the main job first, then stay up.")
@click.option("--once", is_flag=True, help="With --demo: exit 0 after the tour.")
@click.option("--nats-server", type=click.Path(path_type=Path), help="nats-server binary to use.")
@click.option("--nats-port", type=click.IntRange(0, 65535), default=0, help="Port of nats-server; 0 takes a free one.")
@click.option(
    "--certificate-seconds",
    type=click.IntRange(2, 60),
    help="Life of an activation certificate: what a successor waits for after kill -9.  [default: 10; 4 with --demo]",
)
@click.option(
    "--without-endpoints", is_flag=True, help="Start no registry, bridge and samples: for those who only talk."
)
def command(
    directory: Path,
    demo: bool,
    once: bool,
    nats_server: Path | None,
    nats_port: int,
    certificate_seconds: int | None,
    without_endpoints: bool,
) -> None:
    """Start nats-server, witness, coordinator, delivery, registry and endpoints; stop all of them with Ctrl-C.

    The endpoints are the coordinator's bridge and two instances of a sample. Prints one JSON line on stdout when
    everything serves; logs are in DIR/log. Another `dev` in the same DIR continues the same coordinator.
    """
    if once and not demo:
        raise click.UsageError("--once goes with --demo.")
    seconds = certificate_seconds or (_DEMO_CERTIFICATE_SECONDS if demo else _CERTIFICATE_SECONDS)
    options = DevOptions(directory, nats_server, nats_port, seconds, endpoints=not without_endpoints)
    if not demo:
        run_dev(options)
        return

    async def body(dev: Dev) -> None:
        from sidecar.app.demo import next_steps, tour

        await tour(dev, click.echo)
        if not once:
            click.echo(next_steps(dev))
            await asyncio.Event().wait()

    click.echo("Starting nats-server, witness, coordinator, delivery, registry and endpoints ...")
    run_dev(options, body=body, announce=False)
