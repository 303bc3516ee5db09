"""Records of anycast requests, as values: what was taken or cancelled, and what follows from it (C8.1).

A record says that a holder's connector was about to show a request, never that it was read, started or finished
(C8.1-52). The delivery count in a take is the holder's own word: a role holder can move a take to itself, and the
sender is then told ``redelivered`` (C8.1-53). Reads, writes, clocks and notices are the shell's (``anycast_desk``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

from sidecar.base.strictjson import SAFE_INTEGER, JsonError, JsonValue, canonical, parse
from sidecar.rails.names import InvalidName, Principal, buckets, principals, subjects
from sidecar.rails.names.limits import ANYCAST_ROW_SECONDS, MAX_ANYCAST_VALUE, MAX_DISPLAY_NAME
from sidecar.rails.names.tokens import epoch_token

VERSION: Final = 1
MAX_OWED: Final = 32
"""Notices that a record holds until they are published. A take that would owe one more is answered ``busy``."""
MAX_TAKE_BYTES: Final = 8192
MAX_ID: Final = 1024
"""Characters of a request's id that a record holds; a request with a longer one is taken by nobody."""
_MAX_EPOCH: Final = 64
_EDGES: Final = "\ufeff\u180e"
"""What is white at the edge of a name and not for ``str.strip``."""


class Code(StrEnum):
    """Why a take is refused; the holder acts on each (C8.1-11)."""

    CANCELLED = "cancelled"
    TAKEN = "taken"
    GONE = "gone"
    MISMATCH = "mismatch"
    BUSY = "busy"


EXPLAINED: Final = {
    Code.CANCELLED: "its sender cancelled the request",
    Code.TAKEN: "another take holds the request",
    Code.GONE: "no request is stored at this sequence",
    Code.MISMATCH: "this is not the request that is stored at this sequence of this stream",
    Code.BUSY: "it cannot be decided now; ask again later",
}


class State(StrEnum):
    """What a record says of its request."""

    TAKEN = "taken"
    CANCELLED = "cancelled"


class Removal(StrEnum):
    """How a cancelled request left the queue (C8.1-37)."""

    PENDING = "pending"
    DELETED = "deleted"
    ALREADY_GONE = "already-gone"


class Event(StrEnum):
    """What a notice tells the sender (C8.1-44)."""

    TAKEN = "taken"
    REDELIVERED = "redelivered"


class Ref(NamedTuple):
    """A holder: principal in dot-form, and the name that it gave itself."""

    id: str
    name: str

    @property
    def json(self) -> dict[str, JsonValue]:
        """Its members."""
        return {"id": self.id, "name": self.name}


class Owed(NamedTuple):
    """A notice that is not published yet; ``n`` is the transition that it tells of (C8.1-45)."""

    n: int
    event: Event
    taker: Ref
    previous: Ref | None = None


class Request(NamedTuple):
    """What the task stream stores at a sequence. ``id`` is None for a body that is no message."""

    role: str
    sender: str
    id: str | None


class Take(NamedTuple):
    """A take as it came: role and holder are those of its subject (C8.1-08)."""

    role: str
    taker: Ref
    sequence: int
    id: str
    delivered: int
    epoch: str


class InvalidRecord(ValueError):  # noqa: N818 - a state of the value
    """Bytes that are no record; the message names the field and nothing of the value."""


