"""An engine with virtual clocks, counting entropy and a store in memory; clients that speak in frames."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import pytest

from cext.digest import SnapshotDigest, sha256
from sidecar.base.clock import Now
from sidecar.coordinator.authority.grants import Grant
from sidecar.coordinator.engine.connection import Connection
from sidecar.coordinator.engine.core import Engine
from sidecar.coordinator.engine.policy import Policy
from sidecar.coordinator.engine.quota import Resource
from sidecar.coordinator.engine.state import State
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import CommandKind, ErrorCode, ObjectKind
from sidecar.coordinator.wire.errors import ProtocolError
from sidecar.coordinator.wire.ids import (
    EventCut,
    ObjectId,
    ObjectiveId,
    OperationId,
    SnapshotId,
    SubscriptionId,
)
from sidecar.coordinator.wire.limits import HARD, Limits
from sidecar.coordinator.wire.payloads import CreateObjective, UpdateObjective
from sidecar.coordinator.wire.records import (
    AuthorityGuard,
    ObjectRef,
    Precondition,
    SnapshotRecord,
)
from tests.unit.engine.fakes import LIFE, START, Disk, FakeAuthority, Recorder, key

F = TypeVar("F", bound=fr.Frame)

ALL_SCOPES = 0x3F
SMALL = Limits(8_192, 1_024, 3, 1_024, 1_024, 65_536)
"""Negotiated limits under which a handful of records needs several pages."""


def id16(number: int) -> bytes:
    return number.to_bytes(16, "big")


class World:
    """One engine, its clock and its disk."""

    def __init__(
        self,
        *,
        policy: Policy | None = None,
        disk: Disk | None = None,
        state: State | None = None,
        authority: FakeAuthority | None = None,
        now: Now = START,
    ) -> None:
        self.now = now
        self.disk = disk or Disk()
        self.policy = policy or Policy()
        self.authority = authority or FakeAuthority()
        self.observer = Recorder()
        self._ids = itertools.count(1)
        self.operations = itertools.count(1)
        if state is not None:
            self.disk.hold(state)
        recovered = self.disk.state()
        self.engine = Engine(
            self.authority, recovered, policy=self.policy, entropy=self.entropy, observer=self.observer
        )
        self.auto_commit = True

    def entropy(self, size: int) -> bytes:
        """Unique, reproducible, never zero."""
        return sha256(b"entropy" + next(self._ids).to_bytes(8, "big"))[:size].ljust(size, b"\x01")

    def advance(self, seconds: float, *, tick: bool = True) -> None:
        self.now = Now(self.now.wall + seconds, self.now.mono + seconds)
        if tick:
            self.engine.tick(self.now)

    def commit(self) -> int:
        """Execute everything that waits and make it durable; the number of batches."""
        count = 0
        while (batch := self.engine.take_batch(self.now)) is not None or self.engine.can_take(self.now):
            if batch is not None:
                self.disk.commit(batch)
                self.engine.batch_durable(batch, self.now)
                count += 1
        return count

    def restart(self) -> World:
        """A new engine on what was durable, with the next epoch."""
        authority = FakeAuthority(epoch=self.authority.epoch + 1, activation_sequence=8)
        again = World(policy=self.policy, disk=self.disk, authority=authority, now=self.now)
        again.operations = self.operations
        return again

    def connect(
        self,
        principal: int = 1,
        *,
        scopes: int = ALL_SCOPES,
        capabilities: int = 0,
        selected: Limits = HARD,
        expires_in: int = LIFE,
    ) -> Client:
        grant = Grant(key(principal), scopes, int(self.now.wall) + expires_in, 1)
        return Client(self, grant, capabilities, selected)

    def used(self) -> dict[str, int]:
        """Everything that is charged on the server."""
        server = self.engine._runtime.quotas.server
        return {resource.label: server.used(resource) for resource in Resource if server.used(resource)}


class Client:
    """One connection: requests in, decoded frames out."""

    def __init__(self, world: World, grant: Grant, capabilities: int, selected: Limits) -> None:
        self.world = world
        self.wakes = 0
        self.received: list[fr.Frame] = []
        self.requests = itertools.count(1)
        self.conn: Connection = world.engine.attach(self, grant, capabilities, selected, world.now)

    # ---- the sink ----

    def wake(self) -> None:
        self.wakes += 1

    # ---- raw ----

    def send(self, frame: fr.Frame) -> None:
        """Hand a frame over as received bytes: what is sent is what a decoder made of it."""
        decoded = fr.decode_frame(frame.TYPE, frame.body())
        self.world.engine.handle(self.conn, decoded, self.world.now)

    def pull(self, room: int = 1 << 20) -> list[fr.Frame]:
        """Everything that the engine has for this connection now."""
        if self.world.auto_commit and self.world.engine.fenced is None:
            self.world.commit()
        fresh: list[fr.Frame] = []
        while raw := self.conn.take(room, self.world.now):
            for frame in raw:
                assert int.from_bytes(frame[:4], "big") == len(frame) - 4
                fresh.append(fr.decode_frame(frame[4], frame[5:], self.conn.selected))
        self.received += fresh
        return fresh

    def ask(self, frame: fr.Frame) -> list[fr.Frame]:
        self.send(frame)
        return self.pull()

    def one(self, frame: fr.Frame, shape: type[F]) -> F:
        """Send a request whose only answer has this shape."""
        answers = self.ask(frame)
        assert [type(answer) for answer in answers] == [shape], answers
        found = answers[0]
        assert isinstance(found, shape)
        return found

    def refused(self, frame: fr.Frame, code: ErrorCode) -> None:
        """Send a request that is refused, scoped, and leaves the connection usable (P13-06)."""
        answers = self.ask(frame)
        errors = [answer for answer in answers if isinstance(answer, fr.CoordErrorFrame)]
        assert [error.code for error in errors] == [code], answers
        assert errors[0].request_id == getattr(frame, "request_id")  # noqa: B009
        assert self.conn.closing is None

    def fatal(self, frame: fr.Frame, code: ErrorCode) -> ProtocolError:
        """Send a frame that ends the connection."""
        with pytest.raises(ProtocolError) as caught:
            self.send(frame)
        assert caught.value.code is code
        assert caught.value.fatal
        self.world.engine.detach(self.conn, self.world.now)
        return caught.value

    def detach(self) -> None:
        self.world.engine.detach(self.conn, self.world.now)

    # ---- frames ----

    @property
    def guard(self) -> AuthorityGuard:
        return AuthorityGuard.decode(self.world.authority.guard)

    def command(
        self,
        kind: CommandKind | int,
        payload: bytes,
        *,
        operation: bytes | None = None,
        preconditions: Iterable[Precondition] = (),
        request: int | None = None,
        guard: AuthorityGuard | None = None,
    ) -> fr.CoordCommand:
        return fr.CoordCommand(
            request_id=request or next(self.requests),
            authority_guard=guard or self.guard,
            operation_id=OperationId(operation or self.new_operation()),
            command_kind=int(kind),
            payload=payload,
            preconditions=tuple(preconditions),
        )

    def new_operation(self) -> bytes:
        return self.conn.grant.key_id[:8] + next(self.world.operations).to_bytes(8, "big")

    def create(self, objective: int, document: bytes = b'{"t":1}', **options: Any) -> fr.CoordCommand:
        payload = CreateObjective(objective_id=ObjectiveId(id16(objective)), schema=1, document=document)
        return self.command(CommandKind.CREATE_OBJECTIVE, payload.body(), **options)

    def update(self, objective: int, document: bytes = b'{"t":2}', **options: Any) -> fr.CoordCommand:
        payload = UpdateObjective(objective_id=ObjectiveId(id16(objective)), schema=1, document=document)
        return self.command(CommandKind.UPDATE_OBJECTIVE, payload.body(), **options)

    def lookup(self, operation: bytes, **options: Any) -> fr.GetOperationResult:
        return fr.GetOperationResult(
            request_id=options.get("request") or next(self.requests),
            authority_guard=options.get("guard") or self.guard,
            operation_id=OperationId(operation),
        )

    def open_snapshot(
        self, reserve: bool = False, replace: bytes | None = None, guard: AuthorityGuard | None = None
    ) -> fr.OpenSnapshot:
        return fr.OpenSnapshot(
            request_id=next(self.requests),
            authority_guard=guard or self.guard,
            selector=0,
            reserve_subscription=reserve,
            replace_paused_subscription=None if replace is None else SubscriptionId(replace),
        )

    def next_page(self, begin: fr.SnapshotBegin, cursor: bytes | None, request: int | None = None) -> fr.SnapshotNext:
        return fr.SnapshotNext(
            request_id=request or next(self.requests),
            snapshot_id=begin.snapshot_id,
            cursor=cursor or b"none",
        )

    def applied(self, begin: fr.SnapshotBegin, count: int = 0, nbytes: int = 0, **options: Any) -> fr.SnapshotApplied:
        return fr.SnapshotApplied(
            request_id=next(self.requests),
            snapshot_id=options.get("snapshot", begin.snapshot_id),
            subscription_id=options.get("subscription", begin.subscription_id),
            initial_credit_count=count,
            initial_credit_bytes=nbytes,
        )

    def subscribe(
        self, after: int, count: int = 0, nbytes: int = 0, guard: AuthorityGuard | None = None
    ) -> fr.Subscribe:
        return fr.Subscribe(
            request_id=next(self.requests),
            authority_guard=guard or self.guard,
            after_event_sequence=EventCut(after),
            initial_credit_count=count,
            initial_credit_bytes=nbytes,
        )

    def credit(self, subscription: bytes, count: int, nbytes: int) -> fr.CreditFrame:
        return fr.CreditFrame(subscription_id=SubscriptionId(subscription), add_count=count, add_bytes=nbytes)

    # ---- whole exchanges ----

    def done(self, frame: fr.CoordCommand) -> fr.CoordCommandResult:
        """Run a command that is answered with a result; other frames of the moment stay in ``received``."""
        results = [answer for answer in self.ask(frame) if isinstance(answer, fr.CoordCommandResult)]
        assert len(results) == 1, self.received[-3:]
        assert results[0].request_id == frame.request_id
        return results[0]

    def live(self, after: int = 0, count: int = 4096, nbytes: int = 1 << 23) -> bytes:
        """A live subscription; its id."""
        answers = self.ask(self.subscribe(after, count, nbytes))
        assert isinstance(answers[0], fr.Subscribed)
        return answers[0].subscription_id

    def snapshot(self, reserve: bool = False, replace: bytes | None = None) -> Snapshot:
        """Read a whole snapshot and verify it as a client must (P9-16)."""
        answers = self.ask(self.open_snapshot(reserve, replace))
        begin = answers[0]
        assert isinstance(begin, fr.SnapshotBegin), answers
        return Snapshot(self, begin, answers[1:])

    def events(self) -> list[fr.CoordEvent]:
        """All events received so far."""
        return [frame for frame in self.received if isinstance(frame, fr.CoordEvent)]

    def gaps(self) -> list[fr.Gap]:
        """All gaps received so far."""
        return [frame for frame in self.received if isinstance(frame, fr.Gap)]

    def errors(self) -> list[fr.CoordErrorFrame]:
        """All errors received so far."""
        return [frame for frame in self.received if isinstance(frame, fr.CoordErrorFrame)]


class Snapshot:
    """A snapshot that was read to its end."""

    def __init__(self, client: Client, begin: fr.SnapshotBegin, rest: list[fr.Frame]) -> None:
        self.begin = begin
        self.pages: list[fr.SnapshotPage] = []
        cursor = begin.first_cursor
        ends = [frame for frame in rest if isinstance(frame, fr.SnapshotEnd)]
        while cursor is not None:
            request = client.next_page(begin, cursor)
            answers = client.ask(request)
            (page,) = (frame for frame in answers if isinstance(frame, fr.SnapshotPage))
            assert page.request_id == request.request_id
            assert page.cursor == cursor
            assert page.page_index == len(self.pages)
            self.pages.append(page)
            cursor = page.next_cursor
            ends += [frame for frame in answers if isinstance(frame, fr.SnapshotEnd)]
            assert (cursor is None) == bool(ends)
        assert len(ends) == 1
        self.end = ends[0]
        self.records: list[SnapshotRecord] = [record for page in self.pages for record in page.records]
        keys = [record.key() for record in self.records]
        assert keys == sorted(set(keys))
        assert self.end.page_count == len(self.pages)
        assert self.end.record_count == len(self.records)
        guard = begin.authority_guard
        digest = SnapshotDigest(
            guard.coordinator_id,
            guard.authority_epoch,
            guard.activation_sequence,
            begin.base_event_sequence,
            len(self.records),
        )
        for record in self.records:
            digest.update(record.encode())
        assert digest.digest() == self.end.canonical_sha256

    def __iter__(self) -> Iterator[SnapshotRecord]:
        return iter(self.records)

    def kinds(self) -> set[ObjectKind]:
        return {record.kind for record in self.records}


def objective(number: int, revision: int) -> Precondition:
    """A precondition on an objective."""
    return Precondition(ObjectRef(ObjectKind.OBJECTIVE, ObjectId(id16(number))), revision)


def make(maker: Client, count: int, first: int = 1, *, document: bytes = b"d") -> None:
    """That many objectives, each its own command."""
    for number in range(first, first + count):
        maker.send(maker.create(number, document))
        if number % 100 == 0:
            maker.pull()
    maker.pull()


def no_snapshot() -> SnapshotId:
    return SnapshotId(b"\xee" * 16)
