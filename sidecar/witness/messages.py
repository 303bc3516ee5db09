"""Requests and replies of the witness: values, their fixed images, and the one table of message kinds.

Every image has exactly one length, so there is nothing to negotiate and nothing to skip. Integers are big-endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar, Final

from sidecar.base.witnessing import Refusal, WitnessProtocolError
from sidecar.coordinator.wire.errors import ProtocolError
from sidecar.coordinator.wire.ids import (
    ActivationSequence,
    ActivationWitnessId,
    AuthorityEpoch,
    CoordinatorId,
    IncarnationId,
)
from sidecar.coordinator.wire.records import ActivationCertificate

VERSION: Final = 1
NONCE_BYTES: Final = 32
KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
TOKEN_BYTES: Final = 32
CERTIFICATE_BYTES: Final = 209


class Kind(IntEnum):
    """Type byte of a message. Below 0x80 the client sends, from 0x80 on the witness."""

    ACTIVATE = 0x10
    RENEW = 0x11
    RELINQUISH = 0x12
    LAST = 0x13
    CHALLENGE = 0x80
    GRANTED = 0x81
    RELEASED = 0x82
    REPORT = 0x83
    REFUSED = 0x84


@dataclass(frozen=True, slots=True)
class Activate:
    """Ask for a new fencing token for exactly this coordinator, epoch and incarnation."""

    kind: ClassVar[Kind] = Kind.ACTIVATE
    layout: ClassVar[struct.Struct] = struct.Struct(">16sQ16s")

    coordinator_id: CoordinatorId
    epoch: AuthorityEpoch
    incarnation_id: IncarnationId

    def image(self) -> bytes:
        return self.layout.pack(self.coordinator_id, self.epoch, self.incarnation_id)

    @classmethod
    def parse(cls, image: bytes) -> Activate:
        return cls(*_nonzero(cls.layout, image))


@dataclass(frozen=True, slots=True)
class Renew:
    """Ask for a later expiry of the token that is held: all five values must be the current ones (P12-05)."""

    kind: ClassVar[Kind] = Kind.RENEW
    layout: ClassVar[struct.Struct] = struct.Struct(">16sQQ16s32s")

    coordinator_id: CoordinatorId
    activation_sequence: ActivationSequence
    epoch: AuthorityEpoch
    incarnation_id: IncarnationId
    token: bytes = field(repr=False)

    def image(self) -> bytes:
        return self.layout.pack(
            self.coordinator_id, self.activation_sequence, self.epoch, self.incarnation_id, self.token
        )

    @classmethod
    def parse(cls, image: bytes) -> Renew:
        return cls(*_nonzero(cls.layout, image))


@dataclass(frozen=True, slots=True)
class Relinquish:
    """Give the token back before its expiry; its holder has stopped for good (P12-12)."""

    kind: ClassVar[Kind] = Kind.RELINQUISH
    layout: ClassVar[struct.Struct] = struct.Struct(">16sQ32s")

    coordinator_id: CoordinatorId
    activation_sequence: ActivationSequence
    token: bytes = field(repr=False)

    def image(self) -> bytes:
        return self.layout.pack(self.coordinator_id, self.activation_sequence, self.token)

    @classmethod
    def parse(cls, image: bytes) -> Relinquish:
        return cls(*_nonzero(cls.layout, image))


@dataclass(frozen=True, slots=True)
class Last:
    """Ask for the last epoch and activation sequence of a coordinator."""

    kind: ClassVar[Kind] = Kind.LAST
    layout: ClassVar[struct.Struct] = struct.Struct(">16s")

    coordinator_id: CoordinatorId

    def image(self) -> bytes:
        return self.layout.pack(self.coordinator_id)

    @classmethod
    def parse(cls, image: bytes) -> Last:
        return cls(*_nonzero(cls.layout, image))


Request = Activate | Renew | Relinquish | Last
REQUESTS: Final[dict[Kind, type[Activate] | type[Renew] | type[Relinquish] | type[Last]]] = {
    request.kind: request for request in (Activate, Renew, Relinquish, Last)
}


@dataclass(frozen=True, slots=True)
class Challenge:
    """First message on every connection: a fresh nonce and who the witness is. Good for one request."""

    kind: ClassVar[Kind] = Kind.CHALLENGE
    layout: ClassVar[struct.Struct] = struct.Struct(">B32s16s")

    nonce: bytes
    witness_id: ActivationWitnessId

    def image(self) -> bytes:
        return self.layout.pack(VERSION, self.nonce, self.witness_id)

    @classmethod
    def parse(cls, image: bytes) -> Challenge:
        version, nonce, witness_id = _unpack(cls.layout, image)
        if version != VERSION:
            raise WitnessProtocolError(f"the witness speaks version {version}, this client version {VERSION}")
        return cls(nonce, witness_id)


@dataclass(frozen=True, slots=True)
class Granted:
    """The certificate of an activation or a renewal."""

    kind: ClassVar[Kind] = Kind.GRANTED

    certificate: ActivationCertificate

    def image(self) -> bytes:
        return self.certificate.encode()

    @classmethod
    def parse(cls, image: bytes) -> Granted:
        try:
            return cls(ActivationCertificate.decode(image))
        except (ProtocolError, ValueError) as error:
            raise WitnessProtocolError("the witness sent no certificate") from error


@dataclass(frozen=True, slots=True)
class Released:
    """The token is spent, durably."""

    kind: ClassVar[Kind] = Kind.RELEASED

    def image(self) -> bytes:
        return b""

    @classmethod
    def parse(cls, image: bytes) -> Released:
        _require(not image)
        return cls()


@dataclass(frozen=True, slots=True)
class Report:
    """Last epoch and activation sequence of a coordinator; both 0 when it was never activated."""

    kind: ClassVar[Kind] = Kind.REPORT
    layout: ClassVar[struct.Struct] = struct.Struct(">QQ")

    epoch: int
    activation_sequence: int

    def image(self) -> bytes:
        return self.layout.pack(self.epoch, self.activation_sequence)

    @classmethod
    def parse(cls, image: bytes) -> Report:
        return cls(*_unpack(cls.layout, image))


@dataclass(frozen=True, slots=True)
class Refused:
    """No, and why. ``retry_after_ms`` counts for ``LEASE_ACTIVE``, ``last_epoch`` for ``EPOCH_TOO_LOW``."""

    kind: ClassVar[Kind] = Kind.REFUSED
    layout: ClassVar[struct.Struct] = struct.Struct(">BQQ")

    reason: Refusal
    retry_after_ms: int = 0
    last_epoch: int = 0

    def image(self) -> bytes:
        return self.layout.pack(_REASON_CODES[self.reason], self.retry_after_ms, self.last_epoch)

    @classmethod
    def parse(cls, image: bytes) -> Refused:
        code, retry_after_ms, last_epoch = _unpack(cls.layout, image)
        _require(code in _REASONS)
        return cls(_REASONS[code], retry_after_ms, last_epoch)


_REASON_CODES: Final = {
    Refusal.LEASE_ACTIVE: 1,
    Refusal.EPOCH_TOO_LOW: 2,
    Refusal.UNKNOWN: 3,
    Refusal.NOT_CURRENT: 4,
    Refusal.SPENT: 5,
    Refusal.NOT_AUTHORISED: 6,
    Refusal.EXHAUSTED: 7,
    Refusal.STORAGE: 8,
}
_REASONS: Final = {code: reason for reason, code in _REASON_CODES.items()}

Reply = Granted | Released | Report | Refused
REPLIES: Final[dict[Kind, type[Granted] | type[Released] | type[Report] | type[Refused]]] = {
    reply.kind: reply for reply in (Granted, Released, Report, Refused)
}
ANSWERS: Final = {
    Kind.ACTIVATE: Kind.GRANTED,
    Kind.RENEW: Kind.GRANTED,
    Kind.RELINQUISH: Kind.RELEASED,
    Kind.LAST: Kind.REPORT,
}
"""What each request is answered with when it is not refused."""

IMAGE_BYTES: Final[dict[Kind, int]] = {
    **{kind: request.layout.size for kind, request in REQUESTS.items()},
    Kind.CHALLENGE: Challenge.layout.size,
    Kind.GRANTED: CERTIFICATE_BYTES,
    Kind.RELEASED: 0,
    Kind.REPORT: Report.layout.size,
    Kind.REFUSED: Refused.layout.size,
}
"""Bytes of each image, without what the exchange puts before it."""


def _require(condition: bool) -> None:
    if not condition:
        raise WitnessProtocolError("a message is malformed")


def _unpack(layout: struct.Struct, image: bytes) -> tuple[Any, ...]:
    _require(len(image) == layout.size)
    return layout.unpack(image)


def _nonzero(layout: struct.Struct, image: bytes) -> tuple[Any, ...]:
    """Every value of a request is an id, a token or a counter: none is ever zero (P4-01, P4-04)."""
    values = _unpack(layout, image)
    _require(all(any(value) if isinstance(value, bytes) else value for value in values))
    return values
