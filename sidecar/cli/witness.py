"""``sidecar witness``: make, run and look at an activation witness."""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import click

from sidecar.base.ed25519 import digest_text, fingerprint
from sidecar.cli.main import ExplainedGroup
from sidecar.ops import config
from sidecar.ops.exitcodes import ExitCode
from sidecar.ops.logging import open_log
from sidecar.witness import server, store
from sidecar.witness.config import WitnessConfig
from sidecar.witness.state import Record
from sidecar.witness.store import Identity

_state_dir_option = click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Directory (0700) of the witness, on another volume than the coordinators' stores.",
)


_json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")


class _ConfigRefused(click.ClickException):
    exit_code = ExitCode.CONFIG


_EXIT_HELP = """\b
Exit codes:
  0  done, or stopped on request
  1  unexpected failure
  2  wrong usage
 73  the socket cannot be opened, or its file was removed or replaced
 74  the state cannot be used: locked, damaged, or an older copy
 78  the configuration is not valid
"""


@click.group(name="witness", cls=ExplainedGroup, epilog=_EXIT_HELP)
def command() -> None:
    """The activation witness: it lets one coordinator process at a time be the writer.

    Coordinators pin its id and public key, and authenticate with a key file of their own (sidecar workload keygen)
    whose public key stands in the witness's configuration.
    """


@command.command()
@_state_dir_option
@_json_option
def init(state_dir: Path, as_json: bool) -> None:
    """Make a witness: signing key, id, empty state. Prints what coordinators pin. Overwrites nothing."""
    identity = store.init(state_dir, os.urandom)
    shown = {"witness_id": identity.witness_id.hex(), "public_key": identity.public_key.hex()}
    click.echo(json.dumps(shown) if as_json else "\n".join(f"{name} {value}" for name, value in shown.items()))


@command.command(short_help="Run the witness until SIGTERM or SIGINT.")
@click.option("--config", "file", type=click.Path(path_type=Path, dir_okay=False), required=True, help="TOML file.")
def serve(file: Path) -> None:
    """Run the witness until SIGTERM or SIGINT; prints one JSON line when clients can connect."""
    try:
        settings = config.load(file, WitnessConfig)
    except config.ConfigError as error:
        raise _ConfigRefused(str(error)) from None
    log = open_log(settings.log.level, settings.log.format, settings.log.file)

    def ready(identity: Identity) -> None:
        shown = {
            "ready": True,
            "pid": os.getpid(),
            "socket": str(settings.witness.socket),
            "witness_id": identity.witness_id.hex(),
            "public_key": identity.public_key.hex(),
        }
        click.echo(json.dumps(shown))
        sys.stdout.flush()
        log.info("witness_ready", witness_id=identity.witness_id.hex(), socket=settings.witness.socket)

    server.run(settings.witness, log, entropy=os.urandom, ready=ready)


@command.command()
@_state_dir_option
@_json_option
def show(state_dir: Path, as_json: bool) -> None:
    """Show all that the witness holds, also beside a running one. There is no secret in it."""
    witness_id, commits, records = store.inspect(state_dir)
    coordinators = [_shown(record) for record in records]
    if as_json:
        click.echo(json.dumps({"witness_id": witness_id.hex(), "commits": commits, "coordinators": coordinators}))
        return
    click.echo(f"witness {witness_id.hex()}, {commits} commits, {len(coordinators)} coordinators")
    for coordinator in coordinators:
        click.echo("")
        for name, value in coordinator.items():
            click.echo(f"{name:<20} {_instant(value) if name.endswith('_at') else value}")


def _shown(record: Record) -> dict[str, object]:
    return {
        "coordinator_id": record.coordinator_id.hex(),
        "client_key_id": digest_text(fingerprint(record.client_key)),
        "last_authority_epoch": record.epoch,
        "activation_sequence": record.activation_sequence,
        "incarnation_id": record.lease.incarnation_id.hex(),
        "issued_at": record.lease.issued_at,
        "expires_at": record.lease.expires_at,
        "relinquished": record.lease.spent,
    }


def _instant(seconds: object) -> str:
    assert isinstance(seconds, int)
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
