"""``sidecar principal``: who is in a space, with which credentials."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from sidecar.app import principals as work
from sidecar.app.principal_records import Wanted
from sidecar.app.spaces import open_space
from sidecar.cli.connection_options import FiniteType
from sidecar.cli.main import ExplainedGroup
from sidecar.cli.space_options import json_option, needed, root_option, server_option
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.principals import Principal, check_mintable
from sidecar.rails.space.holder import Profile
from sidecar.rails.space.may import hears_text, may_text, parse_hears, parse_may

_Command = TypeVar("_Command", bound=Callable[..., Any])
_DAY = 86_400
_MOST_DAYS = 36_500
"""No profile lives for so long; which ends sooner is for the grants to say."""


class PrincipalType(click.ParamType[Principal]):
    """``OWNER.ACTOR``."""

    name = "owner.actor"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Principal:
        try:
            return Principal.from_dot(value)
        except InvalidName as error:
            self.fail(f"a principal is OWNER.ACTOR, as `sidecar principal list` prints it: {error.reason}", param, ctx)


def _space_option(function: _Command) -> _Command:
    return click.option("--space", required=True, help="The space.")(function)


_days_option = click.option(
    "--days", type=FiniteType(min=0, max=_MOST_DAYS, min_open=True), help="Life of the credential."
)


_EXIT_HELP = """\b
Exit codes:
  0  done
  1  the broker refused or does not answer, or a file is unsafe; run it again to finish what was begun
  2  wrong usage