@dataclass(frozen=True, slots=True)
class Record:
    """One row (OPEN C8.1-c). Times in milliseconds since 1970; ``epoch`` is the stream's creation time, verbatim."""

    id: str
    role: str
    sender: str
    epoch: str
    sequence: int
    state: State
    at: int
    taker: Ref | None = None
    count: int = 0
    previous: Ref | None = None
    removal: Removal | None = None
    n: int = 0
    owed: tuple[Owed, ...] = ()
    off_queue_since: int | None = None

    @property
    def key(self) -> str:
        """Its key in the bucket (C8.1-23)."""
        return key_of(self.epoch, self.sequence)

    def encode(self) -> bytes:
        """The stored bytes."""
        value: dict[str, JsonValue] = {
            "v": VERSION,
            "id": self.id,
            "role": self.role,
            "sender": self.sender,
            "epoch": self.epoch,
            "seq": self.sequence,
            "state": self.state.value,
            "at": self.at,
            "n": self.n,
            "owed": [_owed_json(one) for one in self.owed],
        }
        if self.taker is not None:
            value |= {"taker": self.taker.json, "count": self.count}
        if self.previous is not None:
            value["previous"] = self.previous.json
        if self.removal is not None:
            value["removal"] = self.removal.value
        if self.off_queue_since is not None:
            value["offQueueSince"] = self.off_queue_since
        return canonical(value)

    @classmethod
    def decode(cls, data: bytes) -> Record:
        """The record in stored bytes; InvalidRecord for anything that is not one."""
        fields = _Fields(data)
        state = fields.one_of("state", State)
        taken = state is State.TAKEN
        return cls(
            id=fields.text("id", MAX_ID),
            role=fields.text("role", 64),
            sender=fields.principal("sender"),
            epoch=fields.epoch(),
            sequence=fields.number("seq", 1),
            state=state,
            at=fields.number("at"),
            taker=fields.ref("taker") if taken else None,
            count=fields.number("count", 1) if taken else 0,
            previous=fields.ref("previous") if "previous" in fields.value else None,
            removal=None if taken else fields.one_of("removal", Removal),
            n=fields.number("n"),
            owed=fields.owed(),
            off_queue_since=fields.number("offQueueSince") if "offQueueSince" in fields.value else None,
        )

    # ---- what happens to it ----

    def published(self, n: int) -> Record:
        """The notice of transition ``n`` is out."""
        return replace(self, owed=tuple(one for one in self.owed if one.n != n))

    def removed(self, how: Removal) -> Record:
        """The cancelled request has left the queue."""
        return replace(self, removal=how)

    def on_queue(self) -> Record:
        """The request was found on the queue."""
        return replace(self, off_queue_since=None)

    def off_queue(self, now_ms: int) -> Record:
        """The request was found off the queue for the first time."""
        return replace(self, off_queue_since=now_ms)

    def over(self, now_ms: int) -> bool:
        """Whether the row may go: a day after the request left, and nothing is owed any more (C8.1-30, C8.1-46)."""
        since = self.off_queue_since
        return since is not None and now_ms - since >= ANYCAST_ROW_SECONDS * 1000 and not self.owed

    def notice_id(self, n: int) -> str:
        """Id of the notice of transition ``n``, equal whenever it is sent (C8.1-45)."""
        return principals.ANYCAST_NOTICE_ID.build(epoch_token=epoch_token(self.epoch), sequence=self.sequence, n=n)


def key_of(epoch: str, sequence: int) -> str:
    """Key of the record of one request. InvalidName for a creation time without a letter or digit."""
    return buckets.ANYCAST_KEY.build(epoch_token=epoch_token(epoch), sequence=sequence)


