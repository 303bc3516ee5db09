"""REGISTER_ARTIFACT_MANIFEST (OPEN P7-e, P7-f)."""

from __future__ import annotations

from sidecar.coordinator.engine.commands import Change, Put, Situation, changed, created_object, find, record_of
from sidecar.coordinator.wire.enums import EventKind, ObjectKind
from sidecar.coordinator.wire.errors import NotFound, RevisionConflict
from sidecar.coordinator.wire.ids import WorkSessionId, advance
from sidecar.coordinator.wire.payloads import ArtifactManifestRecord, ArtifactRecord, RegisterArtifactManifest


def register_artifact_manifest(situation: Situation, command: RegisterArtifactManifest) -> Change:
    """The next revision of an artifact, or its first one.

    The stub and the manifest are two records, each with an event of its own, because they are visible under different
    rights. The manifest has the artifact's id and only the latest one is kept.
    """
    state, artifact_id = situation.state, command.artifact_id
    stub = find(state, ObjectKind.ARTIFACT, artifact_id, ArtifactRecord)
    latest = 0 if stub is None else stub[1].latest_revision
    if command.revision != latest + 1:
        raise RevisionConflict("the revision does not follow the latest one of the artifact")
    session_id = _session(situation) if stub is None else stub[1].work_session_id
    manifest = state.get(ObjectKind.ARTIFACT_MANIFEST, artifact_id)
    stub_record = record_of(
        ObjectKind.ARTIFACT,
        artifact_id,
        1 if stub is None else advance(stub[0]),
        ArtifactRecord(work_session_id=session_id, latest_revision=command.revision),
    )
    manifest_record = record_of(
        ObjectKind.ARTIFACT_MANIFEST,
        artifact_id,
        1 if manifest is None else advance(manifest.revision),
        ArtifactManifestRecord(
            artifact_id=artifact_id, revision=command.revision, schema=command.schema, manifest=command.manifest
        ),
    )
    added = EventKind.ARTIFACT_REVISION_ADDED
    change = changed((Put(stub_record, added), Put(manifest_record, added)), stub_record)
    if stub is None:
        return change._replace(created=change.created + created_object(ObjectKind.ARTIFACT, artifact_id))
    return change


def _session(situation: Situation) -> WorkSessionId:
    """The work session of a first registration: the payload has none, its one precondition on a session names it."""
    sessions = [item for item in situation.preconditions if item.object.kind is ObjectKind.WORK_SESSION]
    if len(sessions) != 1:
        raise RevisionConflict("a first registration has exactly one precondition on a work session")
    named = sessions[0].object
    if situation.visibility.find(situation.state, named.kind, named.id) is None:
        raise NotFound("no such work session")
    return WorkSessionId(named.id)
