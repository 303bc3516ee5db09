"""``sidecar ep domain``: who may register endpoints under which names."""

from __future__ import annotations

import json
from pathlib import Path

import click

from sidecar.app import domains
from sidecar.app.ep_args import BadArguments, checked
from sidecar.app.principals import derived_owner
from sidecar.cli.ep_options import ReadType
from sidecar.cli.main import ExplainedGroup
from sidecar.cli.space_options import json_option, root_option
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.principals import check_mintable
from sidecar.rails.names.tokens import ENDPOINT_NAME

_EXIT_HELP = """\b
Exit codes:
  0  done
  1  somebody else has claimed it, it is in use, or a file is unsafe
  2  wrong usage
"""


def read_owner(text: str) -> str:
    """An owner token that may be minted. Raises BadArguments."""
    try:
        return check_mintable(text)
    except InvalidName as error:
        raise BadArguments(f"this is no owner: {error.reason}; it is local, or what --identity gives") from None


def _domain(text: str) -> str:
    if "." not in checked(ENDPOINT_NAME, text):
        raise BadArguments("a domain has two labels or more; names of one are kept for the operator")
    return text


DOMAIN = ReadType("domain", _domain)
OWNER = ReadType("owner", read_owner)
space_option = click.option("--space", required=True, help="The space.")


@click.group(name="domain", cls=ExplainedGroup, epilog=_EXIT_HELP)
def domain() -> None:
    """Domains of a space: whoever has claimed one registers the endpoints below it.

    A claim stands on disk beside the space; no broker is needed.
    """


@domain.command()
@click.argument("name", metavar="DOMAIN", type=DOMAIN)
@click.option("--owner", type=OWNER, help="Owner token: local, or one that was derived before.")
@click.option("--identity", help="Stable identity, such as a login's subject; the owner token is derived from it.")
@root_option
@space_option
@json_option
def claim(name: str, owner: str | None, identity: str | None, root: Path, space: str, as_json: bool) -> None:
    """Let an owner register DOMAIN and what lies below it. Claimed again by the same owner, it stays as it is."""
    if (owner is None) == (identity is None):
        raise click.UsageError("one of --owner and --identity is needed.", click.get_current_context())
    token = owner if identity is None else derived_owner(root, space, identity)
    assert token is not None
    _show(domains.claim(root, space, name, token), as_json)


@domain.command(name="list")
@root_option
@space_option
@json_option
def list_claims(root: Path, space: str, as_json: bool) -> None:
    """Every claim of a space."""
    found = domains.claims(root, space)
    if as_json:
        click.echo(json.dumps({"claims": [_object(one) for one in found]}))
    for one in [] if as_json else found:
        _show(one, as_json)


@domain.command()
@click.argument("name", metavar="DOMAIN", type=DOMAIN)
@root_option
@space_option
@json_option
def release(name: str, root: Path, space: str, as_json: bool) -> None:
    """Give DOMAIN up. It is refused while instances are registered by it."""
    _show(domains.release(root, space, name), as_json)


def _show(one: domains.Claim, as_json: bool) -> None:
    click.echo(json.dumps(_object(one)) if as_json else f"{one.domain}\t{one.owner}")


def _object(one: domains.Claim) -> dict[str, str | int]:
    return {"domain": one.domain, "owner": one.owner, "revision": one.revision}
