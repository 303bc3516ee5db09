"""A simulated client: it does legal and illegal things at random and believes nothing that it is told."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cext.digest import ReplayDigest
from sidecar.coordinator.engine.state import Event
from sidecar.coordinator.engine.visibility import Visibility
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode, GapReason
from sidecar.coordinator.wire.errors import AuthorityFenced, ProtocolError, ResourceExhausted
from sidecar.coordinator.wire.limits import Limits
from sidecar.coordinator.wire.records import ReplayEvent, Unknown, encode_operation
from tests.unit.engine.fakes import key
from tests.unit.engine.harness import Client, id16, objective
from tests.unit.engine.replays import REPLAY, applied, next_page, open_replay

if TYPE_CHECKING:
    from tests.sim.engine_world import Simulation

SELECTED = [
    Limits(16_384, 1_024, 3, 1_024, 16, 8_192),
    Limits(16_384, 8_192, 64, 4_096, 64, 65_536),
    Limits(16_384, 12_288, 512, 8_192, 4_096, 1 << 20),
]
PRINCIPALS = [(1, 0x3F), (1, 0x03), (2, 0x03), (3, 0x01), (4, 0x22), (5, 0x10)]
"""Principal and scopes of each client; the first two share a key."""
OBJECTS = 12


@dataclass
class Stream:
    """What a client knows of one subscription."""

    after: int
    delivery: int = 0
    event: int = 0
    paused: bool = False
    lost: bool = False
    """What it missed is not retained."""
    live: bool = True
    got: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.event = self.after


@dataclass
class Reading:
    """A snapshot that a client is reading."""

    begin: fr.SnapshotBegin
    cursor: bytes | None
    records: list[bytes] = field(default_factory=list)
    ended: bool = False


@dataclass
class Healing:
    """A replay that a client is reading."""

    begin: fr.ReplayBegin
    after: int
    cursor: bytes | None
    events: list[ReplayEvent] = field(default_factory=list)
    ended: bool = False
    given_up: bool = False


class Actor:
    """One simulated client. It survives its connections."""

    def __init__(self, simulation: Simulation, number: int) -> None:
        self.sim = simulation
        self.principal, self.scopes = PRINCIPALS[number]
        self.selected = simulation.rng.choice(SELECTED)
        self.client: Client | None = None
        self.streams: dict[bytes, Stream] = {}
        self.readings: dict[bytes, Reading] = {}
        self.healings: dict[bytes, Healing] = {}
        self.asked: dict[int, fr.Frame] = {}
        self.terminal: set[int] = set()
        self.sent: dict[bytes, fr.CoordCommand] = {}
        self.capabilities = REPLAY if number != 3 else 0
        self.seen = Visibility.of(self.scopes, self.capabilities, key(self.principal))

    # ---- connection ----

    def connect(self) -> None:
        self.streams, self.readings, self.healings, self.asked, self.terminal = {}, {}, {}, {}, set()
        try:
            self.client = self.sim.world.connect(
                self.principal, scopes=self.scopes, capabilities=self.capabilities, selected=self.selected
            )
        except (AuthorityFenced, ResourceExhausted):
            self.client = None

    def drop(self) -> None:
        if self.client is not None:
            self.client.detach()
            self.client = None

    # ---- what it does ----

    def act(self) -> None:
        client, rng = self.client, self.sim.rng
        if client is None:
            self.connect()
            return
        if any(stream.paused and not stream.lost for stream in self.streams.values()) and rng.random() < 0.5:
            self._heal(client)
            if rng.random() < 0.8:
                self.listen()
            return
        choice = rng.randrange(100)
        if choice < 50:
            self._command(client)
        elif choice < 56:
            self._lookup(client)
        elif choice < 61:
            self._open(client)
        elif choice < 70:
            self._continue(client)
        elif choice < 76:
            cut = rng.randrange(self.sim.world.disk.last_sequence + 2)
            self._ask(client.subscribe(cut, rng.randrange(9), rng.randrange(4_000)))
        elif choice < 86:
            self._credit(client)
        elif choice < 90:
            self._send(fr.CoordPing(nonce=rng.randrange(1 << 60)))
        elif choice < 97:
            client.conn.writable = rng.random() < 0.6
        elif rng.random() < 0.3:
            self.drop()
        elif rng.random() < 0.3:
            self._misbehave(client)

    def _command(self, client: Client) -> None:
        rng = self.sim.rng
        if self.sent and rng.random() < 0.3:
            old = self.sent[rng.choice(list(self.sent))]
            again = client.command(
                old.command_kind, old.payload, operation=old.operation_id, preconditions=old.preconditions
            )
            self._ask(again)
            return
        number, document = rng.randrange(1, OBJECTS), bytes(rng.randrange(700))
        others = rng.sample(range(1, OBJECTS), rng.choice((0, 0, 0, 0, 1, 2)))
        held = [objective(other, rng.randrange(3)) for other in others]
        make = client.create if rng.random() < 0.2 else client.update
        frame = make(number, document, preconditions=held)
        self.sent[frame.operation_id] = frame
        self._ask(frame)

    def _lookup(self, client: Client) -> None:
        known = [operation for actor in self.sim.actors for operation in actor.sent]
        wanted = self.sim.rng.choice(known) if known else id16(1)
        self._ask(client.lookup(wanted))

    def _open(self, client: Client) -> None:
        paused = [id_ for id_, stream in self.streams.items() if stream.paused]
        replaced = self.sim.rng.choice(paused) if paused and self.sim.rng.random() < 0.8 else None
        self._ask(client.open_snapshot(replaced is not None or self.sim.rng.random() < 0.5, replaced))

    def _continue(self, client: Client) -> None:
        rng = self.sim.rng
        if not self.readings:
            return
        reading = rng.choice(list(self.readings.values()))
        if reading.cursor is not None:
            self._ask(client.next_page(reading.begin, reading.cursor))
        elif reading.ended:
            reserved = reading.begin.subscription_id is not None
            count = rng.randrange(9) if reserved else 0
            self._ask(client.applied(reading.begin, count, 1_000 * count))

    def _heal(self, client: Client) -> None:
        """The next step of a replay, or a new one for a paused subscription."""
        rng = self.sim.rng
        held = [healing for healing in self.healings.values() if not healing.given_up]
        healing = rng.choice(held) if held and rng.random() < 0.9 else None
        if healing is None:
            paused = [id_ for id_, stream in self.streams.items() if stream.paused and not stream.lost]
            if paused:
                id_ = rng.choice(paused)
                self._ask(open_replay(client, id_, self.streams[id_].event))
        elif healing.cursor is not None:
            self._ask(next_page(client, healing.begin.replay_id, healing.cursor))
        elif healing.ended:
            count = rng.randrange(9)
            self._ask(applied(client, healing.begin, count, 1_000 * count))

    def _credit(self, client: Client) -> None:
        rng = self.sim.rng
        for id_, stream in self.streams.items():
            if not stream.live:
                continue
            sub = client.conn.subscriptions.get(id_)
            if sub is not None:
                count = rng.randint(0, self.selected.credit_count - sub.credit.count)
                nbytes = rng.randint(0, self.selected.credit_bytes - sub.credit.nbytes)
                self._send(client.credit(id_, count, nbytes))

    def _misbehave(self, client: Client) -> None:
        rng = self.sim.rng
        bad = [
            client.credit(id16(rng.randrange(1, 99)), 1, 1),
            client.subscribe(0, self.selected.credit_count + 1, 0),
            client.create(1, guard=replace(client.guard, authority_epoch=99)),  # type: ignore[arg-type]
            client.command(1, b"\x01\x04\x00"),
            fr.SnapshotNext(request_id=next(client.requests), snapshot_id=id16(5), cursor=b"x"),  # type: ignore[arg-type]
            client.command(rng.choice((3, 7, 11, 12, 99)), b""),
        ]
        self._send(rng.choice(bad))

    def _ask(self, frame: fr.Frame) -> None:
        request = frame.fields.u32(1)
        self.asked[request] = frame
        self._send(frame)

    def _send(self, frame: fr.Frame) -> None:
        assert self.client is not None
        try:
            self.client.send(frame)
        except ProtocolError:
            # Only a fatal one is raised; the shell closes the connection.
            self.drop()

    # ---- what it is told ----

    def listen(self) -> None:
        if self.client is None:
            return
        room = self.sim.rng.choice((200, 5_000, 1 << 20))
        for raw in self.client.conn.take(room, self.sim.world.now):
            self._hear(fr.decode_frame(raw[4], raw[5:], self.selected))
        if self.client is not None and self.client.conn.closing is not None and not self.client.conn.control:
            self.drop()

    def _hear(self, frame: fr.Frame) -> None:
        disk = self.sim.world.disk
        if isinstance(frame, fr.CoordEvent):
            self._event(frame)
        elif isinstance(frame, fr.Gap):
            self._gap(frame)
        elif isinstance(frame, fr.CoordErrorFrame):
            if frame.request_id is not None:
                asked = self._finish(frame.request_id)
                if isinstance(asked, fr.ReplayNext | fr.ReplayApplied) and frame.code is ErrorCode.CURSOR_INVALID:
                    # It is over, or this was one page of it too many: the client can not tell and gives it up.
                    healing = self.healings.get(asked.replay_id)
                    if healing is not None:
                        healing.given_up = True
        elif isinstance(frame, fr.CoordCommandResult | fr.OperationResultFrame):
            asked = self._finish(frame.request_id)
            assert isinstance(asked, fr.CoordCommand | fr.GetOperationResult)
            if not isinstance(frame.operation, Unknown):
                assert disk.operations[asked.operation_id].result == encode_operation(frame.operation)
                self.sim.told(asked.operation_id, encode_operation(frame.operation), frame.operation)
        elif isinstance(frame, fr.SnapshotBegin):
            self._begin(frame)
        elif isinstance(frame, fr.SnapshotPage):
            reading = self.readings[frame.snapshot_id]
            assert frame.cursor == reading.cursor
            reading.records += [record.encode() for record in frame.records]
            reading.cursor = frame.next_cursor
            if frame.next_cursor is not None:
                self._finish(frame.request_id)
        elif isinstance(frame, fr.SnapshotEnd):
            self._finish(frame.request_id)
            self._end(frame)
        elif isinstance(frame, fr.Subscribed):
            asked = self._finish(frame.request_id)
            assert isinstance(asked, fr.Subscribe)
            self.streams[frame.subscription_id] = Stream(asked.after_event_sequence)
        elif isinstance(frame, fr.Ack):
            self._acknowledged(self._finish(frame.request_id))
        elif isinstance(frame, fr.ReplayBegin | fr.ReplayPage | fr.ReplayEnd):
            self._replayed(frame)

    def _gap(self, frame: fr.Gap) -> None:
        stream = self.streams[frame.subscription_id]
        farewell = frame.reason in (GapReason.EPOCH_CHANGED, GapReason.GRANT_REVOKED)
        if stream.paused:
            # A second gap: its replay came to nothing, there can be none, or what answered it fell with the connection.
            lost = [id_ for id_, one in self.healings.items() if one.begin.subscription_id == frame.subscription_id]
            assert lost or farewell or frame.reason is GapReason.RETENTION
            for id_ in lost:
                healing = self.healings.pop(id_)
                if farewell and healing.ended and frame.last_contiguous_event == healing.begin.replay_cut:
                    stream.got += [event.event_sequence for event in healing.events]
                    stream.event = healing.begin.replay_cut
        assert (frame.last_contiguous_delivery, frame.last_contiguous_event) == (stream.delivery, stream.event)
        if frame.observed_event is not None:
            following = self.visible(stream.event, frame.observed_event)
            assert [event.sequence for event in following] == [frame.observed_event]
        stream.lost = stream.paused and frame.reason is GapReason.RETENTION
        stream.paused, stream.live = True, False
        self.sim.gaps[frame.reason] = self.sim.gaps.get(frame.reason, 0) + 1

    def _acknowledged(self, asked: fr.Frame) -> None:
        if isinstance(asked, fr.SnapshotApplied):
            self.readings.pop(asked.snapshot_id)
            if asked.subscription_id is not None:
                self.streams[asked.subscription_id].live = True
            return
        assert isinstance(asked, fr.ReplayApplied)
        healing, stream = self.healings.pop(asked.replay_id), self.streams[asked.subscription_id]
        assert stream.paused
        assert stream.event == healing.after
        stream.got += [event.event_sequence for event in healing.events]
        stream.event = healing.begin.replay_cut
        stream.paused, stream.live = False, True
        self.sim.healed += 1

    def _replayed(self, frame: fr.ReplayBegin | fr.ReplayPage | fr.ReplayEnd) -> None:
        if isinstance(frame, fr.ReplayBegin):
            asked = self.asked[frame.request_id]
            assert isinstance(asked, fr.OpenReplay)
            assert frame.replay_cut <= self.sim.world.disk.last_sequence
            self.healings[frame.replay_id] = Healing(frame, asked.after_event_sequence, frame.first_cursor)
            if frame.first_cursor is not None:
                self._finish(frame.request_id)
            return
        healing = self.healings.get(frame.replay_id)
        if isinstance(frame, fr.ReplayEnd) or frame.next_cursor is not None:
            self._finish(frame.request_id)
        if healing is None:
            return
        if isinstance(frame, fr.ReplayEnd):
            self._replay_end(healing, frame)
        else:
            assert frame.cursor == healing.cursor
            assert 0 < len(frame.events) <= self.selected.page_records
            healing.events += frame.events
            healing.cursor = frame.next_cursor

    def _replay_end(self, healing: Healing, frame: fr.ReplayEnd) -> None:
        """The replay is every visible event up to its cut, each once, as it is on the disk."""
        healing.ended = True
        begin, authority = healing.begin, self.sim.world.authority
        wanted = self.visible(healing.after, begin.replay_cut)
        assert begin.first_event == (wanted[0].sequence if wanted else None)
        assert [(event.event_sequence, event.event_id, event.payload) for event in healing.events] == [
            (event.sequence, event.event_id, event.payload) for event in wanted
        ]
        assert frame.event_count == len(wanted)
        digest = ReplayDigest(
            authority.coordinator_id,
            authority.epoch,
            authority.activation_sequence,
            begin.subscription_id,
            healing.after,
            begin.replay_cut,
            len(wanted),
        )
        for event in healing.events:
            digest.update(event.encode())
        assert frame.canonical_sha256 == digest.digest()

    def _finish(self, request: int) -> fr.Frame:
        """The one terminal reply of a request (P13-08)."""
        assert request not in self.terminal
        self.terminal.add(request)
        return self.asked[request] if request in self.asked else fr.CoordPing(nonce=0)

    def _event(self, event: fr.CoordEvent) -> None:
        stream = self.streams[event.subscription_id]
        assert stream.live, "no event before ACK and none after a gap"
        assert event.delivery_sequence == stream.delivery + 1
        # Everything visible since the last delivery was delivered, and it is durable.
        (expected,) = self.visible(stream.event, event.event_sequence)
        assert expected.sequence <= self.sim.world.disk.last_sequence
        assert (expected.sequence, expected.event_id) == (event.event_sequence, event.event_id)
        assert expected.payload == event.payload
        stream.delivery, stream.event = event.delivery_sequence, event.event_sequence
        stream.got.append(event.event_sequence)

    def visible(self, after: int, until: int) -> list[Event]:
        return [event for event in self.sim.history[after:until] if self.seen.sees_event(event)]

    def _begin(self, frame: fr.SnapshotBegin) -> None:
        asked = self.asked[frame.request_id]
        assert isinstance(asked, fr.OpenSnapshot)
        assert (frame.subscription_id is not None) == asked.reserve_subscription
        assert frame.base_event_sequence <= self.sim.world.disk.last_sequence
        self.readings[frame.snapshot_id] = Reading(frame, frame.first_cursor)
        if frame.first_cursor is not None:
            self._finish(frame.request_id)
        if asked.replace_paused_subscription is not None:
            del self.streams[asked.replace_paused_subscription]
        if frame.subscription_id is not None:
            self.streams[frame.subscription_id] = Stream(frame.base_event_sequence)

    def _end(self, frame: fr.SnapshotEnd) -> None:
        reading = self.readings[frame.snapshot_id]
        reading.ended = True
        assert frame.record_count == len(reading.records)
        # The snapshot is what following every visible event up to its base leads to (P6-09).
        folded: dict[bytes, bytes] = {}
        for event in self.visible(0, reading.begin.base_event_sequence):
            folded[event.payload[:18]] = event.payload
        assert reading.records == [folded[ref] for ref in sorted(folded)]
        self.sim.digest(self.seen, reading.begin, frame)
