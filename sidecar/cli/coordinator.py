"""``sidecar coordinator``: durable work from the command line."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Final

import click

from sidecar.base.ed25519 import digest_text
from sidecar.cli import coordinator_show as show
from sidecar.cli.connection_options import CommandFailed, Group
from sidecar.cli.coordinator_explain import explain_command
from sidecar.cli.coordinator_outcome import code_of, ids_of, leave, operation_of, print_json, show_outcome
from sidecar.cli.coordinator_quota import quota
from sidecar.cli.coordinator_target import (
    EXIT_HELP,
    Exit,
    FingerprintType,
    HexType,
    Target,
    connection_options,
    default_pins,
    read_document,
    run,
    target_of,
)
from sidecar.cli.coordinator_top import top
from sidecar.cli.coordinator_work import GROUPS
from sidecar.coordinator.client import CoordinatorClient, ReconnectPolicy
from sidecar.coordinator.client_events import Change
from sidecar.coordinator.client_watch import Broken, Cut, Replayed, Restored, Why, watch
from sidecar.coordinator.pins import PinFile
from sidecar.coordinator.wire.enums import ObjectKind
from sidecar.coordinator.wire.ids import (
    EventCut,
    ObjectId,
    ObjectiveId,
    OperationId,
    fresh_id,
    objective_id,
)
from sidecar.coordinator.wire.limits import HARD
from sidecar.coordinator.wire.records import ObjectRef, Precondition, Unknown

_WATCH_SECONDS: Final = 120.0


@click.group(name="coordinator", cls=Group, epilog=EXIT_HELP)
def command() -> None:
    """Durable work: snapshot, watch, objectives, runs, signals, artifacts, operations; live: top, quota, explain.

    Commands that work with it prove their key and verify the server first. The first use pins the server's authority; a
    changed one is refused from then on. Private keys come from a file, a descriptor or a credential, never from the
    command line. `top` and `quota` ask the server's admin socket instead, as the user that runs the server.
    """


command.add_command(top)
command.add_command(quota)
command.add_command(explain_command)
for _group in GROUPS:
    command.add_command(_group)


@command.command(epilog=EXIT_HELP)
@connection_options
def hello(**options: Any) -> None:
    """Connect, verify, and show who answers and what it grants.

    The admission says how the authority relates to what this client had pinned.

    \b
    --json    table
    first     new authority, pinned now
    same      authority already pinned, same activation
    higher    later activation of the pinned authority adopted
    """
    target = target_of(options)

    async def work(client: CoordinatorClient) -> int:
        shown = show.welcome_of(client.welcome)
        if target.as_json:
            print_json(shown)
            return Exit.OK
        limits = shown.pop("limits")
        shown["scopes"] = ",".join(shown["scopes"])
        shown["capabilities"] = ",".join(shown["capabilities"]) or "-"
        for name in ("certificate_expires_at", "grant_expires_at"):
            shown[name] = show.instant(shown[name])
        shown["admission"] = show.ADMISSION[client.welcome.admission]
        rows = [*shown.items(), *((f"limit {name}", value) for name, value in limits.items())]
        click.echo(show.table(("WHAT", "VALUE"), [(name, str(value)) for name, value in rows]))
        return Exit.OK

    leave(run(target, work))


@command.command(epilog=EXIT_HELP)
@connection_options
def ping(**options: Any) -> None:
    """Measure a round trip on a verified connection."""
    target = target_of(options)

    async def work(client: CoordinatorClient) -> int:
        seconds = await client.ping()
        if target.as_json:
            print_json({"seconds": seconds})
        else:
            click.echo(f"{seconds * 1e6:.0f} us")
        return Exit.OK

    leave(run(target, work))


@command.command(epilog=EXIT_HELP)
@connection_options
def snapshot(**options: Any) -> None:
    """Show everything that this key may see, as one verified cut."""
    target = target_of(options)

    async def work(client: CoordinatorClient) -> int:
        taken = await client.snapshot()
        if target.as_json:
            print_json({**show.snapshot_of(taken), "records": [show.record_of(record) for record in taken.records]})
            return Exit.OK
        rows = [show.record_row(record) for record in taken.records]
        click.echo(show.table(("KIND", "ID", "REV", "STATE", "DETAIL"), rows))
        click.echo(_cut_line(show.snapshot_of(taken)))
        return Exit.OK

    leave(run(target, work))


@command.command(name="watch", epilog=EXIT_HELP)
@click.option("--after", type=click.IntRange(0), help="Follow directly after this event (0: from the first on).")
@click.option("--no-heal", is_flag=True, help="Report the first loss of continuity and end with exit code 5.")
@click.option("--no-records", is_flag=True, help="Do not list the records of the snapshot that it starts with.")
@connection_options
def watch_command(after: int | None, no_heal: bool, no_records: bool, **options: Any) -> None:
    """Follow events, one line each, until Ctrl-C.

    Starts with a verified snapshot: one line about it and, without --no-records, one for each of its records. A GAP is
    shown and then healed by a replay of the events that were missed; where the server can not replay, and after a lost
    connection, by a fresh snapshot with what changed meanwhile. A server that restarts is waited for (--wait, at least
    120 seconds).
    """
    target = target_of(options)
    patient = ReconnectPolicy.lasting(max(target.wait, _WATCH_SECONDS))

    async def work(client: CoordinatorClient) -> int:
        cut = None if after is None else EventCut(after)
        stream = watch(client, after=cut, heal=not no_heal, policy=patient)
        async with contextlib.aclosing(stream):
            async for item in stream:
                if isinstance(item, Cut):
                    _tell_cut(target, item, records=item.why is Why.HEAL or not no_records)
                else:
                    _tell(target, item, heal=not no_heal)
        return Exit.OK

    with contextlib.suppress(KeyboardInterrupt):
        leave(run(target, work, policy=patient))


@command.group(epilog=EXIT_HELP)
def objective() -> None:
    """Objectives: what is to be achieved."""


@objective.command(name="create", epilog=EXIT_HELP)
@click.argument("document", required=False)
@click.option("--file", type=click.Path(path_type=Path), help="Read the document from a file; - is standard input.")
@click.option("--id", "objective_bytes", type=HexType(16), help="Objective id.  [default: minted]")
@click.option("--operation-id", "operation_bytes", type=HexType(16), help="Operation id.  [default: minted]")
@connection_options
def objective_create(
    document: str | None,
    file: Path | None,
    objective_bytes: bytes | None,
    operation_bytes: bytes | None,
    **options: Any,
) -> None:
    """Create an objective from DOCUMENT.

    A document is 1 to 262144 bytes of your choice: JSON, other text, or binary from a file. They are stored as they
    are; JSON is passed through and neither checked nor reformatted. Give it as the argument, as - for standard input,
    or with --file.

    To repeat a command whose outcome is unknown, give the same --operation-id and --id.
    """
    target = target_of(options)
    content = read_document(document, file, HARD.typed_payload)
    chosen = fresh_id(objective_id, os.urandom) if objective_bytes is None else ObjectiveId(objective_bytes)
    operation = operation_of(operation_bytes)

    async def work(client: CoordinatorClient) -> int:
        outcome = await client.create_objective(content, objective=chosen, operation=operation)
        return show_outcome(target, "objective", chosen, outcome)

    leave(run(target, work, ids_of("objective", chosen, operation)))


@objective.command(name="update", epilog=EXIT_HELP)
@click.argument("objective_bytes", metavar="ID", type=HexType(16))
@click.argument("document", required=False)
@click.option("--file", type=click.Path(path_type=Path), help="Read the document from a file; - is standard input.")
@click.option(
    "--revision", type=click.IntRange(1), help="Update only this revision; refused when it changed meanwhile."
)
@click.option("--operation-id", "operation_bytes", type=HexType(16), help="Operation id.  [default: minted]")
@connection_options
def objective_update(
    objective_bytes: bytes,
    document: str | None,
    file: Path | None,
    revision: int | None,
    operation_bytes: bytes | None,
    **options: Any,
) -> None:
    """Replace the document of the objective ID.

    DOCUMENT is what `objective create` takes: bytes that are stored as they are, as the argument, as - for standard
    input, or with --file.
    """
    target = target_of(options)
    content = read_document(document, file, HARD.typed_payload)
    chosen, operation = ObjectiveId(objective_bytes), operation_of(operation_bytes)
    reference = ObjectRef(ObjectKind.OBJECTIVE, ObjectId(objective_bytes))
    expected = () if revision is None else (Precondition(reference, revision),)

    async def work(client: CoordinatorClient) -> int:
        outcome = await client.update_objective(chosen, content, operation=operation, preconditions=expected)
        return show_outcome(target, "objective", chosen, outcome)

    leave(run(target, work, ids_of("objective", chosen, operation)))


@command.group(epilog=EXIT_HELP)
def operation() -> None:
    """Operations: what became of a command."""


@operation.command(name="get", epilog=EXIT_HELP)
@click.argument("operation_bytes", metavar="ID", type=HexType(16))
@connection_options
def operation_get(operation_bytes: bytes, **options: Any) -> None:
    """Look up the result of the operation ID. UNKNOWN and INDETERMINATE end with exit code 5; nothing is started."""
    target, wanted = target_of(options), OperationId(operation_bytes)

    async def work(client: CoordinatorClient) -> int:
        result = await client.operation(wanted)
        if target.as_json:
            print_json({"operation_id": wanted.hex(), "result": show.result_of(result)})
        else:
            hint = "  (never admitted, another key's, or forgotten after its retention)"
            click.echo(f"{wanted.hex()}  {show.result_line(result)}{hint * isinstance(result, Unknown)}")
        return code_of(result)

    leave(run(target, work, {"operation_id": wanted.hex()}))


@command.group(short_help="What this client trusts, and your decisions.", epilog=EXIT_HELP)
def pins() -> None:
    """Pinned authorities: what this client trusts, and the operator's decisions about it."""


