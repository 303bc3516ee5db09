"""The commands on runs, signals, artifacts and retention as methods of a client, each one command (P7-16)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING

from sidecar.coordinator.wire.enums import CommandKind, ObjectKind
from sidecar.coordinator.wire.ids import ArtifactId, ObjectId, OperationId, RunId, SignalId, WorkSessionId
from sidecar.coordinator.wire.limits import SCHEMA
from sidecar.coordinator.wire.payloads import (
    AckSignal,
    CancelRun,
    ChangeRetention,
    PauseRun,
    RegisterArtifactManifest,
    ResumeRun,
    SuppressSignal,
)
from sidecar.coordinator.wire.records import ObjectRef, Precondition

if TYPE_CHECKING:
    from sidecar.coordinator.client import Outcome


class WorkCommands(ABC):
    """What a client can do besides objectives. Ids of operations that are not given are minted."""

    @abstractmethod
    async def command(
        self,
        kind: CommandKind,
        payload: bytes,
        operation: OperationId | None = None,
        preconditions: Iterable[Precondition] = (),
    ) -> Outcome:
        """Run one command to its answer."""

    async def pause_run(self, run: RunId, *, operation: OperationId | None = None) -> Outcome:
        """Running to Paused: a state of the coordinator alone, nothing is sent to a terminal."""
        return await self.command(CommandKind.PAUSE_RUN, PauseRun(run_id=run).body(), operation)

    async def resume_run(self, run: RunId, *, operation: OperationId | None = None) -> Outcome:
        """Paused to Running."""
        return await self.command(CommandKind.RESUME_RUN, ResumeRun(run_id=run).body(), operation)

    async def cancel_run(self, run: RunId, *, operation: OperationId | None = None) -> Outcome:
        """End a run that is not over, and its work session with it."""
        return await self.command(CommandKind.CANCEL_RUN, CancelRun(run_id=run).body(), operation)

    async def ack_signal(
        self, signal: SignalId, note: str | None = None, *, operation: OperationId | None = None
    ) -> Outcome:
        """Open to Acknowledged. The note stays with the operation on the server and is not readable again."""
        return await self.command(CommandKind.ACK_SIGNAL, AckSignal(signal_id=signal, note=note).body(), operation)

    async def suppress_signal(
        self, signal: SignalId, note: str | None = None, *, operation: OperationId | None = None
    ) -> Outcome:
        """Open or Acknowledged to Suppressed."""
        payload = SuppressSignal(signal_id=signal, note=note).body()
        return await self.command(CommandKind.SUPPRESS_SIGNAL, payload, operation)

    async def register_artifact_manifest(
        self,
        artifact: ArtifactId,
        revision: int,
        manifest: bytes,
        *,
        schema: int = SCHEMA,
        session: tuple[WorkSessionId, int] | None = None,
        operation: OperationId | None = None,
    ) -> Outcome:
        """Add the next revision of an artifact. The first one is 1 and names its work session, with the revision in
        which the caller knows it."""
        payload = RegisterArtifactManifest(artifact_id=artifact, revision=revision, schema=schema, manifest=manifest)
        expected: tuple[Precondition, ...] = ()
        if session is not None:
            expected = (Precondition(ObjectRef(ObjectKind.WORK_SESSION, ObjectId(session[0])), session[1]),)
        return await self.command(CommandKind.REGISTER_ARTIFACT_MANIFEST, payload.body(), operation, expected)

    async def change_retention(
        self,
        operation_result_secs: int,
        event_bytes: int,
        artifact_bytes: int,
        *,
        operation: OperationId | None = None,
    ) -> Outcome:
        """How long results and how many bytes of events and manifests are kept, within the server's own bounds."""
        payload = ChangeRetention(
            operation_result_secs=operation_result_secs, event_bytes=event_bytes, artifact_bytes=artifact_bytes
        )
        return await self.command(CommandKind.CHANGE_RETENTION, payload.body(), operation)
