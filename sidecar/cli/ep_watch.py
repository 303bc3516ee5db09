"""``sidecar ep watch``: events of an endpoint, or the record of one instance, until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import datetime
from typing import Any, TypeVar

import click

from sidecar.app.ep_access import calling
from sidecar.app.ep_args import BadArguments
from sidecar.cli.connection_options import Command
from sidecar.cli.ep_options import CALL_EXIT_HELP, ENDPOINT, Sent, instance_option, run_asked
from sidecar.cli.ep_view import safe_json
from sidecar.cli.main import one_line
from sidecar.cli.messaging_target import Target, access_options
from sidecar.rails.endpoint.caller import Caller
from sidecar.rails.endpoint.calls_types import Missed, Recorded, Seen
from sidecar.rails.names.limits import MAX_SAFE_INTEGER
from sidecar.rails.names.tokens import endpoint_name

T = TypeVar("T")


@click.command(name="watch", cls=Command, epilog=CALL_EXIT_HELP)
@click.argument("endpoint", type=ENDPOINT)
@click.argument("event", required=False)
@instance_option
@click.option(
    "--after",
    type=click.IntRange(0, MAX_SAFE_INTEGER),
    help="Events behind this sequence too, as far as they are kept.",
)
@click.option("--count", type=click.IntRange(1), help="End after so many.")
@access_options
def command(
    target: Target, endpoint: str, event: str | None, instance: str | None, after: int | None, count: int | None
) -> int:
    """Watch EVENT of ENDPOINT, or with --instance the service record of one instance, until Ctrl-C.

    EVENT is a name that describe shows, or CLUSTER/NAME where several clusters have it. When events may be missing, it
    is said.
    """
    if (event is None) == (instance is None):
        raise click.UsageError("name one of them: an EVENT, or an --instance")
    if instance is not None and after is not None:
        raise click.UsageError("--after goes with an EVENT")

    async def work(stop: asyncio.Event, _: Sent) -> None:
        async with calling(target.access, target.patience) as caller:
            left = count
            async with contextlib.aclosing(_watched(caller, endpoint, event, instance, after)) as watched:
                async for one in _until(stop, watched):
                    _show(target, one)
                    if left is not None and not isinstance(one, Missed) and (left := left - 1) == 0:
                        return

    return run_asked(target, work, what=f"{endpoint} watch", follows=True)


async def _watched(
    caller: Caller, endpoint: str, event: str | None, instance: str | None, after: int | None
) -> AsyncGenerator[Seen | Missed | Recorded, None]:
    if event is None:
        assert instance is not None
        async for record in caller.watch_instance(endpoint, instance):
            yield record
        return
    cluster, name = await _found(caller, endpoint, event)
    async with caller.watch_events(endpoint, cluster, name, after=after) as events:
        async for one in events:
            yield one


async def _found(caller: Caller, endpoint: str, event: str) -> tuple[str, str]:
    """The cluster and the name of an event. Raises BadArguments for one that no cluster or several have."""
    cluster, slash, name = event.rpartition("/")
    if slash:
        return cluster, name
    documents: list[Any] = [one.document for one in (await caller.describe(endpoint)).descriptor.clusters]
    known = [(str(one["urn"]), str(each["name"])) for one in documents if one for each in one.get("events", ())]
    found = [one for one in known if one[1] == event]
    if len(found) == 1:
        return found[0]
    shown = ", ".join(f"{urn}/{name}" for urn, name in found or known) or "none that describe shows"
    raise BadArguments(f"{event} is {'an event of several clusters' if found else 'no event'}; there are: {shown}")


async def _until(stop: asyncio.Event, watched: AsyncGenerator[T, None]) -> AsyncIterator[T]:
    """What is watched, until it is stopped."""
    stopped = asyncio.create_task(stop.wait())
    reading: asyncio.Future[T] | None = None
    try:
        while True:
            reading = asyncio.ensure_future(anext(watched))
            await asyncio.wait((reading, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                return
            try:
                yield reading.result()
            except StopAsyncIteration:
                return
    finally:
        stopped.cancel()
        if reading is not None and not reading.done():
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


def _show(target: Target, one: Seen | Missed | Recorded) -> None:
    if target.as_json:
        click.echo(json.dumps(document(one)))
    elif isinstance(one, Missed):
        click.echo(f"-- events may be missing behind {one.after}: {one_line(one.why)}", err=True)
    else:
        click.echo(line(one))


def document(one: Seen | Missed | Recorded) -> dict[str, Any]:
    """One line for programs."""
    match one:
        case Missed():
            return {"type": "missed", "why": one.why, "after": one.after}
        case Seen():
            return {
                "type": "event",
                "topic": one.topic,
                "instance": one.instance,
                "epoch": one.epoch,
                "sequence": one.sequence,
                "ts": one.ts,
                "data": one.data,
                "stale": one.stale,
                "correlation": dict(one.correlation),
            }
        case Recorded():
            return {
                "type": "record",
                "spec": one.spec,
                "specRevision": one.spec_revision,
                "status": one.status,
                "statusRevision": one.status_revision,
                "settled": one.settled,
            }


def line(one: Seen | Recorded) -> str:
    """One line for people."""
    if isinstance(one, Recorded):
        status = "no status" if one.status is None else safe_json(one.status)
        spec = "not registered" if one.spec is None else f"registration {one.spec_revision}"
        return f"{spec}: {status}{'' if one.settled else ' (behind its registration)'}"
    at = datetime.fromtimestamp(min(one.ts, 253_402_300_799_000) / 1000).strftime("%H:%M:%S")
    stale = " [stale]" if one.stale else ""
    return f"{at} {one_line(_event(one.topic))} {one_line(one.instance)}@{one.epoch}: {safe_json(one.data)}{stale}"


def _event(topic: str) -> str:
    """``CLUSTER/NAME``, as it is granted and asked for."""
    _, cluster, name = topic.split(".", 2)
    return f"{endpoint_name(cluster)}/{name}"
