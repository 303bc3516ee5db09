"""What an instance may say of itself: the body of a record write, judged before anything is written (C13.9-082).

Pure. The epoch comes from the subject, which the broker has checked against the instance's grants; what a payload says
of it is not looked at (C13.2-70).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sidecar.base.strictjson import SAFE_INTEGER, JsonError, JsonValue, canonical, parse
from sidecar.rails.endpoint.codes import Code
from sidecar.rails.names import planes
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.planes.registration.naming import SERVICE_KIND

MAX_STATUS_BYTES: Final = 64 * 1024
MAX_NOTE: Final = 512
ESCALATED: Final = "escalated"
"""A state that a supervisor writes, never the instance itself."""
READY: Final = "ready"
EXITED: Final = "exited"
_STATE: Final = re.compile(r"[a-z][a-z0-9-]{0,31}")


class WriteRefused(Exception):  # noqa: N818 - what was decided
    """A record write that has no effect; ``code`` is of the catalog."""

    def __init__(self, code: Code, why: str) -> None:
        super().__init__(why)
        self.code = code


@dataclass(frozen=True, slots=True)
class Writer:
    """Who wrote, as the subject says; ``endpoint`` is the token."""

    endpoint: str
    instance: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Report:
    """A status that an instance reports. ``observed`` is the revision of its spec that it acts by (None: that of its
    own registration), ``base`` the status revision that it must replace (None: whichever stands), ``note`` a line for
    people."""

    state: str
    observed: int | None = None
    base: int | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if _STATE.fullmatch(self.state) is None or self.state == ESCALATED:
            raise WriteRefused(Code.BAD_REQUEST, "the state is none that an instance reports")
        revisions = (one for one in (self.observed, self.base) if one is not None)
        if any(not 0 <= one <= SAFE_INTEGER for one in revisions):
            raise WriteRefused(Code.BAD_REQUEST, "a revision is none")
        if len(self.note) > MAX_NOTE:
            raise WriteRefused(Code.BAD_REQUEST, f"the note is longer than {MAX_NOTE} characters")

    def encode(self) -> bytes:
        """The body of the write."""
        value: dict[str, JsonValue] = {"state": self.state}
        if self.observed is not None:
            value["observedSpecRevision"] = self.observed
        if self.base is not None:
            value["baseRevision"] = self.base
        if self.note:
            value["note"] = self.note
        return canonical(value)

    def status(self, epoch: int, spec_revision: int) -> bytes:
        """The stored status of the writer at its epoch (C13.7-61, OPEN C13.7-e). A current epoch is that of the
        registration that wrote the current spec: that is what it observes when it says nothing."""
        observed = spec_revision if self.observed is None else self.observed
        value: dict[str, JsonValue] = {"epoch": epoch, "state": self.state, "observedSpecRevision": observed}
        return canonical({**value, "note": self.note} if self.note else value)


_REQUIRED: Final = {"state"}
_OPTIONAL: Final = {"observedSpecRevision", "baseRevision", "note"}
_NOT_ITS_OWN: Final = {"epoch", "restarts", "retiredAt", "restartWindowStart", "supervisor", "escalation", "lastExit"}
"""What the writer or a supervisor adds to a status. An instance that says it too is not believed: it is left out."""


def writer_of(space: str, subject: str) -> Writer:
    """The writer of a message on the record stream. Raises WriteRefused for another form, another kind, and a qualifier
    that is not the writer's own coordinate."""
    try:
        found = planes.RECORD_WRITE.parse(subject)
    except InvalidName:
        raise WriteRefused(Code.BAD_REQUEST, "the subject is no record write") from None
    own = f"{found['endpoint']}.{found['instance']}"
    if found["space"] != space or found["kind"] != SERVICE_KIND:
        raise WriteRefused(Code.BAD_REQUEST, "the subject is of another space or kind")
    if found["qualifier"] != own:
        raise WriteRefused(Code.PERMISSION_DENIED, "the record is of another instance")
    return Writer(found["endpoint"], found["instance"], int(found["epoch"]))


def read_report(data: bytes) -> Report:
    """The report in the body of a write. Raises WriteRefused."""
    if len(data) > MAX_STATUS_BYTES:
        raise WriteRefused(Code.RESOURCE_EXHAUSTED, f"a status has at most {MAX_STATUS_BYTES} bytes")
    try:
        value = parse(data, limit=MAX_STATUS_BYTES, safe_integers=True)
    except JsonError:
        raise WriteRefused(Code.BAD_REQUEST, "the status is no JSON") from None
    if not isinstance(value, Mapping) or not value.keys() >= _REQUIRED:
        raise WriteRefused(Code.BAD_REQUEST, "the status has not the members of one")
    if value.keys() - _REQUIRED - _OPTIONAL - _NOT_ITS_OWN:
        raise WriteRefused(Code.BAD_REQUEST, "the status has a member that is none of one")
    state, note = value["state"], value.get("note", "")
    if not isinstance(state, str) or not isinstance(note, str):
        raise WriteRefused(Code.BAD_REQUEST, "a member of the status has another type")
    return Report(state, _revision(value, "observedSpecRevision"), _revision(value, "baseRevision"), note)


def _revision(value: Mapping[str, JsonValue], name: str) -> int | None:
    revision = value.get(name)
    if name in value and type(revision) is not int:
        raise WriteRefused(Code.BAD_REQUEST, f"{name} is no revision")
    return revision if type(revision) is int else None


@dataclass(frozen=True, slots=True)
class Stored:
    """What stands in the records of the writer: the epoch of its lifecycle head (None: it has no current one), the
    revision of its spec (0: it is not registered), the epoch and the revision of its status."""

    head_epoch: int | None
    spec_revision: int
    status_epoch: int | None
    status_revision: int


def judge(writer: Writer, report: Report, stored: Stored) -> None:
    """Refuse what must not be written (C13.8-10). Raises WriteRefused."""
    if stored.spec_revision == 0:
        raise WriteRefused(Code.NOT_FOUND, "the instance is not registered")
    if stored.head_epoch is None or writer.epoch != stored.head_epoch:
        raise WriteRefused(Code.EXPIRED, "the epoch of the writer is not the current one")
    if stored.status_epoch is not None and writer.epoch < stored.status_epoch:
        raise WriteRefused(Code.CONFLICT, "a later epoch has written the status")
    if report.observed is not None and report.observed > stored.spec_revision:
        raise WriteRefused(Code.CONFLICT, "the status observes a spec that there is not")
    if report.base is not None and report.base != stored.status_revision:
        raise WriteRefused(Code.CONFLICT, "the status was changed since it was read")