class _Fields:
    """Members of a stored object, each one judged."""

    def __init__(self, data: bytes | Mapping[str, JsonValue]) -> None:
        try:
            value = parse(data, limit=MAX_ANYCAST_VALUE, safe_integers=True) if isinstance(data, bytes) else data
        except JsonError as error:
            raise InvalidRecord(f"it is no JSON: {error}") from None
        if not isinstance(value, Mapping):
            raise InvalidRecord("it is no object")
        self.value = value

    def text(self, name: str, longest: int) -> str:
        found = self.value.get(name)
        if not isinstance(found, str) or len(found) > longest:
            raise InvalidRecord(f"{name} is no text of at most {longest} characters")
        return found

    def number(self, name: str, least: int = 0) -> int:
        found = self.value.get(name)
        if type(found) is not int or found < least:
            raise InvalidRecord(f"{name} is no whole number from {least} on")
        return found

    def one_of(self, name: str, kind: Callable[[str], Any]) -> Any:
        found = self.value.get(name)
        try:
            return kind(found if isinstance(found, str) else "")
        except ValueError:
            raise InvalidRecord(f"{name} is no known word") from None

    def ref(self, name: str) -> Ref:
        found = self.value.get(name)
        if not isinstance(found, Mapping):
            raise InvalidRecord(f"{name} is no object")
        fields = _Fields(found)
        return Ref(fields.principal("id"), fields.text("name", MAX_DISPLAY_NAME))

    def principal(self, name: str) -> str:
        try:
            return Principal.from_dot(self.value.get(name)).dot
        except InvalidName:
            raise InvalidRecord(f"{name} is no principal") from None

    def epoch(self) -> str:
        found = self.text("epoch", _MAX_EPOCH)
        try:
            epoch_token(found)
        except InvalidName:
            raise InvalidRecord("epoch is no creation time") from None
        return found

    def owed(self) -> tuple[Owed, ...]:
        found = self.value.get("owed")
        if not isinstance(found, list) or len(found) > MAX_OWED:
            raise InvalidRecord(f"owed is no list of at most {MAX_OWED} notices")
        return tuple(_owed(one) for one in found)


def _owed(value: JsonValue) -> Owed:
    if not isinstance(value, Mapping):
        raise InvalidRecord("a notice is no object")
    fields = _Fields(value)
    previous = fields.ref("previous") if "previous" in value else None
    return Owed(fields.number("n", 1), fields.one_of("event", Event), fields.ref("taker"), previous)


def _owed_json(one: Owed) -> dict[str, JsonValue]:
    value: dict[str, JsonValue] = {"n": one.n, "event": one.event.value, "taker": one.taker.json}
    return value if one.previous is None else {**value, "previous": one.previous.json}


# ---- reading what came ----


def read_request(subject: str, data: bytes) -> Request | None:
    """The request that is stored under a subject; None for a subject that no request has."""
    try:
        names = subjects.SVC.parse(subject)
    except InvalidName:
        return None
    try:
        value = parse(data)
    except JsonError:
        value = None
    found = value.get("id") if isinstance(value, Mapping) else None
    known = isinstance(found, str) and 0 < len(found) <= MAX_ID
    return Request(names["role"], f"{names['owner']}.{names['actor']}", str(found) if known else None)


def read_take(role: str, holder: Principal, data: bytes) -> Take | None:
    """The take in a request body; None for one that is malformed or says it is somebody else's (C8.1-08, C8.1-11)."""
    try:
        value = parse(data, limit=MAX_TAKE_BYTES, safe_integers=True)
    except JsonError:
        return None
    if not isinstance(value, Mapping):
        return None
    fields = _Fields(value)
    try:
        ref = fields.ref("from")
        take = Take(
            role,
            ref,
            fields.number("seq", 1),
            fields.text("id", MAX_ID),
            fields.number("count", 1),
            fields.text("epoch", _MAX_EPOCH),
        )
    except InvalidRecord:
        return None
    if ref.id != holder.dot or not take.id or take.sequence > SAFE_INTEGER or not holder_name(ref.name):
        return None
    return take


def holder_name(name: str) -> bool:
    """Whether a holder may call itself so: one line of at most 128 UTF-16 units, no space at an edge, no slash of
    either kind (C8.1-07). Half of a surrogate pair never comes out of strict JSON."""
    units = len(name) + sum(character > "\uffff" for character in name)
    return (
        units <= MAX_DISPLAY_NAME
        and len(name.splitlines()) <= 1
        and name.strip().strip(_EDGES) == name
        and not {"/", "\\"} & set(name)
        and not any("\ud800" <= character <= "\udfff" for character in name)
    )


# ---- take ----