_pins_option = click.option(
    "--pins",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    default=default_pins,
    help="Pin file.  [default: ~/.local/state/sidecar/client/pins.json]",
)


_json_option = click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")


@pins.command(name="list", epilog=EXIT_HELP)
@_pins_option
@_json_option
def pins_list(path: Path, as_json: bool) -> None:
    """Show the pinned authorities, quarantined ones included."""
    known = PinFile(path)
    if as_json:
        approved = [digest_text(fingerprint) for fingerprint in sorted(known.approved)]
        print_json({"authorities": [show.pin_of(pin) for pin in known.pins], "approved": approved})
        return
    rows = [
        (
            digest_text(pin.fingerprint),
            pin.coordinator_id.hex(),
            str(pin.seen.epoch),
            "QUARANTINED" if pin.quarantine else "fenced" if pin.fenced else "pinned",
        )
        for pin in known.pins
    ]
    rows += [(digest_text(fingerprint), "-", "-", "approved") for fingerprint in sorted(known.approved)]
    if not rows:
        click.echo(f"sidecar: nothing is pinned in {path}", err=True)
    click.echo(show.table(("AUTHORITY", "COORDINATOR", "EPOCH", "STATE"), rows))


@pins.command(name="trust", short_help="Allow one more authority FINGERPRINT.", epilog=EXIT_HELP)
@_pins_option
@_json_option
@click.argument("fingerprint", type=FingerprintType())
def pins_trust(path: Path, fingerprint: bytes, as_json: bool) -> None:
    """Allow one more authority FINGERPRINT; it is pinned when it proves itself."""
    PinFile(path).approve(fingerprint)
    if as_json:
        print_json({"authority": digest_text(fingerprint), "state": "approved"})
        return
    click.echo(f"{digest_text(fingerprint)} may be pinned at its next proof")


