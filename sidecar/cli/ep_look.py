"""``sidecar ep list`` and ``describe``: what there is, and what it takes."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import click

from sidecar.app.ep_access import calling
from sidecar.cli.connection_options import Command
from sidecar.cli.ep_complete import names_of
from sidecar.cli.ep_options import CALL_EXIT_HELP, ENDPOINT, Sent, instance_option, run_asked, seconds_option
from sidecar.cli.ep_view import error_document, signature
from sidecar.cli.main import one_line
from sidecar.cli.messaging_target import Target, access_options
from sidecar.cli.messaging_view import table
from sidecar.ops.exitcodes import CallCode
from sidecar.rails.endpoint.caller import Caller
from sidecar.rails.endpoint.calls_types import Described
from sidecar.rails.endpoint.codes import CallError, CallRefused, Code
from sidecar.rails.endpoint.contracts import Contract

PAGE = 100
LEAST_SECONDS = 0.001
_SOURCES = {
    "recorded-ceiling": "the grants that are recorded for this credential",
    "no-permission-system": "all that there is: the space has no grants",
}


@click.command(name="list", cls=Command, epilog=CALL_EXIT_HELP)
@seconds_option
@access_options
def listing(target: Target, seconds: float) -> int:
    """The endpoints on which you hold a command, as the registry of the space tells it.

    What is listed is what the grants of this credential cover, as they were recorded when it was issued; it is no
    promise that somebody serves it. A registry that does not answer is reported, and nothing is listed then.
    """

    async def work(_: asyncio.Event, __: Sent) -> int:
        async with calling(target.access, target.patience) as caller:
            try:
                rows, source = await _listed(caller, seconds)
            except CallError as error:
                return _unlisted(target, error)
        _show_rows(target, rows, source)
        return CallCode.OK

    return run_asked(target, work)


async def _listed(caller: Caller, seconds: float) -> tuple[list[Mapping[str, Any]], str]:
    rows: list[Mapping[str, Any]] = []
    after: str | None = None
    while True:
        page = await caller.endpoints(limit=PAGE, after=after, seconds=seconds)
        rows += page.rows
        if (after := page.next) is None:
            return rows, page.source


def _unlisted(target: Target, error: CallError) -> CallCode:
    """There is no listing; a part of one is none either (C13.20-15)."""
    says = isinstance(error, CallRefused)
    code = CallCode.REFUSED if says or error.code == Code.PERMISSION_DENIED else CallCode.NO_CONNECTION
    did = "refuses" if says else "was not asked" if code is CallCode.REFUSED else "does not answer"
    text = f"the registry {did}: {error}; nothing is listed"
    if target.as_json:
        click.echo(json.dumps({**error_document(error), "message": one_line(text), "exit_code": int(code)}))
    click.echo(f"-- {one_line(text)}", err=True)
    return code


def _show_rows(target: Target, rows: list[Mapping[str, Any]], source: str) -> None:
    """Only whole listings are shown."""
    if target.as_json:
        for row in rows:
            click.echo(json.dumps({"type": "endpoint", **row}))
        return
    head = ("ENDPOINT", "INSTANCES", "COMMANDS")
    cells = [(str(row["endpoint"]), _instances(row), ", ".join(names_of(row)) or "-") for row in rows]
    click.echo(table([head, *cells]) if rows else "you hold no command on any endpoint")
    click.echo(f"-- {len(rows)} endpoints, from {_SOURCES.get(source) or one_line(source)}", err=True)


def _instances(row: Mapping[str, Any]) -> str:
    """How many instances are in which state; a contract that cannot be read is said."""
    states = Counter(str(one.get("state") or "unknown") for one in row["instances"])
    faults = Counter(str(one["artifacts"]) for one in row["instances"] if one["artifacts"] != "verified")
    told = [f"{count} {state}" for state, count in sorted(states.items())]
    return ", ".join([*told, *(f"{count} with {fault} contracts" for fault, count in sorted(faults.items()))]) or "none"


@click.command(name="describe", cls=Command, epilog=CALL_EXIT_HELP)
@click.argument("endpoint", type=ENDPOINT)
@instance_option
@seconds_option
@access_options
def describe(target: Target, endpoint: str, instance: str | None, seconds: float) -> int:
    """What ENDPOINT says of itself: its commands that you may call, with what they take and give.

    Contracts are read from the space and verified against their digests.
    """

    async def work(_: asyncio.Event, __: Sent) -> int:
        async with calling(target.access, target.patience) as caller:
            described = await caller.describe(endpoint, instance=instance, seconds=seconds)
            contracts = await _contracts(caller, described, seconds)
        if target.as_json:
            click.echo(json.dumps(description(described, contracts)))
        else:
            for line in description_lines(described, contracts):
                click.echo(line)
        return CallCode.REFUSED if any(isinstance(one, CallError) for one in contracts.values()) else CallCode.OK

    return run_asked(target, work, what=f"{endpoint} describe")


async def _contracts(caller: Caller, described: Described, seconds: float) -> dict[str, Contract | CallError]:
    """All contracts, within the one deadline of the command."""
    found: dict[str, Contract | CallError] = {}
    clock = asyncio.get_running_loop().time
    until = clock() + seconds
    for cluster in described.descriptor.clusters:
        for name in cluster.commands:
            left = max(LEAST_SECONDS, until - clock())  # what is at hand is shown whatever the time
            try:
                found[name] = await caller.contract(described.descriptor.endpoint, name, seconds=left)
            except CallError as error:
                found[name] = error
    return found


def description(described: Described, contracts: Mapping[str, Contract | CallError]) -> dict[str, Any]:
    """A description for programs, with the schemas of every command."""
    descriptor = described.descriptor
    return {
        "type": "description",
        "endpoint": descriptor.endpoint,
        "owner": descriptor.owner,
        "public": descriptor.public,
        "protocol": descriptor.protocol,
        "instance": described.instance,
        "epoch": described.epoch,
        "clusters": [{"digest": one.digest, "commands": list(one.commands)} for one in descriptor.clusters],
        "commands": {name: _contract(one) for name, one in contracts.items()},
    }


def _contract(found: Contract | CallError) -> dict[str, Any]:
    if isinstance(found, CallError):
        return {"error": {"code": str(found.code), "message": found.message}}
    return {
        "class": found.contract_class,
        "modes": list(found.modes),
        "effect": found.effect,
        "inputDigest": found.input_digest,
        "outputDigest": found.output_digest,
        "input": found.input.schema,
        "output": found.output.schema,
    }


def description_lines(described: Described, contracts: Mapping[str, Contract | CallError]) -> Iterator[str]:
    """A description for people: one line for each command, its input and its output."""
    descriptor = described.descriptor
    shown = "shown to everybody" if descriptor.public else "what you may call"
    yield one_line(f"{descriptor.endpoint}, owned by {descriptor.owner}, protocol {descriptor.protocol} ({shown})")
    yield f"answered by {one_line(described.instance)} at epoch {described.epoch}"
    for cluster in descriptor.clusters:
        document = cluster.document if isinstance(cluster.document, Mapping) else {}
        named = f"{document['urn']} revision {document['revision']}" if "urn" in document else cluster.digest
        yield one_line(str(named))
        for name in cluster.commands:
            yield f"  {one_line(name)}{_told(contracts[name])}"
        for event in _events(document):
            yield f"  event {one_line(event)}"
    if not contracts:
        yield "no command of it is yours to call"


def _told(found: Contract | CallError) -> str:
    if isinstance(found, CallError):
        return f": its contract cannot be read: {one_line(str(found))}"
    modes = f" --target {'|'.join(found.modes)}" if found.modes else ""
    effect = f"  [{found.effect}]" if found.effect else ""
    return f" {signature(found.input.schema)} -> {signature(found.output.schema)}{modes}{effect}"


def _events(document: Mapping[str, Any]) -> list[str]:
    events = document.get("events")
    return [str(one["name"]) for one in events] if isinstance(events, list) else []
