"""A blocking client: one connection, its requests, its subscriptions (parts P8, P9, P10 and P13).

`pump` takes one frame from the wire and gives it to whom it belongs; a call that waits pumps until its answer is there.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.interop.phux import enums as e
from tests.interop.phux import proof
from tests.interop.phux import records as r
from tests.interop.phux.connection import Closed, Connection, Fatal
from tests.interop.phux.frames import Frame, Type
from tests.interop.phux.handshake import Offer, Session, log_in
from tests.interop.phux.proof import NotTrusted, Pins
from tests.interop.phux.stream import NotContinuous, Phase, Replay, Snapshot, Stream, View
from tests.interop.phux.tlv import Malformed

FATAL = {
    e.ErrorCode.VERSION_INCOMPATIBLE,
    e.ErrorCode.FRAME_TOO_LARGE,
    e.ErrorCode.MALFORMED_MESSAGE,
    e.ErrorCode.PROTOCOL_ERROR,
    e.ErrorCode.AUTHENTICATION_FAILED,
    e.ErrorCode.STALE_AUTHORITY,
    e.ErrorCode.AUTHORITY_FENCED,
}
# What is still heard after the certificate ran out: why the server ends, or a renewal that was read late.
LAST_WORDS = {Type.GAP, Type.COORD_ERROR, Type.COORD_AUTHORITY_RENEWED}
# Request type -> the frames that may answer it, in order of the exchange (table of frames).
ANSWERS: dict[Type, tuple[Type, ...]] = {
    Type.COORD_COMMAND: (Type.COORD_COMMAND_RESULT,),
    Type.GET_OPERATION_RESULT: (Type.OPERATION_RESULT,),
    Type.OPEN_SNAPSHOT: (Type.SNAPSHOT_BEGIN, Type.SNAPSHOT_END),
    Type.SNAPSHOT_NEXT: (Type.SNAPSHOT_PAGE, Type.SNAPSHOT_END),
    Type.SNAPSHOT_APPLIED: (Type.ACK,),
    Type.SUBSCRIBE: (Type.SUBSCRIBED,),
    Type.OPEN_REPLAY: (Type.REPLAY_BEGIN, Type.REPLAY_END),
    Type.REPLAY_NEXT: (Type.REPLAY_PAGE, Type.REPLAY_END),
    Type.REPLAY_APPLIED: (Type.ACK,),
}


class Scoped(Exception):  # noqa: N818 - what happened
    """A request was refused; the connection stays."""

    def __init__(self, code: e.ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


def is_terminal(frame: Frame) -> bool:
    """Whether a request ends with this reply: a cursor says that no END follows (P9-17 to P9-20, P13-09)."""
    if frame.type in {Type.SNAPSHOT_BEGIN, Type.REPLAY_BEGIN}:
        return frame["first_cursor"] is not None
    if frame.type in {Type.SNAPSHOT_PAGE, Type.REPLAY_PAGE}:
        return frame["next_cursor"] is not None
    return True


@dataclass
class Request:
    """A request that waits, or its whole answer."""

    type: Type
    on_reply: Callable[[Frame], None]
    replies: list[Frame] = field(default_factory=list)
    error: e.ErrorCode | None = None
    done: bool = False
    subscription_id: bytes | None = None

    def take(self, reply: Frame) -> None:
        """The next reply in its place (P13-08). Raises NotContinuous."""
        order = ANSWERS[self.type]
        if len(self.replies) >= len(order) or reply.type is not order[len(self.replies)]:
            raise NotContinuous(f"{reply.type.name} answers {self.type.name}")
        self.replies.append(reply)
        self.done = is_terminal(reply)
        self.on_reply(reply)


class Client:
    """A logged-in client. Use as a context; leaving it closes the connection."""

    def __init__(self, connection: Connection, session: Session, pins: Pins) -> None:
        self.connection = connection
        self.session = session
        self.certificate = session.certificate
        self.guard = proof.guard_of(session.certificate)
        self.streams: dict[bytes, Stream] = {}
        self.pongs: list[int] = []
        self.renewals = 0
        self._pins = pins
        self._requests: dict[int, Request] = {}
        self._next_id = 1

    @classmethod
    def connect(cls, path: Path, seed: bytes, pins: Pins, offer: Offer | None = None) -> Client:
        """Log in. Raises what `log_in` raises."""
        connection = Connection(path)
        return cls(connection, log_in(connection, seed, pins, offer or Offer()), pins)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.connection.close()
        for stream in self.streams.values():
            stream.phase = Phase.CLOSED

    # ---- the wire ----

    def pump(self) -> Frame:
        """Take one frame and act on it; it. Raises Fatal, Closed, Violation, NotTrusted."""
        frame = self.connection.receive()
        if time.time() >= self.certificate.expires_at and frame.type not in LAST_WORDS:  # P12-18
            self.close()
            raise NotTrusted("the certificate ran out without a renewal")
        try:
            self._dispatch(frame)
        except (NotContinuous, Malformed) as error:
            self.connection.refuse(e.ErrorCode.PROTOCOL_ERROR, f"{frame.type.name}: {error}")
        return frame

    def pump_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.pump()

    def _dispatch(self, frame: Frame) -> None:
        if frame.type is Type.COORD_PING:
            self.connection.send(Type.COORD_PONG, nonce=frame["nonce"])
        elif frame.type is Type.COORD_PONG:
            self.pongs.append(frame["nonce"])
        elif frame.type is Type.COORD_AUTHORITY_RENEWED:
            renewed: r.Certificate = frame["activation_certificate"]
            proof.check_renewal(self.certificate, renewed, self._pins, time.time())
            self.certificate = renewed
            self.renewals += 1
        elif frame.type is Type.COORD_EVENT:
            self._stream(frame).deliver(frame)
        elif frame.type is Type.GAP:
            self._stream(frame).take_gap(frame, self._replay_asked(frame["subscription_id"]))
        elif frame.type is Type.COORD_ERROR:
            self._error(frame)
        else:
            self._answer(frame)

    def _stream(self, frame: Frame) -> Stream:
        if frame["subscription_id"] not in self.streams:
            raise NotContinuous("a subscription that is not ours")
        return self.streams[frame["subscription_id"]]

    def _replay_asked(self, subscription_id: bytes) -> bool:
        return any(
            request.type is Type.OPEN_REPLAY and request.subscription_id == subscription_id and not request.done
            for request in self._requests.values()
        )

    def _error(self, frame: Frame) -> None:
        request = self._requests.get(frame["request_id"] or 0)
        if request is None or request.done or frame["code"] in FATAL:
            self.close()
            raise Fatal(frame["code"], frame["request_id"])
        request.error = frame["code"]
        request.done = True

    def _answer(self, frame: Frame) -> None:
        request = self._requests.get(frame["request_id"])
        if request is None or request.done:
            raise NotContinuous(f"{frame.type.name} for a request that does not wait")
        request.take(frame)

    # ---- requests ----

    def request(self, request_type: Type, on_reply: Callable[[Frame], None] = lambda _: None, **values: Any) -> int:
        """Send a request without waiting; its id. State-rooting requests get the guard here (P4-10)."""
        request_id: int = values.pop("request_id", self._next_id)
        self._next_id = max(self._next_id, request_id) + 1
        if request_type in {
            Type.COORD_COMMAND,
            Type.GET_OPERATION_RESULT,
            Type.OPEN_SNAPSHOT,
            Type.SUBSCRIBE,
            Type.OPEN_REPLAY,
        }:
            values.setdefault("authority_guard", self.guard)
        self._requests[request_id] = Request(request_type, on_reply, subscription_id=values.get("subscription_id"))
        self.connection.send(request_type, request_id=request_id, **values)
        return request_id

    def wait(self, request_id: int) -> Frame:
        """The terminal reply. Raises Scoped."""
        request = self._requests[request_id]
        self.pump_until(lambda: request.done)
        del self._requests[request_id]
        if request.error is not None:
            raise Scoped(request.error)
        return request.replies[-1]

    def call(self, request_type: Type, on_reply: Callable[[Frame], None] = lambda _: None, **values: Any) -> Frame:
        return self.wait(self.request(request_type, on_reply, **values))

    def ping(self, nonce: int | None = None) -> None:
        """Ping and wait for the same nonce: everything sent before has been looked at."""
        nonce = secrets.randbits(64) if nonce is None else nonce
        self.connection.send(Type.COORD_PING, nonce=nonce)
        self.pump_until(lambda: nonce in self.pongs)

    def wait_closed(self) -> e.ErrorCode | None:
        """Take what comes until the server closes; the code of its last words."""
        try:
            while True:
                self.pump()
        except Closed:
            return None
        except Fatal as fatal:
            return fatal.code

    # ---- commands ----

    def send_command(
        self,
        kind: e.CommandKind,
        values: Mapping[str, Any],
        preconditions: Sequence[r.Precondition] = (),
        operation_id: bytes | None = None,
    ) -> int:
        """Send a command; its request id. Without an operation id a fresh one is drawn."""
        return self.request(
            Type.COORD_COMMAND,
            operation_id=operation_id or secrets.token_bytes(16),
            command_kind=kind,
            payload=r.COMMAND_PAYLOADS[kind].encode(values),
            preconditions=preconditions or None,
        )

    def command(
        self,
        kind: e.CommandKind,
        values: Mapping[str, Any],
        preconditions: Sequence[r.Precondition] = (),
        operation_id: bytes | None = None,
    ) -> Any:
        """The operation's result. Raises Scoped."""
        return self.wait(self.send_command(kind, values, preconditions, operation_id))["operation"]

    def lookup(self, operation_id: bytes) -> Any:
        """The stored result, or Unknown. Raises Scoped."""
        return self.call(Type.GET_OPERATION_RESULT, operation_id=operation_id)["operation"]

    # ---- snapshots ----

    def open_snapshot(self, *, reserve: bool = False, replace: Stream | None = None) -> Snapshot:
        """Open one; it is complete already when it is empty. Raises Scoped."""
        opened: list[Snapshot] = []

        def on_reply(frame: Frame) -> None:
            if frame.type is Type.SNAPSHOT_END:
                opened[0].finish(frame)
                return
            snapshot = Snapshot(frame, self.guard, self.connection.limits["max_page_records"])
            if (frame["subscription_id"] is not None) is not reserve:
                raise NotContinuous("a subscription that was not asked for, or none")
            if reserve:
                snapshot.stream = Stream(frame["subscription_id"], Phase.RESERVED, snapshot.base, None)
                self.streams[snapshot.stream.id] = snapshot.stream
            if replace:
                replace.phase = Phase.CLOSED
            opened.append(snapshot)

        self.call(
            Type.OPEN_SNAPSHOT,
            on_reply,
            selector=e.Selector.WHOLE_AUTHORITY,
            reserve_subscription=reserve,
            replace_paused_subscription=replace.id if replace else None,
        )
        return opened[0]

    def next_page(self, snapshot: Snapshot) -> None:
        """One page, and the end after the last."""

        def on_reply(frame: Frame) -> None:
            (snapshot.add if frame.type is Type.SNAPSHOT_PAGE else snapshot.finish)(frame)

        self.call(Type.SNAPSHOT_NEXT, on_reply, snapshot_id=snapshot.id, cursor=snapshot.pages.cursor)

    def read_snapshot(self, *, reserve: bool = False, replace: Stream | None = None) -> Snapshot:
        """A whole verified snapshot."""
        snapshot = self.open_snapshot(reserve=reserve, replace=replace)
        while not snapshot.pages.ended:
            self.next_page(snapshot)
        return snapshot

    def apply_snapshot(self, snapshot: Snapshot, count: int = 0, size: int = 0) -> None:
        """Tell that it was applied; gives a reserved subscription its one initial credit (P9-23)."""
        stream = snapshot.stream
        self.call(
            Type.SNAPSHOT_APPLIED,
            (lambda _: stream.resume(count, size)) if stream else (lambda _: None),
            snapshot_id=snapshot.id,
            subscription_id=stream.id if stream else None,
            initial_credit_count=count,
            initial_credit_bytes=size,
        )

    # ---- subscriptions ----

    def subscribe(self, after: int, view: View | None, count: int = 0, size: int = 0) -> Stream:
        """A direct subscription to what follows the cut at which `view` stands. Raises Scoped."""
        made: list[Stream] = []

        def on_reply(frame: Frame) -> None:
            if frame["next_delivery_sequence"] != 1:  # P10-03
                raise NotContinuous("a new subscription that does not start at 1")
            stream = Stream(frame["subscription_id"], Phase.LIVE, after, view)
            stream.resume(count, size)
            self.streams[stream.id] = stream
            made.append(stream)

        self.call(
            Type.SUBSCRIBE,
            on_reply,
            after_event_sequence=after,
            initial_credit_count=count,
            initial_credit_bytes=size,
        )
        return made[0]

    def give_credit(self, stream: Stream, count: int, size: int) -> None:
        stream.add_credit(count, size)
        self.connection.send(Type.CREDIT, subscription_id=stream.id, add_count=count, add_bytes=size)

    # ---- replays ----

    def open_replay(self, stream: Stream) -> Replay:
        """Open a replay of a paused subscription from its last contiguous event. Raises Scoped."""
        opened: list[Replay] = []

        def on_reply(frame: Frame) -> None:
            if frame.type is Type.REPLAY_END:
                opened[0].finish(frame)
            else:
                opened.append(Replay(frame, stream, self.guard, self.connection.limits["max_page_records"]))

        self.call(Type.OPEN_REPLAY, on_reply, subscription_id=stream.id, after_event_sequence=stream.cut)
        return opened[0]

    def next_replay_page(self, replay: Replay) -> None:
        """One page, and the end after the last."""

        def on_reply(frame: Frame) -> None:
            (replay.add if frame.type is Type.REPLAY_PAGE else replay.finish)(frame)

        self.call(Type.REPLAY_NEXT, on_reply, replay_id=replay.id, cursor=replay.pages.cursor)

    def read_replay(self, stream: Stream) -> Replay:
        """A whole verified replay; the stream's view has it."""
        replay = self.open_replay(stream)
        while not replay.pages.ended:
            self.next_replay_page(replay)
        return replay

    def apply_replay(self, replay: Replay, count: int, size: int) -> None:
        """Resume the subscription with new credit (P10-33)."""
        self.call(
            Type.REPLAY_APPLIED,
            lambda _: replay.resume(count, size),
            replay_id=replay.id,
            subscription_id=replay.stream.id,
            initial_credit_count=count,
            initial_credit_bytes=size,
        )
