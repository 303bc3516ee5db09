"""``sidecar coordinator run``, ``signal``, ``artifact`` and ``retention``: the work behind an objective."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from sidecar.cli import coordinator_show as show
from sidecar.cli.connection_options import Group
from sidecar.cli.coordinator_outcome import ids_of, leave, operation_of, print_json, show_outcome
from sidecar.cli.coordinator_target import (
    EXIT_HELP,
    Exit,
    HexType,
    Target,
    connection_options,
    read_document,
    run,
    target_of,
)
from sidecar.coordinator.client import CoordinatorClient, Outcome
from sidecar.coordinator.wire.enums import AdminKind, Capability, ObjectKind, Scope
from sidecar.coordinator.wire.errors import MAX_DIAGNOSTIC
from sidecar.coordinator.wire.ids import (
    U64_MAX,
    ArtifactId,
    OperationId,
    RunId,
    SignalId,
    WorkSessionId,
    artifact_id,
    fresh_id,
)
from sidecar.coordinator.wire.limits import HARD, RETENTION_FLOOR
from sidecar.coordinator.wire.payloads import AdminRecord, decode_record_payload
from sidecar.coordinator.wire.records import AdminRetention

F = TypeVar("F", bound=Callable[..., Any])
Work = Callable[[CoordinatorClient], Awaitable[Outcome]]

_U64: Final = click.IntRange(0, U64_MAX)


def _changing(function: F) -> F:
    """The options of every command that changes something."""
    again = click.option("--operation-id", "operation_bytes", type=HexType(16), help="Operation id.  [default: minted]")
    return again(connection_options(function))


def _change(target: Target, kind: str, chosen: bytes | None, operation: OperationId, ask: Work) -> None:
    """Run one command and show what became of it."""

    async def work(client: CoordinatorClient) -> int:
        return show_outcome(target, kind, chosen, await ask(client))

    leave(run(target, work, ids_of(kind, chosen, operation)))


@click.group(name="run", cls=Group, epilog=EXIT_HELP)
def run_group() -> None:
    """Runs: pause, resume, cancel. `snapshot` lists them.

    Pausing and resuming change what the coordinator says of a run; nothing is sent to a terminal.
    """


@run_group.command(name="pause", epilog=EXIT_HELP)
@click.argument("run_bytes", metavar="ID", type=HexType(16))
@_changing
def run_pause(run_bytes: bytes, operation_bytes: bytes | None, **options: Any) -> None:
    """Pause the run ID, which must be RUNNING."""
    target, operation = target_of(options), operation_of(operation_bytes)
    chosen = RunId(run_bytes)
    _change(target, "run", chosen, operation, lambda client: client.pause_run(chosen, operation=operation))


@run_group.command(name="resume", epilog=EXIT_HELP)
@click.argument("run_bytes", metavar="ID", type=HexType(16))
@_changing
def run_resume(run_bytes: bytes, operation_bytes: bytes | None, **options: Any) -> None:
    """Resume the run ID, which must be PAUSED."""
    target, operation = target_of(options), operation_of(operation_bytes)
    chosen = RunId(run_bytes)
    _change(target, "run", chosen, operation, lambda client: client.resume_run(chosen, operation=operation))


@run_group.command(name="cancel", epilog=EXIT_HELP)
@click.argument("run_bytes", metavar="ID", type=HexType(16))
@_changing
def run_cancel(run_bytes: bytes, operation_bytes: bytes | None, **options: Any) -> None:
    """Cancel the run ID for good; its work session ends with it."""
    target, operation = target_of(options), operation_of(operation_bytes)
    chosen = RunId(run_bytes)
    _change(target, "run", chosen, operation, lambda client: client.cancel_run(chosen, operation=operation))


@click.group(name="signal", cls=Group, epilog=EXIT_HELP)
def signal_group() -> None:
    """Signals: acknowledge or suppress what asks for attention. `snapshot` lists them."""


def _note(text: str | None) -> str | None:
    if text is not None and len(text.encode()) > MAX_DIAGNOSTIC:
        raise click.UsageError(f"a note has at most {MAX_DIAGNOSTIC} bytes")
    return text


_note_option: Final = click.option(
    "--note", help="Why; the server keeps it with the operation, nobody reads it back over the wire."
)


@signal_group.command(name="ack", epilog=EXIT_HELP)
@click.argument("signal_bytes", metavar="ID", type=HexType(16))
@_note_option
@_changing
def signal_ack(signal_bytes: bytes, note: str | None, operation_bytes: bytes | None, **options: Any) -> None:
    """Acknowledge the signal ID, which must be OPEN."""
    target, operation, text = target_of(options), operation_of(operation_bytes), _note(note)
    chosen = SignalId(signal_bytes)
    _change(target, "signal", chosen, operation, lambda client: client.ack_signal(chosen, text, operation=operation))


@signal_group.command(name="suppress", epilog=EXIT_HELP)
@click.argument("signal_bytes", metavar="ID", type=HexType(16))
@_note_option
@_changing
def signal_suppress(signal_bytes: bytes, note: str | None, operation_bytes: bytes | None, **options: Any) -> None:
    """Suppress the signal ID, which must be OPEN or ACKNOWLEDGED."""
    target, operation, text = target_of(options), operation_of(operation_bytes), _note(note)
    chosen = SignalId(signal_bytes)
    _change(
        target, "signal", chosen, operation, lambda client: client.suppress_signal(chosen, text, operation=operation)
    )


@click.group(name="artifact", cls=Group, epilog=EXIT_HELP)
def artifact_group() -> None:
    """Artifacts: register what work has produced."""


@artifact_group.command(name="register", epilog=EXIT_HELP)
@click.argument("manifest", required=False)
@click.option("--file", type=click.Path(path_type=Path), help="Read the manifest from a file; - is standard input.")
@click.option("--id", "artifact_bytes", type=HexType(16), help="Artifact id.  [default: minted]")
@click.option("--revision", type=click.IntRange(1, U64_MAX), default=1, show_default=True, help="Latest one plus 1.")
@click.option("--session", "session_bytes", type=HexType(16), help="Work session; needed for the first revision.")
@click.option(
    "--session-revision",
    type=click.IntRange(1, U64_MAX),
    default=1,
    show_default=True,
    help="Revision of the work session, as `snapshot` shows it.",
)
@_changing
def artifact_register(
    manifest: str | None,
    file: Path | None,
    artifact_bytes: bytes | None,
    revision: int,
    session_bytes: bytes | None,
    session_revision: int,
    operation_bytes: bytes | None,
    **options: Any,
) -> None:
    """Register MANIFEST as a revision of an artifact.

    A manifest says what the artifact is and where it lies; the content itself does not go through here. It is given
    like the document of `objective create`.
    """
    if revision == 1 and session_bytes is None:
        raise click.UsageError("the first revision names its work session: give --session")
    target, operation = target_of(options), operation_of(operation_bytes)
    content = read_document(manifest, file, HARD.typed_payload)
    chosen = fresh_id(artifact_id, os.urandom) if artifact_bytes is None else ArtifactId(artifact_bytes)
    session = None if session_bytes is None else (WorkSessionId(session_bytes), session_revision)
    _change(
        target,
        "artifact",
        chosen,
        operation,
        lambda client: client.register_artifact_manifest(
            chosen, revision, content, session=session, operation=operation
        ),
    )


@click.group(name="retention", cls=Group, epilog=EXIT_HELP)
def retention_group() -> None:
    """Retention: how long results and how much of the rest is kept. To change it needs the scope ADMIN, and so does to
    see what was asked for.
    """


@retention_group.command(name="show", epilog=EXIT_HELP, short_help="Show what holds and what was asked for.")
@connection_options
def retention_show(**options: Any) -> None:
    """Show what the last `retention set` asked for, and what new connections are promised."""
    target = target_of(options)

    async def work(client: CoordinatorClient) -> int:
        welcome = client.welcome
        visible = bool(welcome.scopes & Scope.ADMIN and welcome.capabilities & Capability.ADMINISTRATION)
        asked = _stored((await client.snapshot()).records)
        shown = {
            "advertised_result_seconds": welcome.retention_seconds,
            "asked": None if asked is None else show.value_of(asked),
            "asked_visible": visible,
        }
        if target.as_json:
            print_json(shown)
            return Exit.OK
        rows = [
            ("results are kept for", f"{welcome.retention_seconds} s ({welcome.retention_seconds / 86_400:g} days)")
        ]
        if asked is None:
            nothing = "nothing: the server's configuration holds"
            rows.append(("asked for", nothing if visible else "not shown to this key: that needs the scope ADMIN"))
        else:
            rows += [(f"asked for: {name}", str(value)) for name, value in show.value_of(asked).items()]
        click.echo(show.table(("WHAT", "VALUE"), rows))
        return Exit.OK

    leave(run(target, work))


def _stored(records: Any) -> AdminRetention | None:
    for record in records:
        if record.kind is ObjectKind.ADMIN:
            payload = decode_record_payload(record.kind, record.payload)
            if isinstance(payload, AdminRecord) and payload.admin_kind is AdminKind.RETENTION:
                values = payload.content()
                assert isinstance(values, AdminRetention)
                return values
    return None


@retention_group.command(name="set", epilog=EXIT_HELP)
@click.option(
    "--result-seconds",
    type=click.IntRange(RETENTION_FLOOR, U64_MAX),
    required=True,
    help=f"Seconds for which results are kept, at least {RETENTION_FLOOR}.",
)
@click.option("--event-bytes", type=_U64, required=True, help="Payload bytes of the event log.")
@click.option("--artifact-bytes", type=_U64, required=True, help="Bytes of all manifests together.")
@_changing
def retention_set(
    result_seconds: int, event_bytes: int, artifact_bytes: int, operation_bytes: bytes | None, **options: Any
) -> None:
    """Change what is kept, at once and for good.

    Fewer event bytes drop old events immediately: subscriptions that still wait for them have a GAP. Results that were
    completed under a longer time keep it. The server's configuration bounds all three.
    """
    target, operation = target_of(options), operation_of(operation_bytes)
    _change(
        target,
        "retention",
        None,
        operation,
        lambda client: client.change_retention(result_seconds, event_bytes, artifact_bytes, operation=operation),
    )


GROUPS: Final = (run_group, signal_group, artifact_group, retention_group)
