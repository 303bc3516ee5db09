"""Names of endpoints and commands for the completion of a shell, from the registry's listing.

The connection is that of the options that stand on the line already. It is bounded in time, says nothing when it fails,
and keeps nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import click

SECONDS: Final = 2.0
"""For everything: a shell that waits for longer is worse than one without completion."""
_PAGES: Final = 8
_CONNECTION: Final = ("dev", "who", "space", "creds", "url", "link", "name", "as_json", "patience")


def endpoint_names(ctx: click.Context) -> list[str]:
    """Endpoints on which the credential holds a command."""
    return sorted(_listed(ctx))


def command_names(ctx: click.Context) -> list[str]:
    """Commands of the endpoint that stands on the line."""
    return sorted(_listed(ctx).get(ctx.params.get("endpoint") or "", ()))


def _listed(ctx: click.Context) -> dict[str, list[str]]:
    try:
        return asyncio.run(_ask({name: ctx.params.get(name) for name in _CONNECTION}))
    except Exception:
        return {}  # whatever it is: the command itself says it, a half-typed line does not


async def _ask(options: dict[str, Any]) -> dict[str, list[str]]:
    from sidecar.app.ep_access import calling
    from sidecar.cli.messaging_target import target_of

    found: dict[str, list[str]] = {}
    async with asyncio.timeout(SECONDS):
        target = target_of({**options, "name": options["name"] or "", "patience": SECONDS})
        async with calling(target.access, SECONDS) as caller:
            after = None
            for _ in range(_PAGES):
                page = await caller.endpoints(after=after)
                for row in page.rows:
                    found[str(row["endpoint"])] = names_of(row)
                if (after := page.next) is None:
                    break
    return found


def names_of(row: Mapping[str, Any]) -> list[str]:
    """The commands in one row of a listing; several entries may have one name (C13.20-06)."""
    return list(dict.fromkeys([*(str(one["name"]) for one in row["commands"]), *map(str, row.get("unprojected", ()))]))
