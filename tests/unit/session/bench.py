"""A server session on a real engine, and the other side of its wire: key, frames, clocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cext.frame import MAX_LENGTH, Splitter
from sidecar.base.clock import Now
from sidecar.base.ed25519 import SigningKey
from sidecar.base.secret import Secret
from sidecar.coordinator.authority.grants import KeyRecord, Registry
from sidecar.coordinator.authority.proof import ChannelBinding, make_response, uds_binding
from sidecar.coordinator.session import HandshakeEnv, ServerSession
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import FrameType
from sidecar.coordinator.wire.limits import HARD, Limits
from sidecar.coordinator.wire.records import WorkloadOffer
from tests.unit.engine.harness import World

AUTHORITY_KEY = SigningKey(Secret(b"\x31" * 32))
WORKLOAD_KEY = SigningKey(Secret(b"\x32" * 32))
OTHER_KEY = SigningKey(Secret(b"\x33" * 32))
STRANGER_KEY = SigningKey(Secret(b"\x34" * 32))
CAPABILITIES = 0x1
YEAR = 31_536_000
PEER = (1000, 1000, 4242)


def binding(server_nonce: bytes, peer: tuple[int, int, int] = PEER) -> ChannelBinding:
    return uds_binding(server_nonce, *peer)


def offer(nonce: bytes = b"\x77" * 32) -> WorkloadOffer:
    return WorkloadOffer(nonce)


def hello(**changes: Any) -> fr.CoordHello:
    """A COORD_HELLO that is accepted, but for what is changed."""
    values: dict[str, Any] = {
        "protocol_major": 0,
        "protocol_minor": 1,
        "protocol_patch": 0,
        "client_name": "test",
        "offered_capabilities": 0x1F,
        "required_capabilities": 0,
        "max_frame_bytes": HARD.frame,
        "max_page_bytes": HARD.page_bytes,
        "max_page_records": HARD.page_records,
        "max_typed_payload_bytes": HARD.typed_payload,
        "max_event_credit_count": HARD.credit_count,
        "max_event_credit_bytes": HARD.credit_bytes,
        "workload_offer": offer(),
    }
    return fr.CoordHello(**{**values, **changes})


@dataclass
class House:
    """Engine, registry and what the sessions of one server share."""

    world: World = field(default_factory=World)
    limits: Limits = HARD
    capabilities: int = CAPABILITIES
    registry: Registry = field(default_factory=Registry)
    lookups: int = 0
    crashes: list[Exception] = field(default_factory=list)

    def __post_init__(self) -> None:
        until = int(self.world.now.wall) + YEAR
        keys = [KeyRecord.of(WORKLOAD_KEY.public_key, 0x3F, until), KeyRecord.of(OTHER_KEY.public_key, 0x01, until)]
        self.enrol(*keys)
        self.env = HandshakeEnv(
            engine=self.world.engine,
            key=AUTHORITY_KEY,
            registry=self._registry,
            limits=self.limits,
            capabilities=self.capabilities,
            entropy=self.world.entropy,
            observer=self.world.observer,
            crashed=self.crashes.append,
        )

    def _registry(self) -> Registry:
        self.lookups += 1
        return self.registry

    def enrol(self, *records: KeyRecord) -> None:
        self.registry = Registry(records, self.registry.generation + 1)

    def open(self, peer: tuple[int, int, int] = PEER) -> Wire:
        return Wire(self, peer)

    def login(self, key: SigningKey = WORKLOAD_KEY, scopes: int = 0x3F, **changes: Any) -> Wire:
        wire = self.open()
        wire.hello(**changes)
        wire.respond(key, scopes=scopes)
        assert wire.take(fr.CoordHelloOk)
        return wire


class Wire:
    """One connection: sends to the session, reads what it writes."""

    def __init__(self, house: House, peer: tuple[int, int, int] = PEER) -> None:
        self.house = house
        self.wakes = 0
        self.session = ServerSession(house.env, lambda nonce: binding(nonce, peer), self._wake, house.world.now)
        self.challenge: fr.WorkloadChallenge | None = None
        self._splitter = Splitter([MAX_LENGTH] * 256)

    def _wake(self) -> None:
        self.wakes += 1

    @property
    def now(self) -> Now:
        return self.house.world.now

    def send(self, *parts: bytes | fr.Frame) -> None:
        self.session.feed(b"".join(p if isinstance(p, bytes) else p.encode() for p in parts), self.now)

    def received(self) -> list[fr.Frame]:
        frames: list[fr.Frame] = []
        for image in self.session.take_output(self.now):
            self._splitter.feed(image)
        while (found := self._splitter.next_frame()) is not None:
            frames.append(fr.decode_frame(FrameType(found[0]), found[1], None))
        return frames

    def take(self, shape: type[fr.Frame]) -> Any:
        """The one frame that came, which is of this shape."""
        frames = self.received()
        assert [type(frame) for frame in frames] == [shape], frames
        return frames[0]

    def hello(self, **changes: Any) -> fr.WorkloadChallenge:
        self.send(hello(**changes))
        challenge: fr.WorkloadChallenge = self.take(fr.WorkloadChallenge)
        self.challenge = challenge
        return challenge

    def response(self, key: SigningKey = WORKLOAD_KEY, scopes: int = 0x3F, life: int = 3600) -> fr.WorkloadResponse:
        assert self.challenge is not None
        return make_response(self.challenge, key, scopes=scopes, requested_expiry=int(self.now.wall) + life)

    def respond(self, key: SigningKey = WORKLOAD_KEY, scopes: int = 0x3F, life: int = 3600) -> None:
        self.send(self.response(key, scopes, life))

    def refusal(self) -> tuple[int, str]:
        """Code and text of the last frame, a COORD_ERROR; the session is closed after it."""
        frames = self.received()
        error = frames[-1]
        assert isinstance(error, fr.CoordErrorFrame), frames
        assert self.session.closing
        assert self.received() == []
        return int(error.code), error.message
