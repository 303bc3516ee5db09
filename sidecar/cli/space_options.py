"""Options that the commands of spaces share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from sidecar.app.spaces import check_url
from sidecar.cli.connection_options import CommandFailed, read_ready
from sidecar.cli.main import REFUSED

_Command = TypeVar("_Command", bound=Callable[..., Any])


def default_root() -> Path:
    """``$XDG_STATE_HOME/sidecar/nats``, usually ``~/.local/state/sidecar/nats``."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "sidecar" / "nats"


def root_option(function: _Command) -> _Command:
    """``--root``, and ``--dev``, which says root and broker at once."""
    root = click.option(
        "--root",
        type=click.Path(path_type=Path, file_okay=False),
        default=default_root,
        help="Owner-only directory of the broker's trust and the accounts.  [default: ~/.local/state/sidecar/nats]",
    )
    return dev_option(root(function))


def _of_dev(ctx: click.Context, param: click.Parameter, dev: Path | None) -> None:
    if dev is not None:
        try:
            nats = read_ready(dev)["nats"]
        except CommandFailed as error:
            raise CommandFailed(str(error), REFUSED) from None  # these commands have no code of their own for it
        broker = {"server": nats["url"], "url": nats["url"]}
        ctx.default_map = {**(ctx.default_map or {}), "root": nats["root"], **broker}


dev_option = click.option(
    "--dev",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of a running `sidecar dev`, instead of root and broker.",
    expose_value=False,
    is_eager=True,
    callback=_of_dev,
)
"""Gives the defaults of ``--root`` and ``--server``; what is written beside it counts before it."""


class BrokerType(click.ParamType[str]):
    """``nats://HOST:PORT``; nothing secret may stand in it, because arguments are public."""

    name = "url"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return check_url(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


server_option = click.option("--server", type=BrokerType(), help="The broker, as nats://HOST:PORT.")
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")


def needed(server: str | None) -> str:
    """The broker, or wrong usage."""
    if server is None:
        raise click.UsageError(
            "the broker is needed: --server nats://HOST:PORT, or --dev DIR", click.get_current_context()
        )
    return server
