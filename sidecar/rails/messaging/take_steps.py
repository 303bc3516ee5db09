"""One held anycast request: when it is taken, shown, kept or forgotten, and the words of a take (C8.1). Pure.

A take only says that the holder's connector was about to show the request, never that it was read, started or finished
(C8.1-52). The daemon cannot verify the delivery count in it: a holder of the role can move a take to itself, and the
sender is then told ``redelivered`` (C8.1-53). A holder that knows no takes shows without one: its request reads
``waiting`` until it acks and ``unknown`` after that, and a cancel may say ``already-gone`` (C8.1-54).
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Final

from sidecar.base.strictjson import JsonError, JsonValue, canonical, parse
from sidecar.rails.names import Principal
from sidecar.rails.names.limits import MAX_DISPLAY_NAME

FIRST_RETRY, LONGEST_RETRY = 5.0, 60.0
"""Seconds after which a request that could not be taken is offered again, doubling (OPEN C8.1-g)."""
MAX_ANSWER: Final = 4096


class Place(Enum):
    """Where a held request is."""

    OFFERED = "the host may read it"
    ASKED = "its take is on its way"
    REREAD = "its take did not match; the stream's creation time is read again"
    LATER = "it could not be taken; it is offered again after a wait"
    DOWN = "the link is down; it is offered when there is one again"
    SHOWN = "the host has it"
    FORGOTTEN = "this copy is nobody's here any more"


class Event(Enum):
    """What happens to it."""

    READ = "the host is about to show it"
    PUT_OFF = "takes failed a moment ago: none is sent before the wait is over"
    OK = "the take holds"
    REFUSED = "cancelled, taken by another, or gone"
    MISMATCH = "the take names something else than what is stored"
    UNDECIDED = "there is no answer, or none that decides"
    MOVED = "the stream has another creation time than the copy"
    SAME = "it has the same"
    UNREAD = "the creation time could not be read"
    LOST = "the link was lost"
    BACK = "there is a link again"
    DUE = "the wait is over"
    STALE = "the ack wait of the copy may be over: another holder may have it"


class Do(Enum):
    """What follows."""

    NOTHING = "nothing"
    ASK = "+WPI, then the take"
    SHOW = "show it now"
    REREAD = "read the creation time"
    WAIT = "offer it again later, and tell the operator why"
    OFFER = "tell the host about it"
    NAK = "have the broker deliver it again at once, and forget it"
    FORGET = "forget it without an ack"


_ENDS: Final = (Place.SHOWN, Place.FORGOTTEN)

STEPS: Final[dict[tuple[Place, Event], tuple[Place, Do]]] = {
    (Place.OFFERED, Event.READ): (Place.ASKED, Do.ASK),
    (Place.OFFERED, Event.PUT_OFF): (Place.LATER, Do.NOTHING),
    (Place.OFFERED, Event.LOST): (Place.DOWN, Do.NOTHING),
    (Place.OFFERED, Event.STALE): (Place.FORGOTTEN, Do.FORGET),
    (Place.ASKED, Event.OK): (Place.SHOWN, Do.SHOW),
    (Place.ASKED, Event.REFUSED): (Place.FORGOTTEN, Do.FORGET),
    (Place.ASKED, Event.MISMATCH): (Place.REREAD, Do.REREAD),
    (Place.ASKED, Event.UNDECIDED): (Place.LATER, Do.WAIT),
    (Place.ASKED, Event.LOST): (Place.DOWN, Do.NOTHING),
    (Place.ASKED, Event.STALE): (Place.FORGOTTEN, Do.FORGET),
    (Place.REREAD, Event.MOVED): (Place.FORGOTTEN, Do.NAK),
    (Place.REREAD, Event.SAME): (Place.FORGOTTEN, Do.FORGET),
    (Place.REREAD, Event.UNREAD): (Place.LATER, Do.WAIT),
    (Place.REREAD, Event.LOST): (Place.DOWN, Do.NOTHING),
    (Place.REREAD, Event.STALE): (Place.FORGOTTEN, Do.FORGET),
    (Place.LATER, Event.DUE): (Place.OFFERED, Do.OFFER),
    (Place.LATER, Event.LOST): (Place.DOWN, Do.NOTHING),
    (Place.LATER, Event.BACK): (Place.OFFERED, Do.OFFER),
    (Place.LATER, Event.STALE): (Place.FORGOTTEN, Do.FORGET),
    (Place.DOWN, Event.BACK): (Place.OFFERED, Do.OFFER),
    (Place.DOWN, Event.LOST): (Place.DOWN, Do.NOTHING),
    (Place.DOWN, Event.STALE): (Place.FORGOTTEN, Do.FORGET),
    **{(end, event): (end, Do.NOTHING) for end in _ENDS for event in (Event.LOST, Event.BACK, Event.DUE, Event.STALE)},
}
"""Every pair that can happen. A take that was under way when the link went is not believed: from DOWN the request is
offered, and taken, once more (C8.1-18)."""


def after(place: Place, event: Event) -> tuple[Place, Do]:
    """The next place and what follows; ValueError for a pair that cannot happen."""
    step = STEPS.get((place, event))
    if step is None:
        raise ValueError(f"{event.name} cannot happen in {place.name}")
    return step


class Came(StrEnum):
    """What came of one take; the values are metric labels."""

    OK = "ok"
    CANCELLED = "cancelled"
    TAKEN = "taken"
    GONE = "gone"
    MISMATCH = "mismatch"
    BUSY = "busy"
    SILENT = "silent"
    """There was no answer in time."""
    OLD_DAEMON = "old_daemon"
    DENIED = "denied"
    NO_DAEMON = "no_daemon"
    INTERRUPTED = "interrupted"
    """The link went before there was an answer."""

    @property
    def event(self) -> Event:
        """What it is to the request."""
        return _EVENTS.get(self, Event.UNDECIDED)


_EVENTS: Final = {
    Came.OK: Event.OK,
    Came.CANCELLED: Event.REFUSED,
    Came.TAKEN: Event.REFUSED,
    Came.GONE: Event.REFUSED,
    Came.MISMATCH: Event.MISMATCH,
    Came.INTERRUPTED: Event.LOST,
}

ADVICE: Final = {
    Came.OLD_DAEMON: "the delivery daemon is older than this holder and knows no takes: restart it at this version",
    Came.DENIED: "the credential of this seat does not allow takes: respawn the seat for a current credential",
    Came.NO_DAEMON: "no delivery daemon is running in this space: start one",
}
"""What the operator is told, by cause (C8.1-50)."""

_CODES: Final = {one.value: one for one in (Came.CANCELLED, Came.TAKEN, Came.GONE, Came.MISMATCH, Came.BUSY)}


def read_answer(data: bytes) -> Came:
    """What an answer says. One that cannot be read decides nothing: it is taken as ``busy``."""
    try:
        value = parse(data, limit=MAX_ANSWER)
    except JsonError:
        return Came.BUSY
    if type(value) is not dict:
        return Came.BUSY
    if value.get("ok") is True:
        return Came.OK
    code = value.get("code")
    return _CODES.get(code, Came.BUSY) if value.get("ok") is False and isinstance(code, str) else Came.BUSY


class BadTakerName(ValueError):  # noqa: N818 - a state of the name
    """A display name that cannot stand in a take (C8.1-07)."""


_SEPARATORS: Final = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_EDGES: Final = "\ufeff\u180e"


def check_name(name: str) -> str:
    """The name, if a take may carry it: one line of well-formed text of at most 128 UTF-16 code units, no white at its
    edges, no slash of either kind (C8.1-07). BadTakerName otherwise."""
    try:
        units = len(name.encode("utf-16-le")) // 2
    except UnicodeEncodeError:
        raise BadTakerName("the name holds half of a surrogate pair") from None
    if not name or units > MAX_DISPLAY_NAME:
        raise BadTakerName(f"the name has {units} UTF-16 code units, allowed are 1 to {MAX_DISPLAY_NAME}")
    if any(separator in name for separator in _SEPARATORS):
        raise BadTakerName("the name has more than one line")
    if name.strip() != name or name.strip(_EDGES) != name:
        raise BadTakerName("the name begins or ends with white")
    if "/" in name or "\\" in name:
        raise BadTakerName("the name has a slash")
    return name


def take_body(holder: Principal, name: str, sequence: int, message_id: str, count: int, epoch: str) -> bytes:
    """The body of a take (C8.1-05, C8.1-06): ``sequence`` and ``count`` are those of the held copy, ``epoch`` the
    stream's creation time as it was read."""
    sender: JsonValue = {"id": holder.dot, "name": name}
    return canonical({"from": sender, "seq": sequence, "id": message_id, "count": count, "epoch": epoch})
