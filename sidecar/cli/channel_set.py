"""``sidecar channel set``: what an operator says of a channel, or of all of a space."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import click
import uvloop

from sidecar.app.channel_settings import Change, Changed, Host, change, remove
from sidecar.app.channel_table import effective_text
from sidecar.cli.connection_options import Command, FiniteType, read_ready
from sidecar.cli.main import one_line
from sidecar.cli.messaging_errors import EXPECTED
from sidecar.cli.messaging_target import EXIT_HELP, failed
from sidecar.cli.space_options import BrokerType
from sidecar.rails.messaging.registry import ChannelConfig, DeliveryClass, encode_config
from sidecar.rails.names.tokens import GRAMMARS

_FIELDS: Final = {
    "replay": "replay",
    "window": "replay_window",
    "class": "delivery_class",
    "description": "description",
    "instructions": "instructions",
}


@click.command(name="set", cls=Command, epilog=EXIT_HELP, short_help="Say what is in force for CHANNEL.")
@click.argument("channel", required=False)
@click.option("--defaults", is_flag=True, help="The defaults of the space instead of one channel.")
@click.option(
    "--class", "delivery_class", type=click.Choice([one.value for one in DeliveryClass]), help="What is kept."
)
@click.option("--replay/--no-replay", default=None, help="Whether a new member is shown history.")
@click.option("--window", help="How far back that goes: 30s, 90m, 24h, 7d.")
@click.option("--description", help="At most 200 characters.")
@click.option("--instructions", help="At most 2000 characters.")
@click.option("--unset", multiple=True, type=click.Choice(list(_FIELDS)), help="Say nothing of it any more.")
@click.option("--remove", "removed", is_flag=True, help="Remove the whole entry of the channel.")
@click.option("--dev", type=click.Path(path_type=Path, file_okay=False), help="Directory of a running `sidecar dev`.")
@click.option("--root", type=click.Path(path_type=Path, file_okay=False), help="Directory of the keys of the spaces.")
@click.option("--server", type=BrokerType(), help="With --root: the broker, as nats://HOST:PORT.")
@click.option("--space", help="The space.  [default with --dev: main]")
@click.option("--timeout", "patience", type=FiniteType(0.1, 3_600), default=10.0, help="Seconds to connect within.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def command(
    channel: str | None,
    *,
    defaults: bool,
    unset: tuple[str, ...],
    removed: bool,
    patience: float,
    as_json: bool,
    **options: Any,
) -> None:
    """Say what is in force for CHANNEL, and show it before and after. Members resolve it when they join next.

    This writes with a credential of its own, which is made here from the keys of the space and lives for minutes.
    """
    if (channel is None) is not defaults:
        raise click.UsageError("name one channel, or --defaults")
    given = {
        "replay": options.pop("replay"),
        "replay_window": options.pop("window"),
        "delivery_class": options.pop("delivery_class"),
        "description": options.pop("description"),
        "instructions": options.pop("instructions"),
    }
    wanted = {name: value for name, value in given.items() if value is not None}
    if removed and (wanted or unset or defaults):
        raise click.UsageError("--remove goes with a channel and nothing else")
    if not (removed or wanted or unset):
        raise click.UsageError("say what to set, as --class durable; to look: sidecar channel show")
    host = _host(**options)
    try:
        if channel is not None:
            GRAMMARS["channel"].check(channel)
        make = _change(wanted, unset)
        encode_config(make(ChannelConfig()), defaults=defaults)  # what may not be written is told before connecting
        if removed:
            assert channel is not None
            work = remove(host, channel, patience)
        else:
            work = change(host, channel, make, patience)
        done = uvloop.run(work)
    except EXPECTED as error:
        raise failed(error, as_json=as_json) from error
    _show(channel, done, as_json=as_json)


def _host(dev: Path | None, root: Path | None, server: str | None, space: str | None) -> Host:
    if dev is not None:
        if root is not None or server is not None:
            raise click.UsageError("--dev gives the keys and the broker: leave --root and --server out")
        nats = read_ready(dev)["nats"]
        return Host(Path(nats["root"]), space or nats["space"], nats["url"])
    if root is None or server is None or space is None:
        raise click.UsageError("say where: --dev DIR, or --root DIR --server URL --space NAME")
    return Host(root, space, server)


def _change(wanted: dict[str, Any], unset: tuple[str, ...]) -> Change:
    fields: dict[str, Any] = {_FIELDS[name]: None for name in unset}
    fields |= wanted
    if "delivery_class" in wanted:
        fields["delivery_class"] = DeliveryClass(wanted["delivery_class"])
    return lambda config: config._replace(**fields)


def _show(channel: str | None, done: Changed, *, as_json: bool) -> None:
    if as_json:
        document = {
            "type": "changed",
            "channel": channel,
            "before": _document(done.before),
            "after": _document(done.after),
            "revision_before": done.revision_before,
            "revision": done.revision,
        }
        click.echo(json.dumps(document))
        return
    click.echo(f"before  {_text(done.before)}\nafter   {_text(done.after)}")
    if done.effective is not None:
        told = effective_text(done.effective)
        click.echo(f"so now  class {told['class']}, replay {told['replay']}, window {told['window']}")


def _document(config: ChannelConfig) -> dict[str, Any]:
    found = {name: getattr(config, attribute) for name, attribute in _FIELDS.items()}
    return {name: value for name, value in found.items() if value is not None}


def _text(config: ChannelConfig) -> str:
    found = _document(config)
    return (
        "; ".join(f"{name} {one_line(json.dumps(value, ensure_ascii=False))}" for name, value in found.items()) or "-"
    )
