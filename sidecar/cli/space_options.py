"""Options that the commands of spaces share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from sidecar.app.spaces import check_url

_Command = TypeVar("_Command", bound=Callable[..., Any])


def default_root() -> Path:
    """``$XDG_STATE_HOME/sidecar/nats``, usually ``~/.local/state/sidecar/nats``."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "sidecar" / "nats"


def root_option(function: _Command) -> _Command:
    return click.option(
        "--root",
        type=click.Path(path_type=Path, file_okay=False),
        default=default_root,
        help="Owner-only directory of the broker's trust and the accounts.  [default: ~/.local/state/sidecar/nats]",
    )(function)


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
        raise click.UsageError("the broker is needed: --server nats://HOST:PORT", click.get_current_context())
    return server
