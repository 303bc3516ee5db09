"""What is on disk about an endpoint instance: its identity for good, where its registration stands, its current key.

``ROOT/spaces/SPACE/endpoints/TOKEN/INSTANCE/record.json`` is written before anything is made at the broker, so that the
next run goes on where one was killed. The user key of a serving process never leaves that process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from sidecar.base.safefile import DirLock, UnsafeFile, ensure_private_dir, read_private, write_private
from sidecar.base.strictjson import JsonError, canonical, parse
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.principals import Lifecycle, check_mintable
from sidecar.rails.names.tokens import GRAMMARS, endpoint_name, endpoint_token
from sidecar.rails.planes.registration.barrier import Progress
from sidecar.rails.planes.registration.gates import Intent
from sidecar.rails.planes.registration.naming import Place, serving_principal

_RECORD: Final = "record.json"
_RECORD_BYTES: Final = 16 * 1024
MOST_GIVEN_UP: Final = 64
"""Keys of an instance that are remembered as destroyed."""


class Stage(StrEnum):
    """Where the life of an instance stands."""

    LIVING = "living"
    RETIRED = "retired"


@dataclass(frozen=True, slots=True)
class EndpointRecord:
    """One instance. ``uid`` is its lifecycle for good; ``registered``: a registration was completed and not ended;
    ``epoch`` and ``revision`` are those of the last completed one, which was for whoever has its creds file when it is
    ``lent``; ``progress`` is an operation on its way.

    ``given_up`` are the user keys, each with the Unix end of its last token, that this host has destroyed itself after
    the connection that used them had come to rest: they need no eviction. A credential that is not named there may be
    in use."""

    endpoint: str
    instance: str
    owner: str
    uid: str
    stage: Stage = Stage.LIVING
    registered: bool = False
    epoch: int = 0
    revision: int = 0
    progress: Progress | None = None
    lent: bool = False
    given_up: Mapping[str, int] = field(default_factory=dict)

    @property
    def lifecycle(self) -> Lifecycle:
        return Lifecycle(serving_principal(self.owner, self.instance), self.uid)

    def place(self, space: str) -> Place:
        return Place(space, self.endpoint, self.instance)

    def completed(self, epoch: int, revision: int, *, lent: bool) -> EndpointRecord:
        """After a registration."""
        return replace(self, registered=True, epoch=epoch, revision=revision, progress=None, lent=lent)

    def gave_up(self, user: str, ends: int, now: int) -> EndpointRecord:
        """With one more key that nobody has. Those whose tokens have ended need not be known, nor more than so many:
        what is not known is evicted."""
        kept = {one: end for one, end in self.given_up.items() if end > now} | {user: ends}
        newest = sorted(kept.items(), key=lambda one: one[1])[-MOST_GIVEN_UP:]
        return replace(self, given_up=dict(newest))

    def value(self) -> dict[str, Any]:
        """The JSON object of the record."""
        progress = self.progress
        return {
            "endpoint": self.endpoint,
            "instance": self.instance,
            "owner": self.owner,
            "lifecycleUid": self.uid,
            "stage": self.stage.value,
            "registered": self.registered,
            "epoch": self.epoch,
            "registrationRevision": self.revision,
            "givenUp": dict(self.given_up),
            "lent": self.lent,
            "operation": None
            if progress is None
            else {
                "opId": progress.op_id,
                "kind": progress.kind.value,
                "generation": progress.generation,
                "epoch": progress.epoch,
                "frozen": progress.frozen,
            },
        }

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> EndpointRecord:
        """The record in a JSON object. Raises KeyError, TypeError, ValueError for anything else."""
        operation = value["operation"]
        record = cls(
            value["endpoint"],
            GRAMMARS["instance"].check(value["instance"]),
            check_mintable(value["owner"]),
            GRAMMARS["uid"].check(value["lifecycleUid"]),
            Stage(value["stage"]),
            _flag(value["registered"]),
            _whole(value["epoch"]),
            _whole(value["registrationRevision"]),
            None if operation is None else _progress(operation),
            _flag(value.get("lent", False)),  # records of earlier releases do not say
            {str(user): _whole(end) for user, end in value.get("givenUp", {}).items()},
        )
        endpoint_token(record.endpoint)
        return record


def _progress(value: Mapping[str, Any]) -> Progress:
    found = Progress(
        str(value["opId"]),
        Intent(value["kind"]),
        _whole(value["generation"]),
        _whole(value["epoch"]),
        _flag(value["frozen"]),
    )
    found.op  # noqa: B018 - it checks its id
    return found


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError
    return value


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError
    return value


class EndpointShelf:
    """The directory of one instance."""

    def __init__(self, root: Path, space: str, endpoint: str, instance: str) -> None:
        self.directory = root / "spaces" / space / "endpoints" / endpoint_token(endpoint) / instance
        self.creds_file = self.directory / "serve.creds"
        self._names = (endpoint, instance)

    def open(self) -> None:
        """Make the directory and those above it, owner-only. Raises UnsafeFile."""
        for path in (self.directory.parent.parent, self.directory.parent, self.directory):
            ensure_private_dir(path)

    def read(self) -> EndpointRecord | None:
        """The record; None when there is none. Raises UnsafeFile."""
        path = self.directory / _RECORD
        try:
            value = parse(read_private(path, _RECORD_BYTES), safe_integers=True)
        except FileNotFoundError:
            return None
        except JsonError:
            raise UnsafeFile(path, "is not the record of an endpoint instance") from None
        try:
            record = EndpointRecord.of(value)  # type: ignore[arg-type]
        except (KeyError, TypeError, ValueError, AttributeError, InvalidName):
            raise UnsafeFile(path, "is not the record of an endpoint instance") from None
        if (record.endpoint, record.instance) != self._names:
            raise UnsafeFile(path, "is the record of another endpoint instance")
        return record

    def write(self, record: EndpointRecord, lock: DirLock) -> EndpointRecord:
        """Keep the record; it is durable when this returns. ``lock`` is that of the directory."""
        write_private(self.directory / _RECORD, canonical(record.value()), lock=lock)
        return record


def shelves(root: Path, space: str) -> list[EndpointShelf]:
    """Every instance below a space, by endpoint and id."""
    directory = root / "spaces" / space / "endpoints"
    if not directory.is_dir():
        return []
    found = []
    for endpoint in sorted(path for path in directory.iterdir() if path.is_dir()):
        instances = sorted(path.name for path in endpoint.iterdir() if path.is_dir())
        found += [EndpointShelf(root, space, endpoint_name(endpoint.name), name) for name in instances]
    return found
