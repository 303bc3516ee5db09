"""``sidecar space limits`` and ``sidecar space backup-info``."""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path
from typing import Any, Final

import click

from sidecar.app import space_upkeep as work
from sidecar.cli.space_options import json_option, needed, root_option, server_option
from sidecar.rails.space.history_limits import UNCHANGED, Change, Loss
from sidecar.rails.space.layout import History

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_AGE: Final = re.compile(r"([0-9]{1,10})([smhd]?)")


class AgeType(click.ParamType[int]):
    """``none``, or whole seconds, or a number with s, m, h or d. 0 stands for none."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = _AGE.fullmatch(str(value))
        if value == "none":
            return 0
        if found is None or int(found[1]) == 0:
            self.fail("an age is none, or whole seconds, or a number with s, m, h or d", param, ctx)
        return int(found[1]) * _UNITS[found[2] or "s"]


class CountType(click.ParamType[int]):
    """``none``, or at least 1. 0 stands for none."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if value == "none":
            return 0
        if re.fullmatch(r"[1-9][0-9]{0,14}", str(value)) is None:
            self.fail("a count is none, or at least 1", param, ctx)
        return int(value)


@click.command()
@click.option("--space", required=True, help="The space.")
@root_option
@server_option
@click.option("--chat-age", type=AgeType(), help="Oldest post that is kept.")
@click.option("--chat-count", type=CountType(), help="Posts that are kept of each sender in each channel.")
@click.option("--dm-age", type=AgeType(), help="Oldest direct message that is kept.")
@click.option("--dm-count", type=CountType(), help="Direct messages that are kept of each sender to each recipient.")
@click.option("--backstop-age", type=AgeType(), help="Oldest durable copy that is kept; at least 2h.")
@click.option("--backstop-count", type=CountType(), help="Durable copies that are kept for each member.")
@click.option("--yes", is_flag=True, help="Make the change without asking.")
@json_option
def limits(
    space: str,
    root: Path,
    server: str | None,
    chat_age: int | None,
    chat_count: int | None,
    dm_age: int | None,
    dm_count: int | None,
    backstop_age: int | None,
    backstop_count: int | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Show the history limits of a space, or change them.

    A change first shows what it deletes, counted at the broker; then it asks, unless --yes was given. With --json it
    never asks. What a lower limit deletes is gone at once, read or not, and nobody is told.
    """
    broker = needed(server)
    wanted = {"chat": (chat_age, chat_count), "dm": (dm_age, dm_count), "backstop": (backstop_age, backstop_count)}
    changes = [
        Change(part, *(UNCHANGED if half is None else half or None for half in halves))
        for part, halves in wanted.items()
        if halves != (None, None)
    ]
    losses = asyncio.run(work.preview(root, space, broker, changes)) if changes else []
    if changes and not as_json:
        _tell(losses)
    agreed = bool(changes) and (yes or (not as_json and _confirmed()))
    changed = asyncio.run(work.set_limits(root, space, broker, changes)) if agreed else []
    now = asyncio.run(work.limits_of(root, space, broker))
    if as_json:
        value = {"limits": {name: _limit(one) for name, one in now.items()}}
        click.echo(json.dumps({**value, "deletes": [_loss(one) for one in losses], "changed": changed}))
        return
    for name, one in now.items():
        click.echo(f"{name}: {_text(one)}")


def _confirmed() -> bool:
    try:
        return click.confirm("Change the limits?")
    except click.Abort:
        click.echo("\nNothing was changed; without a terminal give --yes.", err=True)
        raise


def _tell(losses: list[Loss]) -> None:
    for one in losses:
        if one.after == one.before:
            click.echo(f"{one.stream}: {_text(one.before)}, as it is")
            continue
        range_ = str(one.least) if one.least == one.most else f"{one.least} to {one.most}"
        click.echo(
            f"{one.stream}: {_text(one.before)} -> {_text(one.after)}; deletes {range_} of {one.messages} messages"
        )
    if any(one.least != one.most for one in losses):
        click.echo("Age and count were counted apart; a message may fall under both.")


def _text(limit: History) -> str:
    age = "no age" if limit.age_seconds is None else f"age {limit.age_seconds} s"
    return f"{age}, {'no count' if limit.count is None else f'count {limit.count}'}"


def _limit(limit: History) -> dict[str, int | None]:
    return {"age_seconds": limit.age_seconds, "count": limit.count}


def _loss(one: Loss) -> dict[str, Any]:
    return {
        "stream": one.stream,
        "before": _limit(one.before),
        "after": _limit(one.after),
        "messages": one.messages,
        "by_age": one.by_age,
        "by_count": one.by_count,
        "at_least": one.least,
        "at_most": one.most,
    }


@click.command(name="backup-info")
@click.option("--space", required=True, help="The space.")
@root_option
@server_option
@json_option
def backup_info(space: str, root: Path, server: str | None, as_json: bool) -> None:
    """Say what a backup holds and how to restore it.

    The sequences are those of this moment. Streams are copied with the tools of the broker (`nats stream backup`).
    """
    found = asyncio.run(work.inventory(root, space, needed(server)))
    if as_json:
        keep = [
            {
                "stream": one.stream,
                "created": one.created,
                "first_seq": one.first,
                "last_seq": one.last,
                "messages": one.messages,
                "consumers": one.consumers,
            }
            for one in found.keep
        ]
        files = [os.fspath(path) for path in found.files]
        click.echo(json.dumps({"files": files, "keep": keep, "leave": found.leave, "restore": list(work.RESTORE)}))
        return
    click.echo("keep these files, which hold seeds and belong to the owner alone:")
    for path in found.files:
        click.echo(f"  {path}")
    click.echo("keep these streams, with their consumers:")
    for one in found.keep:
        click.echo(f"  {one.stream}: {one.messages} messages, {one.first} to {one.last}, {one.consumers} consumers")
    click.echo("leave these out:")
    for name, why in found.leave.items():
        click.echo(f"  {name}: {why}")
    click.echo("restore in this order:")
    for number, step in enumerate(work.RESTORE, 1):
        click.echo(f"  {number}. {step}")