def take(record: Record | None, request: Request | None, wanted: Take, now_ms: int) -> Record | Code | None:
    """What a take comes to: a refusal, the record to write, or None when it wins without a write (C8.1-26..29).

    ``request`` is what is stored at the sequence, ``record`` the row of exactly this epoch and sequence.
    """
    if request is None:
        cancelled = record is not None and record.state is State.CANCELLED
        return Code.CANCELLED if cancelled else Code.GONE
    if request.role != wanted.role or request.id != wanted.id:
        return Code.MISMATCH
    if record is None:
        return Record(
            id=wanted.id,
            role=request.role,
            sender=request.sender,
            epoch=wanted.epoch,
            sequence=wanted.sequence,
            state=State.TAKEN,
            at=now_ms,
            taker=wanted.taker,
            count=wanted.delivered,
            n=1,
            owed=(Owed(1, Event.TAKEN, wanted.taker),),
        )
    if record.state is State.CANCELLED or record.taker is None:
        return Code.CANCELLED
    if record.taker.id == wanted.taker.id:
        return _again(record, wanted, now_ms)
    if wanted.delivered <= record.count:
        return Code.TAKEN
    if len(record.owed) >= MAX_OWED:
        return Code.BUSY
    n = record.n + 1
    return replace(
        record,
        taker=wanted.taker,
        previous=record.taker,
        count=wanted.delivered,
        at=now_ms,
        n=n,
        owed=(*record.owed, Owed(n, Event.REDELIVERED, wanted.taker, record.taker)),
        off_queue_since=None,
    )


def _again(record: Record, wanted: Take, now_ms: int) -> Record | Code | None:
    """The holder that has it asks again: nobody else is concerned, so nothing is told."""
    if wanted.delivered < record.count:
        return Code.TAKEN
    if wanted.delivered == record.count:
        return None
    return replace(record, taker=wanted.taker, count=wanted.delivered, at=now_ms, off_queue_since=None)


# ---- status and cancel ----


def status(
    record: Record | None, request: Request | None, caller: Principal, sequence: int, wanted_id: str | None
) -> dict[str, JsonValue]:
    """What the sender of a request is told of it; ``unknown`` to everybody else (C8.1-34..36)."""
    unknown: dict[str, JsonValue] = {"state": "unknown", "seq": sequence}
    if record is not None:
        if record.sender != caller.dot or wanted_id not in (None, record.id):
            return unknown
        return _shown(record)
    if request is None or request.sender != caller.dot or wanted_id not in (None, request.id):
        return unknown
    return {"state": "waiting", "seq": sequence, "role": request.role}


def _shown(record: Record) -> dict[str, JsonValue]:
    told: dict[str, JsonValue] = {"state": record.state.value, "seq": record.sequence, "role": record.role}
    if record.taker is None:
        return {**told, "removal": (record.removal or Removal.PENDING).value}
    told |= {"taker": record.taker.json, "at": record.at}
    return told if record.previous is None else {**told, "previous": record.previous.json}


def cancelled(request: Request, epoch: str, sequence: int, now_ms: int) -> Record:
    """The record of a cancel, whose request is still to be deleted (C8.1-38)."""
    return Record(
        id=request.id or "",
        role=request.role,
        sender=request.sender,
        epoch=epoch,
        sequence=sequence,
        state=State.CANCELLED,
        at=now_ms,
        removal=Removal.PENDING,
    )


# ---- notices ----


def notice_text(record: Record, owed: Owed) -> str:
    """What a person reads. It promises no more than a take says (C8.1-52)."""
    holder = f"{owed.taker.name} ({owed.taker.id})"
    if owed.previous is None:
        what = f"was taken by {holder}"
    else:
        what = f"moved from {owed.previous.name} ({owed.previous.id}) to {holder}"
    return (
        f"Your request {record.sequence} to the role {record.role} {what}, who is about to see it. "
        "That does not say that it was read, begun or done."
    )


def notice_data(record: Record, owed: Owed) -> dict[str, JsonValue]:
    """Members of the notice proper (C8.1-44)."""
    value: dict[str, JsonValue] = {
        "seq": record.sequence,
        "role": record.role,
        "event": owed.event.value,
        "taker": owed.taker.json,
    }
    return value if owed.previous is None else {**value, "previous": owed.previous.json}
