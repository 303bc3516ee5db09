"""A witness with virtual clocks: its service and store are real, only sockets and time are left out."""

from __future__ import annotations

import hashlib
import io
import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sidecar.base.clock import Now
from sidecar.base.ed25519 import SigningKey
from sidecar.base.secret import Secret
from sidecar.base.witnessing import WitnessRefused, WitnessUnavailable
from sidecar.coordinator.authority.certificate import WitnessPin
from sidecar.coordinator.wire.ids import ActivationSequence, AuthorityEpoch, CoordinatorId, IncarnationId
from sidecar.coordinator.wire.records import ActivationCertificate
from sidecar.ops.logging import Level, Log
from sidecar.witness import store
from sidecar.witness.messages import Activate, Granted, Last, Refused, Relinquish, Renew, Reply, Report, Request
from sidecar.witness.protocol import ClientExchange, ServerExchange, encode_reply
from sidecar.witness.service import WitnessService
from sidecar.witness.state import SECOND, Instant
from sidecar.witness.store import WitnessStore

COORDINATOR = CoordinatorId(b"\x11" * 16)
OTHER = CoordinatorId(b"\x12" * 16)
START_WALL = 1_900_000_000
START_MONO = 5_000
LIFE = 60


def client_key(number: int = 1) -> SigningKey:
    return SigningKey(Secret(bytes([number]) * 32))


def incarnation(number: int) -> IncarnationId:
    return IncarnationId(number.to_bytes(16, "big"))


def counting_entropy() -> Callable[[int], bytes]:
    """Different bytes at every call, the same in every run."""
    numbers = itertools.count()
    return lambda size: hashlib.shake_256(next(numbers).to_bytes(8, "big")).digest(size)


class Clock:
    """Wall and boot clocks that tests move; the monotonic clock of a coordinator runs with the boot clock."""

    def __init__(self) -> None:
        self.instant = Instant(START_WALL * SECOND, START_MONO * SECOND, b"b" * 16)

    def __call__(self) -> Instant:
        return self.instant

    def now(self) -> Now:
        return Now(self.instant.wall_ns / SECOND, self.instant.boot_ns / SECOND)

    def advance(self, seconds: float) -> None:
        self.instant = replace(
            self.instant,
            wall_ns=self.instant.wall_ns + round(seconds * SECOND),
            boot_ns=self.instant.boot_ns + round(seconds * SECOND),
        )

    def jump_wall(self, seconds: float) -> None:
        self.instant = replace(self.instant, wall_ns=self.instant.wall_ns + round(seconds * SECOND))

    def reboot(self) -> None:
        self.instant = replace(self.instant, boot_ns=0, boot_id=os.urandom(16))


class LocalWitness:
    """The client's interface straight onto a witness's state directory, through both halves of the protocol."""

    def __init__(self, directory: Path, clock: Clock, *keys: SigningKey, lease_seconds: int = LIFE) -> None:
        self.clock = clock
        self.directory = directory
        self.keys = keys or (client_key(),)
        self.key = self.keys[0]
        self.lease_seconds = lease_seconds
        self.entropy = counting_entropy()
        self.log = io.StringIO()
        self.step: Callable[[str], None] = lambda name: None
        self.calls: list[Request] = []
        self.down = False
        if not directory.exists():
            store.init(directory, self.entropy)
        self.service = self.start()

    def start(self) -> WitnessService:
        return WitnessService(
            lambda: WitnessStore.open(self.directory, step=lambda name: self.step(name)),
            lease_seconds=self.lease_seconds,
            clients=frozenset(key.public_key for key in self.keys),
            clock=self.clock,
            entropy=self.entropy,
            log=Log(self.log, level=Level.DEBUG),
        )

    def restart(self) -> None:
        self.service.close()
        self.service = self.start()

    @property
    def pin(self) -> WitnessPin:
        return WitnessPin(self.service.identity.witness_id, self.service.identity.public_key)

    def call(self, request: Request) -> Reply:
        self.calls.append(request)
        if self.down:
            raise WitnessUnavailable("the witness is down")
        identity = self.service.identity
        server = ServerExchange(identity.witness_id, self.entropy(32))
        client = ClientExchange(self.key, identity.witness_id, request)
        signed = server.feed(client.feed(server.opening()))
        assert signed is not None
        client.feed(encode_reply(signed.nonce, self.service.answer(signed)))
        assert client.reply is not None
        return client.reply

    def ask(self, request: Request) -> Reply:
        reply = self.call(request)
        if isinstance(reply, Refused):
            raise WitnessRefused(reply.reason, retry_after=reply.retry_after_ms / 1000, last_epoch=reply.last_epoch)
        return reply

    def activate(
        self, coordinator_id: CoordinatorId, epoch: AuthorityEpoch, incarnation_id: IncarnationId
    ) -> ActivationCertificate:
        reply = self.ask(Activate(coordinator_id, epoch, incarnation_id))
        assert isinstance(reply, Granted)
        return reply.certificate

    def renew(self, certificate: ActivationCertificate) -> ActivationCertificate:
        reply = self.ask(renewal_of(certificate))
        assert isinstance(reply, Granted)
        return reply.certificate

    def relinquish(self, coordinator_id: CoordinatorId, activation_sequence: ActivationSequence, token: bytes) -> None:
        self.ask(Relinquish(coordinator_id, activation_sequence, token))

    def last(self, coordinator_id: CoordinatorId) -> tuple[int, int]:
        reply = self.ask(Last(coordinator_id))
        assert isinstance(reply, Report)
        return reply.epoch, reply.activation_sequence


def renewal_of(certificate: ActivationCertificate) -> Renew:
    return Renew(
        certificate.coordinator_id,
        certificate.activation_sequence,
        certificate.authority_epoch,
        certificate.incarnation_id,
        certificate.fencing_token,
    )