@pins.command(name="forget", epilog=EXIT_HELP)
@_pins_option
@_json_option
@click.argument("fingerprint", type=FingerprintType())
def pins_forget(path: Path, fingerprint: bytes, as_json: bool) -> None:
    """Drop the pin of FINGERPRINT and a quarantine with it."""
    if not PinFile(path).forget(fingerprint):
        raise CommandFailed(f"{digest_text(fingerprint)} is not in {path}", Exit.REFUSED)
    if as_json:
        print_json({"authority": digest_text(fingerprint), "state": "forgotten"})
        return
    click.echo(f"{digest_text(fingerprint)} forgotten")


def _tell_cut(target: Target, cut: Cut, *, records: bool) -> None:
    """A snapshot of a watch, with the records that it changed unless they are not wanted."""
    head = show.snapshot_of(cut.snapshot)
    if target.as_json:
        document = {"type": "snapshot", "why": cut.why.value, **head}
        if records:
            document["changed"] = [show.record_of(record) for record in cut.changed]
            document["gone"] = [show.key_of(key) for key in cut.gone]
        print_json(document)
        return
    healed = f"  healed: {len(cut.changed)} changed, {len(cut.gone)} gone" if cut.why is Why.HEAL else ""
    click.echo(f"{_cut_line(head)}{healed}")
    if records:
        for record in cut.changed:
            kind, object_id, revision, state, detail = show.record_row(record)
            click.echo(f"  {kind} {object_id} r{revision}  {state}  {detail}")
        for key in cut.gone:
            click.echo("  gone " + " ".join(show.key_of(key).values()))


def _tell(target: Target, item: Broken | Replayed | Restored | Change, *, heal: bool) -> None:
    """One item of a watch that is no snapshot: a JSON line, or a line for people.

    A replay is one line and then its events, each as if it had come live.
    """
    match item:
        case Broken():
            loss = item.loss
            if target.as_json:
                cause = None if item.connection is None else str(item.connection)
                reason = None if loss.reason is None else loss.reason.name
                positions = {"reason": reason, "last_event": loss.last_event, "last_delivery": loss.last_delivery}
                print_json({"type": "gap", "detail": str(loss), "connection": cause, **positions})
                return
            cause = "" if item.connection is None else f" ({item.connection})"
            then = "healing" if heal else "not healing"
            click.echo(f"GAP after event {loss.last_event}: {loss}{cause}; {then}")
        case Replayed():
            if target.as_json:
                print_json({"type": "replay", "why": "heal", "through": item.through, "event_count": len(item.events)})
            else:
                click.echo(f"healed by replay  events recovered {len(item.events)}  whole through event {item.through}")
            for event in item.events:
                _tell(target, event, heal=heal)
        case Restored():
            if target.as_json:
                print_json({"type": "reconnected", **show.standing_of(item.welcome.standing)})
            else:
                click.echo(f"reconnected  {item.welcome.standing}")
        case _:
            if target.as_json:
                print_json({"type": "event", **show.event_of(item)})
            else:
                click.echo(show.event_line(item))


def _cut_line(head: dict[str, Any]) -> str:
    return (
        f"snapshot  cut {head['cut']}  epoch {head['epoch']}  records {head['record_count']}"
        f"  pages {head['page_count']}  sha256:{head['sha256'][:16]}.."
    )
