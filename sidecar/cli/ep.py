"""``sidecar ep``: endpoints of a space. Its modules are loaded when one of its commands runs."""

from __future__ import annotations

import importlib
from typing import Final

import click

from sidecar.cli.connection_options import Group

COMMANDS: Final = {
    "list": ("ep_look", "listing", "The endpoints on which you hold a command."),
    "describe": ("ep_look", "describe", "What an endpoint says of itself, and what its commands take."),
    "call": ("ep_call", "call", "Call a command and show its answer."),
    "cast": ("ep_call", "cast", "Send a command without asking for an answer."),
    "scatter": ("ep_call", "scatter", "Call a command of every live instance."),
    "watch": ("ep_watch", "command", "Watch events, or the record of an instance."),
    "new": ("ep_new", "command", "Make a directory with a working endpoint and its test."),
    "register": ("ep_host", "register", "Register an instance; it gives the creds that serve it."),
    "serve": ("ep_host", "serve", "Run an instance until it is stopped or superseded."),
    "deregister": ("ep_host", "deregister", "End the registration of an instance."),
    "domain": ("ep_domain", "domain", "Who may register under a domain: claim, list, release."),
}
"""Module and function of each command; the text stands here so that help loads none of them."""


class _Lazy(Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name, _ = COMMANDS[cmd_name]
        found: click.Command = getattr(importlib.import_module(f"sidecar.cli.{module}"), name)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])


@click.group(name="ep", cls=_Lazy)
def command() -> None:
    """Endpoints of a space: what there is, what it takes, and calling it; making and serving your own.

    Connection options that stand in front of the names let the shell complete them.
    """
