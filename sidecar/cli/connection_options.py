"""What the commands with a connection have in common, whatever they connect to: options, numbers, the ready line of a
``sidecar dev``. It loads no client: a command that only sends must not wait for parts that it does not use."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any, Final

import click

from sidecar.ops.exitcodes import CommandCode


class CommandFailed(Exception):  # noqa: N818 - what happened
    """A command that ends with an error line and this exit code."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class FiniteType(click.FloatRange):
    """A number within bounds. NaN compares false with every bound, so it is refused by name."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not a number", param, ctx)
        return number


class _ConnectionOption(click.Option):
    """An option that stands in the help under a title of its own."""


class Command(click.Command):
    """A command whose help shows its own options first and those of the connection after them."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": [], "Connection options": []}
        for option in self.get_params(ctx):
            shown = option.get_help_record(ctx) if isinstance(option, click.Option) else None
            if shown is not None:
                sections["Connection options" if isinstance(option, _ConnectionOption) else "Options"].append(shown)
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class Group(click.Group):
    """A group of such commands, and of such groups."""

    command_class = Command
    group_class = type


connection_option: Final = functools.partial(click.option, cls=_ConnectionOption)


def read_ready(dev: Path) -> dict[str, Any]:
    """The ready line of the `sidecar dev` that runs in this directory."""
    try:
        ready = json.loads((dev / "ready.json").read_bytes())
    except FileNotFoundError:
        raise CommandFailed(
            f"no development run in {dev}; start it with: sidecar dev --dir {dev}", CommandCode.NO_CONNECTION
        ) from None
    except ValueError:
        ready = None
    if not isinstance(ready, dict) or "coordinator" not in ready or "workloads" not in ready:
        raise click.UsageError(f"{dev / 'ready.json'} is not the ready line of a `sidecar dev`")
    return ready
