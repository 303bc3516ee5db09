"""What is on disk about a principal of a space: what it was given, and where its life stands.

The record is written before anything is made at the broker, and its state moves when a step is through: whatever kills
a run, the next one reads here what is left to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from sidecar.base.safefile import UnsafeFile, ensure_private_dir, read_private, write_private
from sidecar.base.strictjson import JsonError, canonical, parse
from sidecar.rails.envelopes.message import check_display_name
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.space.holder import Capability, EventRead, Form, Holder, Profile
from sidecar.rails.space.may import capability_value, hears_value, read_capability, read_hears

_RECORD: Final = "record.json"
_RECORD_BYTES: Final = 256 * 1024
KEPT_LIVES: Final = 64
"""Ended lifecycles of one principal that its record still names; the oldest are forgotten first."""


class Stage(StrEnum):
    """Where the life of a principal stands."""

    PENDING = "pending"
    ACTIVE = "active"
    ENDING = "ending"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a principal is to have. Raises InvalidName, EnvelopeError for values that no credential holds (C9-06)."""

    principal: Principal
    profile: Profile
    seconds: int
    name: str = ""
    subscribe: tuple[str, ...] = ()
    allow_subscribe: tuple[str, ...] | None = None
    allow_publish: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    capabilities: tuple[Capability, ...] = ()
    hears: tuple[EventRead, ...] = ()

    def __post_init__(self) -> None:
        check_display_name("name", self.name)

    def holder(self, space: str, form: Form, uid: str, connection: str) -> Holder:
        """The holder of its credential."""
        return Holder(
            space,
            Lifecycle(self.principal, uid),
            connection,
            form,
            self.subscribe,
            self.allow_subscribe,
            self.allow_publish,
            self.roles,
            self.capabilities,
            hears=self.hears,
        )


@dataclass(frozen=True, slots=True)
class Life:
    """One ended lifecycle: when, and the last sequence of each stream that is still its own (C8-33)."""

    uid: str
    ended_at: int
    frontiers: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Record:
    """A principal with its current lifecycle. ``frontiers`` are where it begins while it lives, where it ends once
    its retirement has begun."""

    wanted: Wanted
    uid: str
    stage: Stage
    frontiers: Mapping[str, int] = field(default_factory=dict)
    retired: Mapping[str, int] | None = None
    past: tuple[Life, ...] = ()

    @property
    def lifecycle(self) -> Lifecycle:
        return Lifecycle(self.wanted.principal, self.uid)

    def ended(self, now: int) -> Record:
        """The record of a principal without a life."""
        life = Life(self.uid, now, self.retired or {})
        return replace(self, stage=Stage.ENDED, past=(*self.past, life)[-KEPT_LIVES:])

    def value(self) -> dict[str, Any]:
        """The JSON object of the record."""
        wanted = self.wanted
        return {
            "owner": wanted.principal.owner,
            "actor": wanted.principal.actor,
            "profile": wanted.profile.value,
            "seconds": wanted.seconds,
            "name": wanted.name,
            "subscribe": list(wanted.subscribe),
            "allowSubscribe": None if wanted.allow_subscribe is None else list(wanted.allow_subscribe),
            "allowPublish": list(wanted.allow_publish),
            "roles": list(wanted.roles),
            "capabilities": [capability_value(one) for one in wanted.capabilities],
            "hears": [hears_value(one) for one in wanted.hears],
            "lifecycleUid": self.uid,
            "stage": self.stage.value,
            "activationFrontiers": dict(self.frontiers),
            "retirementFrontiers": None if self.retired is None else dict(self.retired),
            "past": [
                {"lifecycleUid": one.uid, "endedAt": one.ended_at, "retirementFrontiers": dict(one.frontiers)}
                for one in self.past
            ],
        }

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Record:
        """The record in a JSON object. Raises KeyError, TypeError, ValueError for anything else."""
        allow = value["allowSubscribe"]
        wanted = Wanted(
            Principal(value["owner"], value["actor"]),
            Profile(value["profile"]),
            _whole(value["seconds"]),
            _text(value["name"]),
            _texts(value["subscribe"]),
            None if allow is None else _texts(allow),
            _texts(value["allowPublish"]),
            _texts(value["roles"]),
            # Records of before there were endpoints hold none.
            tuple(read_capability(one) for one in value.get("capabilities", ())),
            tuple(read_hears(one) for one in value.get("hears", ())),
        )
        retired = value["retirementFrontiers"]
        record = cls(
            wanted,
            value["lifecycleUid"],
            Stage(value["stage"]),
            _counts(value["activationFrontiers"]),
            None if retired is None else _counts(retired),
            tuple(
                Life(_text(one["lifecycleUid"]), _whole(one["endedAt"]), _counts(one["retirementFrontiers"]))
                for one in value["past"]
            ),
        )
        Lifecycle(wanted.principal, record.uid)
        return record


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise TypeError
    return tuple(_text(one) for one in value)


def _counts(value: Any) -> dict[str, int]:
    return {_text(name): _whole(count) for name, count in dict(value).items()}


class Shelf:
    """The directory of one principal: its record, its user key and its creds file."""

    def __init__(self, principals: Path, principal: Principal) -> None:
        self.directory = principals / principal.dot
        self.key_file = self.directory / "user.nk"
        self.creds_file = self.directory / "user.creds"

    def read(self) -> Record | None:
        """The record; None when there is none. Raises UnsafeFile."""
        path = self.directory / _RECORD
        try:
            value = parse(read_private(path, _RECORD_BYTES))
        except FileNotFoundError:
            return None
        except JsonError:
            raise UnsafeFile(path, "is not the record of a principal") from None
        try:
            return Record.of(value)  # type: ignore[arg-type]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise UnsafeFile(path, "is not the record of a principal") from None

    def write(self, record: Record) -> Record:
        """Keep the record; it is durable when this returns."""
        ensure_private_dir(self.directory)
        write_private(self.directory / _RECORD, canonical(record.value()))
        return record


def shelves(principals: Path) -> list[Shelf]:
    """Every principal below a directory, by name."""
    names = sorted(path.name for path in principals.iterdir() if path.is_dir()) if principals.is_dir() else []
    return [Shelf(principals, Principal.from_dot(name)) for name in names]
