"""The legal things that a client of the soak does, and what it must be told about each."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire import payloads as pl
from sidecar.coordinator.wire.enums import Capability, CommandKind, ErrorCode, ObjectKind
from sidecar.coordinator.wire.ids import ArtifactId, ObjectId, ObjectiveId, OperationId, RunId, SignalId
from sidecar.coordinator.wire.records import ObjectRef, Precondition, Succeeded, Unknown, encode_operation
from tests.e2e import seeding
from tests.soak import wrongs
from tests.soak.streams import Healing, Reading, Stream
from tests.soak.talk import PATIENCE, Talk
from tests.soak.truth import Failed, Truth

E = ErrorCode
LEASE = 50.0
"""Seconds after which a lease may be over; it lasts 60."""
WORK_READ, WORK_COMMAND = 0x1, 0x2
NOBODY = b"\xfe" * 16
"""An id of nothing."""
SEEDED = seeding.ids(2)


@dataclass
class Objective:
    """An objective that one client alone changes."""

    id: bytes
    acked: list[tuple[int, int]] = field(default_factory=list)
    """Event and revision of each change that was acknowledged."""
    pending: dict[str, Any] | None = None
    """A command whose result is not known: it is sent again until it is."""
    sent: bool = False
    """It is under way on the present connection."""

    @property
    def revision(self) -> int:
        return self.acked[-1][1] if self.acked else 0

    def at(self, cut: int) -> int:
        """Its revision in the state of that cut."""
        return max((revision for event, revision in self.acked if event <= cut), default=0)


class Acts:
    """What one client does. It remembers its work over its connections."""

    def __init__(self, truth: Truth, rng: random.Random, key_id: bytes, number: int) -> None:
        self.truth, self.rng, self.key_id = truth, rng, key_id
        self.objectives = [Objective(((number << 32) + at).to_bytes(16, "big")) for at in range(3)]
        self.done: deque[dict[str, Any]] = deque(maxlen=30)

    async def act(self, talk: Talk) -> None:
        """One more thing."""
        kinds: list[tuple[int, Callable[[Talk], Any]]] = [
            (24, self.work),
            (5, self.shared_work),
            (6, self.repeat),
            (3, self.conflict),
            (8, self.wrong),
            (7, self.lookup),
            (4, self.open_snapshot),
            (28, self.follow),
            (6, self.subscribe),
            (10, self.credit),
            (20, self.heal),
            (3, self.ping),
            (3, self.stall),
            (2, self.slow),
            (1, self.hoard),
        ]
        choice = self.rng.choices([act for _, act in kinds], [weight for weight, _ in kinds])[0]
        asked = choice(talk)
        if asyncio.iscoroutine(asked):
            asked = await asked
        if isinstance(asked, asyncio.Future) and talk.reading.is_set() and self.rng.random() < 0.6:
            done, _ = await asyncio.wait([asked], timeout=PATIENCE)
            if not done:
                raise Failed(f"{talk.name}: never answered: {sorted(talk.asked)}\n" + "\n  ".join(talk.history))

    def parted(self) -> None:
        """The connection is over: what it did not answer is asked again on the next one."""
        for objective in self.objectives:
            objective.sent = False

    def _then(
        self, talk: Talk, asked: asyncio.Future[fr.Frame], check: Callable[[Any], None]
    ) -> asyncio.Future[fr.Frame]:
        def done(future: asyncio.Future[fr.Frame]) -> None:
            if not future.cancelled():
                try:
                    check(future.result())
                except Exception as error:
                    self.truth.fail(error, talk.name, tuple(talk.history))

        asked.add_done_callback(done)
        return asked

    # ---- commands ----

    def _command(self, talk: Talk, values: dict[str, Any], allowed: Iterable[ErrorCode]) -> asyncio.Future[fr.Frame]:
        frame = fr.CoordCommand(request_id=next(talk.requests), authority_guard=talk.guard, **values)
        return talk.ask(frame, allowed)

    def work(self, talk: Talk) -> asyncio.Future[fr.Frame] | None:
        """The next change of one of its own objectives; it is known in advance how it ends."""
        objective = self.rng.choice(self.objectives)
        if objective.sent or (objective.pending is None and not self.truth.may_operate()):
            return None
        if objective.pending is None:
            objective.pending = self._change(talk, objective)
        objective.sent = True
        may = bool(talk.scopes & WORK_COMMAND)
        asked = self._command(talk, objective.pending, () if may else (E.SCOPE_DENIED,))
        return self._then(talk, asked, lambda reply: self._worked(objective, reply))

    def _change(self, talk: Talk, objective: Objective) -> dict[str, Any]:
        values: dict[str, Any] = {
            "objective_id": ObjectiveId(objective.id),
            "schema": 1,
            "document": self.rng.randbytes(self.rng.choice((10, 100, 100, 900))),
        }
        new = objective.revision == 0
        payload = pl.CreateObjective(**values) if new else pl.UpdateObjective(**values)
        ref = ObjectRef(ObjectKind.OBJECTIVE, ObjectId(objective.id))
        held = (Precondition(ref, objective.revision),) if talk.scopes & WORK_READ else ()
        return {
            "operation_id": OperationId(self.rng.randbytes(16)),
            "command_kind": int(CommandKind.CREATE_OBJECTIVE if new else CommandKind.UPDATE_OBJECTIVE),
            "payload": payload.body(),
            "preconditions": held,
        }

    def _worked(self, objective: Objective, reply: Any) -> None:
        command, objective.pending, objective.sent = objective.pending, None, False
        assert command is not None
        if isinstance(reply, fr.CoordCommandResult):
            result = self._succeeded(command, reply)
            objective.acked.append((int(result.completed_event_sequence), objective.revision + 1))

    def _succeeded(self, command: dict[str, Any], reply: fr.CoordCommandResult) -> Succeeded:
        if not isinstance(reply.operation, Succeeded):
            raise Failed(f"a command ended as {reply.operation!r}")
        self.truth.answered(command["operation_id"], self.key_id, encode_operation(reply.operation))
        self.done.append(command)
        return reply.operation

    def shared_work(self, talk: Talk) -> asyncio.Future[fr.Frame] | None:
        """A command on what everybody may change: it succeeds, or there is a reason why not."""
        if not self.truth.may_operate():
            return None
        made = self.rng.choice(SEEDED)
        run = self.rng.choice((made.running, made.paused, made.planned, RunId(NOBODY)))
        session = ObjectRef(ObjectKind.WORK_SESSION, ObjectId(made.sessions[made.running]))
        manifest = pl.RegisterArtifactManifest(
            artifact_id=ArtifactId(made.artifact), revision=self.rng.randrange(1, 9), schema=1, manifest=b"{}"
        )
        signal = SignalId(self.rng.choice((*made.open_signals, NOBODY)))
        kind, payload = self.rng.choice(
            (
                (CommandKind.PAUSE_RUN, pl.PauseRun(run_id=run).body()),
                (CommandKind.RESUME_RUN, pl.ResumeRun(run_id=run).body()),
                (CommandKind.ACK_SIGNAL, pl.AckSignal(signal_id=signal).body()),
                (CommandKind.SUPPRESS_SIGNAL, pl.SuppressSignal(signal_id=signal, note="noise").body()),
                (CommandKind.REGISTER_ARTIFACT_MANIFEST, manifest.body()),
            )
        )
        command = {
            "operation_id": OperationId(self.rng.randbytes(16)),
            "command_kind": int(kind),
            "payload": payload,
            "preconditions": (Precondition(session, 1),)
            if kind is CommandKind.REGISTER_ARTIFACT_MANIFEST and talk.scopes & WORK_READ
            else (),
        }
        reasons = (E.REVISION_CONFLICT, E.NOT_FOUND, E.SCOPE_DENIED, E.CAPABILITY_REQUIRED)
        asked = self._command(talk, command, reasons)

        def check(reply: Any) -> None:
            if isinstance(reply, fr.CoordCommandResult):
                self._succeeded(command, reply)

        return self._then(talk, asked, check)

    def repeat(self, talk: Talk) -> asyncio.Future[fr.Frame] | None:
        """A command that was answered before: the same answer."""
        if not self.done:
            return None
        command = self.rng.choice(self.done)
        return self._then(talk, self._command(talk, command, ()), lambda reply: void(self._succeeded(command, reply)))

    def conflict(self, talk: Talk) -> asyncio.Future[fr.Frame] | None:
        """A used operation id for something else."""
        if not self.done:
            return None
        command = {
            **self.rng.choice(self.done),
            "command_kind": int(CommandKind.PAUSE_RUN),
            "payload": pl.PauseRun(run_id=RunId(NOBODY)).body(),
        }
        return self._then(talk, self._command(talk, command, (E.OPERATION_CONFLICT,)), must_be_refused)

    def wrong(self, talk: Talk) -> asyncio.Future[fr.Frame]:
        """What is refused for a reason that is known in advance."""
        frame, codes = wrongs.scoped(self.rng, talk)
        return self._then(talk, talk.ask(frame, codes), must_be_refused)

    def lookup(self, talk: Talk) -> asyncio.Future[fr.Frame]:
        """The result of an operation of anybody, or of none."""
        known = list(self.truth.results)[-200:]
        operation = self.rng.choice(known) if known and self.rng.random() < 0.8 else self.rng.randbytes(16)
        frame = fr.GetOperationResult(
            request_id=next(talk.requests), authority_guard=talk.guard, operation_id=OperationId(operation)
        )
        sees = talk.visibility.operations

        def check(reply: Any) -> None:
            if not sees:
                must_be_refused(reply)
                return
            principal, image = self.truth.results.get(operation, (b"", b""))
            visible = principal and talk.visibility.sees(ObjectKind.OPERATION, principal)
            expected = image if visible else encode_operation(Unknown())
            if encode_operation(reply.operation) != expected:
                raise Failed(f"the lookup of {operation.hex()} tells {reply.operation!r}")

        return self._then(talk, talk.ask(frame, () if sees else (E.NOT_FOUND,)), check)

    # ---- snapshots and streams ----

    def open_snapshot(self, talk: Talk, replaced: bytes | None = None) -> asyncio.Future[fr.Frame]:
        """OPEN_SNAPSHOT, with a subscription or without, or in the place of one."""
        frame = fr.OpenSnapshot(
            request_id=next(talk.requests),
            authority_guard=talk.guard,
            selector=0,
            reserve_subscription=replaced is not None or self.rng.random() < 0.6,
            replace_paused_subscription=replaced,  # type: ignore[arg-type]
        )
        return talk.ask(frame, (E.RESOURCE_EXHAUSTED,))

    def check_snapshot(self, reading: Reading) -> None:
        """What was acknowledged before its cut is in it, and nothing that was not done (P8-17)."""
        base = int(reading.begin.base_event_sequence)
        if not reading.objectives:
            return  # no objective is visible to this principal
        for objective in self.objectives:
            known, found = objective.at(base), reading.objectives.get(objective.id, 0)
            if found != known and not (objective.pending is not None and found == objective.revision + 1):
                raise Failed(f"objective {objective.id.hex()}: revision {found} at {base}, acknowledged was {known}")

    def follow(self, talk: Talk) -> asyncio.Future[fr.Frame] | None:
        """The next step of a snapshot or replay; now and then one is left as it is."""
        held: list[tuple[bytes, Reading | Healing]] = [*talk.readings.items(), *list(talk.healings.items()) * 4]
        held = [(id_, one) for id_, one in held if not one.busy]
        if not held:
            return None
        id_, one = self.rng.choice(held)
        if self.rng.random() < 0.03 or time.monotonic() - one.opened > LEASE:
            talk.readings.pop(id_, None)
            if talk.healings.pop(id_, None) is not None:
                stream = talk.streams.get(one.begin.subscription_id or b"")
                if stream is not None:
                    stream.busy = stream.abandoned = True  # left alone until the connection ends
            return None
        one.busy = True
        asked = talk.ask(self._step(talk, id_, one), (E.CURSOR_INVALID,))
        return self._then(talk, asked, lambda reply: self._stepped(talk, id_, one, reply))

    def _step(self, talk: Talk, id_: bytes, one: Reading | Healing) -> fr.Frame:
        snapshot = isinstance(one, Reading)
        values: dict[str, Any] = {"request_id": next(talk.requests), "snapshot_id" if snapshot else "replay_id": id_}
        if one.cursor is not None:
            values["cursor"] = one.cursor
            return fr.SnapshotNext(**values) if snapshot else fr.ReplayNext(**values)
        count = self.rng.choice((0, 3, 50)) if one.begin.subscription_id is not None else 0
        values |= {
            "subscription_id": one.begin.subscription_id,
            "initial_credit_count": count,
            "initial_credit_bytes": count * 400,
        }
        return fr.SnapshotApplied(**values) if snapshot else fr.ReplayApplied(**values)

    def _stepped(self, talk: Talk, id_: bytes, one: Reading | Healing, reply: Any) -> None:
        one.busy = False
        stream = talk.streams.get(one.begin.subscription_id or b"")
        if isinstance(reply, fr.CoordErrorFrame):
            lost = one.lost if isinstance(one, Reading) else id_ not in talk.healings
            if reply.code is E.CURSOR_INVALID and not lost and time.monotonic() - one.opened < LEASE:
                raise Failed("a lease that is good was refused")
            talk.readings.pop(id_, None)
            talk.healings.pop(id_, None)
        if isinstance(one, Healing) and stream is not None and id_ not in talk.healings:
            stream.busy = False

    def subscribe(self, talk: Talk) -> asyncio.Future[fr.Frame] | None:
        """A direct subscription, mostly from where the others are."""
        if len(talk.streams) > 5:
            return None
        return self._subscribe(talk, self.rng.choice((0, 5, 50)))

    def hoard(self, talk: Talk) -> None:
        """Many subscriptions that are given nothing."""
        for _ in range(20 - len(talk.streams)):
            self._subscribe(talk, 0)

    def _subscribe(self, talk: Talk, count: int) -> asyncio.Future[fr.Frame]:
        recorded = self.truth.recorded
        frame = fr.Subscribe(
            request_id=next(talk.requests),
            authority_guard=talk.guard,
            after_event_sequence=max(0, recorded - self.rng.choice((0, 0, 20, 2_000))),  # type: ignore[arg-type]
            initial_credit_count=count,
            initial_credit_bytes=count * 400,
        )
        return talk.ask(frame, (E.RESOURCE_EXHAUSTED,))

    def credit(self, talk: Talk) -> None:
        """CREDIT for what is live, never above the maximum."""
        for id_, stream in talk.streams.items():
            if stream.live and self.rng.random() < 0.7:
                count = min(self.rng.choice((1, 10, 100)), talk.selected.credit_count - stream.count)
                nbytes = min(self.rng.choice((1, 1_000, 40_000)), talk.selected.credit_bytes - stream.nbytes)
                frame = fr.CreditFrame(subscription_id=id_, add_count=count, add_bytes=nbytes)  # type: ignore[arg-type]
                stream.give(count, nbytes)
                talk.link.send(frame)

    def heal(self, talk: Talk) -> asyncio.Future[fr.Frame] | None:
        """A replay of what paused, or a snapshot in its place."""
        paused = [(id_, stream) for id_, stream in talk.streams.items() if stream.paused and not stream.busy]
        if not paused:
            return None
        id_, stream = self.rng.choice(paused)
        stream.busy = True
        if stream.lost or self.rng.random() < (0.8 if stream.outlived else 0.1):
            return self._then(talk, self.open_snapshot(talk, id_), lambda _: free(stream))
        replays = bool(talk.capabilities & Capability.EVENT_REPLAY)
        frame = fr.OpenReplay(
            request_id=next(talk.requests),
            authority_guard=talk.guard,
            subscription_id=id_,  # type: ignore[arg-type]
            after_event_sequence=stream.event,  # type: ignore[arg-type]
        )
        allowed = (E.RESOURCE_EXHAUSTED, E.CURSOR_INVALID) if replays else (E.CAPABILITY_REQUIRED,)

        def check(reply: Any) -> None:
            if isinstance(reply, fr.CoordErrorFrame):
                if reply.code is E.CURSOR_INVALID and not stream.lost:
                    raise Failed("what is retained was not replayed")
                free(stream)
            elif not replays:
                must_be_refused(reply)

        return self._then(talk, talk.ask(frame, allowed), check)

    # ---- the socket ----

    def ping(self, talk: Talk) -> None:
        talk.ping(self.rng.choice((1, 5, 300)))

    async def stall(self, talk: Talk) -> None:
        """Nothing is read for a while, though much is asked for."""
        talk.reading.clear()
        for _ in range(self.rng.randrange(5)):
            self.open_snapshot(talk)
        talk.ping(100)
        await asyncio.sleep(self.rng.random() * 2)
        talk.reading.set()

    async def slow(self, talk: Talk) -> None:
        """Little is read at once, for a while."""
        talk.chunk, talk.pause = self.rng.choice(((50, 0.01), (1_000, 0.05)))
        for _ in range(self.rng.randrange(3)):
            self.open_snapshot(talk)
        await asyncio.sleep(self.rng.random() * 2)
        talk.hurry()


def must_be_refused(reply: Any) -> None:
    """The only answer that is right is a refusal."""
    if not isinstance(reply, fr.CoordErrorFrame):
        raise Failed(f"{type(reply).__name__} where only a refusal is right")


def free(stream: Stream) -> None:
    """The healing was refused, or has made another subscription."""
    stream.busy = False


def void(_: object) -> None:
    """Nothing more to do."""
