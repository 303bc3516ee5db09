"""What one connection does between its first byte and its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cext.frame import encode_frame
from sidecar.base.ed25519 import SigningKey
from sidecar.base.secret import Secret
from sidecar.coordinator.engine.connection import Connection
from sidecar.coordinator.machines.connection import ConnectionState
from sidecar.coordinator.machines.subscription import SubscriptionState
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire import payloads as pl
from sidecar.coordinator.wire.enums import CommandKind, EndReason, ErrorCode, FrameType, ObjectKind
from sidecar.coordinator.wire.ids import (
    ArtifactId,
    BindingId,
    ObjectId,
    ObjectiveId,
    RunId,
    SignalId,
    SubscriptionId,
)
from sidecar.coordinator.wire.limits import RETENTION_FLOOR
from sidecar.coordinator.wire.records import ObjectRef, Precondition
from tests.unit.engine.harness import id16, objective
from tests.unit.session.bench import STRANGER_KEY, Wire, hello
from tests.unit.session.bodies import hello_body
from tests.unit.session.speaker import Speaker

if TYPE_CHECKING:
    from tests.sim.lifecycle import Street

KEYS = [SigningKey(Secret(bytes([0x60 + number]) * 32)) for number in range(6)]
CAPABILITIES = 0x1D
"""What this server offers: everything but TERMINAL_BINDINGS."""
ROOMS: tuple[dict[str, int], ...] = (
    {},
    {"max_frame_bytes": 16_384, "max_page_bytes": 4_096, "max_page_records": 3, "max_typed_payload_bytes": 2_048},
    {"max_frame_bytes": 16_384, "max_page_bytes": 4_096, "max_page_records": 3, "max_typed_payload_bytes": 200},
)
"""Limits that a client may ask for; under the last one some events are too large."""


class Resident(Speaker):
    """Says legal things of every kind, and mostly the ones that lead somewhere."""

    def __init__(self, wire: Wire, street: Street) -> None:
        super().__init__(wire, street.rng)
        self.street = street

    def _values(self, kind: FrameType) -> dict[str, Any] | None:
        head = self.street.world.disk.last_sequence
        values = super()._values(kind)
        if values is not None and kind is FrameType.SUBSCRIBE:
            values["after_event_sequence"] = max(0, head - self.rng.choice((0, 0, 0, 0, 3, 900)))
        return values

    def _command(self) -> dict[str, Any]:
        rng, said = self.rng, self.street.said
        if said and rng.random() < 0.1:
            return rng.choice(said)
        kind = rng.choice((*CommandKind, *[CommandKind.UPDATE_OBJECTIVE] * 6))
        operation = id16(rng.choice((1 + rng.randrange(40), 1_000 + rng.getrandbits(60))))
        held = [objective(rng.randrange(1, 9), rng.randrange(3))] if rng.random() < 0.2 else []
        if kind is CommandKind.REGISTER_ARTIFACT_MANIFEST:
            held = [Precondition(ObjectRef(ObjectKind.WORK_SESSION, ObjectId(id16(rng.randrange(1, 10)))), 1)]
        values = {
            "operation_id": operation,
            "command_kind": int(kind),
            "payload": self._payload(kind).body(),
            "preconditions": tuple(held),
        }
        said.append(values)
        return values

    def _payload(self, kind: CommandKind) -> pl.CommandPayload:
        rng = self.rng
        ident = id16(rng.randrange(1, 10))
        document: dict[str, Any] = {
            "objective_id": ObjectiveId(ident),
            "schema": 1,
            "document": bytes(rng.randrange(400)),
        }
        makers: dict[CommandKind, Callable[[], pl.CommandPayload]] = {
            CommandKind.CREATE_OBJECTIVE: lambda: pl.CreateObjective(**document),
            CommandKind.UPDATE_OBJECTIVE: lambda: pl.UpdateObjective(**document),
            CommandKind.CANCEL_RUN: lambda: pl.CancelRun(run_id=RunId(ident)),
            CommandKind.PAUSE_RUN: lambda: pl.PauseRun(run_id=RunId(ident)),
            CommandKind.RESUME_RUN: lambda: pl.ResumeRun(run_id=RunId(ident)),
            CommandKind.ACK_SIGNAL: lambda: pl.AckSignal(signal_id=SignalId(ident), note="seen"),
            CommandKind.SUPPRESS_SIGNAL: lambda: pl.SuppressSignal(signal_id=SignalId(ident)),
            CommandKind.REGISTER_ARTIFACT_MANIFEST: lambda: pl.RegisterArtifactManifest(
                artifact_id=ArtifactId(ident), revision=rng.randrange(1, 4), schema=1, manifest=b"m"
            ),
            CommandKind.END_BINDING: lambda: pl.EndBinding(binding_id=BindingId(ident), reason=EndReason.CANCELLED),
            CommandKind.CHANGE_RETENTION: lambda: pl.ChangeRetention(
                operation_result_secs=RETENTION_FLOOR,
                event_bytes=rng.choice((8_000, 1 << 26, 1 << 26)),
                artifact_bytes=rng.choice((200, 1 << 20)),
            ),
        }
        # START_RUN is refused for its capability, whatever its payload holds.
        return makers.get(kind, makers[CommandKind.CANCEL_RUN])()

    def command(self) -> None:
        """Something that makes events, mostly."""
        self.ask(FrameType.COORD_COMMAND, {"authority_guard": self.guard, **self._command()})

    def update(self) -> None:
        """A command that succeeds, if it is within the scopes."""
        command = {
            "operation_id": id16(1_000 + self.rng.getrandbits(60)),
            "command_kind": int(CommandKind.UPDATE_OBJECTIVE),
            "payload": pl.UpdateObjective(objective_id=ObjectiveId(id16(1)), schema=1, document=b"").body(),
        }
        self.ask(FrameType.COORD_COMMAND, {"authority_guard": self.guard, **command})

    def follow(self) -> None:
        """The next step of the snapshot or replay that was begun last; a snapshot when there is none."""
        if not self.begins:
            reserve = self.rng.random() < 0.7
            rooted = {"authority_guard": self.guard, "selector": 0, "reserve_subscription": reserve}
            self.ask(FrameType.OPEN_SNAPSHOT, rooted)
            return
        begin = self.begins[-1]
        snapshot = isinstance(begin, fr.SnapshotBegin)
        lease = begin.snapshot_id if snapshot else begin.replay_id
        more = lease in self.cursors
        kinds = {
            (True, True): FrameType.SNAPSHOT_NEXT,
            (True, False): FrameType.SNAPSHOT_APPLIED,
            (False, True): FrameType.REPLAY_NEXT,
            (False, False): FrameType.REPLAY_APPLIED,
        }
        values: dict[str, Any] = {"snapshot_id" if snapshot else "replay_id": lease}
        if more:
            values["cursor"] = self.cursors[lease]
        else:
            credit = self.rng.randrange(4) if begin.subscription_id is not None else 0
            values |= {
                "subscription_id": begin.subscription_id,
                "initial_credit_count": credit,
                "initial_credit_bytes": credit * 300,
            }
            self.begins.pop()
        self.ask(kinds[snapshot, more], values)

    def heal(self) -> None:
        """Ask for a replay, or for a snapshot in the place of what paused."""
        if self.paused:
            subscription, cut = self.rng.choice(list(self.paused.items()))
            rooted = {"authority_guard": self.guard}
            if self.rng.random() < 0.7:
                self.ask(
                    FrameType.OPEN_REPLAY, {**rooted, "subscription_id": subscription, "after_event_sequence": cut}
                )
            else:
                replaced = {"reserve_subscription": True, "replace_paused_subscription": subscription}
                self.ask(FrameType.OPEN_SNAPSHOT, {**rooted, "selector": 0, **replaced})

    def ask(self, kind: FrameType, values: dict[str, Any]) -> None:
        request_id = len(self.sent) + 1
        self.sent[request_id] = kind
        self.wire.send(fr.FRAMES[kind](request_id=request_id, **values))


class Life:
    """One connection. ``over`` once its transport is gone."""

    def __init__(self, street: Street, number: int) -> None:
        self.street, self.rng = street, street.rng
        self.key = KEYS[number]
        self.wire = street.house.open()
        self.speaker: Resident | None = None
        self.patience = self.rng.randrange(1, 20)
        """Things that it still does before it ends."""
        self.over = False
        self.half = False
        """Half a frame was sent; the rest never comes."""

    # ---- its steps ----

    def act(self) -> None:
        """One more thing, which may be the last."""
        state = self.wire.session.state
        if self.wire.session.closing:
            self._closed()
        elif self.half:
            self.rng.choice((self.leave, self._wait))()
        elif state is ConnectionState.PRE:
            self.rng.choice([self._hello] * 10 + [self._fail_before] * 2 + [self.leave])()
        elif state is ConnectionState.CHAL:
            self.rng.choice([self._login] * 10 + [self._fail_challenged] * 2 + [self.leave])()
        elif self.patience <= 0:
            self.rng.choice((self.leave, self.leave, self._misbehave, self._say_goodbye, self._wait))()
        else:
            self.patience -= 1
            for _ in range(self.rng.randrange(1, 4)):
                if not self.wire.session.closing:
                    self._work()

    def speak_up(self) -> None:
        """Send a command that is admitted, if there is room and right for one."""
        if self.speaker is not None and not self.wire.session.closing:
            self.wire.session.set_writable(True)
            self.wire.session.process(self.wire.now)
            self.wire.received()
            if not self.wire.session.closing:
                self.speaker.update()

    def leave(self) -> None:
        """The transport is gone."""
        self.wire.session.eof(self.wire.now)
        self.over = True
        if self.speaker is not None:
            self.street.seen.update(self.speaker.outcomes)

    def _closed(self) -> None:
        """The server closes: the rest of its output is read, or not, and the transport is gone some time later."""
        if self.rng.random() < 0.5:
            self.wire.received()
        if self.rng.random() < 0.5:
            self.leave()

    def _wait(self) -> None:
        """Nothing: the grant may expire, the server may revoke."""
        self.patience += self.rng.randrange(2)

    # ---- the handshake ----

    def _hello(self) -> None:
        if self.rng.random() < 0.2:
            self.wire.send(fr.CoordPing(nonce=1))
            self.wire.received()
        self.wire.hello(
            offered_capabilities=self.rng.choice((0x1F, 0x1F, 0x1F, 0x1, 0)),
            required_capabilities=0,
            **self.rng.choice(ROOMS),
        )

    def _fail_before(self) -> None:
        wrong: tuple[bytes | fr.Frame, ...] = (
            fr.Ack(request_id=1),
            hello(protocol_minor=2),
            hello(offered_capabilities=2, required_capabilities=2),
            hello(max_frame_bytes=0),
            encode_frame(FrameType.COORD_HELLO, hello_body(f4=None)),
            encode_frame(FrameType.COORD_HELLO, b"\x00"),
            b"\xff\xff\xff\xff\x01",
            fr.CoordErrorFrame(code=ErrorCode.INTERNAL, message="no"),
        )
        if self.rng.random() < 0.2:
            self.half = True
            self.wire.send(b"\x00\x00")
            return
        self.wire.send(self.rng.choice(wrong))
        assert self.wire.session.closing

    def _login(self) -> None:
        life = self.rng.choice((2, 60, 3_600, 3_600))
        self.wire.respond(self.key, scopes=self.rng.choice((0x3F, 0x3F, 0x3F, 0x01)), life=life)
        if self.wire.session.state is ConnectionState.ACT:
            self.speaker = Resident(self.wire, self.street)
            self.wire.take(fr.CoordHelloOk)

    def _fail_challenged(self) -> None:
        response = self.wire.response(self.key)
        wrong: tuple[bytes | fr.Frame, ...] = (
            fr.CoordPing(nonce=1),
            hello(),
            self.wire.response(STRANGER_KEY),
            self.wire.response(self.key, life=-1),
            replace_signature(response),
            encode_frame(FrameType.WORKLOAD_RESPONSE, b"\x01"),
            fr.CoordErrorFrame(code=ErrorCode.INTERNAL, message="no"),
        )
        self.wire.send(self.rng.choice(wrong))
        assert self.wire.session.closing

    # ---- the work ----

    def _work(self) -> None:
        speaker, wire, rng = self.speaker, self.wire, self.rng
        assert speaker is not None
        if rng.random() < 0.06:
            wire.session.set_writable(not wire.session.writable)
        if not wire.session.writable:
            # Nobody reads: what is said is not processed until there is room.
            speaker.wire.send(fr.CoordPing(nonce=2))
            return
        wire.session.process(wire.now)
        if speaker.paused and rng.random() < 0.4:
            speaker.heal()
            speaker.hear()
            speaker.follow()
        rng.choice([speaker.say] * 3 + [speaker.command] * 5 + [speaker.follow] * 5 + [self._credit])()
        if rng.random() < 0.8 and not wire.session.closing:
            speaker.hear()

    def _credit(self) -> None:
        conn = self.wire.session.connection
        for id_, sub in [] if conn is None else list(conn.subscriptions.items()):
            if sub.state is SubscriptionState.LIVE and self.wire.session.connection is not None:
                self.wire.send(fr.CreditFrame(subscription_id=SubscriptionId(id_), add_count=1, add_bytes=500))

    def _misbehave(self) -> None:
        """What ends the connection at once."""
        speaker = self.speaker
        assert speaker is not None
        self.wire.session.set_writable(True)
        self.wire.session.process(self.wire.now)
        if self.wire.session.closing or self.wire.session.behind:
            return
        stale = replace(speaker.guard, authority_epoch=99)  # type: ignore[arg-type]
        taken = next(iter(self._connection().requests), None)
        wrong: list[bytes | fr.Frame] = [
            fr.Ack(request_id=1),
            hello(),
            encode_frame(FrameType.COORD_COMMAND, self.rng.randbytes(20)),
            b"\xff\xff\xff\xff\x10",
            fr.CreditFrame(subscription_id=SubscriptionId(id16(77)), add_count=1, add_bytes=1),
            fr.OpenSnapshot(request_id=4_000, authority_guard=stale, selector=0, reserve_subscription=False),
        ]
        if taken is not None:
            wrong.append(
                fr.OpenSnapshot(request_id=taken, authority_guard=speaker.guard, selector=0, reserve_subscription=False)
            )
        self.wire.send(self.rng.choice(wrong))
        assert self.wire.session.closing

    def _say_goodbye(self) -> None:
        self.wire.session.set_writable(True)
        self.wire.send(fr.CoordErrorFrame(code=ErrorCode.INTERNAL, message="bye"))

    def _connection(self) -> Connection:
        conn = self.wire.session.connection
        assert conn is not None
        return conn


def replace_signature(response: fr.WorkloadResponse) -> bytes:
    """The image of a response with another signature."""
    image = bytearray(response.encode())
    image[-1] ^= 1
    return bytes(image)
