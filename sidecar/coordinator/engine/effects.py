"""From commands to the effects that a terminal owner carries out (P8-25).

START_RUN and END_BINDING are not served yet. This is the contract of the durable rows that they will write: an
``EffectAttempt`` takes what ``spawn_of`` gives and nothing else, so that equal commands have equal effect digests.
"""

from __future__ import annotations

from sidecar.coordinator.wire.payloads import StartRun
from sidecar.coordinator.wire.records import PendingSpawn, SpawnPayload


def spawn_of(command: StartRun) -> tuple[PendingSpawn, SpawnPayload]:
    """Target and payload of the SPAWN that START_RUN asks for: its fields 3 to 9, each in its place (P8-25)."""
    target = PendingSpawn(
        command.pending_binding_id,
        command.owner_authority_fingerprint,
        command.owner_incarnation,
        command.terminal_group,
    )
    return target, SpawnPayload(command.work_session_id, command.executor_schema, command.executor_document)