"""


@click.group(name="principal", cls=ExplainedGroup, epilog=_EXIT_HELP)
def command() -> None:
    """Principals of a space: add one, renew its creds, revoke it."""


@command.command()
@root_option
@server_option
@_space_option
@click.option("--owner", help="Owner token: local, or one that was derived before.")
@click.option("--identity", help="Stable identity, such as a login's subject; the owner token is derived from it.")
@click.option("--actor", required=True, help="Handle of the instance under its owner.")
@click.option(
    "--profile",
    type=click.Choice([one.value for one in work.MINTED]),
    default=Profile.AGENT.value,
    show_default=True,
    help="What it may do.",
)
@click.option("--name", default="", help="Display name, at most 128 characters.")
@click.option("--subscribe", multiple=True, metavar="CHANNEL", help="Channel or family that it joins at the start.")
@click.option("--allow-subscribe", multiple=True, metavar="CHANNEL", help="What it may read.  [default: --subscribe]")
@click.option("--allow-publish", multiple=True, metavar="CHANNEL", help="Where it may post.  [default: nowhere]")
@click.option("--role", multiple=True, help="Role that it serves.")
@click.option(
    "--may",
    multiple=True,
    metavar="ENDPOINT:COMMAND[@MODE[=TARGET]]",
    help="Command that it may call; * is every command. MODE is self, owner, child, ledger (or any: operator).",
)
@click.option("--hear", multiple=True, metavar="ENDPOINT:[CLUSTER/]EVENT", help="Event that it may hear; * is all.")
@_days_option
@json_option
def add(
    root: Path,
    server: str | None,
    space: str,
    owner: str | None,
    identity: str | None,
    actor: str,
    profile: str,
    name: str,
    subscribe: tuple[str, ...],
    allow_subscribe: tuple[str, ...],
    allow_publish: tuple[str, ...],
    role: tuple[str, ...],
    may: tuple[str, ...],
    hear: tuple[str, ...],
    days: float | None,
    as_json: bool,
) -> None:
    """Add a principal. Run it again to finish it.

    It gets a lifecycle, a read ACL, durables and a creds file. For a principal that is there, other lists and roles
    replace those it has; a credential that is out there keeps what it says until it is replaced, revoked or ended.
    """
    if (owner is None) == (identity is None):
        raise click.UsageError("one of --owner and --identity is needed.", click.get_current_context())
    kind = Profile(profile)
    broker = needed(server)
    token = check_mintable(owner) if identity is None else work.derived_owner(root, space, identity)
    seconds = work.default_seconds(kind) if days is None else _seconds(days)
    allowed = allow_subscribe or None
    wanted = Wanted(Principal(token, actor), kind, seconds, name, subscribe, allowed, allow_publish, role)
    calls = tuple(dict.fromkeys(one for text in may for one in parse_may(text, token)))
    wanted = replace(wanted, capabilities=calls, hears=tuple(map(parse_hears, hear)))
    _show(asyncio.run(_add(root, space, broker, wanted)), as_json)


async def _add(root: Path, space: str, server: str, wanted: Wanted) -> work.PrincipalInfo:
    async with open_space(root, space, server) as opened:
        return await work.add(opened, wanted)


@command.command(name="list")
@root_option
@_space_option
@json_option
def list_principals(root: Path, space: str, as_json: bool) -> None:
    """The principals of a space, ended ones too."""
    found = work.principals(root, space)
    if as_json:
        click.echo(json.dumps({"principals": [_object(info) for info in found]}))
    for info in [] if as_json else found:
        record = info.record
        click.echo(f"{record.wanted.principal.dot}\t{record.wanted.profile}\t{record.stage}\t{record.uid}")


@command.command()
@click.argument("principal", type=PrincipalType())
@root_option
@_space_option
@json_option
def show(principal: Principal, root: Path, space: str, as_json: bool) -> None:
    """Show OWNER.ACTOR: lists, roles, lifecycle, creds."""
    _show(work.principal_info(root, space, principal), as_json)


@command.command()
@click.argument("principal", type=PrincipalType())
@root_option
@server_option
@_space_option
@_days_option
@json_option
def creds(principal: Principal, root: Path, server: str | None, space: str, days: float | None, as_json: bool) -> None:
    """Renew the creds file of OWNER.ACTOR.

    The key and the lifecycle stay, the end is another one. No broker is needed; without one, the new creds cannot list
    the endpoints of the space.
    """
    seconds = None if days is None else _seconds(days)
    _show(asyncio.run(_renew(root, space, server, principal, seconds)), as_json)


async def _renew(
    root: Path, space: str, server: str | None, principal: Principal, seconds: int | None
) -> work.PrincipalInfo:
    if server is not None:
        try:
            async with open_space(root, space, server) as opened:
                return await work.renew_listed(opened, principal, seconds)
        except work.BrokerAway as error:
            click.echo(f"the broker was not asked: {error}", err=True)
    return work.renew(root, space, principal, seconds)


@command.command()
@click.argument("principal", type=PrincipalType())
@root_option
@server_option
@_space_option
@json_option
def revoke(principal: Principal, root: Path, server: str | None, space: str, as_json: bool) -> None:
    """End OWNER.ACTOR. Run it again to finish it.

    Its connections, credentials, read ACL, durables and memberships end with it. The name may be added again: another
    lifecycle, which sees nothing of this one.
    """
    _show(asyncio.run(_revoke(root, space, needed(server), principal)), as_json)


async def _revoke(root: Path, space: str, server: str, principal: Principal) -> work.PrincipalInfo:
    async with open_space(root, space, server) as opened:
        return await work.revoke(opened, principal)


def _seconds(days: float) -> int:
    return max(1, int(days * _DAY))


def _show(info: work.PrincipalInfo, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(_object(info)))
        return
    record, wanted = info.record, info.record.wanted
    lines = {
        "principal": wanted.principal.dot,
        "profile": wanted.profile.value,
        "stage": record.stage.value,
        "lifecycle": record.uid,
        "reads": " ".join(wanted.subscribe if wanted.allow_subscribe is None else wanted.allow_subscribe) or "-",
        "posts": " ".join(wanted.allow_publish) or "-",
        "roles": " ".join(wanted.roles) or "-",
        "calls": " ".join(map(may_text, wanted.capabilities)) or "-",
        "hears": " ".join(map(hears_text, wanted.hears)) or "-",
        "creds": os.fspath(info.creds) if info.user else "-",
        "ends": "-" if info.expires_at is None else _instant(info.expires_at),
    }
    for name, value in lines.items():
        click.echo(f"{name:<10} {value}")
    if info.unlisted:
        click.echo(f"These creds cannot list the endpoints of the space: {info.unlisted}", err=True)


def _instant(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _object(info: work.PrincipalInfo) -> dict[str, Any]:
    return {
        "principal": info.record.wanted.principal.dot,
        **info.record.value(),
        "creds": os.fspath(info.creds) if info.user else None,
        "user": info.user,
        "expires_at": info.expires_at,
        "unlisted": info.unlisted or None,
    }
