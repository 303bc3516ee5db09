"""A peer that says random legal things in no sensible order, and counts how each of its requests ends."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import CommandKind, FrameType
from sidecar.coordinator.wire.payloads import CreateObjective, UpdateObjective
from sidecar.coordinator.wire.records import AuthorityGuard
from sidecar.coordinator.wire.table import FRAME_TABLE
from tests.unit.engine.harness import id16
from tests.unit.session.bench import Wire

REQUESTS = (
    FrameType.COORD_COMMAND,
    FrameType.GET_OPERATION_RESULT,
    FrameType.OPEN_SNAPSHOT,
    FrameType.SNAPSHOT_NEXT,
    FrameType.SNAPSHOT_APPLIED,
    FrameType.SUBSCRIBE,
    FrameType.OPEN_REPLAY,
    FrameType.REPLAY_NEXT,
    FrameType.REPLAY_APPLIED,
)
BEGINS = fr.SnapshotBegin | fr.ReplayBegin
PAGES = fr.SnapshotPage | fr.ReplayPage


class Speaker:
    """One connection. Everything that it sends is legal; most of it fits what it was told, some of it does not."""

    def __init__(self, wire: Wire, rng: random.Random) -> None:
        self.wire = wire
        self.rng = rng
        self.guard = AuthorityGuard.decode(wire.house.world.authority.guard)
        self.sent: dict[int, FrameType] = {}
        self.ended: Counter[int] = Counter()
        self.expects_end: set[int] = set()
        """Requests of which the frame before the last has come."""
        self.outcomes: Counter[tuple[FrameType, FrameType]] = Counter()
        """How often a request of one type ended with a frame of another."""
        self.begins: list[Any] = []
        self.cursors: dict[bytes, bytes] = {}
        self.paused: dict[bytes, int] = {}
        """Subscriptions that paused once, and where the last time; they may have been healed."""

    # ---- saying ----

    def say(self) -> None:
        kind = self.rng.choice(REQUESTS)
        values = self._values(kind)
        if values is None:
            return
        if self.rng.random() < 0.3:
            self.wire.send(fr.CoordPing(nonce=len(self.sent)))
        request_id = len(self.sent) + 1
        self.sent[request_id] = kind
        self.wire.send(fr.FRAMES[kind](request_id=request_id, **values))

    def _values(self, kind: FrameType) -> dict[str, Any] | None:
        rng, rooted = self.rng, {"authority_guard": self.guard}
        credit = {"initial_credit_count": rng.choice([0, 1, 5]), "initial_credit_bytes": rng.choice([0, 5_000])}
        if kind is FrameType.COORD_COMMAND:
            return {**rooted, **self._command()}
        if kind is FrameType.GET_OPERATION_RESULT:
            return {**rooted, "operation_id": id16(rng.randrange(1, 60))}
        if kind is FrameType.OPEN_SNAPSHOT:
            reserve = rng.random() < 0.5
            replaced = rng.choice([None, *self.paused, id16(5)]) if reserve else None
            return {**rooted, "selector": 0, "reserve_subscription": reserve, "replace_paused_subscription": replaced}
        if kind is FrameType.SUBSCRIBE:
            return {**rooted, "after_event_sequence": rng.randrange(60), **credit}
        if kind is FrameType.OPEN_REPLAY:
            self.hear()  # of every pause: a replay from another cut than its own would be fatal
            subscription, cut = rng.choice([*self.paused.items(), (id16(5), 0)])
            return {**rooted, "subscription_id": subscription, "after_event_sequence": cut}
        return self._continuation(kind, credit)

    def _command(self) -> dict[str, Any]:
        number = self.rng.randrange(1, 30)
        values: dict[str, Any] = {"objective_id": id16(number), "schema": 1, "document": bytes(self.rng.randrange(300))}
        create = self.rng.random() < 0.6
        payload = CreateObjective(**values) if create else UpdateObjective(**values)
        kind = CommandKind.CREATE_OBJECTIVE if create else CommandKind.UPDATE_OBJECTIVE
        return {"operation_id": id16(self.rng.randrange(1, 60)), "command_kind": int(kind), "payload": payload.body()}

    def _continuation(self, kind: FrameType, credit: dict[str, int]) -> dict[str, Any] | None:
        snapshot = kind in (FrameType.SNAPSHOT_NEXT, FrameType.SNAPSHOT_APPLIED)
        known = [begin for begin in self.begins if isinstance(begin, fr.SnapshotBegin) is snapshot]
        if not known:
            return None
        begin = self.rng.choice(known[-3:])
        lease = begin.snapshot_id if snapshot else begin.replay_id
        named = {"snapshot_id" if snapshot else "replay_id": lease}
        if kind in (FrameType.SNAPSHOT_NEXT, FrameType.REPLAY_NEXT):
            cursor = self.cursors.get(lease, b"gone") if self.rng.random() < 0.9 else b"wrong"
            return {**named, "cursor": cursor}
        if begin.subscription_id is None:
            credit = dict.fromkeys(credit, 0)
        return {**named, "subscription_id": begin.subscription_id, **credit}

    # ---- hearing ----

    def hear(self) -> None:
        while frames := self.wire.received():
            for frame in frames:
                self._take(frame)

    def _take(self, frame: fr.Frame) -> None:
        if isinstance(frame, fr.Gap):
            self.paused[frame.subscription_id] = frame.last_contiguous_event
        request_id = getattr(frame, "request_id", None)
        if request_id is None:
            return
        assert self.ended[request_id] == 0, f"{type(frame).__name__} behind the end of request {request_id}"
        kind = self.sent[request_id]
        assert frame.TYPE in (*FRAME_TABLE[kind].replies, FrameType.COORD_ERROR)
        if isinstance(frame, BEGINS | PAGES) and self._more(frame):
            assert request_id not in self.expects_end
            self.expects_end.add(request_id)
            return
        assert (request_id in self.expects_end) is isinstance(frame, fr.SnapshotEnd | fr.ReplayEnd)
        self.expects_end.discard(request_id)
        self.ended[request_id] += 1
        self.outcomes[kind, frame.TYPE] += 1

    def _more(self, frame: Any) -> bool:
        """Whether END follows, which then is the terminal reply (P13-09)."""
        lease = frame.snapshot_id if isinstance(frame, fr.SnapshotBegin | fr.SnapshotPage) else frame.replay_id
        begun = isinstance(frame, BEGINS)
        if begun:
            self.begins.append(frame)
        cursor = frame.first_cursor if begun else frame.next_cursor
        if cursor is None:
            self.cursors.pop(lease, None)
            return True
        self.cursors[lease] = cursor
        return False
