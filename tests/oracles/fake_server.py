"""A coordinator in memory that tells the truth unless a test makes it lie in one respect.

``World`` is the durable side: keys, activation, records, events, operations. ``FakeServer`` is one connection of it,
sans-IO. Every outgoing frame passes ``rewrite``, which may change it, drop it or put other bytes in its place. It knows
just enough to be a counterpart of the client and shares nothing with the product's server.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cext.digest import SnapshotDigest, client_transcript, server_transcript, uds_peer_binding
from sidecar.base.clock import Now
from sidecar.base.ed25519 import SigningKey, fingerprint, verify
from sidecar.base.secret import Secret
from sidecar.coordinator.authority.certificate import WitnessPin, sign_certificate
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import (
    CommandKind,
    ErrorCode,
    EventKind,
    FrameType,
    GapReason,
    ObjectiveState,
    ObjectKind,
    Scope,
)
from sidecar.coordinator.wire.fields import Frame
from sidecar.coordinator.wire.ids import DeliveryCut, EventCut, SubscriptionId
from sidecar.coordinator.wire.limits import PROFILE, PROTOCOL, REFERENCE, RETENTION_FLOOR, SERVICE, Limits
from sidecar.coordinator.wire.payloads import CreateObjective, ObjectiveRecord, UpdateObjective
from sidecar.coordinator.wire.records import (
    ActivationCertificate,
    AuthorityGuard,
    ObjectRef,
    OperationResult,
    SnapshotRecord,
    Unknown,
    WorkloadGrant,
    succeeded,
)
from tests.oracles.fake_replay import FakeReplays, FakeStream

F = TypeVar("F", bound=Frame)
Rewrite = Callable[[Frame], "Frame | bytes | None"]

START = Now(1_900_000_000.0, 5_000.0)
SELF = (1000, 1000, 4242)
"""uid, gid, pid of the client in tests without a socket."""


def seed(byte: int) -> SigningKey:
    """A key from a fixed seed."""
    return SigningKey(Secret(bytes([byte]) * 32))


def altered(frame: F, **values: object) -> F:
    """The same frame with other values."""
    fields = {item.name: getattr(frame, item.name) for item in type(frame).FIELDS}
    return type(frame).build({**fields, **values})


def objective(number: int, revision: int = 1, document: bytes = b'{"t":1}') -> SnapshotRecord:
    """An OBJECTIVE record with a small id."""
    payload = ObjectiveRecord(document_schema=1, document=document, state=ObjectiveState.ACTIVE).body()
    return SnapshotRecord(ObjectKind.OBJECTIVE, object_id(number), revision, 1, payload)  # type: ignore[arg-type]


def object_id(number: int) -> Any:
    """Sixteen bytes that sort like the number."""
    return number.to_bytes(16, "big")


@dataclass
class World:
    """What survives a connection, and what a restart or a split brain changes."""

    authority: SigningKey = field(default_factory=lambda: seed(0xA1))
    witness: SigningKey = field(default_factory=lambda: seed(0xA0))
    witness_id: bytes = b"\xaa" * 16
    coordinator_id: bytes = b"\x11" * 16
    epoch: int = 5
    activation: int = 7
    incarnation: bytes = b"\x55" * 16
    token: bytes = b"\xd0" * 32
    life: int = 60
    page_size: int = 2
    scopes: int = 63
    grant_seconds: int = 3600
    limits: Limits = REFERENCE
    capabilities: int = 0
    registry: dict[bytes, bytes] = field(default_factory=dict)
    records: dict[bytes, SnapshotRecord] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    operations: dict[bytes, OperationResult] = field(default_factory=dict)
    commands: list[fr.CoordCommand] = field(default_factory=list)
    lookups: list[fr.GetOperationResult] = field(default_factory=list)
    snapshots: int = 0
    first_retained: int = 1

    @property
    def pin(self) -> WitnessPin:
        return WitnessPin(self.witness_id, self.witness.public_key)

    @property
    def fingerprint(self) -> bytes:
        return fingerprint(self.authority.public_key)

    def admit(self, key: SigningKey) -> None:
        """Register a workload key."""
        self.registry[fingerprint(key.public_key)] = key.public_key

    def certificate(self, now: Now, **changes: Any) -> ActivationCertificate:
        """A certificate of the present activation, signed by the witness; ``changes`` are signed too."""
        issued = int(now.wall)
        values: dict[str, Any] = {
            "witness_id": self.witness_id,
            "coordinator_id": self.coordinator_id,
            "activation_sequence": self.activation,
            "epoch": self.epoch,
            "incarnation": self.incarnation,
            "token": self.token,
            "issued_at": issued,
            "expires_at": issued + self.life,
        }
        return sign_certificate(self.witness, **{**values, **changes})

    def restart(self) -> None:
        """What every restart of a server does."""
        self.epoch += 1
        self.activation += 1
        self.incarnation = hashlib.sha256(self.incarnation).digest()[:16]
        self.token = hashlib.sha256(self.token).digest()

    def put(self, record: SnapshotRecord, kind: EventKind = EventKind.OBJECTIVE_CHANGED) -> int:
        """Commit one record and its event; the event's sequence."""
        self.records[record.key()] = record
        sequence = len(self.events) + 1
        self.events.append(
            {
                "event_sequence": sequence,
                "event_id": hashlib.sha256(b"%d" % sequence).digest()[:16],
                "event_kind": kind,
                "object": record.ref(),
                "object_revision": record.revision,
                "schema": 1,
                "payload": record.encode(),
            }
        )
        return sequence


class FakeServer:
    """One connection. ``feed`` client bytes, ``take`` what to send; ``received`` keeps every frame of the client."""

    def __init__(
        self, world: World, now: Now = START, peer: tuple[int, int, int] = SELF, rewrite: Rewrite | None = None
    ) -> None:
        self.world = world
        self.now = now
        self.peer = peer
        self.rewrite = rewrite
        self.received: list[Frame] = []
        self.streams: dict[bytes, FakeStream] = {}
        self.closed = False
        self._input = b""
        self._output: list[bytes] = []
        self._challenge: fr.WorkloadChallenge | None = None
        self._hello: fr.CoordHello | None = None
        self._snapshots: dict[bytes, dict[str, Any]] = {}
        self.replays = FakeReplays(self)

    def of(self, shape: type[F]) -> list[F]:
        """Received frames of one type."""
        return [frame for frame in self.received if isinstance(frame, shape)]

    def feed(self, data: bytes) -> None:
        """Bytes from the client."""
        self._input += data
        while len(self._input) >= 4 and len(self._input) >= 4 + (size := int.from_bytes(self._input[:4], "big")):
            frame = fr.decode_frame(self._input[4], self._input[5 : 4 + size])
            self._input = self._input[4 + size :]
            self.received.append(frame)
            self._handle(frame)

    def take(self) -> bytes:
        """Bytes for the client."""
        output, self._output = self._output, []
        return b"".join(output)

    def send(self, frame: Frame) -> None:
        """Send a frame through ``rewrite``."""
        out = frame if self.rewrite is None else self.rewrite(frame)
        if out is not None:
            self._output.append(out if isinstance(out, bytes) else out.encode())

    def error(self, code: ErrorCode, request_id: int | None = None, message: str = "no") -> None:
        """Send COORD_ERROR."""
        self.send(fr.CoordErrorFrame(request_id=request_id, code=code, message=message))

    def renew(self, **changes: Any) -> None:
        """Send a renewed certificate."""
        self.send(fr.AuthorityRenewed(activation_certificate=self.world.certificate(self.now, **changes)))

    def _handle(self, frame: Frame) -> None:
        handlers: dict[FrameType, Callable[[Any], None]] = {
            FrameType.COORD_HELLO: self._on_hello,
            FrameType.WORKLOAD_RESPONSE: self._on_response,
            FrameType.COORD_PING: lambda ping: self.send(fr.CoordPong(nonce=ping.nonce)),
            FrameType.COORD_COMMAND: self._on_command,
            FrameType.GET_OPERATION_RESULT: self._on_lookup,
            FrameType.OPEN_SNAPSHOT: self._on_open,
            FrameType.SNAPSHOT_NEXT: self._on_next,
            FrameType.SNAPSHOT_APPLIED: self._on_applied,
            FrameType.SUBSCRIBE: self._on_subscribe,
            FrameType.CREDIT: self._on_credit,
            **self.replays.handlers,
        }
        handler = handlers.get(frame.TYPE)
        if handler is not None:
            handler(frame)

    # -- handshake --------------------------------------------------------------------------------------------------

    def challenge(self, client_nonce: bytes, **changes: Any) -> fr.WorkloadChallenge:
        """A challenge whose proof covers ``changes`` too: only what a client compares by itself can find them."""
        nonce = changes.get("server_nonce", b"\xb2" * 32)
        values: dict[str, Any] = {
            "profile": PROFILE,
            "service": SERVICE,
            "negotiated_major": PROTOCOL[0],
            "negotiated_minor": PROTOCOL[1],
            "client_nonce": client_nonce,
            "server_nonce": nonce,
            "server_incarnation": self.world.incarnation,
            "channel_binding_kind": 1,
            "channel_binding": uds_peer_binding(nonce, *self.peer),
            "authority_public_key": self.world.authority.public_key,
        } | changes
        proof = self.world.authority.sign(
            server_transcript(
                values["service"],
                values["negotiated_major"],
                values["negotiated_minor"],
                values["client_nonce"],
                values["server_nonce"],
                values["server_incarnation"],
                int(values["channel_binding_kind"]),
                values["channel_binding"],
                values["authority_public_key"],
            )
        )
        return fr.WorkloadChallenge.build({**values, "authority_proof": proof})

    def _on_hello(self, hello: fr.CoordHello) -> None:
        self._hello = hello
        self._challenge = self.challenge(hello.workload_offer.client_nonce)
        self.send(self._challenge)

    def _on_response(self, response: fr.WorkloadResponse) -> None:
        challenge, key = self._challenge, self.world.registry.get(response.key_id)
        assert challenge is not None
        if key is None:
            self.error(ErrorCode.AUTHENTICATION_FAILED)
            self.closed = True
            return
        transcript = client_transcript(
            challenge.service,
            challenge.negotiated_major,
            challenge.negotiated_minor,
            challenge.client_nonce,
            challenge.server_nonce,
            challenge.server_incarnation,
            int(challenge.channel_binding_kind),
            challenge.channel_binding,
            challenge.authority_public_key,
            challenge.authority_proof,
            response.key_id,
            response.requested_expiry,
            int(response.requested_scope_bytes).to_bytes(8, "big"),
        )
        verify(key, transcript, response.workload_proof)
        self.send(self.hello_ok(response))

    def hello_ok(self, response: fr.WorkloadResponse) -> fr.CoordHelloOk:
        """The honest HELLO_OK to a response."""
        world, hello = self.world, self._hello
        assert hello is not None
        offered = hello.limits()
        selected = Limits(*(min(getattr(offered, n), getattr(world.limits, n)) for n in Limits.__slots__))
        expiry = min(response.requested_expiry, int(self.now.wall) + world.grant_seconds)
        return fr.CoordHelloOk.build(
            {
                "protocol_major": PROTOCOL[0],
                "protocol_minor": PROTOCOL[1],
                "protocol_patch": PROTOCOL[2],
                "negotiated_capabilities": hello.offered_capabilities & world.capabilities,
                "coordinator_id": world.coordinator_id,
                "authority_epoch": world.epoch,
                "incarnation_id": world.incarnation,
                "max_frame_bytes": selected.frame,
                "max_page_bytes": selected.page_bytes,
                "max_page_records": selected.page_records,
                "max_typed_payload_bytes": selected.typed_payload,
                "max_event_credit_count": selected.credit_count,
                "max_event_credit_bytes": selected.credit_bytes,
                "workload_grant": WorkloadGrant(
                    response.key_id,
                    world.fingerprint,  # type: ignore[arg-type]
                    expiry,
                    Scope(int(response.requested_scope_bytes) & world.scopes),
                ),
                "operation_result_retention_secs": RETENTION_FLOOR,
                "activation_certificate": world.certificate(self.now),
            }
        )

    # -- work -------------------------------------------------------------------------------------------------------

    def _guarded(self, frame: Any) -> bool:
        guard: AuthorityGuard = frame.authority_guard
        if guard == self.world.certificate(self.now).guard():
            return True
        self.error(ErrorCode.STALE_AUTHORITY, frame.request_id)
        self.closed = True
        return False

    def _on_command(self, command: fr.CoordCommand) -> None:
        if not self._guarded(command):
            return
        self.world.commands.append(command)
        result = self.world.operations.get(command.operation_id)
        if result is None:
            result = self._run(command)
            self.world.operations[command.operation_id] = result
        self.send(fr.CoordCommandResult(request_id=command.request_id, operation=result))
        self.pump()

    def _run(self, command: fr.CoordCommand) -> OperationResult:
        created = command.command_kind == CommandKind.CREATE_OBJECTIVE
        payload = (CreateObjective if created else UpdateObjective).decode(command.payload)
        ref = ObjectRef(ObjectKind.OBJECTIVE, payload.objective_id)  # type: ignore[arg-type]
        old = self.world.records.get(ref.encode())
        record = objective(
            int.from_bytes(payload.objective_id, "big"), 1 if old is None else old.revision + 1, payload.document
        )
        return succeeded(self.world.put(record), ref)  # type: ignore[arg-type]

    def _on_lookup(self, lookup: fr.GetOperationResult) -> None:
        if self._guarded(lookup):
            self.world.lookups.append(lookup)
            result = self.world.operations.get(lookup.operation_id, Unknown())
            self.send(fr.OperationResultFrame(request_id=lookup.request_id, operation=result))

    def _on_open(self, request: fr.OpenSnapshot) -> None:
        if not self._guarded(request):
            return
        world = self.world
        world.snapshots += 1
        number = b"%d" % world.snapshots
        snapshot_id = hashlib.sha256(b"snapshot" + number).digest()[:16]
        records = [world.records[key] for key in sorted(world.records)]
        pages = [records[at : at + world.page_size] for at in range(0, len(records), world.page_size)]
        subscription_id = hashlib.sha256(b"subscription" + number).digest()[:16]
        self._snapshots[snapshot_id] = {"pages": pages, "records": records, "base": len(world.events)}
        if request.replace_paused_subscription is not None:
            del self.streams[request.replace_paused_subscription]
        if request.reserve_subscription:
            self.streams[subscription_id] = FakeStream(SubscriptionId(subscription_id), len(world.events), False)
        self.send(
            fr.SnapshotBegin.build(
                {
                    "request_id": request.request_id,
                    "snapshot_id": snapshot_id,
                    "authority_guard": world.certificate(self.now).guard(),
                    "base_event_sequence": len(world.events),
                    "first_cursor": b"cursor-0" if pages else None,
                    "subscription_id": subscription_id if request.reserve_subscription else None,
                    "lease_expires_at": int(self.now.wall) + 60,
                }
            )
        )
        if not pages:
            self._send_end(request.request_id, snapshot_id)

    def _on_next(self, request: fr.SnapshotNext) -> None:
        pages = self._snapshots[request.snapshot_id]["pages"]
        index = int(request.cursor.removeprefix(b"cursor-"))
        last = index == len(pages) - 1
        self.send(
            fr.SnapshotPage.build(
                {
                    "request_id": request.request_id,
                    "snapshot_id": request.snapshot_id,
                    "cursor": request.cursor,
                    "page_index": index,
                    "records": tuple(pages[index]),
                    "next_cursor": None if last else b"cursor-%d" % (index + 1),
                }
            )
        )
        if last:
            self._send_end(request.request_id, request.snapshot_id)

    def _send_end(self, request_id: int, snapshot_id: bytes) -> None:
        snapshot, world = self._snapshots[snapshot_id], self.world
        records: Iterable[SnapshotRecord] = snapshot["records"]
        digest = SnapshotDigest(
            world.coordinator_id, world.epoch, world.activation, snapshot["base"], len(snapshot["records"])
        )
        for record in records:
            digest.update(record.encode())
        self.send(
            fr.SnapshotEnd.build(
                {
                    "request_id": request_id,
                    "snapshot_id": snapshot_id,
                    "page_count": len(snapshot["pages"]),
                    "record_count": len(snapshot["records"]),
                    "canonical_sha256": digest.digest(),
                }
            )
        )

    def _on_applied(self, request: fr.SnapshotApplied) -> None:
        self.send(fr.Ack(request_id=request.request_id))
        if request.subscription_id is not None:
            stream = self.streams[request.subscription_id]
            stream.live = True
            stream.count, stream.nbytes = request.initial_credit_count, request.initial_credit_bytes
            self.pump()

    def _on_subscribe(self, request: fr.Subscribe) -> None:
        if not self._guarded(request):
            return
        subscription_id = SubscriptionId(hashlib.sha256(b"direct%d" % request.request_id).digest()[:16])
        self.send(
            fr.Subscribed.build(
                {"request_id": request.request_id, "subscription_id": subscription_id, "next_delivery_sequence": 1}
            )
        )
        self.streams[subscription_id] = FakeStream(
            subscription_id,
            request.after_event_sequence,
            True,
            request.initial_credit_count,
            request.initial_credit_bytes,
        )
        self.pump()

    def _on_credit(self, credit: fr.CreditFrame) -> None:
        stream = self.streams[credit.subscription_id]
        stream.count += credit.add_count
        stream.nbytes += credit.add_bytes
        self.pump()

    def pump(self) -> None:
        """Send events as far as credit allows."""
        for stream in self.streams.values():
            while stream.live and not stream.paused and stream.cursor < len(self.world.events):
                event = self.world.events[stream.cursor]
                if not event:
                    stream.cursor += 1
                    continue
                frame = self.event(stream, event)
                size = len(frame.encode())
                if stream.count < 1 or stream.nbytes < size:
                    break
                stream.count -= 1
                stream.nbytes -= size
                stream.cursor += 1
                stream.last = stream.cursor
                stream.delivery += 1
                self.send(frame)

    def event(self, stream: FakeStream, event: dict[str, Any]) -> fr.CoordEvent:
        """The next event of a stream."""
        return fr.CoordEvent.build(
            {"subscription_id": stream.subscription_id, "delivery_sequence": stream.delivery + 1, **event}
        )

    def gap(self, stream: FakeStream, reason: GapReason = GapReason.QUEUE_OVERFLOW) -> None:
        """Pause a stream."""
        stream.paused = True
        self.replays.end(stream)
        self.send(
            fr.Gap(
                subscription_id=stream.subscription_id,
                last_contiguous_delivery=DeliveryCut(stream.delivery),
                last_contiguous_event=EventCut(stream.last),
                reason=reason,
            )
        )
